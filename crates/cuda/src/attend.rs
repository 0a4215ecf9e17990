//! How the spans of a call become blocks of threads.

use std::borrow::Cow;
use std::cmp::Reverse;

use kernels::attention::{BLOCK_TOKENS, KvDtype, KvLayout, Span};
use kernels::device::{AttendShape, Dtype, KvPages, Rows};
use kernels::queue;

use crate::args::{AttendArgs, SpanData};
use crate::device::{GpuDevice, PARTIAL_BYTES};
use crate::module::{Heads, Module, Prefill, many_rows};
use crate::{Driver, Together};

/// (query, head) pairs of a warp; spans with no more go split by split.
const FEW_ROWS: usize = 16;
/// Positions of a split: fixed and counted from the sequence's beginning, so that a result depends on nothing else.
const SPLIT_TOKENS: usize = 8 * BLOCK_TOKENS;

/// Spans whose splits there is memory for at a time.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Round {
    /// (span, split) of `attend_few`.
    few: Vec<[u32; 2]>,
    /// (span, 0) of `merge_splits`, which leaves spans of one split as they are: those are whole already.
    merges: Vec<[u32; 2]>,
    /// Whether there is anything to merge.
    is_split: bool,
}

/// Spans in the device's words, and the work of each kernel: pairs of a span and a place in it.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    pub(crate) spans: Vec<SpanData>,
    pub(crate) tables: Vec<u32>,
    /// (span, first pair) of `attend_many`.
    pub(crate) many: Vec<[u32; 2]>,
    /// How many positions the rows of each of these see together.
    seen: Vec<usize>,
    /// One after the other, in the same memory: how a span is attended depends on nothing but itself.
    rounds: Vec<Round>,
}

impl PartialEq for SpanData {
    fn eq(&self, other: &SpanData) -> bool {
        bytemuck::bytes_of(self) == bytemuck::bytes_of(other)
    }
}

impl Plan {
    /// `group`: query heads for each head of keys, each of `head_dim`; `room`: partial rows that there is memory for.
    pub(crate) fn new(
        spans: &[Span<'_>],
        [group, head_dim]: [usize; 2],
        window: Option<usize>,
        room: usize,
    ) -> Plan {
        let mut plan = Plan::default();
        let mut partial = 0;
        for span in spans.iter().filter(|span| !span.rows.is_empty()) {
            let (pairs, number) = (span.rows.len() * group, plan.spans.len() as u32);
            let first = window.map_or(0, |window| (span.start + 1).saturating_sub(window)) / SPLIT_TOKENS;
            let splits = span.end().div_ceil(SPLIT_TOKENS) - first;
            let parts = splits * pairs;
            if pairs <= FEW_ROWS && parts <= room {
                if plan.rounds.is_empty() || partial + parts > room {
                    plan.rounds.push(Round::default());
                    partial = 0;
                }
                plan.push(span, partial, first, splits);
                partial += parts;
                let round = plan.rounds.last_mut().expect("just made");
                round.few.extend((first..first + splits).map(|split| [number, split as u32]));
                round.merges.push([number, 0]);
                round.is_split |= splits > 1;
            } else {
                plan.push(span, 0, first, splits);
                // The last tiles see most: they begin first.
                for pair in (0..pairs).step_by(many_rows(head_dim)).rev() {
                    let last = span.start + (pair + many_rows(head_dim)).min(pairs).div_ceil(group);
                    let least = span.start + pair / group + 1;
                    plan.many.push([number, pair as u32]);
                    plan.seen.push(last - window.map_or(0, |window| least.saturating_sub(window)));
                }
            }
        }
        plan
    }

    /// The work of `attend_many`, that which sees most first.
    fn longest_first(&self) -> Vec<[u32; 2]> {
        let mut order: Vec<usize> = (0..self.many.len()).collect();
        order.sort_by_key(|i| Reverse(self.seen[*i]));
        order.into_iter().map(|i| self.many[i]).collect()
    }

    /// One piece of work for each row of each span, for `attend_floats`.
    pub(crate) fn by_row(spans: &[Span<'_>]) -> Plan {
        Plan::tiles(spans, (1, 1))
    }

    /// One piece of work for each so many (query, head) pairs of a span, of `group` pairs a row.
    pub(crate) fn tiles(spans: &[Span<'_>], (group, pairs): (usize, usize)) -> Plan {
        let mut plan = Plan::default();
        for span in spans {
            let number = plan.spans.len() as u32;
            plan.push(span, 0, 0, 0);
            let firsts = (0..span.rows.len() * group).step_by(pairs);
            plan.many.extend(firsts.map(|first| [number, first as u32]));
        }
        plan
    }

    fn push(&mut self, span: &Span<'_>, partial: usize, first_split: usize, splits: usize) {
        self.spans.push(SpanData {
            row: span.rows.start as u32,
            start: span.start as u32,
            rows: span.rows.len() as u32,
            table: self.tables.len() as u32,
            partial: partial as u32,
            first_split: first_split as u32,
            splits: splits as u32,
        });
        self.tables.extend_from_slice(&span.blocks[..span.end().div_ceil(BLOCK_TOKENS)]);
    }
}

/// Spans by so many at a time that their tables, and the lists of work for them, are about `most` words or fewer. Shared beginnings
/// make tables longer than the pages that there are. `pieces`: of work, that a row comes to at most.
pub(crate) fn together<'a, 'b>(
    spans: &'a [Span<'b>],
    pieces: usize,
    most: usize,
) -> impl Iterator<Item = &'a [Span<'b>]> {
    let mut rest = spans;
    std::iter::from_fn(move || {
        let mut words = 0;
        let fits = |span: &&Span<'_>| {
            words += size_of::<SpanData>() / 4
                + 2 * (span.end().div_ceil(BLOCK_TOKENS) + pieces * span.rows.len());
            words <= most
        };
        let n = rest.iter().take_while(fits).count().max(1).min(rest.len());
        let (now, later) = rest.split_at(n);
        rest = later;
        (!now.is_empty()).then_some(now)
    })
}

