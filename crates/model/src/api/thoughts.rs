//! `reasoning_format`, `include_reasoning` and `thinking_token_budget`: what becomes of a model's thoughts, and how many there may be.

use serde_json::Value;

use super::fields::Fields;
use super::{ApiError, Context, Generate};
use crate::template::{ChatTemplate, Ending};
use crate::thoughts::{Shown, Thoughts};

const BUDGET: &str = "thinking_token_budget";

/// How the thoughts of answers to the conversation that became `prompt` are read, if there may be some.
pub(super) fn read(
    fields: &mut Fields,
    (prompt, continued): (&str, Option<&str>),
    template: &ChatTemplate,
    context: &Context,
) -> Result<Option<Thoughts>, ApiError> {
    let apart = match fields.text("reasoning_format")?.as_deref() {
        None | Some("auto" | "deepseek") => true,
        Some("none") => false,
        Some(other) => {
            let message = format!("reasoning_format: expected auto, deepseek or none, found {other:?}");
            return Err(ApiError::invalid("reasoning_format", message));
        }
    };
    let shown = match fields.flag("include_reasoning")? {
        Some(false) => Shown::Never,
        _ => Shown::Beside,
    };
    let budget = budget(fields)?;
    if budget.is_some() && !apart {
        let message = format!("{BUDGET} and reasoning_format: none exclude each other");
        return Err(ApiError::invalid(BUDGET, message));
    }
    let Some(markers) = template.thoughts().filter(|_| apart) else { return Ok(None) };
    let markers = if budget.is_some() { markers.of_at_most(budget) } else { markers };
    Ok(Thoughts::behind(prompt, continued, markers, context.tokenizer, shown))
}

/// By vLLM's name, or llama.cpp's, whose -1 is no limit.
fn budget(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let (ours, other) = (fields.integer(BUDGET)?, fields.integer("thinking_budget_tokens")?);
    let most = ours.or(other).filter(|most| *most >= 0);
    Ok(most.map(|most| u32::try_from(most).unwrap_or(u32::MAX)))
}

/// The text that an answer goes on with, if it does with any.
pub(super) fn continued(body: &Value, ending: Ending) -> Option<&str> {
    let content =
        &body["messages"].as_array().filter(|_| ending == Ending::ContinueFinal)?.last()?["content"];
    content.as_str().or_else(|| content.as_array()?.iter().rev().find_map(|part| part["text"].as_str()))
}

/// A form holds behind thoughts. Where no token tells where they end, it holds from the first one on, and there are none; a limit
/// cannot be kept then.
pub(super) fn before(thoughts: Option<Thoughts>, mut request: Generate) -> Result<Generate, ApiError> {
    let Some(thoughts) = thoughts else { return Ok(request) };
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
    Ok(Generate { thoughts: Some(thoughts), ..request })
}
