//! Messages made of blocks, and tools in the shape that this endpoint has: made into those of a chat.

use serde_json::{Map, Value, json};

use super::super::tools::{as_function, hosted};
use super::super::turns::{Turns, too_many};
use super::super::{ApiError, Context};
use super::Beside;

/// Tools that a server runs by itself, if it has them.
pub(in super::super) const HOSTED: [&str; 4] =
    ["web_search_", "web_fetch_", "code_execution_", "tool_search_"];

/// The messages that these come to. `remembered`: in how many of the last answers what was thought stays.
pub(super) fn messages(
    (all, system): (&[Value], Option<&Value>),
    remembered: usize,
    context: &Context,
    beside: &mut Beside,
) -> Result<Vec<Value>, ApiError> {
    if let Some(why) = too_many(all) {
        return Err(ApiError::invalid("messages", format!("messages: {why}")));
    }
    let thinks = |message: &&Value| message["role"] == "assistant" && is_thinking(message);
    let mut forget = all.iter().filter(thinks).count().saturating_sub(remembered);
    let mut turns = Turns::new(context);
    if let Some(system) = system {
        let content = texts(system).map_err(|why| ApiError::invalid("system", format!("system: {why}")))?;
        turns.instructed(content);
    }
    for (at, one) in all.iter().enumerate() {
        let wrong = |why: String| ApiError::invalid("messages", format!("messages[{at}]: {why}"));
        let forgets = thinks(&one) && forget > 0;
        forget -= usize::from(forgets);
        let place = Place { forgets, is_last: at + 1 == all.len() };
        message(one, place, &mut turns, beside).map_err(wrong)?;
    }
    Ok(turns.into_messages())
}

fn is_thinking(message: &Value) -> bool {
    message["content"].as_array().is_some_and(|blocks| blocks.iter().any(|block| block["type"] == "thinking"))
}

/// Where a message stands.
#[derive(Clone, Copy)]
struct Place {
    /// So far back that what it thought is forgotten.
    forgets: bool,
    /// An answer goes on with it, if it is an assistant's.
    is_last: bool,
}

fn message(message: &Value, place: Place, turns: &mut Turns, beside: &mut Beside) -> Result<(), String> {
    let content = &message["content"];
    match (message["role"].as_str(), content) {
        (Some("user"), Value::String(text)) => turns.said_on("user", json!(text)),
        (Some("system"), _) => turns.instructed(texts(content)?),
        (Some("assistant"), Value::String(text)) => turns.said("assistant", begun(text, place)?),
        (Some("user"), Value::Array(blocks)) if blocks.is_empty() => {
            return Err("content: there is no block in it".to_owned());
        }
        (Some("user"), Value::Array(blocks)) => of_user(blocks, turns, beside)?,
        (Some("assistant"), Value::Array(blocks)) => of_assistant(blocks, place, turns)?,
        (Some("user" | "assistant"), _) => {
            return Err("content: expected a text or a list of blocks".to_owned());
        }
        (Some(role), _) => return Err(format!("role `{role}`; expected user, assistant or system")),
        (None, _) => return Err("role is missing".to_owned()),
    }
    Ok(())
}

fn kind(block: &Value) -> Result<&str, String> {
    block["type"].as_str().ok_or_else(|| "content: a block is an object with a type".to_owned())
}

/// Results of calls, and what the user says.
fn of_user(blocks: &[Value], turns: &mut Turns, beside: &mut Beside) -> Result<(), String> {
    for block in blocks {
        match kind(block)? {
            "text" => turns.said_on("user", json!([text_part(block)?])),
            "tool_result" => {
                let id = text(block, "tool_use_id")?;
                let content = block.get("content").filter(|content| !content.is_null());
                let content = content.map_or(Ok(json!("")), texts);
                // Templates have no place for it; results say themselves what went wrong.
                if block["is_error"] == true && !beside.ignored.contains(&"is_error") {
                    beside.ignored.push("is_error");
                }
                turns.answered(id, content.map_err(|why| format!("tool_result: {why}"))?);
            }
            other => return Err(not_read(other, "text and tool_result")),
        }
    }
    Ok(())
}

