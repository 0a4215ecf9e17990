//! The architectures, as Hugging Face names and configures them.

use super::layer_norms::{self, with_phi, with_starcoder2};
use super::{LAYERS_MAX, opt, rope, scales};
use crate::error::{Error, Result};
use crate::json::Fields;
use crate::tensor::Naming;
use spec::ModelSpec;
use spec::model::{Activation, Biases, DType, Mlp, Norm, NormPlacement, Positions, QkNorm, RopeLayers};

/// What most configurations call the number that is added under a norm's root.
const RMS_EPS: &str = "rms_norm_eps";

/// A published architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama 1, 2 and 3.x, and what has its shape.
    Llama,
    /// Mistral: Llama with a sliding window; Ministral: on some layers.
    Mistral,
    /// Ministral 3: Llama whose queries grow with their position.
    Ministral3,
    /// Qwen2 and 2.5: Llama with biases on queries, keys and values.
    Qwen2,
    /// Qwen3: Llama with norms on queries and keys.
    Qwen3,
    /// The decoder of Qwen2-VL and 2.5-VL: Qwen2, whose positions are three numbers that are the same for text.
    Qwen2Vl,
    /// That of Qwen3-VL.
    Qwen3Vl,
    /// Phi-3, Phi-3.5, Phi-4: Llama whose files hold queries, keys and values as one, gate and up too.
    Phi3,
    /// SmolLM3: Llama, some of whose layers turn nothing.
    SmolLm3,
    /// Granite 3: Llama with factors on embeddings, scores, what layers add, and logits.
    Granite,
    /// Granite 4 without Mamba and experts: the same, its MLP under another name, with or without positions.
    Granite4,
    /// Seed-OSS: Llama with biases on queries, keys and values, and more of them by its configuration.
    SeedOss,
    /// EXAONE 4: norms of what is added, and of queries and keys; where layers have windows, those without turn nothing.
    Exaone4,
    /// Gemma: Llama whose embeddings have a factor, and norms scales from one.
    Gemma,
    /// Gemma 2: norms around all that is added, caps of scores and logits, a window on every other layer.
    Gemma2,
    /// Gemma 3: norms around all that is added, most layers with a window and a rotary embedding of their own.
    Gemma3,
    /// OLMo 2: norms of all that is added and of queries and keys, whole rows of them, and none before.
    Olmo2,
    /// OLMo 3: the same, most layers with a window, whose rotary embedding no scaling stretches.
    Olmo3,
    /// GLM 4 of 2024: Llama with biases on queries, keys and values, of whose heads a part turns, pair by pair; gate and up are one.
    Glm,
    /// GLM 4 and Z1 of 2025: the same with norms around all that is added.
    Glm4,
    /// ERNIE 4.5 without experts: Llama whose heads turn pair by pair.
    Ernie45,
    /// Command R and Aya: attention and MLP read one layer norm, heads turn pair by pair, and logits have a factor.
    Cohere,
    /// Command R7B and A: the same with a window on most layers, and no positions on those without.
    Cohere2,
    /// Phi-1, 1.5 and 2: attention and MLP read one layer norm, a part of each head turns, and all linears have biases.
    Phi,
    /// GPT-NeoX and Pythia: attention and MLP beside each other, each behind a layer norm; queries, keys and values are one, head by
    /// head.
    NeoX,
    /// StarCoder2: layer norms, biases, a plain MLP.
    StarCoder2,
    /// StableLM: Llama with layer norms, of whose heads a part turns.
    StableLm,
    /// AFM: Llama with a plain MLP of squares.
    Arcee,
    /// Minitron and Nemotron 3 and 4: the same with layer norms, whose scales are from one; a part of each head turns.
    Nemotron,
    /// OPT: learned positions, layer norms, ReLU.
    Opt,
}

