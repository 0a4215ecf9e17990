//! What this machine can do at best, right now: the two figures that kernel speeds are held against.
//!
//! Clocks drift and neighbours make noise, so measure these in the same minutes as what they judge.

use std::time::Instant;

use crate::aligned::AlignedBytes;
use crate::team::Team;

/// Long enough that a large shared cache hardly helps.
const READ_BYTES: usize = 768 << 20;
const PIECE_BYTES: usize = 64 << 20;
const REPEATS: usize = 15;

/// Memory that [`read_bandwidth`] reads, for those who measure more than once.
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
            team.run(|worker| {
                let lines = piece.as_chunks::<64>().0;
                std::hint::black_box(sum(&lines[worker.share(lines.len())]));
            });
            PIECE_BYTES as f64 / start.elapsed().as_secs_f64()
        });
        best(pieces)
    }
}

/// Bytes per second that the team reads together (see [`ReadRegion::bandwidth`]). Allocates 768 MiB.
pub fn read_bandwidth(team: &Team) -> f64 {
    ReadRegion::default().bandwidth(team)
}

/// Operations per second, at best, of the team's tile registers with nothing but registers at work; nothing on a
/// machine without AMX.
pub fn amx_rate(team: &Team) -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    if crate::Isa::Amx.available() {
        return Some(best((0..REPEATS).map(|_| {
            const STEPS: usize = 50_000;
            let start = Instant::now();
            team.run(|_| crate::linear::multiply_registers(STEPS));
            // Four products of 16 x 16 outputs over 32 k in each step.
            (STEPS * team.threads()) as f64 * 4.0 * 16_384.0 / start.elapsed().as_secs_f64()
        })));
    }
    let _ = team;
    None
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
    fn amx_is_measured_where_it_is() {
        let rate = amx_rate(&Team::new(1));
        assert_eq!(rate.is_some(), crate::Isa::Amx.available());
        assert!(rate.is_none_or(|rate| rate > 0.0));
    }

    #[test]
    fn sums_are_right() {
        let lines = vec![[1u8; 64]; 10];
        assert_eq!(sum(&lines), 80u64.wrapping_mul(0x0101_0101_0101_0101));
    }
}
