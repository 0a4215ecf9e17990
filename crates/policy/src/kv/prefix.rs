//! Full blocks by the hash of their tokens and all before them, so that a prompt begins with what others computed.

use spec::{BlockHash, BlockId, StepId};
use std::collections::{BTreeMap, VecDeque};

/// What a block is kept for.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    hash: Option<BlockHash>,
    /// Its place among unused blocks; none while somebody refers to it.
    rest: Option<u64>,
    /// Whether it was copied to a tier below.
    saved: bool,
    /// Whether it is in `to_save`.
    queued: bool,
}

/// What a block that is kept takes, lists grown to twice their need and nodes of trees half full.
pub(super) const BLOCK_BYTES: usize = 2
    * (size_of::<Entry>()
        + size_of::<(BlockHash, BlockId)>()
        + size_of::<(u64, BlockId, Option<StepId>)>()
        + size_of::<BlockId>()
        + size_of::<usize>());

/// Blocks by hash. Those that nobody refers to wait for reuse, and are evicted longest unused first.
#[derive(Debug, Default)]
pub struct Prefix {
    blocks: BTreeMap<BlockHash, BlockId>,
    /// Of blocks up to the highest that was ever kept: most of a large tier may never be.
    entries: Vec<Entry>,
    /// By time of rest, oldest first: the block, and the newest step in flight when it came to rest.
    unused: BTreeMap<u64, (BlockId, Option<StepId>)>,
    clock: u64,
    /// Rests before this have no step in flight that could read them.
    settled: u64,
    evictable: usize,
    /// Unused blocks, by time of rest, that this step copies elsewhere: they stay until it is done.
    reading: BTreeMap<u64, StepId>,
    /// Blocks that came to rest without a copy below, in that order. Some may be in use again, or gone.
    to_save: VecDeque<BlockId>,
}

impl Prefix {
    fn entry(&self, block: BlockId) -> Entry {
        self.entries.get(block.index()).copied().unwrap_or_default()
    }

    fn entry_mut(&mut self, block: BlockId) -> &mut Entry {
        if self.entries.len() <= block.index() {
            self.entries.resize(block.index() + 1, Entry::default());
        }
        &mut self.entries[block.index()]
    }

    /// The block with this content.
    pub fn find(&self, hash: BlockHash) -> Option<BlockId> {
        self.blocks.get(&hash).copied()
    }

    /// Whether a block is kept after its last reference.
    pub fn keeps(&self, block: BlockId) -> bool {
        self.entry(block).hash.is_some()
    }

    /// Whether nobody refers to a block that is kept.
    pub fn is_unused(&self, block: BlockId) -> bool {
        self.entry(block).rest.is_some()
    }

