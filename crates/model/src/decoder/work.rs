//! The buffers that one batch passes through.

use kernels::arena::{Full, PAGE};
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

/// What becomes of what was projected for attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projected {
    /// It is used up by the op that makes it.
    UsedUp,
    /// It travels to another tier, while the device goes on with other batches.
    Travels,
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
    /// `[T, hidden] f32`, for models that norm sums, or what is added to them; or where attention's result waits for the MLP, which
    /// stands beside it.
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
            take(device, rows, cols, dtype)
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

    /// Takes the buffers of another batch on the same device. What is done with when an op ends is shared: the device
    /// runs one op at a time.
    ///
    /// # Errors
    /// [`Full`] when the device has too little memory left.
    pub fn beside(
        &self,
        device: &mut dyn Device,
        spec: &ModelSpec,
        projected: Projected,
    ) -> Result<Work, Full> {
        let mut own = |rows: &Rows| take(device, rows.rows, rows.cols, rows.dtype);
        Ok(Work {
            x: own(&self.x)?,
            qkv: if projected == Projected::Travels { own(&self.qkv)? } else { self.qkv },
            q: own(&self.q)?,
            attended: own(&self.attended)?,
            sum: if spec.placement.is_parallel() { own(&self.sum)? } else { self.sum },
            cos: own(&self.cos)?,
            sin: own(&self.sin)?,
            ..*self
        })
    }

    /// Bytes that [`take`](Work::take) will take.
    pub fn bytes(spec: &ModelSpec, size: WorkSize) -> usize {
        Sizes::of(spec, size).into_iter().map(aligned).sum()
    }

    /// Bytes that [`beside`](Work::beside) will take.
    pub fn bytes_beside(spec: &ModelSpec, size: WorkSize, projected: Projected) -> usize {
        let [x, _, qkv, q, attended, _, sum, _, _, cos, sin, ..] = Sizes::of(spec, size);
        let kept = if projected == Projected::Travels { paged(qkv) } else { 0 };
        let waits = if spec.placement.is_parallel() { paged(sum) } else { 0 };
        [x, q, attended, cos, sin].map(paged).iter().sum::<usize>() + kept + waits
    }

    /// Takes what attention alone needs of the buffers; the others are empty.
    ///
    /// # Errors
    /// [`Full`] when the device has too little memory left.
    pub fn for_attention(device: &mut dyn Device, spec: &ModelSpec, size: WorkSize) -> Result<Work, Full> {
        let [_, _, qkv, q, attended, _, _, _, _, cos, sin, ..] = Sizes::of(spec, size);
        let none = take(device, 0, 1, Dtype::F32)?;
        let mut own = |(rows, cols, dtype): (usize, usize, Dtype)| take(device, rows, cols, dtype);
        Ok(Work {
            x: none,
            normed: none,
            qkv: own(qkv)?,
            q: own(q)?,
            attended: own(attended)?,
            inner: none,
            sum: none,
            embedded: none,
            embedded_in: none,
            cos: own(cos)?,
            sin: own(sin)?,
            picked: none,
            picked_normed: none,
            picked_out: none,
            logits: none,
        })
    }

    /// Bytes that [`for_attention`](Work::for_attention) will take.
    pub fn attention_bytes(spec: &ModelSpec, size: WorkSize) -> usize {
        let [_, _, qkv, q, attended, _, _, _, _, cos, sin, ..] = Sizes::of(spec, size);
        [qkv, q, attended, cos, sin].map(paged).iter().sum()
    }
}

/// Buffers of a page or more begin on one.
fn paged(size: (usize, usize, Dtype)) -> usize {
    aligned(size).next_multiple_of(PAGE)
}

fn take(device: &mut dyn Device, rows: usize, cols: usize, dtype: Dtype) -> Result<Rows, Full> {
    Ok(Rows { buf: device.take(rows * cols * dtype.bytes())?, dtype, rows, cols })
}

fn aligned((rows, cols, dtype): (usize, usize, Dtype)) -> usize {
    (rows * cols * dtype.bytes()).next_multiple_of(kernels::arena::ALIGN)
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
        let sums = spec.placement != NormPlacement::Pre;
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
