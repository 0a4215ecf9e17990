//! Whether what the drive keeps of a prompt is worth reading: a slow drive, or a fast device, computes it sooner.

use serde::{Deserialize, Serialize};

/// What a block of KV takes, nanoseconds: whole numbers, so that a recorded run is replayed by the very same ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadOrCompute {
    /// Read from the drive into the device.
    pub read_ns: u64,
    /// Computed, but for attention.
    pub compute_ns: u64,
    /// Attention of its positions over one block before it.
    pub attend_ns: u64,
}

impl ReadOrCompute {
    /// Whether reading so many blocks takes no longer than computing them, after the `before` blocks of the same prompt.
    pub fn reads(&self, before: usize, blocks: usize) -> bool {
        let (before, blocks) = (before as u128, blocks as u128);
        let seen = blocks * before + blocks * (blocks + 1) / 2;
        let (read, compute, attend) = (self.read_ns.into(), self.compute_ns.into(), self.attend_ns.into());
        let times = |count: u128, each: u128| count.saturating_mul(each);
        times(blocks, read) <= times(blocks, compute).saturating_add(times(seen, attend))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_prompts_are_worth_reading_where_short_ones_are_not() {
        let worth = ReadOrCompute { read_ns: 100, compute_ns: 40, attend_ns: 10 };
        let reads: Vec<bool> = [1, 5, 10, 11, 20].into_iter().map(|blocks| worth.reads(0, blocks)).collect();
        assert_eq!(reads, [false, false, false, true, true]);
        assert!(worth.reads(6, 1) && !worth.reads(4, 1), "far into a prompt a block sees much");
        let never = ReadOrCompute { read_ns: u64::MAX, compute_ns: 1, attend_ns: 1 };
        assert!(!never.reads(1 << 40, 1 << 20));
    }
}
