//! Weights that are streamed from the drive give the bits of resident ones, whatever their share.

use std::path::{Path, PathBuf};

use crate::common::{self, Story, checkpoint, config as base, split};
use engine::{
    Blocks, DeviceChoice, Engine, EngineConfig, Event, Foresight, Hold, HostLinears, Offload, Planned,
    Request, TooSmall, WeightShare,
};
use kernels::page_cache;
use model::Checkpoint;
use model::decoder::{Blueprint, WeightsAs};
use model::sampling::SamplingParams;
use policy::cost::{Curve, Linear, Pace, Tables};
use policy::sched::Schedule;
use spec::{ModelSpec, Nanos};

/// One of each sort, in formats of their own.
const MODELS: [(&str, WeightsAs); 7] = [
    ("llama-gqa-tied", WeightsAs::Bf16),
    ("qwen2", WeightsAs::Bf12),
    ("qwen3", WeightsAs::Int4),
    ("opt-350m", WeightsAs::Int8),
    ("mistral", WeightsAs::F32),
    ("gemma3", WeightsAs::Bf16),
    ("phi3-longrope", WeightsAs::Int8),
];

fn config(offload: Offload) -> EngineConfig {
    EngineConfig { offload, ..base() }
}

fn offload(folder: &Path, percent: u32) -> Offload {
    shares(folder, percent, 0)
}

/// Percent of weights on the device and on the host.
fn shares(folder: &Path, device: u32, host: u32) -> Offload {
    let share = WeightShare::Exactly(split([device, host, 100 - device - host]));
    Offload { folder: Some(folder.into()), share, ..Offload::default() }
}

fn start(checkpoint: &Checkpoint, config: EngineConfig) -> Engine {
    Planned::new(checkpoint, config).unwrap().start(&|_| {}).unwrap()
}

/// Tokens and the bits of their log-probabilities, of six requests at once.
fn stories(engine: &Engine) -> Vec<Story> {
    common::stories(engine, &common::scored_requests(6))
}

