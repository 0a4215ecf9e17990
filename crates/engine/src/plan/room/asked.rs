//! Shares of weights that were asked for, and those near them that fit.

use model::store::Cut;
use spec::{ByTier, Split, Tier};

use super::{Kv, Room, WeightBytes, blocks_of, largest};
use crate::plan::hold::Hold;
use crate::plan::homes::KvHomes;
use crate::plan::too_small::TooSmall;

/// No more weights than this make way where shares miss by a little.
const LITTLE_BYTES: u64 = 64 << 20;

impl Room<'_> {
    /// The shares of all weights that were asked for: embeddings and head count, and are always on the device. Shares that
    /// another process found to fit exactly miss by a little in one that is a little larger: a few panels fewer are as good,
    /// and KV is what was planned.
    ///
    /// # Errors
    /// [`TooSmall`], if that does not fit.
    pub(crate) fn cut_exactly(&self, split: Split) -> Result<(Hold, Cut), TooSmall> {
        let split = if self.has_all_kv(split) { split } else { self.little_less(split).unwrap_or(split) };
        let (device, host) = self.of_layers(split);
        let weights = self.bytes_at(device, host);
        let hold = self.hold(&weights, Kv::Wanted)?;
        self.check_drive(&weights, || Ok(hold))?;
        Ok((Hold { weight_share: split, ..hold }, self.cut_at(device, host)))
    }

    /// The most of these shares that leaves all KV its room, if that is little less: what leaves the host goes to the drive,
    /// and what leaves the device where other weights are already.
    fn little_less(&self, split: Split) -> Option<Split> {
        let parts = |tier| split.part(tier);
        // Nobody who keeps all weights in memory is made to pack them all for a few.
        let (on_drive, to_host) = (parts(Tier::Disk) > 0, self.has_host() && parts(Tier::Disk) == 0);
        if split.part(Tier::Device) == Split::WHOLE || !(on_drive || to_host) {
            return None;
        }
        let less = |device: u32, host: u32| {
            let (device, host) = (parts(Tier::Device) - device, parts(Tier::Host) - host);
            let left = Split::WHOLE - device;
            let host = if to_host { left } else { host };
            Split::new(ByTier { device, host, disk: left - host }).ok()
        };
        // On the host first: its memory holds nothing of the device's where they are apart.
        let on_host = if on_drive { self.little().min(parts(Tier::Host)) } else { 0 };
        let first = least(on_host, |host| less(0, host).is_some_and(|split| self.host_fits(split)))?;
        let on_device = self.little().min(parts(Tier::Device));
        let device_beside =
            |host| least(on_device, |device| less(device, host).is_some_and(|split| self.has_all_kv(split)));
        // Panels are rounded: with others on the device there may be one more on the host.
        let mut hosts = (0..=8).map(|eighths| first + (on_host - first) * eighths / 8);
        hosts.find_map(|host| less(device_beside(host)?, host))
    }

    /// What is a little of all weights: up to 64 MiB, but no more than a fiftieth of the process's memory. For the device as
    /// for the host, as what leaves the host for the drive makes the device's slots larger.
    fn little(&self) -> u32 {
        let bytes = LITTLE_BYTES.min(self.budget.memory() / 50);
        let parts = bytes * u64::from(Split::WHOLE) / self.layout.bytes().max(1);
        parts.min(u64::from(Split::WHOLE)) as u32
    }

    /// Whether all KV that is wanted has room beside these shares, and weights may be where they put them.
    fn has_all_kv(&self, split: Split) -> bool {
        let (weights, homes) = self.with_all_kv(split);
        let long = homes.longest() >= blocks_of(self.shortest());
        let drive = self.check_drive(&weights, || self.hold(&weights, Kv::Wanted)).is_ok();
        long && drive && self.fits(&self.needs(&weights, &homes), &weights)
    }

    /// Whether the host, where it is apart, has room for its part.
    fn host_fits(&self, split: Split) -> bool {
        let (weights, homes) = self.with_all_kv(split);
        !self.has_host() || self.needs(&weights, &homes).host <= self.budget.host(0)
    }

    fn with_all_kv(&self, split: Split) -> (WeightBytes, KvHomes) {
        let (device, host) = self.of_layers(split);
        (self.bytes_at(device, host), self.homes.of(self.homes.blocks_for(self.wanted())))
    }

    /// Shares of weights that fit, those asked for if they do: else whole percents near them, less on the device first, then
    /// less on the host; else, for want of a drive, nothing on it.
    pub(crate) fn nearest(&self, split: Split) -> Option<Split> {
        if self.cut_exactly(split).is_ok() {
            return Some(split);
        }
        let percent = Split::WHOLE / 100;
        let (device, host) = (split.part(Tier::Device) / percent, split.part(Tier::Host) / percent);
        let fits = |device: u32, host: u32| {
            let parts = ByTier { device, host, disk: 100 - device - host };
            let split = Split::new(parts.map(|parts| parts * percent)).ok()?;
            let (device, host) = self.of_layers(split);
            let weights = self.bytes_at(device, host);
            let hold = self.hold(&weights, Kv::Wanted).ok()?;
            self.check_drive(&weights, || Ok(hold)).ok()?;
            Some(split)
        };
        let Some(fitting) = (0..=device).rev().find(|&device| fits(device, 0).is_some()) else {
            let mut near: Vec<u32> = (0..=100).collect();
            near.sort_by_key(|other| other.abs_diff(device));
            return near.into_iter().find_map(|device| fits(device, 100 - device));
        };
        let most = host + (device - fitting);
        (0..=most).rev().find_map(|host| fits(fitting, host))
    }
}

/// The least of up to `most` that will do, if more does; nothing if not even that.
fn least(most: u32, does: impl Fn(u32) -> bool) -> Option<u32> {
    does(most).then(|| most - largest(most, |less| does(most - less)))
}