impl<D: Driver> GpuDevice<D> {
    /// Attention to all keys that the window leaves.
    pub(crate) fn attend_all_keys(
        &self,
        args: AttendArgs,
        layout: KvLayout,
        spans: &[Span<'_>],
        shape: AttendShape,
    ) {
        let KvLayout { kv_heads, head_dim, dtype } = layout;
        if dtype == KvDtype::F32 {
            return self.attend_plan(&Plan::by_row(spans), layout, [shape.heads.div_ceil(4), 0], args);
        }
        let room = PARTIAL_BYTES / (4 * kv_heads * (head_dim + 2));
        let plan = Plan::new(spans, [shape.heads / kv_heads, head_dim], shape.window, room);
        self.attend_plan(&plan, layout, [kv_heads, kv_heads], args);
    }

    /// Everything of an attention's arguments but its tables.
    pub(crate) fn attend_args(&self, q: Rows, kv: KvPages, shape: AttendShape, out: Rows) -> AttendArgs {
        let wide = KvDtype::F32 == kv.layout.dtype;
        assert_eq!(q.dtype == Dtype::F32, wide, "queries and cache are of one type");
        assert_eq!(q.cols, shape.heads * kv.layout.head_dim, "columns of the queries");
        assert_eq!((q.rows, q.cols), (out.rows, out.cols), "shape of the result");
        assert!(shape.heads.is_multiple_of(kv.layout.kv_heads), "heads share heads of keys evenly");
        assert!(shape.window != Some(0), "a window of no tokens");
        assert!(shape.scale > 0.0, "the largest score is looked for before scores are scaled");
        AttendArgs {
            q: self.rows(q),
            pages: self.at(&kv.buf),
            out: self.rows(out),
            spans: 0,
            tables: 0,
            work: 0,
            partials: self.partials,
            stalled: 0,
            scale: shape.scale * std::f32::consts::LOG2_E,
            heads: shape.heads as u32,
            kv_heads: kv.layout.kv_heads as u32,
            window: window(shape.window),
            out_bf16: (out.dtype == Dtype::Bf16).into(),
            pieces: 0,
            cap: shape.cap.map_or(0.0, |cap| cap * std::f32::consts::LOG2_E),
            unused: 0,
        }
    }

    /// What attends of many rows: of several kernels the first that has passed its trial.
    fn many(&self, heads: Heads) -> Many {
        let prefill = self.driver.prefill();
        let passed = |module: &Module| prefill != Prefill::Tried || self.passes(*module);
        let own = prefill.modules(heads).find(passed);
        own.map_or_else(|| Many::of_warps(heads), Many::of_warpgroups)
    }

    pub(crate) fn attend_plan(&self, plan: &Plan, layout: KvLayout, grid_y: [usize; 2], args: AttendArgs) {
        self.attend_by(self.many(heads_of(layout, &args)), plan, layout, grid_y, args);
    }

    /// The same with this kernel of many rows.
    pub(crate) fn attend_by(
        &self,
        many: Many,
        plan: &Plan,
        layout: KvLayout,
        grid_y: [usize; 2],
        args: AttendArgs,
    ) {
        const SPAN_WORDS: usize = size_of::<SpanData>() / 4;
        assert_eq!(queue::current(), 0, "one queue attends: it has the memory for partial results");
        let modules = Modules { many, few: Module::Attention(heads_of(layout, &args)) };
        let kernels = plan.kernels(modules, grid_y, self.driver.is_pass());
        let work = kernels.iter().map(|kernel| 2 * kernel.work.len());
        let lengths: Vec<usize> =
            [SPAN_WORDS * plan.spans.len(), plan.tables.len()].into_iter().chain(work).collect();
        let mut ring = self.tables(&lengths);
        let spans = ring.put(&self.driver, &plan.spans);
        let tables = ring.put(&self.driver, &plan.tables);
        for Kernel { module, name, y, threads, work, blocks_stay, at_most } in kernels {
            let pieces = work.len() as u32;
            let args = AttendArgs { spans, tables, work: ring.put(&self.driver, &work), pieces, ..args };
            let grid = if blocks_stay {
                let stay = staying(self.driver.together(module, name, threads));
                [(work.len() * y).min(stay).min(at_most), 1]
            } else {
                [work.len(), y]
            };
            self.launch(module, name, grid, threads, &args);
        }
    }
}

/// One of the kernels of an attention.
struct Kernel<'a> {
    module: Module,
    name: &'static str,
    /// Blocks for each piece of work.
    y: usize,
    /// Of a block.
    threads: u32,
    work: Cow<'a, [[u32; 2]]>,
    /// As many blocks as run side by side, and no more than `at_most`, take all of it in turn; else each piece has blocks of its own.
    blocks_stay: bool,
    at_most: usize,
}

