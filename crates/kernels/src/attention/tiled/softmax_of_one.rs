//! The same as [`softmax`](super::softmax) for one query whose scores lie side by side: a lane is a token. Every number is the
//! same sum in the same order.

use super::local::{Grids, SCORES};
use super::softmax::{Exp, Sight, Totals, moved, row};
use super::tiles::LANES;
use crate::attention::layout::GROUP_TOKENS;
use std::arch::x86_64::*;

impl Sight {
    /// What the query of `lane` sees of a group that begins at `base`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn of_one(&self, lane: usize, base: i32) -> SightOfOne {
        let (first, last) = (_mm512_set1_epi32(self.first[lane]), _mm512_set1_epi32(self.last[lane]));
        let steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        SightOfOne { first, last, positions: _mm512_add_epi32(_mm512_set1_epi32(base), steps) }
    }

    /// Whether the query of `lane` sees all of it.
    fn is_full_of(&self, lane: usize, base: i32) -> bool {
        self.first[lane] <= base && base + GROUP_TOKENS as i32 <= self.last[lane] + 1
    }
}

/// The same for one query, and the positions of a group's first tokens, one in each lane.
struct SightOfOne {
    first: __m512i,
    last: __m512i,
    positions: __m512i,
}

impl SightOfOne {
    /// Which of the group's `i`th 16 tokens are seen; of a group that is `ALL` seen, all.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn mask<const ALL: bool>(&self, i: usize) -> __mmask16 {
        if ALL {
            return !0;
        }
        let positions = _mm512_add_epi32(self.positions, _mm512_set1_epi32(16 * i as i32));
        _mm512_cmple_epi32_mask(self.first, positions) & _mm512_cmple_epi32_mask(positions, self.last)
    }
}

/// Where one query's weights go.
///
/// # Safety
/// The machine has AVX-512 with bf16.
pub(super) trait GiveOne {
    /// Takes the weights of 32 tokens, `first` the first of them in its group.
    unsafe fn two(&mut self, first: usize, y: [__m512; 2]);
}

/// As bf16, `p: [tokens]`.
pub(super) struct OneAsTheyAre {
    pub p: *mut u8,
}

impl GiveOne for OneAsTheyAre {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn two(&mut self, first: usize, y: [__m512; 2]) {
        // SAFETY: `p` has room.
        unsafe { store_two(self.p.add(first * 2), y) };
    }
}

/// As [`Scaled`], `p: [G]` times as far apart as there, `[tokens]` bf16 each.
pub(super) struct OneScaled<'a, const G: usize> {
    pub p: *mut u8,
    pub grids: &'a Grids,
    /// Sums of weights times minima.
    mins: [__m512; G],
}

impl<'a, const G: usize> OneScaled<'a, G> {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn new(p: *mut u8, grids: &'a Grids) -> Self {
        OneScaled { p, grids, mins: [_mm512_setzero_ps(); G] }
    }

    /// What the minima of group `g` of dims add.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn added(&self, g: usize) -> f32 {
        total_of_lanes(self.mins[g])
    }
}

impl<const G: usize> GiveOne for OneScaled<'_, G> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bf16")]
    unsafe fn two(&mut self, first: usize, y: [__m512; 2]) {
        for g in 0..G {
            let at = g * GROUP_TOKENS + first;
            let mut scaled = y;
            for (half, y) in y.into_iter().enumerate() {
                // SAFETY: grids have room for a group of tokens.
                unsafe {
                    let at = at + 16 * half;
                    scaled[half] = _mm512_mul_ps(y, _mm512_loadu_ps(self.grids.scales.add(at)));
                    self.mins[g] = _mm512_fmadd_ps(y, _mm512_loadu_ps(self.grids.mins.add(at)), self.mins[g]);
                }
            }
            // SAFETY: `p` has room.
            unsafe { store_two(self.p.add(g * SCORES / 2 + first * 2), scaled) };
        }
    }
}

/// 32 tokens' weights as bf16, side by side.
///
/// # Safety
/// The machine has AVX-512 with bf16; `to` has 64 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn store_two(to: *mut u8, y: [__m512; 2]) {
    // SAFETY: by this function's contract; a vector of 32 bf16 is one of 512 bits.
    unsafe {
        let both: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(y[1], y[0]));
        _mm512_storeu_si512(to.cast(), both);
    }
}

/// [`weights`] of one query, `lane`, whose scores `s: [tokens]` lie side by side.
///
/// # Safety
/// As for [`weights`], of a multiple of 32 tokens.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn weights_of_one(
    s: &[f32],
    c: f32,
    (base, sight): (i32, &Sight),
    (totals, lane): (&mut Totals, usize),
    give: &mut impl GiveOne,
) -> Option<f32> {
    assert!(s.len().is_multiple_of(32) && s.len() <= GROUP_TOKENS);
    let seen = sight.of_one(lane, base);
    let (s, _) = s.as_chunks::<LANES>();
    let old = (totals.max[lane], totals.sum[lane]);
    // SAFETY: by this function's contract.
    let (max, sum, shrink) = unsafe {
        if sight.is_full_of(lane, base) {
            filled::<true>(s, c, &seen, old, give)
        } else {
            filled::<false>(s, c, &seen, old, give)
        }
    };
    (totals.max[lane], totals.sum[lane]) = (max, sum);
    (shrink != 1.0).then_some(shrink)
}

/// Gives the weights; the maximum and the sum after them, and what sums so far must be multiplied with.
///
/// # Safety
/// As for [`weights_of_one`]; `ALL` of the tokens are seen, or some.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn filled<const ALL: bool>(
    s: &[[f32; LANES]],
    c: f32,
    seen: &SightOfOne,
    (old, sum): (f32, f32),
    give: &mut impl GiveOne,
) -> (f32, f32, f32) {
    let mut largest = _mm512_set1_ps(f32::NEG_INFINITY);
    for (i, s) in s.iter().enumerate() {
        largest = _mm512_mask_max_ps(largest, seen.mask::<ALL>(i), largest, row(s));
    }
    let (max, shrink) = moved(_mm512_set1_ps(_mm512_reduce_max_ps(largest)), c, _mm512_set1_ps(old));
    let exp = Exp::new(c, max);
    let mut sums = _mm512_setzero_ps();
    for i in (0..s.len()).step_by(2) {
        let first = _mm512_maskz_mov_ps(seen.mask::<ALL>(i), exp.of(row(&s[i])));
        let second = _mm512_maskz_mov_ps(seen.mask::<ALL>(i + 1), exp.of(row(&s[i + 1])));
        sums = _mm512_add_ps(_mm512_add_ps(sums, first), second);
        // SAFETY: by this function's contract.
        unsafe { give.two(16 * i, [first, second]) };
    }
    let shrink = _mm512_cvtss_f32(shrink);
    (_mm512_cvtss_f32(max), sum.mul_add(shrink, total_of_lanes(sums)), shrink)
}

/// The sum of all lanes: the later half on the earlier, four times.
#[inline]
#[target_feature(enable = "avx512f")]
fn total_of_lanes(sums: __m512) -> f32 {
    let sums = _mm512_add_ps(sums, _mm512_shuffle_f32x4::<0b01_00_11_10>(sums, sums));
    let sums = _mm512_add_ps(sums, _mm512_shuffle_f32x4::<0b10_11_00_01>(sums, sums));
    let sums = _mm512_add_ps(sums, _mm512_permute_ps::<0b01_00_11_10>(sums));
    let sums = _mm512_add_ps(sums, _mm512_permute_ps::<0b10_11_00_01>(sums));
    _mm512_cvtss_f32(sums)
}
