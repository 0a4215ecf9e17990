//! Vectors of 16 on a machine with permutations of bytes: up to 4 rows of x where values come about, or values written for more.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::super::super::plan::{GROUP, PANEL, Plan, TILE};
use super::super::fused::fetch_at;
use super::placed::{Bytes, EIGHT, Floats, Form, Nibbles, Place, Placed, Placing, Planes, TILES};
use super::ready::AHEAD;
use crate::linear::epilogue::{Epilogue, Sums};
use crate::linear::rows::widen_rows;
use crate::linear::types::Weight;
use crate::mat::Mat;
use crate::scratch::with_scratch;
use crate::team::{Stretches, Team};

/// Rows of x at most: more are hardly faster than values written to L1.
pub(super) const ROWS_MAX: usize = 4;

/// A format.
#[derive(Clone, Copy)]
pub(super) struct Wide {
    pub(super) plan: &'static Plan,
    pub(super) place: Place,
}

/// Runs an expression for the runs and the [`Form`] of a plan.
macro_rules! with_form {
    ($plan:expr, $runs:ident, $form:ident => $run:expr) => {
        match ($plan.runs(), $plan.low_bits, $plan.high_bits) {
            (1, 4, 0) => {
                const $runs: usize = 1;
                type $form = Nibbles;
                $run
            }
            (1, 8, _) if $plan.floats => {
                const $runs: usize = 1;
                type $form = Floats;
                $run
            }
            (1, 8, _) => {
                const $runs: usize = 1;
                type $form = Bytes;
                $run
            }
            (1, ..) => {
                const $runs: usize = 1;
                type $form = Planes;
                $run
            }
            _ => {
                const $runs: usize = 2;
                type $form = Planes;
                $run
            }
        }
    };
}

/// Runs an expression for each k of eight, known when it is compiled: that of a code's place depends on it.
macro_rules! each_k {
    ($k:ident => $run:expr) => {
        each_k!($k, [0, 1, 2, 3, 4, 5, 6, 7] => $run)
    };
    ($k:ident, [$($number:literal),+] => $run:expr) => {
        $({
            const $k: usize = $number;
            $run;
        })+
    };
}

/// Eights of a run of a group.
fn eights<const RUNS: usize>(run: usize) -> Range<usize> {
    let each = GROUP / EIGHT / RUNS;
    run * each..(run + 1) * each
}

impl Wide {
    /// `x: [1..=4, k]` by a weight.
    pub(super) fn run(self, team: &Team, x: Mat<'_, bf16>, w: &Weight<'_>, epilogue: &Epilogue<'_>) {
        let groups = w.k().div_ceil(GROUP);
        let threads = team.threads();
        let panels = Stretches::several(w.held_panels(), 2, threads);
        team.run_on(threads, |worker| {
            with_scratch(x.rows() * groups * GROUP * size_of::<f32>(), |floats| {
                let floats: &mut [f32] = bytemuck::cast_slice_mut(floats);
                widen_rows(x, groups * GROUP, floats);
                let job = Job { kind: self, x: floats.as_ptr(), groups, w, epilogue };
                let panels = panels.of(worker.index);
                // SAFETY: the caller's machine has these instructions; x has as many rows.
                with_form!(self.plan, RUNS, F => unsafe {
                    match x.rows() {
                        1 => job.work::<1, RUNS, F>(panels),
                        2 => job.work::<2, RUNS, F>(panels),
                        3 => job.work::<3, RUNS, F>(panels),
                        _ => job.work::<ROWS_MAX, RUNS, F>(panels),
                    }
                });
            });
        });
    }

    /// Writes the values of groups of a panel: for each k those of its 32 outputs.
    ///
    /// # Safety
    /// The machine has AVX-512 with permutations of bytes.
    pub(super) unsafe fn expand(&self, panel: &[u8], groups: Range<usize>, out: &mut [f32]) {
        assert!(self.plan.panel_bytes(groups.end * GROUP) <= panel.len());
        let (outs, _) = out.as_chunks_mut::<{ GROUP * PANEL }>();
        let mut placed = Placed::NOTHING;
        // SAFETY: the panel holds the groups; the features are the caller's.
        with_form!(self.plan, RUNS, F => unsafe {
            let placing = Placing::of::<F>(self.plan);
            for (group, out) in groups.zip(outs) {
                let ahead = self.plan.locate(group + AHEAD).group;
                fetch_at(panel.as_ptr().wrapping_add(ahead), self.plan.group_bytes());
                (self.place)(panel.as_ptr(), group, &mut placed);
                write::<RUNS, F>(&placing, &placed, out);
            }
        });
    }
}

