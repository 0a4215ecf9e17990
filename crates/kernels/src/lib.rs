//! The arithmetic of a decoder on a CPU: a scalar reference and its AVX2, AVX-512 (with and without bf16 products)
//! and AMX twins.
//!
//! Every kernel computes a row (a token, a query) in an order that does not depend on the rows beside
//! it, so a result is the same bit for bit whatever else is in the batch.

pub mod aligned;
pub mod arena;
pub mod attention;
pub mod calibrate;
mod cpu;
pub mod device;
pub mod drive;
pub mod elementwise;
pub mod exp;
pub mod heap;
pub mod helpers;
pub mod isa;
pub mod linear;
pub mod lock;
pub mod mat;
pub mod page_cache;
pub mod pick;
pub mod queue;
pub mod reserve;
pub mod round;
mod scratch;
pub mod table;
pub mod team;
#[cfg(target_arch = "x86_64")]
mod tiles;

pub use aligned::AlignedBytes;
pub use cpu::CpuDevice;
pub use isa::{Isa, Order};
pub use mat::{Mat, MatMut};
pub use team::{Team, Worker};

/// As tests beside the crate name it: some of what they test with is shared.
#[cfg(test)]
extern crate self as kernels;
