//! Pages of 16 bits, bf16 or f16, met as they lie: numbers are widened in registers, for two queries or one, and nothing is
//! written on the way. Widening to memory takes longer than what few queries do with it.
//!
//! Sums, and the order in which each is added, are those of [`dots`](super::products::dots) over widened numbers: the same bits.

use std::ops::Range;

use super::block::{Ahead, PAGES, Pass, TOTALS};
use super::simd::Simd;
use super::values::ValuePage;
use super::widened::Widened;
use crate::attention::Page;
use crate::attention::element::Stored;
use crate::attention::f16::F16;
use crate::attention::layout::{BLOCK_TOKENS, GROUP_TOKENS, KvDtype};
use half::bf16;

/// More than these are worth widened numbers, which each of them reads in one instruction.
const fn few<const W: usize>() -> usize {
    W / 2
}

/// Whether so many queries, in heads of `head_dim`, meet pages of this kind as they lie.
pub(super) const fn met<E: Stored, const W: usize>(lanes: usize, head_dim: usize) -> bool {
    let whole = match E::DTYPE {
        KvDtype::Bf16 => head_dim.is_multiple_of(2 * W),
        KvDtype::F16 => head_dim.is_multiple_of(W),
        _ => false,
    };
    whole && lanes <= few::<W>()
}

/// Queries that meet the same rows, as many rows as fill a vector of totals.
const TWO: usize = 2;

impl<S: Simd<W>, E: Widened, const W: usize> Pass<'_, '_, S, E, W> {
    /// [`Widened::scores`] of pages that [`met`] is true of.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(super) unsafe fn scores_as_they_lie(&self, i: usize, page: &Page<'_, E::Cell>, ahead: &[E::Cell]) {
        let (d, k) = (self.head_dim(), page.k.as_ptr());
        // SAFETY: a page has 32 keys of `d` numbers; `q` and `s` have a row for each query.
        unsafe {
            for lane in (0..self.lanes).step_by(TWO) {
                let (q, s) = (self.q.add(lane * d), self.s.add(lane * GROUP_TOKENS + i * BLOCK_TOKENS));
                let tokens = self.rows_of_step(lane);
                let ahead = if lane == 0 { Ahead::new(ahead, BLOCK_TOKENS / tokens) } else { Ahead::NONE };
                for token in (0..BLOCK_TOKENS).step_by(tokens) {
                    ahead.bring::<S, W>(token / tokens);
                    let mut sums = [S::splat(0.0); W];
                    if tokens < W {
                        add_to_two::<S, E, W>((k.add(token * d), d), (q, d), d, &mut sums);
                    } else {
                        add_to_one::<S, E, W>(k.add(token * d), d, q, d, &mut sums);
                    }
                    let totals = lanes_of::<S, W>(S::sum_rows(sums));
                    for (i, totals) in totals.chunks_exact(tokens).enumerate() {
                        let s = s.add(i * GROUP_TOKENS + token);
                        s.copy_from_nonoverlapping(totals.as_ptr(), tokens);
                    }
                }
            }
        }
    }

    /// Rows that fill a vector of totals, with the two queries from `lane` on or with the last.
    fn rows_of_step(&self, lane: usize) -> usize {
        if lane + 1 < self.lanes { W / TWO } else { W }
    }

    /// [`Widened::weigh`] of pages that [`met`] is true of.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(super) unsafe fn weigh_as_they_lie(
        &self,
        pages: &[ValuePage<'_, E::Cell>],
        ahead: &[&[E::Cell]; PAGES],
        state: *mut f32,
    ) {
        // SAFETY: a page has values of all dims, 32 numbers each; `s` has weights of a group for each query.
        unsafe {
            for lane in (0..self.lanes).step_by(TWO) {
                let weights = self.s.add(lane * GROUP_TOKENS).cast_const();
                let dims = self.rows_of_step(lane);
                let ahead = ahead.map(|values| match lane {
                    0 => Ahead::new(values, self.head_dim() / dims),
                    _ => Ahead::NONE,
                });
                for dim in (0..self.head_dim()).step_by(dims) {
                    let (at, mut sums) = (dim * BLOCK_TOKENS, [S::splat(0.0); W]);
                    for (i, page) in pages.iter().enumerate() {
                        ahead[i].bring::<S, W>(dim / dims);
                        let values = page.plane.as_ptr().add(at);
                        let weights = weights.add(i * BLOCK_TOKENS);
                        if dims < W {
                            let (values, weights) = ((values, BLOCK_TOKENS), (weights, GROUP_TOKENS));
                            add_to_two::<S, E, W>(values, weights, BLOCK_TOKENS, &mut sums);
                        } else {
                            add_to_one::<S, E, W>(values, BLOCK_TOKENS, weights, BLOCK_TOKENS, &mut sums);
                        }
                    }
                    let added = lanes_of::<S, W>(S::sum_rows(sums));
                    for (i, added) in added.chunks_exact(dims).enumerate() {
                        self.add_means(state, lane + i, dim..dim + dims, added);
                    }
                }
            }
        }
    }

    /// Adds to a query's means.
    ///
    /// # Safety
    /// `state` holds a block, whose queries have these dims.
    #[inline(always)]
    unsafe fn add_means(&self, state: *mut f32, lane: usize, dims: Range<usize>, added: &[f32]) {
        // SAFETY: by this function's contract.
        unsafe {
            let shrink = *self.shrink.add(lane);
            let at = state.add(lane * self.state_of_query() + TOTALS + dims.start);
            for (i, added) in added.iter().enumerate() {
                *at.add(i) = (*at.add(i)).mul_add(shrink, *added);
            }
        }
    }
}

