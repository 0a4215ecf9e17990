//! Linear expressions of the nine shares, and the lanes whose times are such.

use spec::{Lane, Tier};

/// Shares, in the order weights, KV, activations, each on device, host, drive.
pub(super) const SHARES: usize = 9;

/// A linear expression of the shares.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    pub(super) shares: [f64; SHARES],
    pub(super) constant: f64,
}

/// What is placed.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Weights = 0,
    Kv = 3,
    Hidden = 6,
}

impl Sum {
    pub(super) fn constant(constant: f64) -> Sum {
        Sum { constant, ..Sum::default() }
    }

    pub(super) fn with(mut self, kind: Kind, tier: Tier, times: f64) -> Sum {
        self.shares[kind as usize + tier as usize] += times;
        self
    }

    /// Of what is not on the device.
    pub(super) fn away(self, kind: Kind, times: f64) -> Sum {
        self.with(kind, Tier::Host, times).with(kind, Tier::Disk, times)
    }

    pub(super) fn plus(mut self, other: Sum, times: f64) -> Sum {
        self.shares.iter_mut().zip(other.shares).for_each(|(mine, theirs)| *mine += times * theirs);
        self.constant += times * other.constant;
        self
    }

    /// What shares of a kind on these tiers add.
    pub(super) fn of(&self, kind: Kind, tiers: &[Tier]) -> Sum {
        let terms = tiers.iter().map(|&tier| (tier, self.shares[kind as usize + tier as usize]));
        terms.fold(Sum::default(), |sum, (tier, times)| sum.with(kind, tier, times))
    }

    pub(super) fn at(&self, shares: &[f64; SHARES]) -> f64 {
        self.constant + self.shares.iter().zip(shares).map(|(a, b)| a * b).sum::<f64>()
    }

    pub(super) fn largest(&self) -> f64 {
        self.shares.iter().fold(self.constant.abs(), |most, share| most.max(share.abs()))
    }
}

/// Time on each lane.
pub(super) type Lanes = [Sum; 6];
/// Their order.
pub(super) const LANES: [Lane; 6] =
    [Lane::Device, Lane::Host, Lane::Up, Lane::Down, Lane::DiskRead, Lane::DiskWrite];

/// A round of algorithm 1: compute on device and host follow each other; copies run beside them. Those up come in turn,
/// weights, KV, activations, and what comes of the drive first waits for its reading.
pub(super) fn serial(lanes: Lanes) -> Vec<Sum> {
    let [device, host, up, down, read, write] = lanes;
    let from_drive = up.of(Kind::Weights, &[Tier::Disk]);
    let turns = [Kind::Weights, Kind::Kv, Kind::Hidden]
        .map(|kind| (read.of(kind, &Tier::ALL), up.of(kind, &Tier::ALL)));
    let [(weights, _), (kv, kv_up), (hidden, hidden_up)] = turns;
    let sum = |of: &[Sum]| of.iter().fold(Sum::default(), |sum, term| sum.plus(*term, 1.0));
    let waits = [
        sum(&[weights, from_drive, kv_up, hidden_up]),
        sum(&[weights, kv, kv_up, hidden_up]),
        sum(&[weights, kv, hidden, hidden_up]),
    ];
    [device.plus(host, 1.0), up, down, read, write].into_iter().chain(waits).collect()
}

pub(super) fn add(mut lanes: Lanes, other: Lanes, times: f64) -> Lanes {
    lanes.iter_mut().zip(other).for_each(|(mine, theirs)| *mine = mine.plus(theirs, times));
    lanes
}
