//! The forms of requests of `/v1/responses` and `/v1/messages`: their own fields, and those of chats that they take too.

use serde_json::{Value, json};

use super::{Offered, common, count, flag, maybe, number, object, text};
use crate::api::{MAX_MESSAGES, MAX_TOOLS};
use crate::sampling::MAX_STOPS;

/// Fields of other endpoints that mean something else here, or nothing.
const ELSEWHERE: [&str; 10] = [
    "model",
    "n",
    "max_tokens",
    "stop",
    "stream_options",
    "response_format",
    "best_of",
    "prompt_logprobs",
    "return_token_ids",
    "return_tokens_as_token_ids",
];

/// How an answer is made, which both endpoints say as a chat does.
fn shared(offered: &Offered) -> Vec<(&'static str, Value)> {
    let mut shared = common(offered);
    shared.retain(|(name, _)| !ELSEWHERE.contains(name));
    shared.push(("include_reasoning", flag()));
    shared
}

/// Only nothing, or what asks for nothing.
fn only(harmless: &[Value]) -> Value {
    let taken = [&[Value::Null], harmless].concat();
    json!({"enum": taken})
}

/// `/v1/responses`
pub fn responses(offered: &Offered) -> Value {
    object(&["input"], [&of_responses(), &shared(offered)])
}

/// `/v1/responses/input_tokens`
pub fn responses_to_count() -> Value {
    object(&["input"], [&of_responses(), &[]])
}

fn of_responses() -> Vec<(&'static str, Value)> {
    let format = json!({"type": ["object", "null"], "properties": {"type": {"enum": ["text", "json_object", "json_schema"]}}});
    vec![
        ("model", text()),
        ("chat_template_kwargs", maybe("object", json!({}))),
        ("input", input()),
        ("instructions", text()),
        ("max_output_tokens", count(json!({"minimum": 1}))),
        ("max_tool_calls", count(json!({}))),
        ("tools", tools_of_responses()),
        ("tool_choice", json!({"type": ["string", "object", "null"]})),
        ("parallel_tool_calls", flag()),
        ("text", maybe("object", json!({"properties": {"format": format}}))),
        ("reasoning", maybe("object", json!({"properties": {"effort": text()}}))),
        ("include", maybe("array", json!({"items": {"type": "string"}}))),
        ("stop", json!({"type": ["string", "array", "null"]})),
        ("stream_options", maybe("object", json!({}))),
        ("previous_response_id", only(&[])),
        ("conversation", only(&[])),
        ("prompt", only(&[])),
        ("background", only(&[json!(false)])),
        ("truncation", only(&[json!("disabled")])),
        ("top_logprobs", only(&[json!(0)])),
        ("metadata", maybe("object", json!({}))),
        ("prompt_cache_key", text()),
        ("safety_identifier", text()),
    ]
}

