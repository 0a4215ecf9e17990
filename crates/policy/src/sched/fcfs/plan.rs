//! The next step: what runs goes on, then what waits is let in.

use super::{Fcfs, FcfsConfig, Flight, Rank};
use crate::kv::{Hit, Sequence, State};
use crate::sched::block::Schedule;
use spec::{BlockId, Chunk, Kept, Move, SeqId, Step, StepId, Tier, Tokens};

/// Whether a pass takes decodes or what is left of prompts.
#[derive(Clone, Copy, PartialEq)]
enum Pass {
    Decode,
    Prefill,
}

/// Whether a sequence found the blocks that it asked for.
#[derive(Clone, Copy, PartialEq)]
enum Room {
    Found,
    Short,
}

/// What a batch still has room for.
#[derive(Clone, Copy)]
struct Left {
    tokens: Tokens,
    seqs: usize,
    slot_tokens: u64,
}

/// A step in the making: batches that are full, and the last, which is not.
pub(super) struct Draft {
    pub(super) id: StepId,
    /// What an empty batch has room for.
    batch: Left,
    batches_max: usize,
    left: Left,
    /// Positions that a prompt can have at the most, beside the decodes.
    for_prompts: Tokens,
    batches: Vec<Vec<Chunk>>,
    pub(super) moves: Vec<Move>,
    pub(super) kept: Vec<Kept>,
    /// For whom it reads kept blocks of the drive.
    pub(super) fetched_for: Option<SeqId>,
}

impl Draft {
    fn new(id: StepId, config: &FcfsConfig) -> Self {
        let batch = Left {
            tokens: config.max_num_batched_tokens,
            seqs: config.block.batch_seqs,
            slot_tokens: config.block.kv_slot_tokens,
        };
        let batches_max = config.block.batches;
        Self {
            id,
            batch,
            batches_max,
            left: batch,
            for_prompts: batch.tokens,
            batches: vec![Vec::new()],
            moves: Vec::new(),
            kept: Vec::new(),
            fetched_for: None,
        }
    }

    /// Decodes have what they need: the rest is for prompts.
    fn decodes_are_in(&mut self) {
        let another = self.batches.len() < self.batches_max;
        self.for_prompts = if another { self.batch.tokens } else { self.left.tokens };
    }

    /// How many of `wanted` positions a chunk may have that needs so much of a KV slot. A batch that cannot take it whole
    /// is closed, if there may be another. Away from the device a prompt is not cut lightly, since each piece brings up all
    /// context before it: it waits for a step where it has at least half of what it can get.
    pub(super) fn room(&mut self, home: Tier, wanted: Tokens, slot_tokens: u64) -> Tokens {
        let Left { tokens, seqs, slot_tokens: slot } = self.left;
        let whole = tokens >= wanted.min(self.batch.tokens) && seqs > 0 && slot >= slot_tokens;
        if !whole && self.batches.len() < self.batches_max {
            self.batches.push(Vec::new());
            self.left = self.batch;
        }
        let room = wanted.min(self.left.tokens);
        let lightly = home != Tier::Device && room.0 < wanted.min(self.for_prompts).0.div_ceil(2);
        match self.left.seqs > 0 && self.left.slot_tokens >= slot_tokens && !lightly {
            true => room,
            false => Tokens::ZERO,
        }
    }

    /// Whether there is nothing to compute and nothing to move.
    pub(super) fn is_empty(&self) -> bool {
        self.batches.iter().all(Vec::is_empty) && self.moves.is_empty() && self.kept.is_empty()
    }

    /// Positions that it computes.
    pub(super) fn tokens(&self) -> Tokens {
        Tokens(self.batches.iter().flatten().map(|chunk| chunk.span.len.0).sum())
    }

    fn push(&mut self, chunk: Chunk, slot_tokens: u64) {
        self.left.tokens -= chunk.span.len;
        self.left.seqs -= 1;
        self.left.slot_tokens -= slot_tokens;
        self.batches.last_mut().expect("one is always open").push(chunk);
    }
}

impl Fcfs {
    /// The next step, unless there is nothing to compute or to move.
    pub(super) fn plan(&mut self) -> Option<Step> {
        let mut draft = Draft::new(self.next_step, &self.config);
        self.pass();
        self.go_on(&mut draft, Pass::Decode);
        draft.decodes_are_in();
        self.go_on(&mut draft, Pass::Prefill);
        match self.config.block.schedule {
            Schedule::Continuous => self.admit(&mut draft),
            Schedule::Row | Schedule::Zigzag | Schedule::Diagonal => self.admit_block(&mut draft),
        }
        self.move_pieces(&mut draft);
        self.save(&mut draft);
        self.start(draft)
    }

    fn start(&mut self, mut draft: Draft) -> Option<Step> {
        if draft.is_empty() {
            return None;
        }
        draft.batches.retain(|batch| !batch.is_empty());
        self.next_step = draft.id.next();
        let chunks = draft.batches.iter().flatten().map(|chunk| (chunk.seq, chunk.span.end())).collect();
        self.flights.push_back(Flight { step: draft.id, chunks, fetched_for: draft.fetched_for });
        Some(Step {
            id: draft.id,
            replica: self.config.replica,
            layout: self.config.layout,
            pipeline: self.config.block.schedule.pipeline(),
            batches: draft.batches,
            moves: draft.moves,
            kept: draft.kept,
            release: std::mem::take(&mut self.releases),
        })
    }

