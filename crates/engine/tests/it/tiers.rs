//! Plans over device, host and drive: what goes where, what is refused and what would fit.

use std::path::PathBuf;

use crate::common;
use engine::{Blocks, DeviceChoice, EngineConfig, Hold, Offload, Planned, TooSmall, WeightShare};
use model::decoder::Blueprint;
use policy::sched::Schedule;
use spec::{ModelSpec, Split, Tier};

const MODEL: &str = "llama-gqa-tied";

/// A model of 24 layers, 1.5 MB of them.
fn spec() -> ModelSpec {
    ModelSpec { layers: 24, ..common::checkpoint(MODEL).spec().clone() }
}

fn config(offload: Offload) -> EngineConfig {
    EngineConfig { memory: 96 << 20, threads: 1, kv_tokens: Some(128), offload, ..common::config() }
}

fn plan(config: &EngineConfig) -> Result<Hold, TooSmall> {
    let spec = spec();
    let blueprint = Blueprint::new(&spec, config.weights, |_| model::Stored::Bf16);
    Hold::plan(&spec, &blueprint, config, 1 << 20).map(|(hold, _)| hold)
}

fn offload(device_memory: u64) -> Offload {
    let folder = Some(PathBuf::from("anywhere"));
    Offload { device_memory: Some(device_memory), folder, ..Offload::default() }
}

fn shares(device: u32, host: u32) -> WeightShare {
    WeightShare::Exactly(common::split([device, host, 100 - device - host]))
}

/// What the process itself takes in these plans.
fn process() -> u64 {
    plan(&config(offload(16 << 20))).unwrap().process_bytes
}

/// What a device needs at least: all of the layers live elsewhere.
fn least_device() -> u64 {
    plan(&config(Offload { share: shares(0, 100), ..offload(16 << 20) })).unwrap().arena_bytes()
}

#[test]
fn the_device_is_filled_first_then_the_host_then_the_drive() {
    let (least, process) = (least_device(), process());
    let mut seen = [0; 3];
    // Not from the very least: there, panels on three tiers instead of two would be a page too many for the slots.
    for device in (least + (64 << 10)..least + (2 << 20)).step_by(64 << 10) {
        for memory in [process + (200 << 10), process + (800 << 10), process + (4 << 20)] {
            let config = EngineConfig { memory: device + memory, ..config(offload(device)) };
            let Ok(hold) = plan(&config) else { continue };
            assert!(hold.arena_bytes() <= device, "{hold}");
            assert!(hold.total_bytes() <= config.memory, "{hold}");
            assert!(hold.total_bytes() - hold.arena_bytes() <= memory, "{hold}");
            let spare = memory - (hold.total_bytes() - hold.arena_bytes());
            assert!(
                hold.streamed_bytes == 0 || spare < 64 << 10,
                "the drive before a host with {spare} left: {hold}"
            );
            assert_eq!(hold.disk_bytes > 0, hold.streamed_bytes > 0, "{hold}");
            assert_eq!(hold.copied_bytes, hold.host_weight_bytes, "{hold}");
            seen[usize::from(hold.host_weight_bytes > 0) + usize::from(hold.disk_bytes > 0)] += 1;
        }
    }
    assert!(seen.iter().all(|times| *times > 0), "{seen:?}");
}

#[test]
fn a_device_without_a_share_of_its_own_has_no_host_tier_unless_asked() {
    let offload = Offload { device_memory: None, ..offload(0) };
    let all = plan(&config(offload.clone())).unwrap();
    let limit = all.total_bytes() - (256 << 10);
    let hold = plan(&EngineConfig { memory: limit, ..config(offload.clone()) }).unwrap();
    assert!(hold.streamed_bytes > 0 && hold.host_weight_bytes == 0, "{hold}");
    let asked = Offload { share: shares(40, 30), ..offload };
    let hold = plan(&config(asked)).unwrap();
    assert!(hold.streamed_bytes > 0 && hold.host_weight_bytes > 0, "{hold}");
}

