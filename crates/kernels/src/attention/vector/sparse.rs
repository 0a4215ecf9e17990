//! A row's queries over all of its keys, then over the values that were chosen.

use super::block::{PAGES, Pass, Vectors};
use super::simd::{Job, Simd};
use super::values::ValuePage;
use super::widened::Widened;
use crate::attention::Task;
use crate::attention::layout::{BLOCK_TOKENS, GROUP_TOKENS, Span};
use crate::attention::plan::{self, Item, Kernel};
use crate::attention::sparse::{choose, kept, mark};
use crate::mat::SharedRows;
use std::ops::Range;

/// The kernel for one task of sparse attention, a block of which is one row.
pub(in crate::attention) struct Sparse<'t, 'a, S, E: Widened, const W: usize> {
    vectors: Vectors<'t, 'a, S, E, W>,
    share: f32,
    /// Scores of a query, whole groups.
    scores: usize,
    /// Queries of a row.
    lanes: usize,
}

impl<'t, 'a, S: Simd<W>, E: Widened, const W: usize> Sparse<'t, 'a, S, E, W> {
    /// # Safety
    /// The machine has the instruction set `S`.
    pub(in crate::attention) unsafe fn new(task: &'t Task<'a, E>, share: f32) -> Self {
        let scores = scores_of(task.spans.iter().map(Span::end).max().unwrap_or(0));
        // SAFETY: by this function's contract.
        Sparse { vectors: unsafe { Vectors::new(task) }, share, scores, lanes: task.group() }
    }
}

/// Scores of a query that are kept for so many positions: of whole groups, a window may begin inside the first.
fn scores_of(positions: usize) -> usize {
    positions.next_multiple_of(GROUP_TOKENS) + GROUP_TOKENS
}

/// Bytes of a worker's memory for scores beside a block's.
pub(in crate::attention) fn scores_bytes(group: usize, context: usize) -> usize {
    (group + 1) * scores_of(context) * size_of::<f32>()
}

impl<S: Simd<W>, E: Widened, const W: usize> Kernel for Sparse<'_, '_, S, E, W> {
    type Registers = ();

    fn enter(&self) {}

    fn local_bytes(&self) -> usize {
        self.vectors.local_bytes() + (self.lanes + 1) * self.scores * size_of::<f32>()
    }

    fn state_len(&self) -> usize {
        self.vectors.state_len()
    }

    fn whole(&self, item: &Item, _: Option<&Item>, local: &mut [u8]) {
        let (own, rest) = local.split_at_mut(self.vectors.local_bytes());
        let scores: &mut [f32] = bytemuck::cast_slice_mut(&mut rest[..(self.lanes + 1) * self.scores * 4]);
        let (scores, order) = scores.split_at_mut(self.lanes * self.scores);
        let pass = self.vectors.pass(item, None, own);
        let job = Row { pass, scores: scores.as_mut_ptr(), each: self.scores, order, share: self.share };
        // SAFETY: the machine has the instruction set, by `new`.
        unsafe { S::run(job) };
    }

    fn part(&self, _: &Item, _: Option<&Item>, _: &mut [u8], _: &mut [f32]) {
        unreachable!("a row chooses among all of its keys: plans do not cut it");
    }

    fn merge(&self, _: &Item, _: &mut [u8], _: &mut [f32]) {
        unreachable!("a row is not cut");
    }
}

struct Row<'p, 'a, 'm, S, E: Widened, const W: usize> {
    pass: Pass<'p, 'a, S, E, W>,
    /// `[lanes][each]`, from the first group that is seen on.
    scores: *mut f32,
    each: usize,
    order: &'m mut [f32],
    share: f32,
}

impl<S: Simd<W>, E: Widened, const W: usize> Job for Row<'_, '_, '_, S, E, W> {
    #[inline(always)]
    fn run(mut self) {
        let seen = plan::seen(self.pass.task, &self.pass.item.block);
        let groups = seen.start / GROUP_TOKENS..seen.end.div_ceil(GROUP_TOKENS);
        // SAFETY: run by `S::run`, with memory that was cut for the task.
        unsafe {
            self.pass.load_queries();
            self.pass.clear(self.pass.total);
            for group in groups.clone() {
                self.keep_scores(group, groups.start);
            }
            self.choose(seen.clone(), groups.start);
            if let Some(told) = &self.pass.task.chosen {
                return self.tell(told, seen, groups.start);
            }
            for group in groups.clone() {
                self.values(group, groups.start);
            }
            self.pass.finish();
        }
    }
}

