//! Block schedules in virtual time: what they reserve, what they let in and when, and what the diagonal one gains.

use crate::common::{Checked, config, run, world};
use policy::cost::Dims;
use policy::sched::{BlockConfig, Delegate, Fcfs, FcfsConfig, Next, Schedule, Scheduler, Why};
use sim::{BlockExperiment, End, Job};
use spec::{
    ByTier, Bytes, DeviceSpec, DiskSpec, Done, HardwareSpec, HostSpec, LinkSpec, Nanos, Outcome, PrefixUse,
    Produced, Request, SeqId, Step, Tier, Tokens,
};
use std::collections::BTreeMap;

fn block(schedule: Schedule) -> BlockConfig {
    BlockConfig { schedule, batches: 4, batch_seqs: 4, kv_slot_tokens: 4096, delegate: Delegate::Host }
}

fn limits(schedule: Schedule, blocks: ByTier<u32>) -> FcfsConfig {
    FcfsConfig { blocks, block: block(schedule), max_num_batched_tokens: Tokens(512), ..config(0) }
}

fn on(device: u32, host: u32, disk: u32) -> ByTier<u32> {
    ByTier { device, host, disk }
}

fn request(id: u64, prompt: u32, max_new: u32) -> Request {
    let (prompt, max_new) = (Tokens(prompt), Tokens(max_new));
    let (id, prefix) = (SeqId(id), PrefixUse::Forbidden);
    Request { id, arrival: Nanos::ZERO, prompt, max_new, hashes: Vec::new(), prefix }
}

fn first_step(config: FcfsConfig, requests: u64, prompt: u32, max_new: u32) -> Step {
    let mut scheduler = Fcfs::new(config);
    (0..requests).for_each(|id| scheduler.arrive(Nanos::ZERO, request(id, prompt, max_new)));
    let Next::Run(step) = scheduler.next(Nanos::ZERO) else { panic!("there is room for some") };
    scheduler.check();
    step
}

#[test]
fn a_block_is_what_fits_to_its_full_length() {
    // Each of 33 + 64 - 1 positions is three blocks; ten of them fit, in batches of four.
    let step = first_step(limits(Schedule::Zigzag, on(32, 0, 0)), 20, 33, 64);
    let batches: Vec<_> = step.batches.iter().map(Vec::len).collect();
    assert_eq!(batches, [4, 4, 2]);
}

#[test]
fn a_batch_is_closed_by_its_tokens_too() {
    let limits = FcfsConfig { max_num_batched_tokens: Tokens(70), ..limits(Schedule::Zigzag, on(99, 0, 0)) };
    let step = first_step(limits, 5, 33, 4);
    let tokens = |batch: &Vec<spec::Chunk>| batch.iter().map(|chunk| chunk.span.len.0).collect::<Vec<_>>();
    let batches: Vec<_> = step.batches.iter().map(tokens).collect();
    assert_eq!(batches, [vec![33, 33], vec![33, 33], vec![33]]);
}

#[test]
fn homes_are_filled_from_the_fastest_tier_on() {
    let step = first_step(limits(Schedule::Zigzag, on(4, 6, 20)), 8, 33, 16);
    let homes: Vec<_> = step.chunks().map(|chunk| (chunk.home, chunk.attend)).collect();
    let at = |home| (home, Tier::Device);
    let expected = [
        [Tier::Device; 2].map(at).to_vec(),
        [Tier::Host; 3].map(at).to_vec(),
        [Tier::Disk; 3].map(at).to_vec(),
    ];
    assert_eq!(homes, expected.concat(), "prompts attend on the device wherever they live");
}

#[test]
fn decodes_attend_where_they_are_sent() {
    for (delegate, attend) in [(Delegate::Host, Tier::Host), (Delegate::Streamed, Tier::Device)] {
        let block = BlockConfig { delegate, ..block(Schedule::Zigzag) };
        assert_eq!(block.attend(Tier::Disk, Tokens(1)), attend);
        assert_eq!(block.attend(Tier::Host, Tokens(1)), attend);
        assert_eq!(block.attend(Tier::Host, Tokens(2)), Tier::Device);
        assert_eq!(block.attend(Tier::Device, Tokens(1)), Tier::Device);
    }
}

