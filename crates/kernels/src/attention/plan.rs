//! Which worker computes what: blocks of queries, long ones cut into splits of the sequence.
//!
//! A block is the rows of one span that share a pass over one head's keys and values. A worker takes a
//! whole block, or one split of a block that would keep one worker busy for long; the parts of a cut block
//! are merged in order of split, exactly as an uncut block merges them on its way.

use super::element::Stored;
use super::layout::{BLOCK_TOKENS, GROUP_TOKENS, SPLIT_TOKENS};
use super::{Scratch, Task};
use crate::team::{Stretches, Team};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A block that takes more than one part in so many of a worker's work is cut.
const SHARES: usize = 8;

/// Rows of one span in one head of keys and values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Index into the task's spans.
    pub span: usize,
    pub kv_head: usize,
    /// Rows, counted from the span's first.
    pub rows: Range<usize>,
}

/// One thing for a worker to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub block: Block,
    /// Splits of the sequence, by number.
    pub splits: Range<usize>,
    /// Where its one split's part goes; none if the block is whole and goes to the result.
    pub partial: Option<usize>,
}

/// What a family of instructions does with blocks.
pub(super) trait Kernel: Sync {
    /// Bytes of a worker's own memory.
    fn local_bytes(&self) -> usize;
    /// f32 numbers of the state of a block: maxima, sums and weighted means.
    fn state_len(&self) -> usize;
    /// What each worker holds while it runs its items.
    type Registers;
    /// Called on each worker before its items.
    fn enter(&self) -> Self::Registers;
    /// All splits of a block, to the result. `after`: what this worker is likely to take next.
    fn whole(&self, item: &Item, after: Option<&Item>, local: &mut [u8]);
    /// One split of a block, to `state`.
    fn part(&self, item: &Item, after: Option<&Item>, local: &mut [u8], state: &mut [f32]);
    /// The parts of a block in order of split, to the result. `parts`: `[splits][state_len]`.
    fn merge(&self, item: &Item, local: &mut [u8], parts: &mut [f32]);
}

/// A call's items, and where its cut blocks' parts lie.
#[derive(Debug, Default)]
pub(super) struct Plan {
    items: Vec<Item>,
    /// Cut blocks, with all of their splits and their first part.
    merges: Vec<Item>,
    parts: usize,
}

impl Plan {
    /// Bytes of the lists.
    pub(super) fn bytes(&self) -> usize {
        (self.items.capacity() + self.merges.capacity()) * size_of::<Item>()
    }

    /// Cuts the task into blocks of up to `lanes` queries (or the query heads of one row, if those are more).
    fn make<E: Stored>(&mut self, task: &Task<'_, E>, lanes: usize, threads: usize) {
        self.items.clear();
        self.merges.clear();
        self.parts = 0;
        // Short sequences have one split: nothing to weigh.
        // Nor does a row that chooses among its keys end before it has seen all.
        let short = task.softmax.share.is_some() || task.spans.iter().all(|span| span.end() <= SPLIT_TOKENS);
        let total: usize = if short { 0 } else { blocks(task, lanes).map(|b| cost(task, &b)).sum() };
        let longest = total / (SHARES * threads);
        for block in blocks(task, lanes) {
            let splits = splits(task, &block);
            if short || threads == 1 || splits.len() == 1 || cost(task, &block) <= longest {
                self.items.push(Item { block, splits, partial: None });
            } else {
                self.cut(block, splits);
            }
        }
    }

    fn cut(&mut self, block: Block, splits: Range<usize>) {
        let first = self.parts;
        self.parts += splits.len();
        for (i, split) in splits.clone().enumerate() {
            let item = Item { block: block.clone(), splits: split..split + 1, partial: Some(first + i) };
            self.items.push(item);
        }
        self.merges.push(Item { block, splits, partial: Some(first) });
    }
}

/// The blocks of a task; of a long span the last first, since they take longest.
fn blocks<E: Stored>(task: &Task<'_, E>, lanes: usize) -> impl Iterator<Item = Block> {
    let rows = rows_of_block(lanes, task.group());
    task.spans.iter().enumerate().flat_map(move |(span, s)| {
        let n = s.rows.len();
        (0..task.layout.kv_heads).flat_map(move |kv_head| {
            (0..n).step_by(rows).rev().map(move |first| {
                let rows = first..(first + rows).min(n);
                Block { span, kv_head, rows }
            })
        })
    })
}

/// Rows of a full block, given how many queries a row has for each head of keys.
pub(super) fn rows_of_block(lanes: usize, group: usize) -> usize {
    (lanes / group).max(1)
}

