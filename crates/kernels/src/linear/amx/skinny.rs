//! At most 16 rows of x: the weights are read once, as fast as memory gives them, and everything else
//! hides behind that. All of k stays in tile registers; each worker takes some panels and walks three stretches of them at
//! once, because three streams keep more reads on the way than one.

use std::ops::Range;

use half::bf16;

use super::tile::{ROW_BYTES, Start, TILE_ROWS, Tiles, multiply_1, multiply_3};
use crate::linear::epilogue::{Epilogue, Sums};
use crate::linear::pack::{GROUP, PANEL_ROWS};
use crate::linear::rows::copy_tiles;
use crate::linear::source::{PAIR_BYTES, PanelSource};
use crate::linear::types::Weight;
use crate::mat::Mat;
use crate::scratch::with_scratch;
use crate::team::{Stretches, Team};

/// Groups that are dequantised at once: 16 KB, a third of L1.
const GROUPS_AT_ONCE: usize = 8;

pub(super) fn run<S: PanelSource>(
    team: &Team,
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    source: &S,
    epilogue: &Epilogue<'_>,
) {
    let groups = w.k().div_ceil(GROUP);
    let threads = team.threads();
    let panels = Stretches::several(w.held_panels(), 3, threads);
    team.run_on(threads, |worker| {
        with_scratch(groups * x.rows() * 64 + GROUPS_AT_ONCE * PAIR_BYTES, |scratch| {
            let (tiles, rest) = scratch.split_at_mut(groups * x.rows() * 64);
            copy_tiles(x, 0, x.rows(), 0..groups, bytemuck::cast_slice_mut(tiles));
            let job = Job { tiles, rows: x.rows(), groups, w, source, epilogue };
            let (rows, all) = (x.rows(), TILE_ROWS);
            // Sums in registers 0 to 5 and x in 6 have as many rows as x, weights in 7 all 16.
            // SAFETY: the machine has AMX, and this thread no other tiles.
            let registers =
                unsafe { Tiles::new([ROW_BYTES; 8], [rows, rows, rows, rows, rows, rows, rows, all]) };
            for panels in panels.of(worker.index) {
                // SAFETY: AMX implies AVX-512; this worker alone has these panels.
                unsafe { job.work(&registers, panels, rest) };
            }
        });
    });
}

struct Job<'a, S> {
    /// x as tiles of `rows` rows, one for each group.
    tiles: &'a [u8],
    rows: usize,
    groups: usize,
    w: &'a Weight<'a>,
    source: &'a S,
    epilogue: &'a Epilogue<'a>,
}

impl<S: PanelSource> Job<'_, S> {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    unsafe fn work(&self, registers: &Tiles, panels: Range<usize>, scratch: &mut [u8]) {
        let each = if S::STORED_AS_TILES { panels.len() / 3 } else { 0 };
        for i in panels.start..panels.start + each {
            // SAFETY: the three stretches do not meet, and this worker alone has them.
            unsafe { self.three(registers, [i, i + each, i + 2 * each]) };
        }
        for i in panels.start + 3 * each..panels.end {
            // SAFETY: this worker alone has these panels.
            unsafe { self.one(registers, i, scratch) };
        }
    }

    #[inline(always)]
    unsafe fn three(&self, registers: &Tiles, held: [usize; 3]) {
        let mut sums = [[[0.0; PANEL_ROWS]; TILE_ROWS]; 3];
        let panels = held.map(|i| self.w.held_panel(i));
        let weights = panels.map(|(_, tiles)| tiles.as_ptr());
        let targets = sums.each_mut().map(|sums| sums.as_mut_ptr());
        // SAFETY: stored panels are `groups` pairs of tiles, `tiles` is one tile of `rows` for each.
        unsafe {
            multiply_3(registers, self.tiles.as_ptr(), self.rows * 64, weights, self.groups, targets);
            for ((panel, _), sums) in panels.iter().zip(&mut sums) {
                self.epilogue.finish_512(*panel, 0, &mut sums[..self.rows]);
            }
        }
    }

    #[inline(always)]
    unsafe fn one(&self, registers: &Tiles, held: usize, scratch: &mut [u8]) {
        let mut sums: [Sums; TILE_ROWS] = [[0.0; PANEL_ROWS]; TILE_ROWS];
        let (panel, stored) = self.w.held_panel(held);
        let at_once = if S::STORED_AS_TILES { self.groups } else { GROUPS_AT_ONCE };
        for first in (0..self.groups).step_by(at_once) {
            let groups = first..(first + at_once).min(self.groups);
            let weights = self.source.tiles(stored, groups.clone(), scratch);
            let x = &self.tiles[first * self.rows * 64..];
            // SAFETY: `tiles` gave a pair for each group; x has a tile for each.
            unsafe {
                multiply_1(
                    registers,
                    Start::Sums,
                    x.as_ptr(),
                    self.rows * 64,
                    weights.as_ptr(),
                    groups.len(),
                    sums.as_mut_ptr(),
                );
            }
        }
        // SAFETY: this worker alone has this panel.
        unsafe { self.epilogue.finish_512(panel, 0, &mut sums[..self.rows]) };
    }
}
