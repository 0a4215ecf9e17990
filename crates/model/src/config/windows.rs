//! How far back queries of each layer look, as configurations say it.

use super::Family;
use crate::error::{Error, Result};
use crate::json::Fields;
use spec::model::{RopeLayers, Window};

impl Family {
    /// How far back its layers look.
    pub(super) fn window(self, fields: &Fields, layers: usize, rope_layers: &RopeLayers) -> Result<Window> {
        let tokens = fields.size("sliding_window")?;
        let known = if fields.has_null("sliding_window") { None } else { Some(4096) };
        let used = fields.flag("use_sliding_window")?.unwrap_or(false);
        match (self, rope_layers) {
            (
                Family::Llama
                | Family::Granite
                | Family::Granite4
                | Family::SeedOss
                | Family::Qwen3Vl
                | Family::Gemma
                | Family::Olmo2
                | Family::Glm
                | Family::Glm4
                | Family::Ernie45
                | Family::Cohere
                | Family::Phi
                | Family::NeoX
                | Family::StableLm
                | Family::Arcee
                | Family::Nemotron
                | Family::Opt,
                _,
            ) => Ok(Window::Full),
            (Family::Mistral, _) => mistral(fields, tokens.or(known), layers),
            (Family::Phi3 | Family::Ministral3 | Family::StarCoder2, _) => {
                Ok(tokens.map_or(Window::Full, Window::Sliding))
            }
            (Family::Gemma3, _) => {
                let pattern = fields.size("sliding_window_pattern")?.unwrap_or(6);
                all_but_each(pattern, fields, tokens.or(known), layers)
            }
            (Family::Gemma2, _) => all_but_each(2, fields, tokens.or(known), layers),
            (Family::Exaone4, _) => exaone4(fields, tokens.or(known), layers),
            (Family::Olmo3, _) => all_but_each(4, fields, tokens.or(known), layers),
            (Family::Cohere2, _) => {
                let pattern = fields.size("sliding_window_pattern")?.unwrap_or(4);
                all_but_each(pattern, fields, tokens.or(known), layers)
            }
            (Family::Qwen2 | Family::Qwen3, _) => {
                qwen(fields, tokens.or(known).filter(|_| used), (28, layers))
            }
            (Family::Qwen2Vl, _) => qwen(fields, tokens.or(known).filter(|_| used), (80, layers)),
            (Family::SmolLm3, RopeLayers::Listed(turns)) => smollm3(fields, tokens.filter(|_| used), turns),
            (Family::SmolLm3, _) => Ok(Window::Full),
        }
    }
}

/// A window on the layers that `layer_types` names, or else on all. With that field transformers makes a Ministral of it.
fn mistral(fields: &Fields, tokens: Option<usize>, layers: usize) -> Result<Window> {
    match layer_types(fields, layers)? {
        Some(types) => window_of_types(fields, &types, tokens, "no sliding layers, or a `sliding_window`"),
        None => Ok(tokens.map_or(Window::Full, Window::Sliding)),
    }
}

/// A window on the layers that `layer_types` names, or else on those from `max_window_layers`, or from the `known` one.
fn qwen(fields: &Fields, tokens: Option<usize>, (known, layers): (usize, usize)) -> Result<Window> {
    let first = fields.size("max_window_layers")?.unwrap_or(known);
    let types = match layer_types(fields, layers)? {
        Some(types) => types,
        None => (0..layers).map(|layer| LayerType::sliding_if(tokens.is_some() && layer >= first)).collect(),
    };
    window_of_types(
        fields,
        &types,
        tokens,
        "no sliding layers, or `use_sliding_window` with a `sliding_window`",
    )
}

/// A window on the layers that `layer_types` names, or else on all but every `pattern`th (Gemma 2 and 3, OLMo 3).
fn all_but_each(pattern: usize, fields: &Fields, tokens: Option<usize>, layers: usize) -> Result<Window> {
    if pattern == 0 {
        return Err(fields.wrong("sliding_window_pattern", "at least 1"));
    }
    let types = match layer_types(fields, layers)? {
        Some(types) => types,
        None => (1..=layers).map(|layer| LayerType::sliding_if(layer % pattern != 0)).collect(),
    };
    window_of_types(fields, &types, tokens, "no sliding layers, or a `sliding_window`")
}

/// The same of EXAONE 4, which may have no windows at all. Its pattern can be a text, where `layer_types` says it too.
fn exaone4(fields: &Fields, tokens: Option<usize>, layers: usize) -> Result<Window> {
    match (fields.get("layer_types"), tokens) {
        (None, None) => Ok(Window::Full),
        (None, _) => {
            let pattern = fields.size("sliding_window_pattern")?.unwrap_or(4);
            all_but_each(pattern, fields, tokens, layers)
        }
        (Some(_), _) => all_but_each(1, fields, tokens, layers),
    }
}

/// A window on the layers that `layer_types` names, or else on those that turn nothing (SmolLM3).
fn smollm3(fields: &Fields, tokens: Option<usize>, turns: &[bool]) -> Result<Window> {
    let types = match layer_types(fields, turns.len())? {
        Some(types) => types,
        None => turns.iter().map(|turns| LayerType::sliding_if(tokens.is_some() && !turns)).collect(),
    };
    let expected = "no sliding layers, or `use_sliding_window` with a `sliding_window`";
    window_of_types(fields, &types, tokens, expected)
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

impl LayerType {
    fn sliding_if(slides: bool) -> LayerType {
        if slides { LayerType::Sliding } else { LayerType::Full }
    }
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
