//! The forms of requests as JSON schemas, for whoever describes the API. They are no copies of what is checked: every body
//! that is read is held against its schema too, so that none is narrower than what is taken.

mod items;

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

pub use items::{messages, messages_to_count, responses, responses_to_count};

use super::format::{MANNERS, MAX_CHOICES as MAX_FORMAT_CHOICES};
use super::words::MAX_WORD_BYTES;
use super::{MAX_CHOICES, MAX_MESSAGES, MAX_PROMPTS, MAX_TOOLS, OwnTemplates};
use crate::sampling::{MAX_BAD_WORDS, MAX_STOP_IDS, MAX_STOPS};
use crate::template::ROLES;

/// What differs from server to server.
#[derive(Clone, Copy, Debug)]
pub struct Offered {
    /// Ids of tokens are below this.
    pub vocab: usize,
    /// Log-probabilities per token that may be asked for.
    pub max_logprobs: u32,
    /// Whether conversations may bring templates.
    pub own_templates: OwnTemplates,
}

/// What no server exceeds: limits of one are checked where the fields are read.
const ANY: Offered =
    Offered { vocab: u32::MAX as usize, max_logprobs: u32::MAX, own_templates: OwnTemplates::Taken };

// What bodies are held against whose fields have been read.

/// Of `/v1/completions`.
pub(super) static COMPLETION: LazyLock<Value> = LazyLock::new(|| completion(&ANY));
/// Of `/v1/chat/completions`.
pub(super) static CHAT: LazyLock<Value> = LazyLock::new(|| chat(&ANY));
/// Of `/v1/responses`.
pub(super) static RESPONSES: LazyLock<Value> = LazyLock::new(|| responses(&ANY));
/// Of `/v1/responses/input_tokens`.
pub(super) static INPUT: LazyLock<Value> = LazyLock::new(responses_to_count);
/// Of `/v1/messages`.
pub(super) static MESSAGES: LazyLock<Value> = LazyLock::new(|| messages(&ANY));
/// Of `/v1/messages/count_tokens`.
pub(super) static COUNT: LazyLock<Value> = LazyLock::new(messages_to_count);
/// Of `/tokenize`.
pub(super) static TOKENIZE: LazyLock<Value> = LazyLock::new(tokenize);
/// Of `/detokenize`.
pub(super) static DETOKENIZE: LazyLock<Value> = LazyLock::new(|| detokenize(ANY.vocab));

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

/// An id below the size of the vocabulary.
fn token(vocab: usize) -> Value {
    json!({"type": "integer", "minimum": 0, "maximum": vocab.saturating_sub(1)})
}

fn ids(vocab: usize, most: usize) -> Value {
    maybe("array", json!({"items": token(vocab), "maxItems": most}))
}

fn object(required: &[&str], fields: [&[(&str, Value)]; 2]) -> Value {
    let properties: Map<String, Value> =
        fields.concat().into_iter().map(|(name, field)| (name.to_owned(), field)).collect();
    json!({"type": "object", "required": required, "properties": properties})
}

/// Fields of both endpoints.
fn common(offered: &Offered) -> Vec<(&'static str, Value)> {
    [sampling(offered), ends(offered.vocab), delivery(), formats()].concat()
}

fn sampling(offered: &Offered) -> Vec<(&'static str, Value)> {
    let word = json!({"type": "string", "minLength": 1, "maxLength": MAX_WORD_BYTES});
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
        ("repeat_penalty", number(json!({"description": "llama.cpp's name of repetition_penalty."}))),
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
        ("allowed_token_ids", ids(offered.vocab, offered.vocab)),
        ("bad_words", maybe("array", json!({"maxItems": MAX_BAD_WORDS, "items": word}))),
        ("prompt_logprobs", count(json!({"maximum": offered.max_logprobs}))),
    ]
}

fn ends(vocab: usize) -> Vec<(&'static str, Value)> {
    let stop = json!({"type": "string", "minLength": 1, "maxLength": 1024});
    vec![
        ("max_tokens", count(json!({}))),
        (
            "n_predict",
            maybe(
                "integer",
                json!({"minimum": i64::MIN, "maximum": i64::MAX,
                       "description": "llama.cpp's name of max_tokens; -1 is as if it were not there."}),
            ),
        ),
        ("min_tokens", count(json!({}))),
        (
            "stop",
            json!({"anyOf": [{"type": "null"}, stop, {"type": "array", "maxItems": MAX_STOPS, "items": stop}]}),
        ),
        ("stop_token_ids", ids(vocab, MAX_STOP_IDS)),
        ("ignore_eos", flag()),
        ("include_stop_str_in_output", flag()),
        ("skip_special_tokens", flag()),
        (
            "truncate_prompt_tokens",
            maybe(
                "integer",
                json!({"minimum": -1, "maximum": u32::MAX,
                       "description": "Tokens that are kept of a longer prompt; -1 for as many as leave room for the answer."}),
            ),
        ),
        (
            "truncation_side",
            json!({"enum": ["left", "right", null], "description": "Which end of a longer prompt goes; usually the left."}),
        ),
        ("add_special_tokens", flag()),
    ]
}

