//! The one description of a model that the decoder, the planner and the kernels know.

mod check;

use crate::rope::Rope;
use serde::{Deserialize, Serialize};
use std::fmt;

pub(crate) use check::expect;

/// A dense decoder, by its switches. Sizes count elements, not bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// Name of the published architecture, for people (`LlamaForCausalLM`).
    pub architecture: String,
    /// Rows of the embedding table.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width inside the MLP.
    pub ffn: usize,
    /// Longest sequence that the checkpoint claims, in tokens.
    pub max_positions: usize,
    /// Every norm of the model but the query and key norms, which are RMS norms with `norm.eps`.
    pub norm: Norm,
    /// Where a layer's norms stand.
    pub placement: NormPlacement,
    /// Whether a norm follows the last layer.
    pub final_norm: bool,
    /// The MLP's non-linearity.
    pub activation: Activation,
    /// Shape of the MLP.
    pub mlp: Mlp,
    /// How positions enter.
    pub positions: Positions,
    /// Which layers turn queries and keys, where positions enter so.
    pub rope_layers: RopeLayers,
    /// Which linears have biases.
    pub biases: Biases,
    /// How queries and keys are normed before the rotation.
    pub qk_norm: QkNorm,
    /// Factor of attention's scores; `1 / sqrt(head_dim)` in most models.
    pub attention_scale: f32,
    /// How far from zero scores come: `cap * tanh(score / cap)` (Gemma 2).
    pub score_cap: Option<f32>,
    /// How far back a query looks.
    pub window: Window,
    /// Whether the head is the embedding table.
    pub tied_head: bool,
    /// Width of the embedding table: `hidden`, but for OPT-350m, which projects in and out.
    pub embed_dim: usize,
    /// Factor of the embedding's rows (1; Gemma, Granite).
    pub embed_scale: f32,
    /// Factor of the logits (1; Granite). With another there is a final norm, whose scale takes it in.
    pub logit_scale: f32,
    /// How far from zero logits come, in the same way (Gemma 2).
    pub logit_cap: Option<f32>,
    /// Token that begins a text.
    pub bos: Option<u32>,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
    /// Numbers that the checkpoint was published in.
    pub dtype: DType,
}

/// Floating-point numbers of checkpoints and caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of single precision.
    Bf16,
}

/// A norm over the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Norm {
    /// The formula.
    pub kind: NormKind,
    /// Added to the mean square, or to the variance.
    pub eps: f32,
    /// Whether it has a learned scale.
    pub affine: bool,
    /// Whether it has a learned shift, beside its scale.
    pub shift: bool,
    /// Whether files hold scales as what is added to 1 (Gemma), those of queries and keys too.
    pub from_one: bool,
}

/// Formulas of norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps) * scale`.
    Rms,
    /// `(x - mean) / sqrt(variance + eps) * scale + shift`.
    Layer,
}

/// Where the norms of a layer stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NormPlacement {
    /// On the input of attention and MLP: `x + f(norm(x))`.
    Pre,
    /// On the sum (OPT-350m): `norm(x + f(x))`.
    Post,
    /// On the input and on what is added (Gemma 2 and 3): `x + norm(f(norm(x)))`.
    Around,
    /// On what is added (OLMo 2): `x + norm(f(x))`.
    Added,
    /// On the input of attention and MLP, which stand beside each other (GPT-NeoX): `x + f(norm(x)) + g(norm'(x))`.
    Parallel,
    /// The same with one norm for both (Cohere, Phi): `x + f(norm(x)) + g(norm(x))`.
    Shared,
}

impl NormPlacement {
    /// Whether the input of attention and MLP is normed.
    pub fn norms_input(self) -> bool {
        !matches!(self, NormPlacement::Post | NormPlacement::Added)
    }

    /// Whether attention and MLP read the same residual stream.
    pub fn is_parallel(self) -> bool {
        matches!(self, NormPlacement::Parallel | NormPlacement::Shared)
    }

