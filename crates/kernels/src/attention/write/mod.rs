//! From the fused projection to attention's operands: norms of q and k, rotary embedding, pages.
//!
//! All arithmetic is f32 with one rounding at the store, in an order that no instruction set changes.

mod head;
mod planes;

pub use head::{HeadNorm, HeadOps, RopeBy, RopeTable};

use super::element::{Element, RowsMut};
use super::f16::F16;
use super::fp8::E4m3;
use super::int4::Int4;
use super::layout::{BLOCK_TOKENS, KvDtype, KvLayout, Span};
use crate::elementwise::per_isa;
use crate::isa::Isa;
use crate::mat::{Mat, MatMut, SharedRows};
use crate::team::{Stretches, Team};
use half::bf16;
use head::{Head, Turn};
use planes::{Plane, Planes, Values};
use std::ops::Range;

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
    let from = Projected { qkv, ops, layout };
    match q_out {
        RowsMut::Bf16(q) => from.write_as(team, isa, spans, q, cache),
        RowsMut::F32(q) => from.write_as(team, isa, spans, q, cache),
    }
}

/// What the projection gave, and what becomes of it.
#[derive(Clone, Copy)]
struct Projected<'a> {
    /// `[n, (heads + 2 * kv_heads) * head_dim]`.
    qkv: Mat<'a, f32>,
    ops: HeadOps<'a>,
    layout: KvLayout,
}

impl Projected<'_> {
    fn write_as<Q: Element>(
        self,
        team: &Team,
        isa: Isa,
        spans: &[Span<'_>],
        q: MatMut<'_, Q>,
        cache: &mut [u8],
    ) {
        match self.layout.dtype {
            KvDtype::Bf16 => self.write::<Q, bf16>(team, isa, spans, q, cache),
            KvDtype::F32 => self.write::<Q, f32>(team, isa, spans, q, cache),
            KvDtype::F16 => self.write::<Q, F16>(team, isa, spans, q, cache),
            KvDtype::Fp8 => self.write::<Q, E4m3>(team, isa, spans, q, cache),
            KvDtype::Int4 => self.write::<Q, Int4>(team, isa, spans, q, cache),
        }
    }

    fn write<Q: Element, C: Planes>(
        self,
        team: &Team,
        isa: Isa,
        spans: &[Span<'_>],
        mut q: MatMut<'_, Q>,
        cache: &mut [u8],
    ) {
        let heads = self.heads(spans, (q.rows(), q.cols()), cache.len());
        let n_blocks = cache.len() / self.layout.block_bytes();
        let cells: &mut [C::Cell] = bytemuck::cast_slice_mut(cache);
        let mut pages = MatMut::new(cells, n_blocks, self.layout.block_bytes() / size_of::<C::Cell>());
        let task = Task::<Q, C> { from: self, isa, heads, q: q.shared(), pages: pages.shared() };
        let stretches = Stretches::several(pieces(spans).count(), 1, team.threads());
        team.run(|w| {
            let (mut at, mut rest) = (0, pieces(spans).peekable());
            for taken in stretches.of(w.index) {
                if taken.start < at {
                    (at, rest) = (0, pieces(spans).peekable());
                }
                for i in std::mem::replace(&mut at, taken.end)..taken.end {
                    if let Some(piece) = rest.next()
                        && i >= taken.start
                    {
                        task.piece(&piece, rest.peek().unwrap_or(&piece));
                    }
                }
            }
        });
    }

    /// Query heads.
    ///
    /// # Panics
    /// If spans, the queries' rows and columns, or the cache do not fit.
    fn heads(&self, spans: &[Span<'_>], (q_rows, q_cols): (usize, usize), cache_bytes: usize) -> usize {
        let Projected { qkv, ops, layout } = *self;
        layout.check();
        let d = layout.head_dim;
        let heads = q_cols / d;
        assert_eq!(qkv.cols(), (heads + 2 * layout.kv_heads) * d, "columns of the projection");
        assert_eq!((q_rows, q_cols), (qkv.rows(), heads * d), "shape of the queries");
        assert!(heads.is_multiple_of(layout.kv_heads), "{heads} heads for {}", layout.kv_heads);
        spans.iter().for_each(|s| s.check(q_rows, cache_bytes / layout.block_bytes()));
        if let Some(rope) = ops.rope {
            assert!(
                rope.rotary_dim.is_multiple_of(2) && rope.rotary_dim <= d,
                "{} rotary of {d}",
                rope.rotary_dim
            );
            let grows = rope.growth.is_some();
            assert!(!grows || rope.by == RopeBy::Position, "queries grow by position, not by row");
            let known = rope.cos.len().min(rope.sin.len());
            let ends = spans.iter().map(|span| rope.by.index(span.end(), span.rows.end));
            let end = ends.max().unwrap_or(0);
            assert!(known >= end * rope.rotary_dim / 2, "rotary tables end before {:?} {end}", rope.by);
        }
        if let Some(norm) = ops.norm {
            assert_eq!((norm.q.len(), norm.k.len()), (d, d), "weights of the head norms");
        }
        heads
    }
}

/// The positions of a span that fall into one of its pages.
struct Piece<'a> {
    span: &'a Span<'a>,
    positions: Range<usize>,
}

impl Piece<'_> {
    fn block(&self) -> u32 {
        self.span.block_of(self.positions.start)
    }

    /// The page's token that is the first of the piece.
    fn token(&self) -> usize {
        self.positions.start % BLOCK_TOKENS
    }

    fn row_of(&self, position: usize) -> usize {
        self.span.rows.start + position - self.span.start
    }
}