    /// Blocks that nobody refers to.
    pub fn unused(&self) -> usize {
        self.unused.len()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Unused blocks that no step in flight reads.
    pub fn evictable(&self) -> usize {
        self.evictable
    }

    /// Whether this block is one of them.
    pub fn is_evictable(&self, block: BlockId) -> bool {
        self.entry(block).rest.is_some_and(|rest| self.may_go(rest))
    }

    /// Whether what came to rest then may be evicted.
    fn may_go(&self, rest: u64) -> bool {
        rest < self.settled && !self.reading.contains_key(&rest)
    }

    /// Keeps `block` under `hash`, unless another block has the same content or it is kept already: then it is false.
    pub fn publish(&mut self, hash: BlockHash, block: BlockId) -> bool {
        let is_new = !self.keeps(block) && !self.blocks.contains_key(&hash);
        if is_new {
            let entry = self.entry_mut(block);
            (entry.hash, entry.saved) = (Some(hash), false);
            self.blocks.insert(hash, block);
        }
        is_new
    }

    /// Somebody refers to `block` from now on.
    pub fn used(&mut self, block: BlockId) {
        let at_rest = self.entries.get_mut(block.index()).and_then(|entry| entry.rest.take());
        if let Some(rest) = at_rest {
            self.evictable -= usize::from(self.may_go(rest));
            self.unused.remove(&rest);
            self.reading.remove(&rest);
        }
    }

    /// An unused block is copied elsewhere by `step`. It keeps its place among the others.
    pub fn read_by(&mut self, block: BlockId, step: StepId) {
        let rest = self.entry(block).rest.expect("only what nobody uses is copied elsewhere");
        self.evictable -= usize::from(self.may_go(rest));
        self.reading.insert(rest, step);
    }

    /// Nobody refers to `block` any more; steps up to `newest` may still read it.
    pub fn rest(&mut self, block: BlockId, newest: Option<StepId>) {
        self.entry_mut(block).rest = Some(self.clock);
        self.unused.insert(self.clock, (block, newest));
        self.clock += 1;
        self.queue(block);
        if newest.is_none() {
            self.settle(None);
        }
    }

    fn queue(&mut self, block: BlockId) {
        let entry = self.entry_mut(block);
        if !entry.saved && !std::mem::replace(&mut entry.queued, true) {
            self.to_save.push_back(block);
        }
    }

    /// The next block at rest that has no copy below, with its hash. It counts as copied from now on.
    pub fn unsaved(&mut self) -> Option<(BlockHash, BlockId)> {
        while let Some(block) = self.to_save.pop_front() {
            let entry = self.entry_mut(block);
            entry.queued = false;
            let &mut Entry { hash: Some(hash), rest: Some(_), saved: false, .. } = entry else { continue };
            self.mark_saved(block);
            return Some((hash, block));
        }
        None
    }

    /// A tier below has a copy of this block.
    ///
    /// # Panics
    /// When it is not kept: nobody would ever clear the mark.
    pub fn mark_saved(&mut self, block: BlockId) {
        assert!(self.keeps(block), "only a block that is kept has a copy: {block}");
        self.entry_mut(block).saved = true;
    }

    /// No tier below has a copy of this content any more; the block that holds it here, if one does.
    pub fn copy_gone(&mut self, hash: BlockHash) -> Option<BlockId> {
        let block = self.find(hash)?;
        self.entry_mut(block).saved = false;
        Some(block)
    }

    /// A block at rest waits for a copy again.
    pub fn save_again(&mut self, block: BlockId) {
        if self.entry(block).rest.is_some() {
            self.queue(block);
        }
    }

    /// All steps before `oldest` are done (all of them, where there is none).
    pub fn settle(&mut self, oldest: Option<StepId>) {
        let Some(oldest) = oldest else {
            self.reading.clear();
            (self.settled, self.evictable) = (self.clock, self.unused.len());
            return;
        };
        let settled = self.settled;
        let before = self.reading.range(..settled).count();
        self.reading.retain(|_, step| *step >= oldest);
        self.evictable += before - self.reading.range(..settled).count();
        let fresh = self.unused.range(self.settled..);
        let settled = fresh.take_while(|(_, (_, newest))| newest.is_none_or(|newest| newest < oldest));
        if let Some((rest, count)) = settled.zip(1..).map(|((&rest, _), count)| (rest, count)).last() {
            self.evictable += count - self.reading.range(self.settled..=rest).count();
            self.settled = rest + 1;
        }
    }

    /// How many blocks, up to `most`, can be evicted before one that waits for a copy below.
    pub fn expendable(&self, most: usize) -> usize {
        let oldest = self.unused.range(..self.settled).filter(|(rest, _)| self.may_go(**rest)).take(most);
        oldest.take_while(|(_, (block, _))| !self.entry(*block).queued).count()
    }

    /// Forgets the block that has been unused longest; with its hash.
    pub fn evict(&mut self) -> Option<(BlockHash, BlockId)> {
        let settled = self.unused.range(..self.settled);
        let block = settled.map(|(rest, (block, _))| (rest, *block)).find(|(rest, _)| self.may_go(**rest))?.1;
        Some((self.forget(block), block))
    }

    /// A block is not kept any more, whoever still uses it; its hash.
    pub fn forget(&mut self, block: BlockId) -> BlockHash {
        self.used(block);
        let entry = self.entry_mut(block);
        let entry = std::mem::replace(entry, Entry { queued: entry.queued, ..Entry::default() });
        let hash = entry.hash.expect("only a block with a hash is kept");
        self.blocks.remove(&hash);
        hash
    }

    /// Asserts that the maps agree; the blocks that nobody refers to.
    pub fn check(&self) -> Vec<BlockId> {
        let named = self.entries.iter().filter(|entry| entry.hash.is_some()).count();
        assert_eq!(named, self.blocks.len(), "a hash for each block kept");
        let evictable = self.unused.keys().filter(|rest| self.may_go(**rest)).count();
        assert_eq!(self.evictable, evictable, "evictable blocks");
        assert!(
            self.reading.keys().all(|rest| self.unused.contains_key(rest)),
            "only unused blocks are read"
        );
        assert!(self.blocks.iter().all(|(&hash, &block)| self.entry(block).hash == Some(hash)));
        assert!(self.unused.iter().all(|(&rest, &(block, _))| self.entry(block).rest == Some(rest)));
        for (at, entry) in self.entries.iter().enumerate() {
            assert!(!entry.saved || entry.hash.is_some(), "block {at} has no content that could be saved");
        }
        self.unused.values().map(|&(block, _)| block).collect()
    }

    /// Asserts that what counts as copied is where `below` looks for it.
    pub fn check_saved(&self, below: impl Fn(BlockHash) -> bool) {
        let saved = self.entries.iter().filter(|entry| entry.saved).filter_map(|entry| entry.hash);
        saved.for_each(|hash| assert!(below(hash), "the copy of {hash:?} is gone"));
    }
}
