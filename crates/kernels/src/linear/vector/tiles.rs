//! Products of bf16 activations on vector units: x is widened to f32 once, weights of bf16 as they are read, narrower ones a chunk
//! at a time.

use std::arch::x86_64::{__m256, __m512, _MM_HINT_T0, _mm_prefetch};
use std::ops::Range;

use half::bf16;

use super::lanes::Lanes;
use super::{floats, three_rows};
use crate::linear::THREAD_BYTES;
use crate::linear::epilogue::{Epilogue, Sums};
use crate::linear::pack::{GROUP, PANEL_ROWS, TILE_BYTES};
use crate::linear::source::{PAIR_BYTES, PanelSource};
use crate::linear::types::Weight;
use crate::mat::Mat;
use crate::team::Stretches;

/// Groups of k in a chunk: 8 KB of a panel, a quarter of a small L1, which holds the next chunk and some rows too.
const CHUNK_GROUPS: usize = 4;
/// k in a chunk.
pub(super) const CHUNK: usize = CHUNK_GROUPS * GROUP;
/// Room for a chunk of a panel as f32, twice what it is in bf16.
const CHUNK_BYTES: usize = CHUNK * PANEL_ROWS * 4;
/// Bytes of widened x that a block of rows may take: half of a small L2.
const BLOCK_BYTES: usize = 256 << 10;
/// Rows of a block at least, each of which reads the weights anew; fewer where they would be more bytes than a thread may keep,
/// unless six are.
const BLOCK_ROWS: usize = 48;
/// How far ahead of their use weights that are used once are fetched.
pub(super) const AHEAD_BYTES: usize = 2048;

/// Where chunks of panels come from, and how they are multiplied.
pub(super) trait Chunks: Sync {
    /// These groups of a stored panel as they are multiplied; where that is not as they are stored, in `scratch`.
    fn chunk<'s>(&self, stored: &'s [u8], groups: Range<usize>, scratch: &'s mut [u8]) -> &'s [u8];

    /// What to fetch while those are multiplied.
    #[inline(always)]
    fn behind(&self, _stored: &[u8], _groups: &Range<usize>) -> Range<*const u8> {
        std::ptr::null()..std::ptr::null()
    }

    /// `sums += x * w`, [`CHUNK`] numbers from row to row of x.
    ///
    /// # Safety
    /// The machine has these vectors; x holds as many rows as there are sums, of the k that the chunk has.
    unsafe fn add<V: Lanes>(x: &[f32], chunk: &[u8], behind: Range<*const u8>, sums: &mut [Sums]);
}

/// Chunks in bf16.
pub(super) struct Tiles<'a, S>(pub(super) &'a S);

impl<S: PanelSource> Chunks for Tiles<'_, S> {
    #[inline(always)]
    fn chunk<'s>(&self, stored: &'s [u8], groups: Range<usize>, scratch: &'s mut [u8]) -> &'s [u8] {
        self.0.tiles(stored, groups, scratch)
    }

    #[inline(always)]
    fn behind(&self, stored: &[u8], groups: &Range<usize>) -> Range<*const u8> {
        self.0.behind(stored, groups)
    }

    #[inline(always)]
    unsafe fn add<V: Lanes>(x: &[f32], chunk: &[u8], behind: Range<*const u8>, sums: &mut [Sums]) {
        // SAFETY: passed on from the caller.
        unsafe { add_chunk::<V, S>(x, chunk, behind, sums) }
    }
}

/// Chunks in f32, which this function writes: for each k of these groups the weights of its 32 outputs.
pub(crate) struct Values<F>(pub(crate) F);

impl<F: Fn(&[u8], Range<usize>, &mut [f32]) + Sync> Chunks for Values<F> {
    #[inline(always)]
    fn chunk<'s>(&self, stored: &'s [u8], groups: Range<usize>, scratch: &'s mut [u8]) -> &'s [u8] {
        let out = &mut scratch[..groups.len() * GROUP * PANEL_ROWS * 4];
        (self.0)(stored, groups, bytemuck::cast_slice_mut(out));
        out
    }

