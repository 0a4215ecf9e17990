//! The tensors of a decoder: their names for us, their shapes.

mod naming;

use spec::ModelSpec;
use spec::model::{Mlp, NormPlacement, Positions};
use std::fmt;

pub use naming::Naming;
pub(crate) use naming::of_text;

/// A tensor outside the layers, or of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tensor {
    /// Embedding table: `[vocab, embed_dim]`.
    Embed,
    /// Learned positions: `[max_positions + offset, hidden]`.
    Positions,
    /// From embedding to residual stream: `[hidden, embed_dim]`.
    ProjectIn,
    /// From residual stream to the head: `[embed_dim, hidden]`.
    ProjectOut,
    /// Scale of the last norm: `[hidden]`.
    FinalNorm,
    /// Shift of the last norm: `[hidden]`.
    FinalNormBias,
    /// Output head, if not the embedding table: `[vocab, embed_dim]`.
    Head,
    /// Bias of the logits: `[vocab]`.
    HeadBias,
    /// A tensor of the layer with this number.
    Layer(usize, LayerTensor),
}

/// A tensor of a layer. Matrices are `[output rows, input columns]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LayerTensor {
    /// Scale of the norm around attention: `[hidden]`.
    AttnNorm,
    /// Its shift.
    AttnNormBias,
    /// Query projection: `[heads * head_dim, hidden]`.
    Q,
    /// Key projection: `[kv_heads * head_dim, hidden]`.
    K,
    /// Value projection: `[kv_heads * head_dim, hidden]`.
    V,
    /// Projection after attention: `[hidden, heads * head_dim]`.
    O,
    /// Bias of the queries.
    QBias,
    /// Bias of the keys.
    KBias,
    /// Bias of the values.
    VBias,
    /// Bias after attention.
    OBias,
    /// Scale of the query norm: `[head_dim]`.
    QNorm,
    /// Scale of the key norm: `[head_dim]`.
    KNorm,
    /// Scale of the norm of what attention adds: `[hidden]`.
    AttnOutNorm,
    /// Scale of the norm around the MLP: `[hidden]`.
    MlpNorm,
    /// Its shift.
    MlpNormBias,
    /// Gate of a gated MLP: `[ffn, hidden]`.
    Gate,
    /// Into the MLP: `[ffn, hidden]`.
    Up,
    /// Out of the MLP: `[hidden, ffn]`.
    Down,
    /// Bias of the gate.
    GateBias,
    /// Bias into the MLP.
    UpBias,
    /// Bias out of the MLP.
    DownBias,
    /// Scale of the norm of what the MLP adds: `[hidden]`.
    MlpOutNorm,
}

/// Size of a tensor; a vector is one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `[n]`.
    Vector(usize),
    /// `[rows, columns]`.
    Matrix(usize, usize),
}

impl Shape {
    /// 1 for a vector.
    pub fn rows(self) -> usize {
        match self {
            Shape::Vector(_) => 1,
            Shape::Matrix(rows, _) => rows,
        }
    }

    /// The length of a row.
    pub fn columns(self) -> usize {
        match self {
            Shape::Vector(n) | Shape::Matrix(_, n) => n,
        }
    }

    /// Whether a file's list of dimensions, outermost first, says the same.
    pub fn is(self, dims: &[u64]) -> bool {
        match self {
            Shape::Vector(n) => *dims == [n as u64],
            Shape::Matrix(rows, columns) => *dims == [rows as u64, columns as u64],
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Vector(n) => write!(f, "[{n}]"),
            Shape::Matrix(rows, columns) => write!(f, "[{rows}, {columns}]"),
        }
    }
}

impl LayerTensor {
    /// Every tensor that a layer can have, in the order of the forward pass.
    pub const ALL: [LayerTensor; 22] = {
        use LayerTensor::*;
        [
            AttnNorm,
            AttnNormBias,
            Q,
            QBias,
            K,
            KBias,
            V,
            VBias,
            QNorm,
            KNorm,
            O,
            OBias,
            AttnOutNorm,
            MlpNorm,
            MlpNormBias,
            Gate,
            GateBias,
            Up,
            UpBias,
            Down,
            DownBias,
            MlpOutNorm,
        ]
    };

