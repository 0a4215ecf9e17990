//! Sparse attention over KV that lives elsewhere: the bits of the resident run, and fewer bytes on the way.

use std::path::Path;

use crate::common::{Story, checkpoint, poisoned, split, stories};
use engine::{Blocks, Counts, DeviceChoice, EngineConfig, KvFormat, Offload, Planned, Request};
use model::Checkpoint;
use model::sampling::SamplingParams;
use policy::sched::{Delegate, Schedule};
use spec::{Lane, ModelSpec};

/// Two heads, each with keys of its own, so that a page is left out by one that has no use for it; pages of a head's values
/// in bf16 are whole sectors of a drive.
fn model() -> Checkpoint {
    let spec = checkpoint("llama").spec().clone();
    Checkpoint::dummy(ModelSpec { heads: 2, kv_heads: 2, head_dim: 64, max_positions: 2048, ..spec }, 7)
}

fn config(sparse: Option<f32>) -> EngineConfig {
    EngineConfig {
        sparse,
        max_model_len: Some(1400),
        max_num_seqs: 6,
        max_num_batched_tokens: 512,
        kv_tokens: Some(6 * 1400),
        ..poisoned()
    }
}

/// Where KV lives (percent on device, host, disk), where decodes attend, whether a link lies between host and device.
type Case = ([u32; 3], Delegate, bool);

fn away((kv, delegate, link): Case, folder: &Path, sparse: Option<f32>) -> EngineConfig {
    let blocks = Blocks {
        schedule: Some(Schedule::Zigzag),
        num_batches: Some(2),
        batch_size: Some(3),
        kv: split(kv),
        delegate,
        ..Blocks::default()
    };
    let offload = Offload {
        device_memory: Some(1 << 30),
        link: link.then_some(8 << 30),
        folder: Some(folder.into()),
        ..Offload::default()
    };
    EngineConfig { blocks, offload, ..config(sparse) }
}

fn run(model: &Checkpoint, config: EngineConfig, requests: &[Request]) -> (Vec<Story>, Counts) {
    let engine = Planned::new(model, config).unwrap().start(&|_| {}).unwrap();
    (stories(&engine, requests), engine.counts())
}

fn request(length: u32) -> Request {
    let params = SamplingParams {
        max_tokens: Some(12),
        ignore_eos: true,
        logprobs: Some(1),
        ..SamplingParams::greedy()
    };
    let prompt = (0..length).map(|i| 3 + (length * 31 + i * 40_503 + i * i) % 290).collect();
    Request { prompt, params, seed: 7, salt: 0 }
}

const HOST: [u32; 3] = [0, 100, 0];
const DISK: [u32; 3] = [0, 0, 100];
const MIXED: [u32; 3] = [20, 30, 50];
const FEW: Option<f32> = Some(0.02);

#[test]
fn values_that_nobody_chose_are_left_on_the_drive() {
    let (folder, model, requests) = (tempfile::tempdir().unwrap(), model(), [request(1300)]);
    let (want, _) = run(&model, config(FEW), &requests);
    assert_ne!(want, run(&model, config(None), &requests).0, "a fiftieth of the keys is not all of them");
    for (delegate, link) in [(Delegate::Host, false), (Delegate::Streamed, false), (Delegate::Streamed, true)]
    {
        let case = (DISK, delegate, link);
        let (got, counts) = run(&model, away(case, folder.path(), FEW), &requests);
        assert_eq!(got, want, "{case:?}");
        let (_, exact) = run(&model, away(case, folder.path(), None), &requests);
        let (read, left) = (counts.moved_by(Lane::DiskRead), counts.left_bytes[Lane::DiskRead.index()]);
        assert_eq!(read + left, exact.moved_by(Lane::DiskRead), "{case:?}: the same steps");
        // Eleven decodes over 40 pages of two layers and two heads, 4 KiB each; prompts bring all.
        let values = 11 * 40 * 2 * 2 * 4096;
        assert!(left > values / 10 && left < values, "{case:?}: {left} of {values} bytes were left");
        let up = [counts, exact].map(|counts| counts.moved_by(Lane::Up));
        assert!(if link { up[0] < up[1] } else { up[0] == up[1] }, "{case:?}: {up:?} over the link");
    }
}

