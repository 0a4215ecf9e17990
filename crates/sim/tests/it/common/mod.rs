//! What several tests build worlds from.
pub(crate) mod dataflow;
pub(crate) mod words;

use policy::cost::Cost;
use policy::drive::{Lowering, drive};
use policy::pipeline::Plan;
use policy::sched::{BlockConfig, Delegate, Fcfs, FcfsConfig, Next, Preempt, Schedule, Scheduler};
use sim::{Accesses, Rng, Text, Truth, VirtualWorld};
use spec::{ByTier, Done, KvGroups, Nanos, Op, PrefixUse, Request, SeqId, Shape, Tokens};

/// A scheduler that is checked after every call.
pub(crate) struct Checked(pub(crate) Fcfs);

impl Scheduler for Checked {
    fn arrive(&mut self, now: Nanos, request: Request) {
        self.0.arrive(now, request);
        self.0.check();
    }
    fn cancel(&mut self, now: Nanos, seq: SeqId) {
        self.0.cancel(now, seq);
        self.0.check();
    }
    fn next(&mut self, now: Nanos) -> Next {
        let next = self.0.next(now);
        self.0.check();
        next
    }
    fn complete(&mut self, now: Nanos, done: &Done) {
        self.0.complete(now, done);
        self.0.check();
    }
}

/// Ten microseconds an op, and one more for every token.
pub(crate) fn by_tokens(op: &Op, shape: &Shape) -> Nanos {
    let tokens = |batch: u16| u64::from(shape.loads[usize::from(batch)].tokens);
    match *op {
        Op::Mlp { batch, .. } | Op::Qkv { batch, .. } => Nanos(10_000 + 1_000 * tokens(batch)),
        Op::MoveKv { .. } => Nanos(40_000),
        _ => Nanos(10_000),
    }
}

/// A world where ops take [`by_tokens`] and every access is checked.
pub(crate) fn world() -> VirtualWorld {
    VirtualWorld::new(Truth { cost: Box::new(by_tokens), pauses: Nanos(20_000).into() }, Accesses::Checked)
}

/// Limits with `blocks` on the device, and else generous.
pub(crate) fn config(blocks: u32) -> FcfsConfig {
    FcfsConfig { blocks: ByTier { device: blocks, host: 0, disk: 0 }, ..FcfsConfig::default() }
}

/// A request with hashes of its text.
pub(crate) fn request(id: u64, arrival: Nanos, prompt: u32, max_new: u32, text: &mut Text) -> Request {
    let (prompt, max_new) = (Tokens(prompt), Tokens(max_new));
    Request {
        id: SeqId(id),
        arrival,
        prompt,
        max_new,
        hashes: text.blocks(prompt),
        prefix: PrefixUse::Allowed,
    }
}

/// Runs to the end.
pub(crate) fn run(world: &mut VirtualWorld, scheduler: &mut impl Scheduler) {
    let plan = Plan { max_batches: u16::MAX, kv_slot_tokens: u64::MAX, ..Plan::resident(2, u32::MAX) };
    let cost: &dyn Cost = &by_tokens;
    drive(world, scheduler, &Lowering { plan: &plan, cost }).expect("nothing fails in a virtual world");
}

/// Limits drawn at random, most of them tight.
pub(crate) fn random_config(rng: &mut Rng) -> FcfsConfig {
    let config = random_limits(rng);
    if rng.one_in(3) { grouped(config, rng) } else { config }
}

/// The same of layers in groups, most of which look back through a window.
fn grouped(config: FcfsConfig, rng: &mut Rng) -> FcfsConfig {
    let computed = config.depth as u32 * config.max_num_batched_tokens.0;
    let (full, sliding) = (rng.below(3) as usize, rng.within(1, 3) as usize);
    let behind = Tokens(rng.below(150) as u32);
    let groups = KvGroups { full, sliding, behind, ahead: Tokens(computed + rng.below(20) as u32) };
    let blocks = ByTier { device: rng.within(1, 60) as u32, host: 0, disk: 0 };
    FcfsConfig { blocks, groups, preempt: Preempt::Recompute, block: BlockConfig::default(), ..config }
}

fn random_limits(rng: &mut Rng) -> FcfsConfig {
    FcfsConfig {
        max_num_batched_tokens: Tokens(rng.within(1, 200) as u32),
        max_num_seqs: rng.within(1, 12) as usize,
        max_queue: rng.within(1, 60) as usize,
        depth: rng.within(1, 3) as usize,
        blocks: ByTier {
            device: rng.within(1, 24) as u32,
            host: rng.below(30) as u32,
            disk: rng.below(30) as u32,
        },
        preempt: if rng.one_in(2) { Preempt::Recompute } else { Preempt::Swap },
        max_move_blocks: rng.within(1, 6) as usize,
        max_drive_blocks: rng.within(1, 4) as usize,
        gather: Nanos(rng.below(3) * 500_000),
        block: if rng.one_in(2) { BlockConfig::default() } else { random_block(rng) },
        ..FcfsConfig::default()
    }
}

fn random_block(rng: &mut Rng) -> BlockConfig {
    BlockConfig {
        schedule: [Schedule::Row, Schedule::Zigzag, Schedule::Diagonal][rng.below(3) as usize],
        batches: rng.within(1, 4) as usize,
        batch_seqs: rng.within(1, 6) as usize,
        kv_slot_tokens: rng.below(600),
        delegate: if rng.one_in(2) { Delegate::Host } else { Delegate::Streamed },
    }
}

/// Requests of all sizes with common beginnings, early ends, late cancels and some that can never fit.
pub(crate) fn random_world(groups: KvGroups, rng: &mut Rng) -> VirtualWorld {
    let mut world = world();
    world.group(groups);
    let spread = rng.within(1, 40_000_000);
    for id in 0..rng.within(1, 40) {
        let prompt = rng.within(1, 150) as u32;
        let (topic, common) = (rng.below(3), rng.below(150) as u32);
        let mut text = Text::new(SeqId(id), topic, Tokens(common.min(prompt)));
        let max_new = rng.within(1, 100);
        let output = rng.within(1, 2 * max_new).min(max_new);
        let arrival = Nanos(rng.below(spread));
        let mut request = request(id, arrival, prompt, max_new as u32, &mut text);
        if rng.one_in(6) {
            request.prefix = PrefixUse::Forbidden;
        }
        world.expect_one(request, Tokens(output as u32), text);
        if rng.one_in(5) {
            world.expect_cancel(arrival + Nanos(rng.below(spread)), SeqId(id));
        }
    }
    world
}

/// Prompts about four topics in turn, again and again: more than a few blocks of a device hold.
pub(crate) fn returning_world() -> VirtualWorld {
    let mut world = world();
    for id in 0..24 {
        let begin = Tokens::of_blocks(5);
        let mut text = Text::new(SeqId(id), id % 4, begin);
        let request = request(id, Nanos(id * 10_000_000), begin.0 + 3, 9, &mut text);
        world.expect_one(request, Tokens(9), text);
    }
    world
}
