//! From a group's scores to its weights, down the lanes: a row is a token, a lane is a query.
//!
//! Weights are powers of two: `p = 2^(c s - m)`, where `c` is the scale over `ln 2` and `m`, a query's
//! maximum so far, is rounded up to an integer. Moving the maximum then multiplies by a power of two,
//! which rounds nothing.

use super::local::{Grids, SCORES};
use super::tiles::LANES;
use crate::attention::layout::GROUP_TOKENS;
use crate::attention::vector::{EMPTY, ROUND};
use std::arch::x86_64::*;

/// `2^x` for `|x| <= 1/2`, within 3e-6: far below the rounding of a weight to bf16.
const EXP2: [f32; 5] = [1.0, 0.693_124_2, 0.240_240_99, 0.055_906_425, 0.009_582_853];

/// Maxima and sums of 16 queries.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(in crate::attention) struct Totals {
    pub max: [f32; LANES],
    pub sum: [f32; LANES],
}

impl Totals {
    pub(super) const NONE: Totals = Totals { max: [EMPTY; LANES], sum: [0.0; LANES] };
}

/// Which positions the queries of a tile see: from `first` to `last`, both included.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(in crate::attention) struct Sight {
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

/// Where weights go.
///
/// # Safety
/// The machine has AVX-512 with bf16.
pub(super) trait Give {
    /// Takes the weights of four tokens, `first` the first of them in its group.
    unsafe fn four(&mut self, first: usize, y: [__m512; 4]);
}

/// As bf16 pairs of tokens, `p: [tokens / 2][16][2]`.
pub(super) struct AsTheyAre<'a> {
    pub p: &'a mut [[u32; LANES]],
}

impl Give for AsTheyAre<'_> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn four(&mut self, first: usize, y: [__m512; 4]) {
        for (i, p) in self.p[first / 2..first / 2 + 2].iter_mut().enumerate() {
            // SAFETY: rows of 16 u32.
            unsafe { _mm512_storeu_si512(p.as_mut_ptr().cast(), pair(y[2 * i], y[2 * i + 1])) };
        }
    }
}

/// Multiplied with the scales of their tokens' values, for each of `G` groups of dims.
pub(super) struct Scaled<'a, const G: usize> {
    /// `[G]` times [`AsTheyAre::p`] of a whole group of tokens.
    pub p: *mut u8,
    /// Of the values, `[G][128]`.
    pub grids: &'a Grids,
    /// Sums of weights times minima, of token `t` in number `t % 16`.
    pub mins: [[__m512; SUMS]; G],
}

impl<'a, const G: usize> Scaled<'a, G> {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn new(p: *mut u8, grids: &'a Grids) -> Self {
        Scaled { p, grids, mins: [[_mm512_setzero_ps(); SUMS]; G] }
    }

    /// What the minima of group `g` of dims add.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn added(&self, g: usize) -> __m512 {
        total(self.mins[g])
    }
}

impl<const G: usize> Give for Scaled<'_, G> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn four(&mut self, first: usize, y: [__m512; 4]) {
        for g in 0..G {
            // SAFETY: grids and weights have room for a group of tokens.
            unsafe {
                let (scales, mins) = (
                    self.grids.scales.add(g * GROUP_TOKENS + first),
                    self.grids.mins.add(g * GROUP_TOKENS + first),
                );
                let to = self.p.add(g * SCORES / 2 + first * LANES * 2);
                let mut scaled = y;
                for i in 0..4 {
                    let sum = &mut self.mins[g][first % SUMS + i];
                    *sum = _mm512_fmadd_ps(y[i], _mm512_set1_ps(*mins.add(i)), *sum);
                    scaled[i] = _mm512_mul_ps(y[i], _mm512_set1_ps(*scales.add(i)));
                }
                for i in 0..2 {
                    let p = pair(scaled[2 * i], scaled[2 * i + 1]);
                    _mm512_storeu_si512(to.add(i * 64).cast(), p);
                }
            }
        }
    }
}

/// Takes the scores `s: [tokens][16]` of the next tokens, moves `totals`, gives the weights, and returns what the sums so
/// far must be multiplied with, unless it is 1 for every query. `c`: the scale over `ln 2`; `base`: the first token's
/// position.
///
/// # Safety
/// The machine has AVX-512 with bf16; `give` has room for the tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn weights(
    s: &[[f32; LANES]],
    c: f32,
    (base, sight): (i32, &Sight),
    totals: &mut Totals,
    give: &mut impl Give,
) -> Option<__m512> {
    assert!(s.len().is_multiple_of(SUMS) && s.len() <= GROUP_TOKENS);
    let largest = if sight.is_full(base) { largest(s) } else { largest_seen(s, base, sight) };
    // SAFETY: arrays of 16 f32.
    let (old, sum) = unsafe { (_mm512_loadu_ps(totals.max.as_ptr()), _mm512_loadu_ps(totals.sum.as_ptr())) };
    let (max, shrink) = moved(largest, c, old);
    let exp = Exp::new(c, max);
    // SAFETY: by this function's contract.
    let added = unsafe {
        if sight.is_full(base) { fill(s, &exp, give) } else { fill_seen(s, &exp, base, sight, give) }
    };
    let sum = _mm512_fmadd_ps(sum, shrink, added);
    // SAFETY: arrays of 16 f32.
    unsafe {
        _mm512_storeu_ps(totals.max.as_mut_ptr(), max);
        _mm512_storeu_ps(totals.sum.as_mut_ptr(), sum);
    }
    (_mm512_cmpneq_ps_mask(shrink, _mm512_set1_ps(1.0)) != 0).then_some(shrink)
}