    /// Norms of a layer over the residual stream.
    fn count(self) -> u64 {
        match self {
            NormPlacement::Shared => 1,
            NormPlacement::Pre | NormPlacement::Post | NormPlacement::Added | NormPlacement::Parallel => 2,
            NormPlacement::Around => 4,
        }
    }

    /// Whether what they add to the residual stream is.
    pub fn norms_added(self) -> bool {
        matches!(self, NormPlacement::Around | NormPlacement::Added)
    }
}

/// What of queries and keys a norm is taken of: an RMS norm unless another is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum QkNorm {
    /// They are not normed.
    None,
    /// Each head by itself, all with the same scales (Qwen3, Gemma 3).
    Heads,
    /// All heads of a token as one row (OLMo 2).
    Rows,
    /// Each head by itself, with scales of its own: a layer norm (Command R+).
    OwnHeads,
}

/// Non-linearities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2`.
    Relu2,
    /// `x * Phi(x)` by the error function.
    Gelu,
    /// `x * Phi(x)` by its approximation with tanh.
    GeluTanh,
}

/// Shapes of an MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mlp {
    /// `down(act(gate(x)) * up(x))`.
    Gated,
    /// `down(act(up(x)))`.
    Plain,
}

/// How positions enter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Positions {
    /// Queries and keys are turned.
    Rope(Rope),
    /// A learned row is added to the embedding.
    Learned {
        /// Row of position 0 (2 in OPT); the table has `max_positions + offset` rows.
        offset: usize,
    },
}

/// Which layers turn queries and keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RopeLayers {
    /// All of them, by the model's rotary embedding.
    All,
    /// Those that the list says; the others know no positions (SmolLM3).
    Listed(Vec<bool>),
    /// All of them; those with a window by this one (Gemma 3).
    WindowsBy(Rope),
}

/// Which linears have biases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Biases {
    /// Query, key and value projections.
    pub qkv: bool,
    /// The projection after attention.
    pub o: bool,
    /// All linears of the MLP.
    pub mlp: bool,
    /// The head (Phi).
    pub head: bool,
}

/// How many positions a query sees, itself among them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Window {
    /// All of them, in every layer.
    Full,
    /// The last so many, in every layer.
    Sliding(usize),
    /// A choice for each layer; `None` sees all.
    PerLayer(Vec<Option<usize>>),
}

/// A description that no model can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model's `{field}` is {found}: expected {expected}")]
pub struct SpecError {
    /// Name of the offending field of [`ModelSpec`].
    pub field: &'static str,
    /// What was found.
    pub found: String,
    /// What would have been right.
    pub expected: String,
}

impl SpecError {
    /// The same in the words of a file: pairs of a field and its name there, of those that have one of their own.
    #[must_use]
    pub fn in_words_of(self, names: &[(&str, &'static str)]) -> SpecError {
        let named = names.iter().find(|(field, _)| *field == self.field);
        SpecError { field: named.map_or(self.field, |(_, name)| name), ..self }
    }
}

impl DType {
    /// Size of a number.
    pub fn bytes(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::Bf16 => 2,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
        })
    }
}

impl Norm {
    /// An RMS norm with a scale.
    pub fn rms(eps: f32) -> Norm {
        Norm { kind: NormKind::Rms, eps, affine: true, shift: false, from_one: false }
    }

    /// A layer norm with a scale and a shift.
    pub fn layer(eps: f32) -> Norm {
        Norm { kind: NormKind::Layer, shift: true, ..Norm::rms(eps) }
    }

    /// Learned parameters of a norm of this width.
    pub fn parameters(&self, width: usize) -> u64 {
        (u64::from(self.affine) + u64::from(self.has_bias())) * width as u64
    }

    /// Whether the norm has a learned shift.
    pub fn has_bias(&self) -> bool {
        self.affine && self.shift
    }
}

