//! A block of queries over its splits: tiles of 16 queries, groups of four pages.

use super::local::Local;
use super::softmax::{Sight, Totals, weights};
use super::tiles::{self, LANES, TILE};
use crate::attention::element::Element;
use crate::attention::layout::{BLOCK_TOKENS, GROUP_TOKENS};
use crate::attention::plan::{self, Block, Item, Kernel};
use crate::attention::transpose::transpose_512;
use crate::attention::{Page, Task};
use crate::tiles::Tiles;
use half::bf16;
use std::arch::x86_64::*;

/// Pages in a group.
const PAGES: usize = GROUP_TOKENS / BLOCK_TOKENS;
/// Queries of a block, unless one row has more heads.
pub(in crate::attention) const BLOCK_LANES: usize = 64;

/// How large a block is.
#[derive(Clone, Copy)]
pub(in crate::attention) struct Shape {
    /// Elements of a head.
    pub head_dim: usize,
    /// Tiles of queries.
    pub tiles: usize,
}

impl Shape {
    /// The shape of a full block.
    pub(in crate::attention) fn new(head_dim: usize, group: usize) -> Shape {
        let tiles = (plan::rows_of_block(BLOCK_LANES, group) * group).div_ceil(LANES);
        Shape { head_dim, tiles }
    }

    /// Steps of 32 dims in a dot product of a query and a key.
    pub(super) fn steps(&self) -> usize {
        self.head_dim.div_ceil(32)
    }

    /// Whether a key ends inside a step.
    pub(super) fn is_padded(&self) -> bool {
        !self.head_dim.is_multiple_of(32)
    }

    /// f32 numbers of the state of a tile: maxima, sums, means `[head_dim][16]`.
    fn state_of_tile(&self) -> usize {
        (2 + self.head_dim) * LANES
    }

    /// f32 numbers of the state of a block.
    pub(in crate::attention) fn state_len(&self) -> usize {
        self.tiles * self.state_of_tile()
    }

    /// Bytes of a worker's own memory.
    pub(in crate::attention) fn local_bytes(&self) -> usize {
        Local::bytes(self)
    }
}

/// The kernel for one task.
pub(in crate::attention) struct Amx<'t, 'a, O> {
    task: &'t Task<'a, bf16, O>,
    shape: Shape,
}

impl<'t, 'a, O: Element> Amx<'t, 'a, O> {
    /// # Safety
    /// The machine has AMX for bf16, and the process may use it.
    pub(in crate::attention) unsafe fn new(task: &'t Task<'a, bf16, O>) -> Amx<'t, 'a, O> {
        Amx { task, shape: Shape::new(task.layout.head_dim, task.group()) }
    }
}

impl<O: Element> Kernel for Amx<'_, '_, O> {
    fn local_bytes(&self) -> usize {
        self.shape.local_bytes()
    }

    fn state_len(&self) -> usize {
        self.shape.state_len()
    }

    type Registers = Tiles;

    fn enter(&self) -> Tiles {
        // SAFETY: the machine has AMX, by `new`; a worker runs one kernel at a time.
        unsafe { Tiles::full() }
    }

    fn whole(&self, item: &Item, local: &mut [u8]) {
        let pass = Pass::new(self, &item.block, local);
        // SAFETY: the machine has AMX by `new`, tiles are configured, `Local` has room for a block.
        unsafe {
            pass.load_queries();
            for (i, split) in item.splits.clone().enumerate() {
                let state = if i == 0 { pass.local.total } else { pass.local.split };
                pass.split(split, state);
                if i > 0 {
                    pass.merge(state);
                }
            }
            pass.finish();
        }
    }

    fn part(&self, item: &Item, local: &mut [u8], state: &mut [f32]) {
        assert_eq!(state.len(), self.shape.state_len());
        let pass = Pass::new(self, &item.block, local);
        // SAFETY: as above; `state` has room for a block.
        unsafe {
            pass.load_queries();
            pass.split(item.splits.start, state.as_mut_ptr());
        }
    }

    fn merge(&self, item: &Item, local: &mut [u8], parts: &mut [f32]) {
        let mut pass = Pass::new(self, &item.block, local);
        let (first, rest) = parts.split_at_mut(self.shape.state_len());
        pass.local.total = first.as_mut_ptr();
        for part in rest.chunks_exact_mut(self.shape.state_len()) {
            // SAFETY: the machine has AVX-512; both hold the state of a block.
            unsafe { pass.merge(part.as_mut_ptr()) };
        }
        // SAFETY: as above.
        unsafe { pass.finish() };
    }
}

