//! Batches and blocks enumerated, each placed by the linear programme; the best few are worth a closer look.

use super::lp::{BlockSize, Placed, Question, place, room};
use spec::{ByTier, Bytes, Lane};
use std::cmp::Ordering;

/// Sequences of a batch that are tried.
const BATCH_SIZES: [u32; 22] =
    [1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256, 384];
/// Batches of a block that are tried.
const BLOCKS: [u32; 13] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20];

/// Blocks that are tried.
pub fn blocks() -> impl Iterator<Item = BlockSize> {
    let of = |batch_size| BLOCKS.into_iter().map(move |num_batches| BlockSize { batch_size, num_batches });
    BATCH_SIZES.into_iter().flat_map(of)
}

/// Tokens a second, as the programme sees it.
fn rate(question: &Question, placed: &Placed) -> f64 {
    let seqs = f64::from(placed.block.batch_size) * f64::from(placed.block.num_batches);
    seqs * f64::from(question.generated) / placed.seconds
}

/// The best `keep` blocks, best first.
pub fn search(question: &Question, keep: usize) -> Vec<Placed> {
    search_up_to(question, u32::MAX, keep)
}

/// The best `keep` blocks of up to `most` sequences, best first.
pub fn search_up_to(question: &Question, most: u32, keep: usize) -> Vec<Placed> {
    let blocks = blocks().filter(|block| block.batch_size * block.num_batches <= most);
    let mut found: Vec<Placed> = blocks.filter_map(|block| place(question, block)).collect();
    let order =
        |a: &Placed, b: &Placed| rate(question, b).partial_cmp(&rate(question, a)).unwrap_or(Ordering::Equal);
    found.sort_by(order);
    found.truncate(keep);
    found
}

/// Where a tier is said to bind, one more GiB of it adds this share of the tokens a second at the least.
pub const GAIN: f64 = 0.005;

/// What holds a plan back: its longest lane, and the tiers that are full and of which more would be of use. `more`: what one more GiB
/// adds ([`one_more_gib`]).
pub fn binds(question: &Question, placed: &Placed, more: ByTier<f64>) -> Vec<&'static str> {
    let longest = placed.lanes.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|lane| lane.0);
    let lane = match longest {
        Some(Lane::Host) => "attention on the host",
        Some(Lane::Up) => "copies from host to device",
        Some(Lane::Down) => "copies from device to host",
        Some(Lane::DiskRead) => "reading the drive",
        Some(Lane::DiskWrite) => "writing the drive",
        _ => "compute on the device",
    };
    let peaks = [placed.peak.device, placed.peak.host, placed.peak.disk];
    let names = ["memory of the device", "memory of the host", "room on the drive"];
    let least = GAIN * rate(question, placed);
    let gains = [more.device, more.host, more.disk].map(|more| more > least);
    let full = peaks.into_iter().zip(room(question)).zip(names).zip(gains);
    let full = full.filter(|(((peak, room), _), gains)| *peak > 0.99 * room && *gains);
    let full = full.map(|((_, name), _)| name);
    std::iter::once(lane).chain(full).collect()
}

/// Tokens a second that one more GiB of each tier would add: to the best block, or to one that stays.
pub fn one_more_gib(question: &Question, stays: Option<BlockSize>) -> ByTier<f64> {
    let best = |question: &Question| {
        let best = match stays {
            Some(block) => place(question, block),
            None => search(question, 1).into_iter().next(),
        };
        best.map_or(0.0, |placed| rate(question, &placed))
    };
    let now = best(question);
    let gain = |grow: fn(&mut Question)| {
        let mut richer = question.clone();
        grow(&mut richer);
        (best(&richer) - now).max(0.0)
    };
    const GIB: Bytes = Bytes(1 << 30);
    ByTier {
        device: gain(|question| question.hardware.device.memory += GIB),
        host: gain(|question| question.hardware.host.memory += GIB),
        disk: gain(|question| question.hardware.disk.capacity += GIB),
    }
}
