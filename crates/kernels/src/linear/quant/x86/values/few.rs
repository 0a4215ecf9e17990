//! A few rows of x: values are multiplied in the registers that they come about in.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::super::super::plan::{GROUP, PANEL};
use super::super::fused::fetch_at;
use super::ready::{AHEAD, Bytes, EIGHT, Floats, Form, Ready, Signed, VECTORS, Words};
use super::{Kind, Lies};
use crate::linear::epilogue::Epilogue;
use crate::linear::rows::widen_rows;
use crate::linear::types::Weight;
use crate::mat::Mat;
use crate::scratch::with_scratch;
use crate::team::{Stretches, Team};

/// Rows of x at most: with three, sums and x no longer fit the registers, and chunks in L1 are as fast.
pub(super) const ROWS_MAX: usize = 2;

/// `x: [1..=2, k]` by a weight.
pub(super) fn run(kind: Kind, team: &Team, x: Mat<'_, bf16>, w: &Weight<'_>, epilogue: &Epilogue<'_>) {
    let groups = w.k().div_ceil(GROUP);
    let threads = team.threads();
    let panels = Stretches::new(w.held_panels(), 1, threads);
    team.run_on(threads, |worker| {
        with_scratch(x.rows() * groups * GROUP * size_of::<f32>(), |floats| {
            let floats: &mut [f32] = bytemuck::cast_slice_mut(floats);
            widen_rows(x, groups * GROUP, floats);
            let job = Job { kind, x: floats.as_ptr(), groups, w, epilogue };
            // SAFETY: the caller's machine has these instructions; x has as many rows.
            unsafe {
                match x.rows() {
                    1 => job.work::<1>(panels.of(worker.index)),
                    _ => job.work::<ROWS_MAX>(panels.of(worker.index)),
                }
            }
        });
    });
}

struct Job<'a> {
    kind: Kind,
    /// Rows of all groups, one after the other.
    x: *const f32,
    groups: usize,
    w: &'a Weight<'a>,
    epilogue: &'a Epilogue<'a>,
}

/// The sums of rows of x with the outputs of a panel.
type Total<const R: usize> = [[__m256; VECTORS]; R];

impl Job<'_> {
    /// These panels, by `R` rows.
    ///
    /// # Safety
    /// The machine has these features; x has so many rows; nobody else has the panels.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn work<const R: usize>(&self, panels: impl Iterator<Item = Range<usize>>) {
        let mut ready = [Ready::NOTHING; AHEAD];
        for (panel, stored) in panels.flatten().map(|i| self.w.held_panel(i)) {
            assert!(self.kind.plan.panel_bytes(self.groups * GROUP) <= stored.len());
            let mut total = [[_mm256_setzero_ps(); VECTORS]; R];
            for first in (0..self.groups).step_by(AHEAD) {
                let groups = first..(first + AHEAD).min(self.groups);
                let x = self.x.wrapping_add(first * GROUP);
                let next = stored.as_ptr().wrapping_add(self.kind.plan.locate(first + AHEAD).unit);
                // SAFETY: the panel holds the groups, and each row of x has 32 numbers for each.
                unsafe {
                    (self.kind.prepare)(stored.as_ptr(), groups.clone(), &mut ready);
                    let ready = &ready[..groups.len()];
                    match (self.kind.plan.runs(), self.kind.lies()) {
                        (1, Lies::Bytes) => self.add::<R, 1, Bytes>(x, next, ready, &mut total),
                        (1, Lies::Signed) => self.add::<R, 1, Signed>(x, next, ready, &mut total),
                        (1, Lies::Floats) => self.add::<R, 1, Floats>(x, next, ready, &mut total),
                        (1, Lies::Words) => self.add::<R, 1, Words>(x, next, ready, &mut total),
                        _ => self.add::<R, 2, Words>(x, next, ready, &mut total),
                    }
                }
            }
            let mut sums = [[0.0; PANEL]; R];
            for (total, sums) in total.iter().zip(&mut sums) {
                for (vector, total) in total.iter().enumerate() {
                    // SAFETY: four vectors of eight outputs.
                    unsafe { _mm256_storeu_ps(sums.as_mut_ptr().add(EIGHT * vector), *total) };
                }
            }
            // SAFETY: this worker alone has these panels.
            unsafe { self.epilogue.finish_256(panel, 0, &mut sums) };
        }
    }

    /// # Safety
    /// As [`work`](Job::work); x points at 32 numbers for each group in each of `R` rows. `next`: the groups after these.
    #[inline(never)]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn add<const R: usize, const RUNS: usize, F: Form>(
        &self,
        x: *const f32,
        mut next: *const u8,
        ready: &[Ready],
        total: &mut Total<R>,
    ) {
        let mut sums = *total;
        let bytes_of_k = self.kind.plan.unit_bytes() / self.kind.plan.unit_k;
        for (group, ready) in ready.iter().enumerate() {
            for run in 0..RUNS {
                for k in run * GROUP / RUNS..(run + 1) * GROUP / RUNS {
                    if F::SIGNED {
                        // These are more lines than a core waits for at once: they are asked for between products.
                        fetch_at(next, 1);
                        next = next.wrapping_add(bytes_of_k);
                    }
                    // SAFETY: the caller's.
                    unsafe {
                        let x = x.add(group * GROUP + k);
                        let x: [_; R] =
                            std::array::from_fn(|r| _mm256_set1_ps(x.add(r * self.groups * GROUP).read()));
                        for vector in 0..VECTORS {
                            let values = ready.values::<F>(run, vector, k);
                            for r in 0..R {
                                sums[r][vector] = _mm256_fmadd_ps(x[r], values, sums[r][vector]);
                            }
                        }
                    }
                }
            }
        }
        *total = sums;
    }
}