/// # Safety
/// The machine has these features.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn write<const RUNS: usize, F: Form>(
    placing: &Placing,
    placed: &Placed,
    out: &mut [f32; GROUP * PANEL],
) {
    for run in 0..RUNS {
        // SAFETY: the caller's.
        unsafe {
            if placed.exact(run) {
                write_run::<RUNS, F, true>(placing, placed, run, out);
            } else {
                write_run::<RUNS, F, false>(placing, placed, run, out);
            }
        }
    }
}

/// # Safety
/// As [`write`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn write_run<const RUNS: usize, F: Form, const EXACT: bool>(
    placing: &Placing,
    placed: &Placed,
    run: usize,
    out: &mut [f32; GROUP * PANEL],
) {
    // SAFETY: the caller's; two vectors for each k.
    unsafe {
        let affine = placed.affine::<EXACT>(run);
        for eight in eights::<RUNS>(run) {
            each_k!(K => for tile in 0..TILES {
                let values = placed.values::<F, EXACT, K>(placing, &affine, tile, eight);
                _mm512_storeu_ps(out.as_mut_ptr().add(PANEL * (EIGHT * eight + K) + TILE * tile), values);
            });
        }
    }
}

struct Job<'a> {
    kind: Wide,
    /// Rows of all groups, one after the other.
    x: *const f32,
    groups: usize,
    w: &'a Weight<'a>,
    epilogue: &'a Epilogue<'a>,
}

/// What is multiplied next of a panel. A core waits for so many lines of memory at once only, so they are asked for between
/// products.
struct Next {
    line: *const u8,
    /// Up to where they have been asked for, if that were done to the byte.
    end: *const u8,
    /// Bytes of eight k.
    step: usize,
}

impl Next {
    /// From a group on.
    fn of(plan: &Plan, panel: &[u8], group: usize) -> Next {
        // A unit's scales come with its first group.
        let place = plan.locate(group);
        let first = group.is_multiple_of(plan.unit_k / GROUP);
        let line = panel.as_ptr().wrapping_add(if first { place.unit } else { place.group });
        Next { line, end: line, step: (EIGHT * plan.unit_bytes()).div_ceil(plan.unit_k) }
    }

    /// Asks for eight k more.
    #[inline(always)]
    fn fetch(&mut self) {
        self.end = self.end.wrapping_add(self.step);
        while self.line < self.end {
            fetch_at(self.line, 1);
            self.line = self.line.wrapping_add(64);
        }
    }
}

/// The sums of rows of x with the outputs of `P` panels.
type Total<const P: usize, const R: usize> = [[[__m512; TILES]; P]; R];

/// Panels that are multiplied at once at the most: two keep more reads on the way.
const PANELS: usize = 2;

/// Groups of these.
type Groups = [[Placed; PANELS]; AHEAD];

