//! Paged attention: prefill chunks and decode rows in one call.
//!
//! A query's result is the same bits whatever else is in the batch, however its prompt was cut into
//! chunks, and on any number of threads: sums run over fixed groups of absolute positions, over fixed
//! splits of groups, and splits are merged in order. Nothing depends on which queries share a pass.

mod element;
mod f16;
mod fp8;
mod int4;
mod layout;
mod minifloat;
mod plan;
mod scalar;
mod scratch;
mod sparse;
#[cfg(target_arch = "x86_64")]
mod tiled;
mod transpose;
#[cfg(target_arch = "x86_64")]
mod vector;
mod write;

pub use element::{Rows, RowsMut};
pub use layout::{BLOCK_TOKENS, GROUP_TOKENS, KV_GROUP, KvDtype, KvLayout, SPLIT_TOKENS, Span};
pub use scratch::{Demand, Scratch};
pub use sparse::Chosen;
pub use write::{HeadNorm, HeadOps, RopeBy, RopeTable, rope_and_write};

use crate::elementwise::tanh;
use crate::isa::Isa;
use crate::mat::{Mat, MatMut, SharedRows};
use crate::team::Team;
use element::{Results, Stored};
pub(crate) use f16::F16;
pub(crate) use fp8::E4m3;
use half::bf16;
use int4::Int4;
use std::ops::Range;

/// One layer's keys and values.
#[derive(Clone, Copy, Debug)]
pub struct Cache<'a> {
    /// All blocks of the layer: block `b` at `b * layout.block_bytes()`.
    pub bytes: &'a [u8],
    /// Their shape.
    pub layout: KvLayout,
}

/// How scores become weights.
#[derive(Clone, Copy, Debug)]
pub struct Softmax {
    /// Factor on the scores, `1 / sqrt(head_dim)` in most models.
    pub scale: f32,
    /// A query at position `p` sees `p - window + 1 ..= p`; none: all up to `p`.
    pub window: Option<usize>,
    /// Which share of the keys that a query sees counts, above 0 and up to 1: those with the highest scores, but no fewer
    /// than a page holds. None: all.
    pub share: Option<f32>,
    /// How far from zero scores come, times the factor: `cap * tanh(score / cap)`. None: as far as they are.
    pub cap: Option<f32>,
}

impl Softmax {
    /// Caps scores that are still to be multiplied with the factor. Minus infinity, which was not chosen, stays.
    #[inline(always)]
    fn cap_scores(&self, scores: &mut [f32]) {
        let Some(cap) = self.cap else { return };
        let (down, up) = (self.scale / cap, cap / self.scale);
        for score in scores {
            let capped = up * tanh(*score * down);
            *score = if *score == f32::NEG_INFINITY { *score } else { capped };
        }
    }
}

/// The queries of a call.
#[derive(Clone, Copy, Debug)]
pub struct Queries<'a> {
    /// `[n, heads * head_dim]`, of the same type as the cache; bf16 for one of f16, of 8 or of 4 bits.
    pub rows: Rows<'a>,
    /// The sequences that they belong to; no row is in two of them.
    pub spans: &'a [Span<'a>],
}

/// Attention of the rows of all spans, whose keys and values are written already, into
/// `out: [n, heads * head_dim]`. Rows of no span are left alone.
///
/// # Panics
/// If shapes or types do not fit each other, or a block lies outside the cache.
pub fn attend(
    team: &Team,
    isa: Isa,
    queries: Queries<'_>,
    cache: Cache<'_>,
    softmax: Softmax,
    out: RowsMut<'_>,
    scratch: &mut Scratch,
) {
    let spans = queries.spans;
    match (queries.rows, cache.layout.dtype) {
        (Rows::F32(q), _) => start::<f32>(team, isa, q, spans, cache, softmax, out, scratch),
        (Rows::Bf16(q), KvDtype::Int4) => start::<Int4>(team, isa, q, spans, cache, softmax, out, scratch),
        (Rows::Bf16(q), KvDtype::F16) => start::<F16>(team, isa, q, spans, cache, softmax, out, scratch),
        (Rows::Bf16(q), KvDtype::Fp8) => start::<E4m3>(team, isa, q, spans, cache, softmax, out, scratch),
        (Rows::Bf16(q), KvDtype::Bf16 | KvDtype::F32) => {
            start::<bf16>(team, isa, q, spans, cache, softmax, out, scratch)
        }
    }
}

/// Which values [`attend`] would read of decodes, a row each, whose keys are here: the first half of it.
///
/// # Panics
/// As [`attend`]; if no share is asked for, or a span has several rows.
pub fn choose(
    team: &Team,
    isa: Isa,
    queries: Queries<'_>,
    cache: Cache<'_>,
    softmax: Softmax,
    scratch: &mut Scratch,
) -> Chosen {
    assert!(softmax.share.is_some(), "all keys count: there is nothing to choose");
    let (spans, heads) = (queries.spans, cache.layout.kv_heads);
    assert!(spans.iter().all(|span| span.rows.len() == 1), "decodes have a row each");
    let pages = spans.iter().map(|span| span.end().div_ceil(BLOCK_TOKENS)).max().unwrap_or(0);
    let mut chosen = Chosen::none(spans.len(), heads, pages);
    let into = chosen.rows();
    match (queries.rows, cache.layout.dtype) {
        (Rows::F32(q), _) => marked::<f32>(team, isa, q, spans, cache, softmax, into, scratch),
        (Rows::Bf16(q), KvDtype::Int4) => marked::<Int4>(team, isa, q, spans, cache, softmax, into, scratch),
        (Rows::Bf16(q), KvDtype::F16) => marked::<F16>(team, isa, q, spans, cache, softmax, into, scratch),
        (Rows::Bf16(q), KvDtype::Fp8) => marked::<E4m3>(team, isa, q, spans, cache, softmax, into, scratch),
        (Rows::Bf16(q), _) => marked::<bf16>(team, isa, q, spans, cache, softmax, into, scratch),
    }
    chosen
}