    #[inline(always)]
    unsafe fn add<V: Lanes>(x: &[f32], chunk: &[u8], _behind: Range<*const u8>, sums: &mut [Sums]) {
        let k = chunk.len() / (PANEL_ROWS * 4);
        let mut first = 0;
        while first < sums.len() {
            let rows = share(sums.len() - first, floats::ROWS);
            let x = Mat::with_stride(&x[first * CHUNK..], rows, k, CHUNK);
            // SAFETY: passed on from the caller.
            unsafe { floats::add_rows::<V>(x, chunk, &mut sums[first..first + rows]) };
            first += rows;
        }
    }
}

pub(super) struct Job<'a, C> {
    pub(super) x: Mat<'a, bf16>,
    pub(super) w: &'a Weight<'a>,
    pub(super) source: &'a C,
    pub(super) epilogue: &'a Epilogue<'a>,
}

fn chunks(k: usize) -> usize {
    k.div_ceil(CHUNK)
}

/// Bytes of a row: widened, and its sums.
fn row_bytes(k: usize) -> usize {
    chunks(k) * CHUNK * 4 + size_of::<Sums>()
}

/// Rows of a block, of `rows` of `k` inputs.
fn block(rows: usize, k: usize) -> usize {
    let most = (THREAD_BYTES - CHUNK_BYTES) / row_bytes(k);
    rows.min((BLOCK_BYTES / row_bytes(k)).max(BLOCK_ROWS.min(most)).max(6))
}

/// What a thread needs for products of `rows` by weights of `k` inputs.
pub(super) fn scratch_bytes(rows: usize, k: usize) -> usize {
    block(rows, k) * row_bytes(k) + CHUNK_BYTES
}

/// The same for up to so many of each: with fewer inputs there are more rows in a block.
pub(super) fn scratch_bytes_at_most(rows: usize, k: usize) -> usize {
    let block = BLOCK_BYTES.max(BLOCK_ROWS * row_bytes(k));
    block.min(rows * row_bytes(k)) + CHUNK_BYTES
}

