//! A grammar that leaves a model no choice but to call, in the format that it knows.

use serde_json::{Value, json};

use super::{ToolFormat, name};
use crate::grammar::{OutputFormat, quoted, settled};

/// What a request insists on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forced<'a> {
    /// Calls of any of the tools.
    Any,
    /// One call of this one.
    Only(&'a str),
}

impl ToolFormat {
    /// Texts that are calls of `tools` and nothing else. `marker`: of [`ToolFormat::special_marker`]; `most`: calls.
    pub fn forced(self, tools: &[Value], which: Forced, marker: Option<u32>, most: usize) -> OutputFormat {
        let wanted = |tool: &&Value| match which {
            Forced::Any => true,
            Forced::Only(wanted) => name(tool) == Some(wanted),
        };
        let tools: Vec<&Value> = tools.iter().filter(wanted).collect();
        let many = which == Forced::Any && most > 1;
        let bodies: Vec<String> = (0..tools.len()).map(|i| self.body(tools[i], i)).collect();
        let arguments = tools.iter().enumerate().map(|(i, tool)| arguments(tool, i));
        let rules = arguments.collect::<Vec<_>>().join("\n");
        OutputFormat::Lark(format!(
            "{}\ncall: {}{}{}\nbody: {}\n{rules}\n",
            self.start(many, marker),
            self.opening(marker),
            "body",
            self.closing(),
            bodies.join(" | "),
        ))
    }

    fn start(self, many: bool, marker: Option<u32>) -> String {
        match (self, many) {
            (ToolFormat::Hermes, true) => "start: call (\"\\n\" call)*".to_owned(),
            (ToolFormat::Hermes, false) | (ToolFormat::Llama3, _) => "start: call".to_owned(),
            (ToolFormat::Mistral, many) => list("[TOOL_CALLS]", " [", many, marker),
            (ToolFormat::Granite, many) => list("<|tool_call|>", "[", many, marker),
        }
    }

    fn opening(self, marker: Option<u32>) -> String {
        match self {
            ToolFormat::Hermes => format!("{} \"\\n{{\" ", token("<tool_call>", marker)),
            _ => "\"{\" ".to_owned(),
        }
    }

    fn closing(self) -> &'static str {
        match self {
            ToolFormat::Hermes => " \"}\\n</tool_call>\"",
            _ => " \"}\"",
        }
    }

    fn body(self, tool: &Value, index: usize) -> String {
        let key = if self == ToolFormat::Llama3 { "parameters" } else { "arguments" };
        let name = quoted(name(tool).unwrap_or_default());
        format!("{} arguments_{index}", quoted(&format!("\"name\": {name}, \"{key}\": ")))
    }
}

fn list(text: &str, opens: &str, many: bool, marker: Option<u32>) -> String {
    let more = if many { " (\", \" call)*" } else { "" };
    format!("start: {} {} call{more} \"]\"", token(text, marker), quoted(opens))
}

/// Each tool's parameters are a schema with a root of its own, for its references.
fn arguments(tool: &Value, index: usize) -> String {
    let mut schema = match &tool["function"]["parameters"] {
        Value::Object(schema) => schema.clone(),
        _ => serde_json::Map::new(),
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

fn token(text: &str, id: Option<u32>) -> String {
    id.map_or_else(|| quoted(text), |id| format!("<[{id}]>"))
}
