//! What architectures have otherwise than Llama, as GGUF files say it, or llama.cpp knows it by the architecture's name.

use super::Value;
use super::to_spec::Keys;
use crate::config::scales::{Granite, with_gemma, with_granite};
use crate::config::{with_exaone, with_olmo};
use crate::error::Result;
use spec::model::{Activation, NormPlacement, RopeLayers, Window};
use spec::{ModelSpec, Rope};

/// Every so many of SmolLM3's layers turn nothing.
const SMOLLM3_STEP: usize = 4;
/// One of so many of Gemma 3's layers sees everything.
pub(super) const GEMMA_PATTERN: usize = 6;
/// One of so many of OLMo 3's, and of EXAONE 4's.
pub(super) const OLMO_PATTERN: usize = 4;
/// Gemma 3 of 27B, by its layers, has scores of a factor of its own.
const GEMMA_27B: usize = 62;

/// What says in a list that a layer has no window.
const NO: [Value; 3] = [Value::Bool(false), Value::Uint(0), Value::Int(0)];

/// A Llama made into what the keys' architecture is.
pub(super) fn with_own(spec: ModelSpec, keys: &Keys) -> Result<ModelSpec> {
    match keys.architecture {
        "smollm3" => {
            let turns = (1..=spec.layers).map(|layer| layer % SMOLLM3_STEP != 0).collect();
            Ok(ModelSpec { rope_layers: RopeLayers::Listed(turns), ..spec })
        }
        "granite" => granite(spec, keys),
        "gemma3" => gemma(spec, keys),
        "olmo2" => olmo(spec, keys),
        "glm4" => Ok(ModelSpec { placement: NormPlacement::Around, ..spec }),
        "exaone4" => {
            let hybrid = spec.window != Window::Full;
            Ok(with_exaone(spec, hybrid))
        }
        _ => Ok(spec),
    }
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

fn gemma(spec: ModelSpec, keys: &Keys) -> Result<ModelSpec> {
    let theta = keys.float("rope.freq_base_swa")?.unwrap_or(10_000.0);
    let width = if spec.layers == GEMMA_27B { spec.hidden / spec.heads.max(1) } else { spec.head_dim };
    let spec = ModelSpec {
        activation: Activation::GeluTanh,
        rope_layers: RopeLayers::WindowsBy(Rope { rotary_fraction: fraction(&spec), ..Rope::plain(theta) }),
        ..spec
    };
    let dtype = spec.dtype;
    Ok(with_gemma(spec, 1.0 / (width as f32).sqrt(), dtype))
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
