//! Messages as clients send them, made into what templates expect.

use serde_json::{Map, Value, json};

use super::TemplateError;

/// Which forms of `content` a template prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentForm {
    /// Strings; parts are joined by line breaks (as vLLM does).
    Text,
    /// A list of parts only; a string becomes one part.
    Parts,
    /// Both; left as they come.
    Either,
}

/// Which form of a call's arguments a template prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arguments {
    /// The object, as transformers has it.
    Object,
    /// A text of JSON, as clients send it: DeepSeek R1's template adds it to others.
    Text,
}

/// What a template makes of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prints {
    /// Of their content.
    pub form: ContentForm,
    /// Of what tools answer.
    pub results: ContentForm,
    /// Of the arguments of calls.
    pub arguments: Arguments,
    /// Whether the content of a message with nothing but tool calls may be null, as transformers has it; else it is an empty text.
    pub null: bool,
    /// Whether it tells developers from the system: others leave out what they say, or refuse it.
    pub developers: bool,
}

/// Who may speak. Templates refuse those whom they do not know.
pub(crate) const ROLES: [&str; 8] =
    ["system", "developer", "user", "assistant", "tool", "function", "ipython", "tool_results"];

/// Checks and normalises the messages of a request.
pub(super) fn normalise(messages: &[Value], prints: Prints) -> Result<Vec<Value>, TemplateError> {
    if messages.is_empty() {
        return Err(TemplateError::Empty);
    }
    let one = |(index, message): (usize, &Value)| {
        normal(message, prints).map_err(|why| TemplateError::Message { index, why })
    };
    messages.iter().enumerate().map(one).collect()
}

fn normal(message: &Value, prints: Prints) -> Result<Value, String> {
    let Prints { arguments, null, developers, .. } = prints;
    let Some(message) = message.as_object() else { return Err("a message is an object".to_owned()) };
    let mut message = message.clone();
    drop_empty(&mut message);
    name_thoughts(&mut message);
    match message.get("role").and_then(Value::as_str) {
        Some(role) if ROLES.contains(&role) => (),
        Some(role) => return Err(format!("role `{role}`; expected one of {}", ROLES.join(", "))),
        None => return Err("role is missing".to_owned()),
    }
    if !developers && message["role"] == "developer" {
        message["role"] = json!("system");
    }
    match message.get_mut("tool_calls") {
        None => (),
        Some(Value::Array(calls)) if calls.iter().all(Value::is_object) => {
            calls.iter_mut().for_each(|call| arguments.put(call));
        }
        Some(_) => return Err("tool_calls is a list of objects, or null".to_owned()),
    }
    if message.get("tool_call_id").is_some_and(|id| !id.is_string()) {
        return Err("tool_call_id is a string, or null".to_owned());
    }
    let has_calls = message.contains_key("tool_calls");
    let form = if message["role"] == "tool" { prints.results } else { prints.form };
    let content = match message.get("content") {
        Some(Value::String(text)) if form == ContentForm::Parts => json!([{"type": "text", "text": text}]),
        Some(Value::String(text)) => json!(text),
        Some(Value::Array(parts)) => list(parts, form)?,
        None | Some(Value::Null) if has_calls && null => Value::Null,
        None | Some(Value::Null) if has_calls || message["role"] == "assistant" => json!(""),
        None | Some(Value::Null) => return Err("content is missing".to_owned()),
        Some(_) => return Err("content is a string, a list of parts, or null".to_owned()),
    };
    message.insert("content".to_owned(), content);
    Ok(Value::Object(message))
}

/// Clients send back what they were answered, with all its nulls. A template looks whether a key is there, not what it holds.
fn drop_empty(message: &mut Map<String, Value>) {
    message.retain(|key, value| key == "content" || !value.is_null());
    if message.get("tool_calls").and_then(Value::as_array).is_some_and(Vec::is_empty) {
        message.remove("tool_calls");
    }
}

