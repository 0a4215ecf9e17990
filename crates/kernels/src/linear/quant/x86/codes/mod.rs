//! AVX-512 with bf16 products: codes multiplied as they are ([`codes`](super::super::codes)), up to 8 rows of x where they
//! come out of their planes ([`few`]), more by the driver of bf16 panels ([`panels`]).

mod few;
mod lines;
mod panels;
mod scales;

use half::bf16;

use super::super::plan::{GROUP, Layout};
use crate::linear::epilogue::Epilogue;
use crate::linear::pairs::run_panels;
use crate::linear::rows::copy_tiles;
use crate::linear::types::Weight;
use crate::mat::Mat;
use crate::team::Team;

/// `x: [m, k]` by a weight.
pub(super) fn run<L: Layout>(team: &Team, x: Mat<'_, bf16>, w: &Weight<'_>, epilogue: &Epilogue<'_>) {
    if x.rows() <= few::ROWS_MAX {
        few::run::<L>(team, x, w, epilogue);
    } else {
        run_panels::<panels::Codes<L>>(team, x, w, epilogue);
    }
}

/// Bytes of a row of x in a group of k.
const X_BYTES: usize = 2 * GROUP;

/// Bytes of a packed row in a group: x and, where there are mins, its sum over each run.
const fn row_bytes(has_min: bool) -> usize {
    if has_min { X_BYTES + 2 * size_of::<f32>() } else { X_BYTES }
}

/// Packs rows of x from `first` on: in each group `rows` times x, then their sums where there are mins. Rows and k beyond the
/// end are zero.
fn pack<L: Layout>(x: Mat<'_, bf16>, first: usize, rows: usize, groups: usize, out: &mut [u8]) {
    let bytes = rows * row_bytes(L::PLAN.has_min);
    for (group, out) in out.chunks_exact_mut(bytes).take(groups).enumerate() {
        let (values, sums) = out.split_at_mut(rows * X_BYTES);
        let values: &mut [[bf16; GROUP]] = bytemuck::cast_slice_mut(values);
        copy_tiles(x, first, rows, group..group + 1, values);
        for (x, sums) in values.iter().zip(sums.chunks_exact_mut(8)) {
            sums.copy_from_slice(bytemuck::cast_slice(&super::super::codes::sums_of_runs(x, L::PLAN.runs())));
        }
    }
}
