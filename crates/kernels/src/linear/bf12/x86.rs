//! Vector units: a word for each weight. Its exponent is looked up, and put between sign and fraction, which widening with
//! the sign has parted.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::{GROUP_BYTES, HEAD_BYTES, Panel, TWO_LINES, WEIGHTS, unfold};
use crate::Isa;
use crate::linear::epilogue::Sums;
use crate::linear::pairs::{Fetch, Panels, Start, Tiles};
use crate::mat::Mat;

/// The bits of an exponent in a word.
const EXPONENT: i16 = 0x7f80;
/// How far ahead of their use panels are asked for.
const AHEAD_BYTES: usize = 2048;

/// Unfolds groups, but for their exceptions.
///
/// # Safety
/// The machine has AVX-512 F and BW.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
pub(super) unsafe fn unfold_512(panel: &Panel<'_>, groups: Range<usize>, tiles: &mut [u16]) {
    let mut table = [0u16; 32];
    for (i, out) in table.iter_mut().enumerate() {
        *out = u16::from(panel.table[i % 16]) << 7;
    }
    for (group, tiles) in panel.groups[groups].iter().zip(tiles.as_chunks_mut::<WEIGHTS>().0) {
        let (fractions, codes) = (group.as_ptr(), group[WEIGHTS..].as_ptr());
        // SAFETY: a group has its signs and fractions, then half as many bytes of numbers; a prefetch cannot fault.
        unsafe {
            let table = _mm512_loadu_si512(table.as_ptr().cast());
            for (i, out) in tiles.as_chunks_mut::<TWO_LINES>().0.iter_mut().enumerate() {
                let ahead = fractions.wrapping_add(AHEAD_BYTES + i * (GROUP_BYTES * TWO_LINES / WEIGHTS));
                _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(64).cast());
                let codes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(codes.add(32 * i).cast()));
                // A permutation looks at five bits of a number; the table has its entries twice.
                let codes = [codes, _mm512_srli_epi16::<4>(codes)];
                for (half, codes) in codes.into_iter().enumerate() {
                    let fractions = _mm256_loadu_si256(fractions.add(TWO_LINES * i + 32 * half).cast());
                    let words = _mm512_cvtepi8_epi16(fractions);
                    let exponents = _mm512_permutexvar_epi16(codes, table);
                    let mask = _mm512_set1_epi16(EXPONENT);
                    let words = _mm512_ternarylogic_epi32::<0xca>(mask, exponents, words);
                    _mm512_storeu_si512(out.as_mut_ptr().add(32 * half).cast(), words);
                }
            }
        }
    }
}

/// The same by half the width.
///
/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn unfold_256(panel: &Panel<'_>, groups: Range<usize>, tiles: &mut [u16]) {
    for (group, tiles) in panel.groups[groups].iter().zip(tiles.as_chunks_mut::<WEIGHTS>().0) {
        let (fractions, codes) = (group.as_ptr(), group[WEIGHTS..].as_ptr());
        // SAFETY: as above.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(panel.table.as_ptr().cast()));
            for (i, out) in tiles.as_chunks_mut::<TWO_LINES>().0.iter_mut().enumerate() {
                let ahead = fractions.wrapping_add(AHEAD_BYTES + i * (GROUP_BYTES * TWO_LINES / WEIGHTS));
                _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(64).cast());
                let codes = _mm256_loadu_si256(codes.add(32 * i).cast());
                let nibble = _mm256_set1_epi8(15);
                let halves =
                    [_mm256_and_si256(codes, nibble), _mm256_and_si256(_mm256_srli_epi16::<4>(codes), nibble)];
                for (half, codes) in halves.into_iter().enumerate() {
                    let exponents = _mm256_shuffle_epi8(table, codes);
                    let quarters = [_mm256_castsi256_si128(exponents), _mm256_extracti128_si256::<1>(exponents)];
                    for (quarter, exponents) in quarters.into_iter().enumerate() {
                        let at = 32 * half + 16 * quarter;
                        let words = _mm256_cvtepi8_epi16(_mm_loadu_si128(fractions.add(TWO_LINES * i + at).cast()));
                        let exponents = _mm256_slli_epi16::<7>(_mm256_cvtepu8_epi16(exponents));
                        let others = _mm256_andnot_si256(_mm256_set1_epi16(EXPONENT), words);
                        let words = _mm256_or_si256(exponents, others);
                        _mm256_storeu_si256(out.as_mut_ptr().add(at).cast(), words);
                    }
                }
            }
        }
    }
}

/// Panels of bf16 in 12 bits for the driver of pairs, unfolded a chunk at a time.
pub(crate) struct Unfolded;

impl Panels for Unfolded {
    const AS_STORED: bool = false;
    const BAND_ROWS: usize = Tiles::BAND_ROWS;
    const ROW_BYTES: usize = Tiles::ROW_BYTES;
    const GROUP_BYTES: usize = Tiles::GROUP_BYTES;

    #[inline(always)]
    fn stored_at(group: usize) -> usize {
        HEAD_BYTES + group * GROUP_BYTES
    }

    fn pack(x: Mat<'_, bf16>, rows: Range<usize>, groups: usize, out: &mut [u8]) {
        Tiles::pack(x, rows, groups, out);
    }

    #[inline(always)]
    unsafe fn chunk<'s>(stored: &'s [u8], groups: Range<usize>, scratch: &'s mut [u8]) -> &'s [u8] {
        let tiles = &mut scratch[..groups.len() * Tiles::GROUP_BYTES];
        unfold(Isa::Avx512Bf16, &Panel::new(stored), groups, bytemuck::cast_slice_mut(tiles));
        tiles
    }

    #[inline(always)]
    unsafe fn multiply(
        rows: usize,
        start: Start,
        x: *const u8,
        w: *const u8,
        groups: usize,
        sums: *mut Sums,
        fetch: Fetch<1>,
    ) {
        // SAFETY: passed on from the caller.
        unsafe { Tiles::multiply(rows, start, x, w, groups, sums, fetch) }
    }

    #[inline(always)]
    unsafe fn put_in_order(_sums: &mut [Sums]) {}
}
