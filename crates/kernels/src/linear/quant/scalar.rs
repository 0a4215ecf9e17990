//! Expanding by plain loops: what every other path is held against.

use std::ops::Range;

use half::bf16;

use super::plan::{GROUP, PANEL, Plan, TILE};

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
