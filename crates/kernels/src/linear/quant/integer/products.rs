//! Sums of products of bytes: a step is four k of all rows of a tile, each sum of which stays in a place of its own.

mod avx2;
// Loops over rows and vectors run over registers: their indices are clearer than zipped iterators.
#[allow(clippy::needless_range_loop)]
mod vnni;

use std::ops::Range;

use half::bf16;

use super::super::Narrow;
use super::super::plan::{GROUP, Layout, PANEL, with_layout};
use super::codes;
use super::rounded::avx2::round;
use super::rounded::{Bits, Group};
use crate::Isa;
use crate::linear::epilogue::{Epilogue, Sums};
use crate::linear::types::Weight;
use crate::mat::{Mat, MatMut, SharedRows};
use crate::scratch::with_scratch;
use crate::team::{Team, Worker};

/// Groups whose codes and scales are made at once: a quarter of a small L1.
const CHUNK: usize = 4;
/// Room for a chunk of either family.
const CHUNK_BYTES: usize = {
    let (narrow, wide) = (size_of::<avx2::Chunk>(), size_of::<vnni::Chunk>());
    if narrow > wide { narrow } else { wide }
};
/// Bytes of rounded x at once, of which each worker reads all for each of its panels.
const BLOCK_BYTES: usize = 2 << 20;
/// Rows of a block, whose sums stay in L1 or near it.
const BLOCK_ROWS: Range<usize> = 16..256;

/// `x: [m, k]` by a weight of `format`. The machine has `isa`, which is AVX2 or more.
pub(super) fn run(
    team: &Team,
    isa: Isa,
    (format, bits): (Narrow, Bits),
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    epilogue: &Epilogue<'_>,
) {
    let wide = isa >= Isa::Avx512 && is_x86_feature_detected!("avx512vnni");
    with_layout!(format, [Int8, Int4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K], L => {
        match bits {
            Bits::Eight => run_layout::<L, 1>(team, wide, x, w, epilogue),
            Bits::Fifteen => run_layout::<L, 2>(team, wide, x, w, epilogue),
        }
    });
}

/// Numbers of `BYTES` bytes.
fn run_layout<L: Layout, const BYTES: usize>(
    team: &Team,
    wide: bool,
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    epilogue: &Epilogue<'_>,
) {
    let groups = w.k().div_ceil(GROUP);
    let row_bytes = groups * size_of::<Group<BYTES>>();
    let block = x.rows().min((BLOCK_BYTES / row_bytes.max(1)).clamp(BLOCK_ROWS.start, BLOCK_ROWS.end));
    with_scratch(block * row_bytes, |bytes| {
        // SAFETY: as long and as aligned as groups want, which any bytes are.
        let numbers: &mut [Group<BYTES>] =
            unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), block * groups) };
        let mut numbers = MatMut::new(numbers, groups, block);
        let numbers = &numbers.shared();
        team.run(|worker| {
            with_scratch(CHUNK_BYTES + block * size_of::<Sums>(), |scratch| {
                for first in (0..x.rows()).step_by(block) {
                    let rows = first..(first + block).min(x.rows());
                    let job = Job { x: x.slice_rows(rows), first_row: first, w, epilogue, groups, wide };
                    // SAFETY: the caller's; workers have groups and panels of their own, behind a barrier each.
                    unsafe {
                        job.round::<L, BYTES>(&worker, numbers);
                        worker.barrier();
                        job.work::<L, BYTES>(&worker, numbers, scratch);
                    }
                    if first + block < x.rows() {
                        worker.barrier();
                    }
                }
            });
        });
    });
}

/// A block of rows.
struct Job<'a> {
    x: Mat<'a, bf16>,
    first_row: usize,
    w: &'a Weight<'a>,
    epilogue: &'a Epilogue<'a>,
    groups: usize,
    /// By vectors of 512 bits.
    wide: bool,
}

impl Job<'_> {
    /// This worker's share of the groups of x as whole numbers.
    ///
    /// # Safety
    /// The machine has these features; nobody reads the numbers.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn round<L: Layout, const BYTES: usize>(
        &self,
        worker: &Worker<'_>,
        numbers: &SharedRows<'_, Group<BYTES>>,
    ) {
        for group in worker.share(self.groups) {
            // SAFETY: this group is this worker's to write.
            let out = unsafe { numbers.span(group, 0..self.x.rows()) };
            round(self.x, group, codes::order::<L>(), L::PLAN.parts(), out);
        }
    }

    /// This worker's share of the panels.
    ///
    /// # Safety
    /// The machine has these features; nobody writes the numbers; scratch holds a chunk and a row of sums for each of x.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn work<L: Layout, const BYTES: usize>(
        &self,
        worker: &Worker<'_>,
        numbers: &SharedRows<'_, Group<BYTES>>,
        scratch: &mut [u8],
    ) {
        assert!(scratch.as_ptr().addr().is_multiple_of(64));
        let (chunk, sums) = scratch.split_at_mut(CHUNK_BYTES);
        let sums: &mut [Sums] = bytemuck::cast_slice_mut(&mut sums[..self.x.rows() * size_of::<Sums>()]);
        for (panel, stored) in worker.share(self.w.held_panels()).map(|i| self.w.held_panel(i)) {
            sums.fill([0.0; PANEL]);
            // SAFETY: the caller's; nobody else has this panel.
            unsafe {
                self.panel::<L, BYTES>(stored, numbers, sums, chunk.as_mut_ptr());
                if self.wide {
                    self.epilogue.finish_512(panel, self.first_row, sums);
                } else {
                    self.epilogue.finish(panel, self.first_row, sums);
                }
            }
        }
    }

    /// # Safety
    /// As [`work`](Job::work).
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn panel<L: Layout, const BYTES: usize>(
        &self,
        stored: &[u8],
        numbers: &SharedRows<'_, Group<BYTES>>,
        sums: &mut [Sums],
        chunk: *mut u8,
    ) {
        assert!(L::PLAN.panel_bytes(self.groups * GROUP) <= stored.len() && sums.len() <= numbers.cols());
        // SAFETY: the caller's; the panel holds the groups, the numbers all of them for these rows; scratch is as aligned as
        // a chunk wants, which any bytes are.
        unsafe {
            let x = (numbers.read(0, 0..0).as_ptr(), numbers.cols());
            if self.wide {
                vnni::add::<L, BYTES>(stored.as_ptr(), self.groups, x, sums, &mut *chunk.cast());
            } else {
                avx2::add::<L, BYTES>(stored.as_ptr(), self.groups, x, sums, &mut *chunk.cast());
            }
        }
    }
}
