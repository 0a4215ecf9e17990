//! How a product is cut among the workers and the caches.

use std::ops::{Range, RangeInclusive};

use super::tile::TILE_ROWS;
use crate::linear::pack::{GROUP, PANEL_ROWS, TILE_BYTES};

/// Groups of k in a chunk: 36 KB of a panel, which stays in an L1 of 48 KB while tiles of x are streamed
/// past it (four more and it no longer does: half the speed).
const CHUNK_GROUPS: usize = 18;
/// The same for up to `FEW_ROWS` rows, where a panel is hardly warm before it is done with: it and its sums
/// stay in L1 together.
const CHUNK_GROUPS_OF_FEW: usize = 9;
const FEW_ROWS: usize = 192;
/// Where all k of enough rows fit half of L2 beside what passes through, they stay there, and a block
/// has few panels: its sums are read again soon.
const X_BLOCK_BYTES: usize = 1 << 20;
const ROWS_WITH_ALL_K: RangeInclusive<usize> = 192..=640;
const PANELS_WITH_ALL_K: usize = 4;
/// Otherwise one chunk of k of this many rows, and the sums of this many panels.
const ROWS_WITH_A_CHUNK: usize = 512;
const PANELS_WITH_A_CHUNK: usize = 12;
/// Up to this many rows the weights are all that matters: their panels are read from end to end, all of
/// k in registers.
const ROWS_UNCHUNKED: usize = 64;
/// Up to this many bytes all of x stays in L2, and panels are taken one at a time.
const X_IN_L2_BYTES: usize = 512 << 10;
/// Below this many rows for each, workers share rows rather than panels.
const ROWS_TO_SPLIT: usize = 256;

/// Sizes of blocks and chunks, and the grid of workers.
#[derive(Debug)]
pub(super) struct Plan {
    rows: usize,
    groups: usize,
    pub(super) panels: usize,
    /// Workers along the rows, and along the panels.
    pub(super) row_workers: usize,
    pub(super) panel_workers: usize,
    /// Blocks of rows that each worker passes.
    pub(super) blocks: usize,
    /// Rows of a block at most, a multiple of 32.
    pub(super) block_rows: usize,
    pub(super) block_panels: usize,
    /// Chunks of k.
    pub(super) chunks: usize,
    /// Whether workers take panels one by one, the next before they are done with one.
    pub(super) as_they_come: bool,
}

impl Plan {
    pub(super) fn new(rows: usize, k: usize, panels: usize, threads: usize) -> Plan {
        let row_workers = (1..=threads)
            .rev()
            .find(|n| threads.is_multiple_of(*n) && (*n == 1 || rows / n >= ROWS_TO_SPLIT))
            .unwrap_or(1);
        let own_rows = rows.div_ceil(row_workers);
        let groups = k.div_ceil(GROUP);
        let (most_rows, block_panels) = block_of(groups);
        let blocks = own_rows.div_ceil(most_rows);
        let chunk =
            if own_rows <= FEW_ROWS && groups > CHUNK_GROUPS { CHUNK_GROUPS_OF_FEW } else { CHUNK_GROUPS };
        let fits = own_rows * k * size_of::<half::bf16>() <= X_IN_L2_BYTES;
        Plan {
            rows,
            groups,
            panels,
            row_workers,
            panel_workers: threads / row_workers,
            blocks,
            block_rows: own_rows.div_ceil(blocks).next_multiple_of(2 * TILE_ROWS) + 2 * TILE_ROWS,
            block_panels: if fits { 1 } else { block_panels },
            chunks: if rows <= ROWS_UNCHUNKED { 1 } else { groups.div_ceil(chunk) },
            as_they_come: fits && row_workers == 1,
        }
    }

    /// Panels that a worker takes at once: those of a block, or so many fewer that all have as much to do.
    pub(super) fn grain(&self) -> usize {
        let own = self.panels.div_ceil(self.panel_workers).max(1);
        own.div_ceil(own.div_ceil(self.block_panels))
    }

    /// Part `i` of `n` that are cut into `of` parts, sizes differing by at most one.
    pub(super) fn share(&self, n: usize, i: usize, of: usize) -> Range<usize> {
        i * n / of..(i + 1) * n / of
    }

    /// Rows of block `block` of the workers in row `worker` of the grid: whole tiles but at the end.
    pub(super) fn rows_of(&self, worker: usize, block: usize) -> Range<usize> {
        let tiles = self.rows.div_ceil(TILE_ROWS);
        let tiles = self.share(tiles, worker * self.blocks + block, self.row_workers * self.blocks);
        tiles.start * TILE_ROWS..(tiles.end * TILE_ROWS).min(self.rows)
    }

