//! Pages of codes, met as they lie: no code is ever turned into what it stands for. What a query has in common with a key is, for
//! each group of dims, its product with the codes times the key's scale, and its own sum times the key's minimum; of values
//! the tokens' scales go into the weights, and their minima into a sum.
//!
//! Keys are turned round, a page at a time, so that lanes are tokens and no product has to be added up over lanes; values
//! lie so already. Few queries meet codes in registers, many meet those of a page that was unpacked: each sum is the same.

use super::block::{Ahead, PAGES, Pass, TOTALS};
use super::products::{dots, scaled};
use super::simd::Simd;
use super::values::ValuePage;
use super::widened::Widened;
use crate::attention::Page;
use crate::attention::element::Element;
use crate::attention::int4::{self, Int4, UNIT, UNIT_WORDS};
use crate::attention::layout::{BLOCK_TOKENS, GROUP_TOKENS, KV_GROUP};
use half::bf16;
use std::ops::Range;

/// Codes of a word.
const CODES: usize = 4;
/// What a code is multiplied with to be itself, by its place in a word: shifting it down would cost more than multiplying, once, what
/// meets it.
const STEPS: [f32; CODES] = [1.0, 1.0 / 16.0, 1.0 / 256.0, 1.0 / 4096.0];
/// Lines of a unit of keys, turned round: two words each.
const LINES: usize = 4;
/// Queries that meet each code anew: for more it is worth to keep what they meet, which is the same numbers.
const FEW: usize = 4;
/// Groups of dims that a head may have.
const MAX_GROUPS: usize = 256 / KV_GROUP;

/// f32 numbers for a group's grids, weights times scales, sums of minima, and sums of queries.
pub(super) fn coded_len(lanes: usize) -> usize {
    (2 + lanes) * GROUP_TOKENS + lanes.next_multiple_of(16) + lanes * MAX_GROUPS
}

impl Widened for Int4 {
    const PAIRS: bool = false;
    const CODED: bool = true;

    /// A query's dims are multiplied by the steps of what they meet, and added up for each group.
    #[inline(always)]
    unsafe fn load_query<S: Simd<W>, O: Element, const W: usize>(
        pass: &Pass<'_, '_, S, Int4, O, W>,
        q: &[bf16],
        lane: usize,
    ) {
        let d = q.len();
        for (group, dims) in pass.groups_of_dims() {
            let sum: f32 = q[dims].iter().map(|q| q.to_f32()).sum();
            // SAFETY: by this function's contract.
            unsafe { pass.query_sums(lane).add(group).write(sum) };
        }
        for (dim, x) in q.iter().enumerate() {
            let (_, place) = int4::place_of_key(dim, d);
            // SAFETY: by this function's contract.
            unsafe { pass.q.add(lane * d + dim).write(x.to_f32() * STEPS[place]) };
        }
    }