#[test]
fn values_that_nobody_chose_do_not_pass_the_link() {
    let (folder, model, requests) = (tempfile::tempdir().unwrap(), model(), [request(1300)]);
    let (want, _) = run(&model, config(FEW), &requests);
    let case = (HOST, Delegate::Streamed, true);
    let (got, counts) = run(&model, away(case, folder.path(), FEW), &requests);
    let (_, exact) = run(&model, away(case, folder.path(), None), &requests);
    assert_eq!(got, want);
    let left = counts.left_bytes[Lane::Up.index()];
    assert_eq!(counts.moved_by(Lane::Up) + left, exact.moved_by(Lane::Up));
    // Of each page only the tokens that were chosen, 32 of all 1,300: decodes bring little more than keys.
    let values = 11 * 40 * 2 * 2 * 4096;
    assert!(left > values / 10 * 9 && left < values, "{left} of {values} bytes were left");
    assert_eq!(exact.left_bytes, [0; Lane::COUNT]);
    // Where it lives it is attended as ever.
    let (got, counts) = run(&model, away((HOST, Delegate::Host, true), folder.path(), FEW), &requests);
    assert_eq!((got, counts.left_bytes), (want, [0; Lane::COUNT]));
}

#[test]
fn every_tier_and_format_gives_the_bits_of_the_resident_run() {
    let (folder, model) = (tempfile::tempdir().unwrap(), model());
    let requests = [700, 33, 1000, 1, 64, 400].map(request);
    for kv in [KvFormat::AsActivations, KvFormat::F16, KvFormat::Fp8, KvFormat::Int4] {
        let (want, _) = run(&model, EngineConfig { kv, ..config(FEW) }, &requests);
        for case in [
            (DISK, Delegate::Host, false),
            (MIXED, Delegate::Host, true),
            (MIXED, Delegate::Streamed, false),
            (MIXED, Delegate::Streamed, true),
        ] {
            let config = EngineConfig { kv, ..away(case, folder.path(), FEW) };
            let (got, _) = run(&model, config, &requests);
            assert_eq!(got, want, "{kv:?}, {case:?}");
        }
    }
    // One thread of cores for both, one step at a time, prompts in small chunks.
    let (want, _) = run(&model, config(FEW), &requests);
    let small = EngineConfig {
        device: DeviceChoice::Cpu,
        steps_in_flight: Some(1),
        max_num_batched_tokens: 100,
        ..away((MIXED, Delegate::Host, false), folder.path(), FEW)
    };
    assert_eq!(run(&model, small, &requests).0, want);
}

#[test]
fn windows_and_dynamic_rotations_choose_too() {
    let folder = tempfile::tempdir().unwrap();
    for (name, longest) in [
        ("mistral-long", 400),
        ("qwen3", 200),
        ("llama-dynamic-v4", 100),
        ("gemma2", 200),
        ("gemma3", 200),
        ("phi3-longrope", 100),
    ] {
        let requests = [longest, longest / 3].map(request);
        let short = |config: EngineConfig| EngineConfig {
            max_model_len: Some(longest as usize + 20),
            max_num_batched_tokens: 60,
            ..config
        };
        let requests = requests.map(|request| Request {
            prompt: request.prompt.iter().map(|token| token % 90).collect(),
            ..request
        });
        let model = checkpoint(name);
        let (want, _) = run(&model, short(config(Some(0.05))), &requests);
        for delegate in [Delegate::Host, Delegate::Streamed] {
            let config = short(away((DISK, delegate, false), folder.path(), Some(0.05)));
            assert_eq!(run(&model, config, &requests).0, want, "{name}, {delegate:?}");
        }
    }
}
