//! `/v1/chat/completions`: a conversation to answer.

use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::request::Common;
use super::tools::Offer;
use super::{ApiError, Context, Endpoint, Generate, OwnTemplates, check, schema, thoughts};
use crate::template::{ChatTemplate, Conversation, Ending, TemplateError};
use crate::tokenizer::Special;
use crate::tools::ToolFormat;

/// Most messages of one conversation.
pub const MAX_MESSAGES: usize = 10_000;

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
    read(body, context, Endpoint::Chat)
}

/// Reads a conversation, which came to this endpoint.
pub(super) fn read(body: &Value, context: &Context, endpoint: Endpoint) -> Result<Generate, ApiError> {
    let mut fields = Fields::of(body)?;
    let mut common = Common::read(&mut fields, context)?;
    // There a length must be given, and clients that have none in mind give one that is long.
    common.takes_what_fits = endpoint == Endpoint::Messages;
    if let Some(wins) = fields.count("max_completion_tokens")? {
        common.overrides.max_tokens = Some(wins);
        common.max_tokens_field = "max_completion_tokens";
    }
    if common.overrides.max_tokens == Some(0) {
        let field = common.max_tokens_field;
        return Err(ApiError::invalid(field, format!("{field}: expected at least 1, found 0")));
    }
    common.overrides.logprobs = logprobs(&mut fields, context)?;
    fields.refuse("echo", &[json!(false)], "echo in chats")?;
    let offer = Offer::read(&mut fields)?;
    let own = own_template(&mut fields, context)?;
    let context = &with_template(context, own.as_ref());
    let ending = ending(&mut fields)?;
    let text = render(&mut fields, &offer, ending, context)?;
    let calls = offer.calls(template(&offer, context)?)?;
    if let Some(calls) = &calls {
        common.read_calls(&offer, calls.format, context)?;
    }
    let prompt = (&text[..], thoughts::continued(body, ending));
    let thoughts = thoughts::read(&mut fields, prompt, template(&offer, context)?, context)?;
    if thoughts.as_ref().is_some_and(|thoughts| thoughts.has_special_marker(context.tokenizer)) {
        common.overrides.skip_special_tokens = Some(false);
    }
    let special = match fields.flag("add_special_tokens")? {
        Some(true) => Special::With,
        _ => Special::Without,
    };
    let prompt = common.encode("messages", &text, special, context)?;
    let generate = common.finish(endpoint, vec![prompt], None, fields, context)?;
    check::form(&schema::CHAT, body)?;
    thoughts::before(thoughts, Generate { calls, ..generate })
}

/// The text of a conversation, for who only looks at it.
pub(super) fn prompt(fields: &mut Fields, context: &Context) -> Result<String, ApiError> {
    let offer = Offer::read(fields)?;
    let own = own_template(fields, context)?;
    let context = &with_template(context, own.as_ref());
    let ending = ending(fields)?;
    render(fields, &offer, ending, context)
}

/// How many tokens that has.
pub(super) fn count(body: &Value, context: &Context) -> Result<usize, ApiError> {
    let mut fields = Fields::of(body)?;
    super::request::model(&mut fields, context)?;
    let text = prompt(&mut fields, context)?;
    let tokens = context.tokenizer.encode(&text, Special::Without);
    Ok(tokens.map_err(|error| ApiError::invalid("messages", error.to_string()))?.len())
}

impl Common {
    /// What tools change: the text must be shown with its markers, and it may have to be calls.
    fn read_calls(&mut self, offer: &Offer, format: ToolFormat, context: &Context) -> Result<(), ApiError> {
        if format.has_special_marker(context.tokenizer) {
            self.overrides.skip_special_tokens = Some(false);
        }
        if let Some(forced) = offer.forced(format, context) {
            if let Some(asked) = &self.format {
                let message = format!("tool_choice and {} exclude each other", asked.param);
                return Err(ApiError::invalid("tool_choice", message));
            }
            self.format = Some(forced);
        }
        Ok(())
    }
}

