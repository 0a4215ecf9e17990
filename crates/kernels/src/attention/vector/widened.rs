//! What pages hold, and how queries meet it.

use super::block::{PAGES, Pass};
use super::products::{widen, widen_in_order};
use super::simd::Simd;
use super::values::ValuePage;
use crate::attention::Page;
use crate::attention::element::Stored;
use crate::attention::f16::F16;
use crate::attention::fp8::E4m3;
use crate::attention::layout::{BLOCK_TOKENS, GROUP_TOKENS};
use half::bf16;

/// Pages that the vector kernel can read.
///
/// # Safety
/// All methods: inside `S::run`, with the memory that a block was given.
pub(in crate::attention) trait Widened: Stored {
    /// Whether even and odd places are told apart, and stand in vectors of their own.
    const PAIRS: bool;
    /// Whether values are codes that their tokens' scales and minima belong to.
    const CODED: bool = false;

    /// Takes the dims of query `lane` in.
    unsafe fn load_query<S: Simd<W>, const W: usize>(
        pass: &Pass<'_, '_, S, Self, W>,
        q: &[Self::Query],
        lane: usize,
    );

    /// Scores of page `i` of a group for all queries, while keys that come later are brought nearer.
    unsafe fn scores<S: Simd<W>, const W: usize>(
        pass: &Pass<'_, '_, S, Self, W>,
        i: usize,
        page: &Page<'_, Self::Cell>,
        ahead: &[Self::Cell],
    );

    /// Adds pages of values, weighted, while values that come later are brought nearer. Weights of the pages are in `s`.
    unsafe fn weigh<S: Simd<W>, const W: usize>(
        pass: &Pass<'_, '_, S, Self, W>,
        v: &[ValuePage<'_, Self::Cell>],
        ahead: &[&[Self::Cell]; PAGES],
        state: *mut f32,
    );
}

/// Pages of plain numbers, which become f32 in vectors.
pub(in crate::attention) trait Numbers: Widened {
    /// Widens `n` numbers of a query.
    ///
    /// # Safety
    /// The instruction set is here; `from` and `to` have `n` elements, a multiple of 16.
    unsafe fn query<S: Simd<W>, const W: usize>(from: *const Self::Query, to: *mut f32, n: usize);

    /// Widens a token's key, in the order of a query.
    ///
    /// # Safety
    /// The instruction set is here; `to` has `d` elements.
    unsafe fn key<S: Simd<W>, const W: usize>(
        page: &Page<'_, Self::Cell>,
        d: usize,
        token: usize,
        to: *mut f32,
    );

    /// Widens the values of a page in `W` dims, the first of which is `dim`, each to 32 numbers, a group of tokens apart.
    ///
    /// # Safety
    /// The instruction set is here; `plane` is one of values, `to` has room.
    unsafe fn values<S: Simd<W>, const W: usize>(plane: *const Self::Cell, dim: usize, to: *mut f32);
}

/// Formats of plain numbers differ in what widens their queries, and in one function.
macro_rules! wide {
    ($type:ty, $query:ty, $pairs:literal, $widen:expr) => {
        impl Widened for $type {
            const PAIRS: bool = $pairs;

            #[inline(always)]
            unsafe fn load_query<S: Simd<W>, const W: usize>(
                pass: &Pass<'_, '_, S, Self, W>,
                q: &[$query],
                lane: usize,
            ) {
                // SAFETY: by this function's contract.
                unsafe { Self::query::<S, W>(q.as_ptr(), pass.q.add(lane * q.len()), q.len()) };
            }

            #[inline(always)]
            unsafe fn scores<S: Simd<W>, const W: usize>(
                pass: &Pass<'_, '_, S, Self, W>,
                i: usize,
                page: &Page<'_, $type>,
                ahead: &[$type],
            ) {
                // SAFETY: by this function's contract.
                unsafe { pass.scores_of_numbers(i, page, ahead) };
            }

            #[inline(always)]
            unsafe fn weigh<S: Simd<W>, const W: usize>(
                pass: &Pass<'_, '_, S, Self, W>,
                v: &[ValuePage<'_, $type>],
                ahead: &[&[$type]; PAGES],
                state: *mut f32,
            ) {
                // SAFETY: by this function's contract.
                unsafe { pass.weigh_numbers(v, ahead, state) };
            }
        }

        impl Numbers for $type {
            #[inline(always)]
            unsafe fn query<S: Simd<W>, const W: usize>(from: *const $query, to: *mut f32, n: usize) {
                // SAFETY: by this function's contract.
                unsafe { $widen(from, to, n) };
            }

            #[inline(always)]
            unsafe fn key<S: Simd<W>, const W: usize>(
                page: &Page<'_, $type>,
                d: usize,
                token: usize,
                to: *mut f32,
            ) {
                // SAFETY: by this function's contract; a key is `d` numbers side by side.
                unsafe { widen::<S, $type, W>(page.k[token * d..][..d].as_ptr(), to, d) };
            }

            #[inline(always)]
            unsafe fn values<S: Simd<W>, const W: usize>(plane: *const $type, dim: usize, to: *mut f32) {
                for i in 0..W {
                    // SAFETY: by this function's contract; values are `[head_dim][32]`.
                    unsafe {
                        widen::<S, $type, W>(
                            plane.add((dim + i) * BLOCK_TOKENS),
                            to.add(i * GROUP_TOKENS),
                            BLOCK_TOKENS,
                        );
                    }
                }
            }
        }
    };
}

wide!(f32, f32, false, widen::<S, f32, W>);
wide!(bf16, bf16, true, widen::<S, bf16, W>);
wide!(F16, bf16, false, widen_in_order::<S, W>);
wide!(E4m3, bf16, true, widen::<S, bf16, W>);
