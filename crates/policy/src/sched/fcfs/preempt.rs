//! Making room and coming back: by computing again, or by moves to the host tier and back.

use super::plan::Draft;
use super::{Fcfs, Preempt, Rank};
use crate::kv::State;
use crate::sched::block::Schedule;
use spec::{BlockId, Tier};

impl Fcfs {
    /// A running sequence gives up its blocks.
    pub(super) fn preempt(&mut self, victim: Rank) {
        self.running.remove(&victim);
        self.table.live(victim.1).preemptions += 1;
        let swaps = self.swaps(victim);
        match (swaps, self.hold.available(Tier::Host) >= self.table.live(victim.1).whole_blocks().len()) {
            (true, true) => {
                self.preempted.swapped += 1;
                self.depart(victim, Tier::Host);
            }
            (swaps, _) => {
                let full = if swaps { Tier::Host } else { self.table.live(victim.1).home };
                self.preempted.recomputed[full] += 1;
                self.forget(victim);
            }
        }
    }

    /// Whether a sequence is to be moved rather than computed again. Not where that frees less than half of what it copies: what
    /// others refer to stays where it is, and whoever forgot it finds it again, while copies need as much room to come back to.
    fn swaps(&mut self, victim: Rank) -> bool {
        let blocks = self.table.live(victim.1).whole_blocks();
        self.config.preempt == Preempt::Swap
            && self.config.block.schedule == Schedule::Continuous
            && 2 * self.hold.alone_among(blocks) >= blocks.len()
    }

    /// Its KV is dropped. What was published of it may still be there when it comes back.
    fn forget(&mut self, victim: Rank) {
        let newest = self.newest();
        let sequence = self.table.live(victim.1);
        Self::refund(&mut self.pace, sequence);
        let held: Vec<BlockId> = sequence.held().map(|(_, block)| block).collect();
        self.hold.give_back(sequence.home, &held, newest);
        sequence.forget();
        if std::mem::take(&mut sequence.introduced) {
            self.releases.push(victim.1);
        }
        self.queue.insert(victim);
    }

    fn depart(&mut self, rank: Rank, to: Tier) {
        let sequence = self.table.live(rank.1);
        let target =
            self.hold.take(to, sequence.whole_blocks().len()).expect("room was checked before the move");
        sequence.depart(to, target);
        self.moving.insert(rank);
    }

    /// Device blocks that moves to the host have still to give back.
    pub(super) fn departing(&self) -> usize {
        let sequences = self.moving.iter().filter_map(|rank| self.table.get(rank.1));
        sequences.filter(|s| s.state == State::Moving { to: Tier::Host }).map(|s| s.unmoved()).sum()
    }

    /// Brings a sequence back from the host. The blocks that it will still ask for.
    pub(super) fn bring_back(&mut self, rank: Rank, promised: usize) -> Option<usize> {
        let sequence = self.table.live(rank.1);
        let needed = sequence.numbers().max(sequence.known().blocks());
        if needed + promised > self.hold.available(Tier::Device) {
            return None;
        }
        self.depart(rank, Tier::Device);
        Some(self.table.live(rank.1).will_lack())
    }

    /// Plans the next pieces of the moves under way. Their sources rest until this very step is done.
    pub(super) fn move_pieces(&mut self, draft: &mut Draft) {
        let mut left = self.config.max_move_blocks;
        let ranks: Vec<Rank> = self.moving.iter().copied().collect();
        for rank in ranks {
            if left == 0 {
                return;
            }
            let sequence = self.table.live(rank.1);
            let piece = sequence.move_piece(left);
            let sources: Vec<BlockId> = piece.blocks.iter().map(|pair| pair.0).collect();
            left -= sources.len();
            self.hold.give_back(piece.from, &sources, Some(draft.id));
            draft.moves.push(piece);
            self.settle_in(rank);
        }
    }

    /// After its last piece a sequence runs on the device, or waits on the host.
    fn settle_in(&mut self, rank: Rank) {
        let sequence = self.table.live(rank.1);
        let queue = match (sequence.state, sequence.rests()) {
            (State::Running, _) => &mut self.running,
            (_, true) => &mut self.queue,
            (_, false) => return,
        };
        self.moving.remove(&rank);
        queue.insert(rank);
    }
}
