//! From a group's scores to its weights, down the lanes: a row is a token, a lane is a query.
//!
//! Weights are powers of two: `p = 2^(c s - m)`, where `c` is the scale over `ln 2` and `m`, a query's
//! maximum so far, is rounded up to an integer. Moving the maximum then multiplies by a power of two,
//! which rounds nothing.

use super::tiles::LANES;
use crate::attention::layout::GROUP_TOKENS;
use std::arch::x86_64::*;

/// The maximum of a query that has seen nothing.
pub(super) const EMPTY: f32 = -4_194_304.0;
/// Adding it leaves the nearest integer in a float's low bits.
const ROUND: f32 = 12_582_912.0;
/// `2^x` for `|x| <= 1/2`, within 3e-6: far below the rounding of a weight to bf16.
const EXP2: [f32; 5] = [1.0, 0.693_124_2, 0.240_240_99, 0.055_906_425, 0.009_582_853];

/// Maxima and sums of 16 queries.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Totals {
    pub max: [f32; LANES],
    pub sum: [f32; LANES],
}

impl Totals {
    pub(super) const NONE: Totals = Totals { max: [EMPTY; LANES], sum: [0.0; LANES] };
}

/// Which positions the queries of a tile see: from `first` to `last`, both included.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Sight {
    pub first: [i32; LANES],
    pub last: [i32; LANES],
}

impl Sight {
    /// Whether every query sees all of a group that begins at `base`. Queries are in order of position.
    pub(super) fn is_full(&self, base: i32) -> bool {
        self.first[LANES - 1] <= base && base + GROUP_TOKENS as i32 <= self.last[0] + 1
    }

