//! The next step: what runs goes on, then what waits is let in.

use super::{Fcfs, Flight, Rank};
use crate::kv::State;
use spec::{BlockId, Chunk, Move, Pipeline, SeqId, Step, StepId, Tier, Tokens};

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

/// A step in the making.
pub(super) struct Draft {
    pub(super) id: StepId,
    budget: Tokens,
    chunks: Vec<Chunk>,
    pub(super) moves: Vec<Move>,
}

impl Fcfs {
    /// The next step, unless there is nothing to compute or to move.
    pub(super) fn plan(&mut self) -> Option<Step> {
        let budget = self.config.max_num_batched_tokens;
        let mut draft = Draft { id: self.next_step, budget, chunks: Vec::new(), moves: Vec::new() };
        self.go_on(&mut draft, Pass::Decode);
        self.go_on(&mut draft, Pass::Prefill);
        self.admit(&mut draft);
        self.move_pieces(&mut draft);
        self.start(draft)
    }

    fn start(&mut self, draft: Draft) -> Option<Step> {
        if draft.chunks.is_empty() && draft.moves.is_empty() {
            return None;
        }
        self.next_step = draft.id.next();
        let chunks = draft.chunks.iter().map(|chunk| (chunk.seq, chunk.span.end())).collect();
        self.flights.push_back(Flight { step: draft.id, chunks });
        Some(Step {
            id: draft.id,
            replica: self.config.replica,
            layout: self.config.layout,
            pipeline: Pipeline::Plain,
            batches: if draft.chunks.is_empty() { Vec::new() } else { vec![draft.chunks] },
            moves: draft.moves,
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
            let len = wanted.min(draft.budget);
            let idle = sequence.newest == Some(draft.id) || sequence.state != State::Running;
            if takes != pass || len == Tokens::ZERO || idle {
                continue;
            }
            let lacks = sequence.lacks(sequence.planned + len);
            if self.make_room(draft, rank, lacks) == Room::Found {
                self.append(draft, rank.1, len, Vec::new());
            }
        }
    }

    /// Preempts younger sequences until `lacks` device blocks can be taken, or will be once steps in flight are done.
    fn make_room(&mut self, draft: &Draft, rank: Rank, lacks: usize) -> Room {
        while self.hold.available(Tier::Device) < lacks {
            let coming = self.hold.quarantined(Tier::Device) + self.departing();
            if self.hold.available(Tier::Device) + coming >= lacks {
                return Room::Short;
            }
            let mut younger = self.running.range(rank..).rev().copied().filter(|&other| other != rank);
            let Some(victim) =
                younger.find(|other| self.table.get(other.1).is_some_and(|s| s.newest != Some(draft.id)))
            else {
                return Room::Short;
            };
            self.preempt(victim);
        }
        Room::Found
    }

    /// Plans `len` positions of a running sequence, whose table begins with `shared` if it has just been let in.
    fn append(&mut self, draft: &mut Draft, seq: SeqId, len: Tokens, shared: Vec<BlockId>) {
        let sequence = self.table.live(seq);
        let lacks = sequence.lacks(sequence.planned + len);
        let taken = self.hold.take(Tier::Device, lacks).expect("room was made for the chunk");
        sequence.blocks.extend_from_slice(&taken);
        let (span, sample) = sequence.plan(len, draft.id);
        let new_blocks = if shared.is_empty() { taken } else { [shared, taken].concat() };
        draft.budget -= len;
        draft.chunks.push(Chunk { seq, span, home: Tier::Device, attend: Tier::Device, new_blocks, sample });
    }

    /// Lets in what waits, by arrival, until one does not fit beside what those that run will ask for: all of their known
    /// positions, and a block each to grow into.
    fn admit(&mut self, draft: &mut Draft) {
        let mut promised: usize =
            self.running.iter().filter_map(|rank| self.table.get(rank.1)).map(|s| s.lacks(s.known())).sum();
        promised += self.running.len();
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
        if draft.budget == Tokens::ZERO || sequence.in_flight > 0 {
            return None;
        }
        let shared = self.hold.find(sequence.reusable());
        let needed = sequence.known().blocks() - shared.len();
        if needed + promised + self.hold.available_among(&shared) > self.hold.available(Tier::Device) {
            return None;
        }
        self.hold.share(&shared);
        sequence.admit(shared.clone());
        let len = sequence.wanted().min(draft.budget);
        self.running.insert(rank);
        self.append(draft, rank.1, len, shared);
        let sequence = self.table.live(rank.1);
        Some(sequence.lacks(sequence.known()) + 1)
    }
}
