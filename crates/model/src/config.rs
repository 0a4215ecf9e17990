//! `config.json` of Hugging Face, in the dialects of transformers 4 and 5, to a [`ModelSpec`].
//!
//! Where the two would differ from what transformers computes, the value is refused: nothing that
//! changes a result is passed over.

mod beside;
mod family;
mod generation;
mod layer_norms;
mod opt;
mod rope;
pub(crate) mod scales;
mod tokens;
mod windows;

pub(crate) use beside::refuse_beside;
pub use family::Family;
pub(crate) use family::{with_exaone, with_olmo, with_windows_turning};
pub(crate) use layer_norms::{with_cohere, with_neox, with_phi, with_stablelm, with_starcoder2};

use crate::error::{Error, Result};
use crate::file::read_text;
use crate::json::{Fields, parse};
pub use crate::quantized::Scheme;
use crate::sampling::GenerationConfig;
use spec::ModelSpec;
use spec::model::DType;
use std::path::Path;

const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// More layers than any model has.
pub(crate) const LAYERS_MAX: usize = 1 << 16;

/// A configuration: the model, and how its files name tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The model. Its `dtype` is f32 where `states_dtype` is false.
    pub spec: ModelSpec,
    /// Which family of architectures.
    pub family: Family,
    /// Whether the file says which numbers the checkpoint was published in.
    pub states_dtype: bool,
    /// The model that sees images, whose decoder this is.
    pub whole: Option<Whole>,
    /// How its files hold weights of fewer bits than 16.
    pub quantized: Option<Scheme>,
}

/// A model that sees images, around its decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    /// Whether it says that the head is the embedding table; where it does not say, its files do.
    pub ties: Option<bool>,
}

impl Config {
    /// What files say, where the configuration does not: the numbers that the checkpoint was published in.
    pub(crate) fn publish_in(&mut self, dtype: DType) {
        self.spec.dtype = dtype;
        if self.family.is_gemma() {
            self.spec.embed_scale = scales::of_gemma_embeddings(self.spec.hidden, dtype);
        }
    }
}

/// Reads `config.json` and, beside it, the ends of text in `generation_config.json`.
///
/// # Errors
/// If a file is unreadable or malformed, or asks for what is not built.
pub fn read_config(folder: &Path) -> Result<Config> {
    refuse_beside(folder)?;
    let path = folder.join("config.json");
    let mut config = parse_config(&read_text(&path, CONFIG_BYTES_MAX)?, &path.display().to_string())?;
    if config.quantized.is_none() {
        config.quantized = beside::scheme_beside(folder)?;
    }
    if let Some(eos) = read_generation(folder)?.eos {
        config.spec.eos = eos;
    }
    Ok(config)
}

/// Reads `generation_config.json`; all absent where there is none.
///
/// # Errors
/// If it is unreadable or malformed.
pub fn read_generation(folder: &Path) -> Result<GenerationConfig> {
    let path = folder.join("generation_config.json");
    if !path.exists() {
        return Ok(GenerationConfig::default());
    }
    generation::parse(&read_text(&path, CONFIG_BYTES_MAX)?, &path.display().to_string())
}

/// Reads the text of a `generation_config.json` named `file` in messages.
///
/// # Errors
/// If it is malformed.
pub fn parse_generation(text: &str, file: &str) -> Result<GenerationConfig> {
    generation::parse(text, file)
}

/// Reads the text of a `config.json` named `file` in messages.
///
/// # Errors
/// If it is malformed, contradicts itself, or asks for what is not built.
pub fn parse_config(text: &str, file: &str) -> Result<Config> {
    let value = parse(text, file)?;
    let fields = Fields::of(&value, file)?;
    let outer = Family::of(&fields)?;
    // A model of text and images says what its decoder is inside; its tokens, and sometimes its numbers, outside.
    let text = fields.object("text_config")?.filter(|_| outer.may_see());
    let inner = text.as_ref().unwrap_or(&fields);
    let family = outer.of_text(inner)?;
    [&fields, inner].into_iter().try_for_each(|fields| refuse_variants(fields, family))?;
    let dtype = match dtype(&fields)? {
        None => dtype(inner)?,
        found => found,
    };
    let mut spec = family.spec(inner, dtype.unwrap_or(DType::F32))?;
    if let Some(ends) = fields.tokens("eos_token_id")? {
        spec.eos = ends;
    }
    let ties = match fields.flag("tie_word_embeddings")? {
        // Older versions of transformers have saved what is true of the decoder so.
        Some(false) if family == Family::Qwen2Vl => inner.flag("tie_word_embeddings")?.or(Some(false)),
        said => said,
    };
    spec.tied_head = ties.unwrap_or(spec.tied_head);
    spec.check().map_err(|e| Error::Spec { file: file.into(), source: e.in_words_of(&family.names()) })?;
    let whole = (text.is_some() || outer.sees()).then_some(Whole { ties });
    let quantized = match Scheme::read(&fields)? {
        None => Scheme::read(inner)?,
        found => found,
    };
    Ok(Config { spec, family, states_dtype: dtype.is_some(), whole, quantized })
}

/// Fields of other architectures that nobody sets without meaning it.
fn refuse_variants(fields: &Fields, family: Family) -> Result<()> {
    // Absent it is true; false, tokens attend to those after them, and null is as good as that.
    if fields.flag("is_causal")? == Some(false) || fields.has_null("is_causal") {
        return Err(Error::unsupported(fields.file, "`is_causal` that is not true", "causal models"));
    }
    let others = [
        "clip_qkv",
        "num_local_experts",
        "num_experts",
        "n_routed_experts",
        "use_bidirectional_attention",
        "adapter_config",
        "transformers_weights",
    ];
    let caps = ["attn_logit_softcapping", "final_logit_softcapping"];
    let of_gemma: &[_] = match family {
        Family::Gemma2 => &[],
        Family::Gemma3 => &caps,
        _ => &[caps[0], caps[1], "query_pre_attn_scalar"],
    };
    // Layer norms of queries and keys, with a shift (Phi), in tensors of each head (StableLM 2 12B), or that transformers would pass
    // over (Command A).
    let head_norms: &[_] = match family {
        Family::Phi | Family::StableLm => &["qk_layernorm"],
        Family::Cohere2 => &["use_qk_norm"],
        _ => &[],
    };
    match fields.first_set(&[&others, of_gemma, head_norms].concat()) {
        None => Ok(()),
        Some(name) => Err(Error::unsupported(fields.file, format!("`{name}`"), "models without it")),
    }
}

fn dtype(fields: &Fields) -> Result<Option<DType>> {
    let name = if fields.get("dtype").is_some() { "dtype" } else { "torch_dtype" };
    let Some(text) = fields.text(name)? else { return Ok(None) };
    match text.trim_start_matches("torch.") {
        "float32" | "float" => Ok(Some(DType::F32)),
        "float16" | "half" => Ok(Some(DType::F16)),
        "bfloat16" => Ok(Some(DType::Bf16)),
        _ => Err(fields.wrong(name, "float32, float16 or bfloat16")),
    }
}

#[cfg(test)]
mod tests;
