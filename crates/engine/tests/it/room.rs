//! Plans count all that a run comes to take, and KV on several tiers has room for a sequence on one of them.

use std::path::PathBuf;

use crate::common;
use engine::{Blocks, EngineConfig, Hold, Offload, TooSmall, WeightShare};
use kernels::Isa;
use kernels::attention::{Demand, KvDtype, KvLayout, Scratch};
use model::decoder::Blueprint;
use policy::sched::{Delegate, Schedule};
use spec::{ByTier, ModelSpec};

fn spec() -> ModelSpec {
    ModelSpec { max_positions: 1 << 17, ..common::checkpoint("llama-gqa-tied").spec().clone() }
}

fn plan(config: &EngineConfig) -> Result<Hold, TooSmall> {
    let spec = spec();
    let blueprint = Blueprint::new(&spec, config.weights, |_| model::Stored::Bf16);
    Hold::plan(&spec, &blueprint, config, 1 << 20).map(|(hold, _)| hold)
}

/// One sequence of 128 tokens, its KV in shares of percent.
fn one_sequence(kv: [u32; 3], delegate: Delegate) -> EngineConfig {
    let blocks =
        Blocks { schedule: Some(Schedule::Zigzag), kv: common::split(kv), delegate, ..Blocks::default() };
    let folder = Some(PathBuf::from("anywhere"));
    let offload = Offload { device_memory: Some(64 << 20), folder, ..Offload::default() };
    EngineConfig {
        memory: 256 << 20,
        max_num_seqs: 1,
        kv_tokens: Some(128),
        offload,
        blocks,
        ..common::config()
    }
}

#[test]
fn kv_of_one_sequence_on_several_tiers_has_room_on_one_of_them() {
    for kv in [[50, 50, 0], [10, 90, 0], [0, 50, 50], [40, 30, 30]] {
        let hold = plan(&one_sequence(kv, Delegate::Host)).unwrap();
        let blocks = [hold.kv_blocks, hold.host_kv_blocks, hold.drive_kv_blocks];
        assert_eq!(hold.max_model_len, 128, "{kv:?}: {blocks:?}");
        assert!(blocks.into_iter().max() >= Some(5), "{kv:?}: {blocks:?}");
        assert!(blocks.iter().sum::<usize>() < 20, "no more than it takes: {kv:?}: {blocks:?}");
    }
}

#[test]
fn the_tier_that_is_too_small_is_named() {
    let on_drive = one_sequence([0, 0, 100], Delegate::Streamed);
    let little = Offload { disk: Some(4096), ..on_drive.offload.clone() };
    let drive = plan(&EngineConfig { offload: little, ..on_drive }).unwrap_err().to_string();
    assert!(drive.contains("on the drive") && drive.contains("--disk"), "{drive}");
    let on_host = one_sequence([0, 100, 0], Delegate::Streamed);
    let whole = plan(&on_host).unwrap();
    let memory = (64 << 20) + whole.total_bytes() - whole.arena_bytes() - 4096;
    let host = plan(&EngineConfig { memory, ..on_host }).unwrap_err().to_string();
    assert!(host.contains("on the host") && host.contains("KV"), "{host}");
}

/// What attention keeps between calls.
fn scratch(config: &EngineConfig, rows: usize, context: usize) -> u64 {
    let spec = spec();
    let layout = KvLayout { kv_heads: spec.kv_heads, head_dim: spec.head_dim, dtype: KvDtype::Bf16 };
    let demand = Demand { threads: config.threads, heads: spec.heads, rows, context, sparse: false };
    Scratch::bytes_at_most(config.isa, layout, demand) as u64
}

#[test]
fn what_attention_keeps_grows_with_contexts_and_is_counted_for_every_device_that_attends() {
    let with = |delegate, len: usize| EngineConfig {
        memory: 8 << 30,
        threads: 16,
        isa: Isa::Amx,
        max_model_len: Some(len),
        kv_tokens: Some(len),
        offload: Offload { device_memory: Some(4 << 30), ..Offload::default() },
        ..one_sequence([50, 50, 0], delegate)
    };
    let grown = |delegate| {
        let (short, long) = (with(delegate, 128), with(delegate, 1 << 17));
        let bytes = |config: &EngineConfig| plan(config).unwrap().process_bytes;
        bytes(&long) - bytes(&short)
    };
    let config = with(Delegate::Host, 128);
    let each = |rows| scratch(&config, rows, 1 << 17) - scratch(&config, rows, 128);
    let rows = config.max_num_batched_tokens;
    assert!(grown(Delegate::Streamed) >= each(rows));
    assert!(grown(Delegate::Host) >= each(rows) + each(1));
}

#[test]
fn what_is_known_of_each_block_is_counted() {
    let of = |blocks: usize| {
        let config = one_sequence([0, 0, 100], Delegate::Streamed);
        let each = Blocks { batch_size: Some(1), ..config.blocks };
        plan(&EngineConfig { kv_tokens: Some(blocks * 32), blocks: each, ..config }).unwrap()
    };
    let (few, many) = (of(10), of(1_000_000));
    assert!(many.drive_kv_blocks >= 1_000_000, "{many}");
    let more = many.drive_kv_blocks - few.drive_kv_blocks;
    let blocks = ByTier { device: 0, host: 0, disk: more as u32 };
    let known = policy::kv::Hold::bytes_at_most(blocks, ByTier { disk: 0, ..blocks });
    // Each layer of a block has a checksum of four bytes at the least.
    let sums = (4 * more * spec().layers) as u64;
    let took = many.process_bytes - few.process_bytes;
    assert!(known >= 8_000_000 && took >= known + sums, "{took}, {known} and {sums}");
}

