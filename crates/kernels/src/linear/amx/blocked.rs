//! More than 16 rows of x: a block of rows by a block of panels at a time, k in chunks.
//!
//! ```text
//! for block of rows                    x as tiles, chunk by chunk, stays in L2
//!   for block of panels                its sums (f32) stay in L2
//!     for chunk of k
//!       for panel                      its chunk stays in L1; the next one is fetched meanwhile
//!         for two tiles of rows        streamed from L2: 2 x 2 tiles of sums in registers
//! ```
//!
//! Workers form a grid of rows by panels; those that share rows bring them into tiles together.

use std::ops::Range;

use half::bf16;

use super::plan::Plan;
use super::rows::copy_tiles;
use super::tile::{Fetch, Start, TILE_ROWS, Tiles, multiply_1, multiply_2};
use crate::linear::epilogue::{Epilogue, Sums};
use crate::linear::pack::{GROUP, PANEL_ROWS, TILE_BYTES};
use crate::linear::source::{PAIR_BYTES, PanelSource};
use crate::linear::types::Weight;
use crate::mat::{Mat, MatMut, SharedRows};
use crate::scratch::with_scratch;
use crate::team::{Team, Worker};

pub(super) fn run<S: PanelSource>(
    team: &Team,
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    source: &S,
    epilogue: &Epilogue<'_>,
) {
    let plan = Plan::new(x.rows(), w.k(), w.held_panels(), team.threads());
    with_scratch(plan.row_workers * plan.block_bytes(), |shared| {
        let mut shared = MatMut::new(shared, plan.row_workers, plan.block_bytes());
        let shared = &shared.shared();
        team.run(|worker| {
            let job = Job { plan: &plan, x, w, source, epilogue };
            with_scratch(plan.sums_bytes() + plan.chunk_groups() * PAIR_BYTES, |scratch| {
                let (sums, tiles) = scratch.split_at_mut(plan.sums_bytes());
                let registers = Tiles::full();
                // SAFETY: AMX implies AVX-512.
                unsafe { job.work(&registers, worker, shared, bytemuck::cast_slice_mut(sums), tiles) };
            });
        });
    });
}

struct Job<'a, S> {
    plan: &'a Plan,
    x: Mat<'a, bf16>,
    w: &'a Weight<'a>,
    source: &'a S,
    epilogue: &'a Epilogue<'a>,
}

/// One chunk of k of one block.
struct Chunk<'a> {
    /// x as tiles: all groups of the chunk for the first 16 rows, then the next 16.
    x: &'a [u8],
    groups: Range<usize>,
    start: Start,
    last: bool,
    /// Rows of the batch that the block holds.
    rows: Range<usize>,
}