/// Puts the scores of groups of dims together, into those of the first: `sum over g of scale * s[g] + min * q_sums[g]`.
/// `s: [G][128][16]`, of which `tokens` are used.
///
/// # Safety
/// The machine has AVX-512; all have room for a group of tokens.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn combine<const G: usize>(s: *mut f32, tokens: usize, q_sums: *const f32, grids: &Grids) {
    // SAFETY: by this function's contract.
    unsafe {
        let mut sums = [_mm512_setzero_ps(); G];
        for (g, sum) in sums.iter_mut().enumerate() {
            *sum = _mm512_loadu_ps(q_sums.add(g * LANES));
        }
        for token in 0..tokens {
            let mut score = _mm512_setzero_ps();
            for (g, sum) in sums.iter().enumerate() {
                let at = g * GROUP_TOKENS + token;
                let product = _mm512_loadu_ps(s.add(at * LANES));
                score = _mm512_fmadd_ps(product, _mm512_set1_ps(*grids.scales.add(at)), score);
                score = _mm512_fmadd_ps(*sum, _mm512_set1_ps(*grids.mins.add(at)), score);
            }
            _mm512_storeu_ps(s.add(token * LANES), score);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn row(s: &[f32; LANES]) -> __m512 {
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
pub(super) struct Exp {
    c: __m512,
    /// `ROUND - m`, an integer.
    bias: __m512,
    /// Scores below this weigh `2^-126` and are taken for it.
    lowest: __m512,
}

impl Exp {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn new(c: f32, max: __m512) -> Exp {
        let c = _mm512_set1_ps(c);
        let bias = _mm512_sub_ps(_mm512_set1_ps(ROUND), max);
        let lowest = _mm512_div_ps(_mm512_sub_ps(max, _mm512_set1_ps(125.0)), c);
        Exp { c, bias, lowest }
    }

    /// `2^(c s - m)`
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn of(&self, s: __m512) -> __m512 {
        // In this order: of a number and NaN the instruction gives the second, and NaN must stay.
        let s = _mm512_max_ps(self.lowest, s);
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

/// # Safety
/// As for [`weights`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn fill(s: &[[f32; LANES]], exp: &Exp, give: &mut impl Give) -> __m512 {
    let mut sums = [_mm512_setzero_ps(); SUMS];
    for (i, s) in s.chunks_exact(SUMS).enumerate() {
        for first in [0, 4, 8, 12] {
            let mut y = [_mm512_setzero_ps(); 4];
            for j in 0..4 {
                y[j] = exp.of(row(&s[first + j]));
            }
            add_four(y, &mut sums, first);
            // SAFETY: by this function's contract.
            unsafe { give.four(SUMS * i + first, y) };
        }
    }
    total(sums)
}

/// The same where a query does not see every token; what it does not see weighs 0, even where it is NaN.
///
/// # Safety
/// As for [`weights`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn fill_seen(s: &[[f32; LANES]], exp: &Exp, base: i32, sight: &Sight, give: &mut impl Give) -> __m512 {
    let mut sums = [_mm512_setzero_ps(); SUMS];
    for (i, s) in s.chunks_exact(SUMS).enumerate() {
        for first in [0, 4, 8, 12] {
            let mut y = [_mm512_setzero_ps(); 4];
            for j in 0..4 {
                let mask = sight.mask(base + (SUMS * i + first + j) as i32);
                y[j] = _mm512_maskz_mov_ps(mask, exp.of(row(&s[first + j])));
            }
            add_four(y, &mut sums, first);
            // SAFETY: by this function's contract.
            unsafe { give.four(SUMS * i + first, y) };
        }
    }
    total(sums)
}

/// Sums that a query's weights are added to, token `t` to number `t % 16`: as many as there are tokens in a vector where lanes
/// are tokens, so that both ways add in one order.
const SUMS: usize = 16;

#[inline]
#[target_feature(enable = "avx512f")]
fn add_four(y: [__m512; 4], sums: &mut [__m512; SUMS], first: usize) {
    for i in 0..4 {
        sums[first + i] = _mm512_add_ps(sums[first + i], y[i]);
    }
}

/// All sums: the later half on the earlier, four times.
#[inline]
#[target_feature(enable = "avx512f")]
fn total(mut sums: [__m512; SUMS]) -> __m512 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            sums[i] = _mm512_add_ps(sums[i], sums[i + half]);
        }
    }
    sums[0]
}

/// The maxima after scores of which `largest` are the largest, and what sums so far must be multiplied with.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn moved(largest: __m512, c: f32, old: __m512) -> (__m512, __m512) {
    let up = _mm512_roundscale_ps::<{ _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC }>(_mm512_mul_ps(
        largest,
        _mm512_set1_ps(c),
    ));
    let max = _mm512_max_ps(up, old);
    (max, _mm512_scalef_ps(_mm512_set1_ps(1.0), _mm512_sub_ps(old, max)))
}
