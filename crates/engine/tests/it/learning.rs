//! An engine learns what its lanes take, decides by it while it runs, and gives the same tokens and a record that replays.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::common::{Story, checkpoint, config, split, stories};
use engine::{DeviceChoice, Engine, EngineConfig, Foresight, Offload, Planned, Request, WeightShare};
use model::Checkpoint;
use model::sampling::SamplingParams;
use policy::cost::{Correction, Curve, Decode, OpSort, Pace, Tables};
use policy::pipeline::{Overlap, Plan};
use spec::{Layout, Load, Pipeline, Shape};

/// Most of the weights on the host.
fn stowed(folder: &Path) -> EngineConfig {
    let share = WeightShare::Exactly(split([30, 70, 0]));
    EngineConfig { offload: Offload { folder: Some(folder.into()), share, ..Offload::default() }, ..config() }
}

fn requests() -> Vec<Request> {
    let params = SamplingParams {
        max_tokens: Some(24),
        ignore_eos: true,
        logprobs: Some(0),
        ..SamplingParams::greedy()
    };
    let prompt = |i: u32| (0..10 + 7 * i).map(|j| 3 + (i * 31 + j * 17) % 90).collect();
    (0..6).map(|i| Request { prompt: prompt(i), params: params.clone(), seed: 7, salt: 0 }).collect()
}

/// Copies of a tenth of a microsecond, which no machine makes of so many bytes, and a host that takes two and a half times as
/// long for any batch.
fn tables(planned: &Planned<'_>) -> Tables {
    let largest = planned.outline().from_host.iter().map(|[_, mlp]| *mlp).max().expect("layers");
    let host_mlp = Curve::new(vec![(1.0, 250e-9), (64.0, 250e-9)]);
    Tables {
        host_mlp,
        copy_bytes_per_s: largest as f64 / 100e-9,
        disk_write_bytes_per_s: 1e15,
        ..Tables::default()
    }
}

/// Everything counts at once.
const AT_ONCE: Pace = Pace { trust_s: 1e-9, memory_s: 1e6, window_s: 0.0, least_s: 0.0 };

fn started(checkpoint: &Checkpoint, config: EngineConfig, by: impl FnOnce(Tables) -> Foresight) -> Engine {
    let planned = Planned::new(checkpoint, config).unwrap();
    let by = by(tables(&planned));
    planned.foreseen(by).start(&|_| {}).unwrap()
}

/// What comes of the requests, how often all weights were copied, and the factor of copies.
fn ran(engine: &Engine) -> (Vec<Story>, u64, f64) {
    let stories = stories(engine, &requests());
    let passes = engine.copied().bytes / engine.hold().copied_bytes;
    let factor = engine.counts().correction_millionths[OpSort::Copies as usize] as f64 / 1e6;
    (stories, passes, factor)
}

#[test]
fn a_link_slower_than_its_tables_is_learned_and_changes_who_computes() {
    let (folder, checkpoint) = (tempfile::tempdir().unwrap(), checkpoint("llama-gqa-tied"));
    let record = folder.path().join("record.jsonl");
    let slowly = started(&checkpoint, stowed(folder.path()), |tables| tables.into());
    let (want, copied, factor) = ran(&slowly);
    assert!(copied >= 24 && (factor - 1.0).abs() < 0.01, "{copied} {factor}: so little is not heard at all");
    let kept = Arc::new(Mutex::new(None));
    let there = Arc::clone(&kept);
    let keep = move |learned: &Correction| *there.lock().unwrap() = Some(*learned);
    let config = EngineConfig { record: Some(record.clone()), ..stowed(folder.path()) };
    let learning = started(&checkpoint, config, |tables| Foresight {
        pace: AT_ONCE,
        keep: Some(Arc::new(keep)),
        ..tables.into()
    });
    let (got, passes, factor) = ran(&learning);
    assert_eq!(got, want);
    assert!(factor > 2.5 && factor <= 4.0, "{factor}");
    assert!(passes + 12 < copied, "the host computes before long: {passes} of {copied}");
    learning.finish().unwrap();
    let steps = sim::replay(BufReader::new(File::open(&record).unwrap())).unwrap().steps;
    assert!(steps >= 24, "{steps}");
    // The next one begins with what was learned.
    let learned = kept.lock().unwrap().expect("it was kept");
    let next = started(&checkpoint, stowed(folder.path()), |tables| Foresight {
        correction: learned,
        ..tables.into()
    });
    let (again, passes, _) = ran(&next);
    assert_eq!((again, passes), (want, 0));
}

#[test]
fn a_link_that_is_only_played_teaches_nothing() {
    let (folder, checkpoint) = (tempfile::tempdir().unwrap(), checkpoint("llama-gqa-tied"));
    let stowed = stowed(folder.path());
    let config =
        EngineConfig { offload: Offload { link: Some(1 << 30), ..stowed.offload.clone() }, ..stowed };
    let engine = started(&checkpoint, config, |tables| Foresight { pace: AT_ONCE, ..tables.into() });
    let (_, _, factor) = ran(&engine);
    assert_eq!(factor, 1.0);
}

/// Beside a GPU, whose kernels the host's do not hold up, what the host attends counts against linears of its own.
#[test]
fn a_host_beside_a_gpu_that_attends_computes_with_fewer_weights() {
    let (folder, checkpoint) = (tempfile::tempdir().unwrap(), checkpoint("llama-gqa-tied"));
    let plan = |device| {
        let config = EngineConfig { device, ..stowed(folder.path()) };
        let memory = Offload { device_memory: Some(1 << 30), ..config.offload.clone() };
        let planned = Planned::new(&checkpoint, EngineConfig { offload: memory, ..config }).unwrap();
        let curve = |seconds: f64| Curve::new(vec![(1.0, seconds), (512.0, seconds)]);
        let largest = planned.outline().from_host.iter().map(|[_, mlp]| *mlp).max().expect("layers");
        planned.outline().plan(&Tables {
            host_mlp: curve(40e-9),
            host_decode: vec![Decode { seqs: 16, seconds: curve(16.0 * 512.0 * 10e-9) }],
            copy_bytes_per_s: largest as f64 / 100e-9,
            ..Tables::default()
        })
    };
    // A copy takes 100 ns, the host 40 for an MLP, and 10 for a position in a layer, of which the MLP's part is some.
    let takes = |plan: &Plan, attended: u64| {
        let mut load = Load { tokens: 1, seqs: 1, ..Load::default() };
        load.context.host = attended;
        let (pipeline, layout) = (Pipeline::Zigzag, Layout::SINGLE);
        plan.delegation.takes(&Shape { pipeline, layout, loads: vec![load], moves: vec![] })
    };
    let [gpu, processor] = [DeviceChoice::Cuda, DeviceChoice::Virtual].map(plan);
    assert_eq!([gpu.overlap, processor.overlap], [Overlap::Lanes, Overlap::SharedCores]);
    assert_eq!([0, 1, 100].map(|attended| takes(&gpu, attended)), [true, true, false]);
    assert!(takes(&processor, 100));
}