impl Family {
    /// Every family, with the names of its class and of its `model_type`.
    const NAMES: [(Family, &'static str, &'static str); 35] = [
        (Family::Llama, "LlamaForCausalLM", "llama"),
        (Family::Mistral, "MistralForCausalLM", "mistral"),
        (Family::Mistral, "MinistralForCausalLM", "ministral"),
        (Family::Mistral, "Mistral3ForConditionalGeneration", "mistral3"),
        (Family::Ministral3, "Ministral3ForCausalLM", "ministral3"),
        (Family::Qwen2, "Qwen2ForCausalLM", "qwen2"),
        (Family::Qwen3, "Qwen3ForCausalLM", "qwen3"),
        (Family::Qwen2Vl, "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl"),
        (Family::Qwen2Vl, "Qwen2VLForConditionalGeneration", "qwen2_vl"),
        (Family::Qwen3Vl, "Qwen3VLForConditionalGeneration", "qwen3_vl"),
        (Family::Phi3, "Phi3ForCausalLM", "phi3"),
        (Family::SmolLm3, "SmolLM3ForCausalLM", "smollm3"),
        (Family::Granite, "GraniteForCausalLM", "granite"),
        (Family::Granite4, "GraniteMoeHybridForCausalLM", "granitemoehybrid"),
        (Family::SeedOss, "SeedOssForCausalLM", "seed_oss"),
        (Family::Exaone4, "Exaone4ForCausalLM", "exaone4"),
        (Family::Gemma, "GemmaForCausalLM", "gemma"),
        (Family::Gemma2, "Gemma2ForCausalLM", "gemma2"),
        (Family::Gemma3, "Gemma3ForCausalLM", "gemma3_text"),
        (Family::Gemma3, "Gemma3ForConditionalGeneration", "gemma3"),
        (Family::Olmo2, "Olmo2ForCausalLM", "olmo2"),
        (Family::Olmo3, "Olmo3ForCausalLM", "olmo3"),
        (Family::Glm, "GlmForCausalLM", "glm"),
        (Family::Glm4, "Glm4ForCausalLM", "glm4"),
        (Family::Ernie45, "Ernie4_5ForCausalLM", "ernie4_5"),
        // As it was published first, with code of its own.
        (Family::Ernie45, "Ernie4_5_ForCausalLM", "ernie4_5"),
        (Family::Cohere, "CohereForCausalLM", "cohere"),
        (Family::Cohere2, "Cohere2ForCausalLM", "cohere2"),
        (Family::Phi, "PhiForCausalLM", "phi"),
        (Family::NeoX, "GPTNeoXForCausalLM", "gpt_neox"),
        (Family::StarCoder2, "Starcoder2ForCausalLM", "starcoder2"),
        (Family::StableLm, "StableLmForCausalLM", "stablelm"),
        (Family::Arcee, "ArceeForCausalLM", "arcee"),
        (Family::Nemotron, "NemotronForCausalLM", "nemotron"),
        (Family::Opt, "OPTForCausalLM", "opt"),
    ];

    /// The names of all classes, for messages.
    pub fn supported() -> String {
        Family::NAMES.map(|(_, class, _)| class).join(", ")
    }

