//! Fields of requests, with their ranges.

use model::api::{MAX_CHOICES, MAX_MESSAGES, MAX_PROMPTS, MAX_TOOLS};
use model::sampling::MAX_LOGPROBS;
use serde_json::{Map, Value, json};

/// A field that may be null.
fn maybe(kind: &str, more: Value) -> Value {
    let mut field = json!({"type": [kind, "null"]});
    if let (Some(field), Value::Object(more)) = (field.as_object_mut(), more) {
        field.extend(more);
    }
    field
}

fn flag() -> Value {
    maybe("boolean", json!({}))
}

fn text() -> Value {
    maybe("string", json!({}))
}

fn number(range: Value) -> Value {
    maybe("number", range)
}

fn count(range: Value) -> Value {
    let mut range = range;
    if range.get("minimum").is_none() {
        range["minimum"] = json!(0);
    }
    if range.get("maximum").is_none() {
        range["maximum"] = json!(u32::MAX);
    }
    maybe("integer", range)
}

fn ids() -> Value {
    maybe("array", json!({"items": {"type": "integer", "minimum": 0}}))
}

fn object(required: &[&str], fields: [&[(&str, Value)]; 2]) -> Value {
    let properties: Map<String, Value> =
        fields.concat().into_iter().map(|(name, field)| (name.to_owned(), field)).collect();
    json!({"type": "object", "required": required, "properties": properties})
}

/// Fields of both endpoints.
fn common() -> Vec<(&'static str, Value)> {
    [sampling(), ends(), delivery(), formats()].concat()
}

fn sampling() -> Vec<(&'static str, Value)> {
    let integer = || maybe("integer", json!({"minimum": i64::MIN, "maximum": i64::MAX}));
    vec![
        ("model", text()),
        ("n", count(json!({"minimum": 1, "maximum": MAX_CHOICES}))),
        ("best_of", count(json!({"minimum": 1, "maximum": MAX_CHOICES, "description": "The same as n."}))),
        ("temperature", number(json!({"minimum": 0}))),
        ("top_p", number(json!({"exclusiveMinimum": 0, "maximum": 1}))),
        ("top_k", maybe("integer", json!({"minimum": -1, "maximum": u32::MAX}))),
        ("min_p", number(json!({"minimum": 0, "maximum": 1}))),
        ("repetition_penalty", number(json!({"exclusiveMinimum": 0}))),
        ("presence_penalty", number(json!({"minimum": -2, "maximum": 2}))),
        ("frequency_penalty", number(json!({"minimum": -2, "maximum": 2}))),
        ("seed", integer()),
        (
            "logit_bias",
            maybe(
                "object",
                json!({"additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
                                   "propertyNames": {"pattern": "^[0-9]+$"}}),
            ),
        ),
        ("allowed_token_ids", ids()),
        ("prompt_logprobs", count(json!({"maximum": MAX_LOGPROBS}))),
    ]
}

fn ends() -> Vec<(&'static str, Value)> {
    let stop = json!({"type": "string", "minLength": 1, "maxLength": 1024});
    vec![
        ("max_tokens", count(json!({}))),
        ("min_tokens", count(json!({}))),
        ("stop", json!({"anyOf": [{"type": "null"}, stop, {"type": "array", "maxItems": 4, "items": stop}]})),
        ("stop_token_ids", ids()),
        ("ignore_eos", flag()),
        ("include_stop_str_in_output", flag()),
        ("skip_special_tokens", flag()),
        ("truncate_prompt_tokens", count(json!({}))),
        ("add_special_tokens", flag()),
    ]
}

fn delivery() -> Vec<(&'static str, Value)> {
    let options = json!({
        "description": "With stream only.",
        "properties": {"include_usage": {"type": "boolean"}, "continuous_usage_stats": {"type": "boolean"}},
    });
    vec![
        ("stream", flag()),
        ("stream_options", maybe("object", options)),
        ("return_token_ids", flag()),
        ("return_tokens_as_token_ids", flag()),
        ("cache_salt", text()),
        ("request_id", text()),
        ("user", text()),
    ]
}

