//! Blocks of one tier: free, referred to, or in quarantine.

use spec::{BlockId, StepId};
use std::collections::VecDeque;

/// What a block takes in a pool, its lists as long as they can be and grown to twice that.
pub(super) const BLOCK_BYTES: usize =
    size_of::<u32>() + 2 * size_of::<BlockId>() + 2 * size_of::<(StepId, BlockId)>();

/// Blocks of one tier. A block that was freed rests until no step that was in flight then can still touch it.
#[derive(Debug)]
pub struct Pool {
    references: Vec<u32>,
    free: Vec<BlockId>,
    /// With the newest step in flight when it was freed; in that order.
    quarantine: VecDeque<(StepId, BlockId)>,
}

impl Pool {
    /// `blocks` free blocks, given out from 0 on.
    pub fn new(blocks: u32) -> Self {
        let free = (0..blocks).rev().map(BlockId).collect();
        Self { references: vec![0; blocks as usize], free, quarantine: VecDeque::new() }
    }

    /// Blocks in all.
    pub fn capacity(&self) -> usize {
        self.references.len()
    }

    /// Blocks that can be taken.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Blocks that become free when steps are done.
    pub fn quarantined(&self) -> usize {
        self.quarantine.len()
    }

    /// Takes `n` blocks, with one reference each.
    ///
    /// # Panics
    /// When fewer are free.
    pub fn take(&mut self, n: usize) -> Vec<BlockId> {
        let blocks: Vec<_> = self.free.drain(self.free.len() - n..).rev().collect();
        blocks.iter().for_each(|block| self.references[block.index()] = 1);
        blocks
    }

    /// One more reference.
    pub fn share(&mut self, block: BlockId) {
        self.references[block.index()] += 1;
    }

    /// Whether it has one reference and no more.
    pub fn is_alone(&self, block: BlockId) -> bool {
        self.references[block.index()] == 1
    }

    /// One reference less; true when it was the last.
    ///
    /// # Panics
    /// When there is none.
    pub fn drop_reference(&mut self, block: BlockId) -> bool {
        let references = &mut self.references[block.index()];
        assert!(*references > 0, "block {block} was given back twice");
        *references -= 1;
        *references == 0
    }

    /// A block without references becomes free once `newest` is done; at once where nothing is in flight.
    pub fn retire(&mut self, block: BlockId, newest: Option<StepId>) {
        match newest {
            Some(step) => self.quarantine.push_back((step, block)),
            None => self.free.push(block),
        }
    }

    /// A block without references is free.
    pub fn put_free(&mut self, block: BlockId) {
        self.free.push(block);
    }

    /// All steps before `oldest` are done (all of them, where there is none).
    pub fn settle(&mut self, oldest: Option<StepId>) {
        while let Some(&(step, block)) = self.quarantine.front() {
            if oldest.is_some_and(|oldest| step >= oldest) {
                return;
            }
            self.quarantine.pop_front();
            self.free.push(block);
        }
    }

    /// Asserts that each block is free, in quarantine, among `kept`, or referred to by as many of `held`.
    pub fn check(&self, held: impl Iterator<Item = BlockId>, kept: &[BlockId]) {
        let mut counted = vec![0_u32; self.capacity()];
        held.for_each(|block| counted[block.index()] += 1);
        assert_eq!(counted, self.references, "references of blocks");
        let resting = self.free.iter().chain(self.quarantine.iter().map(|(_, block)| block)).chain(kept);
        resting.for_each(|block| counted[block.index()] += 1);
        assert!(
            (0..counted.len()).all(|b| if self.references[b] == 0 {
                counted[b] == 1
            } else {
                counted[b] == self.references[b]
            }),
            "every block is in one place: {counted:?}"
        );
    }
}
