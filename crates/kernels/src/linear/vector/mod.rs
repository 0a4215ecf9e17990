//! Vector units: AVX2 and AVX-512 with fused multiply-add, written once over the width.
//!
//! A vector holds neighbouring outputs; x is broadcast. So each output has sums of its own, and the order
//! of additions is the same at every width: of bf16 that of groups, of f32 weights and of narrow ones made into f32 that of k.

// Loops over rows and vectors run over registers: their indices are clearer than zipped iterators.
#[allow(clippy::needless_range_loop)]
mod floats;
mod lanes;
mod registers;
#[allow(clippy::needless_range_loop)]
mod three_rows;
#[allow(clippy::needless_range_loop)]
mod tiles;

use std::ops::Range;

use half::bf16;

pub(super) use lanes::SECOND;
pub(crate) use registers::{SUMS, multiply_registers};
pub(crate) use tiles::Values;

use super::epilogue::Epilogue;
use super::source::PanelSource;
use super::types::Weight;
use crate::mat::Mat;
use crate::scratch::{with_scratch, worth_keeping};
use crate::team::{Stretches, Team};

/// The two widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// 8 floats: AVX2 with FMA.
    Eight,
    /// 16 floats: AVX-512 F, BW, DQ and VL.
    Sixteen,
}

/// Bytes that a thread keeps at most after products of up to `rows` rows by weights of up to `k` inputs.
pub(crate) fn kept_bytes_at_most(rows: usize, k: usize) -> usize {
    worth_keeping(tiles::scratch_bytes_at_most(rows, k))
}

/// bf16: `x: [m, k]`, any stored format but f32. The machine has vectors of this width.
pub(crate) fn run_tiles(
    width: Width,
    team: &Team,
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    source: &impl PanelSource,
    epilogue: &Epilogue<'_>,
) {
    run_chunks(width, team, &tiles::Job { x, w, source: &tiles::Tiles(source), epilogue });
}

/// bf16: `x: [m, k]` by weights that are expanded to f32. The machine has vectors of this width.
pub(crate) fn run_values<F: Fn(&[u8], Range<usize>, &mut [f32]) + Sync>(
    width: Width,
    team: &Team,
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    source: &Values<F>,
    epilogue: &Epilogue<'_>,
) {
    run_chunks(width, team, &tiles::Job { x, w, source, epilogue });
}

fn run_chunks<C: tiles::Chunks>(width: Width, team: &Team, job: &tiles::Job<'_, C>) {
    // SAFETY: the machine has the width; a worker takes panels that nobody else has for these rows.
    run_panels(team, job.w, job.blocks(), job.scratch_bytes(), |me, panels, scratch| unsafe {
        match width {
            Width::Eight => job.work_8(me, panels, scratch),
            Width::Sixteen => job.work_16(me, panels, scratch),
        }
    });
}

/// f32: `x: [m, k]`. The machine has vectors of this width.
pub(crate) fn run_f32(width: Width, team: &Team, x: Mat<'_, f32>, w: &Weight<'_>, epilogue: &Epilogue<'_>) {
    let job = floats::Job { x, w, epilogue };
    // SAFETY: the machine has the width; a worker takes panels that nobody else has for these rows.
    run_panels(team, w, job.blocks(), job.scratch_bytes(), |me, panels, scratch| unsafe {
        match width {
            Width::Eight => job.work_8(me, panels, scratch),
            Width::Sixteen => job.work_16(me, panels, scratch),
        }
    });
}

/// Runs `work` on all workers, with so much scratch each: panels of `w` for each block of rows, which they take from each other.
fn run_panels(
    team: &Team,
    w: &Weight<'_>,
    blocks: usize,
    scratch_bytes: usize,
    work: impl Fn(usize, &[Stretches], &mut [u8]) + Sync,
) {
    let threads = team.threads();
    let panels = Stretches::times(blocks, w.held_panels(), threads);
    team.run_on(threads, |worker| {
        with_scratch(scratch_bytes, |scratch| work(worker.index, &panels, scratch));
    });
}