/// Where an attention's kernels are.
#[derive(Clone, Copy)]
struct Modules {
    many: Many,
    few: Module,
}

/// Where `attend_many` is, the threads of its blocks, and whether these stay and take tiles in turn: so many at most.
#[derive(Clone, Copy)]
pub(crate) struct Many {
    module: Module,
    threads: u32,
    blocks_stay: bool,
    at_most: usize,
}

impl Many {
    pub(crate) fn of_warps(heads: Heads) -> Many {
        let module = Module::Attention(heads);
        Many { module, threads: 128, blocks_stay: false, at_most: usize::MAX }
    }

    pub(crate) fn of_warpgroups(module: Module) -> Many {
        let blocks_stay = matches!(module, Module::Warpgroups { turns: true, .. });
        Many { module, threads: if blocks_stay { 384 } else { 256 }, blocks_stay, at_most: usize::MAX }
    }

    /// By so many blocks at most, if they stay.
    pub(crate) fn by_blocks(self, at_most: usize) -> Option<Many> {
        self.blocks_stay.then_some(Many { at_most, ..self })
    }
}

impl Plan {
    /// Those that have work, in order. In a pass there is as much work for `attend_few` as in others.
    fn kernels(&self, modules: Modules, [y_many, y]: [usize; 2], is_pass: bool) -> Vec<Kernel<'_>> {
        let Modules { many, few: module } = modules;
        let floats = matches!(many.module, Module::Attention(Heads { pages: KvDtype::F32, .. }));
        let name = if floats { "attend_floats" } else { "attend_many" };
        let work = if many.blocks_stay { self.longest_first().into() } else { Cow::from(&self.many) };
        let Many { module: of_many, threads, blocks_stay, at_most } = many;
        let mut kernels =
            vec![Kernel { module: of_many, name, y: y_many, threads, work, blocks_stay, at_most }];
        let (threads, at_most) = (128, usize::MAX);
        for Round { few, merges, is_split } in &self.rounds {
            let few = if is_pass { Cow::from(filled(few)) } else { Cow::from(few) };
            let kernel =
                |name, work, blocks_stay| Kernel { module, name, y, threads, work, blocks_stay, at_most };
            kernels.push(kernel("attend_few", few, true));
            // All spans or none, so that the kernels of a pass stay the same ones while sequences grow.
            kernels.extend(is_split.then(|| kernel("merge_splits", Cow::from(merges), false)));
        }
        kernels.retain(|kernel| !kernel.work.is_empty());
        kernels
    }
}

