//! The items of `input`, made into the messages of a chat.

use serde_json::{Map, Value, json};

use super::super::turns::{Turns, too_many};
use super::super::{ApiError, Context};
use super::tools::full_name;

/// Who may say something.
const ROLES: [&str; 4] = ["user", "system", "developer", "assistant"];

/// The messages that instructions and items come to.
pub(super) fn messages(
    input: Option<&Value>,
    instructions: Option<String>,
    context: &Context,
) -> Result<Vec<Value>, ApiError> {
    let mut turns = Turns::new(context);
    if let Some(instructions) = instructions {
        turns.instructed(instructions.into());
    }
    match input {
        Some(Value::String(text)) => turns.said("user", json!(text)),
        Some(Value::Array(items)) => {
            if let Some(why) = too_many(items) {
                return Err(ApiError::invalid("input", format!("input: {why}")));
            }
            if items.is_empty() {
                return Err(ApiError::invalid("input", "input: there is nothing in the list"));
            }
            for (at, entry) in items.iter().enumerate() {
                item(entry, &mut turns).map_err(|why| wrong(at, &why))?;
            }
        }
        Some(_) => return Err(ApiError::invalid("input", "input: expected a text or a list of items")),
        None => return Err(ApiError::invalid("input", "input is missing")),
    }
    Ok(turns.into_messages())
}

fn wrong(at: usize, why: &str) -> ApiError {
    ApiError::invalid("input", format!("input[{at}]: {why}"))
}

fn item(item: &Value, turns: &mut Turns) -> Result<(), String> {
    let Some(fields) = item.as_object() else { return Err("an item is an object".to_owned()) };
    let kind = fields.get("type").filter(|kind| !kind.is_null());
    if kind.is_some_and(|kind| !kind.is_string()) {
        return Err("type: expected a text".to_owned());
    }
    match kind.and_then(Value::as_str) {
        Some("message") => message(fields, turns),
        None if fields.contains_key("role") => message(fields, turns),
        Some("reasoning") => {
            turns.thought(&thoughts(fields));
            Ok(())
        }
        Some("function_call") => {
            let name = full_name(fields.get("namespace"), text(fields, "name")?);
            turns.called(text(fields, "call_id")?, &name, text(fields, "arguments")?);
            Ok(())
        }
        Some("function_call_output") => {
            turns.answered(text(fields, "call_id")?, content(fields.get("output"), "output")?);
            Ok(())
        }
        Some("item_reference") => {
            Err("an item of an earlier answer is not known, as none is kept; send the item itself".to_owned())
        }
        Some(other) => Err(format!(
            "an item of type `{other}` is not supported; expected message, reasoning, function_call or function_call_output"
        )),
        None => Err("type is missing".to_owned()),
    }
}

/// Roles that tell a model what to do may come one after the other, and templates know one message of them.
fn message(fields: &Map<String, Value>, turns: &mut Turns) -> Result<(), String> {
    let role = text(fields, "role")?;
    if !ROLES.contains(&role) {
        return Err(format!("role `{role}`; expected one of {}", ROLES.join(", ")));
    }
    let content = content(fields.get("content"), "content")?;
    match role {
        "system" | "developer" => turns.instructed(content),
        _ => turns.said(role, content),
    }
    Ok(())
}

/// A text, or parts of text as they are.
fn content(content: Option<&Value>, name: &str) -> Result<Value, String> {
    let part = |part: &Value| {
        let field = match part["type"].as_str() {
            Some("input_text" | "output_text" | "text") => "text",
            Some("refusal") => "refusal",
            Some(kind) => return Err(format!("{name}: a part of type `{kind}`; this model reads text only")),
            None => return Err(format!("{name}: a part is an object with a type")),
        };
        match part[field].is_string() {
            true => Ok(()),
            false => Err(format!("{name}: a part of text needs `{field}`")),
        }
    };
    match content {
        Some(Value::String(text)) => Ok(json!(text)),
        Some(Value::Array(parts)) => {
            parts.iter().try_for_each(part)?;
            Ok(json!(parts))
        }
        _ => Err(format!("{name}: expected a text or a list of parts")),
    }
}

/// What was thought, whether it is told whole or as a summary.
fn thoughts(fields: &Map<String, Value>) -> String {
    let texts = |name: &str| {
        let parts = fields.get(name).and_then(Value::as_array).into_iter().flatten();
        parts.filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
    };
    let whole = texts("content");
    if whole.is_empty() { texts("summary") } else { whole }
}

fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> Result<&'a str, String> {
    fields.get(name).and_then(Value::as_str).ok_or_else(|| format!("{name}: expected a text"))
}
