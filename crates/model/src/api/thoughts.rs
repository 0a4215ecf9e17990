//! `reasoning_format` and `include_reasoning`: what becomes of a model's thoughts.

use serde_json::Value;

use super::fields::Fields;
use super::{ApiError, Context, Generate};
use crate::template::{ChatTemplate, Ending};
use crate::thoughts::{Shown, Thoughts};

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
    let Some(markers) = template.thoughts().filter(|_| apart) else { return Ok(None) };
    Ok(Thoughts::behind(prompt, continued, markers, context.tokenizer, shown))
}

/// The text that an answer goes on with, if it does with any.
pub(super) fn continued(body: &Value, ending: Ending) -> Option<&str> {
    let content =
        &body["messages"].as_array().filter(|_| ending == Ending::ContinueFinal)?.last()?["content"];
    content.as_str().or_else(|| content.as_array()?.iter().rev().find_map(|part| part["text"].as_str()))
}

/// A form holds behind thoughts. Where no token tells where they end, it holds from the first one on, and there are none.
pub(super) fn before(thoughts: Option<Thoughts>, mut request: Generate) -> Generate {
    let Some(thoughts) = thoughts else { return request };
    if let Some(form) = &request.params.grammar {
        let Some(form) = thoughts.then(form.clone()) else { return request };
        request.params.grammar = Some(form);
    }
    Generate { thoughts: Some(thoughts), ..request }
}