fn input() -> Value {
    let content = json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]});
    let message = json!({"type": "object", "required": ["role", "content"], "properties": {
        "type": {"enum": ["message", null]}, "role": {"enum": ["user", "system", "developer", "assistant"]}, "content": content}});
    let thought =
        json!({"type": "object", "required": ["type"], "properties": {"type": {"enum": ["reasoning"]}}});
    let call = json!({"type": "object", "required": ["type", "call_id", "name", "arguments"], "properties": {
        "type": {"enum": ["function_call"]}, "call_id": {"type": "string"}, "name": {"type": "string"},
        "arguments": {"type": "string"}}});
    let result = json!({"type": "object", "required": ["type", "call_id", "output"], "properties": {
        "type": {"enum": ["function_call_output"]}, "call_id": {"type": "string"}, "output": content}});
    let item = json!({"anyOf": [message, thought, call, result]});
    json!({"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "maxItems": MAX_MESSAGES, "items": item}]})
}

fn function(kind: Value, required: &[&str], parameters: &str) -> Value {
    json!({"type": "object", "required": required, "properties": {
        "type": kind,
        "name": {"type": "string", "minLength": 1, "maxLength": 256},
        "description": {"type": ["string", "null"]},
        (parameters): {"type": ["object", "null"]}}})
}

/// A tool that servers run by themselves, if they have it.
fn hosted(kinds: &[&str]) -> Value {
    json!({"type": "object", "required": ["type"], "properties": {
        "type": {"type": "string", "pattern": format!("^({})", kinds.join("|"))}}})
}

fn tools(kinds: &[Value]) -> Value {
    maybe("array", json!({"maxItems": MAX_TOOLS, "items": {"anyOf": kinds}}))
}

fn tools_of_responses() -> Value {
    let function = function(json!({"enum": ["function"]}), &["type", "name"], "parameters");
    let space = json!({"type": "object", "required": ["type", "name", "tools"], "properties": {
        "type": {"enum": ["namespace"]}, "name": {"type": "string"}, "tools": {"type": "array", "items": function}}});
    tools(&[function, space, hosted(&crate::api::responses::HOSTED)])
}

fn tools_of_messages() -> Value {
    let function = function(json!({"enum": ["custom", null]}), &["name"], "input_schema");
    tools(&[function, hosted(&crate::api::messages::HOSTED)])
}

/// `/v1/messages`
pub fn messages(offered: &Offered) -> Value {
    let most = json!({"type": "integer", "minimum": 1, "maximum": u32::MAX,
                      "description": "An answer is shorter where there is no more room."});
    let own = [&[("max_tokens", most)], &of_messages()[..]].concat();
    object(&["max_tokens", "messages"], [&own, &shared(offered)])
}

/// `/v1/messages/count_tokens`
pub fn messages_to_count() -> Value {
    object(&["messages"], [&of_messages(), &[]])
}

fn of_messages() -> Vec<(&'static str, Value)> {
    let kind = json!({"enum": ["auto", "any", "tool", "none"]});
    let choice = json!({"required": ["type"], "properties": {"type": kind, "name": text(), "disable_parallel_tool_use": flag()}});
    let thinking = json!({"required": ["type"], "properties": {
        "type": {"enum": ["enabled", "adaptive", "disabled"]}, "display": text(), "budget_tokens": number(json!({}))}});
    let form = json!({"required": ["type", "schema"], "properties": {"type": {"enum": ["json_schema"]}, "schema": {"type": "object"}}});
    let config = json!({"properties": {"effort": text(), "format": maybe("object", form.clone())}});
    let stop = json!({"type": "string", "minLength": 1, "maxLength": 1024});
    let system =
        json!({"anyOf": [{"type": "null"}, {"type": "string"}, {"type": "array", "items": text_block()}]});
    vec![
        ("model", text()),
        ("chat_template_kwargs", maybe("object", json!({}))),
        ("system", system),
        ("stop_sequences", maybe("array", json!({"maxItems": MAX_STOPS, "items": stop}))),
        ("messages", turns()),
        ("tools", tools_of_messages()),
        ("tool_choice", maybe("object", choice)),
        ("thinking", maybe("object", thinking)),
        ("output_config", maybe("object", config)),
        ("output_format", maybe("object", form)),
        ("container", only(&[])),
    ]
}

fn text_block() -> Value {
    json!({"type": "object", "required": ["type", "text"],
           "properties": {"type": {"enum": ["text"]}, "text": {"type": "string"}}})
}

fn turns() -> Value {
    let result = json!({"type": "object", "required": ["type", "tool_use_id"], "properties": {
        "type": {"enum": ["tool_result"]}, "tool_use_id": {"type": "string"},
        "content": {"anyOf": [{"type": "null"}, {"type": "string"}, {"type": "array", "items": text_block()}]}}});
    let thought = json!({"type": "object", "required": ["type", "thinking"], "properties": {
        "type": {"enum": ["thinking"]}, "thinking": {"type": "string"}}});
    let hidden = json!({"type": "object", "required": ["type"], "properties": {"type": {"enum": ["redacted_thinking"]}}});
    let call = json!({"type": "object", "required": ["type", "id", "name", "input"], "properties": {
        "type": {"enum": ["tool_use"]}, "id": {"type": "string"}, "name": {"type": "string"}, "input": {"type": "object"}}});
    let turn = |role: &str, blocks: &[Value]| {
        let blocks = json!({"type": "array", "items": {"anyOf": blocks}});
        json!({"type": "object", "required": ["role", "content"], "properties": {
            "role": {"enum": [role]}, "content": {"anyOf": [{"type": "string"}, blocks]}}})
    };
    let user = turn("user", &[text_block(), result]);
    let system = turn("system", &[text_block()]);
    let assistant = turn("assistant", &[text_block(), thought, hidden, call]);
    json!({"type": "array", "minItems": 1, "maxItems": MAX_MESSAGES, "items": {"anyOf": [user, assistant, system]}})
}
