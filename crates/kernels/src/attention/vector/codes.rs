//! Pages of codes, met as they lie: no code is ever turned into what it stands for. What a query has in common with a key is, for
//! each group of dims, its product with the codes times the key's scale, and its own sum times the key's minimum; of values
//! the tokens' scales go into the weights, and their minima into a sum.
//!
//! Codes are whole numbers, and so is what they meet: a query's dims, and its weights, as words of 16 bits of one scale for a
//! group. Sums of their products are exact, twice as many are made at a time as of f32, and in whatever order. Dims that are
//! not 128 times below a group's largest keep all bits of bf16; weights are within 1/65536 of the largest of 128 tokens.
//!
//! Keys are turned round, a page at a time, so that lanes are tokens and no product has to be added up over lanes; values
//! lie so already.

use super::block::{Ahead, PAGES, Pass, TOTALS};
use super::products::scaled;
use super::simd::Simd;
use super::values::ValuePage;
use super::widened::Widened;
use crate::attention::Page;
use crate::attention::int4::{self, Int4, UNIT};
use crate::attention::layout::{BLOCK_TOKENS, GROUP_TOKENS, KV_GROUP};
use half::bf16;
use std::ops::Range;

/// Codes of a word.
const CODES: usize = 4;
/// Lines of a unit of keys, turned round: two words each.
const LINES: usize = 4;
/// Queries that meet a code once it is taken out of its word: their sums fill the registers.
const FEW: usize = 4;
/// Groups of dims that a head may have.
const MAX_GROUPS: usize = 256 / KV_GROUP;
/// The largest weight of a group of tokens, as a word.
const LARGEST: f32 = i16::MAX as f32;

/// What a query's dims of a group add up to, and the step that they are whole numbers of.
type QueryGrid = [f32; 2];
/// What a query's weights of a group of tokens add up to when multiplied by their minima, and the step of those that were
/// multiplied by their scales.
type WeightGrid = [f32; 2];

/// f32 numbers for a group's grids, weights times scales, and the grids of weights and of queries.
pub(super) fn coded_len(lanes: usize) -> usize {
    2 * GROUP_TOKENS + lanes * (GROUP_TOKENS + 2 + 2 * MAX_GROUPS)
}

/// The power of two that makes words of numbers of which `most` is the largest: of that one, all 15 bits are used.
fn up_to_words(most: f32) -> f32 {
    let exponent = (most.to_bits() >> 23) as i32 - 127;
    f32::from_bits((((14 - exponent).min(126) + 127) as u32) << 23)
}

impl Widened for Int4 {
    const PAIRS: bool = false;
    const CODED: bool = true;