/// All numbers of a head of a page, as they are read: its tokens' keys, then their values. `head`: K and V, as they lie.
pub(crate) fn head_numbers(layout: KvLayout, head: &[u8]) -> Vec<f32> {
    match layout.dtype {
        KvDtype::Bf16 => element::head_numbers::<bf16>(layout.head_dim, head),
        KvDtype::F32 => element::head_numbers::<f32>(layout.head_dim, head),
        KvDtype::F16 => element::head_numbers::<F16>(layout.head_dim, head),
        KvDtype::Fp8 => element::head_numbers::<E4m3>(layout.head_dim, head),
        KvDtype::Int4 => element::head_numbers::<Int4>(layout.head_dim, head),
    }
}

/// A call with its types known: all that a kernel reads, and where it writes.
struct Task<'a, E: Stored> {
    q: Mat<'a, E::Query>,
    spans: &'a [Span<'a>],
    pages: &'a [E::Cell],
    layout: KvLayout,
    heads: usize,
    softmax: Softmax,
    out: Results<'a>,
    /// Where what is chosen is told instead, and nothing is read of the values: `[spans * kv_heads][pages]`.
    chosen: Option<SharedRows<'a, u32>>,
}

/// Keys and values of one head in one block, as they are stored.
#[derive(Clone, Copy)]
struct Page<'a, C> {
    /// `[32 tokens][head_dim]`, unless packed.
    k: &'a [C],
    /// `[head_dim][32 tokens]`, unless packed.
    v: &'a [C],
}

impl<E: Stored> Task<'_, E> {
    /// Query heads that share one head of keys and values.
    fn group(&self) -> usize {
        self.heads / self.layout.kv_heads
    }

    fn page(&self, block: u32, kv_head: usize) -> Page<'_, E::Cell> {
        let plane = self.layout.plane_bytes() / size_of::<E::Cell>();
        let start = self.layout.k_start(block, kv_head) / size_of::<E::Cell>();
        let (k, v) = self.pages[start..][..2 * plane].split_at(plane);
        Page { k, v }
    }

    /// The positions that a query at `position` attends to.
    fn visible(&self, position: usize) -> Range<usize> {
        let first = self.softmax.window.map_or(0, |window| (position + 1).saturating_sub(window));
        first..position + 1
    }
}

#[allow(clippy::too_many_arguments)]
fn start<E: Stored>(
    team: &Team,
    isa: Isa,
    q: Mat<'_, E::Query>,
    spans: &[Span<'_>],
    cache: Cache<'_>,
    softmax: Softmax,
    mut out: RowsMut<'_>,
    scratch: &mut Scratch,
) {
    assert_eq!((q.rows(), q.cols()), out.shape(), "shape of the result");
    let task = task(q, spans, cache, softmax, out.shared());
    E::attend(team, isa, &task, scratch);
    if isa != Isa::Scalar {
        scalar::attend_again(team, &task);
    }
}

#[allow(clippy::too_many_arguments)]
fn marked<E: Stored>(
    team: &Team,
    isa: Isa,
    q: Mat<'_, E::Query>,
    spans: &[Span<'_>],
    cache: Cache<'_>,
    softmax: Softmax,
    mut chosen: MatMut<'_, u32>,
    scratch: &mut Scratch,
) {
    let mut none = RowsMut::F32(MatMut::new(&mut [], 0, 0));
    let task = Task { chosen: Some(chosen.shared()), ..task(q, spans, cache, softmax, none.shared()) };
    E::attend(team, isa, &task, scratch);
}

/// What a call reads, once it is found to fit.
fn task<'a, E: Stored>(
    q: Mat<'a, E::Query>,
    spans: &'a [Span<'a>],
    cache: Cache<'a>,
    softmax: Softmax,
    out: Results<'a>,
) -> Task<'a, E> {
    let layout = cache.layout;
    layout.check();
    assert_eq!(layout.dtype, E::DTYPE, "queries and cache are of one type");
    let heads = q.cols() / layout.head_dim;
    assert!(heads > 0 && heads.is_multiple_of(layout.kv_heads), "{heads} heads for {}", layout.kv_heads);
    assert!(softmax.window != Some(0), "a window of no tokens");
    assert!(softmax.cap.is_none_or(|cap| cap > 0.0 && softmax.scale > 0.0), "a cap of {:?}", softmax.cap);
    assert!(softmax.share.is_none_or(|share| share > 0.0 && share <= 1.0), "a share of {:?}", softmax.share);
    let n_blocks = cache.bytes.len() / layout.block_bytes();
    spans.iter().for_each(|span| span.check(q.rows(), n_blocks));
    let pages = bytemuck::cast_slice(cache.bytes);
    Task { q, spans, pages, layout, heads, softmax, out, chosen: None }
}
