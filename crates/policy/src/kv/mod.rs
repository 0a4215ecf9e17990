//! The hold: KV blocks of every tier, who refers to them, and which of them may be written again.

mod pool;
mod prefix;
mod table;

pub use pool::Pool;
pub use prefix::Prefix;
pub use table::{Sequence, State, Table};

use spec::{BlockHash, BlockId, ByTier, StepId, Tier};

/// Blocks of every tier. Those of the device are kept for reuse by prefix after their last reference is gone, and copies of
/// them on the host when they have to leave.
#[derive(Debug)]
pub struct Hold {
    pools: ByTier<Pool>,
    prefix: ByTier<Prefix>,
}

impl Hold {
    /// `blocks`: how many each tier has.
    pub fn new(blocks: ByTier<u32>) -> Self {
        let pools = ByTier {
            device: Pool::new(blocks.device),
            host: Pool::new(blocks.host),
            disk: Pool::new(blocks.disk),
        };
        Self { pools, prefix: ByTier::default() }
    }

    /// Bytes that the hold itself comes to take for so many blocks, at most: what is kept for reuse by prefix is known of
    /// device and host, the drive's blocks are only counted.
    pub fn bytes_at_most(blocks: ByTier<u32>) -> u64 {
        let kept = u64::from(blocks.device) + u64::from(blocks.host);
        (kept + u64::from(blocks.disk)) * pool::BLOCK_BYTES as u64 + kept * prefix::BLOCK_BYTES as u64
    }

    /// Blocks of `tier` in all.
    pub fn capacity(&self, tier: Tier) -> usize {
        self.pools[tier].capacity()
    }

    /// Blocks of `tier` that [`Hold::take`] can give now.
    pub fn available(&self, tier: Tier) -> usize {
        self.pools[tier].free() + self.prefix[tier].evictable()
    }

    /// Blocks of `tier` that nobody refers to, but that a step in flight may still touch.
    pub fn quarantined(&self, tier: Tier) -> usize {
        let prefix = &self.prefix[tier];
        self.pools[tier].quarantined() + prefix.unused() - prefix.evictable()
    }

    /// Blocks of `tier` that are free, or will be once steps in flight are done.
    pub fn free(&self, tier: Tier) -> usize {
        self.pools[tier].free() + self.pools[tier].quarantined()
    }

    /// Takes `n` blocks of `tier`, all or none, evicting what was kept for reuse longest ago.
    pub fn take(&mut self, tier: Tier, n: usize) -> Option<Vec<BlockId>> {
        if self.available(tier) < n {
            return None;
        }
        while self.pools[tier].free() < n {
            if let Some(block) = self.evict(tier) {
                self.prefix.device.save_again(block);
            }
        }
        Some(self.pools[tier].take(n))
    }

    /// Frees what was kept for reuse longest ago; the device block that has lost its copy by that.
    fn evict(&mut self, tier: Tier) -> Option<BlockId> {
        let (hash, block) = self.prefix[tier].evict().expect("available counts what can be evicted");
        self.pools[tier].put_free(block);
        if tier == Tier::Host { self.prefix.device.copy_gone(hash) } else { None }
    }

    /// Device blocks that hold the longest run of `hashes` from the first on. No reference is taken.
    pub fn find(&self, hashes: &[BlockHash]) -> Vec<BlockId> {
        hashes.iter().map_while(|&hash| self.prefix.device.find(hash)).collect()
    }

    /// Host blocks that hold the longest run of `hashes` from the first on, with their hashes. No reference is taken.
    pub fn find_below(&self, hashes: &[BlockHash]) -> Vec<(BlockHash, BlockId)> {
        hashes.iter().map_while(|&hash| self.prefix.host.find(hash).map(|block| (hash, block))).collect()
    }

    /// Device blocks `fresh` will hold what the host blocks `found` do, from `step` on: others may begin with them at once,
    /// and the host's stay.
    pub fn promote(&mut self, found: &[(BlockHash, BlockId)], fresh: &[BlockId], step: StepId) {
        for (&(hash, block), &copy) in found.iter().zip(fresh) {
            // The device may have it already, behind one that was evicted: then this block is the sequence's own.
            if self.prefix.device.publish(hash, copy) {
                self.prefix.device.mark_saved(copy);
            }
            self.prefix.host.used(block);
            self.prefix.host.rest(block, Some(step));
        }
    }

    /// Copies of up to `most` device blocks that nobody refers to any more, in the order in which they came to rest, for the
    /// host, as far as it has room: pairs of (device, host). They stay on the device until their room is needed.
    pub fn save(&mut self, most: usize, step: StepId) -> Vec<(BlockId, BlockId)> {
        let mut copies = Vec::new();
        while copies.len() < most && self.available(Tier::Host) > 0 {
            let Some((hash, block)) = self.prefix.device.unsaved() else { break };
            if self.prefix.host.find(hash).is_some() {
                continue;
            }
            // It is read in this step, and so not taken for something else in it.
            self.prefix.device.used(block);
            self.prefix.device.rest(block, Some(step));
            // Older copies give way to newer ones, and do not come back in their place: that would never end.
            if self.pools.host.free() == 0 {
                self.evict(Tier::Host);
            }
            let copy = self.take(Tier::Host, 1).expect("one was available")[0];
            self.pools.host.drop_reference(copy);
            self.prefix.host.publish(hash, copy);
            self.prefix.host.rest(copy, Some(step));
            copies.push((block, copy));
        }
        copies
    }

    /// How many of these device blocks count as available, and would no longer if they were shared.
    pub fn available_among(&self, blocks: &[BlockId]) -> usize {
        blocks.iter().filter(|&&block| self.prefix.device.is_evictable(block)).count()
    }

    /// Takes a reference to each of these device blocks.
    pub fn share(&mut self, blocks: &[BlockId]) {
        for &block in blocks {
            self.prefix.device.used(block);
            self.pools.device.share(block);
        }
    }

    /// Drops a reference to each of these blocks of `tier`; `newest` is the newest step started that is not done.
    /// The last blocks of a sequence are of least use to others, so they become the first to evict.
    pub fn give_back(&mut self, tier: Tier, blocks: &[BlockId], newest: Option<StepId>) {
        for &block in blocks.iter().rev() {
            if !self.pools[tier].drop_reference(block) {
                continue;
            }
            if self.prefix[tier].keeps(block) {
                self.prefix[tier].rest(block, newest);
            } else {
                self.pools[tier].retire(block, newest);
            }
        }
    }

    /// Lets others begin with this device block, whose content is complete. Of two equal ones the first is kept.
    pub fn publish(&mut self, hash: BlockHash, block: BlockId) {
        self.prefix.device.publish(hash, block);
    }

    /// Steps before `oldest` are done (all steps, where none is in flight): what they touched may be taken again.
    pub fn settle(&mut self, oldest: Option<StepId>) {
        for tier in Tier::ALL {
            self.pools[tier].settle(oldest);
            self.prefix[tier].settle(oldest);
        }
    }

    /// Asserts that every block is in exactly one place and is referred to as often as `held` says.
    pub fn check(&self, tier: Tier, held: impl Iterator<Item = BlockId>) {
        self.pools[tier].check(held, &self.prefix[tier].check());
        self.prefix.device.check_saved(&self.prefix.host);
    }
}
