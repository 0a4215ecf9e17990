//! A grammar that leaves a model no choice but to call, in the format that it knows.

mod python;
mod tagged;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};

use super::tagged::{END, FUNCTION};
use super::{ARGS, CALL_ID, ToolFormat, name, special};
use crate::grammar::{OutputFormat, SOURCE_BYTES, quoted, settled};
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
        let rules = bounded(tools.iter().enumerate().map(|(i, tool)| self.arguments(tool, i)));
        let rules = rules.chain(self.shared()).collect::<Vec<_>>().join("\n");
        OutputFormat::Lark(format!(
            "{}\ncall: {}body{}\nbody: {}\n{rules}\n",
            self.start(many, tokenizer),
            self.opening(tokenizer),
            self.closing(tokenizer),
            bodies.join(" | "),
        ))
    }

    fn start(self, many: bool, tokenizer: &Tokenizer) -> String {
        let [opens, closes] = self.around(tokenizer);
        let more = |between: &str| if many { format!(" ({} call)*", quoted(between)) } else { String::new() };
        match self {
            ToolFormat::Llama3 => "start: call".to_owned(),
            ToolFormat::Hermes | ToolFormat::QwenXml | ToolFormat::Seed => {
                format!("start: call{}", more("\n"))
            }
            ToolFormat::MistralArgs => format!("start: call{}", if many { "+" } else { "" }),
            ToolFormat::Mistral => format!("start: {opens} \" [\" call{} \"]\"", more(", ")),
            ToolFormat::Granite => format!("start: {opens} \"[\" call{} \"]\"", more(", ")),
            ToolFormat::Nemotron => format!("start: {opens} \"[\" call{} \"]\" {closes}", more(", ")),
            ToolFormat::Cohere => {
                format!("start: {opens} \"[\\n    \" call{} \"\\n]\" {closes}", more(",\n    "))
            }
            ToolFormat::Olmo => format!("start: {opens} call{} {closes}", more("\n")),
        }
    }

    /// What opens and closes calls, if anything does.
    fn around(self, tokenizer: &Tokenizer) -> [String; 2] {
        let marks = self.marks();
        [marks.opens.first(), marks.closes.as_ref()]
            .map(|mark| mark.map_or_else(String::new, |mark| token(mark, tokenizer)))
    }

    fn opening(self, tokenizer: &Tokenizer) -> String {
        let [opens, _] = self.around(tokenizer);
        match self {
            ToolFormat::Hermes => format!("{opens} \"\\n{{\" "),
            ToolFormat::QwenXml | ToolFormat::Seed => format!("{opens} \"\\n\" "),
            ToolFormat::MistralArgs => format!("{opens} "),
            ToolFormat::Olmo => String::new(),
            // Calls are numbered through a conversation; the answer names them anew.
            ToolFormat::Cohere => "\"{\\\"tool_call_id\\\": \\\"\" /[0-9]{1,4}/ \"\\\", \" ".to_owned(),
            _ => "\"{\" ".to_owned(),
        }
    }

    fn closing(self, tokenizer: &Tokenizer) -> String {
        let [_, closes] = self.around(tokenizer);
        match self {
            ToolFormat::Hermes => format!(" \"}}\\n\" {closes}"),
            ToolFormat::QwenXml | ToolFormat::Seed => format!(" \"\\n\" {closes}"),
            ToolFormat::MistralArgs | ToolFormat::Olmo => String::new(),
            _ => " \"}\"".to_owned(),
        }
    }

    fn body(self, tool: &Value, index: usize, tokenizer: &Tokenizer) -> String {
        let plain = name(tool).unwrap_or_default();
        let name = quoted(plain);
        let begins = match self {
            ToolFormat::MistralArgs => format!("{name} {}{}", call_id(tokenizer), token(ARGS, tokenizer)),
            ToolFormat::Llama3 => quoted(&format!("\"name\": {name}, \"parameters\": ")),
            ToolFormat::Cohere => quoted(&format!("\"tool_name\": {name}, \"parameters\": ")),
            ToolFormat::QwenXml | ToolFormat::Seed => {
                return format!(
                    "{} arguments_{index} {}",
                    quoted(&format!("{FUNCTION}{plain}>\n")),
                    quoted(END)
                );
            }
            ToolFormat::Olmo => return format!("{} arguments_{index} \")\"", quoted(&format!("{plain}("))),
            _ => quoted(&format!("\"name\": {name}, \"arguments\": ")),
        };
        format!("{begins} arguments_{index}")
    }

    fn arguments(self, tool: &Value, index: usize) -> String {
        match (self, self.around_values()) {
            (_, Some(around)) => tagged::arguments(tool, index, around),
            (ToolFormat::Olmo, _) => python::arguments(tool, index),
            _ => object(tool, index),
        }
    }

    /// What the rules of arguments need beside their own.
    fn shared(self) -> Option<String> {
        self.is_tagged().then(tagged::shared)
    }

    fn around_values(self) -> Option<tagged::Around> {
        match self {
            ToolFormat::QwenXml => Some(tagged::OWN_LINES),
            ToolFormat::Seed => Some(tagged::ONE_LINE),
            _ => None,
        }
    }
}

