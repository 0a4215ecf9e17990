//! Where things live: tiers, layouts over ranks, and the shares of weights, KV and activations in each tier.

use serde::{Deserialize, Serialize};
use std::ops::{Index, IndexMut};

/// A kind of memory, fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Tier {
    /// Memory that the compute lane works on: a GPU's, or a CPU device's own share of RAM.
    Device,
    /// Memory of the host, where the host lane attends.
    Host,
    /// A drive.
    Disk,
}

impl Tier {
    /// All tiers, fastest first.
    pub const ALL: [Tier; 3] = [Tier::Device, Tier::Host, Tier::Disk];
}

/// One value for every tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ByTier<T> {
    /// Of [`Tier::Device`].
    pub device: T,
    /// Of [`Tier::Host`].
    pub host: T,
    /// Of [`Tier::Disk`].
    pub disk: T,
}

impl<T> ByTier<T> {
    /// Something else of each.
    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> ByTier<U> {
        ByTier { device: f(self.device), host: f(self.host), disk: f(self.disk) }
    }
}

impl<T> Index<Tier> for ByTier<T> {
    type Output = T;
    fn index(&self, tier: Tier) -> &T {
        match tier {
            Tier::Device => &self.device,
            Tier::Host => &self.host,
            Tier::Disk => &self.disk,
        }
    }
}

impl<T> IndexMut<Tier> for ByTier<T> {
    fn index_mut(&mut self, tier: Tier) -> &mut T {
        match tier {
            Tier::Device => &mut self.device,
            Tier::Host => &mut self.host,
            Tier::Disk => &mut self.disk,
        }
    }
}

/// How a model is cut over ranks: `tp * pp` ranks hold one copy, and there are `dp` copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Layout {
    /// Tensor parallelism: ranks that share each layer.
    pub tp: u16,
    /// Pipeline parallelism: stages, each with a run of layers.
    pub pp: u16,
    /// Data parallelism: copies of the model.
    pub dp: u16,
}

impl Layout {
    /// One rank.
    pub const SINGLE: Layout = Layout { tp: 1, pp: 1, dp: 1 };

    /// Ranks that hold one copy of the model.
    pub fn ranks(self) -> u16 {
        self.tp * self.pp
    }
}

impl Default for Layout {
    fn default() -> Self {
        Self::SINGLE
    }
}

/// Shares of something in each tier, in parts of [`Split::WHOLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "ByTier<u32>", into = "ByTier<u32>")]
pub struct Split(ByTier<u32>);

/// Shares that do not add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shares must add up to {} parts, found {found}: raise or lower one of them", Split::WHOLE)]
pub struct SplitError {
    /// Their sum.
    pub found: u64,
}

impl Split {
    /// All of it: 100 %.
    pub const WHOLE: u32 = 1_000_000;

    /// All on the device.
    pub const RESIDENT: Split = Split(ByTier { device: Self::WHOLE, host: 0, disk: 0 });

    /// All on the host.
    pub const ON_HOST: Split = Split(ByTier { device: 0, host: Self::WHOLE, disk: 0 });

    /// All on the drive.
    pub const ON_DISK: Split = Split(ByTier { device: 0, host: 0, disk: Self::WHOLE });

    /// Shares of each tier.
    ///
    /// # Errors
    /// When they do not add up to [`Split::WHOLE`].
    pub fn new(parts: ByTier<u32>) -> Result<Self, SplitError> {
        let found = u64::from(parts.device) + u64::from(parts.host) + u64::from(parts.disk);
        if found == u64::from(Self::WHOLE) { Ok(Self(parts)) } else { Err(SplitError { found }) }
    }

    /// The share of `tier`, in parts of [`Split::WHOLE`].
    pub fn part(self, tier: Tier) -> u32 {
        self.0[tier]
    }

    /// How many of `n` panels (or blocks, or bytes) are in `tier`: cumulative rounding, so that they add up to `n`.
    pub fn of(self, tier: Tier, n: u64) -> u64 {
        let upto = |parts: u64| (u128::from(n) * u128::from(parts)).div_ceil(u128::from(Self::WHOLE)) as u64;
        let before: u64 = Tier::ALL.iter().take_while(|&&t| t != tier).map(|&t| u64::from(self.0[t])).sum();
        upto(before + u64::from(self.0[tier])) - upto(before)
    }

    /// The same of `n` that are not cut, a block's sequences for one; what a part of one was goes to the tier below.
    pub fn uncut(self, n: u64) -> Self {
        let whole = u64::from(Self::WHOLE);
        let upto = |parts: u32| (u64::from(parts) * n / whole * whole / n.max(1)) as u32;
        let device = upto(self.0.device);
        let host = upto(self.0.device + self.0.host) - device;
        Self(ByTier { device, host, disk: Self::WHOLE - device - host })
    }

    /// With one more of `n` on the device, or what the tiers below have, the next one's first.
    pub fn one_up(self, n: u64) -> Self {
        let mut parts = self.0;
        let mut wanted = u64::from(Self::WHOLE).div_ceil(n.max(1)) as u32;
        for tier in [Tier::Host, Tier::Disk] {
            let moved = parts[tier].min(wanted);
            parts[tier] -= moved;
            parts.device += moved;
            wanted -= moved;
        }
        Self(parts)
    }
}

impl TryFrom<ByTier<u32>> for Split {
    type Error = SplitError;
    fn try_from(parts: ByTier<u32>) -> Result<Self, SplitError> {
        Self::new(parts)
    }
}

impl From<Split> for ByTier<u32> {
    fn from(split: Split) -> Self {
        split.0
    }
}

/// What lives where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// Panels of every linear: the first on the device, the next on the host, the rest on disk.
    pub weights: Split,
    /// KV blocks.
    pub kv: Split,
    /// Activations between layers.
    pub hidden: Split,
}

impl Placement {
    /// Everything on the device.
    pub const RESIDENT: Placement =
        Placement { weights: Split::RESIDENT, kv: Split::RESIDENT, hidden: Split::RESIDENT };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(device: u32, host: u32) -> Split {
        Split(ByTier { device, host, disk: Split::WHOLE - device - host })
    }

    #[test]
    fn what_is_not_cut_lies_in_one_tier() {
        let tiers = |split: Split, n| Tier::ALL.map(|tier| split.of(tier, n));
        assert_eq!(tiers(split(180_000, 300_000).uncut(4), 4), [0, 1, 3]);
        assert_eq!(tiers(split(180_000, 300_000).uncut(4).one_up(4), 4), [1, 0, 3]);
        assert_eq!(tiers(split(180_000, 0).uncut(4).one_up(4), 4), [1, 0, 3]);
        assert_eq!(split(300_000, 700_000).uncut(1), Split::ON_HOST);
        for n in 1..40 {
            assert_eq!([Split::RESIDENT.uncut(n), Split::RESIDENT.one_up(n)], [Split::RESIDENT; 2]);
            for parts in (0..Split::WHOLE).step_by(7919) {
                let (uncut, more) = (split(parts, 0).uncut(n), split(parts, 0).uncut(n).one_up(n));
                let wholes = u64::from(parts) * n / u64::from(Split::WHOLE);
                // Each of a thousand blocks, but for one at the end.
                let device = [uncut, more].map(|split| (split.of(Tier::Device, 1000 * n) + 1) / 1000);
                assert_eq!(device, [wholes, wholes + 1], "{parts} of {n}");
            }
        }
    }
}
