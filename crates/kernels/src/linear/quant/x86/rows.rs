//! Rows of k for AMX, of the formats of 4 bits, whose codes lie by row: the 16 values of a row are computed and rounded
//! once a group, and one permutation of words looks up the row's 32 k.

use std::arch::x86_64::*;

use super::super::plan::{Layout, TILE};
use super::avx512::by_row;

/// One tile by rows: 16 rows of 32 k in bf16.
#[repr(align(64))]
pub(super) struct Rows(pub(super) [__m512i; TILE]);

/// Scale and min of the 32 rows of a panel in one group.
#[repr(align(64))]
pub(super) struct Affine {
    scale: [f32; 2 * TILE],
    min: [f32; 2 * TILE],
}

impl Affine {
    /// Room for them.
    pub(super) const fn new() -> Affine {
        Affine { scale: [0.0; 2 * TILE], min: [0.0; 2 * TILE] }
    }

    /// Reads those of a group. They go through memory, because a load can put one of them into all lanes for
    /// nothing, while taking lanes out of a register costs the port that the permutations need.
    ///
    /// # Safety
    /// The machine has these features; `panel` holds the group.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    pub(super) unsafe fn read<L: Layout>(&mut self, panel: *const u8, group: usize) {
        let place = L::PLAN.locate(group);
        for tile in 0..2 {
            // SAFETY: unit and group lie in the panel; each array takes two vectors of 16 floats.
            unsafe {
                let [scale, min] = by_row::<L>(panel.add(place.unit), panel.add(place.group), tile);
                _mm512_store_ps(self.scale.as_mut_ptr().add(TILE * tile), scale[0]);
                _mm512_store_ps(self.min.as_mut_ptr().add(TILE * tile), min[0]);
            }
        }
        std::hint::black_box(self);
    }
}

impl Rows {
    /// Rows of zeros.
    pub(super) const fn new() -> Rows {
        // SAFETY: a vector of integers may have any bits.
        unsafe { std::mem::zeroed() }
    }
}

/// Writes the 16 rows of a tile, 32 k of bf16 each.
///
/// `SYMMETRIC`: the codes stand for -8 to 7 and the mins are not looked at. It is faster, and a zero may then be
/// negative, which no sum that began at zero can tell.
///
/// # Safety
/// The machine has these features; `codes` points at those of a group (256 bytes a tile: four vectors of four
/// rows); `out` has room for 16 aligned rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn write_rows<const SYMMETRIC: bool>(
    affine: &Affine,
    codes: *const u8,
    tile: usize,
    out: *mut __m512i,
) {
    for four in 0..4 {
        // SAFETY: the caller's.
        let words = unsafe { _mm512_loadu_si512(codes.add(256 * tile + 64 * four).cast()) };
        let down = [
            words,
            _mm512_srli_epi16::<4>(words),
            _mm512_srli_epi16::<8>(words),
            _mm512_srli_epi16::<12>(words),
        ];
        // A permutation looks at five bits of an index: the fifth says which of two rows. The topmost nibble
        // comes down with zeros above it.
        for (first, second) in [(1, 0), (3, 2)] {
            let nibble = _mm512_set1_epi16(15);
            let low = if first == 3 { down[3] } else { _mm512_and_si512(down[first], nibble) };
            let high = _mm512_ternarylogic_epi32::<0xec>(down[second], _mm512_set1_epi16(16), nibble);
            let table = tables::<SYMMETRIC>(affine, TILE * tile + 4 * four, first, second);
            // SAFETY: rows 0 to 15.
            unsafe {
                out.add(4 * four + first).write(_mm512_permutexvar_epi16(low, table));
                out.add(4 * four + second).write(_mm512_permutexvar_epi16(high, table));
            }
        }
    }
}

/// The values of codes 0 to 15 of two rows, rounded to bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn tables<const SYMMETRIC: bool>(affine: &Affine, at: usize, first: usize, second: usize) -> __m512i {
    let codes = _mm512_setr_ps(0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.);
    let row = |row: usize| {
        let scale = _mm512_set1_ps(affine.scale[row]);
        if SYMMETRIC {
            _mm512_mul_ps(_mm512_sub_ps(codes, _mm512_set1_ps(8.0)), scale)
        } else {
            _mm512_fmadd_ps(codes, scale, _mm512_set1_ps(affine.min[row]))
        }
    };
    // Not by `map`: it lacks these instructions, is not inlined, and its vectors go through memory.
    let values = _mm512_cvtne2ps_pbh(row(at + second), row(at + first));
    // SAFETY: both are 512 bits of plain numbers.
    unsafe { std::mem::transmute(values) }
}

/// Transposes 16 by 16 words of 32 bits (pairs of k): rows of pairs become lines of outputs.
///
/// # Safety
/// `out` has room for 16 lines, `step` vectors apart.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn transpose(rows: &Rows, out: *mut __m512i, step: usize) {
    let r = &rows.0;
    // By words, then double words, inside each 128 bits; then by 128-bit quarters in two steps.
    let mut b = [_mm512_setzero_si512(); TILE];
    for i in 0..4 {
        let low = |j: usize| _mm512_unpacklo_epi32(r[4 * i + j], r[4 * i + j + 1]);
        let high = |j: usize| _mm512_unpackhi_epi32(r[4 * i + j], r[4 * i + j + 1]);
        let (low, high) = ([low(0), low(2)], [high(0), high(2)]);
        b[4 * i] = _mm512_unpacklo_epi64(low[0], low[1]);
        b[4 * i + 1] = _mm512_unpackhi_epi64(low[0], low[1]);
        b[4 * i + 2] = _mm512_unpacklo_epi64(high[0], high[1]);
        b[4 * i + 3] = _mm512_unpackhi_epi64(high[0], high[1]);
    }
    for i in 0..4 {
        // Quarter q of b[4 g + i] is column 4 q + i of rows 4 g to 4 g + 3.
        let even = |g: usize| _mm512_shuffle_i32x4::<0x88>(b[g + i], b[g + 4 + i]);
        let odd = |g: usize| _mm512_shuffle_i32x4::<0xdd>(b[g + i], b[g + 4 + i]);
        let (even, odd) = ([even(0), even(8)], [odd(0), odd(8)]);
        // SAFETY: lines 0 to 15.
        unsafe {
            _mm512_storeu_si512(out.add(i * step).cast(), _mm512_shuffle_i32x4::<0x88>(even[0], even[1]));
            _mm512_storeu_si512(
                out.add((i + 8) * step).cast(),
                _mm512_shuffle_i32x4::<0xdd>(even[0], even[1]),
            );
            _mm512_storeu_si512(out.add((i + 4) * step).cast(), _mm512_shuffle_i32x4::<0x88>(odd[0], odd[1]));
            _mm512_storeu_si512(
                out.add((i + 12) * step).cast(),
                _mm512_shuffle_i32x4::<0xdd>(odd[0], odd[1]),
            );
        }
    }
}
