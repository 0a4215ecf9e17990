//! Counters of a running engine, read from any thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use policy::cost::{Correction, OpSort};
use policy::sched::{Fcfs, PREEMPTIONS, Preempted};
use spec::{BLOCK_TOKENS, ByTier, Done, Lane, Nanos, Op, Shape, Tier};

use crate::step::lanes::LaneId;
use crate::watch::overlap::Overlap;

/// Upper bounds of the tokens of a step, as they are counted: vLLM's.
pub const STEP_TOKENS: [u32; 13] = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];

/// Sums since the start.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    steps: AtomicU64,
    computed: AtomicU64,
    generated: AtomicU64,
    moved: AtomicU64,
    busy_ns: AtomicU64,
    prompt: AtomicU64,
    cached: AtomicU64,
    looked_up: AtomicU64,
    step_tokens: [AtomicU64; STEP_TOKENS.len() + 1],
    host_kv_blocks_used: AtomicU64,
    drive_kv_blocks_used: AtomicU64,
    running: AtomicU64,
    waiting: AtomicU64,
    kv_blocks_used: AtomicU64,
    lane_busy_ns: [AtomicU64; Lane::COUNT],
    op_busy_ns: [AtomicU64; Op::KINDS.len()],
    sort_busy_ns: [AtomicU64; OpSort::COUNT],
    moved_bytes: [[AtomicU64; Moved::COUNT]; Lane::COUNT],
    left_bytes: [AtomicU64; Lane::COUNT],
    /// Attention on the host beside the device's work.
    pub(crate) overlap: Overlap,
    swapped: AtomicU64,
    recomputed: ByTier<AtomicU64>,
    preemptions: [AtomicU64; PREEMPTIONS.len() + 1],
    preemptions_of_ended: AtomicU64,
    promoted: AtomicU64,
    fetched: AtomicU64,
    prefix_blocks: ByTier<AtomicU64>,
    prefix_blocks_lost: AtomicU64,
    prefix_blocks_computed: AtomicU64,
    prefix_blocks_unsaved: AtomicU64,
    corrupted: AtomicU64,
    foreseen_ns: AtomicU64,
    foreseen_took_ns: AtomicU64,
    correction_millionths: [AtomicU64; OpSort::COUNT],
}

/// What moves between tiers, beside weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Keys and values: swapped, fetched, or on their way to attention.
    Kv,
    /// The residual stream, and queries and results of attention on the host.
    Activations,
}

impl Moved {
    /// How many kinds there are.
    pub const COUNT: usize = 2;
    /// All of them.
    pub const ALL: [Moved; Moved::COUNT] = [Moved::Kv, Moved::Activations];
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Steps done.
    pub steps: u64,
    /// Positions computed (a prefix hit computes none).
    pub computed_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// KV blocks moved between tiers.
    pub moved_blocks: u64,
    /// Nanoseconds that steps took on the lanes.
    pub busy_ns: u64,
    /// Prompt tokens of the sequences that began.
    pub prompt_tokens: u64,
    /// Those of them whose KV was in memory already.
    pub cached_tokens: u64,
    /// Those of them that were looked up in the prefix cache.
    pub looked_up_tokens: u64,
    /// Steps that computed something, by the tokens that they computed: up to each of [`STEP_TOKENS`], and more.
    pub step_tokens: [u64; STEP_TOKENS.len() + 1],
    /// KV blocks of the host that sequences refer to now.
    pub host_kv_blocks_used: u64,
    /// KV blocks of the drive that sequences refer to now.
    pub drive_kv_blocks_used: u64,
    /// Sequences that hold KV and take part in steps now, on whichever tier it lives.
    pub running: u64,
    /// Sequences that wait now: new, preempted or moved to the host.
    pub waiting: u64,
    /// KV blocks of the device that sequences refer to now.
    pub kv_blocks_used: u64,
    /// Nanoseconds that each lane spent on nodes, by [`Lane::index`].
    pub lane_busy_ns: [u64; Lane::COUNT],
    /// Nanoseconds that nodes of each kind took, by [`Op::kind`].
    pub op_busy_ns: [u64; Op::KINDS.len()],
    /// Bytes of KV and of activations that passed each link, by [`Lane::index`] and [`Moved`].
    pub moved_bytes: [[u64; Moved::COUNT]; Lane::COUNT],
    /// Bytes of values that did not pass each link since sparse attention chose none of them, by [`Lane::index`].
    pub left_bytes: [u64; Lane::COUNT],
    /// Nanoseconds of attention on the host.
    pub host_attention_ns: u64,
    /// Those of them in which the device worked too.
    pub hidden_attention_ns: u64,
    /// Sequences that were preempted, their KV moved to the host.
    pub swapped: u64,
    /// Sequences that were preempted, their KV to be computed again, by the tier that had no room.
    pub recomputed: ByTier<u64>,
    /// Sequences that ended, by how often they were preempted: up to each of [`PREEMPTIONS`], and more.
    pub preemptions: [u64; PREEMPTIONS.len() + 1],
    /// How often those were preempted together.
    pub preemptions_of_ended: u64,
    /// Those of [`cached_tokens`](Counts::cached_tokens) whose KV came up from the host for it.
    pub host_cached_tokens: u64,
    /// Those of them whose KV was read from the drive for it.
    pub drive_cached_tokens: u64,
    /// KV blocks that each tier keeps for those who begin alike now, those in use among them.
    pub prefix_blocks: ByTier<u64>,
    /// KV blocks of prefixes that could not be read from the drive or written to it.
    pub prefix_blocks_lost: u64,
    /// KV blocks that the drive had of sequences that began, and that were computed, as that takes less than reading them.
    pub prefix_blocks_computed: u64,
    /// KV blocks of prefixes that gave way before a tier below had a copy: they came faster than they could be copied.
    pub prefix_blocks_unsaved: u64,
    /// Sequences that ended because their logits were no numbers.
    pub corrupted: u64,
    /// Nanoseconds that the planner's costs said steps would take; none where nothing was planned.
    pub foreseen_ns: u64,
    /// Nanoseconds that these steps took.
    pub foreseen_took_ns: u64,
    /// How many millionths of what the tables say ops of each sort take, by `OpSort as usize`, as far as is learned; none
    /// where nothing was planned.
    pub correction_millionths: [u64; OpSort::COUNT],
}

