//! Response bodies: what was generated, in the shapes of the endpoints. Those of the two older ones are written here.

use serde_json::{Value, json};

use super::echo::{Offsets, echoed};
use super::logprobs::{self, Shown};
use super::text::Text;
use super::{Endpoint, Generate, Timings, messages, responses};
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

/// Tokens of the prompts, each once however many choices it has, and of the answers.
pub fn counts(request: &Generate, choices: &[Choice]) -> [usize; 2] {
    [request.prompts.iter().map(Vec::len).sum(), choices.iter().map(|c| c.tokens.len()).sum()]
}

/// The body for a request, as JSON: `choices` are all choices of the first prompt, then of the second, ...
pub fn response(request: &Generate, choices: &[Choice], meta: &Meta, tokenizer: &Tokenizer) -> String {
    match request.endpoint {
        // They have one choice.
        Endpoint::Responses => responses::response(request, &choices[0], meta).to_string(),
        Endpoint::Messages => messages::response(request, &choices[0], meta).to_string(),
        Endpoint::Completions | Endpoint::Chat => of_choices(request, choices, meta, tokenizer),
    }
}

fn of_choices(request: &Generate, choices: &[Choice], meta: &Meta, tokenizer: &Tokenizer) -> String {
    let shown = Shown::new(tokenizer, request);
    let [n_prompt, n_completion] = counts(request, choices);
    let n_thought = choices.iter().map(|choice| request.thoughts.as_ref()?.count(&choice.tokens)).sum();
    let object = match request.endpoint {
        Endpoint::Completions => "text_completion",
        _ => "chat.completion",
    };
    let mut body = json!({
        "id": id(request.endpoint, meta),
        "object": object,
        "created": meta.created,
        "model": request.model,
        "choices": [],
        "usage": usage(n_prompt, n_completion, n_thought, meta),
    });
    if let Some(timings) = &meta.timings {
        body["timings"] = timings.body();
    }
    if request.endpoint != Endpoint::Completions {
        if request.params.prompt_logprobs.is_some() {
            body["prompt_logprobs"] = Value::Null;
        }
        if request.return_token_ids {
            body["prompt_token_ids"] = json!(request.prompts[0]);
        }
    }
    let mut out = Text::default();
    out.object(fields(&body), |out, name, value| match (name, choices.first()) {
        ("choices", _) => out.list(choices.iter().enumerate(), |out, (index, choice)| {
            write_choice(request, (index, choice), meta, &shown, out);
        }),
        ("prompt_logprobs", Some(first)) => logprobs::write(shown.prompt(&first.prompt_logprobs), out),
        _ => out.value(value),
    });
    out.into_string()
}

fn fields(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    object.as_object().into_iter().flatten()
}

fn write_choice(
    request: &Generate,
    (index, choice): (usize, &Choice),
    meta: &Meta,
    shown: &Shown,
    out: &mut Text,
) {
    let value = match request.endpoint {
        Endpoint::Completions => completion_choice(request, index, choice, shown),
        _ => chat_choice(request, index, choice, meta),
    };
    let scored = request.params.logprobs.is_some();
    out.object(fields(&value), |out, name, value| match (name, request.endpoint) {
        ("logprobs", Endpoint::Completions) if scored => {
            write_completion_logprobs(request, choice, shown, out);
        }
        ("logprobs", _) if scored => shown.chat(&choice.logprobs).write(out),
        ("prompt_logprobs", _) => logprobs::write(shown.prompt(&choice.prompt_logprobs), out),
        _ => out.value(value),
    });
}

/// All of it but what was scored.
fn completion_choice(request: &Generate, index: usize, choice: &Choice, shown: &Shown) -> Value {
    let mut text = choice.text.clone();
    if request.echo.is_some() {
        text.insert_str(0, &echoed(request, choice.prompt, shown.tokenizer));
    }
    let mut value = json!({
        "index": index,
        "text": text,
        "logprobs": null,
        "finish_reason": choice.finish.reason.as_str(),
        "stop_reason": stop_reason(&choice.finish),
    });
    if request.params.prompt_logprobs.is_some() {
        value["prompt_logprobs"] = Value::Null;
    }
    if request.return_token_ids {
        value["token_ids"] = json!(choice.tokens);
        value["prompt_token_ids"] = json!(request.prompts[choice.prompt]);
    }
    value
}

