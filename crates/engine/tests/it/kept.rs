//! Beginnings that memory has no room for: on the drive, and back from it, with the bits of those who compute them; and what
//! becomes of them where the drive fails.

use std::path::Path;

use crate::common::{self, Story, checkpoint, poisoned, split, start, story};
use engine::{
    Blocks, Counts, DeviceChoice, Engine, EngineConfig, KvFormat, Offload, Planned, PrefixCaching, Request,
};
use model::sampling::SamplingParams;
use policy::cost::{Curve, Linear, Tables};
use policy::sched::Schedule;
use spec::Lane;

/// The device has room for six blocks, a prompt has three and a few tokens.
fn config(folder: &Path, drive_kv_tokens: usize) -> EngineConfig {
    EngineConfig {
        prefix_caching: PrefixCaching::On,
        kv_tokens: Some(200),
        max_num_batched_tokens: 128,
        drive_kv_tokens,
        offload: Offload { folder: Some(folder.into()), ..Offload::default() },
        ..poisoned()
    }
}

fn ask(engine: &Engine, topic: u32) -> Story {
    let params = SamplingParams {
        max_tokens: Some(4),
        ignore_eos: true,
        logprobs: Some(1),
        ..SamplingParams::greedy()
    };
    let prompt = (0..100).map(|j| 3 + (topic * 31 + j * (17 + topic)) % 90).collect();
    story(&engine.submit(Request { prompt, params, seed: 0, salt: 0 }).unwrap())
}

/// Topics one after the other: more than a device and a host of 32 blocks have room for.
fn ask_all(engine: &Engine) -> Vec<Story> {
    (0..14).map(|topic| ask(engine, topic)).collect()
}

fn read(counts: &Counts) -> u64 {
    counts.moved_by(Lane::DiskRead)
}

#[test]
fn beginnings_come_back_from_the_drive_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let link = |config: EngineConfig| {
        let offload = Offload { link: Some(8 << 30), device_memory: Some(1 << 30), ..config.offload.clone() };
        EngineConfig { offload, ..config }
    };
    let plain = config(folder.path(), 2000);
    let want = ask_all(&start("llama-gqa-tied", config(folder.path(), 0)));
    for config in [
        plain.clone(),
        EngineConfig { device: DeviceChoice::Cpu, steps_in_flight: Some(1), ..plain.clone() },
        // Over the host, which has room for four blocks, or for as many as have to pass it.
        EngineConfig { host_kv_tokens: 128, ..plain.clone() },
        link(EngineConfig { host_kv_tokens: 128, ..plain.clone() }),
    ] {
        let engine = start("llama-gqa-tied", config.clone());
        assert_eq!(ask_all(&engine), want, "{config:?}");
        assert_eq!(ask_all(&engine), want, "{config:?}");
        let counts = engine.counts();
        let drive = counts.drive_cached_tokens;
        assert!(drive >= 2 * 96 && drive + counts.host_cached_tokens >= 4 * 96, "{counts:?}");
        assert!(drive + counts.host_cached_tokens <= counts.cached_tokens, "{counts:?}");
        assert!(read(&counts) > 0 && counts.prefix_blocks_lost == 0, "{counts:?}");
        assert!(counts.prefix_blocks.disk >= 12, "{counts:?}");
    }
    // Blocks that pass have room on the host, which keeps them too.
    let engine = start("llama-gqa-tied", link(plain));
    assert_eq!((engine.hold().host_kv_blocks, engine.hold().prefix_blocks.host), (32, 32));
    assert_eq!([ask_all(&engine), ask_all(&engine)], [want.clone(), want]);
    assert!(engine.counts().drive_cached_tokens >= 2 * 96, "{:?}", engine.counts());
}

