//! Tool calls in a model's text: which format a model writes them in, how they are read as they come, and how a
//! model is made to write one.

mod force;
mod object;
mod parse;
#[cfg(test)]
mod tests;
mod value;

use std::str::FromStr;
use std::sync::Arc;

use serde_json::Value;

pub use force::Forced;
pub use parse::{CallParser, Part};

use crate::tokenizer::Tokenizer;

/// Begins Mistral's calls.
const MISTRAL: &str = "[TOOL_CALLS]";
/// Stands between a name and the arguments in newer ones.
const ARGS: &str = "[ARGS]";
/// Stands between a name and the id of its call in some of those.
const CALL_ID: &str = "[CALL_ID]";

/// How a family of models writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// Hermes and Qwen: `<tool_call>{"name": .., "arguments": {..}}</tool_call>`.
    Hermes,
    /// Llama 3: `{"name": .., "parameters": {..}}` and nothing else, maybe after `<|python_tag|>`.
    Llama3,
    /// Mistral: `[TOOL_CALLS][{"name": .., "arguments": {..}}, ..]`, or `[TOOL_CALLS]name{..}`.
    Mistral,
    /// Mistral since 2025: `[TOOL_CALLS]name[ARGS]{..}`, or `[TOOL_CALLS]name[CALL_ID]..[ARGS]{..}`, once for each call.
    MistralArgs,
    /// Granite 3: `<|tool_call|>[{"name": .., "arguments": {..}}, ..]`.
    Granite,
}

impl ToolFormat {
    /// The format that a chat template shows to its model.
    pub fn of_template(source: &str) -> Option<Self> {
        let has = |text: &str| source.contains(text);
        if has("<tool_call>") {
            Some(ToolFormat::Hermes)
        } else if has(MISTRAL) && has(ARGS) {
            Some(ToolFormat::MistralArgs)
        } else if has(MISTRAL) {
            Some(ToolFormat::Mistral)
        } else if has("<|tool_call|>") {
            Some(ToolFormat::Granite)
        } else if has("<|start_header_id|>") && has("tool_calls") && has("parameters") {
            Some(ToolFormat::Llama3)
        } else {
            None
        }
    }

    /// What begins calls, where something does.
    fn marker(self) -> Option<&'static str> {
        match self {
            ToolFormat::Hermes => Some("<tool_call>"),
            ToolFormat::Llama3 => None,
            ToolFormat::Mistral | ToolFormat::MistralArgs => Some(MISTRAL),
            ToolFormat::Granite => Some("<|tool_call|>"),
        }
    }

    /// Whether calls are a list, or may be.
    fn is_list(self) -> bool {
        self.is_mistral() || self == ToolFormat::Granite
    }

    fn is_mistral(self) -> bool {
        matches!(self, ToolFormat::Mistral | ToolFormat::MistralArgs)
    }

    /// What a template asks for that is said to have another format: Mistral's have one name for both.
    pub fn or_named(self, name: ToolFormat) -> ToolFormat {
        if self.is_mistral() && name == ToolFormat::Mistral { self } else { name }
    }

    /// Whether the marker is a special token: texts must be shown with it to be read.
    pub fn has_special_marker(self, tokenizer: &Tokenizer) -> bool {
        self.marker().is_some_and(|marker| special(marker, tokenizer).is_some())
    }

    /// An id for a call that looks as this format's models expect. `seed`: differs between calls.
    pub fn call_id(self, seed: &str) -> String {
        use sha2::Digest;
        let hex: String = sha2::Sha256::digest(seed).iter().take(12).map(|b| format!("{b:02x}")).collect();
        match self {
            format if format.is_mistral() => hex[..9].to_owned(),
            _ => format!("call_{hex}"),
        }
    }
}

/// The token of a text that is a special one.
fn special(text: &str, tokenizer: &Tokenizer) -> Option<u32> {
    tokenizer.id_of(text).filter(|&id| tokenizer.is_special(id))
}

impl FromStr for ToolFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "hermes" | "qwen" => Ok(ToolFormat::Hermes),
            "llama3_json" | "llama3" => Ok(ToolFormat::Llama3),
            "mistral" => Ok(ToolFormat::Mistral),
            "granite" => Ok(ToolFormat::Granite),
            other => Err(format!("`{other}`; expected hermes, llama3_json, mistral or granite")),
        }
    }
}

/// How the text of an answer to a request with tools is read.
#[derive(Clone, Debug, PartialEq)]
pub struct Calls {
    /// How the model writes calls.
    pub format: ToolFormat,
    /// Names of the tools.
    pub names: Arc<[String]>,
    /// Calls after these are left out.
    pub most: usize,
    /// What may stand beside them.
    pub beside: Beside,
}

/// What an answer with calls may be beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// Text.
    Text,
    /// Nothing: it had to be calls. What is no call there is the beginning of one that the answer's end cut off.
    Nothing,
}

/// A call, whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Of the tool.
    pub name: String,
    /// JSON, as the model wrote it.
    pub arguments: String,
}

impl Calls {
    /// Begins to read a text.
    pub fn parser(&self) -> CallParser {
        CallParser::new(self.clone())
    }

    /// Reads a text whole: what is not calls, and the calls.
    pub fn split(&self, text: &str) -> (String, Vec<Call>) {
        let (shown, calls, _) = self.read(text);
        (shown, calls)
    }

    /// The same, and whether the last call is cut by the text's end.
    pub fn read(&self, text: &str) -> (String, Vec<Call>, bool) {
        let (mut parser, mut shown, mut calls) = (self.parser(), String::new(), Vec::<Call>::new());
        let mut parts = parser.push(text);
        parts.extend(parser.finish());
        for part in parts {
            match part {
                Part::Text(text) => shown.push_str(&text),
                Part::Call { name, .. } => calls.push(Call { name, arguments: String::new() }),
                Part::Arguments { index, text } => calls[index].arguments.push_str(&text),
            }
        }
        (shown, calls, parser.is_within_call())
    }
}

/// Name of a tool in OpenAI's shape.
pub fn name(tool: &Value) -> Option<&str> {
    tool["function"]["name"].as_str()
}
