//! A case as the runtime that serves would run it: the steps of the real scheduler over a paged hold, and the plan by which
//! they are lowered.
//!
//! All requests are alike and there from the start, and one step is in flight: what a step is made of does not hang on how
//! long those before it took. So the scheduler is asked for all steps first, and only some of them need be timed.

use super::case::Case;
use super::mechanism::{Block, Mechanism, Order};
use crate::replay::BLOCKS_MAX;
use policy::pipeline::{DiskPath, Plan, Share, Weights};
use policy::sched::{BlockConfig, Delegate, Fcfs, FcfsConfig, Next, Schedule, Scheduler};
use spec::{
    BLOCK_TOKENS, ByTier, Done, Nanos, Outcome, PrefixUse, Produced, Request, Sampling, SeqId, Shape, Split,
    Step, Tier, Tokens,
};

/// Steps of the steady state at the least.
const SHORTEST: usize = 8;

/// Whether a case can be run step by step: its batches and its KV blocks can be counted.
pub fn countable(case: &Case, mechanism: Mechanism) -> bool {
    let of_ours = || {
        let blocks = kv_blocks(case, mechanism);
        let few = Tier::ALL.into_iter().all(|tier| blocks[tier] <= BLOCKS_MAX);
        few && batches(case, mechanism) <= u32::from(u16::MAX)
    };
    mechanism.order == Order::Barriers || of_ours()
}

/// KV blocks of each tier that a block of sequences is given: pages of its longest length for each under zig-zag, of the
/// lengths that it goes through on average under the diagonal schedule (appendix A.2.1, in whole pages).
pub(super) fn kv_blocks(case: &Case, mechanism: Mechanism) -> ByTier<u32> {
    let Lives { shortest, longest } = lives(case);
    let each = match mechanism.block {
        Block::ZigZag => longest.blocks() as f64,
        Block::Diagonal => {
            let count = f64::from(longest.0 - shortest.0 + 1);
            (blocks_up_to(longest) - blocks_up_to(Tokens(shortest.0.saturating_sub(1)))) / count
        }
    };
    let mut blocks = ByTier::default();
    for tier in Tier::ALL {
        let seqs = case.policy.placement.kv.of(tier, u64::from(case.policy.block()));
        // A single sequence grows to its full length however few there are beside it.
        let least = if seqs > 0 { longest.blocks() as u32 } else { 0 };
        blocks[tier] = ((seqs as f64 * each).ceil() as u32).max(least);
    }
    blocks
}

/// The blocks of a sequence of one token, of one of two, and so on up to a length, all together.
fn blocks_up_to(length: Tokens) -> f64 {
    let (full, each) = (length.full_blocks() as f64, f64::from(BLOCK_TOKENS.0));
    let rest = f64::from(length.0 % BLOCK_TOKENS.0);
    each * full * (full + 1.0) / 2.0 + rest * (full + 1.0)
}

/// KV positions of one layer that a batch may attend away from their home: those of its prompts, and of its decodes if they
/// are not attended where they live.
pub(super) fn kv_slot_tokens(case: &Case, mechanism: Mechanism) -> u64 {
    let Lives { shortest, longest } = lives(case);
    let placement = case.policy.placement;
    let stay = placement.kv.part(Tier::Disk) == 0 && mechanism.attends_on_host(&case.policy);
    let decodes = if stay { 1 } else { case.policy.batch_size as usize };
    let blocks = (prompts(case) as usize * shortest.blocks()).max(decodes * longest.blocks());
    blocks as u64 * u64::from(BLOCK_TOKENS.0)
}

/// Lengths between which a sequence's KV grows.
struct Lives {
    shortest: Tokens,
    longest: Tokens,
}

fn lives(case: &Case) -> Lives {
    let request = request(case, 0);
    Lives { shortest: request.prompt, longest: request.kv_max() }
}

fn request(case: &Case, name: u64) -> Request {
    Request {
        id: SeqId(name),
        arrival: Nanos::ZERO,
        prompt: Tokens(case.lengths.prompt),
        max_new: Tokens(case.lengths.generated),
        hashes: Vec::new(),
        prefix: PrefixUse::Forbidden,
    }
}

