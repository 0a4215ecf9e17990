//! The engine on a GPU whose kernels are emulated, and on one if there is one: its tokens taken there or here, its KV swapped and its weights copied.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::delayed::Delayed;
use crate::emulator::{self, Emulator, Mma};
use crate::stand_in::StandIn;
use cuda::GpuDevice;
use engine::{
    Blocks, DeviceChoice, Engine, EngineConfig, Event, HostLinears, KvFormat, Offload, Planned, Request,
    StartError, WeightShare,
};
use kernels::device::Device;
use kernels::{CpuDevice, Isa, Team};
use model::Checkpoint;
use model::decoder::WeightsAs;
use model::sampling::SamplingParams;
use policy::sched::{Delegate, Schedule};
use spec::{ByTier, Lane, Split, Tier};

const MODEL: &str = "llama-gqa-tied";
/// One whose rotation depends on how long a sequence is.
const TURNED_BY_LENGTH: &str = "llama-dynamic-v5";

fn checkpoint(model: &str) -> Checkpoint {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden").join(model);
    Checkpoint::open(&folder).unwrap()
}

fn config() -> EngineConfig {
    EngineConfig {
        isa: Isa::Scalar,
        max_model_len: Some(128),
        max_num_seqs: 4,
        max_num_batched_tokens: 48,
        kv_tokens: Some(4 * 128),
        ..EngineConfig::plain(4 << 30, 1)
    }
}

/// Of the model.
const WIDTH: usize = 64;

/// What runs the kernels.
#[derive(Clone, Copy, Debug)]
enum Runs {
    Emulation,
    /// The same, its kernels run one by one.
    OneByOne,
    /// The emulation, its products all a library's, but for those whose results have so many columns.
    Library(usize),
    /// The same, one by one.
    LibraryOneByOne(usize),
    /// The emulation, its calls done later, in an order of this seed's choosing.
    Late(u64),
    Gpu,
}

/// What there is here.
fn all() -> Vec<Runs> {
    let gpu = cuda::open(1 << 20).is_ok().then_some(Runs::Gpu);
    emulator::compiler().map(|_| Runs::Emulation).into_iter().chain(gpu).collect()
}

fn start(runs: Runs, config: EngineConfig) -> Engine {
    start_counting(MODEL, runs, config, &Arc::default())
}

/// `replays`: how many graphs were run.
fn start_counting(model: &str, runs: Runs, config: EngineConfig, replays: &Arc<AtomicUsize>) -> Engine {
    let open = |tier: Tier, bytes: usize, team: &Arc<Team>| -> Result<Box<dyn Device>, StartError> {
        Ok(match (tier, runs) {
            (Tier::Device, Runs::Emulation) => {
                Box::new(GpuDevice::new(Emulator::counting(Mma::Defined, replays), bytes)?)
            }
            (Tier::Device, Runs::OneByOne) => {
                Box::new(GpuDevice::new(Emulator::without_graphs(Mma::Defined), bytes)?)
            }
            (Tier::Device, Runs::Library(refuses)) => {
                let driver = Emulator::new(Mma::Defined).by_library().refusing(refuses);
                Box::new(GpuDevice::new(driver, bytes)?)
            }
            (Tier::Device, Runs::LibraryOneByOne(refuses)) => {
                let driver = Emulator::without_graphs(Mma::Defined).by_library().refusing(refuses);
                Box::new(GpuDevice::new(driver, bytes)?)
            }
            (Tier::Device, Runs::Late(seed)) => Box::new(GpuDevice::new(Delayed::new(seed, replays), bytes)?),
            (Tier::Device, Runs::Gpu) => Box::new(cuda::open(bytes)?),
            _ => Box::new(CpuDevice::new(bytes, Arc::clone(team), Isa::Scalar)?),
        })
    };
    Planned::new(&checkpoint(model), config).unwrap().start_on(&open, &|_| {}).unwrap()
}

