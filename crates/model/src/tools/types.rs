//! Of which types a parameter may be, as its tool's schema says: what tells a value that is written as a text is.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::literal;
use crate::grammar::decoded;

/// Most schemas that are looked at for one parameter: those that name others may go round.
const LEAVES: usize = 64;
/// Most that are looked at for all parameters of a tool, and how deep they may lie in each other.
const PARTS: usize = 256;
const DEPTH: usize = 16;
/// Objects that parameters may be: of more, the first.
const OBJECTS: usize = 64;

/// Types that a value may have, by JSON Schema's names; none where nothing is said of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Types {
    names: Vec<String>,
    /// Texts that it may be, where it is one of some values.
    texts: Vec<String>,
}

impl Types {
    /// Those that a schema allows, which stands in another.
    pub(super) fn of(schema: &Value, root: &Value) -> Self {
        let mut types = Types::default();
        types.add(schema, root, &mut { LEAVES });
        types
    }

    /// Each parameter's, by its name: of several that may be called so, the first's.
    pub(super) fn of_all(parameters: &Value) -> HashMap<String, Types> {
        let mut all = HashMap::new();
        for (key, schema) in objects(parameters).into_iter().flat_map(|(all, _)| all) {
            all.entry(key.clone()).or_insert_with(|| Types::of(schema, parameters));
        }
        all
    }

    /// `left`: how many may be looked at of which all must hold.
    fn add(&mut self, schema: &Value, root: &Value, left: &mut usize) {
        for leaf in leaves(schema, root) {
            let chosen = leaf["enum"].as_array().map(Vec::as_slice);
            let chosen = chosen.or_else(|| leaf.get("const").map(std::slice::from_ref)).unwrap_or_default();
            self.texts.extend(chosen.iter().filter_map(Value::as_str).map(str::to_owned));
            let names = &mut self.names;
            match &leaf["type"] {
                Value::String(one) => names.push(one.clone()),
                Value::Array(some) => names.extend(some.iter().filter_map(Value::as_str).map(str::to_owned)),
                _ if !chosen.is_empty() => names.extend(chosen.iter().map(|value| of(value).to_owned())),
                _ if leaf.get("properties").is_some() => names.push("object".to_owned()),
                _ if leaf.get("items").is_some() => names.push("array".to_owned()),
                // Of each of these it must be: the first that says something of it counts.
                _ => {
                    let before = (self.names.len(), self.texts.len());
                    for part in leaf["allOf"].as_array().into_iter().flatten() {
                        if *left > 0 && (self.names.len(), self.texts.len()) == before {
                            *left -= 1;
                            self.add(part, root, left);
                        }
                    }
                }
            }
        }
    }

    /// Whether a value is a text, whatever is in it.
    pub(super) fn is_text(&self) -> bool {
        self.names.iter().all(|name| name == "string")
    }

    /// Whether a text is one of them.
    pub(super) fn may_be_text(&self) -> bool {
        self.names.is_empty() || self.names.iter().any(|name| name == "string")
    }

    fn has(&self, value: &Value) -> bool {
        let name = of(value);
        let is_whole = value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|x| x.fract() == 0.0);
        self.names.iter().any(|one| one == name || (one == "integer" && name == "number" && is_whole))
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

/// What a schema names instead of saying it.
fn named<'a>(schema: &Value, root: &'a Value) -> Option<&'a Value> {
    root.pointer(&decoded(schema["$ref"].as_str()?.strip_prefix('#')?)?)
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

/// Parameters with their names, and which of them there must be.
pub(super) type Object<'a> = (Vec<(&'a String, &'a Value)>, Vec<&'a str>);

/// What a tool's parameters may be: one of these; none where nothing is said of them. What has no end, or too many parts, is what
/// it says itself.
pub(super) fn objects(parameters: &Value) -> Vec<Object<'_>> {
    let says = |(all, required): &Object<'_>| !all.is_empty() || !required.is_empty();
    let found = objects_of(parameters, parameters, (DEPTH, &mut { PARTS }));
    let found = found.unwrap_or_else(|| vec![own(parameters)]);
    if found.iter().any(says) { found } else { Vec::new() }
}

fn own(schema: &Value) -> Object<'_> {
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    (schema["properties"].as_object().into_iter().flatten().collect(), required.collect())
}

/// Of a schema what it says itself, with what each says of which all hold, and one of those of which any does. None where that is too
/// much.
fn objects_of<'a>(
    schema: &'a Value,
    root: &'a Value,
    (depth, left): (usize, &mut usize),
) -> Option<Vec<Object<'a>>> {
    *left = left.checked_sub(1)?;
    let depth = depth.checked_sub(1)?;
    if let Some(named) = named(schema, root) {
        return objects_of(named, root, (depth, left));
    }
    let mut all = vec![own(schema)];
    for part in schema["allOf"].as_array().into_iter().flatten() {
        all = with(&all, &objects_of(part, root, (depth, left))?);
    }
    for key in ["anyOf", "oneOf"] {
        let some = schema[key].as_array().into_iter().flatten();
        let some: Option<Vec<_>> = some.map(|one| objects_of(one, root, (depth, left))).collect();
        all = with(&all, &some?.concat());
    }
    Some(all)
}

/// Each of some with each of others, if there are any.
fn with<'a>(some: &[Object<'a>], others: &[Object<'a>]) -> Vec<Object<'a>> {
    let both = |(one, of_one): &Object<'a>, (other, of_other): &Object<'a>| {
        let (mut all, mut required) = (one.clone(), of_one.clone());
        let known: HashSet<&String> = one.iter().map(|(key, _)| *key).collect();
        all.extend(other.iter().filter(|(key, _)| !known.contains(key)));
        let needed: HashSet<&str> = of_one.iter().copied().collect();
        required.extend(of_other.iter().filter(|key| !needed.contains(*key)));
        (all, required)
    };
    if others.is_empty() {
        return some.to_vec();
    }
    some.iter().flat_map(|one| others.iter().map(move |other| both(one, other))).take(OBJECTS).collect()
}

/// A value that is written as a text, as JSON: of one of the types if it can be, or what it looks like, or else that text.
pub(super) fn as_json(text: &str, types: &Types) -> String {
    let quoted = || Value::from(text).to_string();
    if types.is_text() || types.texts.iter().any(|one| one == text) {
        return quoted();
    }
    let Some(json) = literal::to_json(text) else { return quoted() };
    let value: Value = serde_json::from_str(&json).unwrap_or_default();
    let is_one = types.has(&value) && !value.is_string();
    if is_one || !types.may_be_text() { json } else { quoted() }
}
