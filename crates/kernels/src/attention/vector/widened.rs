//! What pages hold, as f32 numbers in vectors.

use super::products::widen;
use super::simd::Simd;
use crate::attention::Page;
use crate::attention::element::Stored;
use crate::attention::fp8::E4m3;
use crate::attention::int4::{self, Int4};
use crate::attention::layout::{BLOCK_TOKENS, GROUP_TOKENS};
use half::bf16;

/// Pages that the vector kernel can read.
pub(in crate::attention) trait Widened: Stored {
    /// Whether even and odd places are told apart, and stand in vectors of their own.
    const PAIRS: bool;
    /// Whether values are codes that their tokens' scales and minima belong to.
    const CODED: bool = false;

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

    /// Widens scales and minima of the values of group `group` of a page, zeros from token `kept` on.
    ///
    /// # Safety
    /// The instruction set is here; `plane` is one of values, `scales` and `mins` have 32 elements.
    unsafe fn grids<S: Simd<W>, const W: usize>(
        _plane: &[Self::Cell],
        _d: usize,
        _group: usize,
        _kept: usize,
        _scales: *mut f32,
        _mins: *mut f32,
    ) {
    }
}

/// Formats of plain numbers differ in one function.
macro_rules! wide {
    ($type:ty, $query:ty, $pairs:literal) => {
        impl Widened for $type {
            const PAIRS: bool = $pairs;

            #[inline(always)]
            unsafe fn query<S: Simd<W>, const W: usize>(from: *const $query, to: *mut f32, n: usize) {
                // SAFETY: by this function's contract.
                unsafe { widen::<S, $query, W>(from, to, n) };
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

wide!(f32, f32, false);
wide!(bf16, bf16, true);
wide!(E4m3, bf16, true);

impl Widened for Int4 {
    const PAIRS: bool = true;
    const CODED: bool = true;

    #[inline(always)]
    unsafe fn query<S: Simd<W>, const W: usize>(from: *const bf16, to: *mut f32, n: usize) {
        // SAFETY: by this function's contract.
        unsafe { widen::<S, bf16, W>(from, to, n) };
    }

    #[inline(always)]
    unsafe fn key<S: Simd<W>, const W: usize>(page: &Page<'_, u16>, d: usize, token: usize, to: *mut f32) {
        let words = page.k[token * d / 4..][..d / 4].as_ptr();
        for first in (0..d).step_by(int4::KV_GROUP) {
            let (scales, mins) = int4::grids(page.k, d, first / int4::KV_GROUP);
            let grid = (scales[token].to_f32(), mins[token].to_f32());
            for dim in (first..d.min(first + int4::KV_GROUP)).step_by(int4::UNIT) {
                let n = int4::UNIT.min(d - dim);
                // SAFETY: by this function's contract; a unit of `n` dims has `n / 4` words.
                unsafe { S::unpack_key(words.add(dim / 4), n, grid, to.add(dim)) };
            }
        }
    }

    #[inline(always)]
    unsafe fn values<S: Simd<W>, const W: usize>(plane: *const u16, dim: usize, to: *mut f32) {
        for i in (0..W).step_by(4) {
            // SAFETY: by this function's contract; codes are `[head_dim / 4][32]` words.
            unsafe {
                S::unpack_values(
                    plane.add((dim + i) / 4 * BLOCK_TOKENS),
                    to.add(i * GROUP_TOKENS),
                    GROUP_TOKENS,
                )
            };
        }
    }

    #[inline(always)]
    unsafe fn grids<S: Simd<W>, const W: usize>(
        plane: &[u16],
        d: usize,
        group: usize,
        kept: usize,
        scales: *mut f32,
        mins: *mut f32,
    ) {
        let (s, m) = int4::grids(plane, d, group);
        let (mut s, mut m) = (*s, *m);
        // What was never written may be NaN.
        s[kept..].fill(bf16::ZERO);
        m[kept..].fill(bf16::ZERO);
        // SAFETY: by this function's contract.
        unsafe {
            widen::<S, bf16, W>(s.as_ptr(), scales, BLOCK_TOKENS);
            widen::<S, bf16, W>(m.as_ptr(), mins, BLOCK_TOKENS);
        }
    }
}
