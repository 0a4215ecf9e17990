//! Plain loops: what the vectors are held against.

use half::bf16;

use super::super::plan::{GROUP, PANEL, Plan};
use super::rounded::{Bits, Group, Order, Rounding, Words, round};
use crate::linear::epilogue::{Epilogue, Sums};
use crate::linear::types::Weight;
use crate::mat::Mat;
use crate::team::Team;

pub(super) fn run(
    team: &Team,
    (plan, bits): (&Plan, Bits),
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    epilogue: &Epilogue<'_>,
) {
    let how = Rounding { bits, order: Order::Natural, parts: plan.runs() };
    team.run(|worker| {
        let mut groups = vec![Group::<Words>::ZERO; w.k().div_ceil(GROUP)];
        for row in 0..x.rows() {
            for (i, group) in groups.iter_mut().enumerate() {
                let row = x.slice_rows(row..row + 1);
                round(row, i, how, std::slice::from_mut(group));
            }
            for (panel, stored) in worker.share(w.held_panels()).map(|i| w.held_panel(i)) {
                let mut sums: Sums = [0.0; PANEL];
                for (group, x) in groups.iter().enumerate() {
                    add_group(plan, (stored, group), x, &mut sums);
                }
                // SAFETY: this worker alone has this panel.
                unsafe { epilogue.finish(panel, row, &mut [sums]) };
            }
        }
    });
}

fn add_group(plan: &Plan, (panel, group): (&[u8], usize), x: &Group<Words>, sums: &mut Sums) {
    let length = GROUP / plan.runs();
    for (row, sum) in sums.iter_mut().enumerate() {
        let affine = plan.group_affine(panel, group, row);
        for (part, (scale, min)) in affine.into_iter().enumerate().take(plan.runs()) {
            let products = (part * length..(part + 1) * length)
                .map(|k| i32::from(x.numbers[k]) * plan.code_number(plan.code(panel, group, row, k)));
            let product = products.sum::<i32>() as f32 * x.size;
            *sum = scale.mul_add(product, *sum);
            if plan.shifted() {
                *sum = min.mul_add(x.sums[part], *sum);
            }
        }
    }
}
