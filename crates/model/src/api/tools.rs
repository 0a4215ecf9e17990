//! `tools`, `tool_choice` and `parallel_tool_calls`.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::format::Asked;
use super::{ApiError, Context};
use crate::grammar::OutputFormat;
use crate::template::ChatTemplate;
use crate::tools::{Beside, Calls, Forced, Tool, ToolFormat, name};

/// Most tools of one request. OpenAI allows 128; agents that gather the tools of several servers have more.
pub const MAX_TOOLS: usize = 1024;
/// Bytes of a function's name.
pub(super) const NAME_BYTES: RangeInclusive<usize> = 1..=256;
/// Most calls of one answer.
const MAX_CALLS: usize = 128;

/// What a request says of tools.
pub(super) struct Offer {
    /// As clients send them, for the template.
    pub(super) tools: Option<Value>,
    choice: Choice,
    most: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Choice {
    Auto,
    Required,
    Named(String),
}

impl Offer {
    pub(super) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let tools = fields.list("tools")?.unwrap_or_default();
        check_count(tools.len())?;
        if let Some(at) = tools.iter().position(|tool| !is_function(tool)) {
            return Err(ApiError::invalid("tools", format!("tools[{at}]: expected a function with a name")));
        }
        let most = if fields.flag("parallel_tool_calls")? == Some(false) { 1 } else { MAX_CALLS };
        let (asked, tools) = allowed(fields.value("tool_choice"), tools)?;
        let choice = choice(asked.as_ref(), &tools)?;
        let tools = (!tools.is_empty() && choice.is_some()).then(|| Value::from(tools));
        Ok(Offer { tools, choice: choice.unwrap_or(Choice::Auto), most })
    }

    /// How the answer will be read, if there are tools.
    pub(super) fn calls(&self, template: &ChatTemplate) -> Result<Option<Calls>, ApiError> {
        let Some(tools) = self.list() else { return Ok(None) };
        let Some(format) = template.tool_format() else {
            let what = "calling tools with this model (its chat template shows no format of calls that is \
                        known; --tool-call-parser names one)";
            return Err(ApiError::not_supported("tools", what));
        };
        let tools = tools.iter().filter_map(Tool::of).collect();
        let beside = if self.choice == Choice::Auto { Beside::Text } else { Beside::Nothing };
        Ok(Some(Calls { format, tools, most: self.most, beside }))
    }

    /// The calls that the answer must be, if it must.
    pub(super) fn forced(&self, format: ToolFormat, context: &Context) -> Option<Asked> {
        let which = match &self.choice {
            Choice::Auto => return None,
            Choice::Required => Forced::Any,
            Choice::Named(name) => Forced::Only(name),
        };
        let format = format.forced(self.list()?, which, context.tokenizer, self.most);
        let schema = |(at, tool): (usize, &Value)| {
            let schema = tool["function"].get("parameters").filter(|schema| schema.is_object())?;
            Some((format!("tools[{at}].function.parameters"), OutputFormat::Schema(schema.clone())))
        };
        let parts = self.list()?.iter().enumerate().filter_map(schema).collect();
        Some(Asked { param: "tools", format, parts })
    }

    fn list(&self) -> Option<&Vec<Value>> {
        self.tools.as_ref().and_then(Value::as_array)
    }
}

/// # Errors
/// If these are more tools than may be offered.
pub(super) fn check_count(tools: usize) -> Result<(), ApiError> {
    if tools > MAX_TOOLS {
        return Err(ApiError::invalid("tools", format!("{tools} tools; at most {MAX_TOOLS}")));
    }
    Ok(())
}

fn is_function(tool: &Value) -> bool {
    let kind = &tool["type"];
    (kind.is_null() || kind == "function") && name(tool).is_some_and(|name| NAME_BYTES.contains(&name.len()))
}

