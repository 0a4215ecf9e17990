//! First come, first served: continuous batching over a paged hold, with chunked prefill beside decodes.
//!
//! A step takes what runs already (decodes first, then the rest of prompts), then admits by arrival what fits. When blocks
//! run out the youngest makes room. With several steps in flight a decode is planned before the token that it begins with
//! is known; the executor reads it from the step before.
//!
//! ```text
//! depth 1   |plan 0|step 0      |plan 1|step 1      |
//! depth 2   |plan 0|step 0      |step 1      |step 2
//!                  |plan 1|      |plan 2|              an end of sequence found in step 0 wastes one token of step 1
//! ```

mod block;
mod complete;
mod config;
mod kept;
mod plan;
mod preempt;
mod worth;

pub use config::{FcfsConfig, LimitError, Preempt};
pub use worth::ReadOrCompute;

use crate::kv::{Hold, State, Table};
use crate::sched::block::Pace;
use crate::sched::{Next, Scheduler, Why};
use spec::{ByTier, Done, Nanos, Request, SeqId, StepId, Tier, Tokens};
use std::collections::{BTreeSet, VecDeque};

/// Place of a sequence in a queue: earlier arrivals first.
type Rank = (Nanos, SeqId);

/// A step that is not done.
#[derive(Debug)]
struct Flight {
    step: StepId,
    /// What it computes: whose, and up to which position.
    chunks: Vec<(SeqId, Tokens)>,
    /// For whom it reads kept blocks of the drive.
    fetched_for: Option<SeqId>,
}

/// The scheduler of one replica.
#[derive(Debug)]
pub struct Fcfs {
    config: FcfsConfig,
    hold: Hold,
    table: Table,
    /// Those that wait for blocks: new, preempted, or at rest on the host.
    queue: BTreeSet<Rank>,
    /// Those that hold KV and take part in steps: on the device, under block schedules on any tier.
    running: BTreeSet<Rank>,
    /// Those whose KV is being moved.
    moving: BTreeSet<Rank>,
    pace: Pace,
    flights: VecDeque<Flight>,
    next_step: StepId,
    refusals: VecDeque<(SeqId, Why)>,
    releases: Vec<SeqId>,
    preempted: Preempted,
    promoted: u64,
    fetched: u64,
    computed_instead: u64,
}

/// Times that those who came first wait at most for others, in units of what the newest do.
const GATHERS: u64 = 4;

/// Upper bounds of the preemptions of a sequence, as they are counted: vLLM's.
pub const PREEMPTIONS: [u32; 7] = [1, 2, 3, 4, 5, 10, 20];

/// Sequences that gave up their place on the device, by what becomes of their KV.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preempted {
    /// It is moved to the host.
    pub swapped: u64,
    /// It is computed again, by the tier that had no room: for a block more (also where a move would have freed too little), or for
    /// what was to be moved there.
    pub recomputed: ByTier<u64>,
    /// Sequences that ended, by how often they gave it up: up to each of [`PREEMPTIONS`], and more.
    pub by_sequence: [u64; PREEMPTIONS.len() + 1],
    /// How often they gave it up together.
    pub of_sequences: u64,
}

impl Preempted {
    /// A sequence ended that gave up its place so often.
    fn ended(&mut self, preemptions: u32) {
        self.by_sequence[PREEMPTIONS.partition_point(|bound| *bound < preemptions)] += 1;
        self.of_sequences += u64::from(preemptions);
    }
}

impl Fcfs {
    /// A scheduler with nothing to do.
    ///
    /// # Panics
    /// Where [`FcfsConfig::check`] finds something: nothing could ever run.
    pub fn new(config: FcfsConfig) -> Self {
        config.check().unwrap_or_else(|why| panic!("{why}"));
        Self {
            hold: Hold::new(config.blocks, config.groups),
            table: Table::new(config.groups),
            config,
            queue: BTreeSet::new(),
            running: BTreeSet::new(),
            moving: BTreeSet::new(),
            pace: Pace::default(),
            flights: VecDeque::new(),
            next_step: StepId(0),
            refusals: VecDeque::new(),
            releases: Vec::new(),
            preempted: Preempted::default(),
            promoted: 0,
            fetched: 0,
            computed_instead: 0,
        }
    }

    /// The limits that it keeps.
    pub fn config(&self) -> &FcfsConfig {
        &self.config
    }

    /// Whether a sequence of this name waits or runs.
    pub fn knows(&self, seq: SeqId) -> bool {
        self.table.get(seq).is_some()
    }

    /// Sequences that hold KV and take part in steps.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Sequences that wait: new, preempted or moved to the host.
    pub fn waiting(&self) -> usize {
        self.queue.len() + self.moving.len()
    }

    /// Preemptions since the start.
    pub fn preempted(&self) -> Preempted {
        self.preempted
    }

    /// Blocks that sequences began with and that were brought up from the host for it, since the start.
    pub fn promoted(&self) -> u64 {
        self.promoted
    }

    /// The same of blocks that were read from the drive for it, on their way over the host where there is one.
    pub fn fetched(&self) -> u64 {
        self.fetched
    }