fn pieces<'a>(spans: &'a [Span<'a>]) -> impl Iterator<Item = Piece<'a>> {
    spans.iter().flat_map(|span| {
        (span.start / BLOCK_TOKENS..span.end().div_ceil(BLOCK_TOKENS)).map(move |page| {
            let first = (page * BLOCK_TOKENS).max(span.start);
            Piece { span, positions: first..((page + 1) * BLOCK_TOKENS).min(span.end()) }
        })
    })
}

struct Task<'a, Q, C: Planes> {
    from: Projected<'a>,
    isa: Isa,
    heads: usize,
    q: SharedRows<'a, Q>,
    /// The cache as `[blocks][cells of a block]`.
    pages: SharedRows<'a, C::Cell>,
}

impl<Q: Element, C: Planes> Task<'_, Q, C> {
    /// A token by itself goes head by head, each with the query heads that share it: while these are done, what was asked for of
    /// the `next` piece comes. Values of several are turned round together.
    fn piece(&self, piece: &Piece<'_>, next: &Piece<'_>) {
        let group = self.heads / self.from.layout.kv_heads;
        let alone = piece.positions.len() == 1;
        for (i, position) in piece.positions.clone().enumerate() {
            let row = piece.row_of(position);
            let turn = Turn::at(self.from.ops.rope, position, row);
            let tokens = (piece.token() + i, next.token() + i);
            for head in 0..self.from.layout.kv_heads {
                if alone {
                    self.values(piece, next, head);
                }
                self.key(row, head, turn.plain(), tokens, self.plane(piece, next, 2 * head));
                self.queries(row, head * group..(head + 1) * group, turn);
            }
        }
        if !alone {
            (0..self.from.layout.kv_heads).for_each(|head| self.values(piece, next, head));
        }
    }

    fn values(&self, piece: &Piece<'_>, next: &Piece<'_>, head: usize) {
        let rows = piece.row_of(piece.positions.start)..piece.row_of(piece.positions.end);
        let d = self.from.layout.head_dim;
        let column = (self.heads + self.from.layout.kv_heads + head) * d;
        let values = &Values { qkv: self.from.qkv, rows, column, isa: self.isa };
        let (plane, token) = (self.plane(piece, next, 2 * head + 1), piece.token());
        per_isa!(self.isa, write_values::<C: Planes>(plane: Plane<'_, C::Cell>, d: usize, token: usize, values: &Values<'_>));
    }

    fn queries(&self, row: usize, heads: Range<usize>, turn: Turn<'_>) {
        let d = self.from.layout.head_dim;
        let columns = heads.start * d..heads.end * d;
        let x = &self.from.qkv.row(row)[columns.clone()];
        let norm = self.from.ops.norm.map(|n| (n.q, n.eps));
        // SAFETY: a row belongs to one piece, so to one worker.
        let to = unsafe { self.q.span(row, columns) };
        let from = (x, norm, turn);
        per_isa!(self.isa, write_queries::<Q: Element>(from: Heads<'_>, d: usize, to: &mut [Q]));
    }

    fn key(
        &self,
        row: usize,
        head: usize,
        turn: Turn<'_>,
        tokens: (usize, usize),
        plane: Plane<'_, C::Cell>,
    ) {
        let d = self.from.layout.head_dim;
        let x = &self.from.qkv.row(row)[(self.heads + head) * d..][..d];
        let from = (x, self.from.ops.norm.map(|n| (n.k, n.eps)), turn);
        per_isa!(self.isa, write_key::<C: Planes>(plane: Plane<'_, C::Cell>, tokens: (usize, usize), from: Heads<'_>));
    }

    /// Plane `plane` of a piece's block: K and V of the first head, then of the next.
    #[inline(always)]
    fn plane(&self, piece: &Piece<'_>, next: &Piece<'_>, plane: usize) -> Plane<'_, C::Cell> {
        let len = self.from.layout.plane_bytes() / size_of::<C::Cell>();
        let cells = plane * len..(plane + 1) * len;
        // SAFETY: this worker alone writes this page of the span, no other span writes the block, and no two
        // planes are held at a time.
        let cells = unsafe { self.pages.span(piece.block() as usize, cells) };
        let apart = next.block() as isize - piece.block() as isize;
        let next = cells.as_ptr().wrapping_offset(apart * (len * 2 * self.from.layout.kv_heads) as isize);
        Plane { cells, next }
    }
}

/// Heads in a row as the projection gave them, weight and eps of their norm, and how they turn.
type Heads<'a> = (&'a [f32], Option<(&'a [f32], f32)>, Turn<'a>);

#[inline(always)]
fn write_queries<Q: Element>((x, norm, turn): Heads<'_>, head_dim: usize, to: &mut [Q]) {
    for (x, to) in x.chunks_exact(head_dim).zip(to.chunks_exact_mut(head_dim)) {
        Head::new(x, norm, turn).store(to);
    }
}

#[inline(always)]
fn write_key<C: Planes>(
    plane: Plane<'_, C::Cell>,
    (token, next): (usize, usize),
    (x, norm, turn): Heads<'_>,
) {
    C::key(plane, token, next, &Head::new(x, norm, turn));
}

#[inline(always)]
fn write_values<C: Planes>(plane: Plane<'_, C::Cell>, head_dim: usize, token: usize, values: &Values<'_>) {
    C::values(plane, head_dim, token, values);
}