/// What is chosen, and from which tools: some of them, where the choice says so. The others are not shown.
fn allowed(choice: Option<&Value>, tools: &[Value]) -> Result<(Option<Value>, Vec<Value>), ApiError> {
    let Some(allowed) = choice.and_then(|choice| choice.get("allowed_tools")) else {
        return Ok((choice.cloned(), tools.to_vec()));
    };
    let wrong = |why: String| ApiError::invalid("tool_choice", format!("tool_choice.allowed_tools: {why}"));
    let names = allowed["tools"].as_array().filter(|names| !names.is_empty());
    let names =
        names.ok_or_else(|| wrong("tools: expected a list of functions by their names".to_owned()))?;
    let known: BTreeSet<&str> = tools.iter().filter_map(name).collect();
    let one = |wanted: &Value| match name(wanted) {
        Some(name) if known.contains(name) => Ok(name.to_owned()),
        Some(name) => Err(wrong(format!("`{name}` is none of the tools"))),
        None => Err(wrong("tools: expected functions by their names".to_owned())),
    };
    let named = names.iter().map(one).collect::<Result<BTreeSet<String>, _>>()?;
    if !matches!(allowed["mode"].as_str(), Some("auto" | "required")) {
        return Err(wrong("mode: expected auto or required".to_owned()));
    }
    let tools = tools.iter().filter(|tool| name(tool).is_some_and(|name| named.contains(name)));
    Ok((Some(allowed["mode"].clone()), tools.cloned().collect()))
}

/// Nothing where the tools are not to be shown.
fn choice(choice: Option<&Value>, tools: &[Value]) -> Result<Option<Choice>, ApiError> {
    let wrong = |why: String| Err(ApiError::invalid("tool_choice", format!("tool_choice: {why}")));
    let choice = match choice {
        None => return Ok(Some(Choice::Auto)),
        Some(Value::String(word)) => match word.as_str() {
            "none" => return Ok(None),
            "auto" => return Ok(Some(Choice::Auto)),
            "required" => Choice::Required,
            _ => return wrong("expected none, auto, required, or a function by its name".to_owned()),
        },
        Some(function) => match function["function"]["name"].as_str() {
            Some(wanted) if tools.iter().any(|tool| name(tool) == Some(wanted)) => {
                Choice::Named(wanted.to_owned())
            }
            Some(wanted) => return wrong(format!("`{wanted}` is none of the tools")),
            None => return wrong("expected none, auto, required, or a function by its name".to_owned()),
        },
    };
    if tools.is_empty() {
        return wrong("there are no tools".to_owned());
    }
    Ok(Some(choice))
}

/// The name of a tool that a server runs by itself, if it has it: that it may is no promise that it does. `kind`: the type of a
/// tool, which begins as one of these if it is one.
pub(super) fn hosted(kind: &str, all: &[&'static str]) -> Option<&'static str> {
    all.iter().find(|name| kind.starts_with(*name)).map(|name| name.trim_end_matches('_'))
}

/// A function in the chat's shape: what a model is told of it, in the order that templates print. `parameters`: where they are.
pub(super) fn as_function(tool: &Value, parameters: &str) -> Result<Value, String> {
    if !tool["name"].as_str().is_some_and(|name| NAME_BYTES.contains(&name.len())) {
        return Err("expected a function with a name of 1 to 256 bytes".to_owned());
    }
    let is =
        |name: &str, of: fn(&Value) -> bool| tool.get(name).is_none_or(|value| value.is_null() || of(value));
    if !is("description", Value::is_string) {
        return Err("description: expected a text".to_owned());
    }
    if !is(parameters, Value::is_object) {
        return Err(format!("{parameters}: expected an object"));
    }
    let fields = [("name", "name"), ("description", "description"), (parameters, "parameters")];
    let told = fields.into_iter().filter_map(|(own, name)| Some((name.to_owned(), tool.get(own)?.clone())));
    let function: Map<String, Value> = told.filter(|(_, value)| !value.is_null()).collect();
    Ok(json!({"type": "function", "function": function}))
}
