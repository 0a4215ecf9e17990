//! Every pipeline over a device that does its calls later, in any order that queues and marks allow: what the executor
//! forgets to wait for is found, and what it waits for gives the bits of a device that does everything at once.

use std::path::Path;
use std::sync::Arc;

use crate::common::{self, blocks, poisoned as config, split, stories};
use crate::late::{Late, OWN_BYTES};
use engine::{
    Engine, EngineConfig, Event, HostLinears, Offload, Planned, PrefixCaching, Request, StartError,
    WeightShare,
};
use kernels::device::Device;
use kernels::{CpuDevice, Isa, Team};
use model::Checkpoint;
use model::decoder::{STAGED_BYTES, WeightsAs};
use model::sampling::SamplingParams;
use policy::sched::{Delegate, Schedule};
use spec::{ModelSpec, Tier};

/// A link makes what lives on the drive come through the host, as it does to a GPU.
fn offload(folder: &Path, weights: [u32; 3], linears: HostLinears) -> Offload {
    Offload {
        device_memory: Some(1 << 30),
        link: Some(8 << 30),
        folder: Some(folder.into()),
        share: WeightShare::Exactly(split(weights)),
        linears,
        ..Offload::default()
    }
}

fn start_late(checkpoint: &Checkpoint, config: EngineConfig, seed: u64) -> Engine {
    let open = |tier: Tier, bytes: usize, team: &Arc<Team>| -> Result<Box<dyn Device>, StartError> {
        let own = if tier == Tier::Device { OWN_BYTES } else { 0 };
        let cpu = CpuDevice::new(bytes + own, Arc::clone(team), Isa::detect())?.poisoned();
        Ok(Box::new(if tier == Tier::Device { Late::device(cpu, seed) } else { Late::host(cpu) }))
    };
    Planned::new(checkpoint, config).unwrap().start_on(&open, &|_| {}).unwrap()
}

/// Mixed lengths, some longer than a batch of a step, more requests than run at once, some that end early, and some that
/// begin alike.
fn requests() -> Vec<Request> {
    let request = |i: u32| Request {
        prompt: (0..3 + (i * 29) % 70).map(|j| 3 + (i % 7 * 31 + j * 17) % 90).collect(),
        params: SamplingParams {
            max_tokens: Some(4 + (i * 7) % 30),
            ignore_eos: true,
            stop_token_ids: (10..if i.is_multiple_of(4) { 30 } else { 10 }).collect(),
            logprobs: Some(1),
            prompt_logprobs: (i % 5 == 4).then_some(0),
            ..SamplingParams::greedy()
        },
        seed: 7,
        salt: 0,
    };
    (0..12).map(request).collect()
}

/// Under several seeds, the bits of the resident run.
fn check(model: &str, cases: &[EngineConfig]) {
    let checkpoint = common::checkpoint(model);
    let requests = requests();
    let want = stories(&common::start(model, config()), &requests);
    for config in cases {
        for seed in 0..3 {
            let engine = start_late(&checkpoint, config.clone(), seed);
            assert_eq!(stories(&engine, &requests), want, "{model}, seed {seed}, {config:?}");
        }
    }
}

#[test]
fn resident_steps_swaps_and_prefixes() {
    let swapped = EngineConfig { kv_tokens: Some(256), host_kv_tokens: 2000, ..config() };
    let prefixes = EngineConfig { prefix_caching: PrefixCaching::On, ..swapped.clone() };
    let deep = EngineConfig { steps_in_flight: Some(3), ..swapped.clone() };
    let folder = tempfile::tempdir().unwrap();
    let offload = offload(folder.path(), [100, 0, 0], HostLinears::Device);
    // Prefixes pass the host on their way to the drive and back.
    let drive = EngineConfig { host_kv_tokens: 0, drive_kv_tokens: 3000, offload, ..prefixes.clone() };
    check("llama-gqa-tied", &[config(), swapped, prefixes, deep, drive]);
}

/// What a device that is far takes or gives lies on the host on its way, in pieces: panels that end inside sectors, and logits.
#[test]
fn what_is_large_comes_whole_in_pieces() {
    let wide = ModelSpec {
        vocab: 300_000,
        hidden: 48,
        embed_dim: 48,
        heads: 3,
        kv_heads: 1,
        ffn: 150_000,
        layers: 1,
        ..common::checkpoint("llama-gqa-tied").spec().clone()
    };
    assert!(2 * wide.ffn * 64 > STAGED_BYTES, "gate and up in one, in bytes, rows filled up");
    assert!(16 * wide.vocab * size_of::<f32>() > STAGED_BYTES, "logits of 16 rows");
    let random = Checkpoint::dummy(wide, 0);
    let config = || EngineConfig { max_num_seqs: 16, weights: WeightsAs::Int8, ..config() };
    // Logits of a long prompt's positions, and of many that draw at once.
    let request = |first: u32, len: u32, prompt_logprobs| {
        let params = SamplingParams { max_tokens: Some(2), logprobs: Some(1), ..SamplingParams::greedy() };
        let params = SamplingParams { prompt_logprobs, ..params };
        Request { prompt: (first..first + len).collect(), params, seed: 7, salt: 0 }
    };
    let mut requests = vec![request(5, 40, Some(0))];
    requests.extend((0..15).map(|i| request(50 + 9 * i, 2, None)));
    let want = stories(&Planned::new(&random, config()).unwrap().start(&|_| {}).unwrap(), &requests);
    let folder = tempfile::tempdir().unwrap();
    for weights in [[100, 0, 0], [95, 0, 5]] {
        let offload = offload(folder.path(), weights, HostLinears::Device);
        let engine = start_late(&random, EngineConfig { offload, ..config() }, 0);
        assert_eq!(stories(&engine, &requests), want, "{weights:?}");
    }
}