impl Counts {
    /// Bytes of all kinds that passed a link.
    pub fn moved_by(&self, link: Lane) -> u64 {
        self.moved_bytes[link.index()].iter().sum()
    }
}

impl Stats {
    /// What they say now.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            steps: self.steps.load(Ordering::Relaxed),
            computed_tokens: self.computed.load(Ordering::Relaxed),
            generated_tokens: self.generated.load(Ordering::Relaxed),
            moved_blocks: self.moved.load(Ordering::Relaxed),
            busy_ns: self.busy_ns.load(Ordering::Relaxed),
            prompt_tokens: self.prompt.load(Ordering::Relaxed),
            cached_tokens: self.cached.load(Ordering::Relaxed),
            looked_up_tokens: self.looked_up.load(Ordering::Relaxed),
            step_tokens: std::array::from_fn(|bucket| self.step_tokens[bucket].load(Ordering::Relaxed)),
            host_kv_blocks_used: self.host_kv_blocks_used.load(Ordering::Relaxed),
            drive_kv_blocks_used: self.drive_kv_blocks_used.load(Ordering::Relaxed),
            running: self.running.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed),
            kv_blocks_used: self.kv_blocks_used.load(Ordering::Relaxed),
            lane_busy_ns: std::array::from_fn(|lane| self.lane_busy_ns[lane].load(Ordering::Relaxed)),
            op_busy_ns: std::array::from_fn(|kind| self.op_busy_ns[kind].load(Ordering::Relaxed)),
            moved_bytes: std::array::from_fn(|lane| {
                std::array::from_fn(|what| self.moved_bytes[lane][what].load(Ordering::Relaxed))
            }),
            left_bytes: std::array::from_fn(|lane| self.left_bytes[lane].load(Ordering::Relaxed)),
            host_attention_ns: self.overlap.sums().0,
            hidden_attention_ns: self.overlap.sums().1,
            swapped: self.swapped.load(Ordering::Relaxed),
            recomputed: ByTier {
                device: self.recomputed.device.load(Ordering::Relaxed),
                host: self.recomputed.host.load(Ordering::Relaxed),
                disk: self.recomputed.disk.load(Ordering::Relaxed),
            },
            preemptions: std::array::from_fn(|bucket| self.preemptions[bucket].load(Ordering::Relaxed)),
            preemptions_of_ended: self.preemptions_of_ended.load(Ordering::Relaxed),
            host_cached_tokens: self.promoted.load(Ordering::Relaxed) * u64::from(BLOCK_TOKENS.0),
            drive_cached_tokens: self.fetched.load(Ordering::Relaxed) * u64::from(BLOCK_TOKENS.0),
            prefix_blocks: ByTier {
                device: self.prefix_blocks.device.load(Ordering::Relaxed),
                host: self.prefix_blocks.host.load(Ordering::Relaxed),
                disk: self.prefix_blocks.disk.load(Ordering::Relaxed),
            },
            prefix_blocks_lost: self.prefix_blocks_lost.load(Ordering::Relaxed),
            prefix_blocks_computed: self.prefix_blocks_computed.load(Ordering::Relaxed),
            prefix_blocks_unsaved: self.prefix_blocks_unsaved.load(Ordering::Relaxed),
            corrupted: self.corrupted.load(Ordering::Relaxed),
            foreseen_ns: self.foreseen_ns.load(Ordering::Relaxed),
            foreseen_took_ns: self.foreseen_took_ns.load(Ordering::Relaxed),
            correction_millionths: std::array::from_fn(|sort| {
                self.correction_millionths[sort].load(Ordering::Relaxed)
            }),
        }
    }

    /// The first chunk of a sequence: so many tokens of its prompt, so many of them looked for, so many found in memory.
    pub(crate) fn sequence_began(&self, prompt: u64, looked_up: u64, cached: u64) {
        self.prompt.fetch_add(prompt, Ordering::Relaxed);
        self.looked_up.fetch_add(looked_up, Ordering::Relaxed);
        self.cached.fetch_add(cached, Ordering::Relaxed);
    }

    /// What the scheduler holds now, and blocks in use on device, host and drive.
    pub(crate) fn scheduled(&self, running: usize, waiting: usize, [device, host, drive]: [usize; 3]) {
        self.running.store(running as u64, Ordering::Relaxed);
        self.waiting.store(waiting as u64, Ordering::Relaxed);
        self.kv_blocks_used.store(device as u64, Ordering::Relaxed);
        self.host_kv_blocks_used.store(host as u64, Ordering::Relaxed);
        self.drive_kv_blocks_used.store(drive as u64, Ordering::Relaxed);
    }

    /// A lane took so long for a node; lanes of further ranks are counted with the first's.
    pub(crate) fn lane_spent(&self, lane: LaneId, op: &Op, took: Duration) {
        let took = took.as_nanos() as u64;
        self.lane_busy_ns[lane % Lane::COUNT].fetch_add(took, Ordering::Relaxed);
        self.op_busy_ns[op.kind()].fetch_add(took, Ordering::Relaxed);
        if let Some(sort) = OpSort::of(op) {
            self.sort_busy_ns[sort as usize].fetch_add(took, Ordering::Relaxed);
        }
    }

    /// Nanoseconds that lanes spent on nodes of each sort.
    pub(crate) fn sorts(&self) -> [u64; OpSort::COUNT] {
        std::array::from_fn(|sort| self.sort_busy_ns[sort].load(Ordering::Relaxed))
    }

    /// So many bytes passed a link.
    pub(crate) fn moved(&self, link: Lane, what: Moved, bytes: usize) {
        self.moved_bytes[link.index()][what as usize].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// So many bytes of values stay where they are, and need not pass a link.
    pub(crate) fn left(&self, link: Lane, bytes: usize) {
        self.left_bytes[link.index()].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Preemptions since the start.
    pub(crate) fn preempted(&self, preempted: Preempted) {
        self.swapped.store(preempted.swapped, Ordering::Relaxed);
        for tier in Tier::ALL {
            self.recomputed[tier].store(preempted.recomputed[tier], Ordering::Relaxed);
        }
        for (bucket, sequences) in self.preemptions.iter().zip(preempted.by_sequence) {
            bucket.store(sequences, Ordering::Relaxed);
        }
        self.preemptions_of_ended.store(preempted.of_sequences, Ordering::Relaxed);
    }

    /// What is kept for those who begin alike, and what came from which tier for them since the start.
    pub(crate) fn prefixes(&self, scheduler: &Fcfs) {
        self.promoted.store(scheduler.promoted(), Ordering::Relaxed);
        self.fetched.store(scheduler.fetched(), Ordering::Relaxed);
        self.prefix_blocks_computed.store(scheduler.computed_instead(), Ordering::Relaxed);
        self.prefix_blocks_unsaved.store(scheduler.evicted_unsaved(), Ordering::Relaxed);
        for tier in Tier::ALL {
            self.prefix_blocks[tier].store(scheduler.kept(tier) as u64, Ordering::Relaxed);
        }
    }

    /// So many blocks of prefixes could not be read from the drive or written to it.
    pub(crate) fn lost(&self, blocks: usize) {
        self.prefix_blocks_lost.fetch_add(blocks as u64, Ordering::Relaxed);
    }

    /// The logits of a sequence were no numbers.
    pub(crate) fn corrupted(&self) {
        self.corrupted.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn step_started(&self, shape: &Shape) {
        let tokens = shape.loads.iter().map(|load| u64::from(load.tokens)).sum();
        let moved = shape.moves.iter().map(|m| u64::from(m.blocks)).sum();
        self.computed.fetch_add(tokens, Ordering::Relaxed);
        self.moved.fetch_add(moved, Ordering::Relaxed);
        if tokens > 0 {
            let bucket = STEP_TOKENS.partition_point(|bound| u64::from(*bound) < tokens);
            self.step_tokens[bucket].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A step was said to take so long, and took so long.
    pub(crate) fn foreseen(&self, said: Nanos, took: Nanos) {
        self.foreseen_ns.fetch_add(said.0, Ordering::Relaxed);
        self.foreseen_took_ns.fetch_add(took.0, Ordering::Relaxed);
    }

    /// So much is learned of what ops take.
    pub(crate) fn corrected(&self, correction: &Correction) {
        for sort in OpSort::ALL {
            let millionths = (correction.factor(sort) * 1e6).round() as u64;
            self.correction_millionths[sort as usize].store(millionths, Ordering::Relaxed);
        }
    }

    pub(crate) fn step_done(&self, done: &Done, took: Duration) {
        let tokens = done.outcomes.iter().filter(|o| o.produced.is_token()).count();
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.generated.fetch_add(tokens as u64, Ordering::Relaxed);
        self.busy_ns.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }
}
