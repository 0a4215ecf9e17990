//! Attention to a share of the keys: a block of threads keeps the scores of all keys that a tile of queries sees.

use std::mem::take;

use kernels::attention::{BLOCK_TOKENS, Chosen, KvLayout, Span};
use kernels::device::{AttendShape, KvPages, Rows};

use crate::Driver;
use crate::args::{AttendArgs, SpanData, SparseArgs};
use crate::attend::{Plan, heads_of, together};
use crate::device::{GpuDevice, PARTIAL_BYTES, TABLE_BYTES};
use crate::module::Module;

/// (query, head) pairs of a tile.
pub(crate) const TILE_ROWS: usize = 16;
/// Of the memory for partial results: what was chosen, on its way to the host. The rest is for scores.
const CHOSEN_BYTES: usize = PARTIAL_BYTES / 4;
/// Pages for which a slot has room are a multiple of this: its size is the same from step to step.
const PAGES: usize = 64;
/// Of a slot's row: a score for each token of a page, and a word of bits.
const PAGE_BYTES: usize = 4 * BLOCK_TOKENS + 4;
/// Positions of the longest sequence whose scores there is room for.
pub(crate) const POSITIONS_MAX: usize =
    (PARTIAL_BYTES - CHOSEN_BYTES) / (TILE_ROWS * PAGE_BYTES) / PAGES * PAGES * BLOCK_TOKENS;

