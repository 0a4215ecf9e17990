//! Where the bytes of a layer's weights really are: whole tensors, as FlexGen's code places them, or slices of them.

use super::mechanism::Grain;
use policy::cost::Dims;
use spec::{ByTier, Part, Split, Tier};

/// Elements of a part on each tier.
///
/// FlexGen goes through the tensors of a part in order and gives each whole to the tier in whose range the middle of the
/// tensor falls, drive first, then host, then device: asked for 20 % on the device and the rest on the host it puts
/// 8.3 % there (a quarter of the attention's third).
pub(super) fn elements(dims: &Dims, part: Part, split: Split, grain: Grain) -> ByTier<f64> {
    let mut found = ByTier::default();
    match grain {
        Grain::Slices => Tier::ALL.into_iter().for_each(|tier| {
            found[tier] = dims.part(part) * f64::from(split.part(tier)) / f64::from(Split::WHOLE);
        }),
        Grain::WholeTensors => {
            let total = dims.part(part);
            let mut before = 0.0;
            for size in tensors(dims, part) {
                found[home(split, (before + size / 2.0) / total)] += size;
                before += size;
            }
        }
    }
    found
}

/// Sizes of the matrices of a part, in the order in which FlexGen lists them.
pub(super) fn tensors(dims: &Dims, part: Part) -> Vec<f64> {
    match part {
        Part::Attention(_) => {
            let (q, kv) = (dims.out(), (dims.qkv() - dims.out()) / 2.0);
            vec![q, kv, kv, dims.out()]
        }
        Part::Mlp(_) => vec![dims.mlp() / dims.mlp_matrices as f64; dims.mlp_matrices as usize],
        Part::Embed | Part::Head => vec![dims.part(part)],
    }
}

fn home(split: Split, middle: f64) -> Tier {
    let share = |tier| f64::from(split.part(tier)) / f64::from(Split::WHOLE);
    // Biases and norms follow the matrices, so that a middle that seems to lie on a border lies before it.
    match middle - 1e-9 {
        middle if middle < share(Tier::Disk) => Tier::Disk,
        middle if middle < share(Tier::Disk) + share(Tier::Host) => Tier::Host,
        // Rounding must not give the device what it was not asked to hold.
        _ if split.part(Tier::Device) == 0 && split.part(Tier::Host) > 0 => Tier::Host,
        _ if split.part(Tier::Device) == 0 => Tier::Disk,
        _ => Tier::Device,
    }
}

const PERCENT: u32 = Split::WHOLE / 100;

/// What whole tensors make of a split, of a layer's weights on a tier, in parts of [`Split::WHOLE`].
fn real(dims: &Dims, split: Split, tier: Tier) -> f64 {
    let parts = [Part::Attention(0), Part::Mlp(0)];
    let found = parts.map(|part| elements(dims, part, split, Grain::WholeTensors)[tier]);
    found.iter().sum::<f64>() / dims.layer() * f64::from(Split::WHOLE)
}

fn percents(device: u32, host: u32) -> Split {
    let (device, host) = (device * PERCENT, host * PERCENT);
    Split::new(ByTier { device, host, disk: Split::WHOLE - device - host }).expect("the rest is on the drive")
}

/// The shares on the device that whole tensors come to, whatever is asked for.
pub(super) fn steps(dims: &Dims) -> Vec<f64> {
    let whole = f64::from(Split::WHOLE);
    let mut all: Vec<f64> =
        (0..=100).map(|device| real(dims, percents(device, 100 - device), Tier::Device) / whole).collect();
    all.dedup_by(|a, b| (*a - *b).abs() < 1e-9);
    all
}

/// The least to ask for so that whole tensors come nearest to these shares and do not overshoot them, on the device and on the
/// host. More of a tier is never less of it, so that both are found by halves.
pub(super) fn reachable(dims: &Dims, asked: Split) -> Split {
    let nearest = |most: u32, tier: Tier, split: &dyn Fn(u32) -> Split| {
        let found = |share: u32| real(dims, split(share), tier);
        let room = f64::from(asked.part(tier)) + 1.0;
        let above = first(most + 1, |share| found(share) > room);
        let best = found(above.saturating_sub(1));
        first(above, |share| found(share) >= best).min(most)
    };
    let device = nearest(100, Tier::Device, &|device| percents(device, 100 - device));
    if asked.part(Tier::Disk) == 0 {
        return percents(device, 100 - device);
    }
    percents(device, nearest(100 - device, Tier::Host, &|host| percents(device, host)))
}

/// The first below `end` of which something is true that stays so from there on, or `end`.
fn first(end: u32, is_true: impl Fn(u32) -> bool) -> u32 {
    let (mut from, mut to) = (0, end);
    while from < to {
        let middle = (from + to) / 2;
        if is_true(middle) {
            to = middle;
        } else {
            from = middle + 1;
        }
    }
    from
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device_percent(device: u32, host: u32) -> [f64; 3] {
        let part = |percent: u32| percent * 10_000;
        let split =
            Split::new(ByTier { device: part(device), host: part(host), disk: part(100 - device - host) });
        let (dims, split) = (Dims::named("opt-30b").expect("named"), split.expect("adds up"));
        let parts =
            [Part::Attention(0), Part::Mlp(0)].map(|part| elements(&dims, part, split, Grain::WholeTensors));
        let on = |tier| parts.iter().map(|found| found[tier]).sum::<f64>() / dims.layer() * 1000.0;
        Tier::ALL.map(|tier| on(tier).round() / 10.0)
    }

    /// The steps of FlexGen's real placement, as computed from its released code.
    #[test]
    fn whole_tensors_move_in_steps() {
        let real =
            [(4, 0.0), (10, 0.0), (20, 8.3), (25, 8.3), (30, 41.7), (50, 50.0), (60, 50.0), (70, 58.3)];
        for (asked, found) in real.into_iter().chain([(80, 91.7), (90, 100.0)]) {
            assert_eq!(device_percent(asked, 100 - asked)[0], found, "{asked} % asked for");
        }
        assert_eq!(device_percent(0, 50), [0.0, 50.0, 50.0]);
        assert_eq!(device_percent(0, 25), [0.0, 8.3, 91.7]);
    }

    #[test]
    fn slices_are_what_was_asked_for() {
        let dims = Dims::named("opt-30b").expect("named");
        let split = Split::new(ByTier { device: 200_000, host: 800_000, disk: 0 }).expect("adds up");
        let found = elements(&dims, Part::Mlp(3), split, Grain::Slices);
        assert_eq!(found.device * 4.0, found.host);
    }

    /// Each share that whole tensors come to is found from itself, and nothing beside it.
    #[test]
    fn what_is_reached_is_no_more_than_asked_and_the_nearest() {
        let dims = Dims::named("opt-30b").expect("named");
        let steps = steps(&dims);
        assert!(steps.len() > 4 && steps.is_sorted(), "{steps:?}");
        for two in steps.windows(2) {
            for asked in [two[0], (two[0] + two[1]) / 2.0] {
                let device = (asked * f64::from(Split::WHOLE)).round() as u32;
                let asked = Split::new(ByTier { device, host: Split::WHOLE - device, disk: 0 });
                let reached = reachable(&dims, asked.expect("adds up"));
                let found = real(&dims, reached, Tier::Device) / f64::from(Split::WHOLE);
                assert!((found - two[0]).abs() < 1e-6, "{device}: {found}");
            }
        }
    }
}
