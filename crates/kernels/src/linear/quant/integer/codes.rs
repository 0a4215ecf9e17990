//! The codes of a tile as bytes, four of k of one row beside each other, with AVX2.
//!
//! ```text
//! step of 4 k (8) · row (16) · k (4)      64 bytes a step: 16 rows, each a word of 32 bits
//! ```

pub(super) mod wide;

use std::arch::x86_64::*;

use super::super::plan::{CodeOrder, Layout};
use super::super::x86::{codes_of_rows, store_lines, words};
use super::rounded::Order;

/// Bytes of a tile of one group.
pub(super) const TILE_CODES: usize = 512;
/// Bytes of eight rows in a step.
pub(super) const EIGHT_ROWS: usize = 32;
/// Bytes of all rows in a step.
pub(super) const STEP: usize = 2 * EIGHT_ROWS;

/// In which order of k the eight of two steps lie.
pub(super) const fn order<L: Layout>() -> Order {
    if L::PLAN.low_bits == 8 || matches!(L::PLAN.order(), CodeOrder::ByRow) {
        Order::Natural
    } else {
        Order::EvensFirst
    }
}

/// # Safety
/// The machine has AVX2; `low` and `high` point at a tile's planes, `out` at room for [`TILE_CODES`].
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn write<L: Layout>(low: *const u8, high: *const u8, out: *mut u8) {
    // SAFETY: passed on.
    unsafe {
        match (L::PLAN.order(), L::PLAN.low_bits) {
            (CodeOrder::ByRow, _) => by_row(low, out),
            (CodeOrder::ByLine, 8) => bytes(low, out),
            (CodeOrder::ByLine, _) => planes::<L>(low, high, out),
        }
    }
}

/// Nibbles of four rows in a word for each k.
///
/// # Safety
/// As [`write`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn by_row(low: *const u8, out: *mut u8) {
    for eight in 0..2 {
        for half in 0..2 {
            // SAFETY: 64 bytes for every four rows, half of them for 16 k, which are four steps.
            unsafe {
                let rows = codes_of_rows(low.add(128 * eight + 32 * half));
                store_lines(rows, out.add(4 * STEP * half + EIGHT_ROWS * eight));
            }
        }
    }
}

/// Bytes of pairs of k of eight rows.
///
/// # Safety
/// As [`write`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn bytes(low: *const u8, out: *mut u8) {
    for step in 0..8 {
        for eight in 0..2 {
            // The pairs of rows 0 to 3 in the lower half of a vector, those of rows 4 to 7 in the upper one.
            // SAFETY: 16 bytes for each of 32 half-vectors.
            let pair = |i: usize| unsafe {
                let at = low.add(16 * (2 * (2 * step + i) + eight));
                _mm256_permute4x64_epi64::<0b0001_0000>(_mm256_castsi128_si256(_mm_loadu_si128(at.cast())))
            };
            let codes = _mm256_unpacklo_epi16(pair(0), pair(1));
            // SAFETY: the caller's.
            unsafe { _mm256_storeu_si256(out.add(STEP * step + EIGHT_ROWS * eight).cast(), codes) };
        }
    }
}

/// Planes of bits.
///
/// # Safety
/// As [`write`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn planes<L: Layout>(low: *const u8, high: *const u8, out: *mut u8) {
    let put = |two_steps: usize, eight: usize, [even, odd]: [__m256i; 2]| {
        // SAFETY: two of eight steps.
        unsafe {
            let out = out.add(2 * STEP * two_steps + EIGHT_ROWS * eight);
            _mm256_storeu_si256(out.cast(), even);
            _mm256_storeu_si256(out.add(STEP).cast(), odd);
        }
    };
    // SAFETY: the caller's.
    unsafe { words::<L>(low, high, put) };
}
