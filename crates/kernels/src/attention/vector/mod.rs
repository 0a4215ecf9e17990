//! Attention in vector registers: AVX2 and AVX-512, bf16 or f32 pages.
//!
//! Lanes are dims while keys meet queries, and tokens while values are weighted; both ways the operands are
//! read as they lie in the page, and 8 or 16 sums at a time are turned into one vector of totals. A page is
//! widened to f32 once for all queries of a block. bf16 pairs are widened to even and odd places (a shift and
//! a mask), so everything that meets them is in that order too.

mod avx2;
mod avx512;
mod block;
mod products;
mod simd;

pub(super) use avx2::Avx2;
pub(super) use avx512::Avx512;
pub(super) use block::{BLOCK_LANES, Vectors, state_and_local};