    /// The name of its class.
    pub fn class(self) -> &'static str {
        Family::NAMES.iter().find(|(family, ..)| *family == self).map_or("", |(_, class, _)| class)
    }

    /// How its files name tensors.
    pub fn naming(self) -> Naming {
        match self {
            Family::Opt => Naming::Opt,
            Family::Gemma2 | Family::Gemma3 | Family::Olmo2 | Family::Olmo3 | Family::Exaone4 => {
                Naming::Gemma
            }
            Family::Granite4 => Naming::Granite4,
            Family::Glm4 => Naming::Glm4,
            Family::Phi => Naming::Phi,
            Family::NeoX => Naming::NeoX,
            Family::StarCoder2 => Naming::StarCoder2,
            _ => Naming::Llama,
        }
    }

    /// Whether its files have the rows of a head that turn together beside each other.
    pub(crate) fn pairs_rows(self) -> bool {
        matches!(self, Family::Glm | Family::Glm4 | Family::Ernie45 | Family::Cohere | Family::Cohere2)
    }

    pub(super) fn is_gemma(self) -> bool {
        matches!(self, Family::Gemma | Family::Gemma2 | Family::Gemma3)
    }

    /// Fields of a [`ModelSpec`] and what `config.json` calls them.
    pub(super) fn names(self) -> [(&'static str, &'static str); 12] {
        [
            ("vocab", "vocab_size"),
            ("hidden", "hidden_size"),
            ("layers", "num_hidden_layers"),
            ("heads", "num_attention_heads"),
            ("kv_heads", "num_key_value_heads"),
            ("ffn", self.ffn_field()),
            ("max_positions", "max_position_embeddings"),
            ("embed_dim", "word_embed_proj_dim"),
            ("window", "sliding_window"),
            ("norm", self.norm_field()),
            ("score_cap", "attn_logit_softcapping"),
            ("logit_cap", "final_logit_softcapping"),
        ]
    }

    /// The family that a configuration names by `architectures`, or else by `model_type`, by which transformers goes: two of them
    /// are a contradiction.
    pub(super) fn of(fields: &Fields) -> Result<Family> {
        let classes = fields.texts("architectures")?.unwrap_or_default();
        let (class, kind) = (classes.first().copied(), fields.text("model_type")?);
        let of_class = class.map(|class| Family::named(|(_, name, _)| *name == class));
        let of_kind = kind.and_then(|kind| {
            let sees = kind.strip_suffix("_text");
            Family::named(|(.., name)| *name == kind)
                .or_else(|| Family::named(|(family, _, name)| family.sees() && Some(*name) == sees))
        });
        if let (Some(Some(one)), Some(other)) = (of_class, of_kind)
            && one != other
        {
            return Err(
                fields.wrong("model_type", &format!("that of {}, as `architectures` says", one.class()))
            );
        }
        of_class.unwrap_or(of_kind).ok_or_else(|| {
            let named = class.or(kind).unwrap_or("(none)");
            let what = format!("the architecture `{}`", named.escape_debug());
            Error::unsupported(fields.file, what, Family::supported())
        })
    }

    /// Whether it is the decoder of models that see images, too.
    pub(super) fn may_see(self) -> bool {
        matches!(self, Family::Gemma3 | Family::Mistral) || self.sees()
    }

    /// Whether it is always that of such a model.
    pub(super) fn sees(self) -> bool {
        matches!(self, Family::Qwen2Vl | Family::Qwen3Vl)
    }

    /// The family of the decoder inside a model that sees images, by what is said of it there.
    pub(super) fn of_text(self, text: &Fields) -> Result<Family> {
        if text.text("model_type")?.is_none() {
            return Ok(self);
        }
        match (self, Family::of(text)?) {
            (Family::Mistral, Family::Ministral3) => Ok(Family::Ministral3),
            (outer, inner) if outer == inner => Ok(inner),
            (outer, _) => Err(text.wrong("model_type", &format!("a decoder of {}", outer.class()))),
        }
    }

    fn named(is: impl Fn(&(Family, &str, &str)) -> bool) -> Option<Family> {
        Family::NAMES.iter().find(|names| is(names)).map(|(family, ..)| *family)
    }

    /// The model, of a checkpoint of these numbers.
    pub(super) fn spec(self, fields: &Fields, dtype: DType) -> Result<ModelSpec> {
        let spec = match self {
            Family::Opt => opt::opt(fields)?,
            Family::Granite => scales::granite(fields, self.llama_like(fields)?)?,
            Family::Granite4 => scales::granite(fields, scales::granite4(fields, self.llama_like(fields)?)?)?,
            Family::Gemma => scales::gemma(self.llama_like(fields)?, dtype),
            Family::Gemma2 => scales::gemma2(fields, self.llama_like(fields)?, dtype)?,
            Family::Gemma3 => scales::gemma3(fields, self.llama_like(fields)?, dtype)?,
            Family::Olmo2 | Family::Olmo3 => with_olmo(self.llama_like(fields)?),
            Family::Glm4 => ModelSpec { placement: NormPlacement::Around, ..self.llama_like(fields)? },
            Family::Exaone4 => with_exaone(self.llama_like(fields)?, !fields.has_null("sliding_window")),
            Family::Cohere => layer_norms::cohere(fields, self.llama_like(fields)?)?,
            Family::Cohere2 => with_windows_turning(layer_norms::cohere(fields, self.llama_like(fields)?)?),
            Family::Phi => with_phi(self.llama_like(fields)?),
            Family::NeoX => layer_norms::neox(fields, self.llama_like(fields)?)?,
            Family::StarCoder2 => with_starcoder2(self.llama_like(fields)?),
            Family::StableLm => layer_norms::stablelm(fields, self.llama_like(fields)?)?,
            Family::Arcee => ModelSpec { mlp: Mlp::Plain, ..self.llama_like(fields)? },
            Family::Nemotron => layer_norms::with_nemotron(self.llama_like(fields)?),
            _ => self.llama_like(fields)?,
        };
        Ok(ModelSpec { dtype, ..spec })
    }

    fn llama_like(self, fields: &Fields) -> Result<ModelSpec> {
        let hidden = self.size(fields, "hidden_size")?;
        let heads = self.size(fields, "num_attention_heads")?;
        let layers = layer_count(fields, self.size(fields, "num_hidden_layers")?)?;
        let defaults = self.rope_defaults(fields)?;
        let (rope, rope_layers) = self.ropes(fields, &defaults, layers)?;
        let head_dim = self.head_dim(fields, hidden, heads)?;
        let eps = match self {
            Family::Phi3 | Family::Ministral3 | Family::Olmo2 | Family::Olmo3 | Family::Exaone4 => 1e-5,
            Family::Ernie45 | Family::Qwen2Vl | Family::Arcee => 1e-5,
            _ if self.norm_field() != RMS_EPS => 1e-5,
            Family::Glm | Family::Glm4 => 1.5625e-7,
            _ => 1e-6,
        };
        let eps = fields.number(self.norm_field())?.unwrap_or(eps) as f32;
        Ok(ModelSpec {
            architecture: self.class().into(),
            vocab: self.size(fields, "vocab_size")?,
            hidden,
            layers,
            heads,
            kv_heads: self.kv_heads(fields, heads)?,
            head_dim,
            ffn: self.size(fields, self.ffn_field())?,
            max_positions: match self {
                // Of the stretched ones.
                Family::Gemma3 => defaults.max_positions,
                _ => rope::stretched(&rope, defaults.max_positions),
            },
            norm: Norm::rms(eps),
            placement: NormPlacement::Pre,
            final_norm: true,
            activation: match self {
                // Files of the first say `gelu` in `hidden_act`, and mean this one.
                _ if self.is_gemma() => activation(fields, "hidden_activation", "gelu_pytorch_tanh")?,
                Family::Phi | Family::StarCoder2 => activation(fields, "hidden_act", "gelu_pytorch_tanh")?,
                Family::NeoX => activation(fields, "hidden_act", "gelu")?,
                Family::Arcee | Family::Nemotron => activation(fields, "hidden_act", "relu2")?,
                _ => activation(fields, "hidden_act", "silu")?,
            },
            mlp: Mlp::Gated,
            positions: Positions::Rope(rope),
            biases: self.biases(fields)?,
            qk_norm: match self {
                Family::Qwen3 | Family::Qwen3Vl | Family::Gemma3 => QkNorm::Heads,
                _ => QkNorm::None,
            },
            attention_scale: 1.0 / (head_dim as f32).sqrt(),
            score_cap: None,
            window: self.window(fields, layers, &rope_layers)?,
            rope_layers,
            tied_head: fields.flag("tie_word_embeddings")?.unwrap_or(self.ties()),
            embed_dim: hidden,
            embed_scale: 1.0,
            logit_scale: 1.0,
            logit_cap: None,
            bos: self.bos(fields)?,
            eos: self.ends(fields)?,
            dtype: DType::F32,
        })
    }

    fn norm_field(self) -> &'static str {
        match self {
            Family::Cohere | Family::Cohere2 | Family::Phi | Family::NeoX | Family::StableLm => {
                "layer_norm_eps"
            }
            Family::StarCoder2 => "norm_epsilon",
            Family::Nemotron => "norm_eps",
            _ => RMS_EPS,
        }
    }

    fn ffn_field(self) -> &'static str {
        match self {
            Family::Opt => "ffn_dim",
            // Others of its kind have experts beside an MLP that all tokens share.
            Family::Granite4 => "shared_intermediate_size",
            _ => "intermediate_size",
        }
    }

    /// A size that a configuration must have, but for Gemma 3's, which leave out what its class knows.
    fn size(self, fields: &Fields, name: &str) -> Result<usize> {
        let known = match name {
            _ if self != Family::Gemma3 => None,
            "vocab_size" => Some(262_208),
            "hidden_size" => Some(2304),
            "intermediate_size" => Some(9216),
            "num_hidden_layers" => Some(26),
            "num_attention_heads" => Some(8),
            _ => None,
        };
        known.map_or_else(|| fields.needed_size(name), |known| Ok(fields.size(name)?.unwrap_or(known)))
    }

    /// Whether the head is the embedding table where a configuration does not say.
    fn ties(self) -> bool {
        let coheres = matches!(self, Family::Cohere | Family::Cohere2);
        let others = matches!(self, Family::SmolLm3 | Family::Ernie45 | Family::StarCoder2 | Family::Opt);
        self.is_gemma() || coheres || others
    }

    fn kv_heads(self, fields: &Fields, heads: usize) -> Result<usize> {
        // Its class knows no such field.
        if self == Family::NeoX {
            return Ok(heads);
        }
        let explicit_null = fields.has_null("num_key_value_heads");
        let default = match self {
            Family::Mistral | Family::Ministral3 | Family::SeedOss | Family::Qwen2Vl if !explicit_null => 8,
            Family::Qwen2 | Family::Qwen3 | Family::Qwen3Vl | Family::Exaone4 if !explicit_null => 32,
            Family::SmolLm3 | Family::Gemma2 | Family::Gemma3 if !explicit_null => 4,
            Family::Gemma if !explicit_null => 16,
            Family::Glm | Family::Glm4 | Family::Ernie45 | Family::StarCoder2 if !explicit_null => 2,
            Family::StableLm if !explicit_null => 32,
            _ => heads,
        };
        Ok(fields.size("num_key_value_heads")?.unwrap_or(default))
    }

    fn head_dim(self, fields: &Fields, hidden: usize, heads: usize) -> Result<usize> {
        let default = match self {
            Family::Qwen3 | Family::Qwen3Vl => 128,
            Family::Ministral3 | Family::SeedOss if !fields.has_null("head_dim") => 128,
            Family::Glm | Family::Glm4 | Family::Ernie45 if !fields.has_null("head_dim") => 128,
            _ if self.is_gemma() => 256,
            _ => hidden / heads.max(1),
        };
        Ok(fields.size("head_dim")?.unwrap_or(default))
    }

    fn biases(self, fields: &Fields) -> Result<Biases> {
        let attention = fields.flag("attention_bias")?.unwrap_or(false);
        Ok(match self {
            Family::Llama | Family::SmolLm3 | Family::Granite | Family::Arcee | Family::Nemotron => {
                let mlp = fields.flag("mlp_bias")?.unwrap_or(false);
                Biases { qkv: attention, o: attention, mlp, head: false }
            }
            Family::Qwen3
            | Family::Qwen3Vl
            | Family::Gemma
            | Family::Gemma2
            | Family::Gemma3
            | Family::Olmo2
            | Family::Olmo3
            | Family::Granite4
            | Family::Cohere
            | Family::Cohere2 => Biases { qkv: attention, o: attention, ..Biases::default() },
            Family::Qwen2 | Family::Qwen2Vl => Biases { qkv: true, ..Biases::default() },
            Family::Glm | Family::Glm4 => {
                Biases { qkv: fields.flag("attention_bias")?.unwrap_or(true), ..Biases::default() }
            }
            Family::Ernie45 | Family::StarCoder2 => {
                let all = fields.flag("use_bias")?.unwrap_or(self == Family::StarCoder2);
                Biases { qkv: all, o: all, mlp: all, head: false }
            }
            Family::SeedOss => Biases {
                qkv: fields.flag("attention_bias")?.unwrap_or(true),
                o: fields.flag("attention_out_bias")?.unwrap_or(false),
                mlp: fields.flag("mlp_bias")?.unwrap_or(false),
                head: false,
            },
            Family::Phi => Biases { qkv: true, o: true, mlp: true, head: true },
            Family::NeoX => {
                let attention = fields.flag("attention_bias")?.unwrap_or(true);
                Biases { qkv: attention, o: attention, mlp: true, head: false }
            }
            Family::StableLm => {
                Biases { qkv: fields.flag("use_qkv_bias")?.unwrap_or(false), ..Biases::default() }
            }
            Family::Mistral | Family::Ministral3 | Family::Phi3 | Family::Exaone4 | Family::Opt => {
                Biases::default()
            }
        })
    }
}

