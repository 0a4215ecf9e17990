//! `/v1/responses`, OpenAI's newer endpoint: read as the chat that it means, and answered in its own shape. Nothing is kept
//! from one request to the next: a conversation comes whole, as `input`.

mod answer;
mod input;
mod stream;
#[cfg(test)]
mod tests;
mod tools;

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::names::{Names, put};
use super::{ApiError, Context, Endpoint, Generate, chat, check, schema};

pub(super) use answer::response;
pub(super) use stream::Stream;
pub(super) use tools::HOSTED;
use tools::Tools;

/// What its fields are called where they are read.
const NAMES: Names<5> = Names([
    ("messages", "input"),
    ("max_tokens", "max_output_tokens"),
    ("max_completion_tokens", "max_output_tokens"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
]);

/// Fields that an answer repeats as they came.
const REPEATED: [&str; 11] = [
    "max_output_tokens",
    "max_tool_calls",
    "parallel_tool_calls",
    "reasoning",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "tool_choice",
    "metadata",
    "text",
    "instructions",
];
/// Bytes of them together: they stay as long as the request. What has no room is told as if nobody had said it.
const REPEATED_BYTES: usize = 2 << 10;

/// What an answer needs of its request, beside what every answer does.
#[derive(Debug, PartialEq)]
pub struct Kept {
    /// Fields that it repeats: an object as text, which takes as much memory as it has bytes.
    repeats: Box<str>,
    /// Names of functions that are in a namespace, and how long its own is.
    inside: Vec<(Box<str>, usize)>,
}

impl Kept {
    fn repeated(&self) -> Map<String, Value> {
        serde_json::from_str(&self.repeats).unwrap_or_default()
    }
}

/// Reads the body of `/v1/responses`.
pub fn responses(body: &Value, context: &Context) -> Result<Generate, ApiError> {
    let (chat, tools) = as_chat(body, context)?;
    let request = chat::read(&chat, context, Endpoint::Responses);
    let mut request = request.map_err(|error| NAMES.told(error, &tools.places))?;
    check::form(&schema::RESPONSES, body)?;
    tools.left_out.iter().for_each(|tool| request.unknown_fields.add(tool));
    let repeats = Value::from(repeated(body, tools.told, &request)).to_string().into();
    let kept = Some(Arc::new(Kept { repeats, inside: tools.inside }));
    Ok(Generate { kept, ..request })
}

/// How many tokens the prompt of such a body has: `/v1/responses/input_tokens`.
pub fn input_tokens(body: &Value, context: &Context) -> Result<Value, ApiError> {
    let (chat, tools) = as_chat(body, context)?;
    let tokens = chat::count(&chat, context).map_err(|error| NAMES.told(error, &tools.places))?;
    check::form(&schema::INPUT, body)?;
    Ok(json!({"object": "response.input_tokens", "input_tokens": tokens}))
}

/// The chat that a body means. Fields that both endpoints have go over as they are, for the chat's reader to judge.
fn as_chat(body: &Value, context: &Context) -> Result<(Value, Tools), ApiError> {
    let mut fields = Fields::of(body)?;
    refuse_what_needs_memory(&mut fields)?;
    NAMES.refuse_others(&mut fields)?;
    fields.refuse("truncation", &[json!("disabled")], "leaving out the beginning of a conversation")?;
    let more = fields.list("include")?.unwrap_or_default();
    if more.iter().any(|name| name == "message.output_text.logprobs") {
        return Err(ApiError::not_supported("include", "log-probabilities (which /v1/chat/completions has)"));
    }
    fields.count("max_tool_calls")?;
    let instructions = fields.text("instructions")?;
    let messages = input::messages(fields.value("input"), instructions, context)?;
    let mut chat = Map::new();
    put(&mut chat, "messages", Some(messages.into()));
    put(&mut chat, "max_completion_tokens", fields.value("max_output_tokens").cloned());
    let mut tools = Tools::read(fields.list("tools")?.unwrap_or_default())?;
    put(&mut chat, "tools", Some(std::mem::take(&mut tools.functions).into()));
    put(&mut chat, "tool_choice", fields.value("tool_choice").map(tools::choice).transpose()?);
    put(&mut chat, "response_format", fields.object("text")?.and_then(format));
    let reasoning = fields.object("reasoning")?;
    put(&mut chat, "reasoning_effort", reasoning.and_then(|reasoning| reasoning.get("effort")).cloned());
    // Of a stream it says how much is added to hide lengths, which nothing is.
    fields.object("stream_options")?;
    chat.extend(fields.rest().map(|(name, value)| (name.to_owned(), value.clone())));
    Ok((chat.into(), tools))
}

/// Fields that mean something that an earlier request left, or that is done while nobody waits.
fn refuse_what_needs_memory(fields: &mut Fields) -> Result<(), ApiError> {
    for name in ["previous_response_id", "conversation"] {
        fields.refuse(
            name,
            &[],
            "an earlier answer, as none is kept (send the whole conversation as input)",
        )?;
    }
    fields.refuse("context_management", &[json!([])], "shortening the conversation")?;
    fields.refuse("background", &[json!(false)], "an answer that nobody waits for")?;
    fields.refuse("prompt", &[], "a prompt that is kept")
}

/// `text.format` in the chat's shape.
fn format(text: &Map<String, Value>) -> Option<Value> {
    let format = text.get("format").filter(|format| !format.is_null())?;
    Some(match format["type"].as_str() {
        Some("json_schema") => json!({"type": "json_schema", "json_schema": format}),
        _ => format.clone(),
    })
}

/// What the answer repeats of its request. `tools`: those of them that the model is told of.
fn repeated(body: &Value, tools: Vec<Value>, request: &Generate) -> Map<String, Value> {
    let mut all = Map::new();
    for (name, usual) in [
        ("instructions", Value::Null),
        ("parallel_tool_calls", json!(true)),
        ("reasoning", json!({"effort": null, "summary": null})),
        ("text", json!({"format": {"type": "text"}})),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("metadata", json!({})),
    ] {
        all.insert(name.to_owned(), usual);
    }
    let tools = Value::from(tools);
    let given = REPEATED.iter().filter_map(|name| Some((*name, body.get(name)?)));
    let mut room = REPEATED_BYTES;
    for (name, value) in given.filter(|(_, value)| !value.is_null()).chain([("tools", &tools)]) {
        let bytes = value.to_string().len();
        if bytes <= room {
            room -= bytes;
            all.insert(name.to_owned(), value.clone());
        }
    }
    all.insert("temperature".to_owned(), shortest(request.params.temperature));
    all.insert("top_p".to_owned(), shortest(request.params.top_p));
    all.insert("truncation".to_owned(), json!("disabled"));
    for (name, value) in
        [("store", json!(false)), ("background", json!(false)), ("previous_response_id", Value::Null)]
    {
        all.insert(name.to_owned(), value);
    }
    all
}

/// The number as it is usually written: 0.6, and not what is nearest to it in 32 bits.
fn shortest(x: f32) -> Value {
    json!(x.to_string().parse::<f64>().unwrap_or(f64::from(x)))
}
