//! The pace of admission under the diagonal schedule: as much as the hold gives, step by step.
//!
//! Each step the hold gives all of its blocks for one step; a sequence takes its blocks for all the steps of its life. Who
//! admits at that rate has sequences at all depths, and the hold is full on average: with prompts of s and outputs of n,
//! bls/n of them a step, where bls (s + n/2) is the hold (FlexGen, appendix A.2). What ends early gives back the rest.
//!
//! A sequence pays as if a whole number of its like filled the hold. At the exact rate there would be one more of them at times,
//! which does not fit: it waits, the steps that it waits for are lost, and with few sequences (39 where 41 fit) that is felt.

use super::Growth;
use spec::{ByTier, Tier};

/// How many of the sequences that ended last tell how long others will live, about.
const OF_LATE: u64 = 64;

/// Block-steps that may be spent, by tier; below zero while a large sequence is paid off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    credit: ByTier<i64>,
    /// What whole lives would have been of those that ended of late, and what was left of them.
    lives: ByTier<u64>,
    left: ByTier<u64>,
}

impl Pace {
    /// A step of a hold with this many blocks begins. What is not spent does not pile up: sequences that begin together
    /// would also grow and end together. What was given back stays: it is room that is there now.
    pub fn step(&mut self, tier: Tier, blocks: usize) {
        let (before, most) = (self.credit[tier], blocks as i64);
        self.credit[tier] = before.max((before + most).min(most));
    }

    /// Nothing runs: what was given back is room that has been empty since.
    pub fn rest(&mut self, tier: Tier, blocks: usize) {
        self.credit[tier] = self.credit[tier].min(blocks as i64);
    }

    /// Whether another sequence may begin.
    pub fn allows(&self, tier: Tier) -> bool {
        self.credit[tier] > 0
    }

    /// A sequence begins in a hold with this many blocks.
    pub fn spend(&mut self, tier: Tier, growth: Growth, blocks: usize) {
        let hold = blocks as u64 * growth.life();
        let alike = (hold / growth.block_steps().max(1)).max(1);
        self.credit[tier] -= (hold / alike) as i64;
    }

    /// A sequence of a life of so many block-steps ended, with so many left.
    pub fn ended(&mut self, tier: Tier, life: u64, left: u64) {
        self.credit[tier] += left as i64;
        for (sum, more) in [(&mut self.lives[tier], life), (&mut self.left[tier], left)] {
            *sum = *sum - *sum / OF_LATE + more;
        }
    }

    /// Whether hardly anybody lives as long as was paid for: three quarters were left of late. The pace of whole lives then keeps
    /// most of the hold empty, and whoever fits may begin.
    pub fn lives_are_short(&self, tier: Tier) -> bool {
        4 * self.left[tier] > 3 * self.lives[tier]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec::Tokens;

    /// In a hold of 100 blocks, sequences that begin and end at once.
    #[test]
    fn what_is_given_back_lasts_as_long_as_somebody_runs() {
        let (mut pace, tier) = (Pace::default(), Tier::Device);
        let growth = Growth { now: Tokens(1), steps: Tokens(63) };
        pace.step(tier, 100);
        for _ in 0..9 {
            pace.spend(tier, growth, 100);
            pace.ended(tier, growth.block_steps(), growth.block_steps() + 500);
        }
        pace.step(tier, 100);
        let before = pace.credit[tier];
        assert!(before > 100, "{before}: steps take nothing of it away");
        pace.rest(tier, 100);
        assert_eq!(pace.credit[tier], 100);
    }

    #[test]
    fn lives_are_short_where_most_of_them_was_left_of_late() {
        let (mut pace, tier) = (Pace::default(), Tier::Host);
        assert!(!pace.lives_are_short(tier), "nobody has ended yet");
        pace.ended(tier, 1000, 760);
        assert!(pace.lives_are_short(tier) && !pace.lives_are_short(Tier::Device));
        (0..20).for_each(|_| pace.ended(tier, 1000, 0));
        assert!(!pace.lives_are_short(tier));
        (0..200).for_each(|_| pace.ended(tier, 1000, 900));
        assert!(pace.lives_are_short(tier), "those long ago count for little");
    }
}