#[test]
fn what_passes_through_no_slot_is_refused() {
    let mut limits = limits(Schedule::Zigzag, on(2, 100, 0));
    limits.block.kv_slot_tokens = 128;
    let mut scheduler = Fcfs::new(limits);
    scheduler.arrive(Nanos::ZERO, request(0, 100, 64));
    let why = Why::NeverFits { needed: 6, capacity: 4 };
    assert_eq!(scheduler.next(Nanos::ZERO), Next::Refuse(SeqId(0), why));
}

fn jobs(count: usize, prompt: u32, output: u32) -> Vec<Job> {
    vec![Job { arrival: Nanos::ZERO, prompt: Tokens(prompt), output: Tokens(output) }; count]
}

/// Steps and positions computed, with everything finished.
fn served(config: FcfsConfig, jobs: &[Job]) -> (u64, u64) {
    let mut world = world();
    world.expect(jobs);
    run(&mut world, &mut Checked(Fcfs::new(config)));
    let metrics = world.metrics();
    assert!(metrics.requests.values().all(|tally| tally.end == End::Finished), "all are served");
    (metrics.steps, metrics.computed)
}

#[test]
fn blocks_follow_one_another_and_the_last_may_be_smaller() {
    // Ten at a time: 25 requests are two blocks and a half, 64 steps each.
    assert_eq!(served(limits(Schedule::Zigzag, on(32, 0, 0)), &jobs(25, 33, 64)), (3 * 64, 25 * 96));
}

#[test]
fn a_row_that_ends_early_is_replaced_in_the_next_step() {
    // Eight seats: seven of 60 steps beside a seat that 20 of three steps take in turn.
    let mut all = jobs(7, 8, 60);
    all.extend(jobs(20, 8, 3));
    let limits = FcfsConfig { max_num_seqs: 8, ..limits(Schedule::Zigzag, on(999, 0, 0)) };
    assert_eq!(served(limits, &all).0, 60);
}

#[test]
fn what_is_let_in_never_makes_room_again() {
    for schedule in [Schedule::Row, Schedule::Zigzag, Schedule::Diagonal] {
        for blocks in [on(40, 0, 0), on(10, 30, 0), on(0, 20, 30)] {
            let needed = 90 * (40 + 100 - 1);
            assert_eq!(
                served(limits(schedule, blocks), &jobs(90, 40, 100)).1,
                needed,
                "{schedule:?} {blocks:?}"
            );
        }
    }
}

#[test]
fn a_second_step_in_flight_changes_nothing_that_is_computed() {
    for schedule in [Schedule::Zigzag, Schedule::Diagonal] {
        let config = FcfsConfig { depth: 2, ..limits(schedule, on(12, 30, 0)) };
        assert_eq!(served(config, &jobs(40, 40, 60)).1 % 99, 0, "{schedule:?}");
    }
}

fn machine() -> HardwareSpec {
    let link = LinkSpec { bytes_per_s: 1e9, latency: Nanos(1_000) };
    let memory = Bytes(1 << 40);
    HardwareSpec {
        name: "test".into(),
        devices: 1,
        device: DeviceSpec {
            memory,
            read_bytes_per_s: 1e12,
            matmul_flops: 1e15,
            attention_flops: 1e15,
            launch: Nanos(100),
        },
        host: HostSpec { memory, attention_bytes_per_s: 1e12, matmul_flops: 1e14, launch: Nanos(100) },
        disk: DiskSpec { capacity: memory, read_bytes_per_s: 1e9, write_bytes_per_s: 1e9, latency: Nanos(0) },
        up: link,
        down: link,
        peer: link,
        step_gap: Nanos(0),
    }
}

/// A hold of 600 blocks.
fn experiment(prompt: u32, output: u32) -> BlockExperiment {
    in_hold(600, prompt, output)
}

fn in_hold(blocks: u64, prompt: u32, output: u32) -> BlockExperiment {
    let (heads, head_dim) = (4, 64);
    let dims = Dims {
        layers: 2,
        hidden: 256,
        heads,
        kv_heads: heads,
        head_dim,
        ffn: 1024,
        mlp_matrices: 2,
        vocab: 512,
        tied_head: true,
    };
    let position = 2 * heads * head_dim * dims.layers * 2;
    BlockExperiment {
        prompt: Tokens(prompt),
        output: Tokens(output),
        kv_memory: Bytes(position * 32 * blocks),
        batch_seqs: 16,
        hardware: machine(),
        dims,
    }
}

