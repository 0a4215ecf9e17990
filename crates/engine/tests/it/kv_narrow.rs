//! KV in f16, 8 and 4 bits through the whole engine: the same bits in every arrangement, and as much memory as planned.

use crate::common::{self, checkpoint, split, stories};
use engine::{
    Blocks, DeviceChoice, Engine, EngineConfig, KvFormat, NoSuchKv, Offload, Planned, PrefixCaching, Request,
    StartError,
};
use model::decoder::WeightsAs;
use model::sampling::SamplingParams;
use policy::sched::{Delegate, Schedule};
use spec::Lane;

const FORMATS: [KvFormat; 3] = [KvFormat::F16, KvFormat::Fp8, KvFormat::Int4];

fn config(kv: KvFormat) -> EngineConfig {
    EngineConfig {
        kv,
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
    let wide = stories(&start(config(KvFormat::AsActivations)), &requests);
    for kv in FORMATS {
        let config = || config(kv);
        let want = stories(&start(config()), &requests);
        assert!(want.iter().all(|story| story.len() == 30));
        assert_ne!(wide, want, "{kv:?} is not bf16");
        for changed in [
            EngineConfig { max_num_batched_tokens: 17, max_num_seqs: 4, ..config() },
            // One after the other.
            EngineConfig { max_num_seqs: 1, threads: 3, ..config() },
            EngineConfig { prefix_caching: PrefixCaching::On, steps_in_flight: Some(2), ..config() },
            // Too little for all at once: what is preempted moves to the host as it is, and back.
            EngineConfig { kv_tokens: Some(400), host_kv_tokens: 2000, ..config() },
        ] {
            assert_eq!(stories(&start(changed.clone()), &requests), want, "{changed:?}");
        }
        // Few keys count as few, whatever the arrangement; all of them are the exact answer.
        let sparse = EngineConfig { sparse: Some(0.1), ..config() };
        let few = stories(&start(sparse.clone()), &requests);
        assert_ne!(few, want, "a tenth of the keys is not all of them");
        let chunked =
            EngineConfig { max_num_batched_tokens: 17, max_num_seqs: 4, threads: 3, ..sparse.clone() };
        assert_eq!(stories(&start(chunked), &requests), few);
    }
}

/// On the device, on the host and on a drive, attended where it is or brought up.
#[test]
fn tiers_change_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    let requests = requests();
    for kv in FORMATS {
        // Device and host have room for one or two of the six sequences each.
        let config = || EngineConfig {
            max_model_len: Some(160),
            max_num_seqs: 9,
            max_num_batched_tokens: 48,
            kv_tokens: Some(8 * 160),
            ..config(kv)
        };
        let want = stories(&start(config()), &requests);
        for delegate in [Delegate::Host, Delegate::Streamed] {
            let tiers = Blocks {
                schedule: Some(Schedule::Zigzag),
                num_batches: Some(4),
                batch_size: Some(3),
                kv: split([15, 15, 70]),
                delegate,
                ..Blocks::default()
            };
            let folder = Some(folder.path().into());
            let offload = Offload { device_memory: Some(1 << 30), folder, ..Offload::default() };
            let device = DeviceChoice::Poisoned;
            let engine = start(EngineConfig { device, offload, blocks: tiers, ..config() });
            assert_eq!(stories(&engine, &requests), want, "{kv:?}, {delegate:?}");
            assert!(engine.counts().moved_by(Lane::DiskRead) > 0, "nothing came from the drive");
        }
    }
}

#[test]
fn pages_take_what_the_plan_says() {
    let checkpoint = checkpoint("llama-gqa-tied");
    let bytes = |kv| Planned::new(&checkpoint, config(kv)).unwrap().hold().kv_bytes;
    let wide = bytes(KvFormat::AsActivations);
    let [same, half, quarter] = FORMATS.map(bytes);
    assert_eq!(same, wide, "both of 16 bits");
    assert_eq!(2 * half, wide, "8 bits and no scales");
    assert!(quarter * 2 < wide, "{quarter} of {wide}: 4 bits and two numbers a group");
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
    for kv in FORMATS {
        let why_not = why(EngineConfig { weights: WeightsAs::F32, ..config(kv) });
        assert_eq!(why_not, NoSuchKv::WithF32);
    }
    let wide = || config(KvFormat::AsActivations);
    assert_eq!(why(EngineConfig { sparse: Some(f32::NAN), ..wide() }), NoSuchKv::NoShare);
}
