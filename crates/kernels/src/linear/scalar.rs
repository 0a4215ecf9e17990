//! The reference for bf16 and f32: plain loops in the two orders that every other path reproduces bit for bit.

use half::bf16;

use super::epilogue::{Epilogue, Sums};
use super::pack::{GROUP, PANEL_ROWS, TILE_BYTES};
use super::source::{PAIR_BYTES, PanelSource};
use super::types::Weight;
use crate::isa::Order;
use crate::mat::Mat;
use crate::scratch::with_scratch;
use crate::team::Team;

/// bf16: `x: [m, k]`, any stored format but f32.
pub(crate) fn run_tiles(
    team: &Team,
    order: Order,
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    source: &impl PanelSource,
    epilogue: &Epilogue<'_>,
) {
    let groups = w.k().div_ceil(GROUP);
    team.run(|worker| {
        with_scratch(groups * PAIR_BYTES, |scratch| {
            for i in worker.share(w.held_panels()) {
                let (panel, stored) = w.held_panel(i);
                let tiles = source.tiles(stored, 0..groups, scratch);
                for row in 0..x.rows() {
                    let mut sums = [0.0; PANEL_ROWS];
                    match order {
                        Order::Groups | Order::Vectors => add_groups(x.row(row), tiles, &mut sums),
                        Order::Pairs => add_pairs(x.row(row), tiles, &mut sums),
                    }
                    // SAFETY: this worker alone has this panel.
                    unsafe { epilogue.finish(panel, row, &mut [sums]) };
                }
            }
        });
    });
}

/// `sums[i] += sum over k of x[k] * w[i][k]`, 32 of k at a time: the even and the odd products in two
/// sums of their own, by fused multiply-add in order of k; the two added; that added to the total.
fn add_groups(x: &[bf16], tiles: &[u8], sums: &mut Sums) {
    for (x, pair) in x.chunks(GROUP).zip(tiles.chunks_exact(PAIR_BYTES)) {
        for (i, sum) in sums.iter_mut().enumerate() {
            let (mut even, mut odd) = (0.0f32, 0.0f32);
            for j in 0..GROUP / 2 {
                even = value(x, 2 * j).mul_add(weight(pair, i, 2 * j), even);
                odd = value(x, 2 * j + 1).mul_add(weight(pair, i, 2 * j + 1), odd);
            }
            *sum += even + odd;
        }
    }
}

/// The same in one sum for each output: of every two of k the odd product first, by fused multiply-add.
fn add_pairs(x: &[bf16], tiles: &[u8], sums: &mut Sums) {
    for (x, pair) in x.chunks(GROUP).zip(tiles.chunks_exact(PAIR_BYTES)) {
        for (i, sum) in sums.iter_mut().enumerate() {
            for k in (0..GROUP / 2).flat_map(|j| [2 * j + 1, 2 * j]) {
                *sum = flush(flush(value(x, k)).mul_add(flush(weight(pair, i, k)), *sum));
            }
        }
    }
}

/// Subnormal numbers are zero to the instruction on pairs, whatever the thread's own mode.
pub(super) fn flush(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0f32.copysign(x) } else { x }
}

/// `x[k]`, zero beyond its end.
fn value(x: &[bf16], k: usize) -> f32 {
    x.get(k).map_or(0.0, |x| x.to_f32())
}

/// Output row `i`, column `k` of a pair of tiles.
fn weight(pair: &[u8], i: usize, k: usize) -> f32 {
    let at = (i / 16) * TILE_BYTES + (k / 2) * 64 + (i % 16) * 4 + (k % 2) * 2;
    bf16::from_le_bytes([pair[at], pair[at + 1]]).to_f32()
}

/// f32: one sum for each output, by fused multiply-add in order of k.
pub(crate) fn run_f32(team: &Team, x: Mat<'_, f32>, w: &Weight<'_>, epilogue: &Epilogue<'_>) {
    team.run(|worker| {
        for i in worker.share(w.held_panels()) {
            let (panel, stored) = w.held_panel(i);
            for row in 0..x.rows() {
                let mut sums = [0.0; PANEL_ROWS];
                for (x, outputs) in x.row(row).iter().zip(stored.chunks_exact(4 * PANEL_ROWS)) {
                    for (sum, w) in sums.iter_mut().zip(outputs.chunks_exact(4)) {
                        *sum = x.mul_add(f32::from_le_bytes([w[0], w[1], w[2], w[3]]), *sum);
                    }
                }
                // SAFETY: this worker alone has this panel.
                unsafe { epilogue.finish(panel, row, &mut [sums]) };
            }
        }
    });
}