    /// Plans the next positions of what runs, oldest first.
    fn go_on(&mut self, draft: &mut Draft, pass: Pass) {
        let ranks: Vec<Rank> = self.running.iter().copied().collect();
        for rank in ranks {
            let sequence = self.table.live(rank.1);
            let wanted = sequence.wanted();
            let takes = if wanted > Tokens(1) { Pass::Prefill } else { Pass::Decode };
            let idle = sequence.newest == Some(draft.id) || sequence.state != State::Running;
            if takes != pass || wanted == Tokens::ZERO || idle {
                continue;
            }
            let (home, upto) = (sequence.home, sequence.planned + wanted);
            let len = draft.room(home, wanted, self.slot_tokens(home, wanted, upto));
            if len == Tokens::ZERO {
                continue;
            }
            let sequence = self.table.live(rank.1);
            let lacks = sequence.lacks(sequence.planned + len);
            if self.make_room(draft, rank, lacks) == Room::Found {
                self.append(draft, rank.1, len, Hit::default());
            }
        }
    }

    /// What lies behind the windows of those that run is others' room from now on.
    fn pass(&mut self) {
        let newest = self.newest();
        for rank in &self.running {
            let sequence = self.table.live(rank.1);
            let passed = sequence.pass();
            self.hold.give_back(sequence.home, &passed, newest);
        }
    }

    /// Preempts younger sequences until `lacks` blocks of its tier can be taken, or will be once steps in flight are done.
    fn make_room(&mut self, draft: &Draft, rank: Rank, lacks: usize) -> Room {
        let home = self.table.live(rank.1).home;
        while self.hold.available(home) < lacks {
            let departing = if home == Tier::Device { self.departing() } else { 0 };
            let coming = self.hold.quarantined(home) + departing + self.ending(home);
            if self.hold.available(home) + coming >= lacks {
                return Room::Short;
            }
            let mut younger = self.running.range(rank..).rev().copied().filter(|&other| other != rank);
            let gives = |s: &Sequence| s.newest != Some(draft.id) && s.home == home && !s.is_ending();
            let Some(victim) = younger.find(|other| self.table.get(other.1).is_some_and(gives)) else {
                return Room::Short;
            };
            self.preempt(victim);
        }
        Room::Found
    }

    /// Blocks of a tier that come free with the last steps of those that hold them alone.
    fn ending(&self, home: Tier) -> usize {
        let sequences = self.running.iter().filter_map(|rank| self.table.get(rank.1));
        let ending = sequences.filter(|s| s.home == home && s.is_ending());
        let blocks: Vec<BlockId> = ending.flat_map(|s| s.held().map(|(_, block)| block)).collect();
        // Below the device nobody shares.
        if home == Tier::Device { self.hold.alone_among(&blocks) } else { blocks.len() }
    }

    /// Plans `len` positions of a running sequence, whose table begins with `hit` if it has just been let in.
    pub(super) fn append(&mut self, draft: &mut Draft, seq: SeqId, len: Tokens, hit: Hit) {
        let sequence = self.table.live(seq);
        let (home, lacks) = (sequence.home, sequence.lacks(sequence.planned + len));
        let taken = self.hold.take(home, lacks).expect("room was made for the chunk");
        sequence.extend(&taken);
        let (span, sample) = sequence.plan(len, draft.id);
        let new_blocks = if hit.numbers == 0 { taken } else { [hit.blocks, taken].concat() };
        let attend = self.config.block.attend(home, len);
        let slot_tokens = self.slot_tokens(home, len, span.end());
        draft.push(Chunk { seq, span, home, attend, new_blocks, sample }, slot_tokens);
    }

    /// Blocks that those on the device, and on their way back there, will still ask for.
    fn promised(&self) -> usize {
        let sequences = self.running.iter().chain(&self.moving).filter_map(|rank| self.table.get(rank.1));
        let stay = sequences.filter(|s| s.state != State::Moving { to: Tier::Host });
        stay.map(Sequence::will_lack).sum()
    }

    /// Lets in what waits, by arrival, until one does not fit beside what was promised to others.
    fn admit(&mut self, draft: &mut Draft) {
        let mut promised = self.promised();
        while let Some(&rank) = self.queue.first() {
            let seats = self.config.max_num_seqs - self.running.len() - self.moving.len();
            let resting = self.table.live(rank.1).rests();
            let needed = match (seats, resting) {
                (0, _) => None,
                (_, true) => self.bring_back(rank, promised),
                (_, false) => self.begin(draft, rank, promised),
            };
            let Some(needed) = needed else { return };
            promised += needed;
            self.queue.remove(&rank);
        }
    }

    /// Begins a waiting sequence with what others computed of its prompt. The blocks that it will still ask for.
    fn begin(&mut self, draft: &mut Draft, rank: Rank, promised: usize) -> Option<usize> {
        let sequence = self.table.live(rank.1);
        let room = draft.room(Tier::Device, sequence.known(), 0);
        if room == Tokens::ZERO || sequence.in_flight > 0 {
            return None;
        }
        let hit = self.hold.find(sequence.reusable());
        let needed = sequence.needs_after(&hit);
        if needed + promised + self.hold.available_among(&hit.blocks) > self.hold.available(Tier::Device) {
            return None;
        }
        if self.fetches(draft, rank, &hit) || self.comes_in_pieces(draft, rank, &hit) {
            return None;
        }
        self.hold.share(&hit.blocks);
        let hit = self.promote(draft, rank, hit);
        let sequence = self.table.live(rank.1);
        sequence.admit(Tier::Device, &hit);
        let len = sequence.wanted().min(room);
        self.running.insert(rank);
        self.append(draft, rank.1, len, hit);
        Some(self.table.live(rank.1).will_lack())
    }
}