/// Thoughts, text and calls. Thoughts that cannot be read are passed over, as their model may do.
fn of_assistant(blocks: &[Value], place: Place, turns: &mut Turns) -> Result<(), String> {
    let mut said = Vec::new();
    let mut calls = Vec::new();
    turns.close();
    for block in blocks {
        match kind(block)? {
            "text" => said.push(text_part(block)?),
            "thinking" if place.forgets => (),
            "thinking" => turns.thought(text(block, "thinking")?),
            "redacted_thinking" => (),
            "tool_use" => {
                let input = block.get("input").filter(|input| input.is_object());
                let input = input.ok_or("tool_use: input: expected an object")?;
                calls.push((text(block, "id")?, text(block, "name")?, input.to_string()));
            }
            other => return Err(not_read(other, "text, thinking and tool_use")),
        }
    }
    match said.len() {
        0 if !calls.is_empty() => (),
        0 => turns.said("assistant", json!("")),
        1 => turns.said("assistant", begun(said[0]["text"].as_str().unwrap_or_default(), place)?),
        _ if place.is_last => {
            let text: String = said.iter().filter_map(|part| part["text"].as_str()).collect();
            turns.said("assistant", begun(&text, place)?);
        }
        _ => turns.said("assistant", said.into()),
    }
    calls.iter().for_each(|(id, name, input)| turns.called(id, name, input));
    turns.close();
    Ok(())
}

/// What an assistant said. Tokens begin with the space before a word: behind one, models go on as they never learnt to.
fn begun(text: &str, place: Place) -> Result<Value, String> {
    match place.is_last && text.ends_with(char::is_whitespace) {
        true => {
            Err("content: what an answer is to go on with ends with white space; leave that out".to_owned())
        }
        false => Ok(json!(text)),
    }
}

fn not_read(kind: &str, read: &str) -> String {
    format!("a block of type `{kind}`; this model reads {read}")
}

fn text<'a>(block: &'a Value, name: &str) -> Result<&'a str, String> {
    block[name]
        .as_str()
        .ok_or_else(|| format!("{}: {name}: expected a text", block["type"].as_str().unwrap_or("a block")))
}

fn text_part(block: &Value) -> Result<Value, String> {
    Ok(json!({"type": "text", "text": text(block, "text")?}))
}

/// A text, or blocks of text: as a text where there is one.
fn texts(content: &Value) -> Result<Value, String> {
    let one = |block: &Value| match block["type"].as_str() {
        Some("text") => text_part(block),
        Some(other) => Err(not_read(other, "text")),
        None => Err("a block is an object with a type".to_owned()),
    };
    match content {
        Value::String(_) => Ok(content.clone()),
        Value::Array(blocks) => {
            let mut parts = blocks.iter().map(one).collect::<Result<Vec<_>, _>>()?;
            Ok(if parts.len() == 1 { parts.remove(0)["text"].take() } else { parts.into() })
        }
        _ => Err("expected a text or a list of blocks of text".to_owned()),
    }
}

/// Functions in the chat's shape.
pub(super) fn tools(tools: &[Value], beside: &mut Beside) -> Result<Vec<Value>, ApiError> {
    let mut functions = Vec::new();
    for (at, tool) in tools.iter().enumerate() {
        let kind = tool["type"].as_str().unwrap_or("custom");
        if let Some(name) = hosted(kind, &HOSTED) {
            beside.ignored.push(name);
            continue;
        }
        if kind != "custom" {
            let what = format!(
                "a tool of type `{kind}` (tools[{at}]; the model can call those with an input_schema)"
            );
            return Err(ApiError::not_supported("tools", &what));
        }
        let wrong = |why: String| ApiError::invalid("tools", format!("tools[{at}]: {why}"));
        functions.push(as_function(tool, "input_schema").map_err(wrong)?);
        beside.places.push(format!("tools[{at}].input_schema"));
    }
    Ok(functions)
}

/// In the chat's shape.
pub(super) fn tool_choice(choice: &Map<String, Value>) -> Result<Value, ApiError> {
    match choice.get("type").and_then(Value::as_str) {
        Some("auto") => Ok(json!("auto")),
        Some("any") => Ok(json!("required")),
        Some("none") => Ok(json!("none")),
        Some("tool") => Ok(json!({"type": "function", "function": {"name": choice.get("name")}})),
        _ => Err(ApiError::invalid("tool_choice", "tool_choice: type: expected auto, any, tool or none")),
    }
}
