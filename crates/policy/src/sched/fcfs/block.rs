//! Letting sequences in by a block schedule.

use super::plan::Draft;
use super::{Fcfs, Rank};
use crate::kv::{Hit, Sequence, State};
use crate::sched::block::{Growth, Growths, Pace, Schedule};
use spec::{ByTier, Request, Tier, Tokens};

/// What a sequence that runs, or begins now, will be.
fn growth(sequence: &Sequence) -> Growth {
    let left = sequence.request.max_new.saturating_sub(sequence.sampled);
    let decodes = sequence.sampled > Tokens::ZERO && sequence.planned + Tokens(1) == sequence.known();
    match decodes {
        true => Growth { now: sequence.planned, steps: left },
        // The step that computes its last known token draws the next.
        false => Growth { now: sequence.known(), steps: left.saturating_sub(Tokens(1)) },
    }
}

/// What runs on one tier.
#[derive(Default)]
struct Running {
    /// As it will be.
    growths: Growths,
    /// Blocks that it may still ask for.
    lacks: usize,
}

impl Running {
    fn add(&mut self, sequence: &Sequence) {
        self.growths.add(growth(sequence));
        self.lacks += sequence.lacks(sequence.request.kv_max());
    }
}

impl Fcfs {
    /// Tiers where sequences live, fastest first.
    fn homes(&self) -> impl Iterator<Item = Tier> + use<> {
        let (schedule, blocks) = (self.config.block.schedule, self.config.blocks);
        Tier::ALL.into_iter().filter(move |&tier| match schedule {
            Schedule::Continuous => tier == Tier::Device,
            _ => blocks[tier] > 0,
        })
    }

    /// Blocks that one sequence can have on a tier: away from the device it passes through a slot as a whole.
    fn most_blocks(&self, tier: Tier) -> usize {
        let slot = self.config.block.kv_slot_tokens / u64::from(spec::BLOCK_TOKENS.0);
        let passes =
            if tier == Tier::Device { usize::MAX } else { usize::try_from(slot).unwrap_or(usize::MAX) };
        self.hold.capacity(tier).min(passes)
    }

    /// Blocks that the largest sequence can have anywhere.
    fn largest(&self) -> usize {
        self.homes().map(|tier| self.most_blocks(tier)).max().unwrap_or(0)
    }

    /// Lets in what waits, by arrival, each on the first tier where the schedule has room for it.
    pub(super) fn admit_block(&mut self, draft: &mut Draft) {
        for tier in self.homes() {
            let blocks = self.hold.capacity(tier);
            self.pace.step(tier, blocks);
        }
        if self.queue.is_empty() || self.running.len() == self.config.max_num_seqs {
            return;
        }
        let mut beside = self.by_home();
        for tier in self.homes().filter(|tier| beside[*tier].growths.is_empty()) {
            let blocks = self.hold.capacity(tier);
            self.pace.rest(tier, blocks);
        }
        while let Some(&rank) = self.queue.first() {
            let busy = self.table.live(rank.1).in_flight > 0;
            let known = self.table.live(rank.1).known();
            if busy || self.running.len() == self.config.max_num_seqs {
                return;
            }
            let Some(home) = self.homes().find(|&tier| self.has_room(rank, tier, &mut beside[tier])) else {
                return;
            };
            let len = draft.room(home, known, self.slot_tokens(home, known, known));
            if len == Tokens::ZERO {
                return;
            }
            self.queue.remove(&rank);
            self.begin_at(draft, rank, home, len);
            beside[home].add(self.table.live(rank.1));
        }
    }

    /// What runs on each tier.
    fn by_home(&self) -> ByTier<Running> {
        let mut running = ByTier::<Running>::default();
        let sequences = self.running.iter().filter_map(|rank| self.table.get(rank.1));
        sequences.for_each(|sequence| running[sequence.home].add(sequence));
        running
    }

    /// Whether a waiting sequence may begin on this tier now, beside what runs there.
    fn has_room(&mut self, rank: Rank, tier: Tier, beside: &mut Running) -> bool {
        let sequence = self.table.live(rank.1);
        let (full, known, new) =
            (sequence.request.kv_max().blocks(), sequence.known().blocks(), growth(sequence));
        if full > self.most_blocks(tier) {
            return false;
        }
        let free = self.hold.available(tier);
        let has_all = full + beside.lacks <= free;
        if self.config.block.schedule != Schedule::Diagonal {
            return has_all;
        }
        let paced = beside.growths.is_empty()
            || self.pace.allows(tier)
            || (has_all && self.pace.lives_are_short(tier));
        let capacity = self.hold.capacity(tier) - self.hold.quarantined(tier);
        if !paced || known > free {
            return false;
        }
        beside.growths.add(new);
        let fits = beside.growths.peak_blocks() <= capacity;
        beside.growths.remove(new);
        fits
    }

    fn begin_at(&mut self, draft: &mut Draft, rank: Rank, home: Tier, len: Tokens) {
        let sequence = self.table.live(rank.1);
        self.pace.spend(home, growth(sequence), self.hold.capacity(home));
        // Sharing takes no more than was reserved: a block that nobody holds is one fewer to take, and one that others hold is
        // none of those that were found free.
        let here = home == Tier::Device;
        let hit = if here { self.hold.find(sequence.reusable()) } else { Hit::default() };
        self.hold.share(&hit.blocks);
        let hit = if here { self.promote(draft, rank, hit) } else { hit };
        let sequence = self.table.live(rank.1);
        sequence.admit(home, &hit);
        let len = len.min(sequence.wanted());
        self.running.insert(rank);
        self.append(draft, rank.1, len, hit);
    }

    /// KV positions that a chunk of `len` positions up to `upto` needs room for in a slot: whole blocks of them.
    pub(super) fn slot_tokens(&self, home: Tier, len: Tokens, upto: Tokens) -> u64 {
        let away = self.config.block.attend(home, len) != home;
        if away { Tokens::of_blocks(upto.blocks()).0.into() } else { 0 }
    }

    /// A sequence ends or makes room: what it would have taken from the next step on goes to others.
    pub(super) fn refund(pace: &mut Pace, sequence: &Sequence) {
        if sequence.state != State::Running {
            return;
        }
        let Growth { now, steps } = growth(sequence);
        let rest = |steps| Growth { now: now + Tokens(1), steps }.block_steps();
        let left = if steps > Tokens::ZERO { rest(steps - Tokens(1)) } else { 0 };
        let Request { prompt, max_new, .. } = sequence.request;
        let life = Growth { now: prompt, steps: max_new.saturating_sub(Tokens(1)) };
        pace.ended(sequence.home, life.block_steps(), left);
    }

    /// Whether blocks will ever do for a request, and how many there are.
    pub(super) fn never_fits(&self, request: &Request) -> Option<(usize, usize)> {
        let needed = self.config.groups.most(request.kv_max().blocks());
        let capacity = self.largest();
        (needed > capacity).then_some((needed, capacity))
    }
}
