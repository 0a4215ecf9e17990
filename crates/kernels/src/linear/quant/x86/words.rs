//! Codes that lie in planes of bits, as bytes: for each row a word of four even k of eight, and one of the four odd ones.

use std::arch::x86_64::*;

use super::super::plan::Layout;

/// Rows of a tile whose words are in a vector.
type Eights = [__m256i; 2];

/// Eight k of a tile at a time: `put` is given their number, that of eight rows, and words of the even k and of the odd ones.
///
/// # Safety
/// The machine has AVX2; `low` and `high` point at a tile's planes.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::linear::quant) unsafe fn words<L: Layout>(
    low: *const u8,
    high: *const u8,
    mut put: impl FnMut(usize, usize, [__m256i; 2]),
) {
    // SAFETY: the caller's.
    unsafe {
        let few = [few(L::PLAN.low_bits, low), few(L::PLAN.high_bits, high)];
        eight_k::<L, 0>(low, &few, &mut put);
        eight_k::<L, 1>(low, &few, &mut put);
        eight_k::<L, 2>(low, &few, &mut put);
        eight_k::<L, 3>(low, &few, &mut put);
    }
}

/// The planes of one or two bits, each of which holds all k in one or two of its vectors: by row, of the first and the second 16 k.
type Few = [[__m256i; 2]; 2];

/// # Safety
/// As [`words`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn few(bits: usize, plane: *const u8) -> Few {
    // SAFETY: the caller's.
    unsafe {
        match bits {
            1 => [by_row(plane); 2],
            2 => [by_row(plane), by_row(plane.add(64))],
            _ => [[_mm256_setzero_si256(); 2]; 2],
        }
    }
}

/// # Safety
/// As [`words`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn eight_k<L: Layout, const K: usize>(
    low: *const u8,
    few: &[Few; 2],
    put: &mut impl FnMut(usize, usize, [__m256i; 2]),
) {
    let (low_bits, high_bits) = (L::PLAN.low_bits, L::PLAN.high_bits);
    let low = match low_bits {
        // SAFETY: a vector of the plane for each eight k.
        4 => unsafe { by_row(low.add(64 * K)) }.map(|words| nibbles(words)),
        _ => few[0][K / 2].map(|words| pairs_of_bits::<K>(words, 0)),
    };
    let high = few[1][K / 2];
    let both = |low: Eights, high: __m256i| {
        let top = match high_bits {
            0 => return low,
            1 => single_bits::<K>(high, low_bits),
            _ => pairs_of_bits::<K>(high, low_bits),
        };
        [_mm256_or_si256(low[0], top[0]), _mm256_or_si256(low[1], top[1])]
    };
    let (even, odd) = (both(low[0], high[0]), both(low[1], high[1]));
    put(K, 0, [even[0], odd[0]]);
    put(K, 1, [even[1], odd[1]]);
}

/// A vector of 64 bytes of a plane, in which both parities of k follow each other, as a word of each row for the even ones and one for
/// the odd ones.
///
/// # Safety
/// The plane can be read there.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn by_row(at: *const u8) -> [__m256i; 2] {
    // SAFETY: the caller's.
    let (first, second) = unsafe { (_mm256_loadu_ps(at.cast()), _mm256_loadu_ps(at.add(32).cast())) };
    let even = _mm256_shuffle_ps::<0b10_00_10_00>(first, second);
    let odd = _mm256_shuffle_ps::<0b11_01_11_01>(first, second);
    // Rows 0 1 4 5 and 2 3 6 7.
    [even, odd].map(|words| _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_castps_si256(words)))
}

/// Nibbles of even number are rows of the first eight, those of odd number of the second.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles(words: __m256i) -> Eights {
    let nibble = _mm256_set1_epi8(15);
    [_mm256_and_si256(words, nibble), _mm256_and_si256(_mm256_srli_epi16::<4>(words), nibble)]
}

/// Eight k are half of a word: four nibbles, whose lower two bits are of the first eight rows, and whose upper two of the second.
#[inline]
#[target_feature(enable = "avx2")]
fn pairs_of_bits<const K: usize>(words: __m256i, shift: usize) -> Eights {
    let first = 2 * (K % 2) as u8;
    let twice = spread(words, [first, first, first + 1, first + 1]);
    let even = _mm256_and_si256(twice, _mm256_set1_epi16(0x000f));
    let odd = _mm256_and_si256(_mm256_srli_epi16::<4>(twice), _mm256_set1_epi16(0x0f00));
    let both = _mm256_or_si256(even, odd);
    let table = |eight: usize| {
        let bits: [u8; 16] = std::array::from_fn(|nibble| ((nibble >> (2 * eight)) as u8 & 3) << shift);
        // SAFETY: 16 bytes.
        _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(bits.as_ptr().cast()) })
    };
    [_mm256_shuffle_epi8(table(0), both), _mm256_shuffle_epi8(table(1), both)]
}

/// Eight k are one byte of a word, and every other bit of it of the first eight rows.
#[inline]
#[target_feature(enable = "avx2")]
fn single_bits<const K: usize>(words: __m256i, shift: usize) -> Eights {
    let bytes = spread(words, [K as u8; 4]);
    [0, 1].map(|eight| {
        let bits = _mm256_set1_epi32(0x4010_0401 << eight);
        let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bits), bits);
        _mm256_and_si256(set, _mm256_set1_epi8(1 << shift))
    })
}

/// These four bytes of each word.
#[inline]
#[target_feature(enable = "avx2")]
fn spread(words: __m256i, which: [u8; 4]) -> __m256i {
    let bytes: [u8; 16] = std::array::from_fn(|i| (i / 4 * 4) as u8 + which[i % 4]);
    // SAFETY: 16 bytes.
    let bytes = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
    _mm256_shuffle_epi8(words, _mm256_broadcastsi128_si256(bytes))
}