    /// Its size in a model that has it.
    pub fn shape(self, spec: &ModelSpec) -> Option<Shape> {
        use LayerTensor::*;
        let when = |has: bool, shape: Shape| has.then_some(shape);
        let gated = spec.mlp == Mlp::Gated;
        // A norm of sums has the names of one of inputs.
        let before = spec.placement != NormPlacement::Added;
        let of_mlp = before && spec.placement != NormPlacement::Shared;
        let (q, kv, hidden, ffn) = (spec.q_rows(), spec.kv_rows(), spec.hidden, spec.ffn);
        match self {
            AttnNorm => when(before && spec.norm.affine, Shape::Vector(hidden)),
            AttnNormBias => when(before && spec.norm.has_bias(), Shape::Vector(hidden)),
            MlpNorm => when(of_mlp && spec.norm.affine, Shape::Vector(hidden)),
            MlpNormBias => when(of_mlp && spec.norm.has_bias(), Shape::Vector(hidden)),
            AttnOutNorm | MlpOutNorm => {
                when(spec.placement.norms_added() && spec.norm.affine, Shape::Vector(hidden))
            }
            Q => Some(Shape::Matrix(q, hidden)),
            K | V => Some(Shape::Matrix(kv, hidden)),
            O => Some(Shape::Matrix(hidden, q)),
            QBias => when(spec.biases.qkv, Shape::Vector(q)),
            KBias | VBias => when(spec.biases.qkv, Shape::Vector(kv)),
            OBias => when(spec.biases.o, Shape::Vector(hidden)),
            QNorm => spec.qk_norm_width().map(|[q, _]| Shape::Vector(q)),
            KNorm => spec.qk_norm_width().map(|[_, k]| Shape::Vector(k)),
            Gate => when(gated, Shape::Matrix(ffn, hidden)),
            Up => Some(Shape::Matrix(ffn, hidden)),
            Down => Some(Shape::Matrix(hidden, ffn)),
            GateBias => when(gated && spec.biases.mlp, Shape::Vector(ffn)),
            UpBias => when(spec.biases.mlp, Shape::Vector(ffn)),
            DownBias => when(spec.biases.mlp, Shape::Vector(hidden)),
        }
    }
}

impl Tensor {
    /// The tensors outside the layers.
    pub const OUTER: [Tensor; 8] = [
        Tensor::Embed,
        Tensor::Positions,
        Tensor::ProjectIn,
        Tensor::ProjectOut,
        Tensor::FinalNorm,
        Tensor::FinalNormBias,
        Tensor::Head,
        Tensor::HeadBias,
    ];

    /// Every tensor of a model, with its size.
    pub fn all(spec: &ModelSpec) -> Vec<(Tensor, Shape)> {
        let layers =
            (0..spec.layers).flat_map(|layer| LayerTensor::ALL.map(|tensor| Tensor::Layer(layer, tensor)));
        let each = Tensor::OUTER.into_iter().chain(layers);
        each.filter_map(|tensor| Some((tensor, tensor.shape(spec)?))).collect()
    }

    /// Its size, in a model that has it.
    pub fn shape(self, spec: &ModelSpec) -> Option<Shape> {
        let table = Shape::Matrix(spec.vocab, spec.embed_dim);
        match self {
            Tensor::Embed => Some(table),
            Tensor::Positions => match spec.positions {
                Positions::Rope(_) => None,
                Positions::Learned { offset } => {
                    Some(Shape::Matrix(spec.max_positions + offset, spec.hidden))
                }
            },
            Tensor::ProjectIn => {
                spec.projects_embeddings().then_some(Shape::Matrix(spec.hidden, spec.embed_dim))
            }
            Tensor::ProjectOut => {
                spec.projects_embeddings().then_some(Shape::Matrix(spec.embed_dim, spec.hidden))
            }
            Tensor::FinalNorm => (spec.final_norm && spec.norm.affine).then_some(Shape::Vector(spec.hidden)),
            Tensor::FinalNormBias => {
                (spec.final_norm && spec.norm.has_bias()).then_some(Shape::Vector(spec.hidden))
            }
            Tensor::Head => (!spec.tied_head).then_some(table),
            Tensor::HeadBias => spec.biases.head.then_some(Shape::Vector(spec.vocab)),
            Tensor::Layer(_, tensor) => tensor.shape(spec),
        }
    }

    /// Whether it is the scale of a norm (a random model has ones there).
    pub fn is_norm_scale(self) -> bool {
        use LayerTensor::*;
        matches!(
            self,
            Tensor::FinalNorm
                | Tensor::Layer(_, AttnNorm | AttnOutNorm | MlpNorm | MlpOutNorm | QNorm | KNorm)
        )
    }
}