/// Greedy and drawn, with penalties, with biases, cut short.
fn requests(logprobs: Option<u32>, max_tokens: u32) -> Vec<Request> {
    let request = |i: u32| Request {
        prompt: (0..40 + 5 * i).map(|j| 3 + (i * 31 + j * 17) % 90).collect(),
        params: SamplingParams {
            max_tokens: Some(max_tokens),
            ignore_eos: true,
            temperature: if i == 0 { 0.0 } else { 1.2 },
            top_k: (i == 1).then_some(20),
            top_p: if i == 2 { 0.8 } else { 1.0 },
            repetition_penalty: if i % 2 == 1 { 1.4 } else { 1.0 },
            frequency_penalty: if i == 2 { 0.5 } else { 0.0 },
            logit_bias: if i == 3 { [(7, 3.0), (50, -2.0)].into() } else { [].into() },
            logprobs,
            ..SamplingParams::greedy()
        },
        seed: 11,
        salt: 0,
    };
    (0..4).map(request).collect()
}

fn tokens(engine: &Engine, logprobs: Option<u32>) -> Vec<Vec<u32>> {
    tokens_of(engine, requests(logprobs, 64))
}

fn tokens_of(engine: &Engine, requests: Vec<Request>) -> Vec<Vec<u32>> {
    let logprobs = requests[0].params.logprobs;
    let tickets: Vec<_> = requests.into_iter().map(|r| engine.submit(r).unwrap()).collect();
    let all = |ticket: &engine::Ticket| {
        let mut ids = Vec::new();
        loop {
            match ticket.events.recv().expect("the engine lives") {
                Event::Token(token) => {
                    assert_eq!(token.logprobs.is_some(), logprobs.is_some());
                    ids.push(token.id);
                }
                Event::Finished(_) => return ids,
                Event::Began(_) | Event::Prompt(..) => (),
                Event::Failed(why) => panic!("{why}"),
            }
        }
    };
    tickets.iter().map(all).collect()
}

#[test]
fn tokens_taken_on_the_device_are_those_taken_on_the_host() {
    all().into_iter().for_each(check_tokens);
}

fn check_tokens(runs: Runs) {
    // In f32 a row's sums do not depend on how many rows there are: one kernel computes all sizes.
    let engine = start(runs, EngineConfig { weights: WeightsAs::F32, ..config() });
    // Who wants log-probabilities has the logits fetched.
    let want = tokens(&engine, Some(0));
    assert_eq!(tokens(&engine, None), want);
    assert!(want.iter().all(|ids| ids.len() == 64) && want[0] != want[2], "{want:?}");
}

#[test]
fn swapped_kv_and_copied_weights_change_no_token() {
    all().into_iter().for_each(check_tiers);
}

#[test]
fn the_same_on_a_stand_in() {
    let tests = [
        "tokens_taken_on_the_device_are_those_taken_on_the_host",
        "swapped_kv_and_copied_weights_change_no_token",
    ];
    if let Some(stand_in) = StandIn::new() {
        stand_in.runs("engine", &tests);
        let tiers = &tests[1..];
        stand_in.runs_with("engine", tiers, &[("BALLAST_STAND_IN_ELSEWHERE", "1")]);
    }
}

/// Prompts so short that how they are cut, and what else is in their batch, makes no difference.
fn short_requests() -> Vec<Request> {
    let mut requests = requests(None, 40);
    requests.iter_mut().for_each(|request| request.prompt.truncate(4));
    requests
}

/// Sequences that come and go, over pages of each kind.
#[test]
fn steps_that_are_run_as_graphs_change_no_token() {
    if emulator::compiler().is_none() {
        return;
    }
    let kvs = [KvFormat::AsActivations, KvFormat::F16, KvFormat::Fp8];
    let models = kvs
        .map(|kv| (MODEL, kv))
        .into_iter()
        .chain([(TURNED_BY_LENGTH, KvFormat::AsActivations), ("gemma3", KvFormat::AsActivations)]);
    for (model, kv) in models {
        let config = || EngineConfig { kv, max_num_seqs: 3, ..config() };
        let one_by_one = start_counting(model, Runs::OneByOne, config(), &Arc::default());
        let want = tokens_of(&one_by_one, short_requests());
        for (runs, steps_in_flight) in [(Runs::Emulation, 1), (Runs::Emulation, 2), (Runs::Late(5), 2)] {
            let replays = Arc::default();
            let engine = start_counting(
                model,
                runs,
                EngineConfig { steps_in_flight: Some(steps_in_flight), ..config() },
                &replays,
            );
            let got = tokens_of(&engine, short_requests());
            assert_eq!(got, want, "{model}, {kv:?}, {runs:?}, {steps_in_flight} steps in flight");
            let replays = replays.load(Ordering::Relaxed);
            // Three sequences decode 40 tokens each, then one: few steps differ from all before.
            assert!(replays > 40, "{model}: {replays} steps were run as graphs");
        }
    }
}

