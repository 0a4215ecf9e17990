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
//! Workers form a grid of rows by panels; those that share rows bring them into tiles together. Where each has rows of its own,
//! whoever is done with them goes on with another's.

use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
use std::ops::Range;

use half::bf16;

use super::plan::Plan;
use super::tile::{Product, Start, TILE_ROWS, Tiles};
use crate::linear::epilogue::{Epilogue, Sums};
use crate::linear::pack::{GROUP, PANEL_ROWS, TILE_BYTES};
use crate::linear::progress::Progress;
use crate::linear::rows::copy_tiles;
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
    let threads = team.threads();
    let plan = Plan::new(x.rows(), w.k(), w.held_panels(), threads);
    let progress = || Progress::new(plan.panels, plan.grain(), plan.panel_workers);
    let progress: Vec<Progress> = (0..plan.row_workers * plan.blocks).map(|_| progress()).collect();
    with_scratch(plan.row_workers * plan.block_bytes(), |shared| {
        let mut shared = MatMut::new(shared, plan.row_workers, plan.block_bytes());
        let shared = &shared.shared();
        team.run_on(threads, |worker| {
            let job = Job { plan: &plan, x, w, source, epilogue, progress: &progress };
            with_scratch(plan.sums_bytes() + plan.chunk_groups() * PAIR_BYTES, |scratch| {
                let (sums, scratch) = scratch.split_at_mut(plan.sums_bytes());
                let sums = bytemuck::cast_slice_mut(sums);
                // SAFETY: the machine has AMX, and this thread no other tiles.
                let registers = unsafe { &Tiles::full() };
                let hands = Hands {
                    registers: Product { _tiles: registers },
                    sums,
                    sums_at: 0,
                    scratch,
                    behind: Behind::NOTHING,
                };
                // SAFETY: AMX implies AVX-512.
                unsafe { job.work(hands, worker, shared) };
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
    /// Of each block, those of the first row of the grid first.
    progress: &'a [Progress],
}

/// Panels of another's block that are left at the least where its x is worth reading out of the other's cache: fewer are done sooner by
/// who has it.
const WORTH_HELP: usize = 8;

/// Rows of unfinished sums between two steps at least.
const ROWS_AT_ONCE: usize = 2;

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
    unsafe fn work(&self, mut hands: Hands<'_>, worker: Worker<'_>, blocks: &SharedRows<'_, u8>) {
        let plan = self.plan;
        let (row_worker, panel_worker) =
            (worker.index / plan.panel_workers, worker.index % plan.panel_workers);
        for index in 0..plan.blocks {
            let rows = plan.rows_of(row_worker, index);
            let progress = &self.progress[row_worker * plan.blocks + index];
            if plan.panel_workers > 1 {
                worker.barrier();
            }
            // SAFETY: the workers that share this row of the grid pack tiles of their own, and read them
            // behind the barrier.
            unsafe { self.pack(&rows, panel_worker, blocks, row_worker) };
            if plan.panel_workers > 1 {
                worker.barrier();
            } else {
                progress.pack();
            }
            // SAFETY: nobody writes it before the next barrier; where there is none, this worker does, once all are done with it.
            let x = unsafe { blocks.read(row_worker, 0..plan.block_bytes()) };
            // SAFETY: what is taken is this worker's alone.
            unsafe { self.take(&mut hands, x, &rows, progress, panel_worker) };
            if plan.panel_workers == 1 && index + 1 < plan.blocks {
                progress.wait_until_done(&worker);
            }
        }
        if plan.panel_workers == 1 {
            // SAFETY: as above.
            unsafe { self.help(&mut hands, &worker, blocks) };
        }
        // SAFETY: these sums are this worker's.
        unsafe { hands.behind.finish(self.epilogue, 2 * TILE_ROWS) };
    }

    /// Goes on with what others have not taken of their rows.
    #[inline(always)]
    unsafe fn help(&self, hands: &mut Hands<'_>, worker: &Worker<'_>, blocks: &SharedRows<'_, u8>) {
        let plan = self.plan;
        for row in (1..plan.row_workers).map(|n| (worker.index + n) % plan.row_workers) {
            for index in 0..plan.blocks {
                let progress = &self.progress[row * plan.blocks + index];
                progress.wait_until_packed(worker);
                let mut panels = progress.panels(0);
                while progress.left() >= WORTH_HELP
                    && let Some(panels) = panels.next()
                {
                    // SAFETY: it is packed, and its owner packs no other there before what is taken of it is done; that is this
                    // worker's alone.
                    unsafe {
                        let x = blocks.read(row, 0..plan.block_bytes());
                        self.group(hands, x, &plan.rows_of(row, index), &panels, None);
                    }
                    progress.finish(panels.len());
                }
            }
        }
    }

    /// Multiplies a block by panels until none is left. Where those are taken one by one, the next one is taken before, and fetched
    /// meanwhile.
    #[inline(always)]
    unsafe fn take(
        &self,
        hands: &mut Hands<'_>,
        x: &[u8],
        rows: &Range<usize>,
        progress: &Progress,
        me: usize,
    ) {
        let mut mine = progress.panels(me).peekable();
        while let Some(panels) = mine.next() {
            let next = if self.plan.as_they_come { mine.peek().map(|next| next.start) } else { None };
            // SAFETY: passed on from the caller.
            unsafe { self.group(hands, x, rows, &panels, next) };
            progress.finish(panels.len());
        }
    }

    /// Multiplies a block by a group of panels. `next`: the panel that comes next, if that is known.
    #[inline(always)]
    unsafe fn group(
        &self,
        hands: &mut Hands<'_>,
        x: &[u8],
        rows: &Range<usize>,
        panels: &Range<usize>,
        next: Option<usize>,
    ) {
        let plan = self.plan;
        // Likely, if nobody else takes it.
        let next = next.unwrap_or(panels.end % plan.panels);
        for chunk in 0..plan.chunks {
            let chunk = self.chunk(x, chunk, rows.clone());
            for panel in panels.clone() {
                let next = if panel + 1 < panels.end {
                    self.weights(panel + 1, chunk.groups.start)
                } else if chunk.last {
                    self.weights(next, 0)
                } else {
                    self.weights(panels.start, chunk.groups.end)
                };
                hands.sums_at = if plan.chunks > 1 { (panel - panels.start) * plan.block_rows } else { 0 };
                // SAFETY: passed on from the caller.
                unsafe { self.panel(hands, &chunk, panel, next) };
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

    /// All rows of the block by one panel. What remains to do with the sums of the product before is done
    /// between the steps of this one: the tile unit works meanwhile.
    #[inline(always)]
    unsafe fn panel(&self, hands: &mut Hands<'_>, chunk: &Chunk<'_>, held: usize, next: *const u8) {
        let (panel, stored) = self.w.held_panel(held);
        let at = hands.sums_at;
        let w = self.source.tiles(stored, chunk.groups.clone(), hands.scratch).as_ptr();
        let (groups, tiles) = (chunk.groups.len(), chunk.rows.len().div_ceil(TILE_ROWS));
        let ahead = Ahead { w, next, groups };
        let spilled = self.plan.chunks > 1;
        for tile in (0..tiles).step_by(2) {
            let at = if spilled { at + tile * TILE_ROWS } else { at };
            let sums = hands.sums[at..][..2 * TILE_ROWS].as_mut_ptr();
            let x = chunk.x[tile * groups * TILE_BYTES..].as_ptr();
            let later = spilled.then(|| sums.wrapping_add(2 * TILE_ROWS).cast_const());
            let added_to = if chunk.last {
                self.epilogue.added_to(panel, chunk.rows.start + tile * TILE_ROWS)
            } else {
                None
            };
            let mut fetch = ahead.during(tile / 2, tiles.div_ceil(2), (later, added_to));
            // SAFETY: the block holds `tiles` rows of tiles of this chunk; the sums of two rows of tiles
            // are 32 rows, and the unfinished ones are others or done with before these are stored.
            unsafe {
                if tile + 1 < tiles {
                    let x = [x, x.add(groups * TILE_BYTES)];
                    self.product::<2>(hands, chunk.start, x, w, groups, sums, &mut fetch);
                } else {
                    self.product::<1>(hands, chunk.start, [x, x], w, groups, sums, &mut fetch);
                }
            }
            if chunk.last {
                let row = chunk.rows.start + tile * TILE_ROWS;
                let left = (chunk.rows.end - row).min(2 * TILE_ROWS);
                hands.behind = Behind { panel, row, left, sums };
            }
        }
    }

    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    unsafe fn product<const ROWS: usize>(
        &self,
        hands: &mut Hands<'_>,
        start: Start,
        x: [*const u8; 2],
        w: *const u8,
        groups: usize,
        sums: *mut Sums,
        fetch: &mut Fetch,
    ) {
        let at_once = (2 * TILE_ROWS).div_ceil(groups.max(1)).max(ROWS_AT_ONCE);
        // SAFETY: passed on from the caller; prefetches cannot fault.
        unsafe {
            hands.registers.begin::<ROWS>(start, sums);
            for group in 0..groups {
                let x = x.map(|x| x.add(group * TILE_BYTES));
                hands.registers.step::<ROWS>(x, w.add(group * PAIR_BYTES));
                fetch.step();
                hands.behind.finish(self.epilogue, at_once);
            }
            hands.behind.finish(self.epilogue, 2 * TILE_ROWS);
            hands.registers.end::<ROWS>(sums);
        }
    }

    /// Where the weights of panel `held` are, from group `group` on (its end: those of the next panel).
    #[inline(always)]
    fn weights(&self, held: usize, group: usize) -> *const u8 {
        if S::STORED_AS_TILES {
            let (_, stored) = self.w.held_panel(held);
            stored[(group * PAIR_BYTES).min(stored.len())..].as_ptr()
        } else {
            std::ptr::null()
        }
    }
}

/// What a worker has in hand.
struct Hands<'a> {
    registers: Product<'a>,
    sums: &'a mut [Sums],
    /// Where the sums of the panel at hand begin.
    sums_at: usize,
    scratch: &'a mut [u8],
    behind: Behind,
}

/// Complete sums of a panel, not yet finished.
struct Behind {
    panel: usize,
    row: usize,
    left: usize,
    sums: *mut Sums,
}

impl Behind {
    const NOTHING: Behind = Behind { panel: 0, row: 0, left: 0, sums: std::ptr::null_mut() };

    /// Finishes up to `rows` more.
    ///
    /// # Safety
    /// This worker alone has these rows of the panel, and nothing has changed the sums.
    #[inline(always)]
    unsafe fn finish(&mut self, epilogue: &Epilogue<'_>, rows: usize) {
        let rows = rows.min(self.left);
        if rows > 0 {
            // SAFETY: passed on from the caller.
            unsafe {
                epilogue.finish_512(self.panel, self.row, std::slice::from_raw_parts_mut(self.sums, rows));
                self.sums = self.sums.add(rows);
            }
            self.row += rows;
            self.left -= rows;
        }
    }
}

/// The weights of a panel's chunk, and those that follow (null if they are not stored as tiles).
struct Ahead {
    w: *const u8,
    next: *const u8,
    groups: usize,
}

impl Ahead {
    /// What product `i` of the panel's `products` fetches: its share of the next weights, or, if it is the
    /// only one that uses them, those that itself uses just after; and the memory of sums.
    #[inline(always)]
    fn during(
        &self,
        i: usize,
        products: usize,
        (sums, added_to): (Option<*const Sums>, Option<Lines>),
    ) -> Fetch {
        let Ahead { w, next, groups } = *self;
        let added_at_once = (2 * TILE_ROWS).div_ceil(groups.max(1));
        let fetch =
            |weights, bytes, turn| Fetch { weights, bytes, turn, then: next, sums, added_to, added_at_once };
        if next.is_null() {
            return fetch(next, 0, usize::MAX);
        }
        if products == 1 {
            return fetch(w.wrapping_add(PAIR_BYTES), PAIR_BYTES, groups.saturating_sub(1));
        }
        let bytes = PAIR_BYTES.div_ceil(products).next_power_of_two().max(128);
        let at = i * groups * bytes;
        let bytes = if at < groups * PAIR_BYTES { bytes } else { 0 };
        fetch(next.wrapping_add(at), bytes, usize::MAX)
    }
}

/// The place of a row of sums in the output, and the bytes from there to the next row.
type Lines = (*const u8, usize);

/// What to fetch into the caches during the steps of one product.
struct Fetch {
    /// To L2, `bytes` in each step.
    weights: *const u8,
    bytes: usize,
    /// After so many steps, from `then` on.
    turn: usize,
    then: *const u8,
    /// The sums of the next product (32 rows), to L1.
    sums: Option<*const Sums>,
    /// What this product's sums are added to, so many rows in each step, to L1.
    added_to: Option<Lines>,
    added_at_once: usize,
}

impl Fetch {
    #[inline(always)]
    fn step(&mut self) {
        if self.turn == 0 {
            self.weights = self.then;
        }
        self.turn = self.turn.wrapping_sub(1);
        for at in (0..self.bytes).step_by(64) {
            prefetch::<_MM_HINT_T1>(self.weights.wrapping_add(at));
        }
        self.weights = self.weights.wrapping_add(self.bytes);
        if let Some(sums) = &mut self.sums {
            (0..4).for_each(|line| prefetch::<_MM_HINT_T0>(sums.cast::<u8>().wrapping_add(64 * line)));
            *sums = sums.wrapping_add(2);
        }
        if let Some((row, bytes)) = &mut self.added_to {
            for _ in 0..self.added_at_once {
                prefetch::<_MM_HINT_T0>(*row);
                prefetch::<_MM_HINT_T0>(row.wrapping_add(64));
                *row = row.wrapping_add(*bytes);
            }
        }
    }
}

#[inline(always)]
fn prefetch<const HINT: i32>(at: *const u8) {
    // SAFETY: a prefetch cannot fault.
    unsafe { _mm_prefetch::<HINT>(at.cast()) };
}

const _: () = assert!(GROUP == 32 && PANEL_ROWS == 2 * TILE_ROWS);
