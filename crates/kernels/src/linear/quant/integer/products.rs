//! Sums of products of whole numbers: a step is four k (two of words) of all rows of a tile, each sum of which stays in a
//! place of its own.

mod avx2;
// Loops over rows and vectors run over registers: their indices are clearer than zipped iterators.
#[allow(clippy::needless_range_loop)]
mod vnni;

use std::ops::Range;

use half::bf16;

use self::avx2::Avx2;
use self::vnni::Vnni;
use super::super::Narrow;
use super::super::plan::{GROUP, Layout, PANEL, with_layout};
use super::codes;
use super::rounded::avx2::round;
use super::rounded::{Bits, Bytes, Group, Numbers, Rounding, Words};
use crate::Isa;
use crate::linear::epilogue::{Epilogue, Sums};
use crate::linear::types::Weight;
use crate::mat::{Mat, MatMut, SharedRows};
use crate::scratch::with_scratch;
use crate::team::{Stretches, Team, Worker};

/// Groups whose codes and scales are made at once: a quarter of a small L1.
const CHUNK: usize = 4;
/// Bytes of rounded x at once, of which each worker reads all for each of its panels.
const BLOCK_BYTES: usize = 2 << 20;
/// Rows of a block, whose sums stay in L1 or near it.
const BLOCK_ROWS: Range<usize> = 16..256;

/// A family of instructions, and the numbers that it multiplies.
trait Family {
    /// What x is rounded to.
    type Numbers: Numbers;
    /// What is made of a panel's chunk for all rows of x: any bytes are one.
    type Chunk;
    /// By vectors of 512 bits.
    const WIDE: bool;

    /// Adds a panel's products to the sums of all rows of x. `x` points at the first of them in the first group, and the
    /// groups are as many apart as is said with it.
    ///
    /// # Safety
    /// The machine has the family; the panel has so many groups, x too, with a row for each of the sums.
    unsafe fn add<L: Layout>(
        panel: *const u8,
        groups: usize,
        x: (*const Group<Self::Numbers>, usize),
        sums: &mut [Sums],
        chunk: &mut Self::Chunk,
    );
}

/// `x: [m, k]` by a weight of `format`. The machine has `isa`, which is AVX2 or more.
pub(super) fn run(
    team: &Team,
    isa: Isa,
    (format, bits): (Narrow, Bits),
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    epilogue: &Epilogue<'_>,
) {
    macro_rules! by {
        ($family:ty) => {
            by!($family, [Int8, Int4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K])
        };
        ($family:ty, [$($name:ident),+]) => {
            with_layout!(format, [$($name),+], L => run_family::<L, $family>(team, bits, x, w, epilogue))
        };
    }
    let wide = isa >= Isa::Avx512 && is_x86_feature_detected!("avx512vnni");
    match (wide, bits, format) {
        (true, Bits::Eight, _) => by!(Vnni<1>),
        (true, Bits::Fifteen, _) => by!(Vnni<2>),
        (false, Bits::Eight, _) => by!(Avx2<Bytes<1>>),
        (false, Bits::Fifteen, Narrow::Int8 | Narrow::Q8_0) => by!(Avx2<Words>, [Int8, Q8_0]),
        (false, Bits::Fifteen, _) => {
            by!(Avx2<Bytes<2>>, [Int4, Q4_0, Q4_1, Q5_0, Q5_1, Q2K, Q3K, Q4K, Q5K, Q6K])
        }
    }
}

fn run_family<L: Layout, F: Family>(
    team: &Team,
    bits: Bits,
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    epilogue: &Epilogue<'_>,
) {
    let how = Rounding { bits, order: codes::order::<L>(), parts: L::PLAN.runs() };
    let groups = w.k().div_ceil(GROUP);
    let row_bytes = groups * size_of::<Group<F::Numbers>>();
    let block = x.rows().min((BLOCK_BYTES / row_bytes.max(1)).clamp(BLOCK_ROWS.start, BLOCK_ROWS.end));
    with_scratch(block * row_bytes, |bytes| {
        // SAFETY: as long and as aligned as groups want, which any bytes are.
        let numbers: &mut [Group<F::Numbers>] =
            unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), block * groups) };
        let mut numbers = MatMut::new(numbers, groups, block);
        let numbers = &numbers.shared();
        let threads = team.threads();
        let panels = &Stretches::times(x.rows().div_ceil(block), w.held_panels(), threads);
        team.run_on(threads, |worker| {
            with_scratch(const { size_of::<F::Chunk>() } + block * size_of::<Sums>(), |scratch| {
                for (first, panels) in (0..x.rows()).step_by(block).zip(panels) {
                    let rows = first..(first + block).min(x.rows());
                    let job = Job { x: x.slice_rows(rows), first_row: first, w, epilogue, groups };
                    // SAFETY: the caller's; workers have groups of their own and take panels, behind a barrier each.
                    unsafe {
                        job.round(&worker, how, numbers);
                        worker.barrier();
                        job.work::<L, F>(panels.of(worker.index), numbers, scratch);
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
}

impl Job<'_> {
    /// This worker's share of the groups of x as whole numbers.
    ///
    /// # Safety
    /// The machine has these features; nobody reads the numbers.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn round<N: Numbers>(
        &self,
        worker: &Worker<'_>,
        how: Rounding,
        numbers: &SharedRows<'_, Group<N>>,
    ) {
        for group in worker.share(self.groups) {
            // SAFETY: this group is this worker's to write.
            let out = unsafe { numbers.span(group, 0..self.x.rows()) };
            round(self.x, group, how, out);
        }
    }

    /// These panels.
    ///
    /// # Safety
    /// The machine has these features; nobody writes the numbers or has these panels; scratch holds a chunk and a row of sums for
    /// each of x.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn work<L: Layout, F: Family>(
        &self,
        panels: impl Iterator<Item = Range<usize>>,
        numbers: &SharedRows<'_, Group<F::Numbers>>,
        scratch: &mut [u8],
    ) {
        assert!(scratch.as_ptr().addr().is_multiple_of(64));
        let (chunk, sums) = scratch.split_at_mut(const { size_of::<F::Chunk>() });
        let sums: &mut [Sums] = bytemuck::cast_slice_mut(&mut sums[..self.x.rows() * size_of::<Sums>()]);
        for (panel, stored) in panels.flatten().map(|i| self.w.held_panel(i)) {
            sums.fill([0.0; PANEL]);
            // SAFETY: the caller's; nobody else has this panel.
            unsafe {
                self.panel::<L, F>(stored, numbers, sums, chunk.as_mut_ptr());
                if F::WIDE {
                    self.epilogue.finish_512(panel, self.first_row, sums);
                } else {
                    self.epilogue.finish_256(panel, self.first_row, sums);
                }
            }
        }
    }

    /// # Safety
    /// As [`work`](Job::work).
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn panel<L: Layout, F: Family>(
        &self,
        stored: &[u8],
        numbers: &SharedRows<'_, Group<F::Numbers>>,
        sums: &mut [Sums],
        chunk: *mut u8,
    ) {
        assert!(L::PLAN.panel_bytes(self.groups * GROUP) <= stored.len() && sums.len() <= numbers.cols());
        // SAFETY: the caller's; the panel holds the groups, the numbers all of them for these rows; scratch is as aligned as
        // a chunk wants, which any bytes are.
        unsafe {
            let x = (numbers.read(0, 0..0).as_ptr(), numbers.cols());
            F::add::<L>(stored.as_ptr(), self.groups, x, sums, &mut *chunk.cast());
        }
    }
}
