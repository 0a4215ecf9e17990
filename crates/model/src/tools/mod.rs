//! Tool calls in a model's text: which format a model writes them in, how they are read as they come, and how a
//! model is made to write one.

mod body;
mod force;
mod literal;
mod object;
mod parse;
mod python;
mod tagged;
#[cfg(test)]
mod tests;
mod types;
mod value;

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use serde_json::Value;

pub use force::Forced;
pub use parse::{CallParser, Part};

use crate::tokenizer::Tokenizer;
use types::Types;

/// Most bytes of a name that nothing quotes.
const NAME_BYTES: usize = 256;

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
    /// Qwen's coders: `<tool_call><function=name><parameter=key>value</parameter>..</function></tool_call>`.
    QwenXml,
    /// Seed-OSS: the same between `<seed:tool_call>` and `</seed:tool_call>`.
    Seed,
    /// Llama 3: `{"name": .., "parameters": {..}}` and nothing else, maybe after `<|python_tag|>`.
    Llama3,
    /// Mistral: `[TOOL_CALLS][{"name": .., "arguments": {..}}, ..]`, or `[TOOL_CALLS]name{..}`.
    Mistral,
    /// Mistral since 2025: `[TOOL_CALLS]name[ARGS]{..}`, or `[TOOL_CALLS]name[CALL_ID]..[ARGS]{..}`, once for each call.
    MistralArgs,
    /// Granite 3: `<|tool_call|>[{"name": .., "arguments": {..}}, ..]`.
    Granite,
    /// Llama-Nemotron: the same between `<TOOLCALL>` and `</TOOLCALL>`.
    Nemotron,
    /// Command R7B and A: `<|START_ACTION|>[{"tool_name": .., "parameters": {..}}, ..]<|END_ACTION|>`.
    Cohere,
    /// OLMo 3: `<function_calls>name(key=value, ..)</function_calls>`, a line for each call.
    Olmo,
}

/// By which names they are asked for; the first is the one that is told.
const NAMES: [(ToolFormat, &[&str]); 9] = [
    (ToolFormat::Hermes, &["hermes", "qwen"]),
    (ToolFormat::QwenXml, &["qwen3_coder", "qwen3_xml"]),
    (ToolFormat::Seed, &["seed_oss"]),
    (ToolFormat::Llama3, &["llama3_json", "llama3"]),
    (ToolFormat::Mistral, &["mistral"]),
    (ToolFormat::Granite, &["granite"]),
    (ToolFormat::Nemotron, &["nemotron"]),
    (ToolFormat::Cohere, &["cohere"]),
    (ToolFormat::Olmo, &["olmo3"]),
];

/// What stands around calls.
struct Marks {
    /// What begins them, where something does.
    opens: &'static [&'static str],
    /// What ends them, where something does.
    closes: Option<&'static str>,
}

impl ToolFormat {
    /// The format that a chat template shows to its model.
    pub fn of_template(source: &str) -> Option<Self> {
        let has = |text: &str| source.contains(text);
        // Others write other things between these: GLM since 4.5.
        if has("<tool_call>") && has("<arg_key>") {
            None
        } else if has("<seed:tool_call>") {
            Some(ToolFormat::Seed)
        } else if has("<tool_call>") && has("<function=") {
            Some(ToolFormat::QwenXml)
        } else if has("<tool_call>") {
            Some(ToolFormat::Hermes)
        } else if has(MISTRAL) && has(ARGS) {
            Some(ToolFormat::MistralArgs)
        } else if has(MISTRAL) {
            Some(ToolFormat::Mistral)
        } else if has("<|tool_call|>") {
            Some(ToolFormat::Granite)
        } else if has("<TOOLCALL>") {
            Some(ToolFormat::Nemotron)
        } else if has("<|START_ACTION|>") {
            Some(ToolFormat::Cohere)
        } else if has("<function_calls>") {
            Some(ToolFormat::Olmo)
        } else if has("<|start_header_id|>") && has("tool_calls") && has("parameters") {
            Some(ToolFormat::Llama3)
        } else {
            None
        }
    }