#[test]
fn narrow_kv_and_models_of_other_families_come_back_too() {
    let folder = tempfile::tempdir().unwrap();
    for (model, kv, sparse) in [
        ("qwen3", KvFormat::Int4, None),
        ("llama-gqa-tied", KvFormat::F16, None),
        ("opt-350m", KvFormat::AsActivations, None),
        ("llama-gqa-tied", KvFormat::AsActivations, Some(0.5)),
    ] {
        let of = |drive| EngineConfig { kv, sparse, ..config(folder.path(), drive) };
        let want = ask_all(&start(model, of(0)));
        let engine = start(model, of(2000));
        assert_eq!([ask_all(&engine), ask_all(&engine)], [want.clone(), want], "{model}");
        assert!(engine.counts().drive_cached_tokens >= 2 * 96, "{model}: {:?}", engine.counts());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_drive_that_fails_costs_its_beginnings_and_no_request() {
    for host_kv_tokens in [0, 128] {
        let folder = tempfile::tempdir().unwrap();
        let config = EngineConfig { host_kv_tokens, ..config(folder.path(), 2000) };
        let engine = start("llama-gqa-tied", config.clone());
        let want = ask_all(&engine);
        // What is there cannot be read, and nothing can be written.
        common::kv_file(folder.path()).set_len(0).unwrap();
        let before = engine.counts().drive_cached_tokens;
        assert_eq!([ask_all(&engine), ask_all(&engine)], [want.clone(), want.clone()]);
        let counts = engine.counts();
        assert_eq!(counts.drive_cached_tokens, before, "{counts:?}");
        assert!(counts.prefix_blocks_lost > 0, "{counts:?}");
        // A drive that never took anything.
        drop(engine);
        let engine = start("llama-gqa-tied", config);
        common::kv_file(folder.path()).set_len(0).unwrap();
        assert_eq!([ask_all(&engine), ask_all(&engine)], [want.clone(), want]);
        let counts = engine.counts();
        assert_eq!((counts.drive_cached_tokens, counts.prefix_blocks.disk), (0, 0), "{counts:?}");
        assert!(counts.prefix_blocks_lost > 0, "{counts:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn beginnings_that_a_drive_has_damaged_are_computed_anew() {
    let folder = tempfile::tempdir().unwrap();
    let engine = start("llama-gqa-tied", config(folder.path(), 2000));
    let want = ask_all(&engine);
    common::damage(&common::kv_file(folder.path()));
    assert_eq!(ask_all(&engine), want);
    let counts = engine.counts();
    assert!(counts.prefix_blocks_lost > 0, "{counts:?}");
    // They are written anew, and the drive is as good as it was.
    assert_eq!(ask_all(&engine), want);
    assert!(engine.counts().drive_cached_tokens > counts.drive_cached_tokens, "{counts:?}");
}

#[test]
fn room_for_beginnings_is_planned_within_the_drives_budget() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint("llama-gqa-tied");
    let plan = |config: EngineConfig| Planned::new(&checkpoint, config).map(|planned| *planned.hold());
    let within = |disk: u64| {
        let config = config(folder.path(), 2000);
        plan(EngineConfig { offload: Offload { disk: Some(disk), ..config.offload.clone() }, ..config })
    };
    let (none, some) = (plan(config(folder.path(), 0)).unwrap(), plan(config(folder.path(), 2000)).unwrap());
    assert_eq!((some.prefix_blocks.disk, some.drive_kv_blocks), (63, 63));
    assert_eq!((none.drive_bytes, some.kv_tokens), (0, none.kv_tokens), "they are no room for sequences");
    assert!(some.process_bytes > none.process_bytes, "what is known of them is counted");
    assert!(some.to_string().contains("prefixes on the drive"), "{some}");
    assert_eq!(within(some.drive_bytes).unwrap().drive_bytes, some.drive_bytes);
    let text = within(some.drive_bytes - 1).unwrap_err().to_string();
    assert!(text.contains("--disk-cache-tokens"), "{text}");
    let blocks = Blocks { schedule: Some(Schedule::Zigzag), kv: split([50, 50, 0]), ..Blocks::default() };
    let text = plan(EngineConfig { blocks, ..config(folder.path(), 2000) }).unwrap_err().to_string();
    assert!(text.contains("--disk-cache-tokens") && text.contains("--schedule plain"), "{text}");
    // The file is taken at the start, or the engine does not start.
    let endless = EngineConfig { memory: 1 << 48, ..config(folder.path(), 32 << 28) };
    let endless = Planned::new(&checkpoint, endless).unwrap();
    let text = endless.start(&|_| {}).map(drop).unwrap_err().to_string();
    assert!(text.contains("take room on the drive"), "{text}");
}

/// A drive that reads so many bytes a second, and a device that computes so many rows of an MLP.
fn machine(bytes_per_s: f64, rows_per_s: f64) -> Tables {
    let mlp = Linear { seconds: Curve::rate(rows_per_s), ..Linear::default() };
    Tables {
        mlp,
        disk_read: Curve::rate(bytes_per_s),
        disk_write_bytes_per_s: 1e15,
        copy_bytes_per_s: 1e15,
        ..Tables::default()
    }
}

#[test]
fn beginnings_are_read_only_where_that_takes_less_than_computing_them() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoint, config) = (checkpoint("llama-gqa-tied"), config(folder.path(), 2000));
    let ran = |tables: Tables| {
        let planned = Planned::new(&checkpoint, config.clone()).unwrap().foreseen(tables);
        let engine = planned.start(&|_| {}).unwrap();
        ([ask_all(&engine), ask_all(&engine)], engine.counts())
    };
    let (read, computed) = (ran(machine(1e15, 1.0)), ran(machine(1.0, 1e15)));
    assert_eq!(read.0, computed.0, "either way the bits are the same");
    assert!(read.1.drive_cached_tokens >= 2 * 96 && read.1.prefix_blocks_computed == 0, "{:?}", read.1);
    assert!(computed.1.drive_cached_tokens == 0, "{:?}", computed.1);
    assert!(
        computed.1.prefix_blocks_computed >= 6 && computed.1.prefix_blocks.disk >= 12,
        "{:?}",
        computed.1
    );
}
