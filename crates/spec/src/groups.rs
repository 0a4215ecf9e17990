//! Layers in groups that share KV blocks.
//!
//! A block holds [`BLOCK_TOKENS`](crate::BLOCK_TOKENS) positions of one group's layers, and any block will do for any group. A
//! sequence has a table for each group; in groups whose layers look back through a sliding window, blocks behind it are given back
//! while the sequence goes on.
//!
//! ```text
//! full      |0|1|2|3|4|5|6|7|8|        all layers of the group see all positions
//! sliding   |·|·|·|·|4|5|6|7|8|        `behind` positions before the next: the rest was given back
//! sliding   |·|·|·|·|4|5|6|7|8|
//! ```

use crate::Tokens;
use serde::{Deserialize, Serialize};

/// How many groups there are, and what those with a window keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvGroups {
    /// Groups that keep all positions.
    pub full: usize,
    /// Groups that keep those behind which kernels look.
    pub sliding: usize,
    /// Positions before a chunk's first that the sliding groups' layers may look at.
    pub behind: Tokens,
    /// Positions of a sequence beyond those done that steps in flight and the next may compute, at the most.
    pub ahead: Tokens,
}

impl Default for KvGroups {
    /// All layers share a block, and all of it stays.
    fn default() -> Self {
        Self { full: 1, sliding: 0, behind: Tokens::ZERO, ahead: Tokens::ZERO }
    }
}

impl KvGroups {
    /// Groups in all: blocks that so many positions take which all of them keep.
    pub fn count(self) -> usize {
        self.full + self.sliding
    }

    /// The group in which the block at `place` of a table's next blocks is, whose first is number `first` of its sequence; and
    /// which number it has there. `passed`: numbers that sliding groups have no blocks for.
    ///
    /// ```text
    /// full 1, sliding 2, passed 1:   0 | 1 1 1 | 2 2 2 | …        numbers, in the order of a table's blocks
    /// ```
    pub fn place(self, place: usize, first: usize, passed: usize) -> (usize, usize) {
        let alone = passed.saturating_sub(first) * self.full;
        if place < alone {
            return (place % self.full, first + place / self.full);
        }
        let (place, first) = (place - alone, first.max(passed));
        (place % self.count(), first + place / self.count())
    }

    /// Numbers of blocks, from the first, that sliding groups need no more where a chunk begins at `start` or later.
    pub fn passed(self, start: Tokens) -> usize {
        if self.sliding == 0 { 0 } else { start.saturating_sub(self.behind).full_blocks() }
    }

    /// Numbers of blocks that a sliding group has at a time, at the most, while a sequence computes its own.
    fn sliding_most(self) -> usize {
        (self.behind + self.ahead).blocks() + 2
    }

    /// Blocks that a sequence of so many numbers has at a time, at the most.
    pub fn most(self, blocks: usize) -> usize {
        self.full * blocks + self.sliding * blocks.min(self.sliding_most())
    }

    /// The same of `seqs` such sequences, of which one computes many positions and the others decode.
    pub fn most_of(self, seqs: usize, blocks: usize) -> usize {
        let rests = self.behind.blocks() + 2;
        let sliding = (seqs * blocks).min(seqs * rests.min(blocks) + self.ahead.blocks());
        self.full * seqs * blocks + self.sliding * sliding
    }

    /// Numbers of the longest sequence for which so many blocks will do.
    pub fn longest(self, blocks: usize) -> usize {
        let short = blocks / self.count();
        match (short < self.sliding_most(), self.full) {
            (true, _) => short,
            (false, 0) => usize::MAX,
            (false, full) => (blocks - self.sliding * self.sliding_most()) / full,
        }
    }

    /// Blocks that a sequence will still take to have `blocks` numbers, of `now` that it has but for `passed`.
    pub fn lacks(self, blocks: usize, now: usize, passed: usize) -> usize {
        let more = blocks.saturating_sub(now);
        let sliding = more.min(self.sliding_most().saturating_sub(now - passed));
        self.full * more + self.sliding * sliding
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUPS: KvGroups = KvGroups { full: 1, sliding: 2, behind: Tokens(100), ahead: Tokens(64) };

    #[test]
    fn without_windows_a_block_is_a_block() {
        let whole = KvGroups::default();
        assert_eq!((whole.passed(Tokens(9999)), whole.most(7)), (0, 7));
        assert_eq!((whole.most_of(3, 7), whole.longest(7), whole.lacks(7, 3, 0)), (21, 7, 4));
        assert_eq!((0..3).map(|i| whole.place(i, 4, 0)).collect::<Vec<_>>(), [(0, 4), (0, 5), (0, 6)]);
    }

    #[test]
    fn blocks_behind_a_window_are_passed_whole() {
        assert_eq!([0, 131, 132, 164].map(|start| GROUPS.passed(Tokens(start))), [0, 0, 1, 2]);
    }

    #[test]
    fn a_table_lists_groups_number_by_number() {
        let places: Vec<_> = (0..6).map(|i| GROUPS.place(i, 0, 2)).collect();
        assert_eq!(places, [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (0, 3)]);
        assert_eq!([3, 4].map(|i| GROUPS.place(i, 7, 2)), [(0, 8), (1, 8)]);
        let sliding = KvGroups { full: 0, ..GROUPS };
        assert_eq!([0, 1, 2].map(|i| sliding.place(i, 0, 5)), [(0, 5), (1, 5), (0, 6)]);
    }

    /// By running ahead of what is done as far as is allowed.
    #[test]
    fn no_sequence_has_more_than_the_most() {
        let step = (GROUPS.ahead.0 / 2) as usize;
        for length in (1..3000_usize).step_by(7) {
            let blocks = Tokens(length as u32).blocks();
            let held = |done: usize| {
                let upto = Tokens((done + 2 * step).min(length) as u32);
                let passed = GROUPS.passed(Tokens(done as u32));
                GROUPS.full * upto.blocks() + GROUPS.sliding * (upto.blocks() - passed)
            };
            let most = (0..length).map(held).max().unwrap();
            assert!(most <= GROUPS.most(blocks), "{length}: {most} and {}", GROUPS.most(blocks));
            assert!(GROUPS.most(blocks) <= GROUPS.most_of(1, blocks), "{length}");
        }
    }

    #[test]
    fn the_longest_is_the_longest_for_which_blocks_will_do() {
        for groups in [GROUPS, KvGroups { full: 2, ..GROUPS }, KvGroups::default()] {
            for blocks in groups.count()..200 {
                let longest = groups.longest(blocks);
                assert!(groups.most(longest) <= blocks && groups.most(longest + 1) > blocks, "{blocks}");
            }
        }
        assert_eq!(KvGroups { full: 0, ..GROUPS }.longest(100), usize::MAX);
    }
}
