//! A block of queries over its splits, in groups of four pages.

use super::codes::coded_len;
use super::products::{EMPTY, power_of_two, weights};
use super::simd::{Job, Simd};
use super::values::ValuePage;
use super::widened::Widened;
use crate::attention::layout::{BLOCK_TOKENS, GROUP_TOKENS, KvDtype, KvLayout};
use crate::attention::plan::{self, Item, Kernel};
use crate::attention::{Page, Task};
use std::marker::PhantomData;

/// Queries of a block, unless one row has more heads.
pub(in crate::attention) const BLOCK_LANES: usize = 32;
/// Pages in a group.
pub(super) const PAGES: usize = GROUP_TOKENS / BLOCK_TOKENS;
/// f32 numbers before a query's means: its maximum and its sum.
pub(super) const TOTALS: usize = 16;

/// The kernel for one task, in vectors of `W` lanes.
pub(in crate::attention) struct Vectors<'t, 'a, S, E: Widened, const W: usize> {
    task: &'t Task<'a, E>,
    set: PhantomData<S>,
}

impl<'t, 'a, S: Simd<W>, E: Widened, const W: usize> Vectors<'t, 'a, S, E, W> {
    /// # Safety
    /// The machine has the instruction set `S`.
    pub(in crate::attention) unsafe fn new(task: &'t Task<'a, E>) -> Self {
        Vectors { task, set: PhantomData }
    }

    /// Queries of a full block.
    fn lanes(&self) -> usize {
        let group = self.task.group();
        plan::rows_of_block(BLOCK_LANES, group) * group
    }

    /// f32 numbers of a query's state.
    fn state_of_query(&self) -> usize {
        TOTALS + self.task.layout.head_dim
    }

    pub(super) fn pass<'p>(
        &'p self,
        item: &'p Item,
        after: Option<&'p Item>,
        memory: &mut [u8],
    ) -> Pass<'p, 'a, S, E, W> {
        let d = self.task.layout.head_dim;
        let mut rest: &mut [f32] = bytemuck::cast_slice_mut(memory);
        let mut take = |n: usize| {
            let (piece, after) = std::mem::take(&mut rest).split_at_mut(n);
            rest = after;
            piece.as_mut_ptr()
        };
        Pass {
            task: self.task,
            item,
            after,
            lanes: item.block.rows.len() * self.task.group(),
            q: take(self.lanes() * d),
            s: take(self.lanes() * GROUP_TOKENS),
            shrink: take(self.lanes().next_multiple_of(16)),
            wide: take(wide_len::<W>(self.task.layout)),
            v_tail: take(BLOCK_TOKENS * d).cast(),
            coded: take(if E::CODED { coded_len(self.lanes()) } else { 0 }),
            split: take(self.state_len()),
            total: take(self.state_len()),
            set: PhantomData,
        }
    }
}

impl<S: Simd<W>, E: Widened, const W: usize> Kernel for Vectors<'_, '_, S, E, W> {
    type Registers = ();

    fn enter(&self) {}

    fn local_bytes(&self) -> usize {
        state_and_local::<W>(self.task.layout, self.task.group()).1
    }

    fn state_len(&self) -> usize {
        self.lanes() * self.state_of_query()
    }

    fn whole(&self, item: &Item, after: Option<&Item>, local: &mut [u8]) {
        let pass = self.pass(item, after, local);
        // SAFETY: the machine has the instruction set, by `new`.
        unsafe { S::run(Whole { pass, splits: item.splits.clone() }) };
    }

    fn part(&self, item: &Item, after: Option<&Item>, local: &mut [u8], state: &mut [f32]) {
        assert_eq!(state.len(), self.state_len());
        let mut pass = self.pass(item, after, local);
        pass.total = state.as_mut_ptr();
        // SAFETY: as above.
        unsafe { S::run(Part { pass, split: item.splits.start }) };
    }

