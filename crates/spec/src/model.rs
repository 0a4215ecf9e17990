//! The one description of a model that the decoder, the planner and the kernels know.

use crate::heads;
use crate::rope::Rope;
use serde::{Deserialize, Serialize};
use std::fmt;

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
    /// Whether it has learned parameters (a scale; with `Layer` a shift too).
    pub affine: bool,
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
}

impl NormPlacement {
    /// Whether the input of attention and MLP is normed.
    pub fn norms_input(self) -> bool {
        matches!(self, NormPlacement::Pre | NormPlacement::Around)
    }

    /// Whether what they add to the residual stream is.
    pub fn norms_added(self) -> bool {
        matches!(self, NormPlacement::Around | NormPlacement::Added)
    }
}

/// What of queries and keys an RMS norm is taken of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum QkNorm {
    /// They are not normed.
    None,
    /// Each head by itself, all with the same scales (Qwen3, Gemma 3).
    Heads,
    /// All heads of a token as one row (OLMo 2).
    Rows,
}

/// Non-linearities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `max(x, 0)`.
    Relu,
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
    /// Learned parameters of a norm of this width.
    pub fn parameters(&self, width: usize) -> u64 {
        match (self.affine, self.kind) {
            (false, _) => 0,
            (true, NormKind::Rms) => width as u64,
            (true, NormKind::Layer) => 2 * width as u64,
        }
    }

    /// Whether the norm has a learned shift.
    pub fn has_bias(&self) -> bool {
        self.affine && self.kind == NormKind::Layer
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
            QkNorm::Rows => Some([self.q_rows(), self.kv_rows()]),
        }
    }

    /// Norms and biases of a layer.
    pub fn layer_vector_parameters(&self) -> u64 {
        let when = |has: bool, count: usize| if has { count as u64 } else { 0 };
        let ups = if self.mlp == Mlp::Gated { 2 * self.ffn } else { self.ffn };
        let norms = if self.placement == NormPlacement::Around { 4 } else { 2 };
        norms * self.norm.parameters(self.hidden)
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
        tables * table + positions + projections + norm
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

    /// Checks that the sizes agree and are small enough that no product of two overflows.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn check(&self) -> Result<(), SpecError> {
        self.check_sizes()?;
        self.check_heads()?;
        self.check_numbers()?;
        self.check_windows()?;
        self.check_total()
    }

    fn check_sizes(&self) -> Result<(), SpecError> {
        const MOST: usize = 1 << 24;
        let sizes = [
            ("vocab", self.vocab),
            ("hidden", self.hidden),
            ("layers", self.layers),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("ffn", self.ffn),
            ("max_positions", self.max_positions),
            ("embed_dim", self.embed_dim),
        ];
        for (field, found) in sizes {
            expect(field, found, (1..=MOST).contains(&found), || format!("1 to {MOST}"))?;
        }
        const MOST_LAYERS: usize = u16::MAX as usize;
        expect("layers", self.layers, self.layers <= MOST_LAYERS, || format!("at most {MOST_LAYERS}"))?;
        let rows = self.heads.saturating_mul(self.head_dim);
        expect("heads", rows, rows <= MOST, || format!("heads * head_dim at most {MOST}"))
    }

    fn check_heads(&self) -> Result<(), SpecError> {
        heads::check(self.head_dim)?;
        let divides = self.heads.is_multiple_of(self.kv_heads);
        expect("kv_heads", self.kv_heads, divides, || format!("a divisor of heads, {}", self.heads))?;
        self.rope().map_or(Ok(()), |rope| self.check_rope(rope))?;
        match &self.rope_layers {
            RopeLayers::All => Ok(()),
            RopeLayers::Listed(turns) => {
                expect("rope layers", turns.len(), turns.len() == self.layers, || {
                    format!("an entry for each of {} layers", self.layers)
                })
            }
            RopeLayers::WindowsBy(rope) => {
                self.check_rope(rope)?;
                let by_length = [Some(rope), self.rope()].into_iter().flatten().any(Rope::depends_on_length);
                expect("rope", "dynamic or longrope", !by_length, || {
                    "another scaling, where layers with a window turn otherwise".into()
                })
            }
        }
    }

    fn check_rope(&self, rope: &Rope) -> Result<(), SpecError> {
        let dims = rope.rotary_dims(self.head_dim);
        let even = dims >= 2 && dims.is_multiple_of(2) && dims <= self.head_dim;
        expect("positions", dims, even, || "an even number of rotary dimensions within a head".into())?;
        rope.check(dims)
    }

    fn check_numbers(&self) -> Result<(), SpecError> {
        let eps = self.norm.eps;
        expect("norm", eps, eps.is_finite() && (0.0..=1.0).contains(&eps), || "eps in 0 to 1".into())?;
        let factors = [
            ("attention_scale", self.attention_scale),
            ("embed_scale", self.embed_scale),
            ("logit_scale", self.logit_scale),
        ];
        for (field, factor) in factors {
            let range = 1e-6..=1e6;
            expect(field, factor, range.contains(&factor), || "a positive factor, from 1e-6 to 1e6".into())?;
        }
        for (field, cap) in [("score_cap", self.score_cap), ("logit_cap", self.logit_cap)] {
            let cap = cap.unwrap_or(1.0);
            expect(field, cap, (1e-3..=1e6).contains(&cap), || "a cap from 0.001 to 1e6".into())?;
        }
        let taken_in =
            self.logit_scale == 1.0 || (self.final_norm && self.norm.affine && !self.norm.has_bias());
        expect("logit_scale", self.logit_scale, taken_in, || {
            "1, without a final norm of a scale alone".into()
        })
    }

    /// So that no count of bytes overflows.
    fn check_total(&self) -> Result<(), SpecError> {
        let layer = self.layer_linear_parameters() + self.layer_vector_parameters();
        let most = (1 << 56) / self.layers as u64;
        expect("layers", self.layers, layer <= most, || {
            format!("at most {} of {layer} weights", (1u64 << 56) / layer)
        })
    }

    fn check_windows(&self) -> Result<(), SpecError> {
        let tokens: Vec<_> = match &self.window {
            Window::Full => vec![],
            Window::Sliding(tokens) => vec![*tokens],
            Window::PerLayer(all) => {
                expect("window", all.len(), all.len() == self.layers, || {
                    format!("an entry for each of {} layers", self.layers)
                })?;
                all.iter().flatten().copied().collect()
            }
        };
        tokens.iter().try_for_each(|t| expect("window", t, *t > 0, || "at least 1 token".into()))
    }
}

/// `Err` unless `holds`.
pub(crate) fn expect(
    field: &'static str,
    found: impl fmt::Display,
    holds: bool,
    expected: impl FnOnce() -> String,
) -> Result<(), SpecError> {
    if holds { Ok(()) } else { Err(SpecError { field, found: found.to_string(), expected: expected() }) }
}

#[cfg(test)]
mod tests;
