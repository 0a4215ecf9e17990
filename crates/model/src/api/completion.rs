//! `/v1/completions`: a text to go on with.

use std::ops::Range;

use serde_json::Value;

use super::fields::{Fields, token_ids};
use super::request::{Common, MAX_PROMPTS};
use super::{ApiError, Context, Endpoint, Generate, check, schema};
use crate::tokenizer::Special;

/// Tokens of an answer where nobody says, as OpenAI has it.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// Reads the body of `/v1/completions`.
pub fn completion(body: &Value, context: &Context) -> Result<Generate, ApiError> {
    let mut fields = Fields::of(body)?;
    let mut common = Common::read(&mut fields, context)?;
    common.overrides.logprobs = fields.count_or_off("logprobs")?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    if echo && common.overrides.logprobs.is_some() && common.overrides.prompt_logprobs.is_none() {
        common.overrides.prompt_logprobs = common.overrides.logprobs;
        common.prompt_scores_field = "logprobs";
    }
    if common.overrides.max_tokens == Some(0) && !echo {
        return Err(ApiError::invalid("max_tokens", "max_tokens: 0 tokens are possible with echo only"));
    }
    let special = match fields.flag("add_special_tokens")? {
        Some(false) => Special::Without,
        _ => Special::With,
    };
    let prompt = fields.value("prompt").ok_or_else(|| ApiError::invalid("prompt", "prompt is missing"))?;
    let prompts = prompts(prompt, special, &common, context)?;
    let given = prompts.iter().map(|prompt| (prompt.given.clone(), prompt.tokens.len())).collect::<Vec<_>>();
    let (tokens, truncation) = (prompts.into_iter().map(|prompt| prompt.tokens).collect(), common.truncation);
    let generate = common.finish(Endpoint::Completions, tokens, Some(DEFAULT_MAX_TOKENS), fields, context)?;
    check::form(&schema::COMPLETION, body)?;
    let left = given.into_iter().zip(&generate.prompts);
    let left = left.map(|((given, len), prompt)| truncation.moved(given, len, prompt.len()));
    Generate { echo: echo.then(|| left.collect()), ..generate }.checked()
}

/// A prompt, and which of its tokens the client gave: the tokenizer puts others around a text.
struct Prompt {
    tokens: Vec<u32>,
    given: Range<usize>,
}

impl Prompt {
    fn of_text(text: &str, special: Special, common: &Common, context: &Context) -> Result<Prompt, ApiError> {
        let tokens = common.encode("prompt", text, special, context)?;
        let (before, after) = match special {
            Special::With => context.tokenizer.added(),
            Special::Without => (0, 0),
        };
        Ok(Prompt { given: before..tokens.len() - after, tokens })
    }

    fn of_tokens(tokens: Vec<u32>) -> Prompt {
        Prompt { given: 0..tokens.len(), tokens }
    }
}

/// A string, a list of strings, token ids, or a list of lists of them.
fn prompts(
    prompt: &Value,
    special: Special,
    common: &Common,
    context: &Context,
) -> Result<Vec<Prompt>, ApiError> {
    let wrong = || {
        ApiError::invalid(
            "prompt",
            "prompt: expected a string, a list of strings, token ids, or a list of lists of token ids",
        )
    };
    let list = match prompt {
        Value::String(text) => return Ok(vec![Prompt::of_text(text, special, common, context)?]),
        Value::Array(list) if list.is_empty() => {
            return Err(ApiError::invalid("prompt", "prompt: the list is empty"));
        }
        Value::Array(list) => list,
        _ => return Err(wrong()),
    };
    if list[0].is_number() {
        return Ok(vec![Prompt::of_tokens(token_ids(prompt).ok_or_else(wrong)?)]);
    }
    if list.len() > MAX_PROMPTS {
        let message = format!("prompt: {} prompts; at most {MAX_PROMPTS}", list.len());
        return Err(ApiError::invalid("prompt", message));
    }
    let one = |prompt: &Value| match prompt {
        Value::String(text) => Prompt::of_text(text, special, common, context),
        ids => token_ids(ids).map(Prompt::of_tokens).ok_or_else(wrong),
    };
    list.iter().map(one).collect()
}
