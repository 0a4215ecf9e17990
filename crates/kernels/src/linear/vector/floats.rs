//! f32 products on vector units.

use std::arch::x86_64::{__m256, __m512};
use std::ops::Range;

use super::lanes::Lanes;
use crate::linear::epilogue::{Epilogue, Sums};
use crate::linear::pack::PANEL_ROWS;
use crate::linear::types::Weight;
use crate::mat::Mat;
use crate::team::Stretches;

/// k in a chunk: 24 KB of a panel, half of L1.
const CHUNK: usize = 192;
/// Bytes of x that a block of rows may take: half of an L2.
const BLOCK_BYTES: usize = 768 << 10;
/// Rows that share one pass over the weights in registers.
pub(super) const ROWS: usize = 6;

pub(super) struct Job<'a> {
    pub(super) x: Mat<'a, f32>,
    pub(super) w: &'a Weight<'a>,
    pub(super) epilogue: &'a Epilogue<'a>,
}

impl Job<'_> {
    /// # Safety
    /// The machine has AVX2 and FMA; the panels of each block of rows are taken by those who work on it alone.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn work_8(&self, me: usize, panels: &[Stretches], scratch: &mut [u8]) {
        // SAFETY: passed on.
        unsafe { self.work::<__m256>(me, panels, scratch) };
    }

    /// # Safety
    /// The machine has AVX-512 F, BW, DQ and VL; the rest as [`work_8`](Job::work_8).
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    pub(super) unsafe fn work_16(&self, me: usize, panels: &[Stretches], scratch: &mut [u8]) {
        // SAFETY: passed on.
        unsafe { self.work::<__m512>(me, panels, scratch) };
    }

    #[inline(always)]
    unsafe fn work<V: Lanes>(&self, me: usize, panels: &[Stretches], scratch: &mut [u8]) {
        let sums: &mut [Sums] = bytemuck::cast_slice_mut(scratch);
        let block = self.block();
        for (first, panels) in (0..self.x.rows()).step_by(block).zip(panels) {
            let rows = first..(first + block).min(self.x.rows());
            for held in panels.of(me).flatten() {
                // SAFETY: passed on.
                unsafe { self.panel::<V>(held, rows.clone(), &mut sums[..rows.len()]) };
            }
        }
    }

    /// Rows of a block.
    fn block(&self) -> usize {
        self.x.rows().min((BLOCK_BYTES / (self.w.k() * 4).max(1) / ROWS * ROWS).max(ROWS))
    }

    /// Of how many blocks of rows each is multiplied by all panels.
    pub(super) fn blocks(&self) -> usize {
        self.x.rows().div_ceil(self.block())
    }

    pub(super) fn scratch_bytes(&self) -> usize {
        self.block() * size_of::<Sums>()
    }

    #[inline(always)]
    unsafe fn panel<V: Lanes>(&self, held: usize, rows: Range<usize>, sums: &mut [Sums]) {
        let (panel, stored) = self.w.held_panel(held);
        sums.fill([0.0; PANEL_ROWS]);
        for chunk in (0..self.w.k()).step_by(CHUNK) {
            let chunk = chunk..(chunk + CHUNK).min(self.w.k());
            let w = &stored[chunk.start * PANEL_ROWS * 4..chunk.end * PANEL_ROWS * 4];
            for (i, sums) in sums.chunks_mut(ROWS).enumerate() {
                let first = rows.start + i * ROWS;
                let x = self.x.slice_rows(first..first + sums.len()).slice_cols(chunk.clone());
                // SAFETY: x has as many rows as there are sums, and a column for each 32 weights.
                unsafe { add_rows::<V>(x, w, sums) };
            }
        }
        // SAFETY: nobody else has this panel for these rows; the machine has these vectors.
        unsafe {
            match V::COUNT {
                16 => self.epilogue.finish_512(panel, rows.start, sums),
                _ => self.epilogue.finish_256(panel, rows.start, sums),
            }
        }
    }
}

/// Up to [`ROWS`] rows of x by a panel.
#[inline(always)]
pub(super) unsafe fn add_rows<V: Lanes>(x: Mat<'_, f32>, w: &[u8], sums: &mut [Sums]) {
    // SAFETY: passed on from the caller.
    unsafe {
        match sums.len() {
            1 if V::COUNT == 8 => add_products::<V, 1, 4>(x, w, sums),
            1 => add_products::<V, 1, 2>(x, w, sums),
            2 => add_products::<V, 2, 2>(x, w, sums),
            3 => add_products::<V, 3, 2>(x, w, sums),
            4 => add_products::<V, 4, 2>(x, w, sums),
            5 => add_products::<V, 5, 2>(x, w, sums),
            _ => add_products::<V, 6, 2>(x, w, sums),
        }
    }
}

/// `R` rows by all 32 outputs, `C` vectors of them at a time, each output in one sum in order of k.
#[inline(always)]
unsafe fn add_products<V: Lanes, const R: usize, const C: usize>(
    x: Mat<'_, f32>,
    w: &[u8],
    sums: &mut [Sums],
) {
    debug_assert!(sums.len() == R && x.rows() == R);
    let rows: [*const f32; R] = std::array::from_fn(|r| x.row(r).as_ptr());
    for first in (0..PANEL_ROWS).step_by(C * V::COUNT) {
        // SAFETY: rows have `cols` values, w 32 for each of them, a row of sums 32.
        unsafe {
            let mut total = [[V::zero(); C]; R];
            for r in 0..R {
                for c in 0..C {
                    total[r][c] = V::load(sums[r].as_ptr().add(first + c * V::COUNT));
                }
            }
            for k in 0..x.cols() {
                let w = w.as_ptr().cast::<f32>().add(k * PANEL_ROWS + first);
                for r in 0..R {
                    let x = V::splat(rows[r].add(k));
                    for c in 0..C {
                        total[r][c] = x.multiply_add(V::load(w.add(c * V::COUNT)), total[r][c]);
                    }
                }
            }
            for r in 0..R {
                for c in 0..C {
                    total[r][c].store(sums[r].as_mut_ptr().add(first + c * V::COUNT));
                }
            }
        }
    }
}
