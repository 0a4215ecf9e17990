//! `reasoning_format` and `include_reasoning`: what becomes of a model's thoughts.

use super::fields::Fields;
use super::{ApiError, Context, Generate};
use crate::template::ChatTemplate;
use crate::thoughts::{Answer, Shown, Thoughts};

/// How the thoughts of answers to the conversation that became `prompt` are read, if there may be some.
pub(super) fn read(
    fields: &mut Fields,
    prompt: &str,
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
    let answer = match fields.flag("continue_final_message")? {
        Some(true) => Answer::GoesOn,
        _ => Answer::Begins,
    };
    let Some(markers) = template.thoughts().filter(|_| apart) else { return Ok(None) };
    Ok(Thoughts::behind(prompt, answer, markers, context.tokenizer, shown))
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