impl Job<'_> {
    /// These panels, by `R` rows.
    ///
    /// # Safety
    /// The machine has these features; x has so many rows; nobody else has the panels.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx2,fma")]
    unsafe fn work<const R: usize, const RUNS: usize, F: Form>(
        &self,
        panels: impl Iterator<Item = Range<usize>>,
    ) {
        let placing = Placing::of::<F>(self.kind.plan);
        let mut placed: Groups = [const { [Placed::NOTHING; PANELS] }; AHEAD];
        for panels in panels {
            let mut panels = panels.peekable();
            while let Some(held) = panels.next() {
                // SAFETY: passed on.
                unsafe {
                    match panels.next_if(|_| R <= 2) {
                        Some(other) => {
                            self.panels::<PANELS, R, RUNS, F>(&placing, &mut placed, [held, other]);
                        }
                        None => self.panels::<1, R, RUNS, F>(&placing, &mut placed, [held]),
                    }
                }
            }
        }
    }

    /// # Safety
    /// As [`work`](Job::work).
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx2,fma")]
    unsafe fn panels<const P: usize, const R: usize, const RUNS: usize, F: Form>(
        &self,
        placing: &Placing,
        placed: &mut Groups,
        held: [usize; P],
    ) {
        let plan = self.kind.plan;
        let held = held.map(|i| self.w.held_panel(i));
        assert!(held.iter().all(|(_, stored)| plan.panel_bytes(self.groups * GROUP) <= stored.len()));
        let mut total = [[[_mm512_setzero_ps(); TILES]; P]; R];
        for first in (0..self.groups).step_by(AHEAD) {
            let groups = first..(first + AHEAD).min(self.groups);
            let x = self.x.wrapping_add(first * GROUP);
            let next = held.map(|(_, stored)| Next::of(plan, stored, first + AHEAD));
            // SAFETY: the panels hold the groups, and each row of x has 32 numbers for each.
            unsafe {
                for (placed, group) in placed.iter_mut().zip(groups.clone()) {
                    for (placed, (_, stored)) in placed.iter_mut().zip(&held) {
                        (self.kind.place)(stored.as_ptr(), group, placed);
                    }
                }
                self.add::<P, R, RUNS, F>(x, next, placing, &placed[..groups.len()], &mut total);
            }
        }
        for (i, (panel, _)) in held.iter().enumerate() {
            let mut sums: [Sums; R] = [[0.0; PANEL]; R];
            for (total, sums) in total.iter().zip(&mut sums) {
                for (tile, total) in total[i].iter().enumerate() {
                    // SAFETY: two vectors of 16 outputs.
                    unsafe { _mm512_storeu_ps(sums.as_mut_ptr().add(TILE * tile), *total) };
                }
            }
            // SAFETY: this worker alone has these panels.
            unsafe { self.epilogue.finish_512(*panel, 0, &mut sums) };
        }
    }

    /// # Safety
    /// As [`work`](Job::work); x points at 32 numbers for each group in each of `R` rows. `next`: the groups after these.
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    unsafe fn add<const P: usize, const R: usize, const RUNS: usize, F: Form>(
        &self,
        x: *const f32,
        mut next: [Next; P],
        placing: &Placing,
        placed: &[[Placed; PANELS]],
        total: &mut Total<P, R>,
    ) {
        let mut sums = *total;
        for (group, placed) in placed.iter().enumerate() {
            for run in 0..RUNS {
                // SAFETY: the caller's.
                unsafe {
                    let x = x.add(group * GROUP);
                    if placed[..P].iter().all(|placed| placed.exact(run)) {
                        self.add_run::<P, R, RUNS, F, true>(x, &mut next, placing, placed, run, &mut sums);
                    } else {
                        self.add_run::<P, R, RUNS, F, false>(x, &mut next, placing, placed, run, &mut sums);
                    }
                }
            }
        }
        *total = sums;
    }

    /// # Safety
    /// As [`add`](Job::add).
    #[inline(always)]
    unsafe fn add_run<const P: usize, const R: usize, const RUNS: usize, F: Form, const EXACT: bool>(
        &self,
        x: *const f32,
        next: &mut [Next; P],
        placing: &Placing,
        placed: &[Placed; PANELS],
        run: usize,
        sums: &mut Total<P, R>,
    ) {
        // SAFETY: the caller's.
        unsafe {
            let affine: [_; P] = std::array::from_fn(|i| placed[i].affine::<EXACT>(run));
            for eight in eights::<RUNS>(run) {
                let x = x.add(EIGHT * eight);
                next.iter_mut().for_each(Next::fetch);
                each_k!(K => {
                    let values: [[_; TILES]; P] = std::array::from_fn(|i| {
                        let of = |tile| placed[i].values::<F, EXACT, K>(placing, &affine[i], tile, eight);
                        [of(0), of(1)]
                    });
                    for r in 0..R {
                        let x = _mm512_set1_ps(x.add(r * self.groups * GROUP + K).read());
                        for (i, values) in values.iter().enumerate() {
                            for (tile, values) in values.iter().enumerate() {
                                sums[r][i][tile] = _mm512_fmadd_ps(x, *values, sums[r][i][tile]);
                            }
                        }
                    }
                });
            }
        }
    }
}