/// All steps of one block from its first prompt to its last token.
pub(super) fn of_a_block(case: &Case, mechanism: Mechanism) -> Vec<Shape> {
    steps(case, mechanism, u64::from(case.policy.block()), usize::MAX)
}

/// Steps of half a life of a sequence, once the hold has filled and lets in what replaces those that end.
pub(super) fn steady(case: &Case, mechanism: Mechanism) -> Vec<Shape> {
    let life = case.lengths.generated as usize;
    // A quarter of a life after the hold is full; half a life more, and some steps where lives are short.
    let from = life + life / 4;
    let upto = from + (life / 2).max(SHORTEST);
    let requests = u64::from(case.policy.block()) * (upto.div_ceil(life) as u64 + 2);
    let mut steps = steps(case, mechanism, requests, upto);
    steps.drain(..from.min(steps.len().saturating_sub(1)));
    steps
}

/// The first `most` steps that the scheduler makes of so many requests.
fn steps(case: &Case, mechanism: Mechanism, requests: u64, most: usize) -> Vec<Shape> {
    let mut scheduler = Fcfs::new(config(case, mechanism));
    (0..requests).for_each(|name| scheduler.arrive(Nanos::ZERO, request(case, name)));
    let mut shapes = Vec::new();
    while shapes.len() < most {
        match scheduler.next(Nanos::ZERO) {
            Next::Run(step) => {
                shapes.push(Shape::of(&step));
                scheduler.complete(Nanos::ZERO, &done(&step));
            }
            Next::Refuse(seq, why) => unreachable!("{seq} has the room that the block gives it: {why}"),
            Next::Wait(_) => break,
        }
    }
    shapes
}

fn done(step: &Step) -> Done {
    let outcomes = step.chunks().map(|chunk| {
        let produced = if chunk.sample == Sampling::Sample { Produced::Token } else { Produced::Nothing };
        Outcome { seq: chunk.seq, produced, full: Vec::new() }
    });
    Done::of(step.id, outcomes.collect())
}

fn config(case: &Case, mechanism: Mechanism) -> FcfsConfig {
    let policy = &case.policy;
    FcfsConfig {
        max_num_batched_tokens: batch_tokens(case),
        max_num_seqs: policy.block() as usize,
        max_queue: usize::MAX,
        blocks: kv_blocks(case, mechanism),
        block: BlockConfig {
            schedule: match mechanism.block {
                Block::ZigZag => Schedule::Zigzag,
                Block::Diagonal => Schedule::Diagonal,
            },
            batches: batches(case, mechanism) as usize,
            batch_seqs: policy.batch_size as usize,
            kv_slot_tokens: kv_slot_tokens(case, mechanism),
            delegate: match mechanism.attends_on_host(policy) {
                true => Delegate::Host,
                false => Delegate::Streamed,
            },
        },
        ..FcfsConfig::default()
    }
}

/// Prompts that a batch has at the most: as many as the scheduler's own limit for a batch takes.
fn prompts(case: &Case) -> u32 {
    (FcfsConfig::default().max_num_batched_tokens.0 / case.lengths.prompt).clamp(1, case.policy.block())
}

/// Positions that a batch computes at the most: its prompts, or a token of each sequence.
pub(super) fn batch_tokens(case: &Case) -> Tokens {
    Tokens((prompts(case) * case.lengths.prompt).max(case.policy.batch_size))
}

/// Batches of a step: those of the block, and as many as prompts need that begin in one step. Under zig-zag that is all of
/// them, while nothing else runs.
pub(super) fn batches(case: &Case, mechanism: Mechanism) -> u32 {
    let policy = &case.policy;
    match mechanism.block {
        Block::ZigZag => policy.num_batches.max(policy.block().div_ceil(prompts(case))),
        Block::Diagonal => {
            // One more for a pace that is no whole number.
            let begin = policy.block().div_ceil(case.lengths.generated) + 1;
            policy.num_batches + begin.div_ceil(prompts(case))
        }
    }
}

