//! The message that an answer is, and the blocks in it.

use serde_json::{Map, Value, json};

use super::super::blocks::{self, Block, Kind};
use super::super::response::counts;
use super::super::{Choice, Generate, Meta};
use crate::output::{FinishReason, StopCause};

/// The body of an answer.
pub(in super::super) fn response(request: &Generate, choice: &Choice, meta: &Meta) -> Value {
    let (blocks, has_called) = blocks::whole(request, choice, meta);
    let mut message = message(request, meta);
    message["content"] = blocks.iter().map(block).collect();
    let [reason, sequence] = stopped(request, choice, has_called);
    message["stop_reason"] = reason;
    message["stop_sequence"] = sequence;
    message["usage"] = usage(request, &choice.tokens, meta);
    if let Some(timings) = &meta.timings {
        message["timings"] = timings.body();
    }
    message
}

/// A message of which nothing is there yet.
pub(super) fn message(request: &Generate, meta: &Meta) -> Value {
    json!({
        "id": format!("msg_{}", meta.id),
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
        "usage": usage(request, &[], meta),
    })
}

/// A block that is whole.
fn block(block: &Block) -> Value {
    match &block.kind {
        Kind::Thought => json!({"type": "thinking", "thinking": block.text, "signature": ""}),
        Kind::Text => json!({"type": "text", "text": block.text}),
        Kind::Call { id, name } => {
            json!({"type": "tool_use", "id": id, "name": name, "input": input(&block.text)})
        }
    }
}

/// The arguments of a call. One that the end of the answer cut has none, as half an object is none; why the answer ended tells.
fn input(text: &str) -> Value {
    let object: Option<Map<String, Value>> = serde_json::from_str(text).ok();
    object.unwrap_or_default().into()
}

/// Why it ended, and the client's text that ended it.
pub(super) fn stopped(request: &Generate, choice: &Choice, has_called: bool) -> [Value; 2] {
    match (choice.finish.reason, &choice.finish.cause) {
        (FinishReason::Stop, Some(StopCause::Text(text))) => [json!("stop_sequence"), json!(text)],
        (FinishReason::Stop, _) if has_called => [json!("tool_use"), Value::Null],
        (FinishReason::Stop, _) => [json!("end_turn"), Value::Null],
        (FinishReason::Length, _) => {
            let asked = request.params.max_tokens.map_or(usize::MAX, |most| most as usize);
            let reason =
                if choice.tokens.len() < asked { "model_context_window_exceeded" } else { "max_tokens" };
            [json!(reason), Value::Null]
        }
        // It was to go on, and may.
        (FinishReason::Abort, _) => [json!("pause_turn"), Value::Null],
    }
}

/// Token counts in this endpoint's words, in which what was found in the cache is no input. `answer`: the tokens so far.
pub(super) fn usage(request: &Generate, answer: &[u32], meta: &Meta) -> Value {
    let [prompt, _] = counts(request, &[]);
    let cached = meta.cached_tokens.unwrap_or(0).min(prompt);
    let mut usage = json!({
        "input_tokens": prompt - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": answer.len(),
    });
    if let Some(thought) = request.thoughts.as_ref().and_then(|thoughts| thoughts.count(answer)) {
        usage["output_tokens_details"] = json!({"thinking_tokens": thought});
    }
    usage
}