    /// Blocks that the drive had of sequences that began, and that were computed, as that takes less than reading them.
    pub fn computed_instead(&self) -> u64 {
        self.computed_instead
    }

    /// Blocks kept for reuse that gave way before the tier below had a copy, where there is one.
    pub fn evicted_unsaved(&self) -> u64 {
        self.levels().iter().rev().skip(1).map(|&tier| self.hold.evicted_unsaved(tier)).sum()
    }

    /// Blocks of a tier that are kept for reuse by prefix, those in use among them.
    pub fn kept(&self, tier: Tier) -> usize {
        self.hold.kept(tier)
    }

    /// Blocks of a tier that are referred to.
    pub fn blocks_used(&self, tier: Tier) -> usize {
        self.hold.capacity(tier) - self.hold.available(tier) - self.hold.quarantined(tier)
    }

    /// Until when those who came to an idle engine wait for others: each further one holds the door for the next.
    fn gathers_until(&self) -> Option<Nanos> {
        let gather = Some(self.config.gather.0).filter(|gather| *gather > 0)?;
        let idle = self.flights.is_empty() && self.running.is_empty() && self.moving.is_empty();
        let (first, newest) = (self.queue.first()?.0, self.queue.last()?.0);
        let wanted = idle && self.queue.len() < self.config.max_num_seqs;
        wanted.then(|| Nanos((newest.0 + gather).min(first.0 + GATHERS * gather)))
    }

    /// The newest step that is not done: what is freed now may be touched until then.
    fn newest(&self) -> Option<StepId> {
        self.flights.iter().map(|flight| flight.step).max()
    }

    fn oldest(&self) -> Option<StepId> {
        self.flights.iter().map(|flight| flight.step).min()
    }

    fn refuses(&self, request: &Request) -> Option<Why> {
        if let Some((needed, capacity)) = self.never_fits(request) {
            return Some(Why::NeverFits { needed, capacity });
        }
        // Whoever comes to a free seat is on the way to it, not waiting: all that come between two steps are asked for here.
        let limit = self.config.max_queue;
        let seats = self.config.max_num_seqs.saturating_sub(self.running.len() + self.moving.len());
        (self.waiting() >= limit.saturating_add(seats)).then_some(Why::QueueFull { limit })
    }

    /// Asserts what must hold between any two calls. For tests: it looks at every block.
    pub fn check(&self) {
        for tier in Tier::ALL {
            let held = self.table.iter().flat_map(|seq| seq.held());
            self.hold.check(tier, held.filter(|(at, _)| *at == tier).map(|(_, block)| block));
        }
        for seq in self.table.iter() {
            let queues = [&self.queue, &self.running, &self.moving]
                .map(|queue| usize::from(queue.contains(&seq.rank())));
            assert_eq!(queues.iter().sum::<usize>(), 1, "in one queue: {seq:?}");
            assert_eq!(queues[1] == 1, seq.state == State::Running, "runs: {seq:?}");
            assert!(seq.done <= seq.planned && seq.planned <= seq.known(), "positions: {seq:?}");
            assert!(seq.generated <= seq.sampled && seq.sampled <= seq.request.max_new, "tokens: {seq:?}");
            assert!(seq.planned.blocks() <= seq.numbers(), "a block for each position: {seq:?}");
            let flights =
                self.flights.iter().flat_map(|f| &f.chunks).filter(|c| c.0 == seq.request.id).count();
            assert_eq!(flights, seq.in_flight as usize, "in flight: {seq:?}");
            assert!(!seq.leaving || flights > 0, "it has left: {seq:?}");
        }
        assert!(self.flights.len() <= self.config.depth, "steps in flight");
        assert!(self.running.len() + self.moving.len() <= self.config.max_num_seqs, "sequences that hold KV");
    }
}

impl Scheduler for Fcfs {
    fn arrive(&mut self, _: Nanos, request: Request) {
        match Why::of_empty(&request).or_else(|| self.refuses(&request)) {
            Some(why) => self.refusals.push_back((request.id, why)),
            None => {
                self.queue.insert((request.arrival, request.id));
                self.table.insert(request);
            }
        }
    }

    fn cancel(&mut self, _: Nanos, seq: SeqId) {
        self.refusals.retain(|(refused, _)| *refused != seq);
        self.leave(seq);
    }

    fn next(&mut self, now: Nanos) -> Next {
        if let Some((seq, why)) = self.refusals.pop_front() {
            return Next::Refuse(seq, why);
        }
        if let Some(until) = self.gathers_until().filter(|until| now < *until) {
            return Next::Wait(Some(until));
        }
        if self.flights.len() == self.config.depth {
            return Next::Wait(None);
        }
        self.hold.settle(self.oldest());
        match self.plan() {
            Some(step) => Next::Run(step),
            None => {
                let idle = self.table.iter().next().is_none();
                assert!(
                    idle || !self.flights.is_empty(),
                    "sequences wait, and nothing is in flight that could help"
                );
                Next::Wait(None)
            }
        }
    }

    fn complete(&mut self, _: Nanos, done: &Done) {
        self.finish(done);
    }
}