/// What OLMo 2 has otherwise than Llama.
pub(crate) fn with_olmo(spec: ModelSpec) -> ModelSpec {
    ModelSpec { placement: NormPlacement::Added, qk_norm: QkNorm::Rows, ..spec }
}

/// What EXAONE 4 has otherwise than Llama. `hybrid`: a window is named, whether layers have it or not.
pub(crate) fn with_exaone(spec: ModelSpec, hybrid: bool) -> ModelSpec {
    let spec = ModelSpec { placement: NormPlacement::Added, qk_norm: QkNorm::Heads, ..spec };
    if hybrid { with_windows_turning(spec) } else { spec }
}

/// A model whose layers without a window know no positions.
pub(crate) fn with_windows_turning(spec: ModelSpec) -> ModelSpec {
    let turns = (0..spec.layers).map(|layer| spec.window_of(layer).is_some()).collect();
    ModelSpec { rope_layers: RopeLayers::Listed(turns), ..spec }
}

/// Checked at once, for a list of windows is as long.
pub(super) fn layer_count(fields: &Fields, layers: usize) -> Result<usize> {
    let plausible = layers <= LAYERS_MAX;
    plausible
        .then_some(layers)
        .ok_or_else(|| fields.wrong("num_hidden_layers", &format!("at most {LAYERS_MAX}")))
}

pub(super) fn activation(fields: &Fields, name: &str, default: &str) -> Result<Activation> {
    match fields.text(name)?.unwrap_or(default) {
        "silu" | "swish" => Ok(Activation::Silu),
        "relu" => Ok(Activation::Relu),
        "relu2" => Ok(Activation::Relu2),
        "gelu" | "gelu_python" => Ok(Activation::Gelu),
        // One function, written in several ways.
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_fast" | "gelu_accurate" => {
            Ok(Activation::GeluTanh)
        }
        other => Err(Error::unsupported(
            fields.file,
            format!("`{name}` = `{}`", other.escape_debug()),
            "silu, relu, relu2, gelu, gelu_new, gelu_pytorch_tanh",
        )),
    }
}
