//! Attention in vector registers: AVX2 and AVX-512, all kinds of pages. With products of bf16 pairs what comes here are pages of
//! f32 and f16, and sparse attention (see `tiled/shape.rs`).
//!
//! Lanes are dims while keys meet queries, and tokens while values are weighted; both ways the operands are
//! read as they lie in the page, and 8 or 16 sums at a time are turned into one vector of totals. A page is
//! widened to f32 once for all queries of a block (few queries meet bf16 and f16 as they lie: `direct.rs`). bf16 pairs are
//! widened to even and odd places (a shift and a mask), so everything that meets them is in that order too. Pages of 4 bits
//! have ways of their own: `codes.rs`.

mod avx2;
mod avx512;
mod block;
mod codes;
mod direct;
mod numbers;
mod products;
mod simd;
mod sparse;
mod values;
mod widened;

pub(super) use avx2::Avx2;
pub(super) use avx512::Avx512;
pub(super) use block::{BLOCK_LANES, Vectors, state_and_local};
pub(super) use products::{EMPTY, ROUND};
pub(super) use simd::Simd;
pub(super) use sparse::{Sparse, scores_bytes};
pub(super) use widened::Widened;
