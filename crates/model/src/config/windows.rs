//! How far back queries of each layer look, as configurations say it.

use crate::error::{Error, Result};
use crate::json::Fields;
use spec::model::Window;

/// A window on the layers that `layer_types` names, or else on all. With that field transformers makes a Ministral of it.
pub(super) fn mistral(fields: &Fields, tokens: Option<usize>, layers: usize) -> Result<Window> {
    match layer_types(fields, layers)? {
        Some(types) => window_of_types(fields, &types, tokens, "no sliding layers, or a `sliding_window`"),
        None => Ok(tokens.map_or(Window::Full, Window::Sliding)),
    }
}

/// A window on the layers that `layer_types` names, or else on those from `max_window_layers`.
pub(super) fn qwen(fields: &Fields, tokens: Option<usize>, layers: usize) -> Result<Window> {
    let first = fields.size("max_window_layers")?.unwrap_or(28);
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
pub(super) fn all_but_each(
    pattern: usize,
    fields: &Fields,
    tokens: Option<usize>,
    layers: usize,
) -> Result<Window> {
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
pub(super) fn exaone4(fields: &Fields, tokens: Option<usize>, layers: usize) -> Result<Window> {
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
pub(super) fn smollm3(fields: &Fields, tokens: Option<usize>, turns: &[bool]) -> Result<Window> {
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