/// Models that know of ids write them or not, as they learnt.
fn call_id(tokenizer: &Tokenizer) -> String {
    special(CALL_ID, tokenizer).map_or_else(String::new, |id| format!("(<[{id}]> /[a-zA-Z0-9]{{9}}/)? "))
}

/// Each tool's parameters are a schema with a root of its own, for its references. A tool that names none takes none.
fn object(tool: &Value, index: usize) -> String {
    let mut schema = match &tool["function"]["parameters"] {
        Value::Object(schema) if !schema.is_empty() => schema.clone(),
        _ => [("properties".to_owned(), json!({}))].into_iter().collect(),
    };
    schema.entry("type").or_insert(json!("object"));
    format!("arguments_{index}: {}", as_python_prints(schema))
}

/// JSON of a schema, with the white space that models learn.
fn as_python_prints(schema: Map<String, Value>) -> String {
    let settings = [
        ("whitespace_flexible", json!(false)),
        ("item_separator", json!(", ")),
        ("key_separator", json!(": ")),
    ];
    let settings = settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    format!("%json {}", settled(schema, settings))
}

/// Texts until there are more bytes than a grammar may have, which is then refused for them: each parameter has a copy of what it
/// refers to.
fn bounded(texts: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
    let mut bytes = 0;
    texts.take_while(move |text| {
        let goes_on = bytes <= SOURCE_BYTES;
        bytes += text.len();
        goes_on
    })
}

/// One parameter's value, with what the tool's schema defines for its references.
fn value(schema: &Value, root: &Value) -> String {
    let mut schema = schema.as_object().cloned().unwrap_or_default();
    for definitions in ["$defs", "definitions"] {
        if let Some(all) = root.get(definitions) {
            schema.entry(definitions).or_insert_with(|| all.clone());
        }
    }
    // Whatever else is named stands in the whole, which goes along under a name of its own.
    if names_elsewhere(root) {
        let mut name = "whole".to_owned();
        while schema.get("$defs").is_some_and(|all| all.get(&name).is_some()) {
            name.push('_');
        }
        let (mut own, mut whole) = (Value::Object(schema), root.clone());
        [&mut own, &mut whole].into_iter().for_each(|schema| lead_to(schema, &format!("#/$defs/{name}")));
        own["$defs"][&name] = whole;
        schema = own.as_object().cloned().unwrap_or_default();
    }
    as_python_prints(schema)
}

/// Whether a reference leads elsewhere than to what is defined for references.
fn is_elsewhere(reference: &Value) -> bool {
    let pointer = reference.as_str().and_then(|text| text.strip_prefix('#'));
    pointer.is_some_and(|to| !["/$defs/", "/definitions/"].iter().any(|place| to.starts_with(place)))
}

fn names_elsewhere(schema: &Value) -> bool {
    match schema {
        Value::Object(all) => {
            all.iter().any(|(key, inner)| key == "$ref" && is_elsewhere(inner) || names_elsewhere(inner))
        }
        Value::Array(all) => all.iter().any(names_elsewhere),
        _ => false,
    }
}

/// Has references that lead elsewhere lead into a copy of the whole.
fn lead_to(schema: &mut Value, copy: &str) {
    match schema {
        Value::Object(all) => all.iter_mut().for_each(|(key, inner)| match inner.as_str() {
            Some(text) if key == "$ref" && is_elsewhere(inner) => {
                *inner = format!("{copy}{}", &text[1..]).into()
            }
            _ => lead_to(inner, copy),
        }),
        Value::Array(all) => all.iter_mut().for_each(|inner| lead_to(inner, copy)),
        _ => {}
    }
}

/// A text, or the special token that it is.
fn token(text: &str, tokenizer: &Tokenizer) -> String {
    special(text, tokenizer).map_or_else(|| quoted(text), |id| format!("<[{id}]>"))
}