/// What a message thought has two names, of which templates know one.
fn name_thoughts(message: &mut Map<String, Value>) {
    for [from, to] in [["reasoning", "reasoning_content"], ["reasoning_content", "reasoning"]] {
        if let (Some(Value::String(thought)), None) = (message.get(from).cloned(), message.get(to)) {
            message.insert(to.to_owned(), thought.into());
        }
    }
}

fn list(parts: &[Value], form: ContentForm) -> Result<Value, String> {
    let texts = parts.iter().map(part_text).collect::<Result<Vec<_>, _>>()?;
    Ok(match form {
        ContentForm::Text => json!(texts.join("\n")),
        _ => texts.iter().map(|text| json!({"type": "text", "text": text})).collect(),
    })
}

fn part_text(part: &Value) -> Result<&str, String> {
    let kind = match part.get("type") {
        None | Some(Value::Null) => "text",
        Some(kind) => kind.as_str().ok_or("the type of a content part is a string")?,
    };
    match (part, kind) {
        (Value::String(text), _) => Ok(text),
        (_, "text" | "input_text" | "output_text") => {
            part.get("text").and_then(Value::as_str).ok_or_else(|| "a text part needs `text`".to_owned())
        }
        (_, "refusal") => part
            .get("refusal")
            .and_then(Value::as_str)
            .ok_or_else(|| "a refusal part needs `refusal`".to_owned()),
        (_, other) => Err(format!("content part of type `{other}`; this model reads text only")),
    }
}

impl Arguments {
    /// Clients send a call's arguments as a string of JSON. Of a call without any, put together from a stream, they may have an
    /// empty one, null or nothing.
    fn put(self, call: &mut Value) {
        let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else { return };
        let arguments = function.entry("arguments").or_insert(Value::Null);
        match (self, &*arguments) {
            (_, Value::Null) => *arguments = self.of(Map::new()),
            (_, Value::String(text)) if text.trim().is_empty() => *arguments = self.of(Map::new()),
            (Arguments::Object, Value::String(text)) => {
                if let Ok(parsed @ Value::Object(_)) = serde_json::from_str(text) {
                    *arguments = parsed;
                }
            }
            (Arguments::Text, Value::Object(object)) => *arguments = self.of(object.clone()),
            _ => (),
        }
    }

    fn of(self, object: Map<String, Value>) -> Value {
        match self {
            Arguments::Object => object.into(),
            Arguments::Text => super::json::dumps(&object.into()).into(),
        }
    }
}

/// A conversation whose content is `text`, in one of the two forms, to see what a template prints.
pub(super) fn probe(text: &str, form: ContentForm) -> Vec<Value> {
    let content = match form {
        ContentForm::Parts => json!([{"type": "text", "text": text}]),
        _ => json!(text),
    };
    let mut message = Map::new();
    message.insert("role".to_owned(), json!("user"));
    message.insert("content".to_owned(), content);
    vec![Value::Object(message)]
}

/// A question, what the system says behind it, and how it goes on.
pub(super) fn probe_of_system(text: &str) -> Vec<Value> {
    let all = [("user", "What time is it?"), ("system", text), ("assistant", "Noon."), ("user", "Thanks.")];
    all.into_iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
}

/// A question, and an answer that is a call of a function `name`, with this content and such arguments; and, if it is not the
/// last message, its result, an answer and another question.
pub(super) fn probe_of_calls(
    name: &str,
    content: &Value,
    arguments: Arguments,
    result: Option<&Value>,
) -> Vec<Value> {
    // Not without any: some templates pass over those.
    let arguments = arguments.of(Map::from_iter([("zone".to_owned(), json!("UTC"))]));
    let call =
        json!({"id": "call00001", "type": "function", "function": {"name": name, "arguments": arguments}});
    let mut messages = vec![
        json!({"role": "user", "content": "What time is it?"}),
        json!({"role": "assistant", "content": content, "tool_calls": [call]}),
    ];
    if let Some(result) = result {
        messages.extend([
            json!({"role": "tool", "tool_call_id": "call00001", "name": name, "content": result}),
            json!({"role": "assistant", "content": "Noon."}),
            json!({"role": "user", "content": "Thanks."}),
        ]);
    }
    messages
}