impl<C: Chunks> Job<'_, C> {
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
        let block = self.block();
        let (x, rest) = scratch.split_at_mut(self.chunks() * block * CHUNK * 4);
        let (sums, chunk) = rest.split_at_mut(block * size_of::<Sums>());
        let x: &mut [f32] = bytemuck::cast_slice_mut(x);
        let sums: &mut [Sums] = bytemuck::cast_slice_mut(sums);
        for (first, panels) in (0..self.x.rows()).step_by(block).zip(panels) {
            let mut mine = panels.of(me).flatten().peekable();
            if mine.peek().is_none() {
                continue;
            }
            let rows = first..(first + block).min(self.x.rows());
            widen(self.x.slice_rows(rows.clone()), x);
            for held in mine {
                // SAFETY: x holds these rows, widened; the rest is passed on.
                unsafe { self.panel::<V>(held, rows.clone(), x, &mut sums[..rows.len()], chunk) };
            }
        }
    }

    fn chunks(&self) -> usize {
        chunks(self.w.k())
    }

    fn block(&self) -> usize {
        block(self.x.rows(), self.w.k())
    }

    /// Of how many blocks of rows each is multiplied by all panels.
    pub(super) fn blocks(&self) -> usize {
        self.x.rows().div_ceil(self.block())
    }

    pub(super) fn scratch_bytes(&self) -> usize {
        scratch_bytes(self.x.rows(), self.w.k())
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
        for (x, first) in x.chunks_exact(rows.len() * CHUNK).zip((0..groups).step_by(CHUNK_GROUPS)) {
            let chunk = first..(first + CHUNK_GROUPS).min(groups);
            let behind = self.source.behind(stored, &chunk);
            let chunk = self.source.chunk(stored, chunk, scratch);
            // SAFETY: x holds a chunk of as many rows as there are sums.
            unsafe { C::add::<V>(x, chunk, behind, sums) };
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

/// x as f32, chunk by chunk of k and in each row by row, so that what is multiplied at once is one stretch of memory
/// whatever the length of a row. Zero to the end of the last group.
#[inline(always)]
fn widen(x: Mat<'_, bf16>, out: &mut [f32]) {
    for (row, i) in (0..x.rows()).map(|i| (x.row(i), i)) {
        for (chunk, values) in row.chunks(CHUNK).enumerate() {
            let out = &mut out[(chunk * x.rows() + i) * CHUNK..][..values.len().next_multiple_of(GROUP)];
            let (out, rest) = out.split_at_mut(values.len());
            for (out, x) in out.iter_mut().zip(values) {
                *out = f32::from_bits(u32::from(x.to_bits()) << 16);
            }
            rest.fill(0.0);
        }
    }
}

/// All rows of a chunk by a panel. What lies behind it is fetched meanwhile.
#[inline(always)]
unsafe fn add_chunk<V: Lanes, S: PanelSource>(
    x: &[f32],
    tiles: &[u8],
    behind: Range<*const u8>,
    sums: &mut [Sums],
) {
    let passes = sums.len().div_ceil(most_rows::<V>());
    if passes == 1 && S::STORED_AS_TILES {
        // SAFETY: passed on from the caller.
        return unsafe { add_rows::<V, true>(x.as_ptr(), tiles, &mut Ahead::nothing(), sums) };
    }
    let mut ahead = Ahead::of(behind, passes * tiles.len() / PAIR_BYTES);
    let mut first = 0;
    while first < sums.len() {
        let rows = rows_at_once::<V>(sums.len() - first);
        // SAFETY: passed on from the caller.
        unsafe {
            add_rows::<V, false>(
                x.as_ptr().add(first * CHUNK),
                tiles,
                &mut ahead,
                &mut sums[first..first + rows],
            )
        };
        first += rows;
    }
}

/// What is stored of the next chunk, of which every pass over a group of this one fetches some.
pub(super) struct Ahead {
    next: *const u8,
    end: *const u8,
    lines: usize,
}

impl Ahead {
    /// These bytes, in so many parts.
    fn of(behind: Range<*const u8>, parts: usize) -> Ahead {
        let bytes = behind.end.addr() - behind.start.addr();
        Ahead { next: behind.start, end: behind.end, lines: bytes.div_ceil(64).div_ceil(parts.max(1)) }
    }

    fn nothing() -> Ahead {
        Ahead { next: std::ptr::null(), end: std::ptr::null(), lines: 0 }
    }

    #[inline(always)]
    pub(super) fn fetch(&mut self) {
        for _ in 0..if self.next < self.end { self.lines } else { 0 } {
            // SAFETY: a prefetch cannot fault.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.next.cast()) };
            self.next = self.next.wrapping_add(64);
        }
    }
}

#[inline(always)]
fn most_rows<V: Lanes>() -> usize {
    if V::COUNT == 8 { 3 } else { 6 }
}

/// Rows that share one pass over the weights in registers: beside their sums (even and odd ones, of two vectors of
/// outputs) the registers hold the weights of a pair of k and one x.
#[inline(always)]
fn rows_at_once<V: Lanes>(left: usize) -> usize {
    share(left, most_rows::<V>())
}

/// How many of what is left are next: it is halved, not one full pass and a rest.
#[inline(always)]
fn share(left: usize, most: usize) -> usize {
    if left > most && left < 2 * most { left.div_ceil(2) } else { left.min(most) }
}

/// Up to six rows of x by a panel. One row takes more vectors of outputs at once, so that there are enough independent sums,
/// but for tiles that come from memory, which AVX2 reads one after the other.
#[inline(always)]
unsafe fn add_rows<V: Lanes, const ONCE: bool>(
    x: *const f32,
    tiles: &[u8],
    ahead: &mut Ahead,
    sums: &mut [Sums],
) {
    // SAFETY: passed on from the caller.
    unsafe {
        match sums.len() {
            1 if V::COUNT == 8 && !ONCE => add_products::<V, 1, 4, ONCE>(x, tiles, ahead, sums),
            1 => add_products::<V, 1, 2, ONCE>(x, tiles, ahead, sums),
            2 => add_products::<V, 2, 2, ONCE>(x, tiles, ahead, sums),
            3 if V::COUNT == 8 => three_rows::add_products(x, tiles, ahead, sums),
            3 => add_products::<V, 3, 2, ONCE>(x, tiles, ahead, sums),
            4 => add_products::<V, 4, 2, ONCE>(x, tiles, ahead, sums),
            5 => add_products::<V, 5, 2, ONCE>(x, tiles, ahead, sums),
            _ => add_products::<V, 6, 2, ONCE>(x, tiles, ahead, sums),
        }
    }
}

/// `R` rows by all 32 outputs, `C` vectors of them at a time.
#[inline(always)]
unsafe fn add_products<V: Lanes, const R: usize, const C: usize, const ONCE: bool>(
    x: *const f32,
    tiles: &[u8],
    ahead: &mut Ahead,
    sums: &mut [Sums],
) {
    debug_assert!(sums.len() == R);
    for (g, pair) in tiles.chunks_exact(PAIR_BYTES).enumerate() {
        ahead.fetch();
        for first in (0..PANEL_ROWS).step_by(C * V::COUNT) {
            // SAFETY: x has a group of 32 at `g` in each of R rows.
            unsafe { add_group::<V, R, C, ONCE>(x.add(g * GROUP), pair, first, sums) };
        }
    }
}

/// One group of k, for outputs `first..first + C * COUNT`: even and odd products in sums of their own,
/// the two added, that added to the total.
#[inline(always)]
unsafe fn add_group<V: Lanes, const R: usize, const C: usize, const ONCE: bool>(
    x: *const f32,
    pair: &[u8],
    first: usize,
    sums: &mut [Sums],
) {
    // SAFETY: a pair of tiles has 32 lines of 16 pairs, each inside `pair`; x has 32 values in each of R
    // rows; a row of sums is 32 floats; a prefetch cannot fault.
    unsafe {
        let mut even = [[V::zero(); C]; R];
        let mut odd = [[V::zero(); C]; R];
        for j in 0..GROUP / 2 {
            if ONCE {
                fetch_near::<V, C>(pair, first * 64 + j * C * V::COUNT * 4);
            }
            let w: [_; C] = std::array::from_fn(|c| {
                let output = first + c * V::COUNT;
                pair.as_ptr().add(output / 16 * TILE_BYTES + j * 64 + output % 16 * 4)
            });
            let first_of_pair = w.map(|at| V::load_first(at));
            for r in 0..R {
                let x = V::splat(x.add(r * CHUNK + 2 * j));
                for c in 0..C {
                    even[r][c] = x.multiply_add(first_of_pair[c], even[r][c]);
                }
            }
            let second_of_pair = w.map(|at| V::load_second(at));
            for r in 0..R {
                let x = V::splat(x.add(r * CHUNK + 2 * j + 1));
                for c in 0..C {
                    odd[r][c] = x.multiply_add(second_of_pair[c], odd[r][c]);
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

/// Fetches as many lines as hold `C` vectors of pairs, a little after `at` of a pair of tiles: line by line as they lie in
/// memory, since two tiles by turns, as they are used, are read at a third of the rate.
#[inline(always)]
unsafe fn fetch_near<V: Lanes, const C: usize>(pair: &[u8], at: usize) {
    for line in 0..C * V::COUNT * 4 / 64 {
        // SAFETY: a prefetch cannot fault.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(pair.as_ptr().wrapping_add(AHEAD_BYTES + at + 64 * line).cast())
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_product_takes_more_scratch_than_the_largest_of_its_kind() {
        for (rows, k) in [(1, 576), (33, 1536), (2048, 1536), (512, 11008), (4096, 28672), (9, 40)] {
            let most = scratch_bytes_at_most(rows, k);
            for fewer in [1, 7, 50, 400, rows].into_iter().filter(|&fewer| fewer <= rows) {
                for narrower in (0..k).step_by(13).chain([k]) {
                    let needed = scratch_bytes(fewer, narrower);
                    assert!(needed <= most, "{fewer} x {narrower}: {needed} of {most}");
                }
            }
        }
        assert_eq!(scratch_bytes_at_most(33, 1536), scratch_bytes(33, 1536));
    }
}