/// Norms around what layers add, attention and MLP beside each other, embeddings and scores of other factors, layers that turn otherwise
/// or not at all.
#[test]
fn models_of_every_sort_go_on_as_transformers_does() {
    for model in [
        "cohere-plus",
        "cohere2",
        "exaone4",
        "gemma2",
        "gemma3",
        "glm4",
        "gpt-neox",
        "granite",
        "granite4",
        "ministral3",
        "nemotron",
        "olmo3",
        "phi",
        "phi3-longrope-short",
        "smollm3",
        "qwen3",
    ] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../model/tests/golden")
            .join(model)
            .join("golden.json");
        let golden: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let ids = |value: &serde_json::Value| serde_json::from_value::<Vec<u32>>(value.clone()).unwrap();
        let params = SamplingParams { max_tokens: Some(16), ignore_eos: true, ..SamplingParams::greedy() };
        let request = Request { prompt: ids(&golden["prompt"]), params, seed: 7, salt: 0 };
        for runs in all() {
            let engine = start_counting(model, runs, config(), &Arc::default());
            let got = tokens_of(&engine, vec![request.clone()]);
            assert_eq!(got, [ids(&golden["bf16"]["greedy"])], "{model}, {runs:?}");
        }
    }
}

/// Layers that look back through a window have tables of their own, and pages behind it become others'.
#[test]
fn what_lies_behind_a_window_is_others_room() {
    let config = |host_kv_tokens| EngineConfig {
        max_model_len: Some(256),
        max_num_seqs: 3,
        max_num_batched_tokens: 16,
        kv_tokens: Some(3 * 256),
        steps_in_flight: Some(2),
        host_kv_tokens,
        ..config()
    };
    let params = SamplingParams { max_tokens: Some(8), ignore_eos: true, ..SamplingParams::greedy() };
    let request = |i: u32| Request {
        prompt: (0..150 + 20 * i).map(|j| 3 + (i * 31 + j * 17) % 90).collect(),
        params: params.clone(),
        seed: 7,
        salt: 0,
    };
    let requests: Vec<Request> = (0..2).map(request).collect();
    let late = |runs| if matches!(runs, Runs::Emulation) { Runs::Late(5) } else { runs };
    for runs in all().into_iter().map(late) {
        let [kept, passed] =
            [64, 0].map(|host| start_counting("gemma3", runs, config(host), &Arc::default()));
        assert_eq!((kept.hold().kv_groups.sliding, passed.hold().kv_groups.sliding), (0, 2));
        let want = tokens_of(&kept, requests.clone());
        assert_eq!(tokens_of(&passed, requests.clone()), want, "{runs:?}");
    }
}

/// Products of a library, as most have that many sequences decode together: in graphs, too.
#[test]
fn steps_whose_products_are_a_librarys_are_run_as_graphs() {
    if emulator::compiler().is_none() {
        return;
    }
    let products = || emulator::PRODUCTS_OF_GRAPHS.load(Ordering::Relaxed);
    let config = || EngineConfig { max_num_seqs: 3, ..config() };
    // Of none, and of the products that bring results back to the model's width.
    for refuses in [0, WIDTH] {
        let want = tokens_of(&start(Runs::LibraryOneByOne(refuses), config()), short_requests());
        let before = products();
        assert_eq!(tokens_of(&start(Runs::Library(refuses), config()), short_requests()), want);
        assert!(products() - before > 64, "{} products were run in graphs", products() - before);
    }
}

/// So many that a GPU's library computes their products. Prints what they come to.
#[test]
fn many_sequences_decode_together() {
    if cuda::open(1 << 20).is_err() {
        return eprintln!("skipped: there is no GPU");
    }
    let many = EngineConfig { max_num_seqs: 40, kv_tokens: Some(40 * 64), ..config() };
    let engine = start(Runs::Gpu, EngineConfig { max_model_len: Some(64), ..many });
    let request = |i: u32| Request {
        prompt: (0..4).map(|j| 3 + (i * 31 + j * 17) % 90).collect(),
        params: SamplingParams { max_tokens: Some(24), ignore_eos: true, ..SamplingParams::greedy() },
        seed: 11,
        salt: 0,
    };
    println!("tokens: {:?}", tokens_of(&engine, (0..40).map(request).collect()));
    println!("remarks: {:?}", engine.remarks());
}

