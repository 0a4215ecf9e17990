//! Plain loops: what every other path is held against.

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

/// `x: [m, k]` by values; see [`values`](super::values).
pub(super) fn multiply_values(
    team: &Team,
    plan: &Plan,
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    epilogue: &Epilogue<'_>,
) {
    multiply(team, plan, x, w, epilogue, add_values);
}

/// Adds the products of a group to the total of each output, in order of k, by fused multiply-add.
fn add_values(plan: &Plan, x: &[bf16; GROUP], panel: &[u8], group: usize, sums: &mut Sums) {
    for (row, total) in sums.iter_mut().enumerate() {
        let affine = plan.group_affine(panel, group, row);
        for (k, x) in x.iter().enumerate() {
            *total = x.to_f32().mul_add(plan.unrounded(panel, group, row, k, affine), *total);
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
    multiply(team, plan, x, w, epilogue, add_codes);
}

/// `x: [m, k]` by a weight, group by group: `add` has the products of one.
fn multiply(
    team: &Team,
    plan: &Plan,
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    epilogue: &Epilogue<'_>,
    add: impl Fn(&Plan, &[bf16; GROUP], &[u8], usize, &mut Sums) + Sync,
) {
    let groups = w.k().div_ceil(GROUP);
    team.run(|worker| {
        let mut row_groups = vec![[bf16::ZERO; GROUP]; groups];
        for (panel, stored) in worker.share(w.held_panels()).map(|i| w.held_panel(i)) {
            for row in 0..x.rows() {
                copy_tiles(x, row, 1, 0..groups, &mut row_groups);
                let mut sums = [0.0; PANEL];
                for (group, x) in row_groups.iter().enumerate() {
                    add(plan, x, stored, group, &mut sums);
                }
                // SAFETY: this worker alone has this panel.
                unsafe { epilogue.finish(panel, row, &mut [sums]) };
            }
        }
    });
}

/// Adds the runs of a group to the total of each output: the products of a run are summed from zero (of every two of k the
/// odd one first, by fused multiply-add), and that is scaled and added by one more; then the min's share, likewise.
fn add_codes(plan: &Plan, x: &[bf16; GROUP], panel: &[u8], group: usize, sums: &mut Sums) {
    let (runs, sums_of_x) = (plan.runs(), sums_of_runs(x, plan.runs()));
    for (row, total) in sums.iter_mut().enumerate() {
        let affine = plan.group_affine(panel, group, row);
        for run in 0..runs {
            let pairs = run * GROUP / 2 / runs..(run + 1) * GROUP / 2 / runs;
            let mut sum = 0.0f32;
            for k in pairs.flat_map(|j| [2 * j + 1, 2 * j]) {
                let code = plan.code_value(plan.code(panel, group, row, k)) - f32::from(plan.offset);
                sum = flush(x[k].to_f32()).mul_add(code, sum);
            }
            let (scale, min) = affine[run];
            *total = scale.mul_add(sum, *total);
            if plan.has_min {
                *total = min.mul_add(sums_of_x[run], *total);
            }
        }
    }
}
