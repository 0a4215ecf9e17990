//! Weights that are streamed from the drive give the bits of resident ones, whatever their share.

use std::path::{Path, PathBuf};

use engine::{
    Engine, EngineConfig, Event, Hold, KvMemory, Offload, Planned, PrefixCaching, Request, Ticket, TooSmall,
    WeightShare,
};
use kernels::{Isa, page_cache};
use model::Checkpoint;
use model::decoder::{Blueprint, WeightsAs};
use model::sampling::SamplingParams;
use spec::{ByTier, ModelSpec, Split};

fn checkpoint(name: &str) -> Checkpoint {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(name);
    Checkpoint::open(&folder).unwrap()
}

fn config(offload: Offload) -> EngineConfig {
    EngineConfig {
        weights: WeightsAs::Bf16,
        memory: 4 << 30,
        threads: 2,
        device: engine::DeviceChoice::Cpu,
        isa: Isa::detect(),
        max_model_len: Some(128),
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        max_num_queued_reqs: 100,
        prefix_caching: PrefixCaching::Off,
        steps_in_flight: 1,
        kv_tokens: Some(8 * 128),
        kv_memory: KvMemory::AsUsed,
        host_kv_tokens: 0,
        offload,
        record: None,
    }
}

fn offload(folder: &Path, percent: u32) -> Offload {
    let parts = percent * (Split::WHOLE / 100);
    let split = Split::new(ByTier { device: parts, host: 0, disk: Split::WHOLE - parts }).unwrap();
    Offload { folder: Some(folder.into()), disk: None, share: WeightShare::Exactly(split) }
}

fn start(checkpoint: &Checkpoint, config: EngineConfig) -> Engine {
    Planned::new(checkpoint, config).unwrap().start(&|_| {}).unwrap()
}

/// Tokens and the bits of their log-probabilities, of six requests at once.
fn stories(engine: &Engine) -> Vec<Vec<(u32, u32)>> {
    let params = SamplingParams {
        max_tokens: Some(12),
        ignore_eos: true,
        logprobs: Some(0),
        prompt_logprobs: Some(0),
        ..SamplingParams::greedy()
    };
    let request = |i: u32| Request {
        prompt: (0..10 + 7 * i).map(|j| 3 + (i * 31 + j * 17) % 90).collect(),
        params: params.clone(),
        seed: 7,
        salt: 0,
    };
    let tickets: Vec<Ticket> = (0..6).map(|i| engine.submit(request(i)).unwrap()).collect();
    tickets.iter().map(story).collect()
}

fn story(ticket: &Ticket) -> Vec<(u32, u32)> {
    let mut story = Vec::new();
    loop {
        match ticket.events.recv().expect("the engine lives") {
            Event::Token(token) => story.push((token.id, token.logprobs.unwrap().logprob.to_bits())),
            Event::Prompt(at, scores) => story.push((at as u32, scores.logprob.to_bits())),
            Event::Finished(_) => return story,
            Event::Began(_) => (),
            Event::Failed(why) => panic!("{why}"),
        }
    }
}

#[test]
fn every_share_gives_the_bits_of_resident_weights() {
    let folder = tempfile::tempdir().unwrap();
    for (model, weights) in [
        ("llama-gqa-tied", WeightsAs::Bf16),
        ("qwen3", WeightsAs::Int4),
        ("opt-350m", WeightsAs::Int8),
        ("mistral", WeightsAs::F32),
    ] {
        let checkpoint = checkpoint(model);
        let want = stories(&start(&checkpoint, EngineConfig { weights, ..config(Offload::default()) }));
        let mut passes = Vec::new();
        for percent in [0, 20, 50, 100] {
            let config = EngineConfig { weights, ..config(offload(folder.path(), percent)) };
            let engine = start(&checkpoint, config);
            assert_eq!(stories(&engine), want, "{model}, {percent} % resident");
            assert_eq!(engine.streamed().bytes > 0, percent < 100, "{model}, {percent} %");
            passes.push(engine.hold().streamed_bytes);
        }
        assert!(passes.is_sorted_by(|a, b| a >= b), "{model}: {passes:?}");
    }
}

#[test]
fn nothing_of_the_store_stays_in_the_page_cache() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint("llama-gqa-tied");
    let planned = Planned::new(&checkpoint, config(offload(folder.path(), 30))).unwrap();
    let store = planned.store().unwrap().expect("weights are streamed");
    stories(&planned.start(&|_| {}).unwrap());
    let file = std::fs::File::open(store.join("panels.bin")).unwrap();
    assert!(file.metadata().unwrap().len() > 0);
    assert_eq!(page_cache::cached_bytes(&file).unwrap(), 0);
}

#[test]
fn as_much_as_fits_is_resident_and_the_budget_holds() {
    // Slots hold two layers: only of many more is there something to win.
    let spec = ModelSpec { layers: 24, ..checkpoint("llama-gqa-tied").spec().clone() };
    let blueprint = Blueprint::new(&spec, WeightsAs::Bf16, |_| model::Stored::Bf16);
    let folder = Some(PathBuf::from("anywhere"));
    let plan = |memory| {
        let offload = Offload { folder: folder.clone(), ..Offload::default() };
        Hold::plan(&spec, &blueprint, &EngineConfig { memory, ..config(offload) }, 1 << 20)
    };
    let (roomy, cut) = plan(4 << 30).unwrap();
    assert!(cut.is_none() && roomy.disk_bytes == 0);
    let mut streamed = u64::MAX;
    let mut refused = 0;
    for missing in (0..roomy.weight_bytes).rev().step_by(roomy.weight_bytes as usize / 40) {
        // KV of one sequence is the least; the plan may give up the rest of it for weights.
        let limit = roomy.total_bytes() - roomy.kv_bytes + roomy.kv_bytes / 7 - missing;
        match plan(limit) {
            Ok((hold, _)) => {
                assert!(hold.total_bytes() <= limit, "{hold:?}");
                assert!(hold.streamed_bytes <= streamed, "more memory, more streaming: {hold:?}");
                streamed = hold.streamed_bytes;
            }
            Err(TooSmall::Memory { need, streamed, .. }) => {
                assert!(need > limit && streamed);
                refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(refused > 0 && streamed < u64::MAX);
}

#[test]
fn a_store_larger_than_its_share_of_the_drive_is_refused() {
    let checkpoint = checkpoint("llama-gqa-tied");
    let folder = tempfile::tempdir().unwrap();
    let offload = Offload { disk: Some(1000), ..offload(folder.path(), 0) };
    let text = Planned::new(&checkpoint, config(offload)).map(drop).unwrap_err().to_string();
    assert!(text.contains("--disk"), "{text}");
}

#[test]
fn a_store_that_is_torn_while_it_streams_fails_requests_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint("llama-gqa-tied");
    let planned = Planned::new(&checkpoint, config(offload(folder.path(), 0))).unwrap();
    let store = planned.store().unwrap().expect("weights are streamed");
    let engine = planned.start(&|_| {}).unwrap();
    std::fs::File::options().write(true).open(store.join("panels.bin")).unwrap().set_len(4096).unwrap();
    let params = SamplingParams { max_tokens: Some(4), ..SamplingParams::greedy() };
    let ticket = engine.submit(Request { prompt: vec![3, 4, 5], params, seed: 0, salt: 0 }).unwrap();
    let failure = ticket.events.iter().find_map(|event| match event {
        Event::Failed(why) => Some(why.to_string()),
        _ => None,
    });
    let text = failure.expect("the request is told");
    assert!(text.contains("torn") && text.contains("panels.bin"), "{text}");
}