impl<S: PanelSource> Job<'_, S> {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    unsafe fn work(
        &self,
        registers: &Tiles,
        worker: Worker<'_>,
        blocks: &SharedRows<'_, u8>,
        sums: &mut [Sums],
        scratch: &mut [u8],
    ) {
        let plan = self.plan;
        let (row_worker, panel_worker) =
            (worker.index / plan.panel_workers, worker.index % plan.panel_workers);
        let panels = plan.panels_of(panel_worker);
        for index in 0..plan.blocks {
            let rows = plan.rows_of(row_worker, index);
            if plan.panel_workers > 1 {
                worker.barrier();
            }
            // SAFETY: the workers that share this row of the grid pack tiles of their own, and read them
            // behind the barrier.
            unsafe { self.pack(&rows, panel_worker, blocks, row_worker) };
            if plan.panel_workers > 1 {
                worker.barrier();
            }
            // SAFETY: nobody writes it before the next barrier.
            let x = unsafe { blocks.read(row_worker, 0..plan.block_bytes()) };
            for first in panels.clone().step_by(plan.block_panels) {
                let panels = first..(first + plan.block_panels).min(panels.end);
                for chunk in 0..plan.chunks {
                    let chunk = self.chunk(x, chunk, rows.clone());
                    for panel in panels.clone() {
                        let next = if panel + 1 < panels.end { panel + 1 } else { panels.start };
                        let at = if plan.chunks > 1 { (panel - panels.start) * plan.block_rows } else { 0 };
                        // SAFETY: this worker alone has these rows of these panels.
                        unsafe {
                            self.panel(registers, &chunk, panel, next, &mut sums[at..], scratch);
                        }
                    }
                }
            }
        }
    }

    /// Brings this worker's share of the block's rows into tiles.
    #[inline(always)]
    unsafe fn pack(&self, rows: &Range<usize>, worker: usize, blocks: &SharedRows<'_, u8>, block: usize) {
        let plan = self.plan;
        let tiles = rows.len().div_ceil(TILE_ROWS);
        let mine = plan.share(tiles, worker, plan.panel_workers);
        for chunk in 0..plan.chunks {
            let groups = plan.groups_of(chunk);
            let bytes = groups.len() * TILE_BYTES;
            for tile in mine.clone() {
                let at = plan.chunk_at(chunk) + tile * bytes;
                // SAFETY: this tile is this worker's to write.
                let out = bytemuck::cast_slice_mut(unsafe { blocks.span(block, at..at + bytes) });
                copy_tiles(self.x, rows.start + tile * TILE_ROWS, TILE_ROWS, groups.clone(), out);
            }
        }
    }

    fn chunk<'x>(&self, x: &'x [u8], chunk: usize, rows: Range<usize>) -> Chunk<'x> {
        Chunk {
            x: &x[self.plan.chunk_at(chunk)..],
            groups: self.plan.groups_of(chunk),
            start: if chunk == 0 { Start::Zero } else { Start::Sums },
            last: chunk + 1 == self.plan.chunks,
            rows,
        }
    }

    /// All rows of the block by one panel.
    #[inline(always)]
    unsafe fn panel(
        &self,
        registers: &Tiles,
        chunk: &Chunk<'_>,
        held: usize,
        next: usize,
        sums: &mut [Sums],
        scratch: &mut [u8],
    ) {
        let (panel, stored) = self.w.held_panel(held);
        let w = self.source.tiles(stored, chunk.groups.clone(), scratch).as_ptr();
        let (groups, tiles) = (chunk.groups.len(), chunk.rows.len().div_ceil(TILE_ROWS));
        let next = self.next_weights(held, next, chunk, tiles.div_ceil(2));
        let spilled = self.plan.chunks > 1;
        for tile in (0..tiles).step_by(2) {
            let at = if spilled { tile * TILE_ROWS } else { 0 };
            let (now, later) = sums[at..].split_at_mut(2 * TILE_ROWS);
            let x = chunk.x[tile * groups * TILE_BYTES..].as_ptr();
            // SAFETY: the block holds `tiles` rows of tiles of this chunk; the sums of two rows of tiles
            // are 32 rows.
            unsafe {
                if tile + 1 < tiles {
                    let fetch = next.at(tile / 2, groups, spilled.then_some(later.as_ptr()));
                    let x = [x, x.add(groups * TILE_BYTES)];
                    multiply_2(registers, chunk.start, x, w, groups, now.as_mut_ptr(), fetch);
                } else {
                    multiply_1(registers, chunk.start, x, TILE_BYTES, w, groups, now.as_mut_ptr());
                }
            }
            if chunk.last {
                let first = chunk.rows.start + tile * TILE_ROWS;
                let count = (chunk.rows.end - first).min(2 * TILE_ROWS);
                // SAFETY: this worker alone has these rows of this panel.
                unsafe { self.epilogue.finish_512(panel, first, &mut now[..count]) };
            }
        }
    }

    /// The weights that follow those of panel `held`: the same chunk of the next panel.
    #[inline(always)]
    fn next_weights(&self, held: usize, next: usize, chunk: &Chunk<'_>, steps: usize) -> Next {
        if !S::STORED_AS_TILES {
            return Next { weights: std::ptr::null(), lines: 0, bytes: 0 };
        }
        if steps == 1 {
            let (_, stored) = self.w.held_panel(held);
            let weights = stored[chunk.groups.start * PAIR_BYTES..].as_ptr();
            return Next { weights: weights.wrapping_add(PAIR_BYTES), lines: 32, bytes: usize::MAX };
        }
        let groups = if next > held { chunk.groups.clone() } else { chunk.groups.end..chunk.groups.end + 1 };
        let (_, stored) = self.w.held_panel(next);
        let weights = stored[(groups.start * PAIR_BYTES).min(stored.len())..].as_ptr();
        let lines = [2, 4, 8, 16].into_iter().find(|lines| lines * steps >= 32).unwrap_or(2);
        Next { weights, lines, bytes: chunk.groups.len() * PAIR_BYTES }
    }
}

/// Weights to fetch while a panel is multiplied, a slice in each step.
struct Next {
    weights: *const u8,
    lines: usize,
    bytes: usize,
}

impl Next {
    #[inline(always)]
    fn at(&self, step: usize, groups: usize, sums: Option<*const Sums>) -> Fetch {
        let at = step * groups * self.lines * 64;
        let weight_lines = if at < self.bytes { self.lines } else { 0 };
        Fetch { weights: self.weights.wrapping_add(at), weight_lines, sums }
    }
}

const _: () = assert!(GROUP == 32 && PANEL_ROWS == 2 * TILE_ROWS);