#[test]
fn every_share_gives_the_bits_of_resident_weights() {
    let folder = tempfile::tempdir().unwrap();
    for (model, weights) in MODELS {
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
fn requests_wait_for_each_other_by_the_bytes_of_a_pass() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(MODELS[0].0);
    let gather = |device, host| {
        let planned = Planned::new(&checkpoint, config(shares(folder.path(), device, host))).unwrap();
        planned.outline().scheduler.gather
    };
    assert_eq!(gather(100, 0), Nanos::ZERO);
    assert!(Nanos::ZERO < gather(50, 50), "weights on the host pass the link");
    assert!(gather(50, 50) < gather(50, 0) && gather(50, 0) < gather(0, 0));
}

/// Every share of three tiers, straight from the drive and through the host, computed with on the host or copied, over
/// memory that is poisoned wherever bytes have moved on.
#[test]
fn every_share_of_three_tiers_gives_the_bits_of_resident_weights() {
    let folder = tempfile::tempdir().unwrap();
    let percents = [0, 20, 50, 100];
    let pairs = percents.iter().flat_map(|device| percents.map(|host| (*device, host)));
    let pairs: Vec<(u32, u32)> = pairs.filter(|(device, host)| device + host <= 100).collect();
    for (model, weights) in MODELS {
        let checkpoint = checkpoint(model);
        let want = stories(&start(&checkpoint, EngineConfig { weights, ..config(Offload::default()) }));
        for (i, &(device, host)) in pairs.iter().enumerate() {
            let link = (i % 2 == 0).then_some(100_000_000_000);
            let linears = [HostLinears::Host, HostLinears::Device, HostLinears::Cheaper][i % 3];
            let offload = Offload { link, linears, ..shares(folder.path(), device, host) };
            let poisoned = DeviceChoice::Poisoned;
            let engine = start(&checkpoint, EngineConfig { weights, device: poisoned, ..config(offload) });
            let what =
                format!("{model}, {device} % on the device, {host} % on the host, {link:?}, {linears:?}");
            assert_eq!(stories(&engine), want, "{what}");
            let hold = engine.hold();
            assert_eq!(engine.streamed().bytes > 0, hold.streamed_bytes > 0, "{what}");
            assert!(
                linears == HostLinears::Host || (engine.copied().bytes > 0) == (hold.copied_bytes > 0),
                "{what}"
            );
            assert_eq!(hold.host_weight_bytes > 0, host > 0, "{what}");
        }
    }
}

#[test]
fn weights_on_the_host_are_copied_or_computed_with_as_told() {
    let folder = tempfile::tempdir().unwrap();
    // OPT-350m has biases, plain activations and norms after sums; Llama gates.
    for model in ["llama-gqa-tied", "opt-350m"] {
        let checkpoint = checkpoint(model);
        let want = stories(&start(&checkpoint, config(Offload::default())));
        let copied = [HostLinears::Device, HostLinears::Host].map(|linears| {
            let offload = Offload { linears, ..shares(folder.path(), 30, 70) };
            let device = DeviceChoice::Poisoned;
            let engine = start(&checkpoint, EngineConfig { device, ..config(offload) });
            assert_eq!(stories(&engine), want, "{model} {linears:?}");
            assert_eq!(engine.hold().host_linear_bytes > 0, linears == HostLinears::Host);
            engine.copied().bytes / engine.hold().copied_bytes
        });
        assert_eq!(copied[1], 0, "steps of at most 64 tokens copy nothing");
        assert!(copied[0] > 10, "{copied:?}");
    }
}

/// Steps of several batches do as they are told too, and their prompts are more than the host has room for.
#[test]
fn blocks_compute_with_weights_on_the_host_in_every_batch_of_a_step() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint("llama-gqa-tied");
    let roomy = |offload| EngineConfig { max_num_batched_tokens: 128, ..config(offload) };
    let want = stories(&start(&checkpoint, roomy(Offload::default())));
    for schedule in [Schedule::Row, Schedule::Zigzag, Schedule::Diagonal] {
        let passes = [HostLinears::Device, HostLinears::Host].map(|linears| {
            let offload = Offload { linears, ..shares(folder.path(), 30, 70) };
            let blocks = Blocks {
                schedule: Some(schedule),
                num_batches: Some(3),
                batch_size: Some(2),
                ..Blocks::default()
            };
            let device = DeviceChoice::Poisoned;
            let engine = start(&checkpoint, EngineConfig { device, blocks, ..roomy(offload) });
            let told = common::stories_at_once(&engine, &common::scored_requests(6));
            assert_eq!(told, want, "{schedule:?}, {linears:?}");
            engine.copied().bytes / engine.hold().copied_bytes
        });
        // Twelve tokens each: all decodes copied, or none.
        assert!(passes[0] >= 12 && passes[1] < passes[0] - 8, "{schedule:?}: {passes:?}");
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
    if page_cache::lives_in_memory(&file).unwrap() || !page_cache::bypass(&file).unwrap() {
        return eprintln!("skipped: {} is on no drive with direct access", store.display());
    }
    assert_eq!(page_cache::cached_bytes(&file).unwrap(), 0);
}

/// A second for each row of an MLP, and nothing for all else: what steps take by it is known. Nothing is learned of what they
/// really take, however slow the machine is.
fn costs() -> Foresight {
    let mlp = Linear { seconds: Curve::rate(1.0), ..Linear::default() };
    let tables = Tables { mlp, copy_bytes_per_s: 1e15, disk_write_bytes_per_s: 1e15, ..Tables::default() };
    Foresight { pace: Pace { window_s: f64::INFINITY, ..Pace::default() }, ..Foresight::from(tables) }
}

#[test]
fn steps_are_foreseen_by_the_costs_that_they_were_planned_with() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint("llama-gqa-tied");
    for steps_in_flight in [1, 3] {
        let config =
            EngineConfig { steps_in_flight: Some(steps_in_flight), ..config(offload(folder.path(), 30)) };
        let planned = || Planned::new(&checkpoint, config.clone()).unwrap();
        let (plain, foreseen) = (planned(), planned().foreseen(costs()));
        let (plain, foreseen) = (plain.start(&|_| {}).unwrap(), foreseen.start(&|_| {}).unwrap());
        assert_eq!(stories(&foreseen), stories(&plain));
        let counts = plain.counts();
        assert_eq!((counts.foreseen_ns, counts.foreseen_took_ns), (0, 0));
        let counts = foreseen.counts();
        let layers = checkpoint.spec().layers as u64;
        // The last steps may not have been told of yet: each decodes what is left of six sequences.
        let (rows, left) = (counts.foreseen_ns / 1_000_000_000, counts.foreseen_ns % 1_000_000_000);
        // The last layer's MLP takes the rows that sample: one for each token.
        let all = (layers - 1) * counts.computed_tokens + counts.generated_tokens;
        assert!(
            left == 0 && rows <= all && rows + layers * 6 * steps_in_flight as u64 >= all,
            "{rows} of {all}"
        );
        assert!(counts.foreseen_took_ns > 0 && counts.foreseen_took_ns < counts.foreseen_ns);
    }
}