fn delivery() -> Vec<(&'static str, Value)> {
    let options = json!({
        "description": "With stream only.",
        "properties": {"include_usage": flag(), "continuous_usage_stats": flag()},
    });
    vec![
        ("stream", flag()),
        ("stream_options", maybe("object", options)),
        ("return_token_ids", flag()),
        ("return_tokens_as_token_ids", flag()),
        ("cache_salt", text()),
        (
            "request_id",
            maybe(
                "string",
                json!({"minLength": 1, "maxLength": 128, "description": "Becomes the answer's id."}),
            ),
        ),
        ("user", text()),
    ]
}

/// A list of texts of which the answer must be one.
fn choices(kind: impl Into<Value>, more: Value) -> Value {
    let mut choices = json!({"type": kind.into(), "minItems": 1, "maxItems": MAX_FORMAT_CHOICES,
                             "items": {"type": "string", "minLength": 1}});
    if let (Some(choices), Value::Object(more)) = (choices.as_object_mut(), more) {
        choices.extend(more);
    }
    choices
}

/// What `structured_outputs` may say: one of its kinds, the others absent or null.
fn structured_outputs() -> Value {
    let kinds = [
        ("json", json!({"type": ["object", "string"]})),
        ("json_object", json!({"type": "boolean"})),
        ("regex", json!({"type": "string", "format": "regex"})),
        ("choice", choices("array", json!({}))),
        (
            "grammar",
            json!({"type": "string", "description": "In Lark's syntax (start: ...) or in llama.cpp's (root ::= ...)."}),
        ),
    ];
    let names: Vec<&str> = kinds.iter().map(|(name, _)| *name).collect();
    let forms = kinds.iter().map(|(name, schema)| {
        let mut properties: Map<String, Value> =
            names.iter().map(|other| ((*other).to_owned(), json!({"type": "null"}))).collect();
        properties.insert((*name).to_owned(), schema.clone());
        // How, which is the same here whatever is asked for.
        properties.extend(MANNERS.map(|manner| (manner.to_owned(), json!({}))));
        json!({"type": "object", "required": [name], "properties": properties,
               "additionalProperties": {"type": "null"}})
    });
    let forms: Vec<Value> = std::iter::once(json!({"type": "null"})).chain(forms).collect();
    json!({"oneOf": forms})
}

fn formats() -> Vec<(&'static str, Value)> {
    let format = json!({
        "required": ["type"],
        "properties": {
            "type": {"enum": ["text", "json_object", "json_schema"]},
            // Only the type json_schema needs its schema; with another it must have its form too.
            "json_schema": {"type": ["object", "null"], "properties": {
                "name": {"type": ["string", "null"]}, "schema": {"type": ["object", "null"]}, "strict": {"type": ["boolean", "null"]}}},
        },
    });
    let older = || "An older name of what structured_outputs says.";
    let llama_cpp = || "llama.cpp's name of what structured_outputs says.";
    vec![
        ("response_format", maybe("object", format)),
        ("structured_outputs", structured_outputs()),
        ("guided_json", json!({"type": ["object", "string", "null"], "description": older()})),
        ("guided_regex", maybe("string", json!({"format": "regex", "description": older()}))),
        ("guided_choice", choices(json!(["array", "null"]), json!({"description": older()}))),
        ("guided_grammar", maybe("string", json!({"description": older()}))),
        ("json_schema", json!({"type": ["object", "string", "null"], "description": llama_cpp()})),
        ("grammar", maybe("string", json!({"description": llama_cpp()}))),
    ]
}

