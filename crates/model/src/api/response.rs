//! Response bodies: what was generated, in the shapes of the two endpoints.

use serde_json::{Value, json};

use super::echo::{Offsets, echoed};
use super::logprobs::Shown;
use super::{Endpoint, Generate, Timings};
use crate::output::{Finish, FinishReason, StopCause};
use crate::sampling::TokenLogprobs;
use crate::tokenizer::Tokenizer;
use crate::tools::Call;

/// What a response says about itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Meta {
    /// Unique part of the id; `cmpl-` or `chatcmpl-` is put before it.
    pub id: String,
    /// Unix seconds.
    pub created: u64,
    /// Prompt tokens found in the prefix cache; none where that is not known.
    pub cached_tokens: Option<usize>,
    /// Where they are to be told.
    pub timings: Option<Timings>,
}

/// One answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Which prompt it answers.
    pub prompt: usize,
    /// The text that was shown, without the prompt.
    pub text: String,
    /// All tokens taken, the one that ended the text included.
    pub tokens: Vec<u32>,
    /// For each token, if the request asks.
    pub logprobs: Vec<TokenLogprobs>,
    /// For each token of the prompt (none for the first), if the request asks.
    pub prompt_logprobs: Vec<Option<TokenLogprobs>>,
    /// How it ended.
    pub finish: Finish,
}

/// The body for a request: `choices` are all choices of the first prompt, then of the second, ...
pub fn response(request: &Generate, choices: &[Choice], meta: &Meta, tokenizer: &Tokenizer) -> Value {
    let shown = Shown::new(tokenizer, request);
    let object = match request.endpoint {
        Endpoint::Completions => "text_completion",
        Endpoint::Chat => "chat.completion",
    };
    let choice = |(index, choice)| match request.endpoint {
        Endpoint::Completions => completion_choice(request, index, choice, &shown),
        Endpoint::Chat => chat_choice(request, index, choice, meta, &shown),
    };
    let n_prompt = request.prompts.iter().map(Vec::len).sum();
    let n_completion = choices.iter().map(|c| c.tokens.len()).sum();
    let mut body = json!({
        "id": id(request.endpoint, meta),
        "object": object,
        "created": meta.created,
        "model": request.model,
        "choices": choices.iter().enumerate().map(choice).collect::<Vec<_>>(),
        "usage": usage(n_prompt, n_completion, meta),
    });
    if let Some(timings) = &meta.timings {
        body["timings"] = timings.body();
    }
    if request.endpoint == Endpoint::Chat {
        if request.params.prompt_logprobs.is_some() {
            body["prompt_logprobs"] =
                choices.first().map_or(Value::Null, |c| shown.prompt(&c.prompt_logprobs));
        }
        if request.return_token_ids {
            body["prompt_token_ids"] = json!(request.prompts[0]);
        }
    }
    body
}

fn completion_choice(request: &Generate, index: usize, choice: &Choice, shown: &Shown) -> Value {
    let prompt = &request.prompts[choice.prompt];
    let mut text = choice.text.clone();
    if request.echo.is_some() {
        text.insert_str(0, &echoed(request, choice.prompt, shown.tokenizer));
    }
    let mut value = json!({
        "index": index,
        "text": text,
        "logprobs": completion_logprobs(request, prompt, choice, shown),
        "finish_reason": choice.finish.reason.as_str(),
        "stop_reason": stop_reason(&choice.finish),
    });
    if request.params.prompt_logprobs.is_some() {
        value["prompt_logprobs"] = shown.prompt(&choice.prompt_logprobs);
    }
    if request.return_token_ids {
        value["token_ids"] = json!(choice.tokens);
        value["prompt_token_ids"] = json!(prompt);
    }
    value
}

fn completion_logprobs(request: &Generate, prompt: &[u32], choice: &Choice, shown: &Shown) -> Value {
    if request.params.logprobs.is_none() {
        return Value::Null;
    }
    let mut places = Offsets::new(request, choice.prompt, shown.tokenizer);
    let mut offsets = places.of_prompt(request, choice.prompt, shown.tokenizer);
    offsets.extend(places.of_answer(choice.logprobs.iter().map(|lp| lp.token), shown.tokenizer));
    let of_prompt = prompt.iter().enumerate().filter(|_| request.echo.is_some());
    let of_prompt = of_prompt.map(|(i, &id)| (id, choice.prompt_logprobs.get(i).and_then(Option::as_ref)));
    let generated = choice.logprobs.iter().map(|lp| (lp.token, Some(lp)));
    shown.completion(&of_prompt.chain(generated).collect::<Vec<_>>(), &offsets)
}

fn chat_choice(request: &Generate, index: usize, choice: &Choice, meta: &Meta, shown: &Shown) -> Value {
    let logprobs = match request.params.logprobs {
        Some(_) => shown.chat(&choice.logprobs),
        None => Value::Null,
    };
    let (message, n_calls) = message(request, index, choice, meta);
    let mut value = json!({
        "index": index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": finish_reason(&choice.finish, n_calls),
        "stop_reason": stop_reason(&choice.finish),
    });
    if request.return_token_ids {
        value["token_ids"] = json!(choice.tokens);
    }
    value
}

/// What the model says, and how many calls are in it.
fn message(request: &Generate, index: usize, choice: &Choice, meta: &Meta) -> (Value, usize) {
    let plain = |content: Value| json!({"role": "assistant", "content": content, "refusal": null});
    let Some(calls) = &request.calls else { return (plain(json!(choice.text)), 0) };
    let (text, found) = calls.split(&choice.text);
    if found.is_empty() {
        return (plain(json!(text)), 0);
    }
    let mut message = plain(if text.is_empty() { Value::Null } else { json!(text) });
    let call = |(n, call): (usize, &Call)| {
        let id = calls.format.call_id(&call_seed(meta, index, n));
        let function = json!({"name": call.name, "arguments": call.arguments});
        json!({"id": id, "type": "function", "function": function})
    };
    message["tool_calls"] = found.iter().enumerate().map(call).collect();
    (message, found.len())
}

/// What a call's id is made of: the same whether its answer is streamed or not.
pub(super) fn call_seed(meta: &Meta, choice: usize, call: usize) -> String {
    format!("{}-{choice}-{call}", meta.id)
}

/// As the client reads it: calls are a reason to stop of their own.
pub(super) fn finish_reason(finish: &Finish, n_calls: usize) -> &'static str {
    match finish.reason {
        FinishReason::Stop if n_calls > 0 => "tool_calls",
        reason => reason.as_str(),
    }
}

pub(super) fn stop_reason(finish: &Finish) -> Value {
    match &finish.cause {
        None => Value::Null,
        Some(StopCause::Token(id)) => json!(id),
        Some(StopCause::Text(text)) => json!(text),
    }
}

/// Token counts: each prompt once, however many choices it has.
pub(super) fn usage(prompt: usize, completion: usize, meta: &Meta) -> Value {
    let mut usage = json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    });
    if let Some(cached) = meta.cached_tokens {
        usage["prompt_tokens_details"] = json!({"cached_tokens": cached});
    }
    usage
}

/// `cmpl-7`
pub(super) fn id(endpoint: Endpoint, meta: &Meta) -> String {
    let prefix = match endpoint {
        Endpoint::Completions => "cmpl",
        Endpoint::Chat => "chatcmpl",
    };
    format!("{prefix}-{}", meta.id)
}