fn formats() -> Vec<(&'static str, Value)> {
    let kinds = json!({
        "description": "Exactly one of these.",
        "properties": {
            "json": {"type": ["object", "string", "null"]},
            "json_object": {"type": ["boolean", "null"]},
            "regex": {"type": ["string", "null"]},
            "choice": {"type": ["array", "null"], "minItems": 1, "items": {"type": "string", "minLength": 1}},
            "grammar": {"type": ["string", "null"], "description": "In Lark's syntax."},
        },
    });
    let format = json!({
        "required": ["type"],
        "properties": {
            "type": {"enum": ["text", "json_object", "json_schema"]},
            "json_schema": {"type": "object", "required": ["schema"], "properties": {
                "name": {"type": "string"}, "schema": {"type": "object"}, "strict": {"type": ["boolean", "null"]}}},
        },
    });
    let older = || "An older name of what structured_outputs says.";
    vec![
        ("response_format", maybe("object", format)),
        ("structured_outputs", maybe("object", kinds)),
        ("guided_json", json!({"type": ["object", "string", "null"], "description": older()})),
        ("guided_regex", maybe("string", json!({"description": older()}))),
        (
            "guided_choice",
            maybe(
                "array",
                json!({"minItems": 1, "items": {"type": "string", "minLength": 1}, "description": older()}),
            ),
        ),
        ("guided_grammar", maybe("string", json!({"description": older()}))),
    ]
}

/// `/v1/completions`
pub(super) fn completion() -> Value {
    let token = json!({"type": "integer", "minimum": 0});
    let tokens = json!({"type": "array", "minItems": 1, "items": token});
    let prompt = json!({"anyOf": [
        {"type": "string"},
        tokens,
        {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": {"anyOf": [{"type": "string"}, tokens]}},
    ]});
    let own = [
        ("prompt", prompt),
        ("echo", flag()),
        ("logprobs", count(json!({"maximum": MAX_LOGPROBS}))),
        ("suffix", maybe("string", json!({"maxLength": 0}))),
    ];
    object(&["prompt"], [&own, &common()])
}

/// `/v1/chat/completions`
pub(super) fn chat() -> Value {
    let own = [
        ("messages", messages()),
        ("max_completion_tokens", count(json!({"minimum": 1}))),
        ("logprobs", flag()),
        ("top_logprobs", count(json!({"maximum": MAX_LOGPROBS, "description": "With logprobs only."}))),
        ("tools", maybe("array", json!({"maxItems": MAX_TOOLS, "items": tool()}))),
        ("tool_choice", tool_choice()),
        ("parallel_tool_calls", flag()),
        ("chat_template_kwargs", maybe("object", json!({}))),
        ("add_generation_prompt", flag()),
        ("continue_final_message", flag()),
        ("reasoning_effort", text()),
        ("enable_thinking", flag()),
        ("documents", maybe("array", json!({}))),
    ];
    object(&["messages"], [&own, &common()])
}

fn messages() -> Value {
    let roles = ["system", "developer", "user", "assistant", "tool", "function"];
    let part = json!({"type": "object", "required": ["type", "text"],
                      "properties": {"type": {"enum": ["text"]}, "text": {"type": "string"}}});
    let content = json!({"anyOf": [{"type": "string"}, {"type": "null"}, {"type": "array", "items": part}]});
    json!({
        "type": "array", "minItems": 1, "maxItems": MAX_MESSAGES,
        "items": {"type": "object", "required": ["role", "content"],
                  "properties": {"role": {"enum": roles}, "content": content,
                                 "tool_calls": {"type": ["array", "null"], "items": {"type": "object"}},
                                 "tool_call_id": {"type": ["string", "null"]}}},
    })
}

fn tool() -> Value {
    let function = json!({
        "type": "object", "required": ["name"],
        "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 256},
                       "description": {"type": ["string", "null"]},
                       "parameters": {"type": ["object", "null"]}},
    });
    json!({"type": "object", "required": ["type", "function"],
           "properties": {"type": {"enum": ["function"]}, "function": function}})
}

fn tool_choice() -> Value {
    let named = json!({"type": "object", "required": ["type", "function"], "properties": {
        "type": {"enum": ["function"]},
        "function": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}}});
    json!({"anyOf": [{"type": "null"}, {"enum": ["none", "auto", "required"]}, named]})
}

/// `/tokenize`
pub(super) fn tokenize() -> Value {
    let own = [
        ("model", text()),
        ("prompt", text()),
        ("content", text()),
        ("messages", json!({"anyOf": [{"type": "null"}, messages()]})),
        ("add_special_tokens", flag()),
        ("return_token_strs", flag()),
    ];
    object(&[], [&own, &[]])
}

/// `/detokenize`
pub(super) fn detokenize() -> Value {
    let own =
        [("model", text()), ("tokens", json!({"type": "array", "items": {"type": "integer", "minimum": 0}}))];
    object(&["tokens"], [&own, &[]])
}
