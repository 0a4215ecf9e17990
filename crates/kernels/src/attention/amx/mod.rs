//! Attention with AMX tiles, bf16.
//!
//! ```text
//! scores   s[token][query]  = K[token][dim] * Q[dim pairs][query]      left operand: rows of the page
//! weights  p[token pairs][query]                                       softmax down the lanes
//! means    o[dim][query]   += V[dim][token] * p[token pairs][query]    left operand: rows of the page
//! ```
//!
//! Keys and values are left operands as they lie in the page, and the scores come out with a query in each
//! lane, so nothing is turned round but Q at the start of a block and O at its end. A lane's arithmetic does
//! not depend on its neighbours: that is what makes a query's bits independent of its block.

mod block;
mod local;
mod softmax;
mod tiles;

pub(super) use block::{Amx, BLOCK_LANES, Shape};
