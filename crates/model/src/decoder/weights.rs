//! Where a model's weights lie on a device.

use kernels::arena::Buf;
use kernels::device::{Matrix, NormWeights};
use kernels::linear::Activation;

use super::linear::Linear;
use super::norms::Norms;
use super::rope::Rotaries;

/// Everything outside the layers, and the layers.
pub struct Weights {
    /// `[vocab, embed_dim]`.
    pub embed: Matrix,
    /// `[positions + offset, hidden] f32`, where positions are learned.
    pub positions: Option<Buf>,
    /// `[hidden, embed_dim]`, where embeddings are projected.
    pub project_in: Option<Matrix>,
    /// `[embed_dim, hidden]`, where embeddings are projected.
    pub project_out: Option<Matrix>,
    /// Absent in OPT-350m.
    pub final_norm: Option<NormWeights>,
    /// `[vocab, embed_dim]`; absent where the embedding table serves as head.
    pub untied_head: Option<Matrix>,
    /// `[vocab] f32`.
    pub head_bias: Option<Buf>,
    /// How queries and keys are turned.
    pub(super) rotary: Rotaries,
    /// Of the MLPs.
    pub activation: Activation,
    /// In order.
    pub layers: Vec<LayerWeights>,
}

impl Weights {
    /// The matrix that makes logits.
    pub fn head(&self) -> &Matrix {
        self.untied_head.as_ref().unwrap_or(&self.embed)
    }
}

/// Shape of an MLP's first matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mlp {
    /// Gate and up rows in one matrix.
    Gated,
    /// Up rows alone.
    Plain,
}

/// One layer.
pub struct LayerWeights {
    /// Around attention.
    pub attn_norms: Norms,
    /// Queries, keys, values: `[(heads + 2 * kv_heads) * head_dim, hidden]` in all, cut where a file changes its format.
    pub qkv: Vec<Linear>,
    /// `[(heads + 2 * kv_heads) * head_dim] f32`.
    pub qkv_bias: Option<Buf>,
    /// Norms of each query and key head, `[head_dim] f32` each, and their eps.
    pub qk_norms: Option<(Buf, Buf, f32)>,
    /// Norms of all query heads of a token as one row, and of all key heads; or of each with scales of its own.
    pub qk_row_norms: Option<[NormWeights; 2]>,
    /// `[hidden, heads * head_dim]`.
    pub out: Linear,
    /// `[hidden] f32`.
    pub out_bias: Option<Buf>,
    /// Around the MLP.
    pub mlp_norms: Norms,
    /// Which of the two shapes `up` has.
    pub mlp: Mlp,
    /// `[2 * ffn, hidden]` gated, `[ffn, hidden]` plain.
    pub up: Linear,
    /// As many as `up` has rows.
    pub up_bias: Option<Buf>,
    /// `[hidden, ffn]`.
    pub down: Linear,
    /// `[hidden] f32`.
    pub down_bias: Option<Buf>,
}
