//! How files name the tensors of a decoder.

use super::{LayerTensor, Tensor};

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
    /// Hugging Face: Phi-1, 1.5 and 2.
    Phi,
    /// Hugging Face: GPT-NeoX.
    NeoX,
    /// Hugging Face: StarCoder2.
    StarCoder2,
    /// Hugging Face: OPT.
    Opt,
    /// GGUF.
    Gguf,
    /// The same of Seed-OSS, whose norm before the MLP has the name of one behind attention.
    GgufSeedOss,
}

impl Naming {
    /// The name of a tensor; Hugging Face's begin with [`base`](Naming::base), except for the head. None for what files of this kind
    /// do not hold.
    pub fn name(self, tensor: Tensor) -> Option<String> {
        match tensor {
            Tensor::Layer(layer, part) => Some(self.layer(layer) + self.part(part)?),
            outer => self.outer(outer).map(str::to_owned),
        }
    }

    /// Where files may hold a tensor with others, one below the other (Phi-3), a vector behind another: the name of the whole, and
    /// its tensors.
    pub fn within(self, tensor: Tensor) -> Option<(String, &'static [LayerTensor])> {
        use LayerTensor::{Gate, K, KBias, Q, QBias, Up, V, VBias};
        use Naming::{Gguf, GgufSeedOss, Glm4, Granite4, Llama, NeoX};
        let Tensor::Layer(layer, part) = tensor else { return None };
        let parts: &[LayerTensor] = match part {
            Q | K | V => &[Q, K, V],
            QBias | KBias | VBias => &[QBias, KBias, VBias],
            Gate | Up => &[Gate, Up],
            _ => return None,
        };
        let whole = match (self, part) {
            (Llama | Glm4, Gate | Up) => "mlp.gate_up_proj.weight",
            (Llama, Q | K | V) => "self_attn.qkv_proj.weight",
            (Granite4, Gate | Up) => "shared_mlp.input_linear.weight",
            (NeoX, Q | K | V) => "attention.query_key_value.weight",
            (NeoX, QBias | KBias | VBias) => "attention.query_key_value.bias",
            (Gguf | GgufSeedOss, Gate | Up) => "ffn_up.weight",
            (Gguf | GgufSeedOss, Q | K | V) => "attn_qkv.weight",
            (Gguf | GgufSeedOss, _) => "attn_qkv.bias",
            _ => return None,
        };
        Some((self.layer(layer) + whole, parts))
    }

    /// What the names of a layer's tensors begin with.
    fn layer(self, layer: usize) -> String {
        let layers = match self {
            Naming::NeoX => "gpt_neox.layers",
            Naming::Opt => "model.decoder.layers",
            Naming::Gguf | Naming::GgufSeedOss => "blk",
            _ => "model.layers",
        };
        format!("{layers}.{layer}.")
    }