#[test]
fn products_of_a_library_come_in_graphs_on_a_stand_in() {
    let Some(stand_in) = StandIn::new() else { return };
    let told = |variables: &[(&str, &str)]| {
        stand_in.runs_with("engine", &["many_sequences_decode_together"], variables)
    };
    let tokens_in = |told: &str| {
        told.lines().find_map(|line| Some(line.split_once("tokens: ")?.1.to_owned())).expect("tokens")
    };
    let want = tokens_in(&told(&[("BALLAST_CUDA_GRAPHS", "off")]));
    assert_eq!(tokens_in(&told(&[("BALLAST_STAND_IN_NOTES", "1")])), want);
    // What the library fails at is computed by others, in graphs as well, and is told of; what it has no algorithm for is not.
    for (variable, is_told) in [("BALLAST_STAND_IN_REFUSES", true), ("BALLAST_STAND_IN_LACKS", false)] {
        let told = told(&[("BALLAST_STAND_IN_NOTES", "1"), (variable, &WIDTH.to_string())]);
        assert_eq!(tokens_in(&told), want, "{variable}");
        let refused = if is_told { "cuBLASLt refused 64 x 40 x 96" } else { "cuBLASLt refused" };
        assert_eq!(told.contains(refused), is_told, "{variable}: {told}");
    }
    // Where the driver makes no graph of them, kernels and products are started one by one.
    let unmade = told(&[("BALLAST_STAND_IN_UNMADE", "1")]);
    assert_eq!(tokens_in(&unmade), want);
    assert!(
        unmade.contains("no graph was made of some steps: DriverError(CUDA_ERROR_NOT_SUPPORTED"),
        "{unmade}"
    );
}

/// Weights that the device copies layer by layer.
fn mostly_on_the_host() -> Offload {
    let split =
        Split::new(ByTier { device: 30, host: 70, disk: 0 }.map(|p| p * (Split::WHOLE / 100))).unwrap();
    Offload {
        device_memory: Some(1 << 30),
        share: WeightShare::Exactly(split),
        linears: HostLinears::Device,
        ..Offload::default()
    }
}

fn check_tiers(runs: Runs) {
    // In f32, as above.
    let config = || EngineConfig { weights: WeightsAs::F32, ..config() };
    let want = tokens(&start(runs, config()), None);
    let copies = || emulator::COPIES_OF_ADOPTED.load(Ordering::Relaxed);
    let before = copies();
    let tight = EngineConfig { kv_tokens: Some(256), host_kv_tokens: 1000, ..config() };
    let engine = start(runs, EngineConfig { steps_in_flight: Some(2), ..tight });
    assert_eq!(tokens(&engine, None), want);
    assert!(engine.counts().moved_blocks > 0, "nothing was swapped");
    // From and to where it lies, without a staging copy.
    assert_eq!(engine.not_pinned(), None);
    assert!(matches!(runs, Runs::Gpu) || copies() > before, "KV was staged");
    let before = copies();
    let offload = mostly_on_the_host();
    let engine = start(runs, EngineConfig { offload, ..config() });
    assert_eq!(tokens(&engine, None), want);
    assert!(engine.copied().bytes > 0, "nothing was copied");
    assert_eq!(engine.not_pinned(), None);
    assert!(matches!(runs, Runs::Gpu) || copies() > before, "weights were staged");
}

/// Putting off takes its time.
fn few(engine: &Engine) -> Vec<Vec<u32>> {
    tokens_of(engine, requests(None, 20))
}