    /// Groups of chunk `chunk`.
    pub(super) fn groups_of(&self, chunk: usize) -> Range<usize> {
        self.share(self.groups, chunk, self.chunks)
    }

    /// Groups of the longest chunk.
    pub(super) fn chunk_groups(&self) -> usize {
        self.groups.div_ceil(self.chunks)
    }

    /// Where the tiles of chunk `chunk` begin in a block of x.
    pub(super) fn chunk_at(&self, chunk: usize) -> usize {
        self.groups_of(chunk).start * self.block_rows / TILE_ROWS * TILE_BYTES
    }

    /// Bytes of a block of x as tiles.
    pub(super) fn block_bytes(&self) -> usize {
        self.groups * self.block_rows / TILE_ROWS * TILE_BYTES
    }

    /// Bytes of the sums of a block, one row of tiles to spare for a prefetch.
    pub(super) fn sums_bytes(&self) -> usize {
        let rows = if self.chunks > 1 { self.block_rows * self.block_panels } else { 2 * TILE_ROWS };
        rows * PANEL_ROWS * size_of::<f32>()
    }
}

/// Bytes of all blocks of x, as tiles, that workers have at once: the most of any product of up to so many rows.
pub(in crate::linear) fn shared_bytes_at_most(rows: usize, k: usize, threads: usize) -> usize {
    let of = |rows| {
        let plan = Plan::new(rows, k, 1, threads);
        plan.row_workers * plan.block_bytes()
    };
    // Whole tiles: fewer rows of the last one are as many.
    (1..=rows.div_ceil(TILE_ROWS)).map(|tiles| of(tiles * TILE_ROWS)).max().unwrap_or(0)
}

/// Rows and panels of a block at most, for so many groups of k.
fn block_of(groups: usize) -> (usize, usize) {
    let rows = X_BLOCK_BYTES / (groups * GROUP * size_of::<half::bf16>()).max(1);
    if rows < *ROWS_WITH_ALL_K.start() {
        return (ROWS_WITH_A_CHUNK, PANELS_WITH_A_CHUNK);
    }
    (rows.min(*ROWS_WITH_ALL_K.end()), PANELS_WITH_ALL_K)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_belongs_to_one_worker() {
        for (rows, panels, threads) in [(17, 5, 2), (1000, 3, 4), (2048, 64, 2), (8191, 7, 3), (600, 1, 8)] {
            let plan = Plan::new(rows, 2048, panels, threads);
            assert_eq!(plan.row_workers * plan.panel_workers, threads);
            let all: Vec<usize> = (0..plan.row_workers)
                .flat_map(|w| (0..plan.blocks).map(move |b| (w, b)))
                .flat_map(|(w, b)| plan.rows_of(w, b))
                .collect();
            assert_eq!(all, (0..rows).collect::<Vec<_>>());
        }
    }

    #[test]
    fn all_workers_that_share_a_block_get_as_many_panels() {
        for (rows, k, panels, threads) in
            [(300, 4096, 32, 16), (300, 4096, 128, 16), (100, 5632, 64, 2), (40, 64, 3, 8)]
        {
            let plan = Plan::new(rows, k, panels, threads);
            let (grain, own) = (plan.grain(), panels.div_ceil(plan.panel_workers));
            assert!(plan.row_workers == 1 && (1..=plan.block_panels).contains(&grain), "{plan:?}");
            assert!(own.next_multiple_of(grain) < own + own.div_ceil(grain), "{grain} of {own}: {plan:?}");
            assert!(panels.div_ceil(grain) >= plan.panel_workers.min(panels), "{grain}: {plan:?}");
        }
    }

    #[test]
    fn blocks_stay_within_what_was_announced() {
        for (k, threads) in [(576, 1), (2048, 2), (8192, 8), (28_672, 6)] {
            let most = shared_bytes_at_most(2100, k, threads);
            let held = (17..=2100).map(|rows| {
                let plan = Plan::new(rows, k, 8, threads);
                plan.row_workers * plan.block_bytes()
            });
            assert_eq!(held.max(), Some(most), "{k} inputs, {threads} threads");
        }
    }

    #[test]
    fn blocks_hold_their_rows() {
        for rows in 17..3000 {
            let plan = Plan::new(rows, 600, 8, 2);
            for (worker, block) in (0..plan.row_workers).flat_map(|w| (0..plan.blocks).map(move |b| (w, b))) {
                assert!(plan.rows_of(worker, block).len().next_multiple_of(32) <= plan.block_rows);
            }
        }
    }
}