/// Bytes of most of the model's panels: 32 rows of 64.
const PANEL: u64 = 32 * 64 * 2;

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
                // KV comes first, in blocks; and where rounding leaves a panel over, slots are larger by one.
                let slack = hold.kv_bytes / hold.kv_blocks as u64 + 8 * PANEL;
                let most = streamed.saturating_add(slack);
                assert!(hold.streamed_bytes <= most, "more memory, more streaming: {hold:?}");
                streamed = streamed.min(hold.streamed_bytes);
            }
            Err(why) => {
                let TooSmall::Memory { need, streamed: true, .. } = *why.lacks() else { panic!("{why}") };
                assert!(need > limit);
                refused += 1;
            }
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

/// Straight from the drive, and through the host: whoever runs when the store is torn, and whoever comes later, is told.
#[test]
fn a_store_that_is_torn_while_it_streams_fails_requests_by_name() {
    let checkpoint = checkpoint("llama-gqa-tied");
    for (host, link) in [(0, None), (30, None), (30, Some(100_000_000_000))] {
        let folder = tempfile::tempdir().unwrap();
        let offload = Offload { link, ..shares(folder.path(), 0, host) };
        let planned = Planned::new(&checkpoint, config(offload)).unwrap();
        let store = planned.store().unwrap().expect("weights are streamed");
        let engine = planned.start(&|_| {}).unwrap();
        let params = SamplingParams { max_tokens: Some(120), ignore_eos: true, ..SamplingParams::greedy() };
        let request = Request { prompt: vec![3, 4, 5], params, seed: 0, salt: 0 };
        let mut running = engine.submit(request.clone()).unwrap();
        let token = |event: &Event| matches!(event, Event::Token(_));
        assert!(running.events.iter().any(|event| token(&event)), "it runs");
        std::fs::File::options().write(true).open(store.join("panels.bin")).unwrap().set_len(4096).unwrap();
        // However far that request had come: one that ended before is followed by another.
        let text = loop {
            match running.events.iter().find(|event| !token(event)) {
                Some(Event::Failed(why)) => break why.to_string(),
                Some(Event::Finished(_)) => match engine.submit(request.clone()) {
                    Ok(next) => running = next,
                    Err(why) => break why.to_string(),
                },
                other => panic!("an engine that ended without a word: {other:?}"),
            }
        };
        assert!(text.contains("torn") && text.contains("panels.bin"), "{text}");
        let later = engine.submit(request).map(drop).unwrap_err().to_string();
        assert!(later.contains("torn"), "{later}");
    }
}