/// Each under a few seeds: what a lane forgets to wait for, and what is overwritten before it was read, gives other tokens.
#[test]
fn steps_that_are_done_late_change_no_token() {
    if emulator::compiler().is_none() {
        return;
    }
    let config = || EngineConfig { weights: WeightsAs::F32, max_num_seqs: 3, ..config() };
    let want = few(&start(Runs::Emulation, config()));
    let swapped = EngineConfig { kv_tokens: Some(256), host_kv_tokens: 1000, ..config() };
    let offload = mostly_on_the_host();
    let cases = [(config(), 1..=3), (swapped, 2..=2), (EngineConfig { offload, ..config() }, 2..=2)];
    for (config, depths) in cases {
        for (seed, steps_in_flight) in (0..).zip(depths) {
            let engine = start(
                Runs::Late(seed),
                EngineConfig { steps_in_flight: Some(steps_in_flight), ..config.clone() },
            );
            assert_eq!(few(&engine), want, "{steps_in_flight} steps in flight, seed {seed}");
        }
    }
}

/// KV of these percentages on device, host and drive.
fn kv_away(percent: [u32; 3], delegate: Delegate, folder: &Path) -> EngineConfig {
    let [device, host, disk] = percent;
    let kv = Split::new(ByTier { device, host, disk }.map(|p| p * (Split::WHOLE / 100))).unwrap();
    let blocks = Blocks {
        schedule: Some(Schedule::Zigzag),
        num_batches: Some(2),
        batch_size: Some(2),
        kv,
        delegate,
        ..Blocks::default()
    };
    let offload = Offload { device_memory: Some(1 << 30), folder: Some(folder.into()), ..Offload::default() };
    // A GPU's KV passes the host on its way from the drive.
    let device = DeviceChoice::Cuda;
    EngineConfig { device, weights: WeightsAs::F32, sparse: Some(0.1), blocks, offload, ..config() }
}

/// A page's worth of keys counts, of the hundred that sequences come to.
#[test]
fn sparse_attention_gives_the_same_tokens_wherever_kv_lives() {
    if emulator::compiler().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let resident = |sparse| EngineConfig { weights: WeightsAs::F32, sparse, ..config() };
    let want = few(&start(Runs::Emulation, resident(Some(0.1))));
    assert_ne!(few(&start(Runs::Emulation, resident(None))), want, "a tenth of the keys is not all of them");
    let on_host = Planned::new(&checkpoint(MODEL), resident(Some(0.1))).unwrap().start(&|_| {}).unwrap();
    assert_eq!(few(&on_host), want, "the CPU's");
    for (runs, percent, delegate) in [
        (Runs::Emulation, [0, 100, 0], Delegate::Host),
        (Runs::Emulation, [0, 100, 0], Delegate::Streamed),
        (Runs::Late(3), [20, 30, 50], Delegate::Streamed),
    ] {
        let engine = start(runs, kv_away(percent, delegate, folder.path()));
        assert_eq!(few(&engine), want, "{runs:?}, {percent:?}, {delegate:?}");
        let left = engine.counts().left_bytes[Lane::Up.index()];
        assert_eq!(left > 0, delegate == Delegate::Streamed, "{left} bytes were left, {delegate:?}");
    }
}

/// A step ends when the device has done it, and is told of with the times of all its nodes.
#[test]
fn lanes_of_a_late_device_are_told_of_in_order() {
    if emulator::compiler().is_none() {
        return;
    }
    let engine =
        start(Runs::Late(1), EngineConfig { lane_spans: 1 << 14, steps_in_flight: Some(2), ..config() });
    few(&engine);
    let ran = engine.ranges().ran;
    let device: Vec<_> = ran.iter().filter(|ran| ran.lane == spec::Lane::Device).collect();
    assert!(device.len() > 20 * 4, "{}", device.len());
    assert!(device.windows(2).all(|two| two[0].end <= two[1].start), "nodes of a lane follow one another");
}

#[test]
fn kv_of_other_formats_gives_the_cpus_first_token() {
    if emulator::compiler().is_none() {
        return;
    }
    let formats = [KvFormat::F16, KvFormat::Fp8, KvFormat::Int4].map(|kv| (kv, None));
    for (kv, sparse) in formats.into_iter().chain([(KvFormat::Int4, Some(0.1))]) {
        let config = || EngineConfig { kv, sparse, ..config() };
        let on_host = Planned::new(&checkpoint(MODEL), config()).unwrap().start(&|_| {}).unwrap();
        let (got, want) = (tokens(&start(Runs::Emulation, config()), None), tokens(&on_host, None));
        // Later ones may part where two are nearly as likely: the devices add in different orders.
        assert_eq!(got[0][0], want[0][0], "{kv:?}");
        assert!(got.iter().all(|ids| ids.len() == 64));
    }
}