/// `/v1/completions`
pub fn completion(offered: &Offered) -> Value {
    let tokens = json!({"type": "array", "minItems": 1, "items": token(offered.vocab)});
    let prompt = json!({"anyOf": [
        {"type": "string"},
        tokens,
        {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": {"anyOf": [{"type": "string"}, tokens]}},
    ]});
    let own = [
        ("prompt", prompt),
        ("echo", flag()),
        ("logprobs", json!({"anyOf": [count(json!({"maximum": offered.max_logprobs})), {"enum": [false]}]})),
        ("suffix", maybe("string", json!({"maxLength": 0}))),
    ];
    object(&["prompt"], [&own, &common(offered)])
}

/// `/v1/chat/completions`
pub fn chat(offered: &Offered) -> Value {
    let own = [
        ("messages", turns()),
        ("max_completion_tokens", count(json!({"minimum": 1}))),
        ("logprobs", flag()),
        (
            "top_logprobs",
            count(json!({"maximum": offered.max_logprobs, "description": "With logprobs only."})),
        ),
        ("tools", maybe("array", json!({"maxItems": MAX_TOOLS, "items": tool()}))),
        ("tool_choice", tool_choice()),
        ("parallel_tool_calls", flag()),
        ("chat_template_kwargs", maybe("object", json!({}))),
        ("add_generation_prompt", flag()),
        ("continue_final_message", flag()),
        ("reasoning_effort", text()),
        ("enable_thinking", flag()),
        ("reasoning_format", maybe("string", json!({"enum": ["auto", "deepseek", "none", null]}))),
        ("include_reasoning", flag()),
        ("thinking_token_budget", thoughts("Tokens of thoughts at the most; less than 0: no limit.")),
        ("thinking_budget_tokens", thoughts("llama.cpp's name of it.")),
        ("documents", maybe("array", json!({}))),
    ];
    let template: &[(&str, Value)] = match offered.own_templates {
        OwnTemplates::Taken => &[("chat_template", text())],
        OwnTemplates::Refused => &[],
    };
    object(&["messages"], [&[&own, template].concat(), &common(offered)])
}

fn thoughts(description: &str) -> Value {
    maybe("integer", json!({"minimum": i64::MIN, "maximum": i64::MAX, "description": description}))
}

/// Only an assistant's message, or one that is calls, may have no content.
fn turns() -> Value {
    let text = json!({"type": "object", "required": ["text"],
                      "properties": {"type": {"enum": ["text", "input_text", "output_text", null]}, "text": {"type": "string"}}});
    let refusal = json!({"type": "object", "required": ["type", "refusal"],
                         "properties": {"type": {"enum": ["refusal"]}, "refusal": {"type": "string"}}});
    let part = json!({"anyOf": [text, refusal, {"type": "string"}]});
    let said = [json!({"type": "string"}), json!({"type": "array", "items": part})];
    let maybe_said = [&said[..], &[json!({"type": "null"})]].concat();
    let calls = json!({"type": "array", "items": {"type": "object"}});
    let message = |roles: &[&str], required: &[&str], contents: &[Value], calls: Value| {
        json!({"type": "object", "required": required,
               "properties": {"role": {"enum": roles}, "content": {"anyOf": contents}, "tool_calls": calls,
                              "tool_call_id": {"type": ["string", "null"]}}})
    };
    let maybe_calls = json!({"anyOf": [calls, {"type": "null"}]});
    let others = message(&ROLES, &["role", "content"], &said, maybe_calls.clone());
    let assistant = message(&["assistant"], &["role"], &maybe_said, maybe_calls);
    let calling = message(&ROLES, &["role", "tool_calls"], &maybe_said, calls);
    json!({"type": "array", "minItems": 1, "maxItems": MAX_MESSAGES, "items": {"anyOf": [others, assistant, calling]}})
}

fn tool() -> Value {
    let function = json!({
        "type": "object", "required": ["name"],
        "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 256},
                       "description": {"type": ["string", "null"]},
                       "parameters": {"type": ["object", "null"]}},
    });
    json!({"type": "object", "required": ["function"],
           "properties": {"type": {"enum": ["function", null]}, "function": function}})
}

fn tool_choice() -> Value {
    let named = json!({"type": "object", "required": ["function"], "properties": {
        "type": {"enum": ["function", null]},
        "function": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}}});
    let some = json!({"type": "object", "required": ["mode", "tools"], "properties": {
        "mode": {"enum": ["auto", "required"]}, "tools": {"type": "array", "minItems": 1, "items": named}}});
    let allowed = json!({"type": "object", "required": ["allowed_tools"], "properties": {
        "type": {"enum": ["allowed_tools", null]}, "allowed_tools": some}});
    json!({"anyOf": [{"type": "null"}, {"enum": ["none", "auto", "required"]}, named, allowed]})
}

/// `/tokenize`: a text or a conversation.
pub fn tokenize() -> Value {
    let own = [
        ("model", text()),
        ("prompt", text()),
        ("content", text()),
        ("messages", json!({"anyOf": [{"type": "null"}, turns()]})),
        ("add_special_tokens", flag()),
        ("return_token_strs", flag()),
    ];
    let mut request = object(&[], [&own, &[]]);
    request["anyOf"] = json!([
        {"required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
        {"required": ["content"], "properties": {"content": {"type": "string"}}},
        {"required": ["messages"], "properties": {"messages": turns()}},
    ]);
    request
}

/// `/detokenize`, of a model with so many tokens.
pub fn detokenize(vocab: usize) -> Value {
    let own = [("model", text()), ("tokens", json!({"type": "array", "items": token(vocab)}))];
    object(&["tokens"], [&own, &[]])
}

/// A request that is answered, for people and for tools that try a document's examples.
pub fn example(request: &str) -> Value {
    match request {
        "CompletionRequest" => json!({"prompt": "The ship", "max_tokens": 8, "temperature": 0}),
        "ChatRequest" => {
            json!({"messages": [{"role": "user", "content": "Ahoy"}], "max_tokens": 8, "stream": true})
        }
        "InputRequest" => json!({"input": "Ahoy"}),
        "ResponsesRequest" => json!({"input": "Ahoy", "max_output_tokens": 8}),
        "MessagesRequest" => json!({"max_tokens": 8, "messages": [{"role": "user", "content": "Ahoy"}]}),
        "CountRequest" => json!({"messages": [{"role": "user", "content": "Ahoy"}]}),
        "TokenizeRequest" => json!({"prompt": "The ship"}),
        _ => json!({"tokens": [1, 2, 3]}),
    }
}