/// One worker's way through one block.
struct Pass<'p, 'a, O> {
    task: &'p Task<'a, bf16, O>,
    shape: Shape,
    block: &'p Block,
    local: Local,
    /// Queries of this block, and the tiles that they take.
    lanes: usize,
    tiles: usize,
}

impl<'p, 'a, O: Element> Pass<'p, 'a, O> {
    fn new(kernel: &'p Amx<'_, 'a, O>, block: &'p Block, memory: &mut [u8]) -> Self {
        let lanes = block.rows.len() * kernel.task.group();
        let local = Local::carve(&kernel.shape, memory);
        Pass { task: kernel.task, shape: kernel.shape, block, local, lanes, tiles: lanes.div_ceil(LANES) }
    }

    /// The row of the batch and the head of a query.
    fn query(&self, lane: usize) -> (usize, usize) {
        let group = self.task.group();
        let row = self.task.spans[self.block.span].rows.start + self.block.rows.start + lane / group;
        (row, self.block.kv_head * group + lane % group)
    }

    /// Queries as right operands, zeros where a tile has none, and what each sees.
    ///
    /// # Safety
    /// The machine has AVX-512, `local` room for the block.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn load_queries(&self) {
        let (d, steps) = (self.shape.head_dim, self.shape.steps());
        let start = self.task.spans[self.block.span].start + self.block.rows.start;
        for tile in 0..self.tiles {
            let mut sight = Sight { first: [0; LANES], last: [0; LANES] };
            for i in 0..LANES {
                let lane = (tile * LANES + i).min(self.lanes - 1);
                let seen = self.task.visible(start + lane / self.task.group());
                (sight.first[i], sight.last[i]) = (seen.start as i32, seen.end as i32 - 1);
            }
            // SAFETY: `sight` has an element for each tile.
            unsafe { self.local.sight.add(tile).write(sight) };
            for step in 0..steps {
                let mut pairs = [[0u32; 16]; LANES];
                for (i, pairs) in pairs.iter_mut().enumerate().take(self.lanes - tile * LANES) {
                    let (row, head) = self.query(tile * LANES + i);
                    let dims = &self.task.q.row(row)[head * d..][32 * step..(32 * step + 32).min(d)];
                    let pairs: &mut [bf16; 32] = bytemuck::cast_mut(pairs);
                    match <&[bf16; 32]>::try_from(dims) {
                        Ok(whole) => *pairs = *whole,
                        Err(_) => pairs[..dims.len()].copy_from_slice(dims),
                    }
                }
                // SAFETY: the machine has AVX-512; `q` has a tile for each step of each tile.
                unsafe {
                    transpose_512(&mut pairs);
                    self.local.q.add((tile * steps + step) * TILE).cast::<[[u32; 16]; LANES]>().write(pairs);
                }
            }
        }
    }

    /// All groups of one split, into `state`.
    ///
    /// # Safety
    /// Tiles are configured, queries are loaded, `state` has room for a block.
    unsafe fn split(&self, split: usize, state: *mut f32) {
        for tile in 0..self.tiles {
            let len = self.shape.state_of_tile();
            // SAFETY: inside the state; its first part has the layout of `Totals`.
            unsafe {
                let state = state.add(tile * len);
                state.write_bytes(0, len);
                state.cast::<Totals>().write(Totals::NONE);
            }
        }
        for group in plan::groups(self.task, self.block, split) {
            // SAFETY: as for this function.
            unsafe { self.group(group, state) };
        }
    }

    /// One group of positions for all tiles.
    ///
    /// # Safety
    /// As for `split`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn group(&self, group: usize, state: *mut f32) {
        let base = group * GROUP_TOKENS;
        let end = plan::seen(self.task, self.block).end;
        let pages = (end - base).div_ceil(BLOCK_TOKENS).min(PAGES);
        let (mut k, mut v) = ([std::ptr::null(); PAGES], [std::ptr::null(); PAGES]);
        let span = &self.task.spans[self.block.span];
        for i in 0..pages {
            let first = base + i * BLOCK_TOKENS;
            let page = self.task.page(span.block_of(first), self.block.kv_head);
            k[i] = page.k.as_ptr().cast::<u8>();
            v[i] = page.v.as_ptr().cast::<u8>();
            // SAFETY: `local` has room for a padded group and for a page of values.
            unsafe {
                if self.shape.is_padded() {
                    k[i] = self.pad_keys(i, &page);
                }
                if span.end() < first + BLOCK_TOKENS {
                    v[i] = self.cut_values(&page, span.end() - first);
                }
            }
        }
        let (k, v) = (&k[..pages], &v[..pages]);
        let mut tile = 0;
        while tile < self.tiles {
            // SAFETY: as for this function.
            let sights = unsafe { std::slice::from_raw_parts(self.local.sight.add(tile), self.tiles - tile) };
            let live = |i: usize| sights.get(i).is_some_and(|s| !s.is_empty(base as i32));
            // SAFETY: as for this function.
            unsafe {
                match (live(0), live(1)) {
                    (true, true) => self.two_tiles(tile, base, k, v, state),
                    (true, false) => self.one_tile(tile, base, k, v, state),
                    (false, true) => self.one_tile(tile + 1, base, k, v, state),
                    (false, false) => {}
                }
            }
            tile += 2;
        }
    }

    /// A page's keys in rows of whole tiles.
    ///
    /// # Safety
    /// `local` has room for a padded group.
    unsafe fn pad_keys(&self, i: usize, page: &Page<'_, bf16>) -> *const u8 {
        let (d, stride) = (self.shape.head_dim, self.shape.steps() * 32);
        // SAFETY: by this function's contract.
        let to = unsafe {
            let to = self.local.k_padded.add(i * BLOCK_TOKENS * stride * 2).cast::<bf16>();
            std::slice::from_raw_parts_mut(to, BLOCK_TOKENS * stride)
        };
        for (to, from) in to.chunks_exact_mut(stride).zip(page.k.chunks_exact(d)) {
            to[..d].copy_from_slice(from);
            to[d..].fill(bf16::ZERO);
        }
        to.as_ptr().cast()
    }

    /// A page's first `tokens` values, and zeros for what was never written (0 * NaN is NaN).
    ///
    /// # Safety
    /// `local` has room for a page of values.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn cut_values(&self, page: &Page<'_, bf16>, tokens: usize) -> *const u8 {
        const _: () = assert!(BLOCK_TOKENS == 32, "a dim's values in a page are one vector");
        let kept = (1u32 << tokens) - 1;
        let to = self.local.v_tail;
        for dim in 0..page.v.len() / BLOCK_TOKENS {
            // SAFETY: by this function's contract; the page holds 32 values of each dim.
            unsafe {
                let from = page.v.as_ptr().add(dim * BLOCK_TOKENS);
                let values = _mm512_maskz_loadu_epi16(kept, from.cast());
                _mm512_storeu_si512(to.add(dim * BLOCK_TOKENS * 2).cast(), values);
            }
        }
        to.cast_const()
    }

    /// # Safety
    /// As for `group`; `tile` exists.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn one_tile(&self, tile: usize, base: usize, k: &[*const u8], v: &[*const u8], state: *mut f32) {
        let (steps, stride) = (self.shape.steps(), self.key_stride());
        let l = &self.local;
        // SAFETY: by this function's contract.
        unsafe {
            for (i, k) in k.iter().enumerate() {
                let q = l.q.add(tile * steps * TILE);
                tiles::scores(*k, stride, steps, q, l.s[0].add(i * BLOCK_TOKENS * LANES));
            }
            let means = self.weigh_tile(tile, 0, base, k.len(), state);
            for dims in 0..self.shape.head_dim / 32 {
                tiles::weigh(v, dims * 2 * TILE, l.p[0], means.add(dims * 32 * LANES));
            }
            if self.shape.is_padded() {
                let dims = self.shape.head_dim - 16;
                tiles::weigh_half(v, dims * 64, l.p[0], means.add(dims * LANES));
            }
        }
    }

    /// # Safety
    /// As for `group`; `tile` and the next exist.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn two_tiles(&self, tile: usize, base: usize, k: &[*const u8], v: &[*const u8], state: *mut f32) {
        let (steps, stride) = (self.shape.steps(), self.key_stride());
        let l = &self.local;
        // SAFETY: by this function's contract.
        unsafe {
            let q =
                [l.q.add(tile * steps * TILE), l.q.add((tile + 1) * steps * TILE)].map(|q| q.cast_const());
            for (i, k) in k.iter().enumerate() {
                let s = l.s.map(|s| s.add(i * BLOCK_TOKENS * LANES));
                tiles::scores_two(*k, stride, steps, q, s);
            }
            let means = [
                self.weigh_tile(tile, 0, base, k.len(), state),
                self.weigh_tile(tile + 1, 1, base, k.len(), state),
            ];
            let p = l.p.map(|p| p.cast_const());
            for dims in 0..self.shape.head_dim / 32 {
                tiles::weigh_two(v, dims * 2 * TILE, p, means.map(|m| m.add(dims * 32 * LANES)));
            }
            if self.shape.is_padded() {
                let dims = self.shape.head_dim - 16;
                for (p, means) in p.into_iter().zip(means) {
                    tiles::weigh_half(v, dims * 64, p, means.add(dims * LANES));
                }
            }
        }
    }

    /// Bytes from one key to the next.
    fn key_stride(&self) -> usize {
        if self.shape.is_padded() { self.shape.steps() * 64 } else { self.shape.head_dim * 2 }
    }

    /// From the scores in slot `slot` to weights there; the tile's means, scaled to the new maxima.
    ///
    /// # Safety
    /// As for `group`.
    unsafe fn weigh_tile(
        &self,
        tile: usize,
        slot: usize,
        base: usize,
        pages: usize,
        state: *mut f32,
    ) -> *mut f32 {
        let c = self.task.softmax.scale * std::f32::consts::LOG2_E;
        let tokens = pages * BLOCK_TOKENS;
        // SAFETY: a slot has room for a group; the machine has AVX-512; a tile's state is totals, then means.
        unsafe {
            let s = std::slice::from_raw_parts(self.local.s[slot].cast::<[f32; LANES]>(), tokens);
            let p = std::slice::from_raw_parts_mut(self.local.p[slot].cast::<[u32; LANES]>(), tokens / 2);
            let totals = state.add(tile * self.shape.state_of_tile());
            let means = totals.add(2 * LANES);
            let sight = &*self.local.sight.add(tile);
            if let Some(shrink) = weights(s, c, (base as i32, sight), &mut *totals.cast::<Totals>(), p) {
                scale(means, self.shape.head_dim, shrink);
            }
            means
        }
    }

    /// Adds a later split's state to the total.
    ///
    /// # Safety
    /// The machine has AVX-512; both hold the state of a block.
    unsafe fn merge(&self, split: *mut f32) {
        for tile in 0..self.tiles {
            let at = tile * self.shape.state_of_tile();
            // SAFETY: by this function's contract.
            unsafe { add_state(self.local.total.add(at), split.add(at), self.shape.head_dim) };
        }
    }

    /// Divides by the sums and stores the rows.
    ///
    /// # Safety
    /// The machine has AVX-512; the total holds the state of a block.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn finish(&self) {
        let d = self.shape.head_dim;
        for tile in 0..self.tiles {
            // SAFETY: by this function's contract.
            let (totals, means) = unsafe {
                let state = self.local.total.add(tile * self.shape.state_of_tile());
                (*state.cast::<Totals>(), state.add(2 * LANES))
            };
            let inverse = totals.sum.map(|sum| 1.0 / sum);
            for dims in (0..d).step_by(16) {
                // SAFETY: 16 dims of 16 queries lie inside the means; the machine has AVX-512.
                let rows = unsafe {
                    let mut rows = means.add(dims * LANES).cast::<[[u32; LANES]; 16]>().read();
                    transpose_512(&mut rows);
                    rows
                };
                for (i, x) in rows.iter().enumerate().take(self.lanes - tile * LANES) {
                    let (row, head) = self.query(tile * LANES + i);
                    // SAFETY: a query belongs to one block, and a block to one worker.
                    let out = unsafe { self.task.out.span(row, head * d + dims..head * d + dims + 16) };
                    let out: &mut [O; 16] = out.try_into().expect("16 dims");
                    for (out, x) in out.iter_mut().zip(x) {
                        *out = O::from_f32(f32::from_bits(*x) * inverse[i]);
                    }
                }
            }
        }
    }
}

