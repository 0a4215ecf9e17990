//! bf16 products on vector units: x is widened to f32 once, weights as they are read.

use std::arch::x86_64::{__m256, __m512, _MM_HINT_T0, _mm_prefetch};
use std::ops::Range;

use half::bf16;

use super::lanes::Lanes;
use crate::linear::epilogue::{Epilogue, Sums};
use crate::linear::pack::{GROUP, PANEL_ROWS, TILE_BYTES};
use crate::linear::source::{PAIR_BYTES, PanelSource};
use crate::linear::types::Weight;
use crate::mat::Mat;

/// Groups of k in a chunk: 16 KB of a panel, a third of L1.
const CHUNK_GROUPS: usize = 8;
/// Bytes of widened x that a block of rows may take: half of an L2.
const BLOCK_BYTES: usize = 768 << 10;
/// Rows that share one pass over the weights in registers.
const ROWS: usize = 6;
/// How far ahead of their use weights are fetched, a line after the other as they lie in memory: two tiles by turns, as they are
/// used, are read at a third of the rate.
const AHEAD_BYTES: usize = 1024;

pub(super) struct Job<'a, S> {
    pub(super) x: Mat<'a, bf16>,
    pub(super) w: &'a Weight<'a>,
    pub(super) source: &'a S,
    pub(super) epilogue: &'a Epilogue<'a>,
}

impl<S: PanelSource> Job<'_, S> {
    /// # Safety
    /// The machine has AVX2 and FMA; nobody else has these panels.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn work_8(&self, panels: Range<usize>, scratch: &mut [u8]) {
        // SAFETY: passed on.
        unsafe { self.work::<__m256>(panels, scratch) };
    }

    /// # Safety
    /// The machine has AVX-512 F, BW, DQ and VL; nobody else has these panels.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    pub(super) unsafe fn work_16(&self, panels: Range<usize>, scratch: &mut [u8]) {
        // SAFETY: passed on.
        unsafe { self.work::<__m512>(panels, scratch) };
    }

    #[inline(always)]
    unsafe fn work<V: Lanes>(&self, panels: Range<usize>, scratch: &mut [u8]) {
        let (padded, block) = (self.padded(), self.block());
        let (x, rest) = scratch.split_at_mut(block * padded * 4);
        let (sums, tiles) = rest.split_at_mut(block * size_of::<Sums>());
        let x: &mut [f32] = bytemuck::cast_slice_mut(x);
        let sums: &mut [Sums] = bytemuck::cast_slice_mut(sums);
        for first in (0..self.x.rows()).step_by(block) {
            let rows = first..(first + block).min(self.x.rows());
            widen(self.x.slice_rows(rows.clone()), padded, x);
            for held in panels.clone() {
                // SAFETY: x holds these rows, widened; the rest is passed on.
                unsafe { self.panel::<V>(held, rows.clone(), x, &mut sums[..rows.len()], tiles) };
            }
        }
    }

    /// k with its padding.
    fn padded(&self) -> usize {
        self.w.k().next_multiple_of(GROUP)
    }

    /// Rows of a block.
    fn block(&self) -> usize {
        self.x.rows().min((BLOCK_BYTES / (self.padded() * 4) / ROWS * ROWS).max(ROWS))
    }

    pub(super) fn scratch_bytes(&self) -> usize {
        self.block() * (self.padded() * 4 + size_of::<Sums>()) + CHUNK_GROUPS * PAIR_BYTES
    }

    #[inline(always)]
    unsafe fn panel<V: Lanes>(
        &self,
        held: usize,
        rows: Range<usize>,
        x: &[f32],
        sums: &mut [Sums],
        scratch: &mut [u8],
    ) {
        let (panel, stored) = self.w.held_panel(held);
        let groups = self.w.k().div_ceil(GROUP);
        sums.fill([0.0; PANEL_ROWS]);
        for chunk in (0..groups).step_by(CHUNK_GROUPS) {
            let chunk = chunk..(chunk + CHUNK_GROUPS).min(groups);
            let tiles = self.source.tiles(stored, chunk.clone(), scratch);
            for (i, sums) in sums.chunks_mut(ROWS).enumerate() {
                let x = &x[i * ROWS * groups * GROUP + chunk.start * GROUP..];
                // SAFETY: x holds as many rows as there are sums, tiles a pair for each group.
                unsafe { add_rows::<V>(x.as_ptr(), groups * GROUP, tiles, sums) };
            }
        }
        // SAFETY: nobody else has this panel.
        unsafe { self.epilogue.finish(panel, rows.start, sums) };
    }
}