    /// What they end with.
    fn part(self, part: LayerTensor) -> Option<&'static str> {
        match self {
            Naming::Llama => llama_part(part),
            Naming::Gemma => gemma_part(part),
            Naming::Granite4 => granite4_part(part),
            Naming::Glm4 => glm4_part(part),
            Naming::Phi => phi_part(part),
            Naming::NeoX => neox_part(part),
            Naming::StarCoder2 => starcoder2_part(part),
            Naming::Opt => opt_part(part),
            Naming::GgufSeedOss if part == LayerTensor::MlpNorm => Some("post_attention_norm.weight"),
            Naming::Gguf | Naming::GgufSeedOss => Some(gguf_part(part)),
        }
    }

    /// What names of all tensors but the head's begin with; checkpoints saved without that around them lack it.
    pub(crate) fn base(self) -> &'static str {
        if self == Naming::NeoX { "gpt_neox." } else { "model." }
    }

    /// Whether the rows of what [`within`](Naming::within) says lie head by head: a head's queries, its keys, its values.
    pub(crate) fn by_heads(self) -> bool {
        self == Naming::NeoX
    }

    /// Whether a tensor is none of the model's weights: masks that were stored with them.
    pub(crate) fn is_mask(self, name: &str) -> bool {
        self == Naming::NeoX
            && [".attention.bias", ".attention.masked_bias"].iter().any(|mask| name.ends_with(mask))
    }

    fn outer(self, tensor: Tensor) -> Option<&'static str> {
        use {Naming::*, Tensor::*};
        Some(match (self, tensor) {
            (NeoX, Head) => "embed_out.weight",
            (NeoX, Embed) => "gpt_neox.embed_in.weight",
            (NeoX, FinalNorm) => "gpt_neox.final_layer_norm.weight",
            (NeoX, FinalNormBias) => "gpt_neox.final_layer_norm.bias",
            (Phi, HeadBias) => "lm_head.bias",
            (Phi, FinalNorm) => "model.final_layernorm.weight",
            (Phi, FinalNormBias) => "model.final_layernorm.bias",
            (Opt, Embed) => "model.decoder.embed_tokens.weight",
            (Opt, Positions) => "model.decoder.embed_positions.weight",
            (Opt, ProjectIn) => "model.decoder.project_in.weight",
            (Opt, ProjectOut) => "model.decoder.project_out.weight",
            (Opt, FinalNorm) => "model.decoder.final_layer_norm.weight",
            (Opt, FinalNormBias) => "model.decoder.final_layer_norm.bias",
            (Gguf | GgufSeedOss, Embed) => "token_embd.weight",
            (Gguf | GgufSeedOss, FinalNorm) => "output_norm.weight",
            (Gguf | GgufSeedOss, FinalNormBias) => "output_norm.bias",
            (Gguf | GgufSeedOss, Head) => "output.weight",
            (Gguf | GgufSeedOss, HeadBias) => "output.bias",
            (Llama | Gemma | Granite4 | Glm4 | Phi | StarCoder2 | Opt, Head) => "lm_head.weight",
            (Llama | Gemma | Granite4 | Glm4 | Phi | StarCoder2, Embed) => "model.embed_tokens.weight",
            (Llama | Gemma | Granite4 | Glm4 | StarCoder2, FinalNorm) => "model.norm.weight",
            (Llama | StarCoder2, FinalNormBias) => "model.norm.bias",
            _ => return None,
        })
    }
}

/// The name of a tensor of a model that sees images in a checkpoint of its decoder alone; none for what sees.
pub(crate) fn of_text(name: &str) -> Option<String> {
    let within = name.strip_prefix("model.").unwrap_or(name);
    if ["vision_tower.", "multi_modal_projector.", "visual."].iter().any(|part| within.starts_with(part)) {
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
        AttnNormBias => "input_layernorm.bias",
        MlpNormBias => "post_attention_layernorm.bias",
        AttnOutNorm | MlpOutNorm => return None,
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

fn starcoder2_part(part: LayerTensor) -> Option<&'static str> {
    use LayerTensor::*;
    Some(match part {
        Up => "mlp.c_fc.weight",
        UpBias => "mlp.c_fc.bias",
        Down => "mlp.c_proj.weight",
        DownBias => "mlp.c_proj.bias",
        other => return llama_part(other),
    })
}

fn phi_part(part: LayerTensor) -> Option<&'static str> {
    use LayerTensor::*;
    Some(match part {
        O => "self_attn.dense.weight",
        OBias => "self_attn.dense.bias",
        Up => "mlp.fc1.weight",
        UpBias => "mlp.fc1.bias",
        Down => "mlp.fc2.weight",
        DownBias => "mlp.fc2.bias",
        other => return llama_part(other),
    })
}

/// But for queries, keys and values, which are one.
fn neox_part(part: LayerTensor) -> Option<&'static str> {
    use LayerTensor::*;
    Some(match part {
        O => "attention.dense.weight",
        OBias => "attention.dense.bias",
        Up => "mlp.dense_h_to_4h.weight",
        UpBias => "mlp.dense_h_to_4h.bias",
        Down => "mlp.dense_4h_to_h.weight",
        DownBias => "mlp.dense_4h_to_h.bias",
        Q | K | V => "attention.query_key_value.weight",
        QBias | KBias | VBias => "attention.query_key_value.bias",
        other => return llama_part(other),
    })
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

fn gguf_part(part: LayerTensor) -> &'static str {
    use LayerTensor::*;
    match part {
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
        AttnNormBias => "attn_norm.bias",
        MlpNormBias => "ffn_norm.bias",
    }
}
