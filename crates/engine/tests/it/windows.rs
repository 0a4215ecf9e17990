//! Where layers look back through a window, what lies behind it makes room for others, and changes no bit.

use crate::common::{self, start, stories};
use engine::{Engine, EngineConfig, PrefixCaching, Request};
use model::sampling::SamplingParams;
use spec::KvGroups;

/// All layers, most of them, two of three, in groups that are full and in one that is not.
const MODELS: [&str; 4] = ["mistral-long", "gemma3", "phi3", "qwen2-window"];

fn config() -> EngineConfig {
    EngineConfig {
        max_model_len: Some(512),
        max_num_batched_tokens: 32,
        kv_tokens: Some(8 * 512),
        prefix_caching: PrefixCaching::On,
        ..common::poisoned()
    }
}

/// All of it is kept where it may go to the host.
fn kept() -> EngineConfig {
    EngineConfig { host_kv_tokens: 64, ..config() }
}

/// Four that begin alike, and four that do not.
fn requests() -> Vec<Request> {
    let params = SamplingParams {
        max_tokens: Some(40),
        ignore_eos: true,
        logprobs: Some(5),
        ..SamplingParams::greedy()
    };
    let prompt = |seed: u32, len: u32| (0..len).map(|i| 3 + (seed * 31 + i * 17 + i * i) % 90).collect();
    let request = |seed, len| Request { prompt: prompt(seed, len), params: params.clone(), seed: 7, salt: 0 };
    (0..8).map(|i| request(i.min(4) % 4 + i / 5, 290 + 20 * i)).collect()
}

/// Begun one after the other: whoever finds something kept finds it as it is left by then.
fn in_turn(engine: &Engine) -> Vec<common::Story> {
    requests().into_iter().map(|request| stories(engine, &[request]).remove(0)).collect()
}

#[test]
fn what_lies_behind_a_window_makes_room_and_changes_no_bit() {
    for model in MODELS {
        let (all, some) = (start(model, kept()), start(model, config()));
        assert_eq!(all.hold().kv_groups, KvGroups::default());
        assert!(some.hold().kv_groups.sliding > 0, "{model}: {:?}", some.hold());
        let (held, would) = (some.hold().kv_bytes as f64, all.hold().kv_bytes as f64);
        assert!(held < 0.85 * would, "{model}: {held} of {would}");
        let want = stories(&all, &requests());
        assert_eq!(stories(&some, &requests()), want, "{model}");
        let (before, computed) = (some.counts().cached_tokens, some.counts().computed_tokens);
        // Nobody made way: all eight had room at a time.
        let once: u64 = requests().iter().map(|r| r.prompt.len() as u64 + 39).sum();
        assert!(computed <= once + 16, "{model}: {computed} of {once}");
        assert_eq!(in_turn(&some), want, "{model}: by what was kept");
        assert!(some.counts().cached_tokens > before + 1000, "{model}: {:?}", some.counts());
    }
}

/// Whoever asks for room is told that it is there, though no sequence fills its last block.
#[test]
fn room_that_was_asked_for_is_there() {
    for model in MODELS {
        let config = EngineConfig { max_model_len: Some(500), max_num_seqs: 8, ..config() };
        let hold = *start(model, config).hold();
        assert!(hold.kv_groups.sliding > 0 && hold.kv_tokens >= 8 * 512, "{model}: {hold:?}");
        assert_eq!(hold.max_model_len, 500, "{model}");
    }
}

/// A hold for the longest alone: whoever runs makes way again and again.
#[test]
fn who_makes_way_behind_a_window_says_the_same() {
    for model in MODELS {
        let want = stories(&start(model, kept()), &requests());
        let tight = EngineConfig { kv_tokens: Some(512), ..config() };
        let engine = start(model, EngineConfig { max_num_seqs: 4, ..tight });
        assert_eq!(stories(&engine, &requests()), want, "{model}: {}", engine.hold());
    }
}

#[test]
fn a_recorded_run_with_windows_replays_step_for_step() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    stories(&start("gemma3", EngineConfig { record: Some(path.clone()), ..config() }), &requests());
    let log = std::fs::read_to_string(&path).unwrap();
    assert!(log.contains("\"sliding\":2"), "{}", &log[..400]);
    assert_eq!(sim::replay(log.as_bytes()).unwrap().requests, 8);
}
