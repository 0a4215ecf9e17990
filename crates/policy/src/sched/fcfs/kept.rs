//! Prefixes on two tiers: blocks kept for reuse are copied to the host when the device runs short of free ones, give way
//! there to what runs, and come back when somebody begins with them.

use super::plan::Draft;
use super::{Fcfs, Rank};
use spec::{BlockHash, BlockId, Kept, Tier};

impl Fcfs {
    /// Adds to what a sequence begins with (`shared`, taken) what the host has of its prompt after that.
    pub(super) fn promote(&mut self, draft: &mut Draft, rank: Rank, shared: Vec<BlockId>) -> Vec<BlockId> {
        let sequence = self.table.live(rank.1);
        let found = self.hold.find_below(&sequence.reusable()[shared.len()..]);
        let fresh = self.bring_up(draft, rank, &found);
        let sequence = self.table.live(rank.1);
        // As beginnings are counted: when it comes in, not when it comes back.
        if sequence.preemptions == 0 {
            self.promoted += sequence.promoted.min(shared.len() + fresh.len()) as u64;
        }
        [shared, fresh].concat()
    }

    /// Whether what the host has of a sequence's prompt, after the `shared` blocks of the device, would stretch a step that
    /// others wait for. Then the sequence waits, and a piece of it comes up beside the step.
    pub(super) fn comes_in_pieces(&mut self, draft: &mut Draft, rank: Rank, shared: &[BlockId]) -> bool {
        let sequence = self.table.live(rank.1);
        let found = self.hold.find_below(&sequence.reusable()[shared.len()..]);
        let up = draft.kept.iter().filter(|kept| kept.to == Tier::Device).map(|kept| kept.blocks.len());
        let left = self.config.max_move_blocks.saturating_sub(up.sum());
        if draft.is_empty() || found.len() <= left {
            return false;
        }
        self.hold.share(shared);
        let fresh = self.bring_up(draft, rank, &found[..left]);
        self.hold.give_back(Tier::Device, &[shared, &fresh].concat(), Some(draft.id));
        true
    }

    /// Copies of these host blocks on the device, taken.
    fn bring_up(&mut self, draft: &mut Draft, rank: Rank, found: &[(BlockHash, BlockId)]) -> Vec<BlockId> {
        if found.is_empty() {
            return Vec::new();
        }
        let fresh =
            self.hold.take(Tier::Device, found.len()).expect("room was found for all known positions");
        self.hold.promote(found, &fresh, draft.id);
        self.table.live(rank.1).promoted += found.len();
        let blocks = found.iter().zip(&fresh).map(|(&(_, below), &block)| (below, block)).collect();
        draft.kept.push(Kept { from: Tier::Host, to: Tier::Device, blocks });
        fresh
    }

    /// Copies blocks that are kept for reuse to the host before their room is needed, beside a step that has something to do.
    /// After admission: what goes down in a step does not come up in it.
    pub(super) fn save(&mut self, draft: &mut Draft) {
        let (free, all) = (self.hold.free(Tier::Device), self.hold.capacity(Tier::Device));
        if self.hold.capacity(Tier::Host) == 0 || free >= all / 2 || draft.is_empty() {
            return;
        }
        let blocks = self.hold.save(self.config.max_move_blocks, draft.id);
        if !blocks.is_empty() {
            draft.kept.push(Kept { from: Tier::Device, to: Tier::Host, blocks });
        }
    }
}