#[test]
fn a_link_or_a_gpu_takes_the_drive_through_the_host() {
    let share = shares(20, 30);
    let straight = plan(&config(Offload { share, ..offload(16 << 20) })).unwrap();
    assert_eq!((straight.host_slot_bytes, straight.copied_bytes), (0, straight.host_weight_bytes));
    let linked = plan(&config(Offload { share, link: Some(1 << 30), ..offload(16 << 20) })).unwrap();
    // A GPU's driver takes memory of the host's, too.
    let gpu = EngineConfig {
        device: DeviceChoice::Cuda,
        memory: 1 << 30,
        ..config(Offload { share, ..offload(16 << 20) })
    };
    for hold in [linked, plan(&gpu).unwrap()] {
        assert!(hold.host_slot_bytes > 0, "{hold}");
        assert_eq!(hold.copied_bytes, hold.host_weight_bytes + hold.streamed_bytes, "{hold}");
    }
}

#[test]
fn a_gpus_memory_is_apart_from_the_processs() {
    let gpu = |device, memory| {
        plan(&EngineConfig { device: DeviceChoice::Cuda, memory, ..config(offload(device)) })
    };
    let process = gpu(16 << 20, 1 << 30).unwrap().process_bytes;
    let memory = process + (2 << 20);
    let hold = gpu(16 << 20, memory).unwrap();
    assert!(hold.arena_bytes() + process > memory, "{hold}");
    assert!(hold.total_bytes() <= memory, "{hold}");
    let lacks = |device, memory| gpu(device, memory).unwrap_err().lacks().to_string();
    assert!(lacks(1 << 20, 1 << 30).contains("of the device's memory"));
    assert!(lacks(16 << 20, 1 << 20).contains("on the host"));
}

#[test]
fn budgets_that_make_no_sense_are_refused() {
    let whole = plan(&EngineConfig { memory: 32 << 20, ..config(offload(32 << 20)) }).unwrap_err();
    assert!(whole.to_string().contains("leaves nothing"), "{whole}");
    let device = plan(&config(offload(64 << 10))).unwrap_err().to_string();
    assert!(device.contains("--device-memory") && device.contains("the device's memory"), "{device}");
    let host = EngineConfig { memory: (16 << 20) + 4096, ..config(offload(16 << 20)) };
    let host = plan(&host).unwrap_err().to_string();
    assert!(host.contains("on the host") && host.contains("lower --device-memory"), "{host}");
    let nowhere = Offload { folder: None, ..offload(least_device() + (700 << 10)) };
    let nowhere = plan(&EngineConfig { memory: least_device() + process() + (1 << 20), ..config(nowhere) })
        .unwrap_err()
        .to_string();
    assert!(nowhere.contains("--offload-dir"), "{nowhere}");
}

#[test]
fn shares_that_do_not_fit_name_the_nearest_that_do() {
    let (least, process) = (least_device(), process());
    for (device, memory, asked) in [
        (least + (600 << 10), process + (4 << 20), (90, 10)),
        (least + (600 << 10), process + (600 << 10), (20, 80)),
        (least + (600 << 10), process + (600 << 10), (80, 20)),
    ] {
        let with = |share| {
            plan(&EngineConfig { memory: device + memory, ..config(Offload { share, ..offload(device) }) })
        };
        let refused = with(shares(asked.0, asked.1)).unwrap_err();
        let TooSmall::Shares { nearest: Some(nearest), .. } = &refused else {
            panic!("{asked:?}: {refused}");
        };
        let percent = Tier::ALL.map(|tier| nearest.weights.part(tier) / (Split::WHOLE / 100));
        let told = format!("--percent {} {} 100 0 100 0", percent[0], percent[1]);
        assert!(refused.to_string().ends_with(&told), "{refused}");
        assert!(percent[0] <= asked.0, "{refused}");
        with(shares(percent[0], percent[1])).unwrap();
    }
}

#[test]
fn shares_that_a_drive_has_no_room_for_are_told_to_stay_in_memory() {
    let all = |share| plan(&config(Offload { share, disk: Some(64 << 10), ..offload(16 << 20) }));
    for (asked, told) in [((90, 0), "90 10"), ((0, 0), "0 100"), ((20, 40), "20 80")] {
        let refused = all(shares(asked.0, asked.1)).unwrap_err().to_string();
        assert!(refused.ends_with(&format!("--percent {told} 100 0 100 0")), "{refused}");
    }
}

