//! What architectures have otherwise than Llama, as GGUF files say it, or llama.cpp knows it by the architecture's name.

use super::Value;
use super::to_spec::Keys;
use crate::config::scales::{GEMMA_LOGIT_CAP, GEMMA_SCORE_CAP, Granite, of_gemma_embeddings, with_granite};
use crate::config::{
    with_cohere, with_exaone, with_neox, with_olmo, with_phi, with_stablelm, with_starcoder2,
    with_windows_turning,
};
use crate::error::Result;
use spec::model::{Activation, Mlp, NormPlacement, RopeLayers, Window};
use spec::{ModelSpec, Rope};

/// Every so many of SmolLM3's layers turn nothing.
const SMOLLM3_STEP: usize = 4;
/// One of so many of Gemma 3's layers sees everything,
pub(super) const GEMMA_PATTERN: usize = 6;
/// and of Gemma 2's, whose others see so far where files do not say it.
pub(super) const GEMMA_2: (usize, usize) = (2, 4096);
/// One of so many of OLMo 3's, of EXAONE 4's and of Cohere's.
pub(super) const OLMO_PATTERN: usize = 4;
/// Gemmas of 27B have scores of a factor of their own: of the second, by its layers, and of the third.
const GEMMA_27B: [usize; 2] = [46, 62];

/// What says in a list that a layer has no window.
const NO: [Value; 3] = [Value::Bool(false), Value::Uint(0), Value::Int(0)];

/// A Llama made into what the keys' architecture is. `has`: whether the file has a tensor of this name.
pub(super) fn with_own(spec: ModelSpec, keys: &Keys, has: impl Fn(&str) -> bool) -> Result<ModelSpec> {
    match keys.architecture {
        "smollm3" => {
            let turns = (1..=spec.layers).map(|layer| layer % SMOLLM3_STEP != 0).collect();
            Ok(ModelSpec { rope_layers: RopeLayers::Listed(turns), ..spec })
        }
        "granite" => granite(spec, keys),
        "gemma" => Ok(gemma(spec)),
        "gemma2" => gemma2(spec, keys),
        "gemma3" => gemma3(spec, keys),
        "olmo2" => olmo(spec, keys),
        "glm4" => Ok(ModelSpec { placement: NormPlacement::Around, ..spec }),
        "exaone4" => {
            let hybrid = spec.window != Window::Full;
            Ok(with_exaone(spec, hybrid))
        }
        "command-r" => cohere(spec, keys),
        "cohere2" => cohere(spec, keys).map(with_windows_turning),
        "phi2" => Ok(with_phi(ModelSpec { activation: Activation::GeluTanh, ..spec })),
        "starcoder2" => Ok(with_starcoder2(ModelSpec { activation: Activation::GeluTanh, ..spec })),
        // Files hold its norms as they multiply.
        "nemotron" => Ok(with_starcoder2(ModelSpec { activation: Activation::Relu2, ..spec })),
        "arcee" => Ok(ModelSpec { activation: Activation::Relu2, mlp: Mlp::Plain, ..spec }),
        "gptneox" => {
            let spec = ModelSpec { activation: Activation::Gelu, ..spec };
            let parallel = keys.metadata.bool(&keys.name("use_parallel_residual"))?;
            Ok(with_neox(spec, parallel.unwrap_or(true)))
        }
        // Its converter writes that key as it likes, and llama.cpp goes by this.
        "stablelm" => Ok(with_stablelm(spec, !has("blk.0.ffn_norm.weight"))),
        _ => Ok(spec),
    }
}

/// Files name the factor that logits are multiplied by; with none there is none.
fn cohere(spec: ModelSpec, keys: &Keys) -> Result<ModelSpec> {
    let factor = keys.float("logit_scale")?.filter(|factor| *factor != 0.0);
    Ok(with_cohere(spec, factor.unwrap_or(1.0)))
}

