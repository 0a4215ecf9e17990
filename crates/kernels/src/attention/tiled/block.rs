//! A block of queries over its splits: tiles of 16 queries, groups of four pages.

use super::local::{Local, SCORES};
use super::pages::{Asked, Group, Tiled};
use super::products::Products;
use super::shape::Shape;
use super::softmax::{AsTheyAre, Give, Scaled, Sight, Totals, combine, weights};
use super::state::{add_dims, add_row, add_state, scale};
use super::tiles::{LANES, TILE};
use crate::attention::Task;
use crate::attention::layout::{BLOCK_TOKENS, GROUP_TOKENS, KV_GROUP};
use crate::attention::plan::{self, Item, Kernel};
use crate::attention::transpose::transpose_512;
use half::bf16;
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// The kernel for one task.
pub(in crate::attention) struct Blocks<'t, 'a, P, E: Tiled> {
    task: &'t Task<'a, E>,
    shape: Shape,
    products: PhantomData<P>,
}

impl<'t, 'a, P: Products, E: Tiled> Blocks<'t, 'a, P, E> {
    /// # Safety
    /// The machine has AVX-512 with bf16 and what `P` multiplies with.
    pub(in crate::attention) unsafe fn new(task: &'t Task<'a, E>) -> Self {
        Blocks { task, shape: Shape::new(task.layout, task.group()), products: PhantomData }
    }
}

impl<P: Products, E: Tiled> Kernel for Blocks<'_, '_, P, E> {
    fn local_bytes(&self) -> usize {
        self.shape.local_bytes()
    }

    fn state_len(&self) -> usize {
        self.shape.state_len()
    }

    type Registers = P::Registers;

    fn enter(&self) -> P::Registers {
        // SAFETY: the machine has them, by `new`; a worker runs one kernel at a time.
        unsafe { P::enter() }
    }

    fn whole(&self, item: &Item, after: Option<&Item>, local: &mut [u8]) {
        let pass = Pass::new(self, item, after, local);
        // SAFETY: the machine has what `P` needs by `new`, its registers are ready, `Local` has room for a block.
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

    fn part(&self, item: &Item, after: Option<&Item>, local: &mut [u8], state: &mut [f32]) {
        assert_eq!(state.len(), self.shape.state_len());
        let pass = Pass::new(self, item, after, local);
        // SAFETY: as above; `state` has room for a block.
        unsafe {
            pass.load_queries();
            pass.split(item.splits.start, state.as_mut_ptr());
        }
    }

    fn merge(&self, item: &Item, local: &mut [u8], parts: &mut [f32]) {
        let mut pass = Pass::new(self, item, None, local);
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
pub(super) struct Pass<'p, 'a, P, E: Tiled> {
    pub(super) task: &'p Task<'a, E>,
    products: PhantomData<P>,
    pub(super) shape: Shape,
    pub(super) item: &'p Item,
    /// What this worker is likely to take after it.
    pub(super) after: Option<&'p Item>,
    pub(super) local: Local,
    /// Queries of this block, and the tiles that they take.
    pub(super) lanes: usize,
    pub(super) tiles: usize,
}

impl<'p, 'a, P: Products, E: Tiled> Pass<'p, 'a, P, E> {
    fn new(
        kernel: &'p Blocks<'_, 'a, P, E>,
        item: &'p Item,
        after: Option<&'p Item>,
        memory: &mut [u8],
    ) -> Self {
        let lanes = item.block.rows.len() * kernel.task.group();
        let local = Local::carve(&kernel.shape, memory);
        let (task, shape, products) = (kernel.task, kernel.shape, PhantomData);
        Pass { task, products, shape, item, after, local, lanes, tiles: lanes.div_ceil(LANES) }
    }

    /// The row of the batch and the head of a query.
    fn query(&self, lane: usize) -> (usize, usize) {
        let group = self.task.group();
        let row =
            self.task.spans[self.item.block.span].rows.start + self.item.block.rows.start + lane / group;
        (row, self.item.block.kv_head * group + lane % group)
    }

    /// Queries as right operands, zeros where a tile has none, and what each sees.
    ///
    /// # Safety
    /// The machine has AVX-512, `local` room for the block.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn load_queries(&self) {
        let (d, steps) = (self.shape.head_dim, self.shape.steps());
        let start = self.task.spans[self.item.block.span].start + self.item.block.rows.start;
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
                // SAFETY: the machine has AVX-512; `q` has a tile for each step of each tile, `q_sums` a row for each group.
                unsafe {
                    transpose_512(&mut pairs);
                    if E::CODED {
                        let group = tile * self.shape.groups + step * 32 / KV_GROUP;
                        let first = (step * 32).is_multiple_of(KV_GROUP);
                        add_dims(&pairs, first, self.local.q_sums.add(group * LANES));
                    }
                    self.local.q.add((tile * steps + step) * TILE).cast::<[[u32; 16]; LANES]>().write(pairs);
                }
            }
        }
    }

