//! AVX-512 with bf16 products and no tiles, a few rows of x: the lines of a tile are multiplied in the registers that they
//! are made in, so that nothing but the stored bytes comes from memory.
//!
//! An output has one sum in order of k, as in the driver of bf16 panels, which takes more rows.

use std::arch::x86_64::*;

use half::bf16;

use super::super::plan::{GROUP, Layout, PANEL, TILE};
use super::avx512::{Affine, EIGHTS, LINES, lines};
use super::fused::fetch;
use crate::linear::epilogue::{Epilogue, Sums};
use crate::linear::pairs::add_pairs;
use crate::linear::rows::copy_tiles;
use crate::linear::types::Weight;
use crate::mat::Mat;
use crate::scratch::with_scratch;
use crate::team::{Team, Worker};

/// Rows of x at most, whose sums and a half tile's lines fit the registers.
pub(super) const ROWS_MAX: usize = 8;

/// `x: [1..=8, k]` by a weight, on a machine with bf16 products.
pub(super) fn run<L: Layout>(team: &Team, x: Mat<'_, bf16>, w: &Weight<'_>, epilogue: &Epilogue<'_>) {
    let groups = w.k().div_ceil(GROUP);
    // Few numbers of rows, for few copies of the code; those that are missing are zero.
    let rows = [1, 2, 4, 6].into_iter().find(|rows| *rows >= x.rows()).unwrap_or(ROWS_MAX);
    team.run(|worker| {
        with_scratch(groups * rows * 2 * GROUP, |packed| {
            copy_tiles(x, 0, rows, 0..groups, bytemuck::cast_slice_mut(packed));
            let job = Job { x: packed.as_ptr().cast(), rows: x.rows(), groups, w, epilogue };
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
    /// For each group 16 pairs of k of each row, those included that there are not.
    x: *const i32,
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
        let mut total = [[_mm512_setzero_ps(); 2]; R];
        for group in 0..self.groups {
            // SAFETY: the panel holds the group, and x for each row 16 pairs of it.
            unsafe {
                fetch(stored.add(L::PLAN.locate(group).group), L::PLAN.group_bytes());
                let affine = [Affine::read::<L>(stored, group, 0), Affine::read::<L>(stored, group, 1)];
                for eight in 0..EIGHTS {
                    let first = lines::<L>(stored, group, (0, eight), &affine[0]);
                    let second = lines::<L>(stored, group, (1, eight), &affine[1]);
                    for r in 0..R {
                        let x = self.x.add((group * R + r) * GROUP / 2 + eight * LINES);
                        for i in 0..LINES {
                            let x = _mm512_set1_epi32(*x.add(i));
                            total[r][0] = add_pairs(total[r][0], x, first[i]);
                            total[r][1] = add_pairs(total[r][1], x, second[i]);
                        }
                    }
                }
            }
        }
        for (total, sums) in total.iter().zip(sums) {
            for (tile, total) in total.iter().enumerate() {
                // SAFETY: two tiles of 16 outputs.
                unsafe { _mm512_storeu_ps(sums.as_mut_ptr().add(TILE * tile), *total) };
            }
        }
    }
}
