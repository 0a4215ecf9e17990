//! The buffers that one batch passes through.

use kernels::arena::Full;
use kernels::device::{Device, Dtype, Rows};
use spec::model::{ModelSpec, NormPlacement};

/// How large the batches are that a [`Work`] serves.
#[derive(Clone, Copy, Debug)]
pub struct WorkSize {
    /// Most tokens in a batch.
    pub tokens: usize,
    /// Most rows whose logits are computed at once.
    pub samples: usize,
    /// How inputs of linears are stored: bf16, or f32 for f32 weights.
    pub dtype: Dtype,
}

/// Activations of one batch. `T` tokens, `S` samples; the residual stream and logits are f32.
pub struct Work {
    /// `[T, hidden] f32`: the residual stream.
    pub x: Rows,
    /// `[T, hidden]`: input of the next linear.
    pub normed: Rows,
    /// `[T, (heads + 2 * kv_heads) * head_dim] f32`.
    pub qkv: Rows,
    /// `[T, heads * head_dim]`.
    pub q: Rows,
    /// `[T, heads * head_dim]`.
    pub attended: Rows,
    /// `[T, ffn]`.
    pub inner: Rows,
    /// `[T, hidden] f32`, for models that norm sums.
    pub sum: Rows,
    /// `[T, embed_dim] f32`, for models that project embeddings.
    pub embedded: Rows,
    /// `[T, embed_dim]`, for models that project embeddings.
    pub embedded_in: Rows,
    /// `[T, rotary_dim / 2] f32` cosines, where the rotation depends on a sequence's length.
    pub cos: Rows,
    /// `[T, rotary_dim / 2] f32` sines, likewise.
    pub sin: Rows,
    /// `[S, hidden] f32`.
    pub picked: Rows,
    /// `[S, hidden]`.
    pub picked_normed: Rows,
    /// `[S, embed_dim]`, for models that project embeddings.
    pub picked_out: Rows,
    /// `[S, vocab] f32`.
    pub logits: Rows,
}

impl Work {
    /// Takes the buffers from the device.
    ///
    /// # Errors
    /// [`Full`] when the device has too little memory left.
    pub fn take(device: &mut dyn Device, spec: &ModelSpec, size: WorkSize) -> Result<Work, Full> {
        let mut sizes = Sizes::of(spec, size).into_iter();
        let mut next = || -> Result<Rows, Full> {
            let (rows, cols, dtype) = sizes.next().unwrap_or((0, 1, Dtype::F32));
            Ok(Rows { buf: device.take(rows * cols * dtype.bytes())?, dtype, rows, cols })
        };
        Ok(Work {
            x: next()?,
            normed: next()?,
            qkv: next()?,
            q: next()?,
            attended: next()?,
            inner: next()?,
            sum: next()?,
            embedded: next()?,
            embedded_in: next()?,
            cos: next()?,
            sin: next()?,
            picked: next()?,
            picked_normed: next()?,
            picked_out: next()?,
            logits: next()?,
        })
    }

    /// Bytes that [`take`](Work::take) will take.
    pub fn bytes(spec: &ModelSpec, size: WorkSize) -> usize {
        let aligned = |(rows, cols, dtype): (usize, usize, Dtype)| {
            (rows * cols * dtype.bytes()).next_multiple_of(kernels::arena::ALIGN)
        };
        Sizes::of(spec, size).into_iter().map(aligned).sum()
    }
}

struct Sizes;

impl Sizes {
    /// Rows, columns and numbers of each buffer, in the order of the fields of [`Work`].
    fn of(spec: &ModelSpec, size: WorkSize) -> [(usize, usize, Dtype); 15] {
        let (t, s, d) = (size.tokens, size.samples, size.dtype);
        let when = |has: bool, rows: usize| if has { rows } else { 0 };
        let projects = spec.projects_embeddings();
        let rope = spec.rope().filter(|rope| rope.depends_on_length());
        let turns = rope.map_or(0, |rope| rope.rotary_dims(spec.head_dim) / 2);
        let sums = spec.placement == NormPlacement::Post;
        [
            (t, spec.hidden, Dtype::F32),
            (t, spec.hidden, d),
            (t, spec.q_rows() + 2 * spec.kv_rows(), Dtype::F32),
            (t, spec.q_rows(), d),
            (t, spec.q_rows(), d),
            (t, spec.ffn, d),
            (when(sums, t), spec.hidden, Dtype::F32),
            (when(projects, t), spec.embed_dim, Dtype::F32),
            (when(projects, t), spec.embed_dim, d),
            (when(turns > 0, t), turns, Dtype::F32),
            (when(turns > 0, t), turns, Dtype::F32),
            (s, spec.hidden, Dtype::F32),
            (s, spec.hidden, d),
            (when(projects, s), spec.embed_dim, d),
            (s, spec.vocab, Dtype::F32),
        ]
    }
}
