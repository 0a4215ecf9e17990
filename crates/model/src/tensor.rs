//! The tensors of a decoder: their names for us, their shapes, their names in files.

use spec::ModelSpec;
use spec::model::{Mlp, NormPlacement, Positions};
use std::fmt;

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
        let (q, kv, hidden, ffn) = (spec.q_rows(), spec.kv_rows(), spec.hidden, spec.ffn);
        match self {
            AttnNorm | MlpNorm => when(before && spec.norm.affine, Shape::Vector(hidden)),
            AttnNormBias | MlpNormBias => when(before && spec.norm.has_bias(), Shape::Vector(hidden)),
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
    pub const OUTER: [Tensor; 7] = [
        Tensor::Embed,
        Tensor::Positions,
        Tensor::ProjectIn,
        Tensor::ProjectOut,
        Tensor::FinalNorm,
        Tensor::FinalNormBias,
        Tensor::Head,
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

/// How files name tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// Hugging Face: Llama and most of what came after it.
    Llama,
    /// Hugging Face: Gemma 2 and 3, OLMo 2 and 3, EXAONE 4.
    Gemma,
    /// Hugging Face: Granite 4.
    Granite4,
    /// Hugging Face: GLM 4 with norms around all that is added.
    Glm4,
    /// Hugging Face: OPT.
    Opt,
    /// GGUF.
    Gguf,
    /// The same of Seed-OSS, whose norm before the MLP has the name of one behind attention.
    GgufSeedOss,
}

impl Naming {
    /// The name of a tensor; Hugging Face's begin with `model.` except for the head.
    pub fn name(self, tensor: Tensor) -> Option<String> {
        match (self, tensor) {
            (Naming::Llama, Tensor::Layer(layer, part)) => {
                Some(format!("model.layers.{layer}.{}", llama_part(part)?))
            }
            (Naming::Gemma, Tensor::Layer(layer, part)) => {
                Some(format!("model.layers.{layer}.{}", gemma_part(part)?))
            }
            (Naming::Granite4, Tensor::Layer(layer, part)) => {
                Some(format!("model.layers.{layer}.{}", granite4_part(part)?))
            }
            (Naming::Glm4, Tensor::Layer(layer, part)) => {
                Some(format!("model.layers.{layer}.{}", glm4_part(part)?))
            }
            (Naming::Opt, Tensor::Layer(layer, part)) => {
                Some(format!("model.decoder.layers.{layer}.{}", opt_part(part)?))
            }
            (Naming::Gguf, Tensor::Layer(layer, part)) => Some(format!("blk.{layer}.{}", gguf_part(part)?)),
            (Naming::GgufSeedOss, Tensor::Layer(layer, LayerTensor::MlpNorm)) => {
                Some(format!("blk.{layer}.post_attention_norm.weight"))
            }
            (Naming::GgufSeedOss, other) => Naming::Gguf.name(other),
            (naming, outer) => naming.outer(outer).map(str::to_owned),
        }
    }

    /// Where files may hold a tensor with others, one below the other (Phi-3), a vector behind another: the name of the whole, and
    /// its tensors.
    pub fn within(self, tensor: Tensor) -> Option<(String, &'static [LayerTensor])> {
        use LayerTensor::{Gate, K, KBias, Q, QBias, Up, V, VBias};
        let Tensor::Layer(layer, part) = tensor else { return None };
        let parts: &[LayerTensor] = match part {
            Q | K | V => &[Q, K, V],
            QBias | KBias | VBias => &[QBias, KBias, VBias],
            Gate | Up => &[Gate, Up],
            _ => return None,
        };
        let whole = match (self, part) {
            (Naming::Llama | Naming::Glm4, Gate | Up) => {
                format!("model.layers.{layer}.mlp.gate_up_proj.weight")
            }
            (Naming::Llama, Q | K | V) => format!("model.layers.{layer}.self_attn.qkv_proj.weight"),
            (Naming::Granite4, Gate | Up) => format!("model.layers.{layer}.shared_mlp.input_linear.weight"),
            (Naming::GgufSeedOss, _) => return Naming::Gguf.within(tensor),
            (Naming::Gguf, Gate | Up) => format!("blk.{layer}.ffn_up.weight"),
            (Naming::Gguf, Q | K | V) => format!("blk.{layer}.attn_qkv.weight"),
            (Naming::Gguf, _) => format!("blk.{layer}.attn_qkv.bias"),
            (Naming::Llama | Naming::Gemma | Naming::Granite4 | Naming::Glm4 | Naming::Opt, _) => {
                return None;
            }
        };
        Some((whole, parts))
    }

    fn outer(self, tensor: Tensor) -> Option<&'static str> {
        use {Naming::*, Tensor::*};
        Some(match (self, tensor) {
            (Llama | Gemma | Granite4 | Glm4 | Opt, Head) => "lm_head.weight",
            (Llama | Gemma | Granite4 | Glm4, Embed) => "model.embed_tokens.weight",
            (Llama | Gemma | Granite4 | Glm4, FinalNorm) => "model.norm.weight",
            (Opt, Embed) => "model.decoder.embed_tokens.weight",
            (Opt, Positions) => "model.decoder.embed_positions.weight",
            (Opt, ProjectIn) => "model.decoder.project_in.weight",
            (Opt, ProjectOut) => "model.decoder.project_out.weight",
            (Opt, FinalNorm) => "model.decoder.final_layer_norm.weight",
            (Opt, FinalNormBias) => "model.decoder.final_layer_norm.bias",
            (Gguf, Embed) => "token_embd.weight",
            (Gguf, FinalNorm) => "output_norm.weight",
            (Gguf, Head) => "output.weight",
            _ => return None,
        })
    }
}