/// Where the engine's own rule places weights.
#[test]
fn limits_that_do_not_fit_name_the_nearest_that_do() {
    let of = |tokens, longest, device| EngineConfig {
        max_num_batched_tokens: tokens,
        max_model_len: longest,
        memory: 1 << 30,
        ..config(offload(device))
    };
    for (tokens, longest) in [(1 << 14, Some(256)), (1 << 14, None)] {
        let device = least_device() + (400 << 10);
        let refused = plan(&of(tokens, longest, device)).unwrap_err();
        let TooSmall::Limits { nearest, .. } = refused else { panic!("{refused}") };
        let fewer = nearest.max_num_batched_tokens.unwrap_or(tokens);
        let shorter = nearest.max_model_len.or(longest);
        assert!((fewer, shorter) != (tokens, longest), "{refused}");
        plan(&of(fewer, shorter, device)).unwrap_or_else(|why| panic!("{refused}: {why}"));
        assert!(refused.to_string().ends_with(&nearest.to_string()), "{refused}");
    }
}

/// Where no shares of weights fit, because of something else.
#[test]
fn what_takes_the_room_makes_way_in_what_would_fit() {
    let told = |config: &EngineConfig| {
        let refused = plan(config).unwrap_err();
        let TooSmall::Shares { nearest, .. } = &refused else { panic!("{refused}") };
        let nearest = *nearest.clone().unwrap_or_else(|| panic!("{refused}"));
        let blocks = Blocks { kv: nearest.kv, hidden: nearest.hidden, ..config.blocks };
        let [batches, seqs, tokens] = nearest.batches.map_or([None; 3], |told| told.map(Some));
        let blocks = Blocks {
            num_batches: batches.or(blocks.num_batches),
            batch_size: seqs.or(blocks.batch_size),
            ..blocks
        };
        let offload = Offload { share: WeightShare::Exactly(nearest.weights), ..config.offload.clone() };
        let max_num_batched_tokens = tokens.unwrap_or(config.max_num_batched_tokens);
        let max_model_len = nearest.max_model_len.or(config.max_model_len);
        plan(&EngineConfig { blocks, offload, max_num_batched_tokens, max_model_len, ..config.clone() })
            .unwrap_or_else(|why| panic!("{refused}: {why}"));
        nearest
    };
    let zigzag = |batches, kv: [u32; 3]| Blocks {
        schedule: Some(Schedule::Zigzag),
        num_batches: Some(batches),
        batch_size: Some(2),
        kv: common::split(kv),
        ..Blocks::default()
    };
    // KV of 1.6 MiB on a device with room for half of it.
    let long = EngineConfig {
        max_model_len: Some(512),
        kv_tokens: Some(512),
        ..config(offload(least_device() + (300 << 10)))
    };
    let long = EngineConfig { memory: 1 << 30, blocks: zigzag(2, [100, 0, 0]), ..long };
    let share = Offload { share: shares(0, 100), ..long.offload.clone() };
    let nearest = told(&EngineConfig { offload: share, ..long });
    assert_ne!(nearest.kv, Split::RESIDENT, "{nearest}");
    // Activations of twenty batches.
    let least = plan(&EngineConfig {
        blocks: zigzag(2, [100, 0, 0]),
        ..config(Offload { share: shares(0, 100), ..offload(16 << 20) })
    });
    let offload = Offload { share: shares(0, 100), ..offload(least.unwrap().arena_bytes()) };
    let blocks = Blocks { hidden: Split::RESIDENT, ..zigzag(20, [100, 0, 0]) };
    let many = EngineConfig {
        blocks: Blocks { schedule: Some(Schedule::Row), ..blocks },
        ..config(offload.clone())
    };
    assert!(plan(&many).is_ok(), "row by row batches share their buffers");
    let nearest = told(&EngineConfig { blocks, ..many });
    assert!(nearest.batches.is_some() || nearest.hidden != Split::RESIDENT, "{nearest}");
    // Nothing near a device of a few pages.
    let none = EngineConfig {
        offload: Offload { device_memory: Some(64 << 10), ..offload },
        ..config(Offload::default())
    };
    let text = plan(&none).unwrap_err().to_string();
    assert!(text.contains("Nothing near it fits"), "{text}");
}

#[test]
fn nothing_is_written_where_nothing_lives_on_the_drive() {
    let (checkpoint, folder) = (common::checkpoint(MODEL), tempfile::tempdir().unwrap());
    let offload = Offload { folder: Some(folder.path().into()), share: shares(40, 60), ..Offload::default() };
    // This process has what tests beside this one have.
    let config = EngineConfig { memory: 1 << 30, ..config(offload) };
    let planned = Planned::new(&checkpoint, config).unwrap();
    assert!(planned.store().unwrap().is_none() && planned.hold().host_weight_bytes > 0);
    planned.start(&|_| {}).unwrap().finish().unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
