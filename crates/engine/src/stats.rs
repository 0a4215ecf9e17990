//! Counters of a running engine, read from any thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use policy::sched::Preempted;
use spec::{Done, Lane, Produced, Shape};

use crate::lanes::LaneId;

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
    running: AtomicU64,
    waiting: AtomicU64,
    kv_blocks_used: AtomicU64,
    lane_busy_ns: [AtomicU64; Lane::COUNT],
    swapped: AtomicU64,
    recomputed: AtomicU64,
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
    /// Sequences that hold KV on the device now.
    pub running: u64,
    /// Sequences that wait now: new, preempted or moved to the host.
    pub waiting: u64,
    /// KV blocks of the device that sequences refer to now.
    pub kv_blocks_used: u64,
    /// Nanoseconds that each lane spent on nodes, by [`Lane::index`].
    pub lane_busy_ns: [u64; Lane::COUNT],
    /// Sequences that were preempted, their KV moved to the host.
    pub swapped: u64,
    /// Sequences that were preempted, their KV to be computed again.
    pub recomputed: u64,
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
            running: self.running.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed),
            kv_blocks_used: self.kv_blocks_used.load(Ordering::Relaxed),
            lane_busy_ns: std::array::from_fn(|lane| self.lane_busy_ns[lane].load(Ordering::Relaxed)),
            swapped: self.swapped.load(Ordering::Relaxed),
            recomputed: self.recomputed.load(Ordering::Relaxed),
        }
    }

    /// The first chunk of a sequence: so many tokens of its prompt, so many of them found in memory.
    pub(crate) fn sequence_began(&self, prompt: u64, cached: u64) {
        self.prompt.fetch_add(prompt, Ordering::Relaxed);
        self.cached.fetch_add(cached, Ordering::Relaxed);
    }

    /// What the scheduler holds now.
    pub(crate) fn scheduled(&self, running: usize, waiting: usize, kv_blocks_used: usize) {
        self.running.store(running as u64, Ordering::Relaxed);
        self.waiting.store(waiting as u64, Ordering::Relaxed);
        self.kv_blocks_used.store(kv_blocks_used as u64, Ordering::Relaxed);
    }

    /// A lane took so long for a node; lanes of further ranks are counted with the first's.
    pub(crate) fn lane_spent(&self, lane: LaneId, took: Duration) {
        self.lane_busy_ns[lane % Lane::COUNT].fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Preemptions since the start.
    pub(crate) fn preempted(&self, preempted: Preempted) {
        self.swapped.store(preempted.swapped, Ordering::Relaxed);
        self.recomputed.store(preempted.recomputed, Ordering::Relaxed);
    }

    pub(crate) fn step_started(&self, shape: &Shape) {
        let tokens = shape.loads.iter().map(|load| u64::from(load.tokens)).sum();
        let moved = shape.moves.iter().map(|m| u64::from(m.blocks)).sum();
        self.computed.fetch_add(tokens, Ordering::Relaxed);
        self.moved.fetch_add(moved, Ordering::Relaxed);
    }

    pub(crate) fn step_done(&self, done: &Done, took: Duration) {
        let tokens = done.outcomes.iter().filter(|o| o.produced != Produced::Nothing).count();
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.generated.fetch_add(tokens as u64, Ordering::Relaxed);
        self.busy_ns.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }
}
