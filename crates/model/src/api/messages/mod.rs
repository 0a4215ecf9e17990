//! `/v1/messages`, Anthropic's endpoint: read as the chat that it means, and answered in its own shape.

mod answer;
mod input;
mod stream;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::{ApiError, Context, Endpoint, Generate, chat, schema};

pub(super) use answer::response;
pub(super) use input::HOSTED;
pub(super) use stream::Stream;

/// What its fields are called where they are read.
const NAMES: [(&str, &str); 4] = [
    ("max_completion_tokens", "max_tokens"),
    ("stop", "stop_sequences"),
    ("thinking_token_budget", "thinking.budget_tokens"),
    ("response_format", "output_config.format"),
];

/// Reads the body of `/v1/messages`.
pub fn messages(body: &Value, context: &Context) -> Result<Generate, ApiError> {
    if body.get("max_tokens").is_none_or(Value::is_null) {
        return Err(ApiError::invalid("max_tokens", "max_tokens is missing"));
    }
    let (chat, left_out) = as_chat(body, context)?;
    let request = chat::read(&chat, context, Endpoint::Messages);
    let mut request = request.map_err(|error| error.renamed(&NAMES))?;
    schema::check_messages(body)?;
    left_out.iter().for_each(|tool| request.unknown_fields.add(tool));
    Ok(request)
}

/// How many tokens the prompt of such a body has: `/v1/messages/count_tokens`.
pub fn count_tokens(body: &Value, context: &Context) -> Result<Value, ApiError> {
    let tokens = chat::count(&as_chat(body, context)?.0, context).map_err(|error| error.renamed(&NAMES))?;
    schema::check_count(body)?;
    Ok(json!({"input_tokens": tokens}))
}

/// The chat that a body means, and the tools that it does not have. Fields that both endpoints have go over as they are, for the chat's reader to judge.
fn as_chat(body: &Value, context: &Context) -> Result<(Value, Vec<&'static str>), ApiError> {
    let mut fields = Fields::of(body)?;
    refuse_what_is_not_built(&mut fields)?;
    let system = fields.value("system");
    let all = fields.list("messages")?;
    let all = all.ok_or_else(|| ApiError::invalid("messages", "messages is missing"))?;
    let remembered = remembered(fields.object("context_management")?)?;
    let messages = input::messages(all, system, remembered, context)?;
    let mut own = Map::new();
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            own.insert(name.to_owned(), value);
        }
    };
    // What an assistant has begun to say is gone on with.
    let continues = all.last().is_some_and(|last| last["role"] == "assistant");
    put("continue_final_message", continues.then(|| json!(true)));
    put("messages", Some(messages.into()));
    put("max_completion_tokens", fields.value("max_tokens").cloned());
    put("stop", fields.texts("stop_sequences")?.map(Value::from));
    let (functions, left_out) = input::tools(fields.list("tools")?.unwrap_or_default())?;
    put("tools", Some(functions.into()));
    let choice = fields.object("tool_choice")?;
    put("tool_choice", choice.map(input::tool_choice).transpose()?);
    let one = choice.and_then(|choice| choice.get("disable_parallel_tool_use")).and_then(Value::as_bool);
    put("parallel_tool_calls", one.map(|one| json!(!one)));
    let config = fields.object("output_config")?;
    let said = |name: &str| config.and_then(|config| config.get(name)).filter(|value| !value.is_null());
    put("reasoning_effort", said("effort").cloned());
    let form = fields.value("output_format").or(said("format"));
    put("response_format", form.map(format).transpose()?);
    thinking(fields.object("thinking")?, &mut own)?;
    // How long a prefix is to be kept, which is kept anyway.
    fields.value("cache_control");
    own.extend(fields.rest().map(|(name, value)| (name.to_owned(), value.clone())));
    Ok((own.into(), left_out))
}

fn refuse_what_is_not_built(fields: &mut Fields) -> Result<(), ApiError> {
    fields.refuse("container", &[], "a container")?;
    fields.refuse("mcp_servers", &[json!([])], "asking other servers")?;
    fields.refuse("n", &[json!(1)], "more than one answer")?;
    fields.refuse("logprobs", &[json!(false)], "log-probabilities (which /v1/chat/completions has)")?;
    for name in ["stop", "max_completion_tokens", "response_format"] {
        if fields.value(name).is_some() {
            let own = NAMES.iter().find(|(chat, _)| *chat == name).map_or(name, |(_, own)| own);
            let message = format!("{name} is a field of /v1/chat/completions; here it is {own}");
            return Err(ApiError::invalid(name, message));
        }
    }
    Ok(())
}

/// Of how many answers what was thought is kept, as `context_management` says.
fn remembered(edits: Option<&Map<String, Value>>) -> Result<usize, ApiError> {
    let edits = edits.and_then(|edits| edits.get("edits")).and_then(Value::as_array);
    let mut most = usize::MAX;
    for edit in edits.into_iter().flatten() {
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

/// Whether, and how long, the model is to think.
fn thinking(asked: Option<&Map<String, Value>>, own: &mut Map<String, Value>) -> Result<(), ApiError> {
    let Some(asked) = asked else { return Ok(()) };
    let on = match asked.get("type").and_then(Value::as_str) {
        Some("enabled" | "adaptive") => true,
        Some("disabled") => false,
        _ => {
            let message = "thinking: type: expected enabled, adaptive or disabled";
            return Err(ApiError::invalid("thinking", message));
        }
    };
    own.insert("enable_thinking".to_owned(), json!(on));
    if !on || asked.get("display").is_some_and(|display| display == "omitted") {
        own.insert("include_reasoning".to_owned(), json!(false));
    }
    if let Some(most) = asked.get("budget_tokens").filter(|most| on && !most.is_null()) {
        own.insert("thinking_token_budget".to_owned(), most.clone());
    }
    Ok(())
}
