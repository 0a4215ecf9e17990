//! AVX2 for the formats of 4 bits, whose codes lie by row: the 16 values of a row are computed and rounded once a group,
//! as two tables of bytes, and two permutations of bytes look up the row's 32 k.
//!
//! Each half of a vector has a row of its own, four rows apart, so that nothing crosses from half to half: four such pairs
//! of rows are turned into lines of eight rows, which are stored whole.

use std::arch::x86_64::*;

use half::bf16;

use super::super::plan::TILE;
use super::avx2::{Affine, rounded};

/// Bytes of the codes of four rows.
const FOUR_ROWS: usize = 64;

/// # Safety
/// The machine has these features; `codes` points at a tile's 256 bytes of codes, `out` at room for its values.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn one_tile(codes: *const u8, affine: &Affine, out: *mut bf16) {
    for eight in 0..2 {
        // SAFETY: eight of 16 rows, in the planes and in each of 16 lines.
        unsafe {
            let scale = _mm256_loadu_ps(affine.scale[0].as_ptr().add(8 * eight));
            let min = _mm256_loadu_ps(affine.min[0].as_ptr().add(8 * eight));
            let tables = [
                tables(_mm256_permute_ps::<0x00>(scale), _mm256_permute_ps::<0x00>(min)),
                tables(_mm256_permute_ps::<0x55>(scale), _mm256_permute_ps::<0x55>(min)),
                tables(_mm256_permute_ps::<0xaa>(scale), _mm256_permute_ps::<0xaa>(min)),
                tables(_mm256_permute_ps::<0xff>(scale), _mm256_permute_ps::<0xff>(min)),
            ];
            for half in 0..2 {
                let codes = codes_of_rows(codes.add(2 * FOUR_ROWS * eight + FOUR_ROWS / 2 * half));
                let out = out.add(TILE * eight + 8 * half * 2 * TILE).cast::<u8>();
                let (mut first, mut second) = ([_mm256_setzero_si256(); 4], [_mm256_setzero_si256(); 4]);
                for row in 0..4 {
                    let low = _mm256_shuffle_epi8(tables[row][0], codes[row]);
                    let high = _mm256_shuffle_epi8(tables[row][1], codes[row]);
                    first[row] = _mm256_unpacklo_epi8(low, high);
                    second[row] = _mm256_unpackhi_epi8(low, high);
                }
                store_lines(first, out);
                store_lines(second, out.add(4 * 64));
            }
        }
    }
}

/// The codes of four rows in 16 k, a byte for each, and in the second half of each vector those of the next four rows.
///
/// # Safety
/// 32 bytes can be read at `at`, and at the next four rows.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::linear::quant) unsafe fn codes_of_rows(at: *const u8) -> [__m256i; 4] {
    // SAFETY: the caller's.
    let (first, second) =
        unsafe { (halves(at, at.add(FOUR_ROWS)), halves(at.add(16), at.add(FOUR_ROWS + 16))) };
    let (byte, nibble) = (_mm256_set1_epi16(0xff), _mm256_set1_epi8(15));
    let even = _mm256_packus_epi16(_mm256_and_si256(first, byte), _mm256_and_si256(second, byte));
    let odd = _mm256_packus_epi16(_mm256_srli_epi16::<8>(first), _mm256_srli_epi16::<8>(second));
    let upper = |bytes| _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), nibble);
    [_mm256_and_si256(even, nibble), upper(even), _mm256_and_si256(odd, nibble), upper(odd)]
}

/// 16 bytes from here and 16 from there.
///
/// # Safety
/// They can be read.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::linear::quant) unsafe fn halves(first: *const u8, second: *const u8) -> __m256i {
    // SAFETY: the caller's.
    unsafe { _mm256_loadu2_m128i(second.cast(), first.cast()) }
}

/// The values of codes 0 to 15, rounded to bf16: their lower bytes, and their upper ones. Each half is a row.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn tables(scale: __m256, min: __m256) -> [__m256i; 2] {
    // Bytes 2 and 3 of four lanes: the lower bytes beside each other, and the upper ones 8 bytes on.
    let of_first = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        2, 6, 10, 14, -1, -1, -1, -1, 3, 7, 11, 15, -1, -1, -1, -1,
    ));
    let of_second = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        -1, -1, -1, -1, 2, 6, 10, 14, -1, -1, -1, -1, 3, 7, 11, 15,
    ));
    let four = |first: f32| {
        let codes = _mm_setr_ps(first, first + 1.0, first + 2.0, first + 3.0);
        rounded(_mm256_fmadd_ps(_mm256_set_m128(codes, codes), scale, min))
    };
    let eight = |first: f32| {
        let (a, b) = (four(first), four(first + 4.0));
        _mm256_or_si256(_mm256_shuffle_epi8(a, of_first), _mm256_shuffle_epi8(b, of_second))
    };
    let (first, second) = (eight(0.0), eight(8.0));
    [_mm256_unpacklo_epi64(first, second), _mm256_unpackhi_epi64(first, second)]
}

/// Turns four rows (eight, with those of the second halves) of four words of 32 bits each into four lines of a word of
/// each row, and stores them 64 bytes apart.
///
/// # Safety
/// `out` points at the place of the eight rows in the first of four lines.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::linear::quant) unsafe fn store_lines(rows: [__m256i; 4], out: *mut u8) {
    let low = [_mm256_unpacklo_epi32(rows[0], rows[1]), _mm256_unpacklo_epi32(rows[2], rows[3])];
    let high = [_mm256_unpackhi_epi32(rows[0], rows[1]), _mm256_unpackhi_epi32(rows[2], rows[3])];
    let lines = [
        _mm256_unpacklo_epi64(low[0], low[1]),
        _mm256_unpackhi_epi64(low[0], low[1]),
        _mm256_unpacklo_epi64(high[0], high[1]),
        _mm256_unpackhi_epi64(high[0], high[1]),
    ];
    for (i, line) in lines.into_iter().enumerate() {
        // SAFETY: the caller's.
        unsafe { _mm256_storeu_si256(out.add(64 * i).cast(), line) };
    }
}