/// Many layers, of which some are on the device, others on the host, if that is apart, and others on the drive.
fn deep(config: &EngineConfig, resident_bytes: u64) -> Result<Hold, TooSmall> {
    let spec = ModelSpec { layers: 24, ..spec() };
    let blueprint = Blueprint::new(&spec, config.weights, |_| model::Stored::Bf16);
    Hold::plan(&spec, &blueprint, config, resident_bytes).map(|(hold, _)| hold)
}

const RESIDENT: u64 = 1 << 20;
const KIB: u64 = 1 << 10;

/// Memory that is too short for all weights, of one kind or of two, and the shares that just fit there.
fn filled() -> [(EngineConfig, Hold); 2] {
    let offload = Offload { folder: Some(PathBuf::from("anywhere")), ..Offload::default() };
    let roomy = deep(&common::config(), RESIDENT).unwrap();
    let common = roomy.total_bytes() - roomy.weight_bytes / 3;
    let device = roomy.arena_bytes() - roomy.weight_bytes / 2;
    let carved = device + roomy.process_bytes + roomy.weight_bytes / 4;
    [(common, None), (carved, Some(device))].map(|(memory, device_memory)| {
        let share = WeightShare::AfterKv;
        let offload = Offload { device_memory, share, ..offload.clone() };
        let mut config = EngineConfig { memory, offload, ..common::config() };
        let hold = deep(&config, RESIDENT).unwrap();
        assert!(hold.streamed_bytes > 0 && (device_memory.is_none() || hold.host_weight_bytes > 0), "{hold}");
        config.offload.share = WeightShare::Exactly(hold.weight_share);
        (config, hold)
    })
}

#[test]
fn shares_mean_the_same_in_a_process_of_the_same_size() {
    for (config, hold) in filled() {
        assert_eq!(deep(&config, RESIDENT).unwrap(), hold);
        assert_eq!(deep(&config, RESIDENT / 2).unwrap().weight_share, hold.weight_share);
    }
}

#[test]
fn shares_that_miss_by_a_little_leave_kv_as_it_was_planned() {
    for (config, hold) in filled() {
        let grown = |resident_bytes, beside_bytes| {
            deep(&EngineConfig { beside_bytes, ..config.clone() }, resident_bytes).unwrap()
        };
        let beside = grown(RESIDENT, 100 * KIB);
        assert_eq!(beside, grown(RESIDENT + 100 * KIB, 0));
        assert!(beside.total_bytes() <= config.memory, "{beside}");
        assert_eq!((beside.kv_blocks, beside.max_model_len), (hold.kv_blocks, hold.max_model_len));
        let more = beside.streamed_bytes - hold.streamed_bytes;
        // Slots of two layers hold a part of what is streamed: panels of a matrix are of 4 KiB.
        assert!(more > 0 && more <= 200 * KIB, "{more} bytes more are streamed");
        // What was found is not found anew.
        let offload = Offload { share: WeightShare::Exactly(beside.weight_share), ..config.offload.clone() };
        let again = EngineConfig { offload, beside_bytes: 100 * KIB, ..config.clone() };
        assert_eq!(deep(&again, RESIDENT).unwrap(), beside);
    }
}

#[test]
fn shares_that_miss_by_far_are_kept_or_refused() {
    for (config, hold) in filled() {
        let far = deep(&config, RESIDENT + config.memory / 20);
        let kept = |far: &Hold| far.weight_share == hold.weight_share && far.kv_blocks < hold.kv_blocks;
        assert!(far.as_ref().map_or(true, kept), "{far:?}");
        let refused = deep(&config, RESIDENT + config.memory / 2).unwrap_err();
        assert!(matches!(refused, TooSmall::Shares { .. }), "{refused}");
    }
}

/// A device that is a little smaller than where the plan was made: where nothing is on the drive, nothing goes there.
#[test]
fn what_the_device_has_no_room_for_goes_to_the_host_if_nothing_is_on_the_drive() {
    let share = WeightShare::Exactly(common::split([50, 50, 0]));
    let config = |device_memory| {
        let offload = Offload { share, device_memory: Some(device_memory), ..Offload::default() };
        EngineConfig { memory: 1 << 30, offload, ..common::config() }
    };
    let device = deep(&config(64 << 20), RESIDENT).unwrap().arena_bytes();
    let (whole, less) = (config(device), config(device - 16 * KIB));
    let [whole, less] = [whole, less].map(|config| deep(&config, RESIDENT).unwrap());
    assert_eq!((less.kv_blocks, less.disk_bytes), (whole.kv_blocks, 0));
    assert!(less.host_weight_bytes > whole.host_weight_bytes, "{less}");
    assert!(less.arena_bytes() <= device - 16 * KIB, "{less}");
}

#[test]
fn blocks_for_those_who_make_way_are_refused_where_nobody_would_use_them() {
    let swaps = |schedule| {
        let blocks = Blocks { schedule, ..Blocks::default() };
        plan(&EngineConfig { host_kv_tokens: 512, blocks, ..common::config() })
    };
    let text = swaps(Some(Schedule::Zigzag)).unwrap_err().to_string();
    assert!(text.contains("--swap-tokens") && text.contains("--schedule plain"), "{text}");
    for schedule in [None, Some(Schedule::Continuous)] {
        assert_eq!(swaps(schedule).unwrap().host_kv_blocks, 16);
    }
}