impl<D: Driver> GpuDevice<D> {
    /// Attention of the spans' queries to the share of their keys that counts.
    pub(crate) fn attend_sparse(
        &self,
        args: AttendArgs,
        layout: KvLayout,
        spans: &[Span<'_>],
        shape: AttendShape,
    ) {
        let args = self.sparse_args(args, shape, spans);
        self.run_sparse("attend_chosen", layout, spans, args);
    }

    /// Which values that would read.
    pub(crate) fn choose_sparse(
        &self,
        q: Rows,
        kv: KvPages,
        spans: &[Span<'_>],
        shape: AttendShape,
    ) -> Chosen {
        assert!(spans.iter().all(|span| span.rows.len() == 1), "decodes have a row each");
        let args = self.sparse_args(self.attend_args(q, kv, shape, q), shape, spans);
        let (tiles, kv_heads) = ((shape.heads / kv.layout.kv_heads).div_ceil(TILE_ROWS), kv.layout.kv_heads);
        let pages = args.pages as usize;
        let mut chosen = vec![0u32; spans.len() * kv_heads * pages];
        let mut untold = chosen.as_mut_slice();
        for spans in rounds(spans, tiles, kv_heads * pages) {
            let (told, later) = take(&mut untold).split_at_mut(spans.len() * kv_heads * pages);
            untold = later;
            self.run_sparse("choose_keys", kv.layout, spans, args);
            let bytes = 4 * tiles * told.len();
            self.driver.download(args.chosen, bytes, &mut |first, piece| {
                for (at, word) in (first / 4..).zip(piece.chunks_exact(4)) {
                    // Tiles of one span tell of the same heads.
                    let (span, at) = (at / (tiles * kv_heads * pages), at % (kv_heads * pages));
                    told[span * kv_heads * pages + at] |=
                        u32::from_le_bytes(word.try_into().expect("four bytes"));
                }
            });
        }
        Chosen::new(kv_heads, pages, chosen)
    }

    /// # Panics
    /// If a sequence is longer than [`POSITIONS_MAX`], which `prepare` refuses.
    fn sparse_args(&self, attend: AttendArgs, shape: AttendShape, spans: &[Span<'_>]) -> SparseArgs {
        let longest = spans.iter().map(Span::end).max().unwrap_or(0);
        assert!(
            longest <= POSITIONS_MAX,
            "scores of {longest} positions, and there is room for {POSITIONS_MAX}"
        );
        let group = shape.heads / attend.kv_heads as usize;
        let most = spans.iter().map(|span| span.rows.len() * group).max().unwrap_or(0);
        SparseArgs {
            attend: AttendArgs { partials: self.partials + CHOSEN_BYTES as u64, ..attend },
            chosen: self.partials,
            share: shape.share.expect("a share was asked for"),
            pages: longest.div_ceil(BLOCK_TOKENS).next_multiple_of(PAGES) as u32,
            rows: most.min(TILE_ROWS) as u32,
            pieces: 0,
        }
    }

    fn run_sparse(&self, kernel: &'static str, layout: KvLayout, spans: &[Span<'_>], args: SparseArgs) {
        let (kv_heads, heads) = (layout.kv_heads, heads_of(layout, &args.attend));
        let plan = Plan::tiles(spans, (args.attend.heads as usize / kv_heads, TILE_ROWS));
        let lengths =
            [plan.spans.len() * (size_of::<SpanData>() / 4), plan.tables.len(), 2 * plan.many.len()];
        let mut ring = self.tables(&lengths);
        let attend = AttendArgs {
            spans: ring.put(&self.driver, &plan.spans),
            tables: ring.put(&self.driver, &plan.tables),
            work: ring.put(&self.driver, &plan.many),
            ..args.attend
        };
        let args = SparseArgs { attend, pieces: plan.many.len() as u32, ..args };
        let slot = args.rows as usize * args.pages as usize * PAGE_BYTES;
        // Blocks take what there is to do in turn.
        let blocks = (plan.many.len() * kv_heads).min((PARTIAL_BYTES - CHOSEN_BYTES) / slot.max(1));
        self.launch(Module::Sparse(heads), kernel, [blocks, 1], 256, &args);
    }
}

/// Spans by so many at a time that there is room for what they choose, of which each of a span's tiles tells in so many words, and for
/// their tables, which are longer where there is one such tile and one head.
fn rounds<'a, 'b>(spans: &'a [Span<'b>], tiles: usize, words: usize) -> impl Iterator<Item = &'a [Span<'b>]> {
    let most = (CHOSEN_BYTES / (4 * tiles * words).max(1)).max(1);
    together(spans, tiles, TABLE_BYTES[0] / 8).flat_map(move |spans| spans.chunks(most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::padded;

    /// Of one head of keys and of many; tables of so many pages came to more than the ring, by no more than what stands beside them.
    #[test]
    fn what_is_chosen_together_has_room_with_its_tables() {
        const LONG: usize = 8192;
        let blocks = [0; LONG];
        let span = |row| Span { blocks: &blocks, start: LONG * BLOCK_TOKENS - 1, rows: row..row + 1 };
        let spans: Vec<Span<'_>> = (0..400).map(span).collect();
        for (tiles, kv_heads) in [(1, 1), (2, 1), (1, 8)] {
            let words = kv_heads * LONG;
            let mut rest = spans.len();
            for together in rounds(&spans, tiles, words) {
                rest -= together.len();
                let plan = Plan::tiles(together, (tiles * TILE_ROWS, TILE_ROWS));
                let tables: [&[u8]; 3] = [
                    bytemuck::cast_slice(&plan.spans),
                    bytemuck::cast_slice(&plan.tables),
                    bytemuck::cast_slice(&plan.many),
                ];
                let bytes: usize = tables.iter().map(|table| padded(table.len())).sum();
                assert!(bytes <= TABLE_BYTES[0], "tables of {bytes} bytes, {tiles} tiles, {kv_heads} heads");
                assert!(together.len() * 4 * tiles * words <= CHOSEN_BYTES);
            }
            assert_eq!(rest, 0);
        }
    }

    #[test]
    fn the_longest_sequence_has_a_slot() {
        let slot = TILE_ROWS * (POSITIONS_MAX / BLOCK_TOKENS) * PAGE_BYTES;
        assert!(slot <= PARTIAL_BYTES - CHOSEN_BYTES && POSITIONS_MAX >= 256 << 10, "{POSITIONS_MAX}");
    }
}
