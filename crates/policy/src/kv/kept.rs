//! Prefixes on several tiers: copies go down before the room above is needed, and come up again.
//!
//! A copy in memory cannot fail: it is as good as made once a step is asked for it. One that comes from the drive or goes there
//! may be lost, so nobody begins with it before its step is done.

use super::Hold;
use spec::{BlockHash, BlockId, Kept, StepId, Tier};

/// A copy on its way from the drive, or to it.
#[derive(Debug)]
pub(super) struct Arrival {
    step: StepId,
    hash: BlockHash,
    source: (Tier, BlockId),
    /// Taken until it is done.
    pub(super) target: (Tier, BlockId),
    /// Nobody may begin with it, though it comes.
    spoiled: bool,
}

impl Arrival {
    fn is_among(&self, lost: &[Kept]) -> bool {
        let (source, target) = (self.source, self.target);
        let failed = lost.iter().filter(|kept| (kept.from, kept.to) == (source.0, target.0));
        failed.flat_map(|kept| &kept.blocks).any(|pair| *pair == (source.1, target.1))
    }
}

impl Hold {
    /// Blocks that a tier keeps for reuse by prefix, those in use among them.
    pub fn kept(&self, tier: Tier) -> usize {
        self.prefix[tier].len()
    }

    /// Blocks of `tier` that gave way while no tier below had a copy.
    pub fn evicted_unsaved(&self, tier: Tier) -> u64 {
        self.evicted_unsaved[tier]
    }

    /// Blocks of `tier` that hold the longest run of `hashes` from the first on, with their hashes. No reference is taken.
    pub fn find_on(&self, tier: Tier, hashes: &[BlockHash]) -> Vec<(BlockHash, BlockId)> {
        hashes.iter().map_while(|&hash| self.prefix[tier].find(hash).map(|block| (hash, block))).collect()
    }

    /// These blocks of `tier`, which nobody refers to, are as good as used by `step`: they stay until it is done, and count as
    /// the newest then, the last of them as the oldest of these: without those before it a block is of no use.
    pub fn touch(&mut self, tier: Tier, found: &[(BlockHash, BlockId)], step: StepId) {
        for &(_, block) in found.iter().rev() {
            self.prefix[tier].used(block);
            self.prefix[tier].rest(block, Some(step));
        }
    }

    /// Device blocks `fresh` will hold what the host blocks `found` do, from `step` on: others may begin with them at once,
    /// and the host's stay.
    pub fn promote(&mut self, found: &[(BlockHash, BlockId)], fresh: &[BlockId], step: StepId) {
        for (&(hash, _), &copy) in found.iter().zip(fresh) {
            // The device may have it already, behind one that was evicted: then this block is the sequence's own.
            if self.prefix.device.publish(hash, copy) {
                self.prefix.device.mark_saved(copy);
            }
        }
        self.touch(Tier::Host, found, step);
    }

    /// The drive's blocks `found` are read into as many of tier `to`: pairs of (drive, there). Nobody begins with those before
    /// they have [arrived](Hold::arrive).
    ///
    /// # Panics
    /// If fewer are available there.
    pub fn fetch(
        &mut self,
        to: Tier,
        found: &[(BlockHash, BlockId)],
        step: StepId,
    ) -> Vec<(BlockId, BlockId)> {
        self.touch(Tier::Disk, found, step);
        let targets = self.take(to, found.len()).expect("room was found for what is fetched");
        let pairs = found.iter().zip(targets);
        pairs
            .map(|(&(hash, source), target)| {
                self.arriving.push(Arrival {
                    step,
                    hash,
                    source: (Tier::Disk, source),
                    target: (to, target),
                    spoiled: false,
                });
                (source, target)
            })
            .collect()
    }

    /// Blocks of `tier`, up to `most`, that copies from above can have: no older copy gives way that is yet to go down.
    pub fn room_for_copies(&self, tier: Tier, most: usize) -> usize {
        most.min(self.pools[tier].free() + self.prefix[tier].expendable(most))
    }

    /// Copies of up to `most` blocks of tier `from` that nobody refers to any more, in the order in which they came to rest, for
    /// the tier `to` below, as far as it has room: pairs of (above, below). They stay above until their room is needed.
    pub fn save(&mut self, (from, to): (Tier, Tier), most: usize, step: StepId) -> Vec<(BlockId, BlockId)> {
        let mut copies = Vec::new();
        while copies.len() < most && self.available(to) > 0 {
            let Some((hash, block)) = self.prefix[from].unsaved() else { break };
            if self.prefix[to].find(hash).is_some() {
                continue;
            }
            self.prefix[from].read_by(block, step);
            // Older copies give way to newer ones, and do not come back in their place: that would never end.
            if self.pools[to].free() == 0 {
                self.evict(to);
            }
            let copy = self.take(to, 1).expect("one was available")[0];
            match to {
                Tier::Disk => {
                    let (source, target) = ((from, block), (to, copy));
                    self.arriving.push(Arrival { step, hash, source, target, spoiled: false });
                }
                _ => self.keep((to, copy), hash, Some(step)),
            }
            copies.push((block, copy));
        }
        copies
    }

