//! Values as f32: what a format says that a weight is, `scale * code + min` rounded once, multiplied as f32 weights are, in
//! one sum for each output in order of k.
//!
//! That is for families whose products are those of f32 vectors: rounding a value to bf16 takes three instructions and a bf16
//! weight two more on its way to a product.

use half::bf16;

use super::plan::Plan;
use super::{Narrow, scalar};
use crate::Isa;
use crate::linear::epilogue::Epilogue;
use crate::linear::types::Weight;
use crate::mat::Mat;
use crate::team::Team;

/// `x: [m, k]` by a weight of `format`, by vectors or else by plain loops.
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
        Isa::Avx2 | Isa::Avx512 => super::x86::multiply_values(team, isa, format, x, w, epilogue),
        _ => scalar::multiply_values(team, &Plan::of(format), x, w, epilogue),
    }
}