fn write_completion_logprobs(request: &Generate, choice: &Choice, shown: &Shown, out: &mut Text) {
    let mut places = Offsets::new(request, choice.prompt, shown.tokenizer);
    let mut offsets = places.of_prompt(request, choice.prompt, shown.tokenizer);
    offsets.extend(places.of_answer(choice.logprobs.iter().map(|lp| lp.token), shown.tokenizer));
    let prompt = request.prompts[choice.prompt].iter();
    let of_prompt = prompt.enumerate().filter(|_| request.echo.is_some());
    let of_prompt = of_prompt.map(|(i, &id)| (id, choice.prompt_logprobs.get(i).and_then(Option::as_ref)));
    let generated = choice.logprobs.iter().map(|lp| (lp.token, Some(lp)));
    shown.completion(&of_prompt.chain(generated).collect::<Vec<_>>(), &offsets).write(out);
}

/// All of it but what was scored.
fn chat_choice(request: &Generate, index: usize, choice: &Choice, meta: &Meta) -> Value {
    let (message, calls) = message(request, index, choice, meta);
    let mut value = json!({
        "index": index,
        "message": message,
        "logprobs": null,
        "finish_reason": finish_reason(&choice.finish, calls),
        "stop_reason": stop_reason(&choice.finish),
    });
    if request.return_token_ids {
        value["token_ids"] = json!(choice.tokens);
    }
    value
}

/// What the model says, and whether that ends with a whole call, or text behind one.
fn message(request: &Generate, index: usize, choice: &Choice, meta: &Meta) -> (Value, bool) {
    let apart = request.apart(&choice.text);
    let plain = |content: Value| {
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if request.tells_thoughts() && !apart.thought.is_empty() {
            message["reasoning_content"] = json!(apart.thought);
        }
        message
    };
    let Some(calls) = &request.calls else { return (plain(json!(apart.text)), false) };
    let (text, found, is_cut) = calls.read(&apart.text);
    if found.is_empty() {
        return (plain(json!(text)), false);
    }
    let mut message = plain(if text.is_empty() { Value::Null } else { json!(text) });
    let call = |(n, call): (usize, &Call)| {
        let id = calls.format.call_id(&call_seed(meta, index, n));
        let function = json!({"name": call.name, "arguments": call.arguments});
        json!({"id": id, "type": "function", "function": function})
    };
    message["tool_calls"] = found.iter().enumerate().map(call).collect();
    (message, !is_cut)
}

/// What a call's id is made of: the same whether its answer is streamed or not.
pub(super) fn call_seed(meta: &Meta, choice: usize, call: usize) -> String {
    format!("{}-{choice}-{call}", meta.id)
}

/// As the client reads it: calls are a reason to stop of their own, if none of them was cut. `calls`: there are some, all whole.
pub(super) fn finish_reason(finish: &Finish, calls: bool) -> &'static str {
    match finish.reason {
        FinishReason::Stop if calls => "tool_calls",
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

/// Token counts: each prompt once, however many choices it has. `thought`: how many of the completion's are thoughts, where that
/// is known.
pub(super) fn usage(prompt: usize, completion: usize, thought: Option<usize>, meta: &Meta) -> Value {
    let mut usage = json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    });
    if let Some(cached) = meta.cached_tokens {
        usage["prompt_tokens_details"] = json!({"cached_tokens": cached});
    }
    if let Some(thought) = thought {
        usage["completion_tokens_details"] = json!({"reasoning_tokens": thought});
    }
    usage
}

/// `cmpl-7`
pub(super) fn id(endpoint: Endpoint, meta: &Meta) -> String {
    let prefix = match endpoint {
        Endpoint::Completions => "cmpl",
        _ => "chatcmpl",
    };
    format!("{prefix}-{}", meta.id)
}
