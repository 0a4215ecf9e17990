//! `reasoning_format`, `include_reasoning` and `thinking_token_budget`: what becomes of a model's thoughts, and how many there may be.

use serde_json::Value;

use super::fields::Fields;
use super::{ApiError, Context, Generate};
use crate::template::{ChatTemplate, Ending};
use crate::thoughts::{Manner, Shown, Thoughts};

const BUDGET: &str = "thinking_token_budget";

/// How the thoughts of answers to the conversation that became `prompt` are read, if there may be some.
pub(super) fn read(
    fields: &mut Fields,
    (prompt, continued): (&str, Option<&str>),
    template: &ChatTemplate,
    context: &Context,
) -> Result<Option<Thoughts>, ApiError> {
    let included = fields.flag("include_reasoning")? != Some(false);
    let usual = context.thoughts;
    let shown = match (fields.text("reasoning_format")?.as_deref(), included) {
        (None, _) if usual.shown == Shown::InText => Shown::InText,
        (None | Some("auto" | "deepseek"), true) => Shown::Beside,
        (None | Some("auto" | "deepseek"), false) => Shown::Never,
        (Some("none"), _) => Shown::InText,
        (Some(other), _) => {
            let message = format!("reasoning_format: expected auto, deepseek or none, found {other:?}");
            return Err(ApiError::invalid("reasoning_format", message));
        }
    };
    let manner = Manner { shown, most: budget(fields)?.unwrap_or(usual.most) };
    let markers = template.thoughts();
    Ok(markers.and_then(|markers| Thoughts::behind(prompt, continued, markers, context.tokenizer, manner)))
}

/// What is said of a limit, by vLLM's name or llama.cpp's: there is none, where it is less than 0.
fn budget(fields: &mut Fields) -> Result<Option<Option<u32>>, ApiError> {
    let (ours, other) = (fields.integer(BUDGET)?, fields.integer("thinking_budget_tokens")?);
    let limit = |most: i64| (most >= 0).then(|| u32::try_from(most).unwrap_or(u32::MAX));
    Ok(ours.or(other).map(limit))
}

/// The text that an answer goes on with, if it does with any.
pub(super) fn continued(body: &Value, ending: Ending) -> Option<&str> {
    let content =
        &body["messages"].as_array().filter(|_| ending == Ending::ContinueFinal)?.last()?["content"];
    content.as_str().or_else(|| content.as_array()?.iter().rev().find_map(|part| part["text"].as_str()))
}

/// A form holds behind thoughts that are told apart. Where no token tells where they end, it holds from the first one on, and there
/// are none; a limit cannot be kept then.
pub(super) fn before(thoughts: Option<Thoughts>, mut request: Generate) -> Result<Generate, ApiError> {
    let Some(thoughts) = thoughts else { return Ok(request) };
    if !thoughts.are_apart() && request.params.grammar.is_some() {
        return Ok(request);
    }
    if thoughts.is_marked_by_tokens() {
        request.params.grammar = thoughts.then(request.params.grammar);
    } else if thoughts.are_limited() {
        return Err(ApiError::not_supported(
            BUDGET,
            "a limit of thoughts whose marks are no tokens of the model",
        ));
    } else if request.params.grammar.is_some() {
        return Ok(request);
    }
    Ok(Generate { thoughts: Some(thoughts).filter(Thoughts::are_apart), ..request })
}
