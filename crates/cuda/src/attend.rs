//! How the spans of a call become blocks of threads.

use kernels::attention::{BLOCK_TOKENS, KvDtype, Span};
use kernels::device::{AttendShape, Dtype, KvPages, Rows};
use kernels::queue;

use crate::Driver;
use crate::args::{AttendArgs, SpanData};
use crate::device::GpuDevice;
use crate::module::Module;

/// (query, head) pairs of a warp; spans with no more go split by split.
const FEW_ROWS: usize = 16;
/// Pairs of a block of `attend_many`.
const TILE_ROWS: usize = 64;
/// Positions of a split: fixed and counted from the sequence's beginning, so that a result depends on nothing else.
const SPLIT_TOKENS: usize = 8 * BLOCK_TOKENS;

/// Spans in the device's words, and the work of each kernel: pairs of a span and a place in it.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    pub(crate) spans: Vec<SpanData>,
    pub(crate) tables: Vec<u32>,
    /// (span, first pair) of `attend_many`.
    pub(crate) many: Vec<[u32; 2]>,
    /// (span, split) of `attend_few`.
    pub(crate) few: Vec<[u32; 2]>,
    /// (span, 0) of `merge_splits`.
    pub(crate) merges: Vec<[u32; 2]>,
}

impl PartialEq for SpanData {
    fn eq(&self, other: &SpanData) -> bool {
        bytemuck::bytes_of(self) == bytemuck::bytes_of(other)
    }
}

impl Plan {
    /// `group`: query heads for each head of keys; `room`: partial rows that there is memory for.
    pub(crate) fn new(spans: &[Span<'_>], group: usize, window: Option<usize>, room: usize) -> Plan {
        let mut plan = Plan::default();
        let mut partial = 0;
        for span in spans.iter().filter(|span| !span.rows.is_empty()) {
            let (pairs, number) = (span.rows.len() * group, plan.spans.len() as u32);
            let first = window.map_or(0, |window| (span.start + 1).saturating_sub(window)) / SPLIT_TOKENS;
            let splits = span.end().div_ceil(SPLIT_TOKENS) - first;
            plan.push(span, partial, first, splits);
            if pairs <= FEW_ROWS && partial + splits * pairs <= room {
                partial += splits * pairs;
                plan.few.extend((first..first + splits).map(|split| [number, split as u32]));
                plan.merges.push([number, 0]);
            } else {
                // The last tiles see most: they begin first.
                plan.many.extend((0..pairs).step_by(TILE_ROWS).rev().map(|pair| [number, pair as u32]));
            }
        }
        plan
    }

    /// One piece of work for each row of each span, for `attend_floats`.
    pub(crate) fn by_row(spans: &[Span<'_>]) -> Plan {
        let mut plan = Plan::default();
        for span in spans {
            let number = plan.spans.len() as u32;
            plan.push(span, 0, 0, 0);
            plan.many.extend((0..span.rows.len() as u32).map(|row| [number, row]));
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

impl<D: Driver> GpuDevice<D> {
    /// Everything of an attention's arguments but its tables.
    pub(crate) fn attend_args(&self, q: Rows, kv: KvPages, shape: AttendShape, out: Rows) -> AttendArgs {
        let wide = KvDtype::F32 == kv.layout.dtype;
        assert_eq!(q.dtype == Dtype::F32, wide, "queries and cache are of one type");
        assert_eq!(q.cols, shape.heads * kv.layout.head_dim, "columns of the queries");
        assert_eq!((q.rows, q.cols), (out.rows, out.cols), "shape of the result");
        assert!(shape.heads.is_multiple_of(kv.layout.kv_heads), "heads share heads of keys evenly");
        assert!(shape.window != Some(0), "a window of no tokens");
        assert!(shape.share.is_none(), "sparse attention is not built for CUDA: attend on the CPU");
        AttendArgs {
            q: self.rows(q),
            pages: self.at(&kv.buf),
            out: self.rows(out),
            spans: 0,
            tables: 0,
            work: 0,
            partials: self.partials,
            scale: shape.scale * std::f32::consts::LOG2_E,
            heads: shape.heads as u32,
            kv_heads: kv.layout.kv_heads as u32,
            window: shape.window.unwrap_or(0) as u32,
            out_bf16: (out.dtype == Dtype::Bf16).into(),
            unused: 0,
        }
    }

    pub(crate) fn attend_plan(&self, plan: &Plan, module: Module, grid_y: [usize; 2], args: AttendArgs) {
        const SPAN_WORDS: usize = size_of::<SpanData>() / 4;
        let work = [&plan.many, &plan.few, &plan.merges];
        let [many, few, merges] = work.map(|work| 2 * work.len());
        assert_eq!(queue::current(), 0, "one queue attends: it has the memory for partial results");
        let mut ring = self.tables(&[SPAN_WORDS * plan.spans.len(), plan.tables.len(), many, few, merges]);
        let spans = ring.put(&self.driver, &plan.spans);
        let tables = ring.put(&self.driver, &plan.tables);
        let kernel =
            if matches!(module, Module::AttentionFloats { .. }) { "attend_floats" } else { "attend_many" };
        for ((work, kernel), y) in work
            .into_iter()
            .zip([kernel, "attend_few", "merge_splits"])
            .zip([grid_y[0], grid_y[1], grid_y[1]])
        {
            if !work.is_empty() {
                let at = ring.put(&self.driver, work);
                self.launch(
                    module,
                    kernel,
                    [work.len(), y],
                    128,
                    &AttendArgs { spans, tables, work: at, ..args },
                );
            }
        }
    }
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
        Plan::new(&spans.iter().map(span).collect::<Vec<_>>(), group, window, room)
    }

    #[test]
    fn decodes_are_split_and_prefills_are_tiled() {
        let plan = plan(&[(700, 1), (0, 40)], 4, None, 100);
        assert_eq!(plan.few, [[0, 0], [0, 1], [0, 2]]);
        assert_eq!((plan.merges.len(), plan.spans[0].splits, plan.spans[1].table), (1, 3, 22));
        assert_eq!(plan.many, [[1, 128], [1, 64], [1, 0]]);
    }

    #[test]
    fn a_window_leaves_out_what_it_does_not_see() {
        let plan = plan(&[(1000, 1)], 1, Some(50), 100);
        assert_eq!((plan.spans[0].first_split, plan.spans[0].splits), (3, 1));
    }

    #[test]
    fn what_finds_no_room_for_its_parts_goes_undivided() {
        let plan = plan(&[(700, 1), (700, 1)], 4, None, 12);
        assert_eq!((plan.few.len(), plan.merges.len(), plan.many.as_slice()), (3, 1, &[[1, 0]][..]));
    }
}
