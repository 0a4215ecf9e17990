//! How a product is cut for the caches.

use std::ops::Range;

use crate::linear::THREAD_BYTES;
use crate::linear::pack::GROUP;

/// Groups of k in a chunk: 16 KB of a panel, half of an L1 of 32 KB.
const CHUNK_GROUPS: usize = 8;
/// Bytes of x that a block of rows may take: half of an L2 of 1 MB.
const BLOCK_BYTES: usize = 512 << 10;
/// Rows of a block at least, each block of which reads and unfolds the weights anew: from an L3 the bands come as fast. Fewer
/// where they would be more bytes than a thread may keep, unless one band is.
const BLOCK_ROWS: usize = 240;
/// Rows of x for each worker from which on rows are shared out, not panels: enough to hide that each reads all weights.
const OWN_ROWS: usize = 24;
/// Workers up to which each packs all of x for itself: packing costs as much as two thirds of a panel, and three times
/// that where what one core packs is read by another, and the other way round at the next product.
const ALONE_WORKERS: usize = 2;

/// For whom a worker packs x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// Each worker everything for itself.
    Alone,
    /// All workers everything for all.
    Together,
    /// Each worker its own blocks.
    Apart,
}

/// Sizes of blocks, bands and chunks.
#[derive(Debug)]
pub(super) struct Plan {
    rows: usize,
    /// Who multiplies.
    pub(super) workers: usize,
    /// Groups of 32 k.
    pub(super) groups: usize,
    /// Who packs x, and for whom.
    pub(super) packing: Packing,
    /// Workers that have blocks of their own; 1 if all share each.
    owners: usize,
    /// Packed blocks that there are at a time.
    pub(super) places: usize,
    /// Blocks of rows: a block of x stays in L2.
    pub(super) blocks: usize,
    /// Bands of a block: rows whose sums are in registers together.
    bands: usize,
    /// Chunks of k: those of a panel stay in L1 while the bands of x pass.
    pub(super) chunks: usize,
    /// Stretches that a block's panels are cut into: one for each worker, or 1 if each begins with blocks of its own.
    pub(super) stretches: usize,
    /// Whether there is one band, which is multiplied by whole panels.
    pub(super) streamed: bool,
}

impl Plan {
    /// `streamed`: whether one band can be multiplied by whole panels; `band_rows`: of a band at most, `row_bytes`: of a row of x in
    /// a group.
    /// `workers`: those who take part.
    pub(super) fn new(
        rows: usize,
        k: usize,
        (streamed, band_rows, row_bytes): (bool, usize, usize),
        workers: usize,
    ) -> Plan {
        let groups = k.div_ceil(GROUP);
        let row_bytes = (groups * row_bytes).max(1);
        let most_rows = (BLOCK_BYTES / row_bytes).max(BLOCK_ROWS.min(THREAD_BYTES / row_bytes));
        let most = (most_rows / band_rows).max(1);
        let all = rows.div_ceil(band_rows);
        let packing = match workers {
            2.. if rows >= OWN_ROWS * workers => Packing::Apart,
            _ if all == 1 || workers <= ALONE_WORKERS => Packing::Alone,
            _ => Packing::Together,
        };
        let places = if packing == Packing::Together { 1 } else { workers };
        let owners = if packing == Packing::Apart { workers } else { 1 };
        let each = all.div_ceil(owners);
        let bands = each.div_ceil(each.div_ceil(most).max(1));
        let blocks = owners * each.div_ceil(bands.max(1));
        let streamed = streamed && all == 1;
        let chunks = if streamed { 1 } else { groups.div_ceil(CHUNK_GROUPS).max(1) };
        Plan {
            rows,
            workers,
            groups,
            packing,
            owners,
            places,
            blocks,
            bands: bands * blocks,
            chunks,
            stretches: if packing == Packing::Apart { 1 } else { workers },
            streamed,
        }
    }