/// Rows of x as f32, `padded` apart, zero beyond their end.
#[inline(always)]
fn widen(x: Mat<'_, bf16>, padded: usize, out: &mut [f32]) {
    for (i, out) in out.chunks_exact_mut(padded).take(x.rows()).enumerate() {
        let (values, rest) = out.split_at_mut(x.cols());
        for (out, x) in values.iter_mut().zip(x.row(i)) {
            *out = f32::from_bits(u32::from(x.to_bits()) << 16);
        }
        rest.fill(0.0);
    }
}

/// Up to [`ROWS`] rows of x by a panel. Few rows take several vectors of outputs at once, so that there
/// are always enough independent sums.
#[inline(always)]
unsafe fn add_rows<V: Lanes>(x: *const f32, stride: usize, tiles: &[u8], sums: &mut [Sums]) {
    // SAFETY: passed on from the caller.
    unsafe {
        match (V::COUNT, sums.len()) {
            (_, 1) if V::COUNT == 8 => add_products::<V, 1, 4>(x, stride, tiles, sums),
            (_, 1) => add_products::<V, 1, 2>(x, stride, tiles, sums),
            (_, 2) => add_products::<V, 2, 2>(x, stride, tiles, sums),
            (8, 3) => add_products::<V, 3, 1>(x, stride, tiles, sums),
            (8, 4) => add_products::<V, 4, 1>(x, stride, tiles, sums),
            (8, 5) => add_products::<V, 5, 1>(x, stride, tiles, sums),
            (8, _) => add_products::<V, 6, 1>(x, stride, tiles, sums),
            (_, 3) => add_products::<V, 3, 2>(x, stride, tiles, sums),
            (_, 4) => add_products::<V, 4, 2>(x, stride, tiles, sums),
            (_, 5) => add_products::<V, 5, 2>(x, stride, tiles, sums),
            (_, _) => add_products::<V, 6, 2>(x, stride, tiles, sums),
        }
    }
}

/// `R` rows by all 32 outputs, `C` vectors of them at a time.
#[inline(always)]
unsafe fn add_products<V: Lanes, const R: usize, const C: usize>(
    x: *const f32,
    stride: usize,
    tiles: &[u8],
    sums: &mut [Sums],
) {
    debug_assert!(sums.len() == R);
    for (g, pair) in tiles.chunks_exact(PAIR_BYTES).enumerate() {
        for first in (0..PANEL_ROWS).step_by(C * V::COUNT) {
            // SAFETY: x has a group of 32 at `g` in each of R rows.
            unsafe { add_group::<V, R, C>(x.add(g * GROUP), stride, pair, first, sums) };
        }
    }
}

/// One group of k, for outputs `first..first + C * COUNT`: even and odd products in sums of their own,
/// the two added, that added to the total.
#[inline(always)]
unsafe fn add_group<V: Lanes, const R: usize, const C: usize>(
    x: *const f32,
    stride: usize,
    pair: &[u8],
    first: usize,
    sums: &mut [Sums],
) {
    // SAFETY: a pair of tiles has 32 lines of 16 pairs, each inside `pair`; x has 32 values in each of R
    // rows; a row of sums is 32 floats; a prefetch cannot fault.
    unsafe {
        // Of the pair of tiles, for each pair of k.
        let taken = C * V::COUNT * 4;
        let mut even = [[V::zero(); C]; R];
        let mut odd = [[V::zero(); C]; R];
        for j in 0..GROUP / 2 {
            for line in (0..taken).step_by(64) {
                let at = first * 64 + j * taken + line;
                if at.is_multiple_of(64) {
                    _mm_prefetch::<_MM_HINT_T0>(pair.as_ptr().wrapping_add(AHEAD_BYTES + at).cast());
                }
            }
            let mut w = [(V::zero(), V::zero()); C];
            for (c, w) in w.iter_mut().enumerate() {
                let output = first + c * V::COUNT;
                let at = pair.as_ptr().add(output / 16 * TILE_BYTES + j * 64 + output % 16 * 4);
                *w = V::load_pairs(at);
            }
            for r in 0..R {
                let x = x.add(r * stride + 2 * j);
                let (x_even, x_odd) = (V::splat(x), V::splat(x.add(1)));
                for c in 0..C {
                    even[r][c] = x_even.multiply_add(w[c].0, even[r][c]);
                    odd[r][c] = x_odd.multiply_add(w[c].1, odd[r][c]);
                }
            }
        }
        for r in 0..R {
            for c in 0..C {
                let sum = sums[r].as_mut_ptr().add(first + c * V::COUNT);
                V::load(sum).add(even[r][c].add(odd[r][c])).store(sum);
            }
        }
    }
}