    fn merge(&self, item: &Item, local: &mut [u8], parts: &mut [f32]) {
        let (first, rest) = parts.split_at_mut(self.state_len());
        let mut pass = self.pass(item, None, local);
        pass.total = first.as_mut_ptr();
        // SAFETY: as above.
        unsafe { S::run(Merge { pass, rest, state_len: self.state_len() }) };
    }
}

/// Bytes of a block's state, and of a worker's own memory.
pub(in crate::attention) fn state_and_local<const W: usize>(
    layout: KvLayout,
    group: usize,
) -> (usize, usize) {
    let d = layout.head_dim;
    let lanes = plan::rows_of_block(BLOCK_LANES, group) * group;
    let state = lanes * (TOTALS + d);
    let own = lanes * (d + GROUP_TOKENS) + lanes.next_multiple_of(16);
    let pages = wide_len::<W>(layout) + BLOCK_TOKENS * d;
    let coded = if layout.dtype == KvDtype::Int4 { coded_len(lanes) } else { 0 };
    (state * size_of::<f32>(), (own + pages + coded + 2 * state) * size_of::<f32>())
}

/// f32 numbers of widened pages: `W` keys, or a group's values in `W` dims. Codes of a page's keys, turned round, take less.
fn wide_len<const W: usize>(layout: KvLayout) -> usize {
    W * GROUP_TOKENS.max(layout.head_dim)
}

struct Whole<'p, 'a, S, E: Widened, const W: usize> {
    pass: Pass<'p, 'a, S, E, W>,
    splits: std::ops::Range<usize>,
}

impl<S: Simd<W>, E: Widened, const W: usize> Job for Whole<'_, '_, S, E, W> {
    #[inline(always)]
    fn run(self) {
        let Whole { pass, splits } = self;
        // SAFETY: run by `S::run`, with the memory that `Vectors::pass` cut.
        unsafe {
            pass.load_queries();
            for (i, split) in splits.enumerate() {
                let state = if i == 0 { pass.total } else { pass.split };
                pass.one_split(split, state);
                if i > 0 {
                    pass.merge(state);
                }
            }
            pass.finish();
        }
    }
}

struct Part<'p, 'a, S, E: Widened, const W: usize> {
    pass: Pass<'p, 'a, S, E, W>,
    split: usize,
}

impl<S: Simd<W>, E: Widened, const W: usize> Job for Part<'_, '_, S, E, W> {
    #[inline(always)]
    fn run(self) {
        // SAFETY: run by `S::run`, with the memory that `Vectors::pass` cut.
        unsafe {
            self.pass.load_queries();
            self.pass.one_split(self.split, self.pass.total);
        }
    }
}

struct Merge<'p, 'a, 'm, S, E: Widened, const W: usize> {
    pass: Pass<'p, 'a, S, E, W>,
    rest: &'m mut [f32],
    state_len: usize,
}

impl<S: Simd<W>, E: Widened, const W: usize> Job for Merge<'_, '_, '_, S, E, W> {
    #[inline(always)]
    fn run(self) {
        // SAFETY: run by `S::run`; each part is the state of a block.
        unsafe {
            for part in self.rest.chunks_exact(self.state_len) {
                self.pass.merge(part.as_ptr());
            }
            self.pass.finish();
        }
    }
}

/// One worker's way through one block.
pub(in crate::attention) struct Pass<'p, 'a, S, E: Widened, const W: usize> {
    pub(super) task: &'p Task<'a, E>,
    pub(super) item: &'p Item,
    /// What this worker is likely to take after it.
    after: Option<&'p Item>,
    /// Queries of this block.
    pub(super) lanes: usize,
    /// Widened queries, or their words where pages are codes: `[lanes][head_dim]`.
    pub(super) q: *mut f32,
    /// Scores, then weights, of a group: `[lanes][128]`.
    pub(super) s: *mut f32,
    /// What a group shrinks a query's earlier means by: `[lanes]`.
    pub(super) shrink: *mut f32,
    /// `W` widened keys, a group's values in `W` dims, or a page's keys of codes, turned round.
    pub(super) wide: *mut f32,
    /// Values of a page that ends inside: `[head_dim][32 tokens]`.
    pub(super) v_tail: *mut E::Cell,
    /// Where pages are codes: scales and minima `[128]` of a group's tokens in a group of dims, the weights times the
    /// scales `[lanes][128]`, and the grids of weights `[lanes][2]` and of queries `[lanes][4][2]`.
    pub(super) coded: *mut f32,
    /// State of the split being read: for each query maximum, sum, padding, means.
    split: *mut f32,
    /// State of the splits before it.
    pub(super) total: *mut f32,
    set: PhantomData<S>,
}

