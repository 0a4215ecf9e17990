//! A grammar that leaves a model no choice but to call, in the format that it knows.

use serde_json::{Value, json};

use super::{ARGS, CALL_ID, MISTRAL, ToolFormat, name, special};
use crate::grammar::{OutputFormat, quoted, settled};
use crate::tokenizer::Tokenizer;

/// What a request insists on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forced<'a> {
    /// Calls of any of the tools.
    Any,
    /// One call of this one.
    Only(&'a str),
}

impl ToolFormat {
    /// Texts that are calls of `tools` and nothing else, `most` of them.
    pub fn forced(self, tools: &[Value], which: Forced, tokenizer: &Tokenizer, most: usize) -> OutputFormat {
        let wanted = |tool: &&Value| match which {
            Forced::Any => true,
            Forced::Only(wanted) => name(tool) == Some(wanted),
        };
        let tools: Vec<&Value> = tools.iter().filter(wanted).collect();
        let many = which == Forced::Any && most > 1;
        let bodies: Vec<String> = (0..tools.len()).map(|i| self.body(tools[i], i, tokenizer)).collect();
        let arguments = tools.iter().enumerate().map(|(i, tool)| arguments(tool, i));
        let rules = arguments.collect::<Vec<_>>().join("\n");
        OutputFormat::Lark(format!(
            "{}\ncall: {}{}{}\nbody: {}\n{rules}\n",
            self.start(many, tokenizer),
            self.opening(tokenizer),
            "body",
            self.closing(),
            bodies.join(" | "),
        ))
    }

    fn start(self, many: bool, tokenizer: &Tokenizer) -> String {
        match (self, many) {
            (ToolFormat::Hermes, true) => "start: call (\"\\n\" call)*".to_owned(),
            (ToolFormat::MistralArgs, true) => "start: call+".to_owned(),
            (ToolFormat::Hermes | ToolFormat::MistralArgs, false) | (ToolFormat::Llama3, _) => {
                "start: call".to_owned()
            }
            (ToolFormat::Mistral, many) => list(&token(MISTRAL, tokenizer), " [", many),
            (ToolFormat::Granite, many) => list(&token("<|tool_call|>", tokenizer), "[", many),
        }
    }

    fn opening(self, tokenizer: &Tokenizer) -> String {
        match self {
            ToolFormat::Hermes => format!("{} \"\\n{{\" ", token("<tool_call>", tokenizer)),
            ToolFormat::MistralArgs => format!("{} ", token(MISTRAL, tokenizer)),
            _ => "\"{\" ".to_owned(),
        }
    }

    fn closing(self) -> &'static str {
        match self {
            ToolFormat::Hermes => " \"}\\n</tool_call>\"",
            ToolFormat::MistralArgs => "",
            _ => " \"}\"",
        }
    }

    fn body(self, tool: &Value, index: usize, tokenizer: &Tokenizer) -> String {
        let name = quoted(name(tool).unwrap_or_default());
        let begins = match self {
            ToolFormat::MistralArgs => format!("{name} {}{}", call_id(tokenizer), token(ARGS, tokenizer)),
            ToolFormat::Llama3 => quoted(&format!("\"name\": {name}, \"parameters\": ")),
            _ => quoted(&format!("\"name\": {name}, \"arguments\": ")),
        };
        format!("{begins} arguments_{index}")
    }
}

/// Models that know of ids write them or not, as they learnt.
fn call_id(tokenizer: &Tokenizer) -> String {
    special(CALL_ID, tokenizer).map_or_else(String::new, |id| format!("(<[{id}]> /[a-zA-Z0-9]{{9}}/)? "))
}

fn list(marker: &str, opens: &str, many: bool) -> String {
    let more = if many { " (\", \" call)*" } else { "" };
    format!("start: {marker} {} call{more} \"]\"", quoted(opens))
}

/// Each tool's parameters are a schema with a root of its own, for its references. A tool that names none takes none.
fn arguments(tool: &Value, index: usize) -> String {
    let mut schema = match &tool["function"]["parameters"] {
        Value::Object(schema) if !schema.is_empty() => schema.clone(),
        _ => [("properties".to_owned(), json!({}))].into_iter().collect(),
    };
    schema.entry("type").or_insert(json!("object"));
    let settings = [
        ("whitespace_flexible", json!(false)),
        ("item_separator", json!(", ")),
        ("key_separator", json!(": ")),
    ];
    let settings = settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    format!("arguments_{index}: %json {}", settled(schema, settings))
}

/// A text, or the special token that it is.
fn token(text: &str, tokenizer: &Tokenizer) -> String {
    special(text, tokenizer).map_or_else(|| quoted(text), |id| format!("<[{id}]>"))
}
