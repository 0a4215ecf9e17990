//! The object that an answer is, and the items in it.

use serde_json::{Value, json};

use super::super::blocks::{self, Block, Kind};
use super::super::response::counts;
use super::super::{Choice, Generate, Meta};
use crate::output::{Finish, FinishReason};

/// The body of an answer.
pub(in super::super) fn response(request: &Generate, choice: &Choice, meta: &Meta) -> Value {
    let (blocks, _) = blocks::whole(request, choice, meta);
    let blocks = if blocks.is_empty() { vec![nothing()] } else { blocks };
    let items = blocks
        .iter()
        .enumerate()
        .map(|(at, block)| item(request, meta, at, block, status_of(block)))
        .collect();
    let end = End { items, finish: &choice.finish, usage: usage(request, choice, meta) };
    finished(request, meta, end)
}

/// What a model says that says nothing.
pub(super) fn nothing() -> Block {
    Block { kind: Kind::Text, text: String::new(), is_cut: false }
}

/// What is known at the end of an answer.
pub(super) struct End<'a> {
    pub(super) items: Vec<Value>,
    pub(super) finish: &'a Finish,
    pub(super) usage: Value,
}

/// The object of an answer that has ended.
pub(super) fn finished(request: &Generate, meta: &Meta, end: End) -> Value {
    let (status, why) = match end.finish.reason {
        FinishReason::Stop => ("completed", Value::Null),
        FinishReason::Length => ("incomplete", json!({"reason": "max_output_tokens"})),
        FinishReason::Abort => ("cancelled", Value::Null),
    };
    let mut object = object(request, meta, status);
    object["incomplete_details"] = why;
    object["output"] = end.items.into();
    object["usage"] = end.usage;
    if let Some(timings) = &meta.timings {
        object["timings"] = timings.body();
    }
    object
}

/// The object of an answer of which nothing is there yet.
pub(super) fn object(request: &Generate, meta: &Meta, status: &str) -> Value {
    let mut object = json!({
        "id": id(meta),
        "object": "response",
        "created_at": meta.created,
        "status": status,
        "error": null,
        "incomplete_details": null,
        "model": request.model,
        "output": [],
        "usage": null,
    });
    if let (Value::Object(object), Some(kept)) = (&mut object, &request.kept) {
        object.extend(kept.repeated());
    }
    object
}

pub(super) fn id(meta: &Meta) -> String {
    format!("resp_{}", meta.id)
}

/// The id of an item: what it is, and where.
pub(super) fn item_id(meta: &Meta, at: usize, kind: &Kind) -> String {
    let prefix = match kind {
        Kind::Thought => "rs",
        Kind::Text => "msg",
        Kind::Call { .. } => "fc",
    };
    format!("{prefix}_{}-{at}", meta.id)
}

pub(super) fn status_of(block: &Block) -> &'static str {
    if block.is_cut { "incomplete" } else { "completed" }
}

/// An item, as far as it has come.
pub(super) fn item(request: &Generate, meta: &Meta, at: usize, block: &Block, status: &str) -> Value {
    let id = item_id(meta, at, &block.kind);
    match &block.kind {
        Kind::Thought => json!({"id": id, "type": "reasoning", "status": status, "summary": [],
                                "content": [part(block)]}),
        Kind::Text => json!({"id": id, "type": "message", "status": status, "role": "assistant",
                             "content": [part(block)]}),
        Kind::Call { id: call, name } => {
            let (namespace, name) = own_name(request, name);
            let mut item = json!({"id": id, "type": "function_call", "status": status, "call_id": call,
                                  "name": name, "arguments": block.text});
            if let Some(namespace) = namespace {
                item["namespace"] = json!(namespace);
            }
            item
        }
    }
}

/// As the client knows a function: the namespace that it is in, and its name there.
pub(super) fn own_name<'a>(request: &'a Generate, name: &'a str) -> (Option<&'a str>, &'a str) {
    let inside = request.kept.iter().flat_map(|kept| &kept.inside).find(|(full, _)| **full == *name);
    inside.map_or((None, name), |&(_, space)| (Some(&name[..space]), &name[space + 1..]))
}

/// What is in a message, or in what was thought.
pub(super) fn part(block: &Block) -> Value {
    match block.kind {
        Kind::Thought => json!({"type": "reasoning_text", "text": block.text}),
        _ => json!({"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}),
    }
}

/// Token counts in this endpoint's words.
pub(super) fn usage(request: &Generate, choice: &Choice, meta: &Meta) -> Value {
    let [prompt, answer] = counts(request, std::slice::from_ref(choice));
    let thought = request.thoughts.as_ref().and_then(|thoughts| thoughts.count(&choice.tokens));
    json!({
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": meta.cached_tokens.unwrap_or(0), "cache_write_tokens": 0},
        "output_tokens": answer,
        "output_tokens_details": {"reasoning_tokens": thought.unwrap_or(0)},
        "total_tokens": prompt + answer,
    })
}