impl<S: Simd<W>, E: Widened, const W: usize> Pass<'_, '_, S, E, W> {
    pub(super) fn head_dim(&self) -> usize {
        self.task.layout.head_dim
    }

    pub(super) fn state_of_query(&self) -> usize {
        TOTALS + self.head_dim()
    }

    /// The row of the batch and the head of a query.
    fn query(&self, lane: usize) -> (usize, usize) {
        let group = self.task.group();
        let row =
            self.task.spans[self.item.block.span].rows.start + self.item.block.rows.start + lane / group;
        (row, self.item.block.kv_head * group + lane % group)
    }

    /// # Safety
    /// Inside `S::run`.
    #[inline(always)]
    pub(super) unsafe fn load_queries(&self) {
        let d = self.head_dim();
        for lane in 0..self.lanes {
            let (row, head) = self.query(lane);
            let q = &self.task.q.row(row)[head * d..][..d];
            // SAFETY: as for this function.
            unsafe { E::load_query(self, q, lane) };
        }
    }

    /// Makes a state one of queries that have seen nothing.
    ///
    /// # Safety
    /// `state` has room for a block.
    #[inline(always)]
    pub(super) unsafe fn clear(&self, state: *mut f32) {
        let each = self.state_of_query();
        for lane in 0..self.lanes {
            // SAFETY: by this function's contract.
            unsafe {
                state.add(lane * each).write_bytes(0, each);
                state.add(lane * each).write(EMPTY);
            }
        }
    }

    /// All groups of one split, into `state`.
    ///
    /// # Safety
    /// Inside `S::run`; `state` has room for a block.
    #[inline(always)]
    unsafe fn one_split(&self, split: usize, state: *mut f32) {
        // SAFETY: as for this function.
        unsafe { self.clear(state) };
        for group in plan::groups(self.task, &self.item.block, split) {
            // SAFETY: as for this function.
            unsafe { self.group(group * GROUP_TOKENS, state) };
        }
    }

    /// Pages that this block sees of the group of tokens from `base` on.
    pub(super) fn pages(&self, base: usize) -> usize {
        (plan::seen(self.task, &self.item.block).end - base).div_ceil(BLOCK_TOKENS).min(PAGES)
    }

