//! The hold: KV blocks of every tier, who refers to them, and which of them may be written again.

mod kept;
mod pool;
mod prefix;
mod table;

pub use pool::Pool;
pub use prefix::Prefix;
pub use table::{Sequence, State, Table};

use kept::Arrival;
use spec::{BlockHash, BlockId, ByTier, KvGroups, StepId, Tier, Tokens};

/// What the device has of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hit {
    /// In the order of a table.
    pub blocks: Vec<BlockId>,
    /// Numbers of blocks, from the first position on.
    pub numbers: usize,
}

/// Blocks of every tier. Those of the device are kept for reuse by prefix after their last reference is gone, and copies of
/// them on the tiers below when they have to leave.
#[derive(Debug)]
pub struct Hold {
    groups: KvGroups,
    pools: ByTier<Pool>,
    prefix: ByTier<Prefix>,
    /// Copies on their way from or to the drive. Their targets are taken, and nobody begins with them yet.
    arriving: Vec<Arrival>,
    evicted_unsaved: ByTier<u64>,
}

impl Hold {
    /// `blocks`: how many each tier has, for layers in these groups.
    pub fn new(blocks: ByTier<u32>, groups: KvGroups) -> Self {
        let pools = ByTier {
            device: Pool::new(blocks.device),
            host: Pool::new(blocks.host),
            disk: Pool::new(blocks.disk),
        };
        Self {
            groups,
            pools,
            prefix: ByTier::default(),
            arriving: Vec::new(),
            evicted_unsaved: ByTier::default(),
        }
    }

    /// Bytes that the hold itself comes to take for so many blocks, at most, of which so many may be kept for reuse by prefix.
    pub fn bytes_at_most(blocks: ByTier<u32>, kept: ByTier<u32>) -> u64 {
        let all =
            |blocks: ByTier<u32>| Tier::ALL.into_iter().map(|tier| u64::from(blocks[tier])).sum::<u64>();
        all(blocks) * pool::BLOCK_BYTES as u64 + all(kept) * prefix::BLOCK_BYTES as u64
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
            if let Some((above, block)) = self.evict(tier) {
                self.prefix[above].save_again(block);
            }
        }
        Some(self.pools[tier].take(n))
    }

    /// Device blocks that hold the longest run of `hashes` from the first on; of sliding groups those that what follows may look
    /// at. No reference is taken.
    pub fn find(&self, hashes: &[BlockHash]) -> Hit {
        let KvGroups { full, sliding, .. } = self.groups;
        let find = |number: usize, group| self.prefix.device.find(hashes[number].of_group(group));
        let all = (0..hashes.len()).flat_map(|number| (0..full).map(move |group| (number, group)));
        let of_full: Vec<BlockId> = all.map_while(|(number, group)| find(number, group)).collect();
        let of_sliding = |number: usize| (full..full + sliding).map(move |group| find(number, group));
        let mut numbers = of_full.len().checked_div(full).unwrap_or(hashes.len());
        let passed = |numbers| self.groups.passed(Tokens::of_blocks(numbers));
        // Whoever begins after a block that is not there needs it too, until it lies behind.
        let is_gap = |number: &usize| of_sliding(*number).any(|block| block.is_none());
        while let Some(gap) = (passed(numbers)..numbers).rev().find(is_gap) {
            numbers = gap;
        }
        let mut blocks = Vec::new();
        for number in 0..numbers {
            blocks.extend_from_slice(&of_full[number * full..][..full]);
            if number >= passed(numbers) {
                blocks.extend(of_sliding(number).flatten());
            }
        }
        Hit { blocks, numbers }
    }

    /// How many of these device blocks count as available, and would no longer if they were shared.
    pub fn available_among(&self, blocks: &[BlockId]) -> usize {
        blocks.iter().filter(|&&block| self.prefix.device.is_evictable(block)).count()
    }

    /// How many of these device blocks would be free if their holder gave them back: nobody else refers to them.
    pub fn alone_among(&self, blocks: &[BlockId]) -> usize {
        blocks.iter().filter(|&&block| self.pools.device.is_alone(block)).count()
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
        let arriving = self.arriving.iter().map(|arrival| arrival.target).filter(|(at, _)| *at == tier);
        self.pools[tier].check(held.chain(arriving.map(|(_, block)| block)), &self.prefix[tier].check());
        self.check_copies();
    }
}
