//! AVX2: as AVX-512, in two steps of eight lanes, rounding to bf16 by integers.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::super::plan::{GROUP, PANEL, Plan, TILE};
use super::Affine;

/// Expands `groups` of a panel.
///
/// # Safety
/// The machine has these features; `panel` holds the groups and `out` has room for their tiles.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn expand(plan: &Plan, panel: &[u8], groups: Range<usize>, out: &mut [bf16]) {
    assert!(plan.panel_bytes(groups.end * GROUP) <= panel.len());
    assert!(groups.len() * PANEL * GROUP <= out.len());
    // SAFETY: this function's own contract, and the two lengths above.
    unsafe {
        match (plan.low_bits, plan.high_bits) {
            (2, 0) => run::<2, 0>(plan, panel, groups, out),
            (2, 1) => run::<2, 1>(plan, panel, groups, out),
            (4, 0) => run::<4, 0>(plan, panel, groups, out),
            (4, 1) => run::<4, 1>(plan, panel, groups, out),
            (4, 2) => run::<4, 2>(plan, panel, groups, out),
            (8, 0) => run::<8, 0>(plan, panel, groups, out),
            bits => unreachable!("no format has codes of {bits:?} bits"),
        }
    }
}

/// # Safety
/// As [`expand`]; `LOW` and `HIGH` are the plan's bits.
#[target_feature(enable = "avx2,fma")]
unsafe fn run<const LOW: usize, const HIGH: usize>(
    plan: &Plan,
    panel: &[u8],
    groups: Range<usize>,
    out: &mut [bf16],
) {
    for (group, out) in groups.zip(out.chunks_exact_mut(PANEL * GROUP)) {
        let place = plan.locate(group);
        let affine = Affine::of(plan, &panel[place.unit..], &panel[place.group..]);
        for (tile, out) in out.chunks_exact_mut(TILE * GROUP).enumerate() {
            let (low, high) = plan.planes(tile);
            // SAFETY: the planes lie in the panel, and `out` is one tile.
            unsafe {
                if (LOW, HIGH) == (4, 0) {
                    let codes = panel.as_ptr().add(place.group + low).cast();
                    tile_by_row(codes, &affine, tile, out);
                    continue;
                }
                let low = panel.as_ptr().add(place.group + low);
                let high = panel.as_ptr().add(place.group + high);
                one_tile::<LOW, HIGH>(low, high, &affine, tile, out.as_mut_ptr());
            }
        }
    }
}

/// # Safety
/// `low` and `high` point at a tile's planes, `out` at room for its values.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn one_tile<const LOW: usize, const HIGH: usize>(
    low: *const u8,
    high: *const u8,
    affine: &Affine,
    tile: usize,
    out: *mut bf16,
) {
    for half in 0..2 {
        // Quarters of the tile's rows: four rows, each twice, are eight lanes.
        for rows in 0..4 {
            let at = TILE * tile + 4 * rows;
            let (scale, min) = (twice(&affine.scale[half][at..at + 4]), twice(&affine.min[half][at..at + 4]));
            for line in 8 * half..8 * half + 8 {
                // SAFETY: 32 half-vectors lie in the planes; eight values a quarter of 16 lines in the tile.
                unsafe {
                    let codes = codes::<LOW, HIGH>(low, high, 2 * line + rows / 2, rows % 2);
                    let values = round(_mm256_fmadd_ps(codes, scale, min));
                    _mm_storeu_si128(out.add(2 * TILE * line + 8 * rows).cast(), values);
                }
            }
        }
    }
}

/// A tile whose codes lie by row: its rows first, then transposed by pairs of k.
///
/// # Safety
/// `codes` points at a tile's 256 bytes of codes.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn tile_by_row(codes: *const __m128i, affine: &Affine, tile: usize, out: &mut [bf16]) {
    let mut rows = [[0u32; 16]; TILE];
    for (row, pairs) in rows.iter_mut().enumerate() {
        let scale = _mm256_set1_ps(affine.scale[0][TILE * tile + row]);
        let min = _mm256_set1_ps(affine.min[0][TILE * tile + row]);
        for eight in 0..4 {
            // SAFETY: 16 times 16 bytes; eight values, half of them a pair each, are a quarter of a row.
            unsafe {
                let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(codes.add(4 * (row / 4) + eight)));
                let words = _mm256_srlv_epi32(words, _mm256_set1_epi32(4 * (row % 4) as i32));
                let codes = _mm256_cvtepi32_ps(_mm256_and_si256(words, _mm256_set1_epi32(15)));
                let values = round(_mm256_fmadd_ps(codes, scale, min));
                _mm_storeu_si128(pairs.as_mut_ptr().add(4 * eight).cast(), values);
            }
        }
    }
    for (line, out) in out.chunks_exact_mut(2 * TILE).enumerate() {
        for (row, pair) in out.chunks_exact_mut(2).enumerate() {
            let both = rows[row][line];
            pair[0] = bf16::from_bits(both as u16);
            pair[1] = bf16::from_bits((both >> 16) as u16);
        }
    }
}

/// Each of four floats twice.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn twice(four: &[f32]) -> __m256 {
    _mm256_setr_ps(four[0], four[0], four[1], four[1], four[2], four[2], four[3], four[3])
}

/// Eight floats to bf16, to nearest even.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn round(values: __m256) -> __m128i {
    let bits = _mm256_castps_si256(values);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    let high = _mm256_srli_epi32::<16>(up);
    _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256::<1>(high))
}

/// Eight codes of one half-vector (its first or its last eight lanes), as floats.
///
/// # Safety
/// As [`one_tile`].
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn codes<const LOW: usize, const HIGH: usize>(
    low: *const u8,
    high: *const u8,
    half: usize,
    eight: usize,
) -> __m256 {
    if LOW == 8 {
        // SAFETY: 16 bytes for each half-vector.
        let bytes = unsafe { _mm_loadl_epi64(low.add(16 * half + 8 * eight).cast()) };
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    }
    // SAFETY: both planes hold the half-vector.
    let bottom = unsafe { shifted::<LOW>(low, half, eight) };
    let bottom = _mm256_and_si256(bottom, _mm256_set1_epi32((1 << LOW) - 1));
    if HIGH == 0 {
        return _mm256_cvtepi32_ps(bottom);
    }
    // SAFETY: as above.
    let top = unsafe { shifted::<HIGH>(high, half, eight) };
    let top = _mm256_and_si256(top, _mm256_set1_epi32((1 << HIGH) - 1));
    _mm256_cvtepi32_ps(_mm256_or_si256(bottom, _mm256_sllv_epi32(top, _mm256_set1_epi32(LOW as i32))))
}

/// Eight words of a plane of `BITS` that hold a half-vector, shifted so that it comes last.
///
/// # Safety
/// The plane holds the half-vector.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn shifted<const BITS: usize>(plane: *const u8, half: usize, eight: usize) -> __m256i {
    let each = 32 / BITS;
    // SAFETY: the caller's.
    let words = unsafe { _mm256_loadu_si256(plane.add(64 * (half / each) + 32 * eight).cast()) };
    _mm256_srlv_epi32(words, _mm256_set1_epi32((half % each * BITS) as i32))
}