    /// The page whose first token is at `position`.
    pub(super) fn page(&self, position: usize) -> Page<'_, E::Cell> {
        self.task.page(self.task.spans[self.item.block.span].block_of(position), self.item.block.kv_head)
    }

    /// Four pages from position `base` on. While they are computed with the next four are brought nearer.
    ///
    /// # Safety
    /// As for `one_split`.
    #[inline(always)]
    unsafe fn group(&self, base: usize, state: *mut f32) {
        let pages = self.pages(base);
        let (mut v, mut ahead) = ([ValuePage::NONE; PAGES], [&[][..]; PAGES]);
        // SAFETY: as for this function.
        unsafe {
            for (i, (v, ahead)) in v[..pages].iter_mut().zip(&mut ahead).enumerate() {
                let first = base + i * BLOCK_TOKENS;
                let next = self.next_page(first);
                *ahead = next.as_ref().map_or(&[], |page| page.v);
                E::scores(self, i, &self.page(first), next.as_ref().map_or(&[], |page| page.k));
                *v = self.values_of(first);
            }
            self.weights(base, pages, state);
            E::weigh(self, &v[..pages], &ahead, state);
        }
    }

    /// The page that is read a group's pages after that of `position`.
    fn next_page(&self, position: usize) -> Option<Page<'_, E::Cell>> {
        let (block, at) = plan::ahead(self.task, self.item, self.after, position)?;
        Some(self.task.page(self.task.spans[block.span].block_of(at), block.kv_head))
    }

    /// # Safety
    /// As for `one_split`.
    #[inline(always)]
    pub(super) unsafe fn weights(&self, base: usize, pages: usize, state: *mut f32) {
        let c = self.task.softmax.scale * std::f32::consts::LOG2_E;
        let start = self.task.spans[self.item.block.span].start + self.item.block.rows.start;
        for lane in 0..self.lanes {
            let seen = self.task.visible(start + lane / self.task.group());
            let seen = (seen.start.saturating_sub(base), seen.end.saturating_sub(base));
            // SAFETY: a query's state begins with its maximum and sum; `s` has a group for each query.
            unsafe {
                let s = std::slice::from_raw_parts_mut(self.s.add(lane * GROUP_TOKENS), pages * BLOCK_TOKENS);
                self.task.softmax.cap_scores(s);
                let totals = &mut *state.add(lane * self.state_of_query()).cast::<[f32; 2]>();
                let [max, sum] = totals;
                *self.shrink.add(lane) = weights::<S, E, W>(s, seen, c, max, sum);
            }
        }
    }

    /// Adds a later split's state to the total, both as powers of two of their own maxima.
    ///
    /// # Safety
    /// Inside `S::run`; both hold the state of a block.
    #[inline(always)]
    unsafe fn merge(&self, split: *const f32) {
        let each = self.state_of_query();
        for lane in 0..self.lanes {
            // SAFETY: by this function's contract.
            let (total, split) = unsafe {
                let total = std::slice::from_raw_parts_mut(self.total.add(lane * each), each);
                (total, std::slice::from_raw_parts(split.add(lane * each), each))
            };
            let max = total[0].max(split[0]);
            let (keep, add) = (power_of_two(total[0] - max), power_of_two(split[0] - max));
            total[0] = max;
            for (total, split) in total[1..].iter_mut().zip(&split[1..]) {
                *total = split.mul_add(add, *total * keep);
            }
        }
    }

    /// Divides by the sums and stores the rows.
    ///
    /// # Safety
    /// Inside `S::run`; the total holds the state of a block.
    #[inline(always)]
    pub(super) unsafe fn finish(&self) {
        let (d, each) = (self.head_dim(), self.state_of_query());
        for lane in 0..self.lanes {
            let (row, head) = self.query(lane);
            // SAFETY: a query belongs to one block, and a block to one worker.
            unsafe {
                let state = std::slice::from_raw_parts(self.total.add(lane * each), each);
                let inverse = 1.0 / state[1];
                self.task.out.write(row, head * d, &state[TOTALS..][..d], |x| x * inverse);
            }
        }
    }
}

/// Memory that is read later, and brought nearer in pieces: asked for all at once it would have to be waited for.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    at: *const u8,
    bytes: usize,
    /// Of a piece; the last may have fewer, or none.
    each: usize,
}

impl Ahead {
    /// Nothing.
    pub(super) const NONE: Ahead = Ahead { at: std::ptr::null(), bytes: 0, each: 0 };

    /// In so many pieces.
    pub(super) fn new<C>(cells: &[C], pieces: usize) -> Ahead {
        let bytes = size_of_val(cells);
        Ahead { at: cells.as_ptr().cast(), bytes, each: bytes.div_ceil(pieces) }
    }

    /// Brings a piece nearer.
    ///
    /// # Safety
    /// Inside `S::run`.
    #[inline(always)]
    pub(super) unsafe fn bring<S: Simd<W>, const W: usize>(&self, piece: usize) {
        const LINE: usize = 64;
        let start = self.each * piece;
        for line in start.div_ceil(LINE)..(start + self.each).min(self.bytes).div_ceil(LINE) {
            // SAFETY: by this function's contract.
            unsafe { S::prefetch(self.at.wrapping_add(LINE * line)) };
        }
    }
}