/// # Safety
/// The instruction set is here.
#[inline(always)]
unsafe fn lanes_of<S: Simd<W>, const W: usize>(v: S::V) -> [f32; W] {
    let mut lanes = [0.0; W];
    // SAFETY: by this function's contract.
    unsafe { S::store(lanes.as_mut_ptr(), v) };
    lanes
}

/// [`Simd::add_to_two`] for pages of 16 bits: of f16, queries are in order.
///
/// # Safety
/// As there; [`met`] is true of `E`.
#[inline(always)]
unsafe fn add_to_two<S: Simd<W>, E: Stored, const W: usize>(
    (rows, stride): (*const E::Cell, usize),
    (first, apart): (*const f32, usize),
    n: usize,
    sums: &mut [S::V; W],
) {
    // SAFETY: by this function's contract.
    unsafe {
        if E::DTYPE == KvDtype::Bf16 {
            return S::add_to_two((rows.cast(), stride), (first, apart), n, sums);
        }
        let rows = rows.cast::<F16>();
        for i in (0..n).step_by(W) {
            let (with_first, with_second) = (S::load(first.add(i)), S::load(first.add(apart + i)));
            for row in 0..W / TWO {
                let x = S::load_f16(rows.add(row * stride + i));
                sums[row] = S::fma(x, with_first, sums[row]);
                sums[W / TWO + row] = S::fma(x, with_second, sums[W / TWO + row]);
            }
        }
    }
}

/// Adds products of `n` numbers of `W` rows, `stride` apart, with those of a query to the sums.
///
/// # Safety
/// The instruction set is here; rows and query have `n` numbers, a multiple of `2 W`; [`met`] is true of `E`.
#[inline(always)]
unsafe fn add_to_one<S: Simd<W>, E: Stored, const W: usize>(
    rows: *const E::Cell,
    stride: usize,
    with: *const f32,
    n: usize,
    sums: &mut [S::V; W],
) {
    // SAFETY: by this function's contract.
    unsafe {
        if E::DTYPE == KvDtype::F16 {
            let rows = rows.cast::<F16>();
            for i in (0..n).step_by(W) {
                let with = S::load(with.add(i));
                for (row, sum) in sums.iter_mut().enumerate() {
                    *sum = S::fma(S::load_f16(rows.add(row * stride + i)), with, *sum);
                }
            }
            return;
        }
        let rows = rows.cast::<bf16>();
        for i in (0..n).step_by(2 * W) {
            let (with_even, with_odd) = (S::load(with.add(i)), S::load(with.add(i + W)));
            for (row, sum) in sums.iter_mut().enumerate() {
                let (even, odd) = S::load_pairs(rows.add(row * stride + i));
                *sum = S::fma(odd, with_odd, S::fma(even, with_even, *sum));
            }
        }
    }
}
