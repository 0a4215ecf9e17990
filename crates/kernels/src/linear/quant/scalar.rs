//! Plain loops: what every other path is held against.

use std::array;
use std::ops::Range;

use half::bf16;

use super::codes::sums_of_runs;
use super::plan::{GROUP, PANEL, Plan, TILE};
use crate::linear::epilogue::{Epilogue, Sums};
use crate::linear::rows::copy_tiles;
use crate::linear::scalar::flush;
use crate::linear::types::Weight;
use crate::mat::Mat;
use crate::team::Team;

/// Expands `groups` of a panel; see [`expand`](super::expand()).
pub(super) fn expand(plan: &Plan, panel: &[u8], groups: Range<usize>, out: &mut [bf16]) {
    for (group, out) in groups.zip(out.chunks_exact_mut(PANEL * GROUP)) {
        for row in 0..PANEL {
            let affine = plan.group_affine(panel, group, row);
            let (tile, output) = (row / TILE, row % TILE);
            for k in 0..GROUP {
                out[tile * TILE * GROUP + k / 2 * 2 * TILE + 2 * output + k % 2] =
                    plan.value(panel, group, row, k, affine);
            }
        }
    }
}

/// Weights of 32 of k, by output.
type Weights = [[f32; GROUP]; PANEL];

/// `x: [m, k]` by values; see [`values`](super::values).
pub(super) fn multiply_values(
    team: &Team,
    plan: &Plan,
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    epilogue: &Epilogue<'_>,
) {
    let values = |panel: &[u8], group: usize| -> Weights {
        array::from_fn(|row| {
            let affine = plan.group_affine(panel, group, row);
            array::from_fn(|k| plan.unrounded(panel, group, row, k, affine))
        })
    };
    multiply(team, x, w, epilogue, values, add_values);
}

/// Adds the products of a group to the total of each output, in order of k, by fused multiply-add.
fn add_values(values: &Weights, x: &[bf16; GROUP], sums: &mut Sums) {
    for (values, total) in values.iter().zip(sums) {
        for (x, value) in x.iter().zip(values) {
            *total = x.to_f32().mul_add(*value, *total);
        }
    }
}

/// `x: [m, k]` by codes; see [`codes`](super::codes).
pub(super) fn multiply_codes(
    team: &Team,
    plan: &Plan,
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    epilogue: &Epilogue<'_>,
) {
    let codes = |panel: &[u8], group: usize| {
        let code = |row, k| plan.code_value(plan.code(panel, group, row, k)) - f32::from(plan.offset);
        let codes: Weights = array::from_fn(|row| array::from_fn(|k| code(row, k)));
        (codes, array::from_fn(|row| plan.group_affine(panel, group, row)))
    };
    multiply(team, x, w, epilogue, codes, |(codes, affine), x, sums| add_codes(plan, codes, affine, x, sums));
}

/// `x: [m, k]` by a weight, group by group: `decode` says what a panel's is, `add` adds its products with a row.
fn multiply<G>(
    team: &Team,
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    epilogue: &Epilogue<'_>,
    decode: impl Fn(&[u8], usize) -> G + Sync,
    add: impl Fn(&G, &[bf16; GROUP], &mut Sums) + Sync,
) {
    team.run(|worker| {
        let mut rows = vec![[bf16::ZERO; GROUP]; x.rows()];
        for (panel, stored) in worker.share(w.held_panels()).map(|i| w.held_panel(i)) {
            let mut sums = vec![[0.0; PANEL]; x.rows()];
            for group in 0..w.k().div_ceil(GROUP) {
                let decoded = decode(stored, group);
                copy_tiles(x, 0, x.rows(), group..group + 1, &mut rows);
                rows.iter().zip(&mut sums).for_each(|(x, sums)| add(&decoded, x, sums));
            }
            for (row, sums) in sums.into_iter().enumerate() {
                // SAFETY: this worker alone has this panel.
                unsafe { epilogue.finish(panel, row, &mut [sums]) };
            }
        }
    });
}

/// Adds the runs of a group to the total of each output: the products of a run are summed from zero (of every two of k the
/// odd one first, by fused multiply-add), and that is scaled and added by one more; then the min's share, likewise.
fn add_codes(
    plan: &Plan,
    codes: &Weights,
    affine: &[[(f32, f32); 2]; PANEL],
    x: &[bf16; GROUP],
    sums: &mut Sums,
) {
    let (runs, sums_of_x) = (plan.runs(), sums_of_runs(x, plan.runs()));
    let x = x.map(|x| flush(x.to_f32()));
    for ((codes, affine), total) in codes.iter().zip(affine).zip(sums) {
        for run in 0..runs {
            let pairs = run * GROUP / 2 / runs..(run + 1) * GROUP / 2 / runs;
            let sum =
                pairs.flat_map(|j| [2 * j + 1, 2 * j]).fold(0.0f32, |sum, k| x[k].mul_add(codes[k], sum));
            let (scale, min) = affine[run];
            *total = scale.mul_add(sum, *total);
            if plan.has_min {
                *total = min.mul_add(sums_of_x[run], *total);
            }
        }
    }
}
