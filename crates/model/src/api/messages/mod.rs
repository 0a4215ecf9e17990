//! `/v1/messages`, Anthropic's endpoint: read as the chat that it means, and answered in its own shape.

mod answer;
mod input;
mod stream;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::names::{Names, put};
use super::{ApiError, Context, Endpoint, Generate, chat, check, schema};
use crate::template::ChatTemplate;

pub(super) use answer::response;
pub(super) use input::HOSTED;
pub(super) use stream::Stream;

/// What its fields are called where they are read.
const NAMES: Names<4> = Names([
    ("max_completion_tokens", "max_tokens"),
    ("stop", "stop_sequences"),
    ("thinking_token_budget", "thinking.budget_tokens"),
    ("response_format", "output_config.format"),
]);

/// Reads the body of `/v1/messages`.
pub fn messages(body: &Value, context: &Context) -> Result<Generate, ApiError> {
    if Fields::of(body)?.value("max_tokens").is_none() {
        return Err(ApiError::invalid("max_tokens", "max_tokens is missing"));
    }
    let (chat, beside) = as_chat(body, context)?;
    let request = chat::read(&chat, context, Endpoint::Messages);
    let mut request = request.map_err(|error| NAMES.told(error, &beside.places))?;
    check::form(&schema::MESSAGES, body)?;
    beside.ignored.iter().for_each(|name| request.unknown_fields.add(name));
    Ok(request)
}

/// How many tokens the prompt of such a body has: `/v1/messages/count_tokens`.
pub fn count_tokens(body: &Value, context: &Context) -> Result<Value, ApiError> {
    let (chat, beside) = as_chat(body, context)?;
    let tokens = chat::count(&chat, context).map_err(|error| NAMES.told(error, &beside.places))?;
    check::form(&schema::COUNT, body)?;
    Ok(json!({"input_tokens": tokens}))
}

/// What a body says that its chat does not.
#[derive(Default)]
struct Beside {
    /// What the model is not told.
    ignored: Vec<&'static str>,
    /// Where the parameters of each function stand.
    places: Vec<String>,
}

/// The chat that a body means. Fields that both endpoints have go over as they are, for the chat's reader to judge.
fn as_chat(body: &Value, context: &Context) -> Result<(Value, Beside), ApiError> {
    let mut fields = Fields::of(body)?;
    let mut beside = Beside::default();
    NAMES.refuse_others(&mut fields)?;
    fields.refuse("container", &[], "a container")?;
    fields.refuse("mcp_servers", &[json!([])], "asking other servers")?;
    let system = fields.value("system");
    let all = fields.list("messages")?;
    let all = all.ok_or_else(|| ApiError::invalid("messages", "messages is missing"))?;
    let remembered = remembered(fields.object("context_management")?)?;
    let messages = input::messages((all, system), remembered, context, &mut beside)?;
    let mut chat = Map::new();
    // What an assistant has begun to say is gone on with.
    let continues = all.last().is_some_and(|last| last["role"] == "assistant");
    put(&mut chat, "continue_final_message", continues.then(|| json!(true)));
    put(&mut chat, "messages", Some(messages.into()));
    put(&mut chat, "max_completion_tokens", fields.value("max_tokens").cloned());
    put(&mut chat, "stop", fields.texts("stop_sequences")?.map(Value::from));
    tools(&mut fields, &mut chat, &mut beside)?;
    output(&mut fields, &mut chat)?;
    let markers = context.template.and_then(ChatTemplate::thoughts);
    let is_countable = markers.is_none_or(|markers| markers.are_tokens(context.tokenizer));
    if !thinking(fields.object("thinking")?, is_countable, &mut chat)? {
        beside.ignored.push("budget_tokens");
    }
    // How long a prefix is to be kept, which is kept anyway.
    fields.value("cache_control");
    chat.extend(fields.rest().map(|(name, value)| (name.to_owned(), value.clone())));
    Ok((chat.into(), beside))
}

/// What may, or must, be called.
fn tools(fields: &mut Fields, chat: &mut Map<String, Value>, beside: &mut Beside) -> Result<(), ApiError> {
    let tools = fields.list("tools")?.unwrap_or_default();
    put(chat, "tools", Some(input::tools(tools, beside)?.into()));
    let choice = fields.object("tool_choice")?;
    put(chat, "tool_choice", choice.map(input::tool_choice).transpose()?);
    let one = choice.and_then(|choice| choice.get("disable_parallel_tool_use")).and_then(Value::as_bool);
    put(chat, "parallel_tool_calls", one.map(|one| json!(!one)));
    Ok(())
}

/// What an answer is to be.
fn output(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let config = fields.object("output_config")?;
    let said = |name: &str| config.and_then(|config| config.get(name)).filter(|value| !value.is_null());
    put(chat, "reasoning_effort", said("effort").cloned());
    let form = fields.value("output_format").or(said("format"));
    put(chat, "response_format", form.map(format).transpose()?);
    Ok(())
}

/// Of how many answers what was thought is kept, as `context_management` says.
fn remembered(edits: Option<&Map<String, Value>>) -> Result<usize, ApiError> {
    let edits = edits.and_then(|edits| edits.get("edits")).filter(|edits| !edits.is_null());
    if edits.is_some_and(|edits| !edits.is_array()) {
        let message = "context_management.edits: expected a list";
        return Err(ApiError::invalid("context_management", message));
    }
    let mut most = usize::MAX;
    for edit in edits.and_then(Value::as_array).into_iter().flatten() {
        let kind = edit["type"].as_str().unwrap_or_default();
        if !kind.starts_with("clear_thinking") {
            let what = format!("an edit of type `{kind}` (clear_thinking is)");
            return Err(ApiError::not_supported("context_management", &what));
        }
        if edit["keep"] != "all" {
            // As there, where nothing is said.
            most = edit["keep"]["value"].as_u64().unwrap_or(1) as usize;
        }
    }
    Ok(most)
}

/// A form of the answer in the chat's shape.
fn format(form: &Value) -> Result<Value, ApiError> {
    match form["type"].as_str() {
        Some("json_schema") => Ok(json!({"type": "json_schema", "json_schema": {"schema": form["schema"]}})),
        _ => Err(ApiError::invalid("output_config", "output_config.format: type: expected json_schema")),
    }
}

/// Whether, and how long, the model is to think: whether that can be asked of it. Who does not ask for thoughts is not told any.
fn thinking(
    asked: Option<&Map<String, Value>>,
    is_countable: bool,
    chat: &mut Map<String, Value>,
) -> Result<bool, ApiError> {
    let kind = asked.map(|asked| asked.get("type").and_then(Value::as_str).unwrap_or_default());
    let on = match kind {
        Some("enabled" | "adaptive") => true,
        Some("disabled") | None => false,
        Some(_) => {
            let message = "thinking: type: expected enabled, adaptive or disabled";
            return Err(ApiError::invalid("thinking", message));
        }
    };
    if kind.is_some() {
        chat.insert("enable_thinking".to_owned(), json!(on));
    }
    let said = |name: &str| asked.and_then(|asked| asked.get(name)).filter(|value| !value.is_null());
    if !on || said("display").is_some_and(|display| display == "omitted") {
        chat.insert("include_reasoning".to_owned(), json!(false));
    }
    let Some(most) = said("budget_tokens").filter(|_| on) else { return Ok(true) };
    if is_countable {
        chat.insert("thinking_token_budget".to_owned(), most.clone());
    }
    Ok(is_countable)
}
