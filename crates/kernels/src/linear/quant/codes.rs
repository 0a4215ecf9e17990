//! Codes multiplied as they are: small whole numbers, which bf16 holds exactly, by x. The sum over a **run** of k that
//! shares a scale is scaled once, so that no weight is rounded:
//!
//! ```text
//! y = sum over runs of  scale * (sum of x * code)  +  min * (sum of x)
//! ```
//!
//! A run is a group of 32 k, or 16 of them where the format has a scale for each 16. Formats without a min have codes
//! of either sign. [`scalar`](super::scalar) has the order of every addition.

use half::bf16;

use super::plan::{Plan, Sub};
use super::{Narrow, scalar};
use crate::Isa;
use crate::linear::epilogue::Epilogue;
use crate::linear::pack::GROUP;
use crate::linear::types::Weight;
use crate::mat::Mat;
use crate::team::Team;

/// `x: [m, k]` by a weight of `format`, by AVX-512 with bf16 products or else by plain loops.
pub(crate) fn multiply(
    team: &Team,
    isa: Isa,
    format: Narrow,
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    epilogue: &Epilogue<'_>,
) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 => super::x86::multiply_codes(team, format, x, w, epilogue),
        _ => scalar::multiply_codes(team, &Plan::of(format), x, w, epilogue),
    }
}

impl Plan {
    /// Runs of a group, each with scales of its own.
    pub(super) const fn runs(&self) -> usize {
        match self.sub {
            Sub::None | Sub::ScaleMin => 1,
            Sub::Nibbles | Sub::Signed => 2,
        }
    }
}

/// The sum of x over each of the runs of a group; of both together in the first place, if they are one.
#[inline(always)]
pub(super) fn sums_of_runs(x: &[bf16; GROUP], runs: usize) -> [f32; 2] {
    let mut sums = [0.0; 2];
    for (sum, x) in sums.iter_mut().zip(x.as_chunks::<{ GROUP / 2 }>().0) {
        *sum = sum_of_16(x);
    }
    if runs == 1 { [sums[0] + sums[1], 0.0] } else { sums }
}

/// Pairs are added, then the two halves of what that gives, and so on.
#[inline(always)]
fn sum_of_16(x: &[bf16; GROUP / 2]) -> f32 {
    let mut sums = [0.0f32; GROUP / 4];
    for (sum, pair) in sums.iter_mut().zip(x.as_chunks::<2>().0) {
        *sum = pair[0].to_f32() + pair[1].to_f32();
    }
    for half in [4, 2, 1] {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
    }
    sums[0]
}