/// What the kernels are compiled for that attend over such pages.
pub(crate) fn heads_of(layout: KvLayout, args: &AttendArgs) -> Heads {
    Heads { pages: layout.dtype, head_dim: layout.head_dim, capped: args.cap > 0.0 }
}

/// As kernels know it: 0 is none, and so is one that is wider than sequences can be.
fn window(window: Option<usize>) -> u32 {
    window.and_then(|window| i32::try_from(window).ok()).map_or(0, i32::cast_unsigned)
}

/// Of so many multiprocessors one is kept free where blocks fill those that they are on.
const PROCESSORS_FOR_ONE_FREE: usize = 64;
/// Of a block of each kernel that copies for other lanes meanwhile (`copy_quads` and `carry_pieces`, of two warps).
const REGISTERS_OF_COPIES: usize = 4096;

/// Blocks of a kernel that stay until all is done: as many as run side by side, or fewer if these left those that copy no registers.
fn staying(Together { blocks, registers_left }: Together) -> usize {
    let fills = registers_left < REGISTERS_OF_COPIES;
    if fills { blocks - blocks / PROCESSORS_FOR_ONE_FREE } else { blocks }
}

/// What is no work: a block that is given it leaves.
const NO_WORK: [u32; 2] = [u32::MAX; 2];