/// Tokens alone, which the device takes itself and the next step embeds before anybody knows them.
fn tokens(engine: &Engine) -> Vec<Vec<u32>> {
    let request = |mut request: Request| {
        (request.params.logprobs, request.params.prompt_logprobs) = (None, None);
        engine.submit(request).unwrap()
    };
    let tickets: Vec<_> = requests().into_iter().map(request).collect();
    let ids = |ticket: &engine::Ticket| {
        let mut ids = Vec::new();
        loop {
            match ticket.events.recv().expect("the engine lives") {
                Event::Token(token) => ids.push(token.id),
                Event::Finished(_) => return ids,
                Event::Began(_) | Event::Prompt(..) => (),
                Event::Failed(why) => panic!("{why}"),
            }
        }
    };
    tickets.iter().map(ids).collect()
}

#[test]
fn tokens_that_stay_on_the_device() {
    let checkpoint = common::checkpoint("llama-gqa-tied");
    let folder = tempfile::tempdir().unwrap();
    let want = tokens(&common::start("llama-gqa-tied", config()));
    let offload = offload(folder.path(), [20, 50, 30], HostLinears::Device);
    let swapped = EngineConfig { kv_tokens: Some(256), host_kv_tokens: 2000, ..config() };
    let blocks = blocks(Schedule::Zigzag, [40, 60, 0], [100, 0, 0], Delegate::Host);
    let cases = [
        EngineConfig { steps_in_flight: Some(1), ..config() },
        EngineConfig { steps_in_flight: Some(4), ..config() },
        EngineConfig { steps_in_flight: Some(3), prefix_caching: PrefixCaching::On, ..swapped },
        EngineConfig { offload: offload.clone(), ..config() },
        EngineConfig { offload, blocks, ..config() },
    ];
    for config in cases {
        for seed in 0..4 {
            let engine = start_late(&checkpoint, config.clone(), seed);
            assert_eq!(tokens(&engine), want, "seed {seed}, {config:?}");
        }
    }
}

#[test]
fn streamed_weights() {
    let folder = tempfile::tempdir().unwrap();
    let with =
        |weights, linears| EngineConfig { offload: offload(folder.path(), weights, linears), ..config() };
    let cases = [
        with([0, 0, 100], HostLinears::Device),
        with([20, 80, 0], HostLinears::Device),
        with([20, 50, 30], HostLinears::Host),
        with([0, 50, 50], HostLinears::Device),
    ];
    check("llama-gqa-tied", &cases);
    check("opt-350m", &cases[2..3]);
    // Of three layers: the third comes through the first one's slots.
    check("qwen2-window", &cases);
}

#[test]
fn schedules_over_three_tiers() {
    use Delegate::{Host, Streamed};
    const HERE: [u32; 3] = [100, 0, 0];
    const MIXED: [u32; 3] = [40, 30, 30];
    const TIGHT: [u32; 3] = [15, 15, 70];
    let folder = tempfile::tempdir().unwrap();
    let with = |weights, blocks| EngineConfig {
        offload: offload(folder.path(), weights, HostLinears::Device),
        blocks,
        ..config()
    };
    let cases = [
        with([0, 50, 50], blocks(Schedule::Row, HERE, HERE, Host)),
        with([0, 100, 0], blocks(Schedule::Zigzag, [0, 100, 0], HERE, Host)),
        with(MIXED, blocks(Schedule::Zigzag, TIGHT, MIXED, Host)),
        with(MIXED, blocks(Schedule::Zigzag, TIGHT, MIXED, Streamed)),
        with(MIXED, blocks(Schedule::Row, TIGHT, HERE, Streamed)),
        with(MIXED, blocks(Schedule::Diagonal, [0, 100, 0], MIXED, Streamed)),
        with(MIXED, blocks(Schedule::Diagonal, TIGHT, MIXED, Host)),
    ];
    check("llama-gqa-tied", &cases);
    check("qwen2-window", &cases[1..5]);
}

#[test]
fn values_that_come_once_they_are_chosen() {
    use Delegate::{Host, Streamed};
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = common::checkpoint("llama-gqa-tied");
    let sparse = || EngineConfig { sparse: Some(0.1), ..config() };
    let want = stories(&common::start("llama-gqa-tied", sparse()), &requests());
    for (kv, delegate) in [([15, 15, 70], Host), ([15, 15, 70], Streamed), ([0, 100, 0], Streamed)] {
        let blocks = blocks(Schedule::Zigzag, kv, [100, 0, 0], delegate);
        let offload = offload(folder.path(), [100, 0, 0], HostLinears::Device);
        let config = EngineConfig { offload, blocks, ..sparse() };
        for seed in 0..3 {
            let engine = start_late(&checkpoint, config.clone(), seed);
            assert_eq!(stories(&engine, &requests()), want, "seed {seed}, {config:?}");
        }
    }
}
