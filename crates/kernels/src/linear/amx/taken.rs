//! Who multiplies what of a block: workers take groups of its panels as they come, and whoever is done with its own rows goes on
//! with those of others. Processors are not equally fast: a tile unit is shared with whoever else computes on the same core.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::plan::Plan;

/// A block: which row of the grid's, and which of its blocks.
pub(super) type At = (usize, usize);

/// The groups of panels of every block of the grid.
pub(super) struct Taken {
    /// Of a block.
    groups: usize,
    /// Blocks of a row of the grid.
    blocks: usize,
    is_waited_for: bool,
    /// By block: groups that are taken, and those that nobody reads x for any more.
    taken: Vec<AtomicUsize>,
    done: Vec<AtomicUsize>,
    /// By row of the grid: its blocks that were brought into tiles.
    packed: Vec<AtomicUsize>,
}

impl Taken {
    pub(super) fn nothing(plan: &Plan) -> Taken {
        let zeros = |n: usize| (0..n).map(|_| AtomicUsize::new(0)).collect();
        let all = plan.row_workers * plan.blocks;
        Taken {
            groups: plan.panels.div_ceil(plan.block_panels),
            blocks: plan.blocks,
            is_waited_for: plan.panel_workers == 1,
            taken: zeros(all),
            done: zeros(all),
            packed: zeros(plan.row_workers),
        }
    }

    fn number(&self, (row, block): At) -> usize {
        row * self.blocks + block
    }

    /// A group of a block that nobody else has, if there is one left.
    pub(super) fn take(&self, at: At) -> Option<usize> {
        // Who comes again and again does not write.
        let next = || self.taken[self.number(at)].fetch_add(1, Ordering::Relaxed);
        self.has_left(at).then(next).filter(|group| *group < self.groups)
    }

    /// The same of the newest block of a row of the grid.
    pub(super) fn take_newest(&self, row: usize) -> Option<(At, usize)> {
        let at = (row, self.newest(row)?);
        Some((at, self.take(at)?))
    }

    /// Whoever took a group of the block is through with it. Nobody waits for that where all bring the block into tiles together.
    pub(super) fn finish(&self, at: At) {
        if self.is_waited_for {
            self.done[self.number(at)].fetch_add(1, Ordering::Release);
        }
    }

    /// Whether nobody reads x of the block any more.
    pub(super) fn is_done(&self, at: At) -> bool {
        self.done[self.number(at)].load(Ordering::Acquire) == self.groups
    }

    /// The next block of this row of the grid is there for others.
    pub(super) fn packed(&self, row: usize) {
        self.packed[row].fetch_add(1, Ordering::Release);
    }

    fn newest(&self, row: usize) -> Option<usize> {
        self.packed[row].load(Ordering::Acquire).checked_sub(1)
    }

    fn has_left(&self, at: At) -> bool {
        self.taken[self.number(at)].load(Ordering::Relaxed) < self.groups
    }

    /// Whether the newest block of a row of the grid has a group left.
    pub(super) fn has_more(&self, row: usize) -> bool {
        self.newest(row).is_some_and(|block| self.has_left((row, block)))
    }

    /// Whether nothing of that row of the grid is left to take, nor will be.
    pub(super) fn is_out(&self, row: usize) -> bool {
        let last = self.blocks - 1;
        self.newest(row) == Some(last) && !self.has_left((row, last))
    }
}
