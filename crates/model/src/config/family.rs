//! The architectures, as Hugging Face names and configures them.

use super::rope;
use crate::error::{Error, Result};
use crate::json::Fields;
use crate::tensor::Naming;
use spec::ModelSpec;
use spec::model::{Activation, Biases, DType, Mlp, Norm, NormKind, NormPlacement, Positions, Window};

/// Rows before that of position 0 in OPT's table.
const OPT_POSITION_OFFSET: usize = 2;

const LAYERS_MAX: usize = 1 << 16;

/// A published architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama 1, 2 and 3.x, and what has its shape.
    Llama,
    /// Mistral: Llama with a sliding window; Ministral: on some layers.
    Mistral,
    /// Qwen2 and 2.5: Llama with biases on queries, keys and values.
    Qwen2,
    /// Qwen3: Llama with norms on queries and keys.
    Qwen3,
    /// OPT: learned positions, layer norms, ReLU.
    Opt,
}

impl Family {
    /// Every family, with the names of its class and of its `model_type`.
    const NAMES: [(Family, &'static str, &'static str); 6] = [
        (Family::Llama, "LlamaForCausalLM", "llama"),
        (Family::Mistral, "MistralForCausalLM", "mistral"),
        (Family::Mistral, "MinistralForCausalLM", "ministral"),
        (Family::Qwen2, "Qwen2ForCausalLM", "qwen2"),
        (Family::Qwen3, "Qwen3ForCausalLM", "qwen3"),
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
        if self == Family::Opt { Naming::Opt } else { Naming::Llama }
    }

    /// Fields of a [`ModelSpec`] and what `config.json` calls them.
    pub(super) fn names(self) -> [(&'static str, &'static str); 10] {
        [
            ("vocab", "vocab_size"),
            ("hidden", "hidden_size"),
            ("layers", "num_hidden_layers"),
            ("heads", "num_attention_heads"),
            ("kv_heads", "num_key_value_heads"),
            ("ffn", if self == Family::Opt { "ffn_dim" } else { "intermediate_size" }),
            ("max_positions", "max_position_embeddings"),
            ("embed_dim", "word_embed_proj_dim"),
            ("window", "sliding_window"),
            ("norm", "rms_norm_eps"),
        ]
    }

