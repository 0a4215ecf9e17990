//! From the fused projection to attention's operands: norms of q and k, rotary embedding, pages.
//!
//! All arithmetic is f32 with one rounding at the store, in an order that no instruction set changes.

use super::element::{Element, RowsMut};
use super::f16::F16;
use super::fp8::E4m3;
use super::int4::{self, Int4};
use super::layout::{BLOCK_TOKENS, KvDtype, KvLayout, Span};
use super::transpose::transpose;
#[cfg(target_arch = "x86_64")]
use super::transpose::transpose_512;
use crate::isa::Isa;
use crate::mat::{Mat, MatMut, SharedRows};
use crate::team::Team;
use half::bf16;
use std::ops::Range;

/// Values are turned round in squares of so many tokens and dims.
const SIDE: usize = 16;
type Square = [[u32; SIDE]; SIDE];

/// RMS norm of every head of q and k before they turn (Qwen3).
#[derive(Clone, Copy, Debug)]
pub struct QkNorm<'a> {
    /// Weight for queries: `[head_dim]`.
    pub q: &'a [f32],
    /// Weight for keys: `[head_dim]`.
    pub k: &'a [f32],
    /// Added to the mean square.
    pub eps: f32,
}

/// Tables of a rotary embedding in half-split order: dimension `i` turns with `i + rotary_dim / 2`.
#[derive(Clone, Copy, Debug)]
pub struct RopeTable<'a> {
    /// Position of the tables' first row.
    pub first: usize,
    /// `[positions][rotary_dim / 2]`.
    pub cos: &'a [f32],
    /// `[positions][rotary_dim / 2]`.
    pub sin: &'a [f32],
    /// How many of a head's first dimensions turn; even.
    pub rotary_dim: usize,
}

impl RopeTable<'_> {
    #[inline(always)]
    fn turn(&self, head: &mut [f32], position: usize) {
        let half = self.rotary_dim / 2;
        let at = (position - self.first) * half;
        let (cos, sin) = (&self.cos[at..][..half], &self.sin[at..][..half]);
        let (low, high) = head[..2 * half].split_at_mut(half);
        for i in 0..half {
            let (a, b) = (low[i], high[i]);
            low[i] = a * cos[i] - b * sin[i];
            high[i] = b * cos[i] + a * sin[i];
        }
    }
}

/// What happens to a head between projection and attention.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadOps<'a> {
    /// Norm of q and k, if the model has it.
    pub norm: Option<QkNorm<'a>>,
    /// Rotary embedding, if the model has it.
    pub rope: Option<RopeTable<'a>>,
}

/// Takes the rows of every span from the projection `qkv: [n, (heads + 2 * kv_heads) * head_dim]` (all
/// heads of q, then of k, then of v) through `ops`, writes q to `q_out: [n, heads * head_dim]`, and k and
/// v to their pages in `cache`, one layer's blocks.
///
/// # Panics
/// If shapes do not fit each other, or a block lies outside `cache`. No two spans may share a block that
/// they write to.
#[allow(clippy::too_many_arguments)]
pub fn rope_and_write(
    team: &Team,
    isa: Isa,
    qkv: Mat<'_, f32>,
    spans: &[Span<'_>],
    ops: HeadOps<'_>,
    layout: KvLayout,
    q_out: RowsMut<'_>,
    cache: &mut [u8],
) {
    match (q_out, layout.dtype) {
        (RowsMut::Bf16(q), KvDtype::Bf16) => {
            write::<bf16, bf16>(team, isa, qkv, spans, ops, layout, q, cache)
        }
        (RowsMut::Bf16(q), KvDtype::F32) => write::<bf16, f32>(team, isa, qkv, spans, ops, layout, q, cache),
        (RowsMut::Bf16(q), KvDtype::F16) => write::<bf16, F16>(team, isa, qkv, spans, ops, layout, q, cache),
        (RowsMut::Bf16(q), KvDtype::Fp8) => write::<bf16, E4m3>(team, isa, qkv, spans, ops, layout, q, cache),
        (RowsMut::Bf16(q), KvDtype::Int4) => {
            write::<bf16, Int4>(team, isa, qkv, spans, ops, layout, q, cache)
        }
        (RowsMut::F32(q), KvDtype::Bf16) => write::<f32, bf16>(team, isa, qkv, spans, ops, layout, q, cache),
        (RowsMut::F32(q), KvDtype::F32) => write::<f32, f32>(team, isa, qkv, spans, ops, layout, q, cache),
        (RowsMut::F32(q), KvDtype::F16) => write::<f32, F16>(team, isa, qkv, spans, ops, layout, q, cache),
        (RowsMut::F32(q), KvDtype::Fp8) => write::<f32, E4m3>(team, isa, qkv, spans, ops, layout, q, cache),
        (RowsMut::F32(q), KvDtype::Int4) => write::<f32, Int4>(team, isa, qkv, spans, ops, layout, q, cache),
    }
}

struct Task<'a, Q, C: Planes> {
    qkv: Mat<'a, f32>,
    ops: HeadOps<'a>,
    layout: KvLayout,
    heads: usize,
    q: SharedRows<'a, Q>,
    /// The cache as `[blocks][cells of a block]`.
    pages: SharedRows<'a, C::Cell>,
}

