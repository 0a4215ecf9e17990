//! The policy that fits and is least unlike one that does not.

use super::case::{Case, Policy};
use super::machine::Rates;
use super::mechanism::Mechanism;
use super::memory::{excess, peak};
use super::steps::countable;
use spec::{ByTier, Placement, Split, Tier};

/// Steps in which shares are tried, of a whole.
const STEPS: u32 = 10;

/// Other shares of the same block; where none fit, those of a block of fewer batches, then of as many smaller ones. Nothing where
/// not even one sequence fits.
pub fn nearest(case: &Case, rates: Rates, mechanism: Mechanism) -> Option<Case> {
    let mut near = *case;
    loop {
        if let Some(found) = other_shares(&near, rates, mechanism) {
            return Some(found);
        }
        let one = Case { policy: Policy { num_batches: 1, ..near.policy }, ..near };
        let policy = &mut near.policy;
        match (policy.num_batches, policy.batch_size) {
            (2.., _) if may_fit(&one, rates, mechanism) => policy.num_batches /= 2,
            (_, 1) => return None,
            _ => (policy.num_batches, policy.batch_size) = (case.policy.num_batches, policy.batch_size / 2),
        }
    }
}

/// What no shares change: device and host hold the least with everything on the drive, and all tiers together must hold all.
fn may_fit(case: &Case, rates: Rates, mechanism: Mechanism) -> bool {
    if !countable(case, mechanism) {
        return false;
    }
    let placement = Placement { weights: Split::ON_DISK, kv: Split::ON_DISK, hidden: Split::ON_DISK };
    let least = peak(&Case { policy: Policy { placement, ..case.policy }, ..*case }, rates, mechanism);
    let spare = rates.device_bytes + rates.host_bytes + rates.disk_bytes - least.device - least.host;
    least.device <= rates.device_bytes && least.host <= rates.host_bytes && least.disk <= spare
}

fn other_shares(case: &Case, rates: Rates, mechanism: Mechanism) -> Option<Case> {
    if !may_fit(case, rates, mechanism) {
        return None;
    }
    let asked = case.policy.placement;
    let mut best: Option<(u64, Case)> = None;
    let [weights, kv, hidden] = [asked.weights, asked.kv, asked.hidden].map(splits);
    for (near_weights, weights) in weights {
        for &(near_kv, kv) in &kv {
            for &(near_hidden, hidden) in &hidden {
                let distance = near_weights + near_kv + near_hidden;
                if best.as_ref().is_some_and(|(least, _)| *least <= distance) {
                    continue;
                }
                let mut found = *case;
                found.policy.placement = Placement { weights, kv, hidden };
                if countable(&found, mechanism) && excess(&found, rates, mechanism).is_empty() {
                    best = Some((distance, found));
                }
            }
        }
    }
    best.map(|(_, case)| case)
}

/// The split that was asked for and all in whole steps, each with its distance; the nearest first, and of those that
/// are as near the one with least on the drive and then on the host.
fn splits(asked: Split) -> Vec<(u64, Split)> {
    let step = Split::WHOLE / STEPS;
    let grid =
        (0..=STEPS).flat_map(|device| (0..=STEPS - device).map(move |host| (device * step, host * step)));
    let grid = grid.filter_map(|(device, host)| {
        Split::new(ByTier { device, host, disk: Split::WHOLE - device - host }).ok()
    });
    let far = |split: &Split| {
        Tier::ALL.into_iter().map(|tier| u64::from(split.part(tier).abs_diff(asked.part(tier)))).sum::<u64>()
    };
    let mut found: Vec<(u64, Split)> =
        std::iter::once(asked).chain(grid).map(|split| (far(&split), split)).collect();
    found.sort_by_key(|(distance, split)| (*distance, split.part(Tier::Disk), split.part(Tier::Host)));
    found
}