/// The positions that some row of `block` sees.
pub(super) fn seen<E: Stored>(task: &Task<'_, E>, block: &Block) -> Range<usize> {
    let start = task.spans[block.span].start;
    task.visible(start + block.rows.start).start..start + block.rows.end
}

fn splits<E: Stored>(task: &Task<'_, E>, block: &Block) -> Range<usize> {
    let seen = seen(task, block);
    seen.start / SPLIT_TOKENS..seen.end.div_ceil(SPLIT_TOKENS)
}

fn cost<E: Stored>(task: &Task<'_, E>, block: &Block) -> usize {
    seen(task, block).len() * (block.rows.len() * task.group()).div_ceil(16)
}

/// The groups of `split` that some row of `block` sees, by number.
pub(super) fn groups<E: Stored>(task: &Task<'_, E>, block: &Block, split: usize) -> Range<usize> {
    const EACH: usize = SPLIT_TOKENS / GROUP_TOKENS;
    let seen = seen(task, block);
    let (first, last) = (seen.start / GROUP_TOKENS, seen.end.div_ceil(GROUP_TOKENS));
    first.max(split * EACH)..last.min((split + 1) * EACH)
}

/// The positions that are read for `item`.
fn read<E: Stored>(task: &Task<'_, E>, item: &Item) -> Range<usize> {
    let seen = seen(task, &item.block);
    seen.start.max(item.splits.start * SPLIT_TOKENS)..seen.end.min(item.splits.end * SPLIT_TOKENS)
}

/// Where a worker reads a group's pages after that of `position`: where `item` ends before it, in what comes `after` it, as if
/// both were a group long at least.
pub(super) fn ahead<'i, E: Stored>(
    task: &Task<'_, E>,
    item: &'i Item,
    after: Option<&'i Item>,
    position: usize,
) -> Option<(&'i Block, usize)> {
    let first = |read: &Range<usize>| read.start / GROUP_TOKENS * GROUP_TOKENS;
    let (now, ahead) = (read(task, item), position + GROUP_TOKENS);
    if ahead < now.end {
        return Some((&item.block, ahead));
    }
    let (after, end) = (after?, now.end.next_multiple_of(BLOCK_TOKENS).max(first(&now) + GROUP_TOKENS));
    let then = read(task, after);
    let at = first(&then) + ahead - end;
    (at < then.end).then_some((&after.block, at))
}

/// Runs all of a task's blocks.
pub(super) fn run<E: Stored, K: Kernel>(
    team: &Team,
    task: &Task<'_, E>,
    kernel: &K,
    lanes: usize,
    scratch: &mut Scratch,
) {
    let threads = team.threads();
    scratch.plan.make(task, lanes, threads);
    let (plan, state, local) = (&scratch.plan, kernel.state_len(), kernel.local_bytes());
    scratch.memory.reserve(threads, local, plan.parts * state);
    let memory = scratch.memory.shared();
    let (items, next_merge) = (Stretches::new(plan.items.len(), 1, threads), AtomicUsize::new(0));
    team.run_on(threads, |w| {
        // SAFETY: each worker has a number of its own.
        let local = unsafe { memory.local(w.index) };
        let _registers = kernel.enter();
        for number in items.of(w.index).flatten() {
            let (item, after) = (&plan.items[number], plan.items.get(number + 1));
            match item.partial {
                None => kernel.whole(item, after, local),
                // SAFETY: each item has a part of its own.
                Some(at) => kernel.part(item, after, local, unsafe { memory.parts(at * state, state) }),
            }
        }
        if !plan.merges.is_empty() {
            w.barrier();
        }
        while let Some(item) = plan.merges.get(next_merge.fetch_add(1, Ordering::Relaxed)) {
            let first = item.partial.expect("a cut block has parts") * state;
            // SAFETY: the parts of a block belong to its merge, and are written before the barrier.
            kernel.merge(item, local, unsafe { memory.parts(first, item.splits.len() * state) });
        }
    });
}

/// Bytes that a scratch comes to hold: the parts of at most `8 * threads` cut blocks, the workers' own
/// memory, and the items (whose list may have grown to twice its need).
pub(super) fn bytes_at_most(
    threads: usize,
    kernel_bytes: (usize, usize),
    kv_heads: usize,
    rows: usize,
    context: usize,
) -> usize {
    let (state, local) = kernel_bytes;
    let splits = context.div_ceil(SPLIT_TOKENS) + 1;
    let parts = if threads == 1 { 0 } else { SHARES * threads * splits };
    let items = 2 * (rows * kv_heads + parts + SHARES * threads);
    parts * state + threads * local.next_multiple_of(64) + items * size_of::<Item>()
}