impl<S: Simd<W>, E: Widened, const W: usize> Row<'_, '_, '_, S, E, W> {
    /// A query's scores of a group.
    fn of(&self, lane: usize, group: usize, first: usize) -> *mut f32 {
        self.scores.wrapping_add(lane * self.each + (group - first) * GROUP_TOKENS)
    }

    /// # Safety
    /// Inside `S::run`, with memory that was cut for the task.
    #[inline(always)]
    unsafe fn keep_scores(&self, group: usize, first: usize) {
        let pages = self.pass.pages(group * GROUP_TOKENS);
        // SAFETY: by this function's contract.
        unsafe {
            for i in 0..pages {
                E::scores(&self.pass, i, &self.pass.page(group * GROUP_TOKENS + i * BLOCK_TOKENS), &[]);
            }
            for lane in 0..self.pass.lanes {
                let from = self.pass.s.add(lane * GROUP_TOKENS);
                self.of(lane, group, first).copy_from_nonoverlapping(from, pages * BLOCK_TOKENS);
            }
        }
    }

    /// # Safety
    /// As for `keep_scores`, which was called for all groups.
    #[inline(always)]
    unsafe fn choose(&mut self, seen: Range<usize>, first: usize) {
        let from = seen.start - first * GROUP_TOKENS;
        for lane in 0..self.pass.lanes {
            // SAFETY: scores of all that is seen follow those of what is not.
            let scores = unsafe {
                std::slice::from_raw_parts_mut(self.scores.add(lane * self.each + from), seen.len())
            };
            choose(scores, kept(self.share, seen.len()), self.order);
        }
    }

    /// Says which positions were chosen, of all queries of the row together.
    ///
    /// # Safety
    /// As for `choose`, which was called; nobody else tells of this row and head.
    unsafe fn tell(&self, told: &SharedRows<'_, u32>, seen: Range<usize>, first: usize) {
        let block = &self.pass.item.block;
        let row = block.span * self.pass.task.layout.kv_heads + block.kv_head;
        // SAFETY: by this function's contract.
        let row = unsafe { told.span(row, 0..told.cols()) };
        for lane in 0..self.pass.lanes {
            let from = lane * self.each + seen.start - first * GROUP_TOKENS;
            // SAFETY: as in `choose`.
            mark(unsafe { std::slice::from_raw_parts(self.scores.add(from), seen.len()) }, seen.start, row);
        }
    }

    /// # Safety
    /// As for `choose`, which was called.
    #[inline(always)]
    unsafe fn values(&self, group: usize, first: usize) {
        let base = group * GROUP_TOKENS;
        let pages = self.pass.pages(base);
        // SAFETY: by this function's contract; `s` has a group for each query.
        unsafe {
            for lane in 0..self.pass.lanes {
                let to = self.pass.s.add(lane * GROUP_TOKENS);
                to.copy_from_nonoverlapping(self.of(lane, group, first), pages * BLOCK_TOKENS);
            }
            self.pass.weights(base, pages, self.pass.total);
            let mut v = [ValuePage::NONE; PAGES];
            let mut n = 0;
            for i in 0..pages {
                if self.weighs(i) {
                    v[n] = self.pass.values_of(base + i * BLOCK_TOKENS);
                    self.move_weights(i, n);
                    n += 1;
                }
            }
            E::weigh(&self.pass, &v[..n], &[&[]; PAGES], self.pass.total);
        }
    }

    /// Whether page `i` of the group has a token that weighs something for some query.
    ///
    /// # Safety
    /// `s` has weights of the group.
    #[inline(always)]
    unsafe fn weighs(&self, i: usize) -> bool {
        (0..self.pass.lanes).any(|lane| {
            // SAFETY: by this function's contract.
            let p = unsafe {
                let at = self.pass.s.add(lane * GROUP_TOKENS + i * BLOCK_TOKENS);
                std::slice::from_raw_parts(at, BLOCK_TOKENS)
            };
            p.iter().any(|p| *p != 0.0)
        })
    }

    /// Weights of page `from` to the place of page `to`.
    ///
    /// # Safety
    /// `s` has weights of the group, and `to` is not after `from`.
    #[inline(always)]
    unsafe fn move_weights(&self, from: usize, to: usize) {
        for lane in 0..self.pass.lanes {
            // SAFETY: by this function's contract.
            unsafe {
                let group = self.pass.s.add(lane * GROUP_TOKENS);
                group.add(to * BLOCK_TOKENS).copy_from(group.add(from * BLOCK_TOKENS), BLOCK_TOKENS);
            }
        }
    }
}
