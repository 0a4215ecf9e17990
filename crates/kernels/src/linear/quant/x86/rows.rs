//! AVX-512 for the formats of 4 bits, whose codes lie by row: the 16 values of a row are computed and rounded once
//! a group, and one permutation of words looks up the row's 32 k.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::super::plan::{Plan, TILE};
use super::avx512::{VALUES, by_row};

/// One tile by rows: 16 rows of 32 k in bf16.
#[repr(align(64))]
pub(super) struct Rows(pub(super) [__m512i; TILE]);

/// Expands `groups` of a panel to VNNI tiles.
///
/// # Safety
/// The machine has these features; `panel` holds the groups and `out` has room for their tiles.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn expand(plan: &Plan, panel: *const u8, groups: Range<usize>, out: *mut bf16) {
    let mut rows = Rows([_mm512_setzero_si512(); TILE]);
    for (i, group) in groups.enumerate() {
        for tile in 0..2 {
            // SAFETY: the caller's; `rows` is one tile.
            unsafe {
                write_rows(plan, panel, group, tile, rows.0.as_mut_ptr());
                transpose(&rows, out.add((2 * i + tile) * VALUES).cast());
            }
        }
    }
}

/// Writes the 16 rows of a tile, 32 k of bf16 each.
///
/// # Safety
/// The machine has these features; `panel` holds the group; `out` has room for 16 aligned rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn write_rows(plan: &Plan, panel: *const u8, group: usize, tile: usize, out: *mut __m512i) {
    let place = plan.locate(group);
    // SAFETY: unit, group and the tile's 256 bytes of codes (four vectors of four rows) lie in the panel.
    unsafe {
        let [scale, min] = by_row(plan, panel.add(place.unit), panel.add(place.group), tile);
        let (scale, min) = (lanes(scale[0]), lanes(min[0]));
        let codes = panel.add(place.group + plan.planes(tile).0);
        for four in 0..4 {
            // A permutation of words looks at five bits of an index, one too many: the table is there twice.
            let words = _mm512_loadu_si512(codes.add(64 * four).cast());
            let shifted = [
                words,
                _mm512_srli_epi16::<4>(words),
                _mm512_srli_epi16::<8>(words),
                _mm512_srli_epi16::<12>(words),
            ];
            for (i, index) in shifted.into_iter().enumerate() {
                let row = 4 * four + i;
                out.add(row).write(_mm512_permutexvar_epi16(index, table(scale[row], min[row])));
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn lanes(v: __m512) -> [f32; TILE] {
    let mut out = [0.0; TILE];
    // SAFETY: 16 floats fill the array.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), v) };
    out
}

/// The values of codes 0 to 15, rounded to bf16, twice.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn table(scale: f32, min: f32) -> __m512i {
    let codes = _mm512_setr_ps(0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.);
    let values = _mm512_fmadd_ps(codes, _mm512_set1_ps(scale), _mm512_set1_ps(min));
    // SAFETY: both are 512 bits of plain numbers.
    unsafe { std::mem::transmute(_mm512_cvtne2ps_pbh(values, values)) }
}

/// Transposes 16 by 16 words of 32 bits (pairs of k): rows of pairs become lines of outputs.
///
/// # Safety
/// `out` has room for 16 lines.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn transpose(rows: &Rows, out: *mut __m512i) {
    let r = &rows.0;
    // By words, then double words, inside each 128 bits; then by 128-bit quarters in two steps.
    let mut b = [_mm512_setzero_si512(); TILE];
    for i in 0..4 {
        let low = [0, 2].map(|j| _mm512_unpacklo_epi32(r[4 * i + j], r[4 * i + j + 1]));
        let high = [0, 2].map(|j| _mm512_unpackhi_epi32(r[4 * i + j], r[4 * i + j + 1]));
        b[4 * i] = _mm512_unpacklo_epi64(low[0], low[1]);
        b[4 * i + 1] = _mm512_unpackhi_epi64(low[0], low[1]);
        b[4 * i + 2] = _mm512_unpacklo_epi64(high[0], high[1]);
        b[4 * i + 3] = _mm512_unpackhi_epi64(high[0], high[1]);
    }
    for i in 0..4 {
        // Quarter q of b[4 g + i] is column 4 q + i of rows 4 g to 4 g + 3.
        let even = [0, 8].map(|g| _mm512_shuffle_i32x4::<0x88>(b[g + i], b[g + 4 + i]));
        let odd = [0, 8].map(|g| _mm512_shuffle_i32x4::<0xdd>(b[g + i], b[g + 4 + i]));
        // SAFETY: lines 0 to 15.
        unsafe {
            _mm512_storeu_si512(out.add(i).cast(), _mm512_shuffle_i32x4::<0x88>(even[0], even[1]));
            _mm512_storeu_si512(out.add(i + 8).cast(), _mm512_shuffle_i32x4::<0xdd>(even[0], even[1]));
            _mm512_storeu_si512(out.add(i + 4).cast(), _mm512_shuffle_i32x4::<0x88>(odd[0], odd[1]));
            _mm512_storeu_si512(out.add(i + 12).cast(), _mm512_shuffle_i32x4::<0xdd>(odd[0], odd[1]));
        }
    }
}
