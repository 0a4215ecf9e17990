//! Full blocks by the hash of their tokens and all before them, so that a prompt begins with what others computed.

use spec::{BlockHash, BlockId, StepId};
use std::collections::BTreeMap;

/// What a block is kept for.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    hash: Option<BlockHash>,
    /// Its place among unused blocks; none while somebody refers to it.
    rest: Option<u64>,
}

/// Blocks by hash. Those that nobody refers to wait for reuse, and are evicted longest unused first.
#[derive(Debug)]
pub struct Prefix {
    blocks: BTreeMap<BlockHash, BlockId>,
    entries: Vec<Entry>,
    /// By time of rest, oldest first: the block, and the newest step in flight when it came to rest.
    unused: BTreeMap<u64, (BlockId, Option<StepId>)>,
    clock: u64,
    /// Rests before this have no step in flight that could read them.
    settled: u64,
    evictable: usize,
}

impl Prefix {
    /// Nothing kept, of a pool of `blocks`.
    pub fn new(blocks: u32) -> Self {
        let entries = vec![Entry::default(); blocks as usize];
        Self { blocks: BTreeMap::new(), entries, unused: BTreeMap::new(), clock: 0, settled: 0, evictable: 0 }
    }

    /// The block with this content.
    pub fn find(&self, hash: BlockHash) -> Option<BlockId> {
        self.blocks.get(&hash).copied()
    }

    /// Whether a block is kept after its last reference.
    pub fn keeps(&self, block: BlockId) -> bool {
        self.entries[block.index()].hash.is_some()
    }

    /// Blocks that nobody refers to.
    pub fn unused(&self) -> usize {
        self.unused.len()
    }

    /// Unused blocks that no step in flight reads.
    pub fn evictable(&self) -> usize {
        self.evictable
    }

    /// Whether this block is one of them.
    pub fn is_evictable(&self, block: BlockId) -> bool {
        self.entries[block.index()].rest.is_some_and(|rest| rest < self.settled)
    }

    /// Keeps `block` under `hash`, unless another block has the same content or it is kept already.
    pub fn publish(&mut self, hash: BlockHash, block: BlockId) {
        let entry = &mut self.entries[block.index()];
        if entry.hash.is_none() && !self.blocks.contains_key(&hash) {
            entry.hash = Some(hash);
            self.blocks.insert(hash, block);
        }
    }

    /// Somebody refers to `block` from now on.
    pub fn used(&mut self, block: BlockId) {
        if let Some(rest) = self.entries[block.index()].rest.take() {
            self.unused.remove(&rest);
            self.evictable -= usize::from(rest < self.settled);
        }
    }

    /// Nobody refers to `block` any more; steps up to `newest` may still read it.
    pub fn rest(&mut self, block: BlockId, newest: Option<StepId>) {
        self.entries[block.index()].rest = Some(self.clock);
        self.unused.insert(self.clock, (block, newest));
        self.clock += 1;
        if newest.is_none() {
            self.settle(None);
        }
    }

    /// All steps before `oldest` are done (all of them, where there is none).
    pub fn settle(&mut self, oldest: Option<StepId>) {
        let Some(oldest) = oldest else {
            (self.settled, self.evictable) = (self.clock, self.unused.len());
            return;
        };
        let fresh = self.unused.range(self.settled..);
        let settled = fresh.take_while(|(_, (_, newest))| newest.is_none_or(|newest| newest < oldest));
        if let Some((rest, count)) = settled.zip(1..).map(|((&rest, _), count)| (rest, count)).last() {
            self.settled = rest + 1;
            self.evictable += count;
        }
    }

    /// Forgets the block that has been unused longest.
    pub fn evict(&mut self) -> Option<BlockId> {
        let (&rest, &(block, _)) = self.unused.first_key_value().filter(|(rest, _)| **rest < self.settled)?;
        self.unused.remove(&rest);
        self.evictable -= 1;
        let entry = std::mem::take(&mut self.entries[block.index()]);
        self.blocks.remove(&entry.hash.expect("only a block with a hash is kept"));
        Some(block)
    }

    /// Asserts that the maps agree; the blocks that nobody refers to.
    pub fn check(&self) -> Vec<BlockId> {
        let named = self.entries.iter().filter(|entry| entry.hash.is_some()).count();
        assert_eq!(named, self.blocks.len(), "a hash for each block kept");
        assert_eq!(self.evictable, self.unused.range(..self.settled).count(), "evictable blocks");
        assert!(self.blocks.iter().all(|(&hash, block)| self.entries[block.index()].hash == Some(hash)));
        assert!(self.unused.iter().all(|(&rest, (block, _))| self.entries[block.index()].rest == Some(rest)));
        self.unused.values().map(|&(block, _)| block).collect()
    }
}