    /// A block that was taken is kept under `hash` from now on, unless another has the same content; steps up to `newest` may
    /// touch it.
    fn keep(&mut self, (tier, block): (Tier, BlockId), hash: BlockHash, newest: Option<StepId>) {
        self.pools[tier].drop_reference(block);
        if !self.prefix[tier].publish(hash, block) {
            return self.pools[tier].retire(block, newest);
        }
        if self.below(tier).any(|below| self.prefix[below].find(hash).is_some()) {
            self.prefix[tier].mark_saved(block);
        }
        self.prefix[tier].rest(block, newest);
    }

    /// A step is done, but for copies that were lost: what it brought from the drive or took there can be used. How many blocks
    /// came from the drive. `newest`: the newest step that is not done.
    pub fn arrive(&mut self, step: StepId, lost: &[Kept], newest: Option<StepId>) -> usize {
        let (here, later) = std::mem::take(&mut self.arriving).into_iter().partition(|a| a.step == step);
        self.arriving = later;
        let (failed, good): (Vec<_>, Vec<_>) =
            Vec::into_iter(here).partition(|arrival: &Arrival| arrival.spoiled || arrival.is_among(lost));
        failed.iter().for_each(|arrival| self.lose(arrival, newest));
        // What goes down came to rest with its last blocks first; what comes from the drive is in the order of its prompt.
        let (up, down): (Vec<_>, Vec<_>) =
            good.into_iter().partition(|arrival| arrival.source.0 == Tier::Disk);
        let kept = down.iter().chain(up.iter().rev());
        kept.for_each(|arrival| self.keep(arrival.target, arrival.hash, newest));
        up.len()
    }

    /// What is kept under these hashes may be spoiled: nobody begins with it any more, on whatever tier it is or is on its way to.
    /// `newest`: the newest step that is not done.
    pub fn distrust(&mut self, hashes: &[BlockHash], newest: Option<StepId>) {
        let groups = 0..self.groups.count();
        self.arriving.iter_mut().for_each(|arrival| arrival.spoiled |= hashes.contains(&arrival.hash));
        for tier in Tier::ALL {
            let (prefix, pool) = (&mut self.prefix[tier], &mut self.pools[tier]);
            for hash in hashes.iter().flat_map(|hash| groups.clone().map(|group| hash.of_group(group))) {
                let Some(block) = prefix.find(hash) else { continue };
                let is_unused = prefix.is_unused(block);
                prefix.forget(block);
                if is_unused {
                    pool.retire(block, newest);
                }
            }
        }
    }

    /// What was to be copied is not there, and what cannot be read is no copy.
    fn lose(&mut self, arrival: &Arrival, newest: Option<StepId>) {
        let (tier, target) = arrival.target;
        self.pools[tier].drop_reference(target);
        self.pools[tier].retire(target, newest);
        let (from, source) = arrival.source;
        let kept = |hash| self.prefix[from].find(hash) == Some(source);
        if from == Tier::Disk && kept(arrival.hash) {
            self.prefix[from].forget(source);
            self.pools[from].retire(source, newest);
        }
        self.copy_gone(Tier::Disk, arrival.hash);
    }

    /// Frees what was kept for reuse longest ago; the block above that has lost its last copy below by that.
    pub(super) fn evict(&mut self, tier: Tier) -> Option<(Tier, BlockId)> {
        let (hash, block) = self.prefix[tier].evict().expect("available counts what can be evicted");
        let below = self.below(tier).any(|below| self.prefix[below].find(hash).is_some());
        self.evicted_unsaved[tier] += u64::from(!below);
        self.pools[tier].put_free(block);
        self.copy_gone(tier, hash)
    }

    /// A tier has this content no more: the nearest block above that has, and has no copy below any more.
    fn copy_gone(&mut self, tier: Tier, hash: BlockHash) -> Option<(Tier, BlockId)> {
        let has = |tier: &Tier| self.prefix[*tier].find(hash).is_some();
        let above = Tier::ALL.into_iter().rev().filter(|above| *above < tier).find(has)?;
        if self.below(above).any(|below| has(&below)) {
            return None;
        }
        self.prefix[above].copy_gone(hash).map(|block| (above, block))
    }

    fn below(&self, tier: Tier) -> impl Iterator<Item = Tier> + use<> {
        Tier::ALL.into_iter().filter(move |below| *below > tier)
    }

    /// Asserts that what counts as copied is on a tier below, or on its way there.
    pub(super) fn check_copies(&self) {
        for tier in Tier::ALL {
            self.prefix[tier].check_saved(|hash| {
                let arrives = |a: &Arrival| a.hash == hash && a.target.0 > tier;
                self.below(tier).any(|below| self.prefix[below].find(hash).is_some())
                    || self.arriving.iter().any(arrives)
            });
        }
    }
}
