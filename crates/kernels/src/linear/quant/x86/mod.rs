//! By vectors: AVX-512 with its bf16 conversion and permutations of bytes where it has them, else AVX2. Tiles are made for
//! families that multiply those ([`avx512`], [`avx2`], [`fused`], [`lines`]); without tiles there are [`codes`] and [`values`].

mod avx2;
mod avx2_rows;
mod avx512;
mod bytes;
// Loops over rows and vectors run over registers: their indices are clearer than zipped iterators.
#[allow(clippy::needless_range_loop)]
mod codes;
mod floats;
mod fused;
mod lines;
mod rows;
// Loops over rows and vectors run over registers: their indices are clearer than zipped iterators.
#[allow(clippy::needless_range_loop)]
mod values;
mod words;

use std::ops::Range;

use half::bf16;

pub(super) use avx2::{Affine, affine};
pub(super) use avx2_rows::{codes_of_rows, store_lines};
pub(super) use avx512::by_row;
pub(super) use bytes::eight_k_by_row;
pub(super) use fused::{fetch, fetch_at};
pub(super) use words::words;

use super::Narrow;
use super::plan::{CodeOrder, Plan, with_layout};
use crate::Isa;
use crate::linear::epilogue::Epilogue;
use crate::linear::types::Weight;
use crate::linear::vector::Width;
use crate::mat::Mat;
use crate::team::Team;

/// Multiplies by a path of its own where there is a better one than expanding tiles for the driver of bf16, and
/// says whether it did.
pub(super) fn multiply(
    team: &Team,
    isa: Isa,
    format: Narrow,
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    epilogue: &Epilogue<'_>,
) -> bool {
    if w.k() == 0 || !wide(isa) {
        return false;
    }
    match (isa, Plan::of(format).order()) {
        (Isa::Amx, CodeOrder::ByRow) if x.rows() <= fused::ROWS_MAX => {
            with_layout!(format, [Int4, Q4_0, Q4_1, Q4K], L => fused::run::<L>(team, x, w, epilogue));
        }
        (Isa::Amx, CodeOrder::ByLine) if x.rows() <= fused::ROWS_MAX => {
            with_layout!(format, [Int8, Q8_0, Q5_0, Q5_1, Q2K, Q3K, Q5K, Q6K, Fp8],
                L => lines::run::<L>(team, x, w, epilogue));
        }
        _ => return false,
    }
    true
}

/// Multiplies codes as they are, on a machine with AVX-512, bf16 products and permutations of bytes.
pub(super) fn multiply_codes(
    team: &Team,
    format: Narrow,
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    epilogue: &Epilogue<'_>,
) {
    with_layout!(format, [Int8, Int4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K, Fp8],
        L => codes::run::<L>(team, x, w, epilogue));
}

/// Multiplies values as f32, on a machine with AVX2 or AVX-512.
pub(super) fn multiply_values(
    team: &Team,
    isa: Isa,
    format: Narrow,
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    epilogue: &Epilogue<'_>,
) {
    let width = if isa == Isa::Avx2 { Width::Eight } else { Width::Sixteen };
    with_layout!(format, [Int8, Int4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K, Fp8],
        L => values::run::<L>(width, team, x, w, epilogue));
}

/// Whether `isa` comes with what wide vectors need beside AVX-512.
fn wide(isa: Isa) -> bool {
    isa >= Isa::Avx512 && is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512vbmi")
}

/// Expands `groups` of a panel; see [`expand`](super::expand()), which has checked the lengths.
pub(super) fn expand(isa: Isa, format: Narrow, panel: &[u8], groups: Range<usize>, out: &mut [bf16]) {
    let wide = wide(isa);
    with_layout!(format, [Int8, Int4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K, Fp8], L => {
        // SAFETY: every `isa` above scalar has the instructions of AVX2, and the test above tells of the others.
        unsafe {
            if wide { avx512::expand::<L>(panel, groups, out) } else { avx2::expand::<L>(panel, groups, out) }
        }
    });
}
