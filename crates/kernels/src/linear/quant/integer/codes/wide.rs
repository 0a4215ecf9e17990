//! The same codes in registers of 512 bits: a step of 4 k of all 16 rows each.

use std::arch::x86_64::*;

use super::super::super::plan::{CodeOrder, Layout};
use super::super::super::x86::eight_k_by_row;

/// Steps of a group.
pub(in super::super) const STEPS: usize = 8;

/// # Safety
/// The machine has these features; `low` and `high` point at a tile's planes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(in super::super) unsafe fn steps<L: Layout>(low: *const u8, high: *const u8) -> [__m512i; STEPS] {
    let mut steps = [_mm512_setzero_si512(); STEPS];
    for (i, two) in steps.chunks_exact_mut(2).enumerate() {
        // SAFETY: passed on.
        [two[0], two[1]] = unsafe {
            match (L::PLAN.order(), L::PLAN.low_bits) {
                (CodeOrder::ByRow, _) => by_row(low, i),
                (CodeOrder::ByLine, 8) => [bytes(low, 2 * i), bytes(low, 2 * i + 1)],
                (CodeOrder::ByLine, _) => planes::<L>(low, high, i),
            }
        };
    }
    steps
}

/// Nibbles of four rows in a word for each k.
///
/// # Safety
/// As [`steps`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn by_row(low: *const u8, two_steps: usize) -> [__m512i; 2] {
    // In each quarter the bytes of four k beside each other: rows 0 and 1, rows 2 and 3, then those of the next step.
    let together =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    // SAFETY: the caller's.
    let words = unsafe { _mm512_shuffle_epi8(eight_k_by_row(low, two_steps), together) };
    let nibble = _mm512_set1_epi8(15);
    let even = _mm512_and_si512(words, nibble);
    let odd = _mm512_and_si512(_mm512_srli_epi16::<4>(words), nibble);
    [_mm512_unpacklo_epi32(even, odd), _mm512_unpackhi_epi32(even, odd)]
}

/// Bytes of two pairs of k of all rows, one pair after the other.
///
/// # Safety
/// As [`steps`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn bytes(low: *const u8, step: usize) -> __m512i {
    #[rustfmt::skip]
    const BESIDE: [u16; 32] = [
        0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31,
    ];
    // SAFETY: 64 bytes of each; 64 for every step.
    unsafe {
        let beside = _mm512_loadu_si512(BESIDE.as_ptr().cast());
        _mm512_permutexvar_epi16(beside, _mm512_loadu_si512(low.add(64 * step).cast()))
    }
}

/// Planes of bits: the first step is the even k of eight, the second the odd ones.
///
/// # Safety
/// As [`steps`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn planes<L: Layout>(low: *const u8, high: *const u8, two_steps: usize) -> [__m512i; 2] {
    let bits = L::PLAN.low_bits;
    // SAFETY: the caller's.
    let eight_rows = |eight: usize| unsafe {
        let bottom = plane(bits, low, two_steps, eight);
        match L::PLAN.high_bits {
            0 => bottom,
            high_bits => {
                let top = plane(high_bits, high, two_steps, eight);
                // Nothing crosses from byte to byte: a code has 6 bits at most.
                _mm512_or_si512(bottom, _mm512_sll_epi16(top, _mm_cvtsi32_si128(bits as i32)))
            }
        }
    };
    // Even lanes are the even k of a row.
    let (first, second) = (eight_rows(0), eight_rows(1));
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    [_mm512_permutex2var_epi32(first, even, second), _mm512_permutex2var_epi32(first, odd, second)]
}

/// The bits of two steps as bytes, from a plane of 1, 2 or 4 bits a code: of the first eight rows, or of the others.
///
/// # Safety
/// The plane can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn plane(bits: usize, plane: *const u8, two_steps: usize, eight: usize) -> __m512i {
    // SAFETY: a vector holds 32 / bits half-vectors, eight of them two steps.
    let words = unsafe { _mm512_loadu_si512(plane.add(64 * (8 * two_steps * bits / 32)).cast()) };
    match bits {
        4 => nibbles(words, eight),
        2 => pairs_of_bits(words, two_steps, eight),
        _ => single_bits(words, two_steps, eight),
    }
}

/// The four nibbles of even number, or those of odd number.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn nibbles(words: __m512i, eight: usize) -> __m512i {
    let words = if eight == 0 { words } else { _mm512_srli_epi16::<4>(words) };
    _mm512_and_si512(words, _mm512_set1_epi8(15))
}

/// Two steps are one half of each word: four nibbles, whose lower or upper two bits it is.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn pairs_of_bits(words: __m512i, two_steps: usize, eight: usize) -> __m512i {
    let twice = spread(words, if two_steps.is_multiple_of(2) { [0, 0, 1, 1] } else { [2, 2, 3, 3] });
    let twice = if eight == 0 { twice } else { _mm512_srli_epi16::<2>(twice) };
    let upper = _mm512_and_si512(_mm512_srli_epi16::<4>(twice), _mm512_set1_epi16(0x0300));
    _mm512_or_si512(_mm512_and_si512(twice, _mm512_set1_epi16(0x0003)), upper)
}

/// Two steps are one byte of each word, and every other bit of it.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn single_bits(words: __m512i, two_steps: usize, eight: usize) -> __m512i {
    let bits = _mm512_set1_epi32(0x4010_0401 << eight);
    let set = _mm512_test_epi8_mask(spread(words, [two_steps as i8; 4]), bits);
    _mm512_maskz_set1_epi8(set, 1)
}

/// These four bytes of each word of 32 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn spread(words: __m512i, which: [i8; 4]) -> __m512i {
    let of_first = _mm512_set1_epi32(i32::from_le_bytes(which.map(i8::cast_unsigned)));
    let lanes = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c));
    _mm512_shuffle_epi8(words, _mm512_add_epi8(of_first, lanes))
}
