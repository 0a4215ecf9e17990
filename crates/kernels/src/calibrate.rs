//! What this machine can do at best, right now: the two figures that kernel speeds are held against.
//!
//! Clocks drift and neighbours make noise, so measure these in the same minutes as what they judge.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::aligned::AlignedBytes;
use crate::isa::Isa;
use crate::team::Team;

/// Long enough that a large shared cache hardly helps.
const READ_BYTES: usize = 768 << 20;
const PIECE_BYTES: usize = 64 << 20;
/// Read to have other things leave the caches: several times what two cores' share of a large one holds.
const SWEPT_BYTES: usize = 256 << 20;
const REPEATS: usize = 15;

/// Memory that is read to find out how fast that is: 768 MiB.
#[derive(Debug)]
pub struct ReadRegion(AlignedBytes);

impl Default for ReadRegion {
    fn default() -> ReadRegion {
        let mut bytes = AlignedBytes::zeroed(READ_BYTES);
        // Not all zero, lest pages be merged.
        bytes.iter_mut().step_by(64).enumerate().for_each(|(i, byte)| *byte = i as u8);
        ReadRegion(bytes)
    }
}

impl ReadRegion {
    /// Bytes per second that the team reads together, plainly, each worker one stretch: the best of the
    /// 64 MiB pieces of 768 MiB (short pieces, so that one of them finds the machine undisturbed).
    pub fn bandwidth(&self, team: &Team) -> f64 {
        let pieces = self.0.chunks_exact(PIECE_BYTES).map(|piece| {
            let start = Instant::now();
            read(team, piece);
            PIECE_BYTES as f64 / start.elapsed().as_secs_f64()
        });
        best(pieces)
    }

    /// Has whatever the caches hold leave them, so that what is timed next reads memory.
    pub fn sweep(&self, team: &Team) {
        read(team, &self.0[..SWEPT_BYTES]);
    }
}

fn read(team: &Team, bytes: &[u8]) {
    team.run(|worker| {
        let lines = bytes.as_chunks::<64>().0;
        std::hint::black_box(sum(&lines[worker.share(lines.len())]));
    });
}

/// Bytes per second that one thread copies from memory to memory, `piece_bytes` at a time: the median of three. Allocates six
/// pieces.
pub fn copy_bandwidth(piece_bytes: usize) -> f64 {
    let in_all = 3 * piece_bytes;
    let mut bytes = AlignedBytes::zeroed(2 * in_all);
    bytes.iter_mut().step_by(64).enumerate().for_each(|(i, byte)| *byte = i as u8);
    let (from, to) = bytes.split_at_mut(in_all);
    let pieces = from.chunks_exact(piece_bytes).zip(to.chunks_exact_mut(piece_bytes));
    let mut rates: Vec<f64> = pieces
        .map(|(from, to)| {
            let start = Instant::now();
            to.copy_from_slice(from);
            std::hint::black_box(&to);
            piece_bytes as f64 / start.elapsed().as_secs_f64()
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// One thread copies from memory to memory, `piece_bytes` at a time, until it is told to stop, and counts the bytes. Allocates
/// six pieces.
pub fn copy_until(piece_bytes: usize, stop: &AtomicBool, copied: &AtomicU64) {
    let in_all = 3 * piece_bytes;
    let mut bytes = AlignedBytes::zeroed(2 * in_all);
    bytes.iter_mut().step_by(64).enumerate().for_each(|(i, byte)| *byte = i as u8);
    let (from, to) = bytes.split_at_mut(in_all);
    for piece in (0..in_all).step_by(piece_bytes).cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
        let range = piece..piece + piece_bytes;
        to[range.clone()].copy_from_slice(&from[range]);
        std::hint::black_box(&to);
        copied.fetch_add(piece_bytes as u64, Ordering::Relaxed);
    }
}

/// Operations per second, at best, of the team's bf16 products with nothing but registers at work: tiles for
/// [`Isa::Amx`], pairs for [`Isa::Avx512Bf16`], products of floats for AVX2 and AVX-512; nothing for the scalar family,
/// or what the machine lacks.
pub fn product_rate(team: &Team, isa: Isa) -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    match isa {
        // Four products of 16 x 16 outputs over 32 k in each step.
        Isa::Amx if isa.available() => {
            return Some(rate(team, 4.0 * 16_384.0, crate::linear::multiply_registers));
        }
        // 24 products of 16 outputs over 2 k in each.
        Isa::Avx512Bf16 if isa.available() => {
            return Some(rate(team, 24.0 * 64.0, |steps| {
                // SAFETY: just checked.
                std::hint::black_box(unsafe { crate::linear::multiply_pairs(steps) });
            }));
        }
        // Products of 8 or 16 outputs.
        Isa::Avx2 | Isa::Avx512 if isa.available() => {
            let outputs = if isa == Isa::Avx2 { 8.0 } else { 16.0 };
            return Some(rate(team, crate::linear::FLOAT_SUMS as f64 * 2.0 * outputs, |steps| {
                std::hint::black_box(crate::linear::multiply_floats(isa, steps));
            }));
        }
        _ => {}
    }
    let _ = (team, isa);
    None
}

/// Operations per second of steps that are so many operations each.
#[cfg(target_arch = "x86_64")]
fn rate(team: &Team, operations: f64, run: impl Fn(usize) + Sync) -> f64 {
    const STEPS: usize = 50_000;
    best((0..REPEATS).map(|_| {
        let start = Instant::now();
        team.run_on(team.size(), |_| run(STEPS));
        (STEPS * team.size()) as f64 * operations / start.elapsed().as_secs_f64()
    }))
}

fn sum(lines: &[[u8; 64]]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if crate::Isa::Avx2.available() {
        // SAFETY: just checked.
        return unsafe { sum_avx2(lines) };
    }
    sum_plain(lines)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2(lines: &[[u8; 64]]) -> u64 {
    sum_plain(lines)
}

#[inline(always)]
fn sum_plain(lines: &[[u8; 64]]) -> u64 {
    let mut sums = [0u64; 8];
    for line in lines {
        for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}

fn best(rates: impl Iterator<Item = f64>) -> f64 {
    rates.fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_measured_where_they_are() {
        for isa in Isa::ALL {
            let rate = product_rate(&Team::new(1), isa);
            assert_eq!(rate.is_some(), isa != Isa::Scalar && isa.available(), "{isa}");
            assert!(rate.is_none_or(|rate| rate > 0.0));
        }
    }

    #[test]
    fn sums_are_right() {
        let lines = vec![[1u8; 64]; 10];
        assert_eq!(sum(&lines), 80u64.wrapping_mul(0x0101_0101_0101_0101));
    }
}