    /// All groups of one split, into `state`.
    ///
    /// # Safety
    /// Registers are ready, queries are loaded, `state` has room for a block.
    unsafe fn split(&self, split: usize, state: *mut f32) {
        if E::suits_few(&self.shape) && self.lanes <= P::FEW {
            // SAFETY: as for this function.
            return unsafe { self.lean_split(split, state) };
        }
        for tile in 0..self.tiles {
            let len = self.shape.state_of_tile();
            // SAFETY: inside the state; its first part has the layout of `Totals`.
            unsafe {
                let state = state.add(tile * len);
                state.write_bytes(0, len);
                state.cast::<Totals>().write(Totals::NONE);
            }
        }
        for group in plan::groups(self.task, &self.item.block, split) {
            // SAFETY: as for this function.
            unsafe { self.group(group * GROUP_TOKENS, state) };
        }
    }

    /// One group of positions, from `base` on, for all tiles.
    ///
    /// # Safety
    /// As for `split`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn group(&self, base: usize, state: *mut f32) {
        let (pages, n) = self.pages(base);
        let group = self.opened(&pages[..n], base);
        // SAFETY: `local` was cut for the shape.
        unsafe { E::grids(&group) };
        let mut asked = Asked::First;
        let mut tile = 0;
        while tile < self.tiles {
            // SAFETY: as for this function.
            let sights = unsafe { std::slice::from_raw_parts(self.local.sight.add(tile), self.tiles - tile) };
            let live = |i: usize| sights.get(i).is_some_and(|s| !s.is_empty(base as i32));
            // SAFETY: as for this function.
            unsafe {
                match (live(0), live(1)) {
                    (true, true) => self.two_tiles(tile, base, &group, asked, state),
                    (true, false) => self.one_tile(tile, base, &group, asked, state),
                    (false, true) => self.one_tile(tile + 1, base, &group, asked, state),
                    (false, false) => {}
                }
            }
            asked = if live(0) || live(1) { Asked::Again } else { asked };
            tile += 2;
        }
    }

    /// # Safety
    /// As for `group`; `tile` exists.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn one_tile(
        &self,
        tile: usize,
        base: usize,
        group: &Group<'_, E::Cell>,
        asked: Asked,
        state: *mut f32,
    ) {
        let (steps, stride, n) = (self.shape.steps(), self.shape.key_stride(), group.pages.len());
        let l = &self.local;
        let lanes = (self.lanes - tile * LANES).min(LANES);
        // SAFETY: by this function's contract. Operands are laid out one ahead of the tiles that load them.
        unsafe {
            let q = l.q.add(tile * steps * TILE);
            let mut next = E::keys(group, 0, asked);
            for i in 0..n {
                if !E::CODED && asked == Asked::First {
                    P::fetch(group.next[i], 2 * size_of_val(group.pages[i].k));
                }
                let k = next;
                if i + 1 < n {
                    next = E::keys(group, i + 1, asked);
                }
                for part in self.shape.parts() {
                    let s = l.s[0].byte_add(part.group * SCORES).add(i * BLOCK_TOKENS * LANES);
                    P::scores(k.add(part.step * 64), stride, part.steps, q.add(part.step * TILE), s, lanes);
                }
            }
            let mut v = E::values(group, self.shape.dims(0), asked);
            let means = self.weigh_tile(tile, 0, base, n, state);
            for first in (0..self.shape.head_dim).step_by(KV_GROUP) {
                let dims = self.shape.dims(first);
                if first > 0 {
                    v = E::values(group, dims.clone(), asked);
                }
                let (p, means) = (self.weights_of(0, first), means.add(first * LANES));
                if dims.len() == KV_GROUP {
                    P::weigh_64(&v[..n], p, means, lanes);
                    continue;
                }
                if dims.len() >= 32 {
                    P::weigh(&v[..n], 0, p, means, lanes);
                }
                if self.shape.is_padded() {
                    let dims = dims.len() - 16;
                    P::weigh_half(&v[..n], dims * 64, p, means.add(dims * LANES));
                }
            }
        }
    }

    /// # Safety
    /// As for `group`; `tile` and the next exist.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn two_tiles(
        &self,
        tile: usize,
        base: usize,
        group: &Group<'_, E::Cell>,
        asked: Asked,
        state: *mut f32,
    ) {
        let (steps, stride, n) = (self.shape.steps(), self.shape.key_stride(), group.pages.len());
        let l = &self.local;
        // SAFETY: as for `one_tile`.
        unsafe {
            let q =
                [l.q.add(tile * steps * TILE), l.q.add((tile + 1) * steps * TILE)].map(|q| q.cast_const());
            let mut next = E::keys(group, 0, asked);
            for i in 0..n {
                if !E::CODED && asked == Asked::First {
                    P::fetch(group.next[i], 2 * size_of_val(group.pages[i].k));
                }
                let k = next;
                if i + 1 < n {
                    next = E::keys(group, i + 1, asked);
                }
                for part in self.shape.parts() {
                    let s = l.s.map(|s| s.byte_add(part.group * SCORES).add(i * BLOCK_TOKENS * LANES));
                    let q = q.map(|q| q.add(part.step * TILE));
                    P::scores_two(k.add(part.step * 64), stride, part.steps, q, s);
                }
            }
            let mut v = E::values(group, self.shape.dims(0), asked);
            let means =
                [self.weigh_tile(tile, 0, base, n, state), self.weigh_tile(tile + 1, 1, base, n, state)];
            for first in (0..self.shape.head_dim).step_by(KV_GROUP) {
                let dims = self.shape.dims(first);
                if first > 0 {
                    v = E::values(group, dims.clone(), asked);
                }
                let (p, means) =
                    ([0, 1].map(|slot| self.weights_of(slot, first)), means.map(|m| m.add(first * LANES)));
                for dim in (0..dims.len() / 32 * 32).step_by(32) {
                    P::weigh_two(&v[..n], dim * 64, p, means.map(|m| m.add(dim * LANES)));
                }
                if self.shape.is_padded() && dims.end == self.shape.head_dim {
                    let dim = dims.len() - 16;
                    for (p, means) in p.into_iter().zip(means) {
                        P::weigh_half(&v[..n], dim * 64, p, means.add(dim * LANES));
                    }
                }
            }
        }
    }

    /// The weights in slot `slot` that dim `dim` meets.
    fn weights_of(&self, slot: usize, dim: usize) -> *const u8 {
        let group = if E::CODED { dim / KV_GROUP } else { 0 };
        self.local.p[slot].wrapping_add(group * SCORES / 2)
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
        // SAFETY: by this function's contract; `state` has a state for each tile.
        unsafe {
            let state = state.add(tile * self.shape.state_of_tile());
            let tokens = pages * BLOCK_TOKENS;
            match self.shape.groups {
                0 => {
                    let p = self.local.p[slot].cast::<[u32; LANES]>();
                    let mut give = AsTheyAre { p: std::slice::from_raw_parts_mut(p, tokens / 2) };
                    self.give(tile, slot, base, tokens, state, &mut give);
                }
                1 => self.weigh_codes::<1>(tile, slot, base, tokens, state),
                2 => self.weigh_codes::<2>(tile, slot, base, tokens, state),
                3 => self.weigh_codes::<3>(tile, slot, base, tokens, state),
                _ => self.weigh_codes::<4>(tile, slot, base, tokens, state),
            }
            state.add((2 + self.shape.groups) * LANES)
        }
    }

    /// The same where keys and values are codes in `G` groups of dims.
    ///
    /// # Safety
    /// As for `group`; `state` is the tile's.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn weigh_codes<const G: usize>(
        &self,
        tile: usize,
        slot: usize,
        base: usize,
        tokens: usize,
        state: *mut f32,
    ) {
        let l = &self.local;
        // SAFETY: by this function's contract; offsets follow maxima and sums.
        unsafe {
            combine::<G>(l.s[slot], tokens, l.q_sums.add(tile * G * LANES), &l.k_grids);
            let mut give = Scaled::<G>::new(l.p[slot], &l.v_grids);
            self.give(tile, slot, base, tokens, state, &mut give);
            for g in 0..G {
                let at = state.add((2 + g) * LANES);
                _mm512_storeu_ps(at, _mm512_add_ps(_mm512_loadu_ps(at), give.added(g)));
            }
        }
    }

    /// Gives the weights of the scores in slot `slot`, and scales the tile's offsets and means to the new maxima.
    ///
    /// # Safety
    /// As for `group`; `state` is the tile's, `give` has room for the tokens.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn give(
        &self,
        tile: usize,
        slot: usize,
        base: usize,
        tokens: usize,
        state: *mut f32,
        give: &mut impl Give,
    ) {
        let c = self.task.softmax.scale * std::f32::consts::LOG2_E;
        // SAFETY: a slot has room for a group; the machine has AVX-512; a state begins with its totals.
        unsafe {
            let s = std::slice::from_raw_parts_mut(self.local.s[slot].cast::<[f32; LANES]>(), tokens);
            self.task.softmax.cap_scores(s.as_flattened_mut());
            let sight = &*self.local.sight.add(tile);
            if let Some(shrink) = weights(s, c, (base as i32, sight), &mut *state.cast::<Totals>(), give) {
                scale(state.add(2 * LANES), self.shape.groups + self.shape.head_dim, shrink);
            }
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
            unsafe {
                add_state(
                    self.local.total.add(at),
                    split.add(at),
                    1 + self.shape.groups + self.shape.head_dim,
                )
            };
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
                (*state.cast::<Totals>(), state.add((2 + self.shape.groups) * LANES))
            };
            let inverse = totals.sum.map(|sum| 1.0 / sum);
            for dims in (0..d).step_by(16) {
                // SAFETY: 16 dims of 16 queries lie inside the means; the machine has AVX-512.
                let rows = unsafe {
                    if E::CODED {
                        let offsets = means.sub((self.shape.groups - dims / KV_GROUP) * LANES);
                        add_row(means.add(dims * LANES), _mm512_loadu_ps(offsets));
                    }
                    let mut rows = means.add(dims * LANES).cast::<[[u32; LANES]; 16]>().read();
                    transpose_512(&mut rows);
                    rows
                };
                for (i, x) in rows.iter().enumerate().take(self.lanes - tile * LANES) {
                    let (row, head) = self.query(tile * LANES + i);
                    let numbers: &[f32; LANES] = bytemuck::cast_ref(x);
                    // SAFETY: a query belongs to one block, and a block to one worker.
                    unsafe { self.task.out.write(row, head * d + dims, numbers, |x| x * inverse[i]) };
                }
            }
        }
    }
}