#[allow(clippy::too_many_arguments)]
fn write<Q: Element, C: Planes>(
    team: &Team,
    isa: Isa,
    qkv: Mat<'_, f32>,
    spans: &[Span<'_>],
    ops: HeadOps<'_>,
    layout: KvLayout,
    mut q: MatMut<'_, Q>,
    cache: &mut [u8],
) {
    let heads = check(qkv, spans, ops, layout, q.rows(), q.cols(), cache.len());
    let n_blocks = cache.len() / layout.block_bytes();
    let cells: &mut [C::Cell] = bytemuck::cast_slice_mut(cache);
    let mut pages = MatMut::new(cells, n_blocks, layout.block_bytes() / size_of::<C::Cell>());
    let task = Task::<Q, C> { qkv, ops, layout, heads, q: q.shared(), pages: pages.shared() };
    let pieces: usize = spans.iter().map(|s| pieces_of(s).len()).sum();
    team.run(|w| {
        let mine = w.share(pieces);
        let mut first = 0;
        for span in spans {
            let pages = pieces_of(span);
            let from = mine.start.clamp(first, first + pages.len()) - first;
            let to = mine.end.clamp(first, first + pages.len()) - first;
            first += pages.len();
            pages.skip(from).take(to - from).for_each(|page| task.page(isa, span, page));
        }
    });
}

/// The pages that a span writes to, by their place in the sequence.
fn pieces_of(span: &Span<'_>) -> Range<usize> {
    span.start / BLOCK_TOKENS..span.end().div_ceil(BLOCK_TOKENS)
}

fn check(
    qkv: Mat<'_, f32>,
    spans: &[Span<'_>],
    ops: HeadOps<'_>,
    layout: KvLayout,
    q_rows: usize,
    q_cols: usize,
    cache_bytes: usize,
) -> usize {
    layout.check();
    let d = layout.head_dim;
    let heads = q_cols / d;
    assert_eq!(qkv.cols(), (heads + 2 * layout.kv_heads) * d, "columns of the projection");
    assert_eq!((q_rows, q_cols), (qkv.rows(), heads * d), "shape of the queries");
    let end = spans.iter().map(Span::end).max().unwrap_or(0);
    spans.iter().for_each(|s| s.check(q_rows, cache_bytes / layout.block_bytes()));
    if let Some(rope) = ops.rope {
        assert!(
            rope.rotary_dim.is_multiple_of(2) && rope.rotary_dim <= d,
            "{} rotary of {d}",
            rope.rotary_dim
        );
        let known = rope.cos.len().min(rope.sin.len());
        let need = end.saturating_sub(rope.first) * rope.rotary_dim / 2;
        assert!(known >= need, "rotary tables end before position {end}");
    }
    if let Some(norm) = ops.norm {
        assert_eq!((norm.q.len(), norm.k.len()), (d, d), "weights of the head norms");
    }
    heads
}

impl<Q: Element, C: Planes> Task<'_, Q, C> {
    fn page(&self, isa: Isa, span: &Span<'_>, page: usize) {
        match isa {
            // SAFETY: the caller of `rope_and_write` names an instruction set that this machine has.
            #[cfg(target_arch = "x86_64")]
            Isa::Amx | Isa::Avx512Bf16 | Isa::Avx512 => unsafe { self.page_avx512(span, page) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { self.page_avx2(span, page) },
            _ => self.page_plain(span, page, transpose),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn page_avx512(&self, span: &Span<'_>, page: usize) {
        self.page_plain(span, page, |square| transpose_512(square));
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn page_avx2(&self, span: &Span<'_>, page: usize) {
        self.page_plain(span, page, transpose);
    }

    /// The rows of `span` that fall into its page number `page`.
    #[inline(always)]
    fn page_plain(&self, span: &Span<'_>, page: usize, transpose: impl Fn(&mut Square)) {
        let first = (page * BLOCK_TOKENS).max(span.start);
        let last = ((page + 1) * BLOCK_TOKENS).min(span.end());
        let (block, row_of) = (span.blocks[page], |position: usize| span.rows.start + position - span.start);
        for position in first..last {
            self.queries(row_of(position), position);
            self.keys(row_of(position), position, block);
        }
        let rows = row_of(first)..row_of(last);
        for head in 0..self.layout.kv_heads {
            let values = Values { qkv: self.qkv, rows: rows.clone(), column: self.value_column(head) };
            let plane = self.plane(block, 2 * head + 1);
            C::values(plane, self.layout.head_dim, first % BLOCK_TOKENS, &values, &transpose);
        }
    }

    #[inline(always)]
    fn queries(&self, row: usize, position: usize) {
        let d = self.layout.head_dim;
        let weight = self.ops.norm.map(|n| (n.q, n.eps));
        for head in 0..self.heads {
            let mut x = [0.0; 256];
            let x = &mut x[..d];
            copy(&self.qkv.row(row)[head * d..][..d], x);
            self.transform(x, weight, position);
            // SAFETY: a row belongs to one page of one span, so to one worker.
            narrow_into(x, unsafe { self.q.span(row, head * d..(head + 1) * d) });
        }
    }

    #[inline(always)]
    fn keys(&self, row: usize, position: usize, block: u32) {
        let d = self.layout.head_dim;
        let weight = self.ops.norm.map(|n| (n.k, n.eps));
        for head in 0..self.layout.kv_heads {
            let mut x = [0.0; 256];
            let x = &mut x[..d];
            copy(&self.qkv.row(row)[(self.heads + head) * d..][..d], x);
            self.transform(x, weight, position);
            C::key(self.plane(block, 2 * head), position % BLOCK_TOKENS, x);
        }
    }

    fn value_column(&self, head: usize) -> usize {
        (self.heads + self.layout.kv_heads + head) * self.layout.head_dim
    }

    /// Plane `plane` of a block: K and V of the first head, then of the next.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    fn plane(&self, block: u32, plane: usize) -> &mut [C::Cell] {
        let len = self.layout.plane_bytes() / size_of::<C::Cell>();
        // SAFETY: this worker alone writes this page of the span, no other span writes the block, and no two
        // planes are held at a time.
        unsafe { self.pages.span(block as usize, plane * len..(plane + 1) * len) }
    }

    #[inline(always)]
    fn transform(&self, head: &mut [f32], norm: Option<(&[f32], f32)>, position: usize) {
        if let Some((weight, eps)) = norm {
            rms_norm(head, weight, eps);
        }
        if let Some(rope) = &self.ops.rope {
            rope.turn(head, position);
        }
    }
}

/// Values of consecutive tokens in one head, as the projection gave them.
struct Values<'a> {
    qkv: Mat<'a, f32>,
    rows: Range<usize>,
    column: usize,
}

impl Values<'_> {
    #[inline(always)]
    fn of(&self, token: usize, dims: Range<usize>) -> &[f32] {
        &self.qkv.row(self.rows.start + token)[self.column + dims.start..self.column + dims.end]
    }
}

/// How the planes of a page are written.
trait Planes: Send + Sync {
    /// What a plane is an array of.
    type Cell: bytemuck::Pod + Send + Sync;

    /// One token's key: `[head_dim]`.
    fn key(plane: &mut [Self::Cell], token: usize, key: &[f32]);

    /// Values of consecutive tokens, the first of which is `token`.
    fn values(
        plane: &mut [Self::Cell],
        head_dim: usize,
        token: usize,
        values: &Values<'_>,
        transpose: &impl Fn(&mut Square),
    );
}

impl<E: Element> Planes for E {
    type Cell = E;

    #[inline(always)]
    fn key(plane: &mut [E], token: usize, key: &[f32]) {
        narrow_into(key, &mut plane[token * key.len()..][..key.len()]);
    }

    #[inline(always)]
    fn values(
        plane: &mut [E],
        d: usize,
        token: usize,
        values: &Values<'_>,
        transpose: &impl Fn(&mut Square),
    ) {
        let mut done = 0;
        while done < values.rows.len() {
            let token = token + done;
            if token.is_multiple_of(SIDE) && values.rows.len() - done >= SIDE {
                many_values(plane, d, token, done, values, transpose);
                done += SIDE;
            } else {
                one_value(plane, token, values.of(done, 0..d));
                done += 1;
            }
        }
    }
}

impl Planes for Int4 {
    type Cell = u16;

    #[inline(always)]
    fn key(plane: &mut [u16], token: usize, key: &[f32]) {
        int4::write_key(plane, token, key);
    }

    #[inline(always)]
    fn values(plane: &mut [u16], d: usize, token: usize, values: &Values<'_>, _: &impl Fn(&mut Square)) {
        for i in 0..values.rows.len() {
            int4::write_value(plane, token + i, values.of(i, 0..d));
        }
    }
}

/// One token's values, each to its dim's line.
#[inline(always)]
fn one_value<E: Element>(plane: &mut [E], token: usize, values: &[f32]) {
    let mut narrow = [E::from_f32(0.0); 256];
    narrow_into(values, &mut narrow[..values.len()]);
    let lines = plane.chunks_exact_mut(BLOCK_TOKENS);
    lines.zip(&narrow[..values.len()]).for_each(|(line, value)| line[token] = *value);
}

/// The values of 16 tokens, turned round in squares. `from`: which of `values` is the first.
#[inline(always)]
fn many_values<E: Element>(
    plane: &mut [E],
    d: usize,
    token: usize,
    from: usize,
    values: &Values<'_>,
    transpose: &impl Fn(&mut Square),
) {
    for dims in (0..d).step_by(SIDE) {
        let mut square: Square = [[0; SIDE]; SIDE];
        for (i, line) in square.iter_mut().enumerate() {
            *line = *bytemuck::from_bytes(bytemuck::cast_slice(values.of(from + i, dims..dims + SIDE)));
        }
        transpose(&mut square);
        for (i, line) in square.iter().enumerate() {
            let to = &mut plane[(dims + i) * BLOCK_TOKENS + token..][..SIDE];
            narrow_into(bytemuck::cast_slice::<u32, f32>(line), to);
        }
    }
}

/// A head's few lines, without the call that a slice of unknown length costs.
#[inline(always)]
fn copy(from: &[f32], to: &mut [f32]) {
    let (lines, rest) = from.as_chunks::<16>();
    let (to_lines, to_rest) = to.as_chunks_mut::<16>();
    for (to, from) in to_lines.iter_mut().zip(lines) {
        *to = *from;
    }
    if !rest.is_empty() {
        to_rest.copy_from_slice(rest);
    }
}

#[inline(always)]
fn narrow_into<E: Element>(from: &[f32], to: &mut [E]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = E::from_f32(*from);
    }
}

/// `head` divided by its root mean square, times `weight`. Sums run in 16 lanes, on every machine.
#[inline(always)]
fn rms_norm(head: &mut [f32], weight: &[f32], eps: f32) {
    let mut lanes = [0.0f32; 16];
    for part in head.chunks_exact(16) {
        for (lane, x) in lanes.iter_mut().zip(part) {
            *lane += x * x;
        }
    }
    let mean = lanes.iter().sum::<f32>() / head.len() as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    for (x, w) in head.iter_mut().zip(weight) {
        *x = *x * scale * w;
    }
}
