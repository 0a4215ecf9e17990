//! AVX-512 with bf16 products (AVX512_BF16), for processors that have it and no tiles.
//!
//! ```text
//! for block of rows                    x as bands of 12 rows (7 for codes), packed together, stays in L2
//!   for panel, whoever comes first
//!     for chunk of k                   its weights stay in L1
//!       for band                       streamed from L2: its rows x 32 outputs of sums in registers
//! ```
//!
//! What one core packs and another reads costs more than weights that both read. So from some rows for each worker on,
//! workers have blocks of their own, and who has no more takes panels of another's; few workers, or a few rows, are
//! packed by each for itself.
//!
//! Up to 12 rows of bf16 there is one band, whose sums stay in registers for all of k. An output has one sum in order of k
//! however the product is cut, so a row is the same in every batch.

mod panels;
mod plan;
// Loops over rows and vectors run over registers: their indices are clearer than zipped iterators.
#[allow(clippy::needless_range_loop)]
mod product;

use std::marker::PhantomData;
use std::ops::Range;

use half::bf16;

use super::epilogue::{Epilogue, Sums};
use super::pack::PANEL_ROWS;
use super::progress::Progress;
use super::source::PAIR_BYTES;
use super::types::Weight;
use crate::mat::{Mat, MatMut, SharedRows};
use crate::scratch::with_scratch;
use crate::team::{Team, Worker};
pub(crate) use panels::{Panels, Tiles, with_rows};
use plan::{Packing, Plan};
use product::ROWS;
pub(crate) use product::{Fetch, Start, add_pairs, multiply_registers};

/// Panels for each worker from which on it takes two at a time: results of two of a gated layer share lines of memory.
const ENOUGH: usize = 16;
/// How much of the chunk that follows is fetched while a band passes: a line for each pair of k.
const BYTES_IN_A_BAND: usize = PAIR_BYTES / 2;

/// `x: [m, k]` by a bf16 weight. The machine has AVX-512 with bf16 products.
pub(crate) fn run(team: &Team, x: Mat<'_, bf16>, w: &Weight<'_>, epilogue: &Epilogue<'_>) {
    run_panels::<panels::Tiles>(team, x, w, epilogue);
}

/// `x: [m, k]` by a weight whose panels these are.
pub(crate) fn run_panels<P: Panels>(team: &Team, x: Mat<'_, bf16>, w: &Weight<'_>, epilogue: &Epilogue<'_>) {
    let threads = team.threads();
    let plan = Plan::new(x.rows(), w.k(), (P::STREAMED, P::BAND_ROWS, P::ROW_BYTES), threads);
    let panels = w.held_panels();
    let grain = if panels >= ENOUGH * plan.workers { 2 } else { 1 };
    let progress: Vec<Progress> =
        (0..plan.blocks).map(|_| Progress::new(panels, grain, plan.stretches)).collect();
    let rows = plan.most_rows();
    let block_bytes = rows * plan.groups * P::ROW_BYTES;
    with_scratch(plan.places * block_bytes, |packed| {
        let mut packed = MatMut::new(packed, plan.places, block_bytes);
        let packed = packed.shared();
        team.run_on(threads, |worker| {
            let job = Job::<P> {
                plan: &plan,
                x,
                w,
                epilogue,
                packed: &packed,
                progress: &progress,
                panels: PhantomData,
            };
            let sums_bytes = rows.max(ROWS) * size_of::<Sums>();
            let whole = P::AS_STORED || plan.streamed;
            let chunk_bytes = if whole { 0 } else { plan.chunk_groups() * P::GROUP_BYTES };
            with_scratch(sums_bytes + chunk_bytes, |scratch| {
                let (sums, chunk) = scratch.split_at_mut(sums_bytes);
                let mut hands = Hands { sums: bytemuck::cast_slice_mut(sums), chunk };
                // SAFETY: the caller's machine has these instructions.
                unsafe { job.work(&worker, &mut hands) };
            });
        });
    });
}

struct Job<'a, P> {
    plan: &'a Plan,
    x: Mat<'a, bf16>,
    w: &'a Weight<'a>,
    epilogue: &'a Epilogue<'a>,
    /// Packed blocks of x: one for all workers, or each its own.
    packed: &'a SharedRows<'a, u8>,
    progress: &'a [Progress],
    panels: PhantomData<P>,
}

/// What a worker has in hand.
struct Hands<'a> {
    sums: &'a mut [Sums],
    /// Room for what a panel is made into, unless it is multiplied as it is stored.
    chunk: &'a mut [u8],
}

