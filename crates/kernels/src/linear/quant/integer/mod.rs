//! Narrow weights by x rounded to whole numbers (`Activations::Int8`, `Int16`), which are multiplied: nothing is expanded.
//!
//! ```text
//! x[k] ~ size * number[k]                   a size and 32 numbers of 8 or 15 bits for each group of 32 k
//! y    = sum over the parts of k of  scale * (size * (numbers . codes))  +  min * (size * sum of the numbers)
//! ```
//!
//! A part is what shares a scale: 32 k, or 16. The sums in brackets are exact; the two terms are added to the total by
//! fused multiply-add, part by part in order of k. So every instruction set and every batch gives the same bits. The
//! weights are not rounded to bf16 here: their scales and mins are f32.
//!
//! The vectors want the codes as bytes in an order of their own ([`codes`]), or as words, made for a few groups at a time, in
//! the cache, and used by all rows of x; for a few rows AVX-512 keeps them in registers. x is rounded once, by all workers
//! together.

#[cfg(target_arch = "x86_64")]
mod codes;
#[cfg(target_arch = "x86_64")]
mod products;
mod rounded;
mod scalar;

#[cfg(target_arch = "x86_64")]
pub(crate) use rounded::Bits;

use half::bf16;

use super::Narrow;
use super::plan::Plan;
use crate::Isa;
use crate::linear::epilogue::Epilogue;
use crate::linear::types::Weight;
use crate::mat::Mat;
use crate::team::Team;

/// `x: [m, k]`, rounded, by a weight of `format`.
pub(crate) fn run(
    team: &Team,
    isa: Isa,
    (format, bits): (Narrow, Bits),
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    epilogue: &Epilogue<'_>,
) {
    match isa {
        Isa::Scalar => scalar::run(team, (&Plan::of(format), bits), x, w, epilogue),
        #[cfg(target_arch = "x86_64")]
        _ => products::run(team, isa, (format, bits), x, w, epilogue),
        #[cfg(not(target_arch = "x86_64"))]
        _ => unreachable!("{isa} was not available"),
    }
}

impl Plan {
    /// Whether anything is added to `scale * code`.
    pub(super) const fn shifted(&self) -> bool {
        self.has_min || self.offset != 0
    }
}