impl ModelSpec {
    /// Rows of the query projection.
    pub fn q_rows(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Rows of the key projection, and of the value projection.
    pub fn kv_rows(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Query heads that share a key head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Whether embeddings are projected to and from the residual stream.
    pub fn projects_embeddings(&self) -> bool {
        self.embed_dim != self.hidden
    }

    /// The rotary embedding, if positions enter by one.
    pub fn rope(&self) -> Option<&Rope> {
        match &self.positions {
            Positions::Rope(rope) => Some(rope),
            Positions::Learned { .. } => None,
        }
    }

    /// The rotary embedding of this layer, if it turns queries and keys.
    pub fn rope_of(&self, layer: usize) -> Option<&Rope> {
        match &self.rope_layers {
            RopeLayers::Listed(turns) if !turns[layer] => None,
            RopeLayers::WindowsBy(rope) if self.window_of(layer).is_some() => Some(rope),
            _ => self.rope(),
        }
    }

    /// How many positions a query of this layer sees, itself among them; `None` is all.
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        match &self.window {
            Window::Full => None,
            Window::Sliding(tokens) => Some(*tokens),
            Window::PerLayer(tokens) => tokens[layer],
        }
    }

    /// Weights of a layer's linears (no norms, no biases).
    pub fn layer_linear_parameters(&self) -> u64 {
        let product = |rows: usize, columns: usize| rows as u64 * columns as u64;
        let attention = 2 * product(self.q_rows(), self.hidden) + 2 * product(self.kv_rows(), self.hidden);
        let matrices = match self.mlp {
            Mlp::Gated => 3,
            Mlp::Plain => 2,
        };
        attention + matrices * product(self.ffn, self.hidden)
    }

    /// Scales of the norms of queries and of keys, if there are any.
    pub fn qk_norm_width(&self) -> Option<[usize; 2]> {
        match self.qk_norm {
            QkNorm::None => None,
            QkNorm::Heads => Some([self.head_dim; 2]),
            QkNorm::Rows | QkNorm::OwnHeads => Some([self.q_rows(), self.kv_rows()]),
        }
    }

    /// How many parts of all queries and of all keys of a token are normed by themselves, each with scales of its own.
    pub fn qk_norm_parts(&self) -> [usize; 2] {
        if self.qk_norm == QkNorm::OwnHeads { [self.heads, self.kv_heads] } else { [1, 1] }
    }

    /// Norms and biases of a layer.
    pub fn layer_vector_parameters(&self) -> u64 {
        let when = |has: bool, count: usize| if has { count as u64 } else { 0 };
        let ups = if self.mlp == Mlp::Gated { 2 * self.ffn } else { self.ffn };
        self.placement.count() * self.norm.parameters(self.hidden)
            + self.qk_norm_width().map_or(0, |[q, k]| (q + k) as u64)
            + when(self.biases.qkv, self.q_rows() + 2 * self.kv_rows())
            + when(self.biases.o, self.hidden)
            + when(self.biases.mlp, ups + self.hidden)
    }

    /// Parameters outside the layers; a tied head counts once.
    pub fn outer_parameters(&self) -> u64 {
        let table = self.vocab as u64 * self.embed_dim as u64;
        let tables = if self.tied_head { 1 } else { 2 };
        let positions = match self.positions {
            Positions::Rope(_) => 0,
            Positions::Learned { offset } => (self.max_positions + offset) as u64 * self.hidden as u64,
        };
        let projections =
            if self.projects_embeddings() { 2 * self.embed_dim as u64 * self.hidden as u64 } else { 0 };
        let norm = if self.final_norm { self.norm.parameters(self.hidden) } else { 0 };
        let bias = if self.biases.head { self.vocab as u64 } else { 0 };
        tables * table + positions + projections + norm + bias
    }

    /// All learned parameters.
    pub fn parameters(&self) -> u64 {
        let layer = self.layer_linear_parameters() + self.layer_vector_parameters();
        self.outer_parameters() + self.layers as u64 * layer
    }

    /// Bytes of the keys and values of one token, in one layer.
    pub fn kv_bytes_per_token_of_layer(&self, dtype: DType) -> u64 {
        2 * self.kv_rows() as u64 * dtype.bytes() as u64
    }
}

#[cfg(test)]
mod tests;