impl<P: Panels> Job<'_, P> {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
    unsafe fn work(&self, worker: &Worker<'_>, hands: &mut Hands<'_>) {
        // SAFETY: passed on from the caller.
        unsafe {
            match self.plan.packing {
                Packing::Alone => self.alone(worker, hands),
                Packing::Together => self.together(worker, hands),
                Packing::Apart => self.apart(worker, hands),
            }
        }
    }

    /// Each packs a block for itself; they share its panels.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
    unsafe fn alone(&self, worker: &Worker<'_>, hands: &mut Hands<'_>) {
        for block in 0..self.plan.blocks {
            // SAFETY: this place is this worker's alone.
            unsafe {
                self.pack(block, 0..self.plan.bands_of(block).len(), worker.index);
                self.take(worker.index, block, worker.index, hands);
            }
        }
    }

    /// All pack a block, then share its panels.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
    unsafe fn together(&self, worker: &Worker<'_>, hands: &mut Hands<'_>) {
        for block in 0..self.plan.blocks {
            if block > 0 {
                worker.barrier();
            }
            // SAFETY: these bands are this worker's to write, and read behind the barrier.
            unsafe { self.pack(block, worker.share(self.plan.bands_of(block).len()), 0) };
            worker.barrier();
            // SAFETY: nobody packs another block before the next barrier.
            unsafe { self.take(worker.index, block, 0, hands) };
        }
    }

    /// Each packs its own blocks, one after the other, and multiplies them; then it helps with the others'.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
    unsafe fn apart(&self, worker: &Worker<'_>, hands: &mut Hands<'_>) {
        let me = worker.index;
        for block in self.plan.blocks_of(me) {
            let progress = &self.progress[block];
            // SAFETY: others read this worker's place while panels of the block before are not done: they are.
            unsafe { self.pack(block, 0..self.plan.bands_of(block).len(), me) };
            progress.pack();
            // SAFETY: it is packed, and stays until this worker packs another.
            unsafe { self.take(me, block, me, hands) };
            // Behind the last one nothing is packed here.
            if block + 1 < self.plan.blocks_of(me).end {
                progress.wait_until_done(worker);
            }
        }
        for owner in (me + 1..worker.count).chain(0..me) {
            for block in self.plan.blocks_of(owner) {
                self.progress[block].wait_until_packed(worker);
                // SAFETY: it is packed, and its owner packs no other there before what is taken of it is done.
                unsafe { self.take(me, block, owner, hands) };
            }
        }
    }

    /// Multiplies panels of a block, at `place`, until none is left.
    ///
    /// # Safety
    /// The block is packed there, and nobody writes there while a panel of it is taken and not done.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
    unsafe fn take(&self, me: usize, block: usize, place: usize, hands: &mut Hands<'_>) {
        let progress = &self.progress[block];
        for mine in progress.panels(me) {
            let count = mine.len();
            // SAFETY: what is taken is this worker's alone; the rest is passed on.
            unsafe {
                let x = self.packed.read(place, 0..self.packed.cols());
                for panel in mine {
                    match self.plan.streamed {
                        true => self.stream(block, x, panel, hands),
                        false => self.panel(block, x, panel, hands),
                    }
                }
            }
            progress.finish(count);
        }
    }

    /// Packs some of a block's bands, counted from its first, at `place`.
    ///
    /// # Safety
    /// Nobody else writes these bands there, or reads them.
    unsafe fn pack(&self, block: usize, bands: Range<usize>, place: usize) {
        let (all, first) = (self.plan.bands_of(block), self.plan.block_rows(block).start);
        for band in bands {
            let rows = self.plan.rows_of(all.start + band);
            let at = |row: usize| (row - first) * self.plan.groups * P::ROW_BYTES;
            // SAFETY: passed on from the caller.
            let out = unsafe { self.packed.span(place, at(rows.start)..at(rows.end)) };
            P::pack(self.x, rows, self.plan.groups, out);
        }
    }

    /// One band by one panel, all of k in registers.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
    unsafe fn stream(&self, block: usize, x: &[u8], held: usize, hands: &mut Hands<'_>) {
        let rows = self.plan.block_rows(block);
        let (panel, stored) = self.w.held_panel(held);
        self.epilogue.claim(panel, rows.clone());
        let sums = &mut hands.sums[..rows.len()];
        // SAFETY: the band holds its rows of every group, as the panel does; this worker alone has this panel.
        unsafe {
            P::stream(rows.len(), x.as_ptr(), stored, self.plan.groups, sums.as_mut_ptr());
            self.epilogue.finish_512(panel, rows.start, sums);
        }
    }

    /// All bands of a block by one panel, chunk by chunk.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
    unsafe fn panel(&self, block: usize, x: &[u8], held: usize, hands: &mut Hands<'_>) {
        let plan = self.plan;
        let (panel, stored) = self.w.held_panel(held);
        let (bands, first) = (plan.bands_of(block), plan.block_rows(block).start);
        for chunk in 0..plan.chunks {
            let groups = plan.groups_of(chunk);
            // SAFETY: passed on from the caller.
            let w = unsafe { P::chunk(stored, groups.clone(), hands.chunk) }.as_ptr();
            let start = if chunk == 0 { Start::Zero } else { Start::Sums };
            // The next chunk; behind the last one the next panel, whoever takes it.
            let Range { start: mut next, end } = P::behind(stored, &groups);
            for band in bands.clone() {
                let rows = plan.rows_of(band);
                let at = rows.start - first;
                let sums = &mut hands.sums[at..][..rows.len()];
                let x = x[(at * plan.groups + groups.start * rows.len()) * P::ROW_BYTES..].as_ptr();
                let more = next < end;
                let fetch = if more { Fetch { at: next, step: 64 } } else { Fetch { at: x, step: 0 } };
                next = next.wrapping_add(groups.len() * BYTES_IN_A_BAND);
                if chunk + 1 == plan.chunks {
                    self.epilogue.claim(panel, rows.clone());
                }
                // SAFETY: the block holds the band's rows of every group, the chunk all of these; this worker alone has
                // this panel.
                unsafe {
                    P::multiply(rows.len(), start, x, w, groups.len(), sums.as_mut_ptr(), fetch);
                    if chunk + 1 == plan.chunks {
                        P::put_in_order(sums);
                        self.epilogue.finish_512(panel, rows.start, sums);
                    }
                }
            }
        }
    }
}

const _: () = assert!(PANEL_ROWS == 32 && ROWS == 12);