    /// Part `i` of `n` things that are cut into `of`, sizes differing by at most one.
    fn share(n: usize, i: usize, of: usize) -> Range<usize> {
        i * n / of..(i + 1) * n / of
    }

    /// Blocks of an owner.
    pub(super) fn blocks_of(&self, owner: usize) -> Range<usize> {
        Plan::share(self.blocks, owner, self.owners)
    }

    /// Bands of a block.
    pub(super) fn bands_of(&self, block: usize) -> Range<usize> {
        Plan::share(self.bands, block, self.blocks)
    }

    /// Rows of a band.
    pub(super) fn rows_of(&self, band: usize) -> Range<usize> {
        Plan::share(self.rows, band, self.bands.max(1))
    }

    /// Rows of a block.
    pub(super) fn block_rows(&self, block: usize) -> Range<usize> {
        let bands = self.bands_of(block);
        self.rows_of(bands.start).start..self.rows_of(bands.end - 1).end
    }

    /// Rows of the largest block.
    pub(super) fn most_rows(&self) -> usize {
        (0..self.blocks).map(|block| self.block_rows(block).len()).max().unwrap_or(0)
    }

    /// Groups of a chunk.
    pub(super) fn groups_of(&self, chunk: usize) -> Range<usize> {
        Plan::share(self.groups, chunk, self.chunks)
    }

    /// Groups of the longest chunk.
    pub(super) fn chunk_groups(&self) -> usize {
        self.groups.div_ceil(self.chunks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_in_one_band_that_fits_the_registers() {
        let cases = (1..400).flat_map(|rows| [1, 576, 5632, 40_000].map(|k| (rows, k)));
        let kinds = [(1, 12), (2, 12), (7, 12), (2, 7)];
        for ((rows, k), (workers, band_rows)) in cases.flat_map(|case| kinds.map(|kind| (case, kind))) {
            let plan = Plan::new(rows, k, (true, band_rows, 64), workers);
            let owned: Vec<_> = (0..plan.owners).flat_map(|owner| plan.blocks_of(owner)).collect();
            assert_eq!(owned, (0..plan.blocks).collect::<Vec<_>>(), "{rows} {k} {workers}");
            let bands: Vec<_> = (0..plan.blocks).flat_map(|block| plan.bands_of(block)).collect();
            assert!(
                bands.iter().all(|band| (1..=band_rows).contains(&plan.rows_of(*band).len())),
                "{rows} {k}"
            );
            let all: Vec<_> = bands.into_iter().flat_map(|band| plan.rows_of(band)).collect();
            assert_eq!(all, (0..rows).collect::<Vec<_>>());
            assert!((0..plan.blocks).all(|block| plan.block_rows(block).len() <= plan.most_rows()));
        }
    }

    #[test]
    fn a_block_has_many_rows_however_long_they_are() {
        for k in [576, 1536, 2048, 4096, 5632, 8192, 11_008, 14_336, 28_672] {
            for row_bytes in [64, 80] {
                let plan = Plan::new(2048, k, (true, 12, row_bytes), 2);
                let (rows, bytes) = (plan.most_rows(), plan.most_rows() * k.div_ceil(GROUP) * row_bytes);
                assert!(rows >= 24 && bytes <= THREAD_BYTES, "{k}: {rows} rows");
                assert!(rows >= 200 || bytes >= THREAD_BYTES * 3 / 4, "{k}: {rows} rows");
            }
        }
    }

    #[test]
    fn every_group_is_in_one_chunk() {
        for groups in 0..100 {
            let plan = Plan::new(40, groups * GROUP, (true, 12, 64), 2);
            let all: Vec<_> = (0..plan.chunks).flat_map(|chunk| plan.groups_of(chunk)).collect();
            assert_eq!(all, (0..groups).collect::<Vec<_>>());
            assert!((0..plan.chunks).all(|chunk| plan.groups_of(chunk).len() <= plan.chunk_groups()));
        }
    }
}
