//! The codes of a tile as bytes, four of k of one row beside each other, with AVX2.
//!
//! ```text
//! step of 4 k (8) · row (16) · k (4)      64 bytes a step: 16 rows, each a word of 32 bits
//! ```

pub(super) mod wide;

use std::arch::x86_64::*;

use super::super::plan::{CodeOrder, Layout};
use super::super::x86::{codes_of_rows, halves, store_lines};
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
    for two_steps in 0..4 {
        for eight in 0..2 {
            // SAFETY: the caller's.
            unsafe {
                let [even, odd] = of_planes::<L>(low, high, two_steps, eight);
                let out = out.add(2 * STEP * two_steps + EIGHT_ROWS * eight);
                _mm256_storeu_si256(out.cast(), even);
                _mm256_storeu_si256(out.add(STEP).cast(), odd);
            }
        }
    }
}

/// Eight k of eight rows out of planes of bits, whose lanes of 32 bits are a row and whether k is odd, in which the half-vectors
/// follow each other: a word for each row of the four even k, and one of the odd ones.
///
/// # Safety
/// As [`write`].
#[inline]
#[target_feature(enable = "avx2")]
pub(in super::super) unsafe fn of_planes<L: Layout>(
    low: *const u8,
    high: *const u8,
    two_steps: usize,
    eight: usize,
) -> [__m256i; 2] {
    let bits = L::PLAN.low_bits;
    let codes = |vector: usize| {
        // SAFETY: the planes hold all half-vectors.
        unsafe {
            let bottom = plane(bits, low, two_steps, eight, vector);
            match L::PLAN.high_bits {
                0 => bottom,
                high_bits => {
                    let top = plane(high_bits, high, two_steps, eight, vector);
                    // Nothing crosses from byte to byte: a code has 6 bits at most.
                    _mm256_or_si256(bottom, _mm256_sll_epi16(top, _mm_cvtsi32_si128(bits as i32)))
                }
            }
        }
    };
    // Of rows 0 1 4 5 and of rows 2 3 6 7.
    let (first, second) = (_mm256_castsi256_ps(codes(0)), _mm256_castsi256_ps(codes(1)));
    let even = _mm256_shuffle_ps::<0b10_00_10_00>(first, second);
    let odd = _mm256_shuffle_ps::<0b11_01_11_01>(first, second);
    [_mm256_castps_si256(even), _mm256_castps_si256(odd)]
}

/// The bits of two steps as bytes, from a plane of 1, 2 or 4 bits a code.
///
/// # Safety
/// The plane can be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn plane(bits: usize, plane: *const u8, two_steps: usize, eight: usize, vector: usize) -> __m256i {
    // SAFETY: a vector of 64 bytes holds 32 / bits half-vectors, eight of them two steps.
    let words = unsafe {
        let at = plane.add(64 * (8 * two_steps * bits / 32) + 16 * vector);
        halves(at, at.add(32))
    };
    match bits {
        4 => nibbles(words, eight),
        2 => pairs_of_bits(words, two_steps, eight),
        _ => single_bits(words, two_steps, eight),
    }
}

/// The four nibbles of even number, or those of odd number: rows of the first eight, or of the second.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles(words: __m256i, eight: usize) -> __m256i {
    let words = if eight == 0 { words } else { _mm256_srli_epi16::<4>(words) };
    _mm256_and_si256(words, _mm256_set1_epi8(15))
}

/// Two steps are one half of each word: four nibbles, whose lower or upper two bits it is.
#[inline]
#[target_feature(enable = "avx2")]
fn pairs_of_bits(words: __m256i, two_steps: usize, eight: usize) -> __m256i {
    let twice = spread(words, if two_steps.is_multiple_of(2) { [0, 0, 1, 1] } else { [2, 2, 3, 3] });
    let twice = if eight == 0 { twice } else { _mm256_srli_epi16::<2>(twice) };
    let lower = _mm256_and_si256(twice, _mm256_set1_epi16(0x0003));
    _mm256_or_si256(lower, _mm256_and_si256(_mm256_srli_epi16::<4>(twice), _mm256_set1_epi16(0x0300)))
}

/// Two steps are one byte of each word, and every other bit of it.
#[inline]
#[target_feature(enable = "avx2")]
fn single_bits(words: __m256i, two_steps: usize, eight: usize) -> __m256i {
    let bits = _mm256_set1_epi32(0x4010_0401 << eight);
    let set = _mm256_and_si256(spread(words, [two_steps as i8; 4]), bits);
    _mm256_and_si256(_mm256_cmpeq_epi8(set, bits), _mm256_set1_epi8(1))
}

/// These four bytes of each word of 32 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn spread(words: __m256i, which: [i8; 4]) -> __m256i {
    let of_first = _mm256_set1_epi32(i32::from_le_bytes(which.map(i8::cast_unsigned)));
    let lanes =
        _mm256_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c, 0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c);
    _mm256_shuffle_epi8(words, _mm256_add_epi8(of_first, lanes))
}