/// What the runtime lowers by, for a model of so many layers.
pub(super) fn plan(case: &Case, mechanism: Mechanism, layers: u16) -> Plan {
    let placement = case.policy.placement;
    let some = |tier| placement.weights.part(tier) > 0;
    Plan {
        weights: match placement.weights == Split::RESIDENT {
            true => Weights::Resident,
            false => Weights::Streamed {
                host: if some(Tier::Host) { Share::Some } else { Share::None },
                disk: some(Tier::Disk).then_some(DiskPath::ThroughHost),
            },
        },
        max_batches: batches(case, mechanism) as u16,
        hidden: placement.hidden,
        disk_path: DiskPath::ThroughHost,
        kv_slot_tokens: kv_slot_tokens(case, mechanism),
        ..Plan::resident(layers, batch_tokens(case).0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::case::{Format, HostAttention, Lengths, Overlap, Pinning, Policy};
    use super::*;
    use policy::cost::Dims;
    use spec::Placement;

    const DIAGONAL: Mechanism = Mechanism::BALLAST;
    const ZIGZAG: Mechanism = Mechanism { block: Block::ZigZag, ..DIAGONAL };

    fn case(batch_size: u32, num_batches: u32, (prompt, generated): (u32, u32)) -> Case {
        let kv = Split::new(ByTier { device: 250_000, host: 250_000, disk: 500_000 }).expect("adds up");
        let policy = Policy {
            batch_size,
            num_batches,
            placement: Placement { kv, ..Placement::RESIDENT },
            weights: Format::Half,
            cache: Format::Half,
            overlap: Overlap::On,
            host_attention: HostAttention::On,
            pinning: Pinning::Auto,
        };
        let dims = Dims::named("opt-30b").expect("named");
        Case { dims, lengths: Lengths { prompt, generated }, policy, devices: 1 }
    }

    fn sum(shape: &Shape, of: fn(&spec::Load) -> u64) -> u64 {
        shape.loads.iter().map(of).sum()
    }

    #[test]
    fn blocks_of_all_lengths_are_counted_at_once() {
        for length in [0, 1, 31, 32, 33, 64, 1000] {
            let one_by_one: usize = (1..=length).map(|length| Tokens(length).blocks()).sum();
            assert_eq!(blocks_up_to(Tokens(length)), one_by_one as f64, "{length}");
        }
    }

    #[test]
    fn a_block_begins_together_and_ends_together() {
        let steps = of_a_block(&case(8, 5, (100, 7)), ZIGZAG);
        assert_eq!(steps.len(), 7);
        assert_eq!(sum(&steps[0], |load| load.tokens.into()), 4000);
        assert!(steps[1..].iter().all(|step| step.loads.len() == 5));
        assert!(steps.iter().all(|step| sum(step, |load| load.samples.into()) == 40));
    }

    /// Sequences at all depths, as many as were planned for; each step replaces those that ended.
    #[test]
    fn the_diagonal_block_is_full_at_all_times() {
        for (batch_size, num_batches, lengths) in [(8, 5, (100, 20)), (64, 2, (512, 32)), (6, 3, (33, 9))] {
            let case = case(batch_size, num_batches, lengths);
            let steps = steady(&case, DIAGONAL);
            let block = f64::from(case.policy.block());
            let mean = |of: fn(&spec::Load) -> u64| {
                steps.iter().map(|step| sum(step, of)).sum::<u64>() as f64 / steps.len() as f64
            };
            let running = mean(|load| load.samples.into());
            assert!((0.9 * block..=block).contains(&running), "{running} of {block}");
            let prompts = mean(|load| u64::from(load.tokens - load.samples)) / f64::from(lengths.0 - 1);
            let pace = running / f64::from(lengths.1);
            assert!((prompts / pace - 1.0).abs() < 0.15, "{prompts} begin in a step, of {pace}");
        }
    }

    #[test]
    fn every_step_has_the_room_that_its_plan_gives_it() {
        for mechanism in [ZIGZAG, DIAGONAL] {
            for case in [case(1, 1, (1, 2)), case(3, 7, (3000, 5)), case(256, 3, (40, 3))] {
                let plan = plan(&case, mechanism, 2);
                let steps = of_a_block(&case, mechanism);
                assert!(
                    !steps.is_empty() && steps.iter().all(|step| plan.fits(step).is_ok()),
                    "{:?}",
                    case.policy
                );
            }
        }
    }
}