    /// Whether no query sees any of it.
    pub(super) fn is_empty(&self, base: i32) -> bool {
        self.last[LANES - 1] < base || base + GROUP_TOKENS as i32 <= self.first[0]
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn mask(&self, position: i32) -> __mmask16 {
        let position = _mm512_set1_epi32(position);
        // SAFETY: arrays of 16 i32.
        let (first, last) = unsafe {
            (_mm512_loadu_si512(self.first.as_ptr().cast()), _mm512_loadu_si512(self.last.as_ptr().cast()))
        };
        _mm512_cmple_epi32_mask(first, position) & _mm512_cmple_epi32_mask(position, last)
    }
}

/// Takes the scores `s: [tokens][16]` of the next tokens, moves `totals`, writes the weights as bf16 pairs of
/// tokens `p: [tokens / 2][16][2]`, and returns what the sums so far must be multiplied with, unless it is 1
/// for every query. `c`: the scale over `ln 2`; `base`: the first token's position.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) fn weights(
    s: &[[f32; LANES]],
    c: f32,
    (base, sight): (i32, &Sight),
    totals: &mut Totals,
    p: &mut [[u32; LANES]],
) -> Option<__m512> {
    assert!(s.len() == 2 * p.len() && s.len().is_multiple_of(8) && s.len() <= GROUP_TOKENS);
    let largest = if sight.is_full(base) { largest(s) } else { largest_seen(s, base, sight) };
    // SAFETY: arrays of 16 f32.
    let (old, sum) = unsafe { (_mm512_loadu_ps(totals.max.as_ptr()), _mm512_loadu_ps(totals.sum.as_ptr())) };
    let up = _mm512_roundscale_ps::<{ _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC }>(_mm512_mul_ps(
        largest,
        _mm512_set1_ps(c),
    ));
    let max = _mm512_max_ps(up, old);
    let shrink = _mm512_scalef_ps(_mm512_set1_ps(1.0), _mm512_sub_ps(old, max));
    let exp = Exp::new(c, max);
    let added = if sight.is_full(base) { fill(s, &exp, p) } else { fill_seen(s, &exp, base, sight, p) };
    let sum = _mm512_fmadd_ps(sum, shrink, added);
    // SAFETY: arrays of 16 f32.
    unsafe {
        _mm512_storeu_ps(totals.max.as_mut_ptr(), max);
        _mm512_storeu_ps(totals.sum.as_mut_ptr(), sum);
    }
    let moved = _mm512_cmpneq_ps_mask(shrink, _mm512_set1_ps(1.0));
    (moved != 0).then_some(shrink)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn row(s: &[f32; LANES]) -> __m512 {
    // SAFETY: 16 f32.
    unsafe { _mm512_loadu_ps(s.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn largest(s: &[[f32; LANES]]) -> __m512 {
    let mut max = [_mm512_set1_ps(f32::NEG_INFINITY); 4];
    for four in s.chunks_exact(4) {
        for i in 0..4 {
            max[i] = _mm512_max_ps(max[i], row(&four[i]));
        }
    }
    _mm512_max_ps(_mm512_max_ps(max[0], max[1]), _mm512_max_ps(max[2], max[3]))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn largest_seen(s: &[[f32; LANES]], base: i32, sight: &Sight) -> __m512 {
    let mut max = _mm512_set1_ps(f32::NEG_INFINITY);
    for (token, s) in s.iter().enumerate() {
        max = _mm512_mask_max_ps(max, sight.mask(base + token as i32), max, row(s));
    }
    max
}

/// What does not change from token to token.
struct Exp {
    c: __m512,
    /// `ROUND - m`, an integer.
    bias: __m512,
    /// Scores below this weigh `2^-126` and are taken for it.
    lowest: __m512,
}

impl Exp {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(c: f32, max: __m512) -> Exp {
        let c = _mm512_set1_ps(c);
        let bias = _mm512_sub_ps(_mm512_set1_ps(ROUND), max);
        let lowest = _mm512_div_ps(_mm512_sub_ps(max, _mm512_set1_ps(125.0)), c);
        Exp { c, bias, lowest }
    }

    /// `2^(c s - m)`
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn of(&self, s: __m512) -> __m512 {
        let s = _mm512_max_ps(s, self.lowest);
        let shifted = _mm512_fmadd_ps(s, self.c, self.bias);
        let whole = _mm512_sub_ps(shifted, self.bias);
        let f = _mm512_fmsub_ps(s, self.c, whole);
        let mut y = _mm512_set1_ps(EXP2[4]);
        for c in [EXP2[3], EXP2[2], EXP2[1], EXP2[0]] {
            y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(c));
        }
        let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
        _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y), exponent))
    }
}

/// Two tokens' weights as bf16, side by side in each lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn pair(even: __m512, odd: __m512) -> __m512i {
    const ORDER: [u16; 32] = {
        let mut order = [0; 32];
        let mut i = 0;
        while i < 32 {
            order[i] = (i as u16 / 2) + 16 * (i as u16 % 2);
            i += 1;
        }
        order
    };
    // SAFETY: 32 u16; and a vector of 32 bf16 is a vector of 512 bits.
    unsafe {
        let both: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(odd, even));
        _mm512_permutexvar_epi16(_mm512_loadu_si512(ORDER.as_ptr().cast()), both)
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn fill(s: &[[f32; LANES]], exp: &Exp, p: &mut [[u32; LANES]]) -> __m512 {
    let mut sums = [_mm512_setzero_ps(); 4];
    for (s, p) in s.chunks_exact(4).zip(p.chunks_exact_mut(2)) {
        let y = [exp.of(row(&s[0])), exp.of(row(&s[1])), exp.of(row(&s[2])), exp.of(row(&s[3]))];
        store_four(y, p, &mut sums);
    }
    _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]))
}

/// The same where a query does not see every token; what it does not see weighs 0, even where it is NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn fill_seen(s: &[[f32; LANES]], exp: &Exp, base: i32, sight: &Sight, p: &mut [[u32; LANES]]) -> __m512 {
    let mut sums = [_mm512_setzero_ps(); 4];
    for (i, (s, p)) in s.chunks_exact(4).zip(p.chunks_exact_mut(2)).enumerate() {
        let mut y = [_mm512_setzero_ps(); 4];
        for j in 0..4 {
            y[j] = _mm512_maskz_mov_ps(sight.mask(base + (4 * i + j) as i32), exp.of(row(&s[j])));
        }
        store_four(y, p, &mut sums);
    }
    _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn store_four(y: [__m512; 4], p: &mut [[u32; LANES]], sums: &mut [__m512; 4]) {
    for i in 0..4 {
        sums[i] = _mm512_add_ps(sums[i], y[i]);
    }
    // SAFETY: rows of 16 u32.
    unsafe {
        _mm512_storeu_si512(p[0].as_mut_ptr().cast(), pair(y[0], y[1]));
        _mm512_storeu_si512(p[1].as_mut_ptr().cast(), pair(y[2], y[3]));
    }
}
