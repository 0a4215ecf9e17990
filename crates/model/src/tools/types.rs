//! Of which types a parameter may be, as its tool's schema says: what tells a value that is written as a text is.

use serde_json::{Map, Value};

use super::literal;

/// Most schemas that are looked at for one parameter: those that name others may go round.
const LEAVES: usize = 64;

/// Types that a value may have, by JSON Schema's names; none where nothing is said of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Types(Vec<String>);

impl Types {
    /// Those that a schema allows, which stands in another.
    pub(super) fn of(schema: &Value, root: &Value) -> Self {
        let leaves = leaves(schema, root);
        let all =
            leaves.into_iter().flat_map(|leaf| match (&leaf["type"], &leaf["enum"], leaf.get("const")) {
                (Value::String(one), ..) => vec![one.clone()],
                (Value::Array(some), ..) => {
                    some.iter().filter_map(Value::as_str).map(str::to_owned).collect()
                }
                (_, Value::Array(some), _) => some.iter().map(|value| of(value).to_owned()).collect(),
                (.., Some(one)) => vec![of(one).to_owned()],
                _ if leaf.get("properties").is_some() => vec!["object".to_owned()],
                _ if leaf.get("items").is_some() => vec!["array".to_owned()],
                // Of each of these it must be: one of them says of which type.
                _ => named_by_parts(leaf, root).into_iter().collect(),
            });
        Types(all.collect())
    }

    /// Whether a value is a text, whatever is in it.
    pub(super) fn is_text(&self) -> bool {
        self.0.iter().all(|name| name == "string")
    }

    /// Whether a text is one of them.
    pub(super) fn may_be_text(&self) -> bool {
        self.0.is_empty() || self.0.iter().any(|name| name == "string")
    }

    fn has(&self, value: &Value) -> bool {
        let name = of(value);
        self.0.iter().any(|one| one == name || (one == "integer" && name == "number"))
    }
}

fn of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The type that one of the schemas names of which a value must be all.
fn named_by_parts(leaf: &Value, root: &Value) -> Option<String> {
    let parts = leaf["allOf"].as_array()?;
    parts.iter().find_map(|part| named(part, root).unwrap_or(part)["type"].as_str()).map(str::to_owned)
}

/// What a schema names instead of saying it.
fn named<'a>(schema: &Value, root: &'a Value) -> Option<&'a Value> {
    root.pointer(schema["$ref"].as_str()?.strip_prefix('#')?)
}

/// The schemas that say what a value may be: those that one without a type of its own chooses among, and what it names. None where
/// they come to no end.
pub(super) fn leaves<'a>(schema: &'a Value, root: &'a Value) -> Vec<&'a Value> {
    let (mut found, mut open) = (Vec::new(), vec![schema]);
    for _ in 0..LEAVES {
        let Some(schema) = open.pop() else { return found };
        let says = ["type", "properties", "enum", "const"].iter().any(|key| schema.get(key).is_some());
        let some = ["anyOf", "oneOf"].iter().find_map(|key| schema[key].as_array());
        let some = some.or_else(|| schema["allOf"].as_array().filter(|all| all.len() == 1));
        match (named(schema, root), some) {
            (Some(named), _) => open.push(named),
            (None, Some(some)) if !says => open.extend(some.iter().rev()),
            _ => found.push(schema),
        }
    }
    Vec::new()
}

/// Parameters by their names, and which of them there must be.
pub(super) type Object<'a> = (&'a Map<String, Value>, Vec<&'a str>);

/// What a tool's parameters may be: one of these.
pub(super) fn objects<'a>(parameters: &'a Value) -> Vec<Object<'a>> {
    let object = |leaf: &'a Value| {
        let required = leaf["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        Some((leaf["properties"].as_object()?, required.collect()))
    };
    leaves(parameters, parameters).into_iter().filter_map(object).collect()
}

/// A value that is written as a text, as JSON: of one of the types if it can be, or what it looks like, or else that text.
pub(super) fn as_json(text: &str, types: &Types) -> String {
    let quoted = || Value::from(text).to_string();
    if types.is_text() {
        return quoted();
    }
    let Some(json) = literal::to_json(text) else { return quoted() };
    let value: Value = serde_json::from_str(&json).unwrap_or_default();
    let is_one = types.has(&value) && !value.is_string();
    if is_one || !types.may_be_text() { json } else { quoted() }
}
