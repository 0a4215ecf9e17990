//! KV of 4 bits through the whole engine: the same bits in every arrangement, and less memory.

mod common;

use common::{checkpoint, stories};
use engine::{
    DeviceChoice, Engine, EngineConfig, KvFormat, NoSuchKv, Planned, PrefixCaching, Request, StartError,
};
use model::decoder::WeightsAs;
use model::sampling::SamplingParams;

fn config() -> EngineConfig {
    EngineConfig {
        kv: KvFormat::Int4,
        max_model_len: Some(256),
        max_num_seqs: 16,
        max_num_batched_tokens: 512,
        kv_tokens: Some(16 * 256),
        ..common::config()
    }
}

fn start(config: EngineConfig) -> Engine {
    common::start("llama-gqa-tied", config)
}

fn requests() -> Vec<Request> {
    let params = || SamplingParams {
        max_tokens: Some(30),
        ignore_eos: true,
        logprobs: Some(0),
        ..SamplingParams::greedy()
    };
    let prompt = |seed: u32| (0..40 + 17 * seed).map(|i| 3 + (seed * 31 + i * 40_503 + i * i) % 90).collect();
    (0..6).map(|seed| Request { prompt: prompt(seed), params: params(), seed: 7, salt: 0 }).collect()
}

#[test]
fn arrangements_change_no_bit() {
    let requests = requests();
    let want = stories(&start(config()), &requests);
    assert!(want.iter().all(|story| story.len() == 30));
    for changed in [
        EngineConfig { max_num_batched_tokens: 17, max_num_seqs: 4, ..config() },
        EngineConfig { threads: 3, ..config() },
        EngineConfig { prefix_caching: PrefixCaching::On, steps_in_flight: 2, ..config() },
        // Too little for all at once: what is preempted moves to the host as it is, and back.
        EngineConfig { kv_tokens: Some(400), host_kv_tokens: 2000, ..config() },
    ] {
        assert_eq!(stories(&start(changed.clone()), &requests), want, "{changed:?}");
    }
    // Few keys count as few, whatever the arrangement; all of them are the exact answer.
    let sparse = EngineConfig { sparse: Some(0.1), ..config() };
    let few = stories(&start(sparse.clone()), &requests);
    assert_ne!(few, want, "a tenth of the keys is not all of them");
    let chunked = EngineConfig { max_num_batched_tokens: 17, max_num_seqs: 4, threads: 3, ..sparse.clone() };
    assert_eq!(stories(&start(chunked), &requests), few);
    let wide = stories(&start(EngineConfig { kv: KvFormat::AsActivations, ..config() }), &requests);
    assert_ne!(wide, want, "4 bits are not 16");
}

#[test]
fn pages_take_what_the_plan_says() {
    let checkpoint = checkpoint("llama-gqa-tied");
    let bytes = |kv| Planned::new(&checkpoint, EngineConfig { kv, ..config() }).unwrap().hold().kv_bytes;
    let (narrow, wide) = (bytes(KvFormat::Int4), bytes(KvFormat::AsActivations));
    assert!(narrow * 2 < wide, "{narrow} of {wide}: 4 bits and two numbers a group");
}

#[test]
fn what_nothing_attends_is_refused() {
    let checkpoint = checkpoint("llama-gqa-tied");
    let why = |config: EngineConfig| {
        let planned = Planned::new(&checkpoint, config).unwrap();
        match planned.start(&|_| {}) {
            Err(StartError::Kv(why)) => why,
            _ => panic!("started"),
        }
    };
    assert_eq!(why(EngineConfig { weights: WeightsAs::F32, ..config() }), NoSuchKv::WithF32);
    let cuda = EngineConfig { device: DeviceChoice::Cuda, ..config() };
    let (kv, sparse) = (KvFormat::AsActivations, Some(0.1));
    assert_eq!(why(EngineConfig { kv, sparse, ..cuda }), NoSuchKv::SparseOnCuda);
    assert_eq!(why(EngineConfig { sparse: Some(f32::NAN), ..config() }), NoSuchKv::NoShare);
}