    /// The family that a configuration names by `architectures`, or else by `model_type`, by which transformers goes: two of them
    /// are a contradiction.
    pub(super) fn of(fields: &Fields) -> Result<Family> {
        let classes = fields.texts("architectures")?.unwrap_or_default();
        let (class, kind) = (classes.first().copied(), fields.text("model_type")?);
        let of_class = class.map(|class| Family::named(|(_, name, _)| *name == class));
        let of_kind = kind.and_then(|kind| Family::named(|(.., name)| *name == kind));
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

    fn named(is: impl Fn(&(Family, &str, &str)) -> bool) -> Option<Family> {
        Family::NAMES.iter().find(|names| is(names)).map(|(family, ..)| *family)
    }

    /// The model; its `dtype` is for the caller to set.
    pub(super) fn spec(self, fields: &Fields) -> Result<ModelSpec> {
        match self {
            Family::Opt => opt(fields),
            _ => self.llama_like(fields),
        }
    }

    fn llama_like(self, fields: &Fields) -> Result<ModelSpec> {
        let hidden = fields.needed_size("hidden_size")?;
        let heads = fields.needed_size("num_attention_heads")?;
        let layers = layer_count(fields)?;
        let trained = self.max_positions(fields)?;
        let rope = rope::read(fields, trained)?;
        let eps = fields.number("rms_norm_eps")?.unwrap_or(1e-6) as f32;
        Ok(ModelSpec {
            architecture: self.class().into(),
            vocab: fields.needed_size("vocab_size")?,
            hidden,
            layers,
            heads,
            kv_heads: self.kv_heads(fields, heads)?,
            head_dim: self.head_dim(fields, hidden, heads)?,
            ffn: fields.needed_size("intermediate_size")?,
            max_positions: rope::stretched(&rope, trained),
            norm: Norm { kind: NormKind::Rms, eps, affine: true },
            placement: NormPlacement::Pre,
            final_norm: true,
            activation: activation(fields, "hidden_act", "silu")?,
            mlp: Mlp::Gated,
            positions: Positions::Rope(rope),
            biases: self.biases(fields)?,
            qk_norm: self == Family::Qwen3,
            window: self.window(fields, layers)?,
            tied_head: fields.flag("tie_word_embeddings")?.unwrap_or(false),
            embed_dim: hidden,
            bos: self.bos(fields)?,
            eos: self.ends(fields)?,
            dtype: DType::F32,
        })
    }

    /// The defaults of transformers' configuration classes.
    fn max_positions(self, fields: &Fields) -> Result<usize> {
        let default = match self {
            Family::Mistral => 131_072,
            Family::Qwen2 | Family::Qwen3 => 32_768,
            Family::Llama | Family::Opt => 2048,
        };
        Ok(fields.size("max_position_embeddings")?.unwrap_or(default))
    }

    /// Some families know their tokens; a field that says `null` says that there is none.
    fn bos(self, fields: &Fields) -> Result<Option<u32>> {
        let default = match self {
            Family::Llama | Family::Mistral if !fields.has_null("bos_token_id") => Some(1),
            Family::Opt if !fields.has_null("bos_token_id") => Some(2),
            _ => None,
        };
        Ok(fields.tokens("bos_token_id")?.map_or(default, |ids| ids.first().copied()))
    }

    fn ends(self, fields: &Fields) -> Result<Vec<u32>> {
        let default = match self {
            Family::Llama | Family::Mistral | Family::Opt if !fields.has_null("eos_token_id") => vec![2],
            _ => vec![],
        };
        Ok(fields.tokens("eos_token_id")?.unwrap_or(default))
    }

    fn kv_heads(self, fields: &Fields, heads: usize) -> Result<usize> {
        let explicit_null = fields.has_null("num_key_value_heads");
        let default = match self {
            Family::Mistral if !explicit_null => 8,
            Family::Qwen2 | Family::Qwen3 if !explicit_null => 32,
            _ => heads,
        };
        Ok(fields.size("num_key_value_heads")?.unwrap_or(default))
    }

    fn head_dim(self, fields: &Fields, hidden: usize, heads: usize) -> Result<usize> {
        let default = if self == Family::Qwen3 { 128 } else { hidden / heads.max(1) };
        Ok(fields.size("head_dim")?.unwrap_or(default))
    }

    fn biases(self, fields: &Fields) -> Result<Biases> {
        let attention = fields.flag("attention_bias")?.unwrap_or(false);
        Ok(match self {
            Family::Llama => {
                Biases { qkv: attention, o: attention, mlp: fields.flag("mlp_bias")?.unwrap_or(false) }
            }
            Family::Qwen3 => Biases { qkv: attention, o: attention, mlp: false },
            Family::Qwen2 => Biases { qkv: true, o: false, mlp: false },
            Family::Mistral | Family::Opt => Biases::default(),
        })
    }

    fn window(self, fields: &Fields, layers: usize) -> Result<Window> {
        let tokens = fields.size("sliding_window")?;
        match self {
            Family::Llama | Family::Opt => Ok(Window::Full),
            Family::Mistral => {
                let default = if fields.has_null("sliding_window") { None } else { Some(4096) };
                mistral_window(fields, tokens.or(default), layers)
            }
            Family::Qwen2 | Family::Qwen3 => {
                let used = fields.flag("use_sliding_window")?.unwrap_or(false);
                let default = if fields.has_null("sliding_window") { None } else { Some(4096) };
                qwen_window(fields, tokens.or(default).filter(|_| used), layers)
            }
        }
    }
}

/// Checked at once, for a list of windows is as long.
fn layer_count(fields: &Fields) -> Result<usize> {
    let layers = fields.needed_size("num_hidden_layers")?;
    let plausible = layers <= LAYERS_MAX;
    plausible
        .then_some(layers)
        .ok_or_else(|| fields.wrong("num_hidden_layers", &format!("at most {LAYERS_MAX}")))
}

/// A window on the layers that `layer_types` names, or else on all. With that field transformers makes a Ministral of it.
fn mistral_window(fields: &Fields, tokens: Option<usize>, layers: usize) -> Result<Window> {
    match layer_types(fields, layers)? {
        Some(types) => window_of_types(fields, &types, tokens, "no sliding layers, or a `sliding_window`"),
        None => Ok(tokens.map_or(Window::Full, Window::Sliding)),
    }
}

/// A window on the layers that `layer_types` names, or else on those from `max_window_layers`.
fn qwen_window(fields: &Fields, tokens: Option<usize>, layers: usize) -> Result<Window> {
    let first = fields.size("max_window_layers")?.unwrap_or(28);
    let by_number = |layer| if layer >= first { LayerType::Sliding } else { LayerType::Full };
    let types = match layer_types(fields, layers)? {
        Some(types) => types,
        None => (0..layers).map(|l| if tokens.is_some() { by_number(l) } else { LayerType::Full }).collect(),
    };
    window_of_types(
        fields,
        &types,
        tokens,
        "no sliding layers, or `use_sliding_window` with a `sliding_window`",
    )
}

fn window_of_types(
    fields: &Fields,
    types: &[LayerType],
    tokens: Option<usize>,
    expected: &str,
) -> Result<Window> {
    if !types.contains(&LayerType::Sliding) {
        return Ok(Window::Full);
    }
    let tokens = tokens.ok_or_else(|| fields.wrong("layer_types", expected))?;
    Ok(Window::PerLayer(types.iter().map(|t| (*t == LayerType::Sliding).then_some(tokens)).collect()))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LayerType {
    Full,
    Sliding,
}

fn layer_types(fields: &Fields, layers: usize) -> Result<Option<Vec<LayerType>>> {
    let Some(names) = fields.texts("layer_types")? else { return Ok(None) };
    if names.len() != layers {
        return Err(fields.wrong("layer_types", &format!("an entry for each of {layers} layers")));
    }
    let types = names.iter().map(|name| match *name {
        "full_attention" => Ok(LayerType::Full),
        "sliding_attention" => Ok(LayerType::Sliding),
        other => Err(Error::unsupported(
            fields.file,
            format!("a layer of type `{}`", other.escape_debug()),
            "full_attention, sliding_attention",
        )),
    });
    types.collect::<Result<_>>().map(Some)
}

fn activation(fields: &Fields, name: &str, default: &str) -> Result<Activation> {
    match fields.text(name)?.unwrap_or(default) {
        "silu" | "swish" => Ok(Activation::Silu),
        "relu" => Ok(Activation::Relu),
        "gelu" | "gelu_python" => Ok(Activation::Gelu),
        // One function, written in several ways.
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_fast" | "gelu_accurate" => {
            Ok(Activation::GeluTanh)
        }
        other => Err(Error::unsupported(
            fields.file,
            format!("`{name}` = `{}`", other.escape_debug()),
            "silu, relu, gelu, gelu_new, gelu_pytorch_tanh",
        )),
    }
}

fn opt(fields: &Fields) -> Result<ModelSpec> {
    let hidden = fields.needed_size("hidden_size")?;
    let heads = fields.needed_size("num_attention_heads")?;
    if heads == 0 || !hidden.is_multiple_of(heads) {
        return Err(fields.wrong("num_attention_heads", &format!("a divisor of hidden_size, {hidden}")));
    }
    let pre = fields.flag("do_layer_norm_before")?.unwrap_or(true);
    let bias = fields.flag("enable_bias")?.unwrap_or(true);
    let affine = fields.flag("layer_norm_elementwise_affine")?.unwrap_or(true);
    Ok(ModelSpec {
        architecture: Family::Opt.class().into(),
        vocab: fields.needed_size("vocab_size")?,
        hidden,
        layers: layer_count(fields)?,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        ffn: fields.needed_size("ffn_dim")?,
        max_positions: Family::Opt.max_positions(fields)?,
        norm: Norm { kind: NormKind::Layer, eps: 1e-5, affine },
        placement: if pre { NormPlacement::Pre } else { NormPlacement::Post },
        final_norm: pre && !fields.flag("_remove_final_layer_norm")?.unwrap_or(false),
        activation: activation(fields, "activation_function", "relu")?,
        mlp: Mlp::Plain,
        positions: Positions::Learned { offset: OPT_POSITION_OFFSET },
        biases: Biases { qkv: bias, o: bias, mlp: bias },
        qk_norm: false,
        window: Window::Full,
        tied_head: fields.flag("tie_word_embeddings")?.unwrap_or(true),
        embed_dim: fields.size("word_embed_proj_dim")?.unwrap_or(hidden),
        bos: Family::Opt.bos(fields)?,
        eos: Family::Opt.ends(fields)?,
        dtype: DType::F32,
    })
}