#[test]
fn diagonal_has_a_larger_block_and_ends_sooner_as_the_closed_form_says() {
    let long = experiment(32, 256).compare().expect("it fits");
    assert!(long.block_ratio >= 1.6, "{long:?}");
    assert!((long.block_ratio / long.block_ratio_closed_form - 1.0).abs() < 0.1, "{long:?}");
    assert!((long.weight_bytes_ratio / long.block_ratio - 1.0).abs() < 0.03, "{long:?}");
    assert!((0.4..0.65).contains(&long.completion_ratio), "{long:?}");
    assert_eq!((long.zigzag.recomputed_tokens, long.diagonal.recomputed_tokens), (0, 0), "{long:?}");
}

#[test]
fn a_hold_of_few_sequences_is_full_too() {
    // One of 32 + 256 tokens has a block for its prompt's step, and then two to nine of them.
    let each = f64::from(1 + 32 * (2..9).sum::<u32>() + 31 * 9) / 256.0;
    for blocks in [227, 100] {
        let few = in_hold(blocks, 32, 256).compare().expect("it fits");
        let most = (blocks as f64 / each).floor();
        assert!(few.diagonal.block >= most - 1.0, "{blocks}: {} of {most}", few.diagonal.block);
    }
}

#[test]
fn a_batch_of_prompts_shorter_than_a_block_comes_at_once() {
    let [few, whole] = [2, 16].map(|prompt| in_hold(2000, prompt, 16).compare().expect("it fits"));
    // Either has a sequence for every block of KV.
    assert_eq!(few.zigzag.block, whole.zigzag.block);
    assert!(few.completion_ratio < 0.7, "{few:?}");
}

#[test]
fn with_short_outputs_there_is_little_to_gain() {
    let short = experiment(256, 32).compare().expect("it fits");
    assert!((1.0..1.15).contains(&short.block_ratio), "{short:?}");
}

#[test]
fn auto_is_diagonal_where_it_pays() {
    let auto = |s, n, requests| Schedule::auto(Tokens(s), Tokens(n), requests, Tokens(10_000));
    assert_eq!(auto(32, 256, 1000), Schedule::Diagonal);
    assert_eq!(auto(32, 256, 40), Schedule::Zigzag, "too few to fill the hold");
    assert_eq!(auto(512, 32, 1000), Schedule::Zigzag, "nothing to gain");
}

/// How many sequences a step has on average, once all depths are there, of requests for up to `max_new` tokens that end after `ends`
/// of them.
fn at_once(schedule: Schedule, hold: u32, (prompt, max_new, ends): (u32, u32, u32)) -> f64 {
    let block = BlockConfig { batches: 16, batch_seqs: 16, ..block(schedule) };
    let limits = FcfsConfig { block, max_num_seqs: 256, ..limits(schedule, on(hold, 0, 0)) };
    let limits = FcfsConfig { max_num_batched_tokens: Tokens(4096), ..limits };
    let mut scheduler = Fcfs::new(limits);
    let (mut next, mut counts) = (0, BTreeMap::<SeqId, u32>::new());
    let (steps, mut chunks) = (600, 0);
    for at in 0..300 + steps {
        while scheduler.waiting() < 300 {
            scheduler.arrive(Nanos(next), request(next, prompt, max_new));
            next += 1;
        }
        let Next::Run(step) = scheduler.next(Nanos::ZERO) else { panic!("there is always somebody") };
        chunks += if at < 300 { 0 } else { step.chunks().count() };
        let outcomes = step.chunks().map(|chunk| {
            let count = counts.entry(chunk.seq).or_default();
            *count += 1;
            let produced = if *count == ends { Produced::Last } else { Produced::Token };
            Outcome { seq: chunk.seq, produced, full: Vec::new() }
        });
        let outcomes = outcomes.collect();
        scheduler.complete(Nanos::ZERO, &Done::of(step.id, outcomes));
    }
    chunks as f64 / f64::from(steps)
}

/// Run it with `--nocapture` for the figures.
#[test]
fn the_diagonal_gives_to_others_what_ends_early() {
    for (hold, lengths) in
        [(600, (32, 256, 256)), (600, (32, 256, 26)), (100, (32, 1024, 100)), (400, (512, 1024, 200))]
    {
        let [diagonal, zigzag] =
            [Schedule::Diagonal, Schedule::Zigzag].map(|schedule| at_once(schedule, hold, lengths));
        let told = format!("{diagonal:.1} at once, in blocks {zigzag:.1}: {hold} blocks, {lengths:?}");
        eprintln!("{told}");
        assert!(diagonal > 0.95 * zigzag, "{told}");
    }
}