    #[inline(always)]
    unsafe fn scores<S: Simd<W>, O: Element, const W: usize>(
        pass: &Pass<'_, '_, S, Int4, O, W>,
        i: usize,
        page: &Page<'_, u16>,
        ahead: &[u16],
    ) {
        let ahead = Ahead::new(ahead, pass.head_dim().div_ceil(UNIT));
        // SAFETY: by this function's contract. A page is two vectors of 16 tokens, or four of 8, which are too many
        // for the sums of three queries.
        unsafe {
            if pass.lanes <= FEW {
                pass.turn_keys(page);
                let keys = (i, page, ahead);
                match (pass.lanes, W) {
                    (1, 8) => pass.meet_keys::<1, 4, false>(0, keys),
                    (1, _) => pass.meet_keys::<1, 2, false>(0, keys),
                    (2, 8) => pass.meet_keys::<2, 4, false>(0, keys),
                    (2, _) => pass.meet_keys::<2, 2, false>(0, keys),
                    (3, _) => pass.meet_keys::<3, 2, false>(0, keys),
                    _ => pass.meet_keys::<FEW, 2, false>(0, keys),
                }
                return;
            }
            pass.unpack_keys(page);
            for lane in (0..pass.lanes).step_by(FEW) {
                let keys = (i, page, if lane == 0 { ahead } else { Ahead::NONE });
                match pass.lanes - lane {
                    1 => pass.meet_keys::<1, 2, true>(lane, keys),
                    2 => pass.meet_keys::<2, 2, true>(lane, keys),
                    3 => pass.meet_keys::<3, 2, true>(lane, keys),
                    _ => pass.meet_keys::<FEW, 2, true>(lane, keys),
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn weigh<S: Simd<W>, O: Element, const W: usize>(
        pass: &Pass<'_, '_, S, Int4, O, W>,
        v: &[ValuePage<'_, u16>],
        ahead: &[&[u16]; PAGES],
        state: *mut f32,
    ) {
        let ahead = ahead.map(|values| Ahead::new(values, pass.head_dim() / CODES));
        for (group, dims) in pass.groups_of_dims() {
            // SAFETY: by this function's contract.
            unsafe {
                pass.scale_weights(group, v);
                match pass.lanes {
                    1 => pass.weigh_dims::<1>(0, dims, (v, ahead), state),
                    2 => pass.weigh_dims::<2>(0, dims, (v, ahead), state),
                    3 => pass.weigh_dims::<3>(0, dims, (v, ahead), state),
                    FEW => {
                        pass.weigh_dims::<2>(0, dims.clone(), (v, ahead), state);
                        pass.weigh_dims::<2>(2, dims, (v, [Ahead::NONE; PAGES]), state);
                    }
                    _ => pass.weigh_for_all(dims, (v, ahead), state),
                }
            }
        }
    }
}

impl<S: Simd<W>, O: Element, const W: usize> Pass<'_, '_, S, Int4, O, W> {
    /// Vectors that a page's tokens fill.
    const VECTORS: usize = BLOCK_TOKENS / W;

    /// Dims of each group.
    fn groups_of_dims(&self) -> impl Iterator<Item = (usize, Range<usize>)> + use<S, O, W> {
        let d = self.head_dim();
        (0..d).step_by(KV_GROUP).map(move |first| first..d.min(first + KV_GROUP)).enumerate()
    }

    /// Weights times scales, and the sums of weights times minima.
    fn scaled_weights(&self) -> (*mut f32, *mut f32) {
        let weights = self.coded.wrapping_add(2 * GROUP_TOKENS);
        (weights, weights.wrapping_add(self.lanes * GROUP_TOKENS))
    }

    /// The sums of a query over each group of dims.
    fn query_sums(&self, lane: usize) -> *mut f32 {
        let (_, offsets) = self.scaled_weights();
        offsets.wrapping_add(self.lanes.next_multiple_of(16) + lane * MAX_GROUPS)
    }

    /// Turns a page's keys round: `wide: [units][4 lines][32 tokens]`, two words of a token each.
    ///
    /// # Safety
    /// As for [`Widened::scores`].
    #[inline(always)]
    unsafe fn turn_keys(&self, page: &Page<'_, u16>) {
        let apart = self.head_dim() / CODES;
        for unit in 0..self.head_dim().div_ceil(UNIT) {
            for i in 0..Self::VECTORS {
                // SAFETY: a page has 32 keys of `d / 4` words; what follows the last one, where a head ends with half a unit, are its
                // grids. `wide` has room for four lines of each unit.
                unsafe {
                    let words = page.k.as_ptr().add(i * W * apart + unit * UNIT / CODES);
                    for (line, words) in S::turn_words(words, apart).into_iter().enumerate() {
                        S::store(self.wide.add(((unit * LINES + line) * Self::VECTORS + i) * W), words);
                    }
                }
            }
        }
    }

    /// Turns them round and unpacks them: `wide: [head_dim][32 tokens]`.
    ///
    /// # Safety
    /// As for [`Widened::scores`].
    #[inline(always)]
    unsafe fn unpack_keys(&self, page: &Page<'_, u16>) {
        let (d, apart) = (self.head_dim(), self.head_dim() / CODES);
        for unit in (0..d).step_by(UNIT) {
            let words_of_unit = UNIT_WORDS.min((d - unit) / CODES);
            for token in (0..BLOCK_TOKENS).step_by(W) {
                // SAFETY: as for `turn_keys`; `wide` has room for all codes of a page.
                unsafe {
                    let lines = S::turn_words(page.k.as_ptr().add(token * apart + unit / CODES), apart);
                    for (line, words) in lines.into_iter().take(words_of_unit / 2).enumerate() {
                        for (half, words) in [words, S::upper_words(words)].into_iter().enumerate() {
                            for place in 0..CODES {
                                let dim = unit + words_of_unit * place + 2 * line + half;
                                S::store(self.wide.add(dim * BLOCK_TOKENS + token), S::codes(words, place));
                            }
                        }
                    }
                }
            }
        }
    }

    /// Scores of page `i` of a group for the `L` queries from `lane` on, `T` vectors of tokens at a time.
    ///
    /// # Safety
    /// As for [`Widened::scores`]; the page is turned round, and unpacked if so.
    #[inline(always)]
    unsafe fn meet_keys<const L: usize, const T: usize, const UNPACKED: bool>(
        &self,
        lane: usize,
        (i, page, ahead): (usize, &Page<'_, u16>, Ahead),
    ) {
        let d = self.head_dim();
        for first in (0..Self::VECTORS).step_by(T) {
            // SAFETY: by this function's contract.
            unsafe {
                let mut scores = [[S::splat(0.0); T]; L];
                for (group, dims) in self.groups_of_dims() {
                    let mut sums = [[S::splat(0.0); T]; L];
                    for unit in dims.step_by(UNIT) {
                        ahead.bring::<S, W>(first / T * d.div_ceil(UNIT) + unit / UNIT);
                        if unit + UNIT <= d {
                            self.meet_unit::<L, T, UNIT, UNPACKED>(lane, unit, first, &mut sums);
                        } else {
                            self.meet_unit::<L, T, { UNIT / 2 }, UNPACKED>(lane, unit, first, &mut sums);
                        }
                    }
                    let (scales, mins) = int4::grids(page.k, d, group);
                    for t in 0..T {
                        let scale = S::load_bf16(scales[(first + t) * W..].as_ptr());
                        let min = S::load_bf16(mins[(first + t) * W..].as_ptr());
                        for l in 0..L {
                            let sum = S::splat(*self.query_sums(lane + l).add(group));
                            scores[l][t] = S::fma(sums[l][t], scale, S::fma(min, sum, scores[l][t]));
                        }
                    }
                }
                for (l, scores) in scores.into_iter().enumerate() {
                    let to = self.s.add((lane + l) * GROUP_TOKENS + i * BLOCK_TOKENS + first * W);
                    for (t, scores) in scores.into_iter().enumerate() {
                        S::store(to.add(t * W), scores);
                    }
                }
            }
        }
    }

    /// Adds products of the `N` dims from `unit` on: a code of each token with a query's dim at a time.
    ///
    /// # Safety
    /// As for `meet_keys`.
    #[inline(always)]
    unsafe fn meet_unit<const L: usize, const T: usize, const N: usize, const UNPACKED: bool>(
        &self,
        lane: usize,
        unit: usize,
        first: usize,
        sums: &mut [[S::V; T]; L],
    ) {
        let d = self.head_dim();
        for line in 0..N / CODES / 2 {
            // SAFETY: by this function's contract.
            unsafe {
                let mut words = [S::splat(0.0); T];
                if !UNPACKED {
                    let lines = self.wide.add(((unit / UNIT * LINES + line) * Self::VECTORS + first) * W);
                    for (t, words) in words.iter_mut().enumerate() {
                        *words = S::load(lines.add(t * W));
                    }
                }
                for half in 0..2 {
                    for place in 0..CODES {
                        let dim = unit + N / CODES * place + 2 * line + half;
                        let (q, row) = (self.q.add(lane * d + dim), dim * BLOCK_TOKENS + first * W);
                        let mut dims = [S::splat(0.0); L];
                        for (l, dims) in dims.iter_mut().enumerate() {
                            *dims = S::splat(*q.add(l * d));
                        }
                        for t in 0..T {
                            let codes = if UNPACKED {
                                S::load(self.wide.add(row + t * W))
                            } else {
                                S::codes(words[t], place)
                            };
                            for l in 0..L {
                                sums[l][t] = S::fma(codes, dims[l], sums[l][t]);
                            }
                        }
                    }
                    for words in words.iter_mut().filter(|_| !UNPACKED) {
                        *words = S::upper_words(*words);
                    }
                }
            }
        }
    }

    /// Makes [`scaled_weights`](Self::scaled_weights) for a group of dims.
    ///
    /// # Safety
    /// As for [`Widened::weigh`].
    #[inline(always)]
    unsafe fn scale_weights(&self, group: usize, v: &[ValuePage<'_, u16>]) {
        let (scales, mins) = (self.coded, self.coded.wrapping_add(GROUP_TOKENS));
        let (to, offsets) = self.scaled_weights();
        // SAFETY: `coded` holds grids and weights of a group of tokens.
        unsafe {
            for (i, v) in v.iter().enumerate() {
                let (mut s, mut m) = {
                    let (s, m) = int4::grids(v.plane, self.head_dim(), group);
                    (*s, *m)
                };
                // What was never written may be NaN.
                s[v.kept..].fill(bf16::ZERO);
                m[v.kept..].fill(bf16::ZERO);
                for token in (0..BLOCK_TOKENS).step_by(W) {
                    S::store(scales.add(i * BLOCK_TOKENS + token), S::load_bf16(s[token..].as_ptr()));
                    S::store(mins.add(i * BLOCK_TOKENS + token), S::load_bf16(m[token..].as_ptr()));
                }
            }
            for lane in 0..self.lanes {
                let at = lane * GROUP_TOKENS;
                let sum = scaled::<S, W>(self.s.add(at), scales, mins, to.add(at), v.len() * BLOCK_TOKENS);
                *offsets.add(lane) = sum;
            }
        }
    }

    /// Adds a group's values of `dims`, weighted for the `L` queries from `lane` on.
    ///
    /// # Safety
    /// As for [`Widened::weigh`]; weights are scaled for these dims.
    #[inline(always)]
    unsafe fn weigh_dims<const L: usize>(
        &self,
        lane: usize,
        dims: Range<usize>,
        (v, ahead): (&[ValuePage<'_, u16>], [Ahead; PAGES]),
        state: *mut f32,
    ) {
        let (weights, _) = self.scaled_weights();
        // SAFETY: a page has lines of 32 words, of four dims each; a query has weights of a group; `wide` holds the dims of a
        // group for each query.
        unsafe {
            for dim in dims.clone().step_by(CODES) {
                let mut sums = [[S::splat(0.0); CODES]; L];
                for (i, page) in v.iter().enumerate() {
                    ahead[i].bring::<S, W>(dim / CODES);
                    let line = page.plane.as_ptr().add(dim / CODES * BLOCK_TOKENS);
                    S::add_line(line, weights.add(lane * GROUP_TOKENS + i * BLOCK_TOKENS), &mut sums);
                }
                for (l, sums) in sums.into_iter().enumerate() {
                    S::sum_four(sums, self.wide.add(l * KV_GROUP + dim - dims.start));
                }
            }
            for l in 0..L {
                for dim in (0..dims.len()).step_by(W) {
                    let sums = S::load(self.wide.add(l * KV_GROUP + dim));
                    self.add_to_means(lane + l, dims.start + dim, sums, state);
                }
            }
        }
    }

    /// The same for all queries: values are unpacked once, `wide: [W][128]`. The same sums.
    ///
    /// # Safety
    /// As for `weigh_dims`.
    #[inline(always)]
    unsafe fn weigh_for_all(
        &self,
        dims: Range<usize>,
        (v, ahead): (&[ValuePage<'_, u16>], [Ahead; PAGES]),
        state: *mut f32,
    ) {
        let (weights, _) = self.scaled_weights();
        for dim in dims.step_by(W) {
            // SAFETY: as for `weigh_dims`.
            unsafe {
                for (i, page) in v.iter().enumerate() {
                    for line in dim / CODES..(dim + W) / CODES {
                        ahead[i].bring::<S, W>(line);
                        for token in (0..BLOCK_TOKENS).step_by(W) {
                            let words = S::load_words(page.plane.as_ptr().add(line * BLOCK_TOKENS + token));
                            for place in 0..CODES {
                                let row = line * CODES + place - dim;
                                let to = self.wide.add(row * GROUP_TOKENS + i * BLOCK_TOKENS + token);
                                S::store(to, S::codes(words, place));
                            }
                        }
                    }
                }
                for lane in 0..self.lanes {
                    let weights = weights.add(lane * GROUP_TOKENS);
                    let sums = dots::<S, W>(self.wide, GROUP_TOKENS, weights, v.len() * BLOCK_TOKENS);
                    self.add_to_means(lane, dim, sums, state);
                }
            }
        }
    }

    /// Adds sums of codes times weights of `W` dims, the first of which is `dim`, to a query's means.
    ///
    /// # Safety
    /// As for `weigh_dims`.
    #[inline(always)]
    unsafe fn add_to_means(&self, lane: usize, dim: usize, sums: S::V, state: *mut f32) {
        let (_, offsets) = self.scaled_weights();
        // Four dims share a word.
        let steps: [f32; W] = std::array::from_fn(|i| STEPS[i % CODES]);
        // SAFETY: by this function's contract; means follow totals.
        unsafe {
            let added = S::fma(sums, S::load(steps.as_ptr()), S::splat(*offsets.add(lane)));
            let means = state.add(lane * self.state_of_query() + TOTALS + dim);
            S::store(means, S::fma(S::load(means), S::splat(*self.shrink.add(lane)), added));
        }
    }
}

/// [`Simd::add_line`] in any vectors.
///
/// # Safety
/// As there.
#[inline(always)]
pub(super) unsafe fn add_line<S: Simd<W>, const L: usize, const W: usize>(
    line: *const u16,
    weights: *const f32,
    sums: &mut [[S::V; CODES]; L],
) {
    for token in (0..BLOCK_TOKENS).step_by(W) {
        // SAFETY: by this function's contract.
        unsafe {
            let words = S::load_words(line.add(token));
            for place in 0..CODES {
                let codes = S::codes(words, place);
                for (l, sums) in sums.iter_mut().enumerate() {
                    let weights = S::load(weights.add(l * GROUP_TOKENS + token));
                    sums[place] = S::fma(codes, weights, sums[place]);
                }
            }
        }
    }
}
