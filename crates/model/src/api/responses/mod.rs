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
use super::{ApiError, Context, Endpoint, Generate, chat, schema};

pub(super) use answer::response;
pub(super) use stream::Stream;
pub(super) use tools::HOSTED;
use tools::Tools;

/// What its fields are called where they are read.
const NAMES: [(&str, &str); 4] = [
    ("messages", "input"),
    ("max_completion_tokens", "max_output_tokens"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
];

/// Fields that an answer repeats as they came, if they are not long: they stay as long as the request.
const REPEATED: [&str; 11] = [
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "text",
    "tool_choice",
    "user",
];
/// Bytes of such a field.
const REPEATED_BYTES: usize = 16 << 10;

/// What an answer needs of its request, beside what every answer does.
#[derive(Debug, PartialEq)]
pub struct Kept {
    /// Fields that it repeats.
    repeats: Map<String, Value>,
    /// Names before those of functions that are in a namespace.
    namespaces: Vec<String>,
}

/// Reads the body of `/v1/responses`.
pub fn responses(body: &Value, context: &Context) -> Result<Generate, ApiError> {
    let (chat, tools) = as_chat(body, context)?;
    let request = chat::read(&chat, context, Endpoint::Responses);
    let mut request = request.map_err(|error| error.renamed(&NAMES))?;
    schema::check_responses(body)?;
    tools.left_out.iter().for_each(|tool| request.unknown_fields.add(tool));
    let repeats = repeated(body, &tools.told, &request);
    let kept = Some(Arc::new(Kept { repeats, namespaces: tools.namespaces }));
    Ok(Generate { kept, ..request })
}

/// How many tokens the prompt of such a body has: `/v1/responses/input_tokens`.
pub fn input_tokens(body: &Value, context: &Context) -> Result<Value, ApiError> {
    let tokens = chat::count(&as_chat(body, context)?.0, context).map_err(|error| error.renamed(&NAMES))?;
    schema::check_input(body)?;
    Ok(json!({"object": "response.input_tokens", "input_tokens": tokens}))
}

/// The chat that a body means. Fields that both endpoints have go over as they are, for the chat's reader to judge.
fn as_chat(body: &Value, context: &Context) -> Result<(Value, Tools), ApiError> {
    let mut fields = Fields::of(body)?;
    refuse_what_needs_memory(&mut fields)?;
    refuse_what_is_not_built(&mut fields)?;
    let instructions = fields.text("instructions")?;
    let messages = input::messages(fields.value("input"), instructions, context)?;
    let mut own = Map::new();
    own.insert("messages".to_owned(), messages.into());
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            own.insert(name.to_owned(), value);
        }
    };
    put("max_completion_tokens", fields.value("max_output_tokens").cloned());
    let tools = Tools::read(fields.list("tools")?.unwrap_or_default())?;
    put("tools", Some(tools.functions.clone().into()));
    put("tool_choice", fields.value("tool_choice").map(tools::choice).transpose()?);
    put("response_format", fields.object("text")?.and_then(format));
    let reasoning = fields.object("reasoning")?;
    put("reasoning_effort", reasoning.and_then(|reasoning| reasoning.get("effort")).cloned());
    // Of a stream it says how much is added to hide lengths, which nothing is.
    fields.object("stream_options")?;
    own.extend(fields.rest().map(|(name, value)| (name.to_owned(), value.clone())));
    Ok((own.into(), tools))
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

fn refuse_what_is_not_built(fields: &mut Fields) -> Result<(), ApiError> {
    fields.refuse("truncation", &[json!("disabled")], "leaving out the beginning of a conversation")?;
    fields.refuse("n", &[json!(1)], "more than one answer")?;
    for name in ["messages", "max_tokens", "max_completion_tokens", "response_format", "reasoning_effort"] {
        if fields.value(name).is_some() {
            let own =
                NAMES.iter().find(|(chat, _)| *chat == name).map_or("max_output_tokens", |(_, own)| own);
            let message = format!("{name} is a field of /v1/chat/completions; here it is {own}");
            return Err(ApiError::invalid(name, message));
        }
    }
    let scores = [json!(0)];
    fields.refuse("top_logprobs", &scores, "log-probabilities (which /v1/chat/completions has)")?;
    fields.refuse("logprobs", &[json!(false)], "log-probabilities (which /v1/chat/completions has)")?;
    let more = fields.list("include")?.unwrap_or_default();
    if more.iter().any(|name| name == "message.output_text.logprobs") {
        return Err(ApiError::not_supported("include", "log-probabilities (which /v1/chat/completions has)"));
    }
    fields.count("max_tool_calls")?;
    Ok(())
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
fn repeated(body: &Value, tools: &[Value], request: &Generate) -> Map<String, Value> {
    let mut all = Map::new();
    for (name, usual) in [
        ("instructions", Value::Null),
        ("parallel_tool_calls", json!(true)),
        ("reasoning", json!({"effort": null, "summary": null})),
        ("text", json!({"format": {"type": "text"}})),
        ("tool_choice", json!("auto")),
        ("metadata", json!({})),
    ] {
        all.insert(name.to_owned(), usual);
    }
    let tools = Value::from(tools);
    let given = REPEATED.iter().filter_map(|name| Some((*name, body.get(name)?)));
    for (name, value) in given.filter(|(_, value)| !value.is_null()).chain([("tools", &tools)]) {
        match value.to_string().len() <= REPEATED_BYTES {
            true => all.insert(name.to_owned(), value.clone()),
            false => all.remove(name),
        };
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