    /// A query's dims become words, and are added up for each group.
    #[inline(always)]
    unsafe fn load_query<S: Simd<W>, const W: usize>(
        pass: &Pass<'_, '_, S, Int4, W>,
        q: &[bf16],
        lane: usize,
    ) {
        for (group, dims) in pass.groups_of_dims() {
            let q = &q[dims.clone()];
            let most = q.iter().fold(0.0f32, |most, x| most.max(x.to_f32().abs()));
            let (up, sum) = (up_to_words(most), q.iter().map(|x| x.to_f32()).sum());
            // SAFETY: by this function's contract: a query has room for its dims and its groups' grids.
            unsafe {
                pass.query_grids(lane).add(group).write([sum, 1.0 / up]);
                let words = pass.query_words(lane).add(dims.start);
                for (i, x) in q.iter().enumerate() {
                    words.add(i).write((x.to_f32() * up).round_ties_even() as i16);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn scores<S: Simd<W>, const W: usize>(
        pass: &Pass<'_, '_, S, Int4, W>,
        i: usize,
        page: &Page<'_, u16>,
        ahead: &[u16],
    ) {
        // SAFETY: by this function's contract. A page is two vectors of 16 tokens, or four of 8, which are too many
        // for the sums of three queries.
        unsafe {
            pass.turn_keys(page);
            for lane in (0..pass.lanes).step_by(FEW) {
                let keys = (i, page, if lane == 0 { ahead } else { &[] });
                match (pass.lanes - lane, W) {
                    (1, 8) => pass.meet_keys::<1, 4>(lane, keys),
                    (1, _) => pass.meet_keys::<1, 2>(lane, keys),
                    (2, _) => pass.meet_keys::<2, 2>(lane, keys),
                    (3, _) => pass.meet_keys::<3, 2>(lane, keys),
                    _ => pass.meet_keys::<FEW, 2>(lane, keys),
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn weigh<S: Simd<W>, const W: usize>(
        pass: &Pass<'_, '_, S, Int4, W>,
        v: &[ValuePage<'_, u16>],
        ahead: &[&[u16]; PAGES],
        state: *mut f32,
    ) {
        let ahead = ahead.map(|values| Ahead::new(values, pass.head_dim() / W));
        for (group, dims) in pass.groups_of_dims() {
            // SAFETY: by this function's contract. Sums of three queries leave no registers for all places of a word.
            unsafe {
                pass.scale_weights(group, v);
                for lane in (0..pass.lanes).step_by(FEW) {
                    let values = (v, if lane == 0 { ahead } else { [Ahead::NONE; PAGES] });
                    match pass.lanes - lane {
                        1 => pass.weigh_dims::<1, CODES>(lane, dims.clone(), values, state),
                        2 => pass.weigh_dims::<2, CODES>(lane, dims.clone(), values, state),
                        3 => pass.weigh_dims::<3, 2>(lane, dims.clone(), values, state),
                        _ => pass.weigh_dims::<FEW, 2>(lane, dims.clone(), values, state),
                    }
                }
            }
        }
    }
}

impl<S: Simd<W>, const W: usize> Pass<'_, '_, S, Int4, W> {
    /// Vectors that a page's tokens fill.
    const VECTORS: usize = BLOCK_TOKENS / W;

    /// Dims of each group.
    fn groups_of_dims(&self) -> impl Iterator<Item = (usize, Range<usize>)> + use<S, W> {
        let d = self.head_dim();
        (0..d).step_by(KV_GROUP).map(move |first| first..d.min(first + KV_GROUP)).enumerate()
    }

    /// A query's dims: `[head_dim]`.
    fn query_words(&self, lane: usize) -> *mut i16 {
        self.q.wrapping_add(lane * self.head_dim()).cast()
    }

    /// A query's weights times their tokens' scales, before they are words: `[128]`.
    fn scaled_weights(&self, lane: usize) -> *mut f32 {
        self.coded.wrapping_add((2 + lane) * GROUP_TOKENS)
    }

    /// A query's weights as words, in the place of those: `[128]`.
    fn weight_words(&self, lane: usize) -> *mut i16 {
        self.scaled_weights(lane).cast()
    }

    fn weight_grid(&self, lane: usize) -> *mut WeightGrid {
        self.scaled_weights(self.lanes).wrapping_add(2 * lane).cast()
    }

    /// A query's grids of each group of dims.
    fn query_grids(&self, lane: usize) -> *mut QueryGrid {
        self.weight_grid(self.lanes).wrapping_add(lane * MAX_GROUPS).cast()
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

    /// Scores of page `i` of a group for the `L` queries from `lane` on, `T` vectors of tokens at a time.
    ///
    /// # Safety
    /// As for [`Widened::scores`]; the page is turned round.
    #[inline(always)]
    unsafe fn meet_keys<const L: usize, const T: usize>(
        &self,
        lane: usize,
        (i, page, ahead): (usize, &Page<'_, u16>, &[u16]),
    ) {
        let d = self.head_dim();
        let units = d.div_ceil(UNIT);
        let ahead = Ahead::new(ahead, units * Self::VECTORS / T);
        for first in (0..Self::VECTORS).step_by(T) {
            // SAFETY: by this function's contract.
            unsafe {
                let mut scores = [[S::splat(0.0); T]; L];
                for (group, dims) in self.groups_of_dims() {
                    let mut sums = [[S::zero_words(); T]; L];
                    for unit in dims.step_by(UNIT) {
                        ahead.bring::<S, W>(first / T * units + unit / UNIT);
                        if unit + UNIT <= d {
                            self.meet_unit::<L, T, UNIT>(lane, unit, first, &mut sums);
                        } else {
                            self.meet_unit::<L, T, { UNIT / 2 }>(lane, unit, first, &mut sums);
                        }
                    }
                    let (scales, mins) = int4::grids(page.k, d, group);
                    for t in 0..T {
                        let scale = S::load_bf16(scales[(first + t) * W..].as_ptr());
                        let min = S::load_bf16(mins[(first + t) * W..].as_ptr());
                        for l in 0..L {
                            let [sum, step] = *self.query_grids(lane + l).add(group);
                            let met = S::mul(S::floats(sums[l][t]), S::splat(step));
                            scores[l][t] = S::fma(met, scale, S::fma(min, S::splat(sum), scores[l][t]));
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

    /// Adds products of the `N` dims from `unit` on: two codes of each token with two dims of a query at a time.
    ///
    /// # Safety
    /// As for `meet_keys`.
    #[inline(always)]
    unsafe fn meet_unit<const L: usize, const T: usize, const N: usize>(
        &self,
        lane: usize,
        unit: usize,
        first: usize,
        sums: &mut [[S::Words; T]; L],
    ) {
        for line in 0..N / CODES / 2 {
            let lines = self.wide.wrapping_add(((unit / UNIT * LINES + line) * Self::VECTORS + first) * W);
            for place in 0..CODES {
                let dim = unit + N / CODES * place + 2 * line;
                // SAFETY: by this function's contract; two dims of a query are a lane.
                unsafe {
                    let mut codes = [S::zero_words(); T];
                    for (t, codes) in codes.iter_mut().enumerate() {
                        *codes = S::codes(S::load_words(lines.add(t * W).cast()), place);
                    }
                    for (l, sums) in sums.iter_mut().enumerate() {
                        let dims = S::splat_words(self.query_words(lane + l).add(dim).cast());
                        for (sum, codes) in sums.iter_mut().zip(codes) {
                            *sum = S::add_products(*sum, codes, dims);
                        }
                    }
                }
            }
        }
    }

    /// Makes [`weight_words`](Self::weight_words) and their grids for a group of dims.
    ///
    /// # Safety
    /// As for [`Widened::weigh`].
    #[inline(always)]
    unsafe fn scale_weights(&self, group: usize, v: &[ValuePage<'_, u16>]) {
        let (scales, mins) = (self.coded, self.coded.wrapping_add(GROUP_TOKENS));
        let tokens = v.len() * BLOCK_TOKENS;
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
                let weights = self.scaled_weights(lane);
                let p = self.s.add(lane * GROUP_TOKENS);
                let (sum, most) = scaled::<S, W>(p, scales, mins, weights, tokens);
                let up = S::splat((LARGEST / most).min(f32::MAX));
                for token in (0..tokens).step_by(2 * W) {
                    let low = S::mul(S::load(weights.add(token)), up);
                    let high = S::mul(S::load(weights.add(token + W)), up);
                    S::store_words(self.weight_words(lane).add(token), low, high);
                }
                self.weight_grid(lane).write([sum, most / LARGEST]);
            }
        }
    }

    /// Adds a group's values of `dims`, weighted for the `L` queries from `lane` on, `P` places of a word at a time.
    ///
    /// # Safety
    /// As for [`Widened::weigh`]; weights are words for these dims.
    #[inline(always)]
    unsafe fn weigh_dims<const L: usize, const P: usize>(
        &self,
        lane: usize,
        dims: Range<usize>,
        (v, ahead): (&[ValuePage<'_, u16>], [Ahead; PAGES]),
        state: *mut f32,
    ) {
        // SAFETY: a page has lines of 32 words, of four dims each; a query has weights of a group.
        unsafe {
            for dim in dims.step_by(W) {
                for ahead in &ahead[..v.len()] {
                    ahead.bring::<S, W>(dim / W);
                }
                let mut sums = [[S::zero_words(); W]; L];
                for first in (0..W).step_by(P) {
                    let (line, place) = ((dim + first) / CODES, first % CODES);
                    let some = self.weigh_places::<L, P>(lane, line, place, v);
                    for (sums, some) in sums.iter_mut().zip(some) {
                        sums[first..first + P].copy_from_slice(&some);
                    }
                }
                for (l, sums) in sums.into_iter().enumerate() {
                    self.add_to_means(lane + l, dim, S::floats(S::sum_whole(sums)), state);
                }
            }
        }
    }

    /// Codes of a line of each page, at `P` places from `first` on, times the weights of `L` queries: lanes are tokens.
    ///
    /// # Safety
    /// As for `weigh_dims`.
    #[inline(always)]
    unsafe fn weigh_places<const L: usize, const P: usize>(
        &self,
        lane: usize,
        line: usize,
        first: usize,
        v: &[ValuePage<'_, u16>],
    ) -> [[S::Words; P]; L] {
        // SAFETY: as for `weigh_dims`.
        unsafe {
            let mut sums = [[S::zero_words(); P]; L];
            for (i, page) in v.iter().enumerate() {
                let words = page.plane.as_ptr().add(line * BLOCK_TOKENS);
                for token in (0..BLOCK_TOKENS).step_by(2 * W) {
                    let words = S::load_words(words.add(token));
                    let mut codes = [S::zero_words(); P];
                    for (p, codes) in codes.iter_mut().enumerate() {
                        *codes = S::codes(words, first + p);
                    }
                    for (l, sums) in sums.iter_mut().enumerate() {
                        let weights = self.weight_words(lane + l).add(i * BLOCK_TOKENS + token);
                        let weights = S::load_words(weights.cast());
                        for (sum, codes) in sums.iter_mut().zip(codes) {
                            *sum = S::add_products(*sum, codes, weights);
                        }
                    }
                }
            }
            sums
        }
    }

    /// Adds sums of codes times weights of `W` dims, the first of which is `dim`, to a query's means.
    ///
    /// # Safety
    /// As for `weigh_dims`.
    #[inline(always)]
    unsafe fn add_to_means(&self, lane: usize, dim: usize, sums: S::V, state: *mut f32) {
        // SAFETY: by this function's contract; means follow totals.
        unsafe {
            let [sum, step] = *self.weight_grid(lane);
            let added = S::fma(sums, S::splat(step), S::splat(sum));
            let means = state.add(lane * self.state_of_query() + TOTALS + dim);
            S::store(means, S::fma(S::load(means), S::splat(*self.shrink.add(lane)), added));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::up_to_words;

    #[test]
    fn the_largest_number_uses_all_bits_of_a_word() {
        for most in [1.0f32, 1.99, 0.004, 3.0e38, 1.2e-30] {
            let word = most * up_to_words(most);
            assert!((16384.0..32768.0).contains(&word), "{most}: {word}");
        }
        assert_eq!((0.0 * up_to_words(0.0), 1e-44 * up_to_words(1e-44) < 32768.0), (0.0, true));
    }
}