#[target_feature(enable = "avx512f")]
unsafe fn scale(means: *mut f32, head_dim: usize, by: __m512) {
    for dim in 0..head_dim {
        // SAFETY: the caller's means are `[head_dim][16]`.
        unsafe {
            let at = means.add(dim * LANES);
            _mm512_storeu_ps(at, _mm512_mul_ps(_mm512_loadu_ps(at), by));
        }
    }
}

/// `total += split`, both as powers of two of their own maxima.
#[target_feature(enable = "avx512f")]
unsafe fn add_state(total: *mut f32, split: *const f32, head_dim: usize) {
    // SAFETY: both are maxima, sums and means of 16 queries.
    unsafe {
        let (a, b) = (_mm512_loadu_ps(total), _mm512_loadu_ps(split));
        let max = _mm512_max_ps(a, b);
        let one = _mm512_set1_ps(1.0);
        let (keep, add) =
            (_mm512_scalef_ps(one, _mm512_sub_ps(a, max)), _mm512_scalef_ps(one, _mm512_sub_ps(b, max)));
        _mm512_storeu_ps(total, max);
        for i in 1..head_dim + 2 {
            let at = total.add(i * LANES);
            let kept = _mm512_mul_ps(_mm512_loadu_ps(at), keep);
            _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_loadu_ps(split.add(i * LANES)), add, kept));
        }
    }
}