/// `logprobs` turns them on, `top_logprobs` says how many rivals.
fn logprobs(fields: &mut Fields, context: &Context) -> Result<Option<u32>, ApiError> {
    let (on, top) = (fields.flag("logprobs")?.unwrap_or(false), fields.count("top_logprobs")?);
    context.limits().check_logprobs("top_logprobs", top)?;
    match (on, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::invalid("top_logprobs", "top_logprobs needs logprobs: true")),
    }
}

fn render(fields: &mut Fields, offer: &Offer, ending: Ending, context: &Context) -> Result<String, ApiError> {
    let messages = fields.list("messages")?;
    let messages = messages.ok_or_else(|| ApiError::invalid("messages", "messages is missing"))?;
    if messages.len() > MAX_MESSAGES {
        let message = format!("messages: {} of them; at most {MAX_MESSAGES}", messages.len());
        return Err(ApiError::invalid("messages", message));
    }
    let documents = fields.value("documents");
    let extra = extra(fields)?;
    let conversation = Conversation {
        messages,
        tools: offer.tools.as_ref(),
        documents,
        extra: Some(&extra),
        ending,
        special: context.special.clone(),
        now: context.now,
    };
    template(offer, context)?.render(&conversation).map_err(refused)
}

/// The template that the conversation brings, if it may. It writes calls and marks thoughts as the model's own does where it shows no way.
fn own_template(fields: &mut Fields, context: &Context) -> Result<Option<ChatTemplate>, ApiError> {
    let param = "chat_template";
    let Some(source) = fields.text(param)? else { return Ok(None) };
    if context.own_templates == OwnTemplates::Refused {
        let what = "a template in a request (only `ballast serve --trust-request-chat-template` takes one)";
        return Err(ApiError::not_supported(param, what));
    }
    let own = ChatTemplate::new(&source);
    let own = own.map_err(|error| ApiError::invalid(param, format!("{param}: {error}")))?;
    let markers = own.thoughts().or_else(|| context.template?.thoughts());
    let own = own.with_thoughts(markers);
    let format = own.tool_format().or_else(|| context.template?.tool_format());
    Ok(Some(match format {
        Some(format) => own.with_tool_format(format),
        None => own,
    }))
}

/// The same context with this template for every conversation, if there is one.
fn with_template<'a>(context: &Context<'a>, own: Option<&'a ChatTemplate>) -> Context<'a> {
    match own {
        Some(own) => Context { template: Some(own), tool_template: Some(own), ..context.clone() },
        None => context.clone(),
    }
}

fn template<'a>(offer: &Offer, context: &Context<'a>) -> Result<&'a ChatTemplate, ApiError> {
    let chosen = match offer.tools {
        Some(_) => context.tool_template.or(context.template),
        None => context.template,
    };
    chosen.ok_or_else(|| TemplateError::Missing.into())
}

fn refused(error: TemplateError) -> ApiError {
    let code = matches!(error, TemplateError::Limit(_)).then_some("template_limit");
    ApiError { code, ..ApiError::from(error) }
}

/// Variables for the template beside the conversation.
fn extra(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    let mut extra = fields.object("chat_template_kwargs")?.cloned().unwrap_or_default();
    if let Some(name) = RESERVED.iter().find(|name| extra.contains_key(**name)) {
        let message = format!("chat_template_kwargs: `{name}` cannot be set");
        return Err(ApiError::invalid("chat_template_kwargs", message));
    }
    for name in ["reasoning_effort", "enable_thinking"] {
        if let Some(value) = fields.value(name) {
            extra.entry(name).or_insert_with(|| value.clone());
        }
    }
    // As OpenAI says it; templates say it in their own way.
    if extra.get("reasoning_effort").is_some_and(|effort| effort == "none") {
        extra.entry("enable_thinking").or_insert(json!(false));
    }
    Ok(extra)
}

/// How the prompt of a conversation ends.
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
