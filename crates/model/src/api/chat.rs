//! `/v1/chat/completions`: a conversation to answer.

use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::request::Common;
use super::{ApiError, Context, Endpoint, Generate};
use crate::template::{ChatTemplate, Conversation, Ending, TemplateError, Tools};
use crate::tokenizer::Special;

/// Template variables that a request may not set.
const RESERVED: [&str; 11] = [
    "chat_template",
    "tokenize",
    "tools",
    "documents",
    "conversation",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "continue_final_message",
];

/// Reads the body of `/v1/chat/completions`.
pub fn chat(body: &Value, context: &Context) -> Result<Generate, ApiError> {
    let mut fields = Fields::of(body)?;
    let mut common = Common::read(&mut fields, context)?;
    let wins = fields.count("max_completion_tokens")?;
    common.overrides.max_tokens = wins.or(common.overrides.max_tokens);
    if common.overrides.max_tokens == Some(0) {
        return Err(ApiError::invalid("max_tokens", "max_tokens: expected at least 1, found 0"));
    }
    common.overrides.logprobs = logprobs(&mut fields)?;
    fields.refuse("echo", &[json!(false)], "echo in chats")?;
    let text = render(&mut fields, context)?;
    let special = match fields.flag("add_special_tokens")? {
        Some(true) => Special::With,
        _ => Special::Without,
    };
    let prompt = context.tokenizer.encode(&text, special)?;
    common.finish(Endpoint::Chat, vec![prompt], None, fields, context)
}

/// `logprobs` turns them on, `top_logprobs` says how many rivals.
fn logprobs(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let on = fields.flag("logprobs")?.unwrap_or(false);
    match (on, fields.count("top_logprobs")?) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::invalid("top_logprobs", "top_logprobs needs logprobs: true")),
    }
}

pub(super) fn render(fields: &mut Fields, context: &Context) -> Result<String, ApiError> {
    let messages = fields.list("messages")?;
    let messages = messages.ok_or_else(|| ApiError::invalid("messages", "messages is missing"))?;
    let tools = tools(fields)?;
    let documents = fields.value("documents");
    let extra = extra(fields)?;
    let ending = ending(fields)?;
    let conversation = Conversation {
        messages: &messages,
        tools: tools.as_ref(),
        documents: documents.as_ref(),
        extra: Some(&extra),
        ending,
        special: context.special.clone(),
        now: context.now,
    };
    fields.refuse("chat_template", &[], "a template in a request")?;
    let choice = if tools.is_some() { Tools::Given } else { Tools::Absent };
    template(context, choice)?.render(&conversation).map_err(refused)
}

fn template<'a>(context: &Context<'a>, tools: Tools) -> Result<&'a ChatTemplate, ApiError> {
    let chosen = match tools {
        Tools::Given => context.tool_template.or(context.template),
        Tools::Absent => context.template,
    };
    chosen.ok_or_else(|| TemplateError::Missing.into())
}

fn refused(error: TemplateError) -> ApiError {
    let code = matches!(error, TemplateError::Limit(_)).then_some("template_limit");
    ApiError { code, ..ApiError::from(error) }
}

fn tools(fields: &mut Fields) -> Result<Option<Value>, ApiError> {
    let tools = fields.list("tools")?.filter(|tools| !tools.is_empty());
    if let Some(at) = tools.iter().flatten().position(|tool| !tool["function"]["name"].is_string()) {
        return Err(ApiError::invalid("tools", format!("tools[{at}]: expected a function with a name")));
    }
    match fields.value("tool_choice") {
        None => Ok(tools.map(Value::Array)),
        Some(choice) if choice == "auto" => Ok(tools.map(Value::Array)),
        Some(choice) if choice == "none" => Ok(None),
        Some(_) => Err(ApiError::not_supported("tool_choice", "forcing a tool")),
    }
}

/// Variables for the template beside the conversation.
fn extra(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    let mut extra = fields.object("chat_template_kwargs")?.unwrap_or_default();
    if let Some(name) = RESERVED.iter().find(|name| extra.contains_key(**name)) {
        let message = format!("chat_template_kwargs: `{name}` cannot be set");
        return Err(ApiError::invalid("chat_template_kwargs", message));
    }
    for name in ["reasoning_effort", "enable_thinking"] {
        if let Some(value) = fields.value(name) {
            extra.entry(name).or_insert(value);
        }
    }
    Ok(extra)
}

fn ending(fields: &mut Fields) -> Result<Ending, ApiError> {
    let prompt = fields.flag("add_generation_prompt")?;
    match (fields.flag("continue_final_message")?.unwrap_or(false), prompt) {
        (true, Some(true)) => Err(ApiError::invalid(
            "continue_final_message",
            "continue_final_message and add_generation_prompt exclude each other",
        )),
        (true, _) => Ok(Ending::ContinueFinal),
        (false, Some(false)) => Ok(Ending::Plain),
        (false, _) => Ok(Ending::GenerationPrompt),
    }
}