fn granite(spec: ModelSpec, keys: &Keys) -> Result<ModelSpec> {
    let factor = |key| keys.float(key).map(|factor| factor.filter(|factor| *factor != 0.0));
    let factors = Granite {
        embedding: factor("embedding_scale")?.unwrap_or(1.0),
        attention: factor("attention.scale")?.unwrap_or(f64::from(spec.attention_scale)),
        residual: factor("residual_scale")?.unwrap_or(1.0),
        logits: factor("logit_scale")?.unwrap_or(1.0),
    };
    // Granite without positions says so by this key.
    let turns = keys.metadata.bool(&keys.name("rope.scaling.finetuned"))?.unwrap_or(true);
    let rope_layers = if turns { RopeLayers::All } else { RopeLayers::Listed(vec![false; spec.layers]) };
    Ok(ModelSpec { rope_layers, ..with_granite(spec, &factors) })
}

/// Files hold its norms as they multiply.
fn gemma(spec: ModelSpec) -> ModelSpec {
    let embed_scale = of_gemma_embeddings(spec.hidden, spec.dtype);
    ModelSpec { activation: Activation::GeluTanh, embed_scale, ..spec }
}

/// The same with norms around all that is added, and scores of a factor by the model's size.
fn gemma_around(spec: ModelSpec, of_27b: usize) -> ModelSpec {
    let width = if spec.layers == of_27b { spec.hidden / spec.heads.max(1) } else { spec.head_dim };
    let attention_scale = 1.0 / (width as f32).sqrt();
    ModelSpec { placement: NormPlacement::Around, attention_scale, ..gemma(spec) }
}

fn gemma2(spec: ModelSpec, keys: &Keys) -> Result<ModelSpec> {
    let cap = |key, known| -> Result<Option<f32>> {
        let cap = keys.float(key)?.unwrap_or(known);
        Ok((cap != 0.0).then_some(cap as f32))
    };
    let score_cap = cap("attn_logit_softcapping", GEMMA_SCORE_CAP)?;
    let logit_cap = cap("final_logit_softcapping", GEMMA_LOGIT_CAP)?;
    Ok(ModelSpec { score_cap, logit_cap, ..gemma_around(spec, GEMMA_27B[0]) })
}

fn gemma3(spec: ModelSpec, keys: &Keys) -> Result<ModelSpec> {
    let theta = keys.float("rope.freq_base_swa")?.unwrap_or(10_000.0);
    let of_windows = Rope { rotary_fraction: fraction(&spec), ..Rope::plain(theta) };
    let rope_layers = RopeLayers::WindowsBy(of_windows);
    Ok(ModelSpec { rope_layers, ..gemma_around(spec, GEMMA_27B[1]) })
}

/// OLMo 2, and OLMo 3, which has windows.
fn olmo(spec: ModelSpec, keys: &Keys) -> Result<ModelSpec> {
    if spec.window == Window::Full {
        return Ok(with_olmo(spec));
    }
    let theta = match keys.float("rope.freq_base_swa")? {
        Some(theta) => theta,
        None => spec.rope().map_or(10_000.0, |rope| rope.theta),
    };
    let plain = Rope { rotary_fraction: fraction(&spec), ..Rope::plain(theta) };
    Ok(with_olmo(ModelSpec { rope_layers: RopeLayers::WindowsBy(plain), ..spec }))
}

fn fraction(spec: &ModelSpec) -> f64 {
    spec.rope().map_or(1.0, |rope| rope.rotary_fraction)
}

/// A window on all layers but every `pattern`th, or as the file says: a number, or a list of those that have one.
pub(super) fn window_but_each(pattern: usize, keys: &Keys, tokens: usize) -> Result<Window> {
    let layers = keys.layers()?;
    let key = "attention.sliding_window_pattern";
    let slides: Vec<bool> = match keys.metadata.get(&keys.name(key)) {
        Some(Value::Numbers(list)) => list.iter().map(|slides| !NO.contains(&slides)).collect(),
        _ => {
            let pattern = keys.size(key)?.unwrap_or(pattern);
            (1..=layers).map(|layer| pattern == 0 || layer % pattern != 0).collect()
        }
    };
    Ok(Window::PerLayer(slides.into_iter().map(|slides| slides.then_some(tokens)).collect()))
}