/// The name of a tensor of a model that sees images in a checkpoint of its decoder alone; none for what sees.
pub(crate) fn of_text(name: &str) -> Option<String> {
    let within = name.strip_prefix("model.").unwrap_or(name);
    if within.starts_with("vision_tower.") || within.starts_with("multi_modal_projector.") {
        return None;
    }
    Some(match (name.strip_prefix("language_model."), name.strip_prefix("model.language_model.")) {
        (Some(inner), _) => inner.to_owned(),
        (_, Some(inner)) => format!("model.{inner}"),
        _ => name.to_owned(),
    })
}

fn llama_part(part: LayerTensor) -> Option<&'static str> {
    use LayerTensor::*;
    Some(match part {
        AttnNorm => "input_layernorm.weight",
        Q => "self_attn.q_proj.weight",
        K => "self_attn.k_proj.weight",
        V => "self_attn.v_proj.weight",
        O => "self_attn.o_proj.weight",
        QBias => "self_attn.q_proj.bias",
        KBias => "self_attn.k_proj.bias",
        VBias => "self_attn.v_proj.bias",
        OBias => "self_attn.o_proj.bias",
        QNorm => "self_attn.q_norm.weight",
        KNorm => "self_attn.k_norm.weight",
        MlpNorm => "post_attention_layernorm.weight",
        Gate => "mlp.gate_proj.weight",
        Up => "mlp.up_proj.weight",
        Down => "mlp.down_proj.weight",
        GateBias => "mlp.gate_proj.bias",
        UpBias => "mlp.up_proj.bias",
        DownBias => "mlp.down_proj.bias",
        AttnNormBias | MlpNormBias | AttnOutNorm | MlpOutNorm => return None,
    })
}

fn gemma_part(part: LayerTensor) -> Option<&'static str> {
    use LayerTensor::*;
    Some(match part {
        AttnOutNorm => "post_attention_layernorm.weight",
        MlpNorm => "pre_feedforward_layernorm.weight",
        MlpOutNorm => "post_feedforward_layernorm.weight",
        other => return llama_part(other),
    })
}

fn granite4_part(part: LayerTensor) -> Option<&'static str> {
    match part {
        LayerTensor::Down => Some("shared_mlp.output_linear.weight"),
        other => llama_part(other),
    }
}

fn glm4_part(part: LayerTensor) -> Option<&'static str> {
    match part {
        LayerTensor::AttnOutNorm => Some("post_self_attn_layernorm.weight"),
        LayerTensor::MlpOutNorm => Some("post_mlp_layernorm.weight"),
        other => llama_part(other),
    }
}

fn opt_part(part: LayerTensor) -> Option<&'static str> {
    use LayerTensor::*;
    Some(match part {
        AttnNorm => "self_attn_layer_norm.weight",
        AttnNormBias => "self_attn_layer_norm.bias",
        Q => "self_attn.q_proj.weight",
        K => "self_attn.k_proj.weight",
        V => "self_attn.v_proj.weight",
        O => "self_attn.out_proj.weight",
        QBias => "self_attn.q_proj.bias",
        KBias => "self_attn.k_proj.bias",
        VBias => "self_attn.v_proj.bias",
        OBias => "self_attn.out_proj.bias",
        MlpNorm => "final_layer_norm.weight",
        MlpNormBias => "final_layer_norm.bias",
        Up => "fc1.weight",
        UpBias => "fc1.bias",
        Down => "fc2.weight",
        DownBias => "fc2.bias",
        QNorm | KNorm | AttnOutNorm | MlpOutNorm | Gate | GateBias => return None,
    })
}

fn gguf_part(part: LayerTensor) -> Option<&'static str> {
    use LayerTensor::*;
    Some(match part {
        AttnNorm => "attn_norm.weight",
        Q => "attn_q.weight",
        K => "attn_k.weight",
        V => "attn_v.weight",
        O => "attn_output.weight",
        QBias => "attn_q.bias",
        KBias => "attn_k.bias",
        VBias => "attn_v.bias",
        OBias => "attn_output.bias",
        QNorm => "attn_q_norm.weight",
        KNorm => "attn_k_norm.weight",
        MlpNorm => "ffn_norm.weight",
        Gate => "ffn_gate.weight",
        Up => "ffn_up.weight",
        Down => "ffn_down.weight",
        GateBias => "ffn_gate.bias",
        UpBias => "ffn_up.bias",
        DownBias => "ffn_down.bias",
        AttnOutNorm => "post_attention_norm.weight",
        MlpOutNorm => "post_ffw_norm.weight",
        AttnNormBias | MlpNormBias => return None,
    })
}