/// Work of a pass, filled up to one of a few lengths, an eighth more at the most where there is much of it: sequences grow from
/// pass to pass, and the kernels are to be the same ones.
fn filled(work: &[[u32; 2]]) -> Vec<[u32; 2]> {
    let step = (work.len().next_power_of_two() / 8).max(8);
    let mut filled = work.to_vec();
    filled.resize(work.len().next_multiple_of(step), NO_WORK);
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(spans: &[(usize, usize)], group: usize, window: Option<usize>, room: usize) -> Plan {
        let blocks: Vec<u32> = (0..100).collect();
        let mut row = 0;
        let span = |&(start, rows): &(usize, usize)| {
            row += rows;
            Span { blocks: &blocks, start, rows: row - rows..row }
        };
        Plan::new(&spans.iter().map(span).collect::<Vec<_>>(), [group, 128], window, room)
    }

    #[test]
    fn spans_whose_tables_are_long_go_by_some_at_a_time() {
        let blocks: Vec<u32> = (0..100).collect();
        let span = |tokens: usize| Span { blocks: &blocks, start: tokens - 1, rows: 0..1 };
        let spans: Vec<_> = [64, 64, 3200, 64].map(span).into();
        let lengths = |most| together(&spans, 1, most).map(<[_]>::len).collect::<Vec<_>>();
        // A span is 7 words; with 2 pages and a row 13, with 100 pages 209.
        assert_eq!(lengths(1000), [4]);
        assert_eq!(lengths(26), [2, 1, 1]);
        assert_eq!(lengths(0), [1, 1, 1, 1]);
        assert_eq!(together(&[], 1, 9).count(), 0);
        // With five pieces a row 21 words.
        assert_eq!(together(&spans, 5, 26).map(<[_]>::len).collect::<Vec<_>>(), [1, 1, 1, 1]);
    }

    #[test]
    fn decodes_are_split_and_prefills_are_tiled() {
        let plan = plan(&[(700, 1), (0, 70)], 4, None, 100);
        assert_eq!(
            plan.rounds,
            [Round { few: vec![[0, 0], [0, 1], [0, 2]], merges: vec![[0, 0]], is_split: true }]
        );
        assert_eq!((plan.spans[0].splits, plan.spans[1].table), (3, 22));
        assert_eq!(plan.many, [[1, 256], [1, 128], [1, 0]]);
    }

    #[test]
    fn blocks_that_stay_take_the_longest_first() {
        let plan_of = |window| plan(&[(0, 70), (40, 33), (500, 33)], 4, window, 0);
        // Positions: up to 70, 64 and 32; 73 and 72; 533 and 532.
        assert_eq!(
            plan_of(None).longest_first(),
            [[2, 128], [2, 0], [1, 128], [1, 0], [0, 256], [0, 128], [0, 0]]
        );
        // Of a tile's first row the window, and a position for each row after it.
        assert_eq!(plan_of(Some(50)).seen, [55, 64, 32, 50, 72, 50, 81]);
        let module = Module::Warpgroups { pages: KvDtype::Bf16, head_dim: 128, turns: true };
        let modules = Modules { many: Many::of_warpgroups(module), few: module };
        let plan = plan_of(None);
        let kernels = plan.kernels(modules, [2, 2], false).into_iter();
        let of = |kernel: Kernel<'_>| (kernel.threads, kernel.blocks_stay, kernel.work[0]);
        assert_eq!(kernels.map(of).collect::<Vec<_>>(), [(384, true, [2, 128])]);
    }

    #[test]
    fn blocks_that_stay_leave_registers_to_copies() {
        let of = |registers_left| staying(Together { blocks: 264, registers_left });
        assert_eq!([of(4096), of(4095), of(0)], [264, 260, 260]);
        assert_eq!(staying(Together { blocks: 2, registers_left: 0 }), 2);
    }

    #[test]
    fn what_is_of_one_split_needs_no_merging() {
        let names = |spans: &[(usize, usize)]| -> Vec<(&str, usize)> {
            let heads = Heads::plain(KvDtype::Bf16, 64);
            let (many, few) = (Many::of_warps(heads), Module::Attention(heads));
            let plan = plan(spans, 4, None, 100);
            let kernels = plan.kernels(Modules { many, few }, [2, 2], true);
            kernels.iter().map(|kernel| (kernel.name, kernel.work.len())).collect()
        };
        assert_eq!(names(&[(255, 1), (7, 1)]), [("attend_few", 8)]);
        assert_eq!(names(&[(255, 1), (256, 1)]), [("attend_few", 8), ("merge_splits", 2)]);
    }

    #[test]
    fn work_of_a_pass_has_one_of_a_few_lengths() {
        let length = |n: usize| filled(&vec![[1, 2]; n]).len();
        assert_eq!([1, 8, 9, 64, 65, 100, 1000].map(length), [8, 8, 16, 64, 80, 112, 1024]);
        assert_eq!(filled(&[[5, 6]; 7])[6..], [[5, 6], NO_WORK]);
    }

    #[test]
    fn a_window_beyond_all_positions_is_none() {
        let wide = [1, (1 << 31) - 1, 1 << 31, u32::MAX as usize, 1 << 32, (1 << 32) + 5];
        assert_eq!(wide.map(|width| window(Some(width))), [1, (1 << 31) - 1, 0, 0, 0, 0]);
        assert_eq!(window(None), 0);
    }

    #[test]
    fn a_window_leaves_out_what_it_does_not_see() {
        let plan = plan(&[(1000, 1)], 1, Some(50), 100);
        assert_eq!((plan.spans[0].first_split, plan.spans[0].splits), (3, 1));
    }

    #[test]
    fn what_finds_no_room_beside_others_is_attended_after_them_and_in_their_place() {
        let plan = plan(&[(700, 1), (200, 1), (700, 1), (2000, 1)], 4, None, 16);
        let few = plan.rounds.iter().map(|round| round.few.len()).collect::<Vec<_>>();
        assert_eq!(
            (few, plan.many.as_slice()),
            (vec![4, 3], &[[3, 0]][..]),
            "the last has no room even alone"
        );
        let partial: Vec<u32> = plan.spans.iter().map(|span| span.partial).collect();
        assert_eq!(partial[..3], [0, 12, 0]);
        assert_eq!(plan.rounds[1].merges, [[2, 0]]);
        let names = |is_pass| -> Vec<(&str, usize)> {
            let heads = Heads::plain(KvDtype::Bf16, 64);
            let (many, few) = (Many::of_warps(heads), Module::Attention(heads));
            let kernels = plan.kernels(Modules { many, few }, [2, 2], is_pass);
            kernels.iter().map(|kernel| (kernel.name, kernel.work.len())).collect()
        };
        let [few, merge] = ["attend_few", "merge_splits"];
        assert_eq!(names(false), [("attend_many", 1), (few, 4), (merge, 2), (few, 3), (merge, 1)]);
        assert_eq!(names(true), [("attend_many", 1), (few, 8), (merge, 2), (few, 8), (merge, 1)]);
    }
}
