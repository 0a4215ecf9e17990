//! AVX2: values as f32 ([`values`](super::super::values)), up to 2 rows of x where they come about ([`few`]), more by the
//! driver of vectors, a chunk of a panel at a time in L1.

mod few;
mod ready;

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::super::plan::{CodeOrder, GROUP, Layout, PANEL, Plan};
use super::fused::fetch_at;
use crate::linear::epilogue::Epilogue;
use crate::linear::types::Weight;
use crate::linear::vector::{Values, Width, run_values};
use crate::mat::Mat;
use crate::team::Team;
use ready::{AHEAD, Bytes, EIGHT, Form, Prepare, Ready, Signed, VECTORS, Words, prepare};

/// `x: [m, k]` by a weight, many rows by vectors of this width.
pub(super) fn run<L: Layout>(
    width: Width,
    team: &Team,
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    epilogue: &Epilogue<'_>,
) {
    let kind = Kind { plan: &L::PLAN, prepare: prepare::<L> };
    if x.rows() <= few::ROWS_MAX {
        few::run(kind, team, x, w, epilogue);
    } else {
        // SAFETY: the caller's machine has AVX2.
        let expand = |panel: &[u8], groups, out: &mut [f32]| unsafe { kind.expand(panel, groups, out) };
        run_values(width, team, x, w, &Values(expand), epilogue);
    }
}

/// In which form the codes of a format are made ready.
enum Lies {
    Bytes,
    Signed,
    Words,
}

/// A format.
#[derive(Clone, Copy)]
struct Kind {
    plan: &'static Plan,
    prepare: Prepare,
}

impl Kind {
    fn lies(&self) -> Lies {
        match (self.plan.order(), self.plan.low_bits) {
            (CodeOrder::ByRow, _) => Lies::Bytes,
            (CodeOrder::ByLine, 8) => Lies::Signed,
            (CodeOrder::ByLine, _) => Lies::Words,
        }
    }

    /// Writes the values of groups of a panel: for each k those of its 32 outputs.
    ///
    /// # Safety
    /// The machine has AVX2, FMA and F16C.
    unsafe fn expand(&self, panel: &[u8], groups: Range<usize>, out: &mut [f32]) {
        assert!(self.plan.panel_bytes(groups.end * GROUP) <= panel.len());
        let (outs, _) = out.as_chunks_mut::<{ GROUP * PANEL }>();
        let mut ready = [Ready::NOTHING];
        for (group, out) in groups.zip(outs) {
            if matches!(self.lies(), Lies::Signed) {
                fetch_at(
                    panel.as_ptr().wrapping_add(self.plan.locate(group + AHEAD).group),
                    self.plan.group_bytes(),
                );
            }
            // SAFETY: the panel holds the group; the features are the caller's.
            unsafe {
                (self.prepare)(panel.as_ptr(), group..group + 1, &mut ready);
                match (self.plan.runs(), self.lies()) {
                    (1, Lies::Bytes) => write::<1, Bytes>(&ready[0], out),
                    (1, Lies::Signed) => write::<1, Signed>(&ready[0], out),
                    (1, Lies::Words) => write::<1, Words>(&ready[0], out),
                    _ => write::<2, Words>(&ready[0], out),
                }
            }
        }
    }
}

/// # Safety
/// The machine has these features.
#[target_feature(enable = "avx2,fma")]
unsafe fn write<const RUNS: usize, F: Form>(ready: &Ready, out: &mut [f32; GROUP * PANEL]) {
    for run in 0..RUNS {
        for k in run * GROUP / RUNS..(run + 1) * GROUP / RUNS {
            for vector in 0..VECTORS {
                // SAFETY: four vectors for each k.
                unsafe {
                    let at = out.as_mut_ptr().add(PANEL * k + EIGHT * vector);
                    _mm256_storeu_ps(at, ready.values::<F>(run, vector, k));
                }
            }
        }
    }
}
