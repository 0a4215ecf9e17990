//! Attention with bf16 products, by AMX tiles or by pairs of bf16 (AVX512_BF16); pages of bf16, of 8 bits, or codes of 4 bits.
//!
//! ```text
//! scores   s[token][query]  = K[token][dim] * Q[dim pairs][query]      left operand: rows of the page
//! weights  p[token pairs][query]                                       softmax down the lanes
//! means    o[dim][query]   += V[dim][token] * p[token pairs][query]    left operand: rows of the page
//! ```
//!
//! Keys and values are left operands as they lie in the page, and the scores come out with a query in each
//! lane, so nothing is turned round but Q at the start of a block and O at its end. A lane's arithmetic does
//! not depend on its neighbours: that is what makes a query's bits independent of its block. Few queries have a second way
//! ([`lean`]), on vectors whatever multiplies the others, with the same sums in the same order ([`adds`]).

//! Codes become bf16 numbers `code - 8` on their way to a product, by a table of a vector's words. What their grids add is
//! done around the products: a score is `scale * product + (minimum + 8 scale) * sum of q`, a weight is multiplied
//! with its token's scale before it meets the values, and what the minima add is a sum beside the means.

#[allow(clippy::needless_range_loop)]
mod adds;
mod block;
#[allow(clippy::needless_range_loop)]
mod few;
#[allow(clippy::needless_range_loop)]
mod few_codes;
mod fp8;
#[allow(clippy::needless_range_loop)]
mod lean;
mod local;
mod pages;
// Loops over rows run over registers: their indices are clearer than zipped iterators.
#[allow(clippy::needless_range_loop)]
mod products;
mod shape;
mod softmax;
#[allow(clippy::needless_range_loop)]
mod softmax_of_one;
mod state;
mod tiles;
mod way;

pub(super) use block::Blocks;
pub(super) use pages::Tiled;
pub(super) use products::{Amx, Pairs};
pub(super) use shape::{BLOCK_LANES, Shape, pairs_suit};
