//! Ballast's runtime as `simulate flexgen` has it (some steps of the real scheduler, each for those like it) against a whole
//! job on the same machine, every step of which is run, with the planner's own costs.

use policy::cost::{Dims, ElementBytes, Roofline};
use policy::pipeline::{DiskPath, Plan, Share, Weights};
use policy::sched::{BlockConfig, Delegate, FcfsConfig, Schedule};
use sim::flexgen::{
    Block, Case, Format, HostAttention, Lengths, Machine, Mechanism, Overlap, Pinning, Policy, Rates, predict,
};
use sim::{Job, Offline};
use spec::{BLOCK_TOKENS, ByTier, Lane, Nanos, Placement, Split, Tokens};

const PROMPT: u32 = 512;
const GENERATED: u32 = 32;
/// Lives of a block that the job lasts.
const BLOCKS: usize = 8;

/// Weights on device and host, KV on the host and attended there, activations on the device.
fn case(model: &str, (batch_size, num_batches): (u32, u32), weights_percent: u32) -> Case {
    let split = |device: u32| {
        let device = device * (Split::WHOLE / 100);
        Split::new(ByTier { device, host: Split::WHOLE - device, disk: 0 }).expect("the rest is on the host")
    };
    let placement = Placement { weights: split(weights_percent), kv: split(0), hidden: split(100) };
    let policy = Policy {
        batch_size,
        num_batches,
        placement,
        weights: Format::Half,
        cache: Format::Half,
        overlap: Overlap::On,
        host_attention: HostAttention::On,
        pinning: Pinning::Auto,
    };
    let dims = Dims::named(model).expect("named");
    let lengths = Lengths { prompt: PROMPT, generated: GENERATED };
    Case { dims, lengths, policy, devices: 1 }
}

fn roofline(case: &Case, rates: Rates) -> Roofline {
    Roofline {
        hardware: rates.hardware("t4"),
        dims: case.dims,
        bytes: ElementBytes::BF16,
        weights: case.policy.placement.weights,
        disk_path: DiskPath::ThroughHost,
        sparse: None,
    }
}

/// KV blocks that appendix A.2.1 reserves for a block of sequences at all depths.
fn kv_blocks(case: &Case) -> u32 {
    let (s, n) = (f64::from(PROMPT), f64::from(GENERATED));
    let positions = (2.0 * s + n) * (n - 1.0) / (2.0 * n) + s / n;
    (f64::from(case.policy.block()) * positions / f64::from(BLOCK_TOKENS.0)) as u32
}

/// The whole job by the scheduler that serves.
fn worked_through(case: &Case, rates: Rates) -> Offline {
    let policy = &case.policy;
    let batch_tokens = Tokens(policy.batch_size * PROMPT);
    let scheduler = FcfsConfig {
        max_num_batched_tokens: batch_tokens,
        max_num_seqs: 2 * policy.block() as usize,
        max_queue: usize::MAX,
        blocks: ByTier { device: 0, host: kv_blocks(case), disk: 0 },
        block: BlockConfig {
            schedule: Schedule::Diagonal,
            batches: policy.num_batches as usize + 2,
            batch_seqs: policy.batch_size as usize,
            kv_slot_tokens: u64::from(batch_tokens.0),
            delegate: Delegate::Host,
        },
        ..FcfsConfig::default()
    };
    let plan = Plan {
        weights: Weights::Streamed { host: Share::Some, disk: None },
        max_batches: u16::MAX,
        kv_slot_tokens: u64::from(batch_tokens.0),
        disk_path: DiskPath::ThroughHost,
        ..Plan::resident(case.dims.layers as u16, batch_tokens.0)
    };
    let cost = roofline(case, rates);
    let job = Job { arrival: Nanos::ZERO, prompt: Tokens(PROMPT), output: Tokens(GENERATED) };
    let jobs = vec![job; BLOCKS * policy.block() as usize];
    Offline::run(&jobs, scheduler, &plan, &cost, Nanos::ZERO).expect("it fits")
}

/// Filling the hold and running it empty cost the job up to one life of a block in nine, and pages are whole.
#[test]
fn the_steady_state_is_what_the_scheduler_comes_to() {
    let rates = Machine::named("t4").expect("a preset").rates().expect("complete");
    for case in [case("opt-30b", (40, 5), 12), case("opt-6.7b", (64, 8), 60)] {
        let (some, whole) = (predict(&case, rates, Mechanism::BALLAST), worked_through(&case, rates));
        let ratio = some.generated_tokens_per_s / whole.tokens_per_s();
        assert!((0.95..=1.2).contains(&ratio), "{:?}: {ratio} of {}", case.policy, whole.tokens_per_s());
        let tokens = f64::from(case.policy.block() * GENERATED);
        for lane in [Lane::Device, Lane::Host] {
            let of_some = some.decode.lanes[lane.index()] / tokens;
            let of_whole = whole.busy[lane.index()] / whole.generated as f64;
            let ratio = of_some / of_whole;
            assert!((0.9..=1.1).contains(&ratio), "{:?} {lane:?}: {ratio}", case.policy);
        }
    }
}

/// One block and no other: its prompts in one step, then its decodes, each step of which is run.
#[test]
fn a_block_of_zig_zag_takes_what_all_of_its_steps_take() {
    let rates = Machine::named("t4").expect("a preset").rates().expect("complete");
    let zigzag = Mechanism { block: Block::ZigZag, ..Mechanism::BALLAST };
    for case in [case("opt-30b", (40, 5), 12), case("opt-6.7b", (64, 2), 60)] {
        let predicted = predict(&case, rates, zigzag);
        let policy = &case.policy;
        let pages = Tokens(PROMPT + GENERATED).blocks() as u32;
        let scheduler = FcfsConfig {
            max_num_batched_tokens: Tokens(2048),
            max_num_seqs: policy.block() as usize,
            max_queue: usize::MAX,
            blocks: ByTier { device: 0, host: policy.block() * pages, disk: 0 },
            block: BlockConfig {
                schedule: Schedule::Zigzag,
                batches: policy.block() as usize / 4,
                batch_seqs: policy.batch_size as usize,
                kv_slot_tokens: 4096,
                delegate: Delegate::Host,
            },
            ..FcfsConfig::default()
        };
        let plan = Plan {
            weights: Weights::Streamed { host: Share::Some, disk: None },
            max_batches: u16::MAX,
            kv_slot_tokens: 4096,
            disk_path: DiskPath::ThroughHost,
            ..Plan::resident(case.dims.layers as u16, 2048)
        };
        let job = Job { arrival: Nanos::ZERO, prompt: Tokens(PROMPT), output: Tokens(GENERATED) };
        let jobs = vec![job; policy.block() as usize];
        let whole =
            Offline::run(&jobs, scheduler, &plan, &roofline(&case, rates), Nanos::ZERO).expect("it fits");
        assert_eq!(whole.steps, u64::from(GENERATED));
        let (all, first) = (predicted.prefill.total + predicted.decode.total, predicted.prefill.total);
        for (predicted, took) in [(all, whole.seconds), (first, whole.first_token_s)] {
            assert!((0.97..=1.03).contains(&(predicted / took)), "{policy:?}: {predicted} of {took}");
        }
    }
}
