//! A few rows of x: codes are multiplied in the registers that they are looked up in, so that nothing but the stored
//! bytes comes from memory.

use std::arch::x86_64::*;

use half::bf16;

use super::super::super::plan::{GROUP, Layout, PANEL, TILE};
use super::super::fused::fetch;
use super::lines::{EIGHTS, LINES, lines, to_rows};
use super::scales::Scales;
use super::{X_BYTES, pack, row_bytes};
use crate::linear::epilogue::{Epilogue, Sums};
use crate::linear::pairs::add_pairs;
use crate::linear::types::Weight;
use crate::mat::Mat;
use crate::scratch::with_scratch;
use crate::team::{Team, Worker};

/// Rows of x at most: their sums over a run and a half tile's lines fit the registers.
pub(super) const ROWS_MAX: usize = 8;

/// `x: [1..=8, k]` by a weight.
pub(super) fn run<L: Layout>(team: &Team, x: Mat<'_, bf16>, w: &Weight<'_>, epilogue: &Epilogue<'_>) {
    let groups = w.k().div_ceil(GROUP);
    // Few numbers of rows, for few copies of the code; those that are missing are zero.
    let rows = [1, 2, 4, 6].into_iter().find(|rows| *rows >= x.rows()).unwrap_or(ROWS_MAX);
    team.run(|worker| {
        with_scratch(groups * rows * row_bytes(L::PLAN.has_min), |packed| {
            pack::<L>(x, 0, rows, groups, packed);
            let job = Job { x: packed.as_ptr(), rows: x.rows(), groups, w, epilogue };
            // SAFETY: the caller's machine has these instructions; x is packed with as many rows.
            unsafe {
                match rows {
                    1 => job.work::<L, 1>(&worker),
                    2 => job.work::<L, 2>(&worker),
                    4 => job.work::<L, 4>(&worker),
                    6 => job.work::<L, 6>(&worker),
                    _ => job.work::<L, ROWS_MAX>(&worker),
                }
            }
        });
    });
}

struct Job<'a> {
    /// Packed rows, those included that there are not.
    x: *const u8,
    rows: usize,
    groups: usize,
    w: &'a Weight<'a>,
    epilogue: &'a Epilogue<'a>,
}

impl Job<'_> {
    /// This worker's share of the panels, by `R` rows.
    ///
    /// # Safety
    /// The machine has these features; x has so many rows.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi,avx2,fma")]
    unsafe fn work<L: Layout, const R: usize>(&self, worker: &Worker<'_>) {
        for (panel, stored) in worker.share(self.w.held_panels()).map(|i| self.w.held_panel(i)) {
            let mut sums = [[0.0; PANEL]; R];
            // SAFETY: the caller's; this worker alone has these panels.
            unsafe {
                self.multiply::<L, R>(stored, &mut sums);
                self.epilogue.finish_512(panel, 0, &mut sums[..self.rows]);
            }
        }
    }

    /// # Safety
    /// As [`work`](Job::work).
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
    unsafe fn multiply<L: Layout, const R: usize>(&self, stored: &[u8], sums: &mut [Sums; R]) {
        assert!(L::PLAN.panel_bytes(self.groups * GROUP) <= stored.len());
        let stored = stored.as_ptr();
        let eights = EIGHTS / L::PLAN.runs();
        let mut total = [[_mm512_setzero_ps(); 2]; R];
        for group in 0..self.groups {
            // SAFETY: the panel holds the group, and x for each row its numbers and their sums.
            unsafe {
                let codes = stored.add(L::PLAN.locate(group).group);
                fetch(codes, L::PLAN.group_bytes());
                let scales = Scales::read::<L>(stored, group);
                let x = self.x.add(group * R * row_bytes(L::PLAN.has_min));
                let sums_of_x = x.add(R * X_BYTES).cast::<f32>();
                for run in 0..L::PLAN.runs() {
                    let mut part = [[_mm512_setzero_ps(); 2]; R];
                    for eight in run * eights..(run + 1) * eights {
                        let (first, second) = (lines::<L>(codes, 0, eight), lines::<L>(codes, 1, eight));
                        for r in 0..R {
                            let x = x.add(r * X_BYTES).cast::<i32>().add(eight * LINES);
                            for i in 0..LINES {
                                let x = _mm512_set1_epi32(x.add(i).read_unaligned());
                                part[r][0] = add_pairs(part[r][0], x, first[i]);
                                part[r][1] = add_pairs(part[r][1], x, second[i]);
                            }
                        }
                    }
                    for r in 0..R {
                        for tile in 0..2 {
                            let total = &mut total[r][tile];
                            *total = _mm512_fmadd_ps(scales.scale[run][tile], part[r][tile], *total);
                            if L::PLAN.has_min {
                                let x = _mm512_set1_ps(sums_of_x.add(2 * r + run).read_unaligned());
                                *total = _mm512_fmadd_ps(scales.min[run][tile], x, *total);
                            }
                        }
                    }
                }
            }
        }
        for (total, sums) in total.iter().zip(sums) {
            for (tile, total) in total.iter().enumerate() {
                // SAFETY: two tiles of 16 outputs.
                unsafe { _mm512_storeu_ps(sums.as_mut_ptr().add(TILE * tile), to_rows::<L>(*total)) };
            }
        }
    }
}