    fn marks(self) -> Marks {
        let marks = |opens, closes| Marks { opens, closes };
        match self {
            ToolFormat::Hermes => marks(&["<tool_call>"], Some("</tool_call>")),
            // Some forget the first.
            ToolFormat::QwenXml => marks(&["<tool_call>", tagged::FUNCTION], Some("</tool_call>")),
            ToolFormat::Seed => marks(&["<seed:tool_call>", tagged::FUNCTION], Some("</seed:tool_call>")),
            ToolFormat::Llama3 => marks(&[], None),
            ToolFormat::Mistral | ToolFormat::MistralArgs => marks(&[MISTRAL], None),
            // Phi-4-mini, which has the same marker, ends its list so.
            ToolFormat::Granite => marks(&["<|tool_call|>"], Some("<|/tool_call|>")),
            ToolFormat::Nemotron => marks(&["<TOOLCALL>"], Some("</TOOLCALL>")),
            ToolFormat::Cohere => marks(&["<|START_ACTION|>"], Some("<|END_ACTION|>")),
            ToolFormat::Olmo => marks(&["<function_calls>"], Some("</function_calls>")),
        }
    }

    /// What stands around an answer beside calls, and is no part of it.
    fn frame(self) -> &'static [&'static str] {
        match self {
            ToolFormat::Cohere => &["<|START_RESPONSE|>", "<|END_RESPONSE|>"],
            _ => &[],
        }
    }

    /// Whether calls are a list, or may be.
    fn is_list(self) -> bool {
        self.is_mistral() || matches!(self, ToolFormat::Granite | ToolFormat::Nemotron | ToolFormat::Cohere)
    }

    /// Whether calls are tags, with values as texts are.
    fn is_tagged(self) -> bool {
        matches!(self, ToolFormat::QwenXml | ToolFormat::Seed)
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
        self.marks().opens.iter().any(|marker| special(marker, tokenizer).is_some())
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
        let known = NAMES.iter().find(|(_, names)| names.contains(&name));
        known.map(|(format, _)| *format).ok_or_else(|| {
            let names: Vec<&str> = NAMES.iter().map(|(_, names)| names[0]).collect();
            format!("`{name}`; expected one of {}", names.join(", "))
        })
    }
}

/// How the text of an answer to a request with tools is read.
#[derive(Clone, Debug, PartialEq)]
pub struct Calls {
    /// How the model writes calls.
    pub format: ToolFormat,
    /// What may be called.
    pub tools: Arc<[Tool]>,
    /// Calls after these are left out.
    pub most: usize,
    /// What may stand beside them.
    pub beside: Beside,
}

/// A function that a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    name: String,
    /// A schema.
    parameters: Value,
    /// What its parameters may be, once it is called: a schema with unions is a product of them.
    types: OnceLock<HashMap<String, Types>>,
}

impl Tool {
    /// Of a tool in OpenAI's shape.
    pub fn of(tool: &Value) -> Option<Self> {
        let parameters = tool["function"]["parameters"].clone();
        Some(Tool { name: name(tool)?.to_owned(), parameters, types: OnceLock::new() })
    }

    fn types_of(&self, parameter: &str) -> Types {
        let all = self.types.get_or_init(|| Types::of_all(&self.parameters));
        let others = || Some(&self.parameters["additionalProperties"]).filter(|schema| schema.is_object());
        let other = || others().map_or_else(Types::default, |schema| Types::of(schema, &self.parameters));
        all.get(parameter).cloned().unwrap_or_else(other)
    }
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
    /// What the tools are called.
    #[cfg(test)]
    pub(crate) fn names(&self) -> Vec<&str> {
        self.tools.iter().map(|tool| &*tool.name).collect()
    }

    fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

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

/// Whether it may stand in the name of a tool that nothing ends but what is no name.
fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-./:".contains(c)
}
