//! The state of a tile of 16 queries over a part of a sequence: maxima, sums, offsets, means, a row of 16 each.

use super::tiles::LANES;
use std::arch::x86_64::*;

/// Multiplies `rows` rows.
///
/// # Safety
/// The machine has AVX-512; `at` has the rows.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn scale(at: *mut f32, rows: usize, by: __m512) {
    for row in 0..rows {
        // SAFETY: by this function's contract.
        unsafe {
            let at = at.add(row * LANES);
            _mm512_storeu_ps(at, _mm512_mul_ps(_mm512_loadu_ps(at), by));
        }
    }
}

/// `total += split`, both as powers of two of their own maxima. `rows`: of sums, offsets and means.
///
/// # Safety
/// The machine has AVX-512; both are states.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn add_state(total: *mut f32, split: *const f32, rows: usize) {
    // SAFETY: by this function's contract; maxima come first.
    unsafe {
        let (a, b) = (_mm512_loadu_ps(total), _mm512_loadu_ps(split));
        let max = _mm512_max_ps(a, b);
        let one = _mm512_set1_ps(1.0);
        let (keep, add) =
            (_mm512_scalef_ps(one, _mm512_sub_ps(a, max)), _mm512_scalef_ps(one, _mm512_sub_ps(b, max)));
        _mm512_storeu_ps(total, max);
        for i in 1..=rows {
            let at = total.add(i * LANES);
            let kept = _mm512_mul_ps(_mm512_loadu_ps(at), keep);
            _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_loadu_ps(split.add(i * LANES)), add, kept));
        }
    }
}

/// Adds `row` to 16 rows.
///
/// # Safety
/// The machine has AVX-512; `at` has the rows.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn add_row(at: *mut f32, row: __m512) {
    for i in 0..16 {
        // SAFETY: by this function's contract.
        unsafe {
            _mm512_storeu_ps(at.add(i * LANES), _mm512_add_ps(_mm512_loadu_ps(at.add(i * LANES)), row))
        };
    }
}

/// The sums over the dims of a tile of queries, `[16 pairs of dims][16 queries]`, added to `sums` or put there.
///
/// # Safety
/// The machine has AVX-512; `sums` has 16 numbers.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn add_dims(pairs: &[[u32; LANES]; 16], first: bool, sums: *mut f32) {
    // SAFETY: by this function's contract.
    unsafe {
        let mut sum = if first { _mm512_setzero_ps() } else { _mm512_loadu_ps(sums) };
        for pair in pairs {
            let both = _mm512_loadu_si512(pair.as_ptr().cast());
            let odd = _mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000u32 as i32));
            sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_slli_epi32::<16>(both)));
            sum = _mm512_add_ps(sum, _mm512_castsi512_ps(odd));
        }
        _mm512_storeu_ps(sums, sum);
    }
}
