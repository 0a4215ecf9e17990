//! Objects have the properties that a schema names and no others, where it leaves that open: JSON Schema allows any, whoever writes
//! one means those (and other engines take it so). An object that several schemas describe together stays open: each of them names
//! a part of its properties.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::dialect::{BY_NAMES, VALUES};

/// Keywords whose schemas describe the same value as the one that they stand in: lists of them, and single ones.
const LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
const SINGLE: [&str; 4] = ["if", "then", "else", "not"];
/// What says of properties which there are.
const OWN: [&str; 4] = ["properties", "patternProperties", "additionalProperties", "unevaluatedProperties"];

/// Closes the objects of a schema.
pub(super) fn close(schema: &mut Value) {
    let (mut shared, mut found) = (BTreeSet::new(), Vec::new());
    let refers = |schema: &Map<String, Value>| schema.get("$ref").and_then(Value::as_str).map(str::to_owned);
    visit(schema, "", false, &shared, &mut |schema, shared| found.extend(refers(schema).filter(|_| shared)));
    while let Some(pointer) = found.pop() {
        // What is not found may be any of them.
        let Some(at) = pointer.strip_prefix('#') else { return };
        let Some(target) = schema.pointer_mut(at) else { return };
        if shared.insert(at.to_owned()) {
            let none = BTreeSet::new();
            visit(target, at, true, &none, &mut |schema, shared| {
                found.extend(refers(schema).filter(|_| shared))
            });
        }
    }
    visit(schema, "", false, &shared, &mut |schema, shared| {
        if !shared && can_be_closed(schema) {
            schema.insert("additionalProperties".to_owned(), json!(false));
        }
    });
}

/// Shows a schema and each within it: whether others describe the same value. `at`: the pointer to it. `shared`: of its value, and
/// of those at these pointers.
fn visit(
    schema: &mut Value,
    at: &str,
    shared: bool,
    marked: &BTreeSet<String>,
    see: &mut dyn FnMut(&mut Map<String, Value>, bool),
) {
    let Value::Object(schema) = schema else { return };
    let shared = shared || marked.contains(at) || describe_together(schema) > 1;
    see(schema, shared);
    for (key, value) in schema.iter_mut().filter(|(key, _)| !VALUES.contains(&key.as_str())) {
        let same =
            LISTS.contains(&key.as_str()) || SINGLE.contains(&key.as_str()) || key == "dependentSchemas";
        let at = format!("{at}/{}", escaped(key));
        let mut inner = |at: &str, schema: &mut Value| visit(schema, at, shared && same, marked, see);
        match value {
            Value::Object(named) if BY_NAMES.contains(&key.as_str()) => {
                named.iter_mut().for_each(|(name, schema)| inner(&format!("{at}/{}", escaped(name)), schema));
            }
            Value::Array(all) => {
                (0..).zip(all).for_each(|(i, schema): (u32, _)| inner(&format!("{at}/{i}"), schema))
            }
            one => inner(&at, one),
        }
    }
}

/// A key as it stands in a pointer.
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// How many schemas describe a value: what this one says by itself, and those that it names.
fn describe_together(schema: &Map<String, Value>) -> usize {
    let has = |key: &str| schema.contains_key(key);
    let own = OWN.iter().chain(&["required"]).any(|key| has(key));
    let names = has("properties") || has("patternProperties");
    let all_of = schema.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
    // Beside names of its own, of which some are demanded.
    let adds = |key: &&&str| has(key) && !(names && only_demand(&schema[**key]));
    let choices = ["anyOf", "oneOf"].iter().filter(adds).count();
    let others = ["$ref", "dependentSchemas"].iter().chain(&SINGLE).filter(|key| has(key)).count();
    usize::from(own) + all_of + choices + others
}

/// Whether all that these choices say of properties is which there must be.
fn only_demand(choices: &Value) -> bool {
    let only = |choice: &Value| {
        let says = |choice: &Map<String, Value>| choice.keys().all(|key| key == "required");
        choice.as_object().is_some_and(says)
    };
    choices.as_array().is_some_and(|choices| choices.iter().all(only))
}

/// Whether it names properties, leaves others open, and needs none of those.
fn can_be_closed(schema: &Map<String, Value>) -> bool {
    let object = |key: &str| schema.get(key).and_then(Value::as_object);
    let (named, patterns) = (object("properties"), object("patternProperties"));
    let says = ["additionalProperties", "unevaluatedProperties"].iter().any(|key| schema.contains_key(*key));
    if says || (named.is_none() && patterns.is_none()) {
        return false;
    }
    // Names that fit a pattern are not looked for.
    let choices = ["anyOf", "oneOf"].iter().filter_map(|key| schema.get(*key)?.as_array()).flatten();
    let demanded = choices.map(|choice| &choice["required"]).chain(schema.get("required"));
    let mut names = demanded.filter_map(Value::as_array).flatten().filter_map(Value::as_str);
    let least = schema.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
    patterns.is_some_and(|patterns| !patterns.is_empty())
        || (names.all(|name| named.is_some_and(|named| named.contains_key(name)))
            && least <= named.map_or(0, Map::len) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed(mut schema: Value) -> Value {
        close(&mut schema);
        schema
    }

    #[test]
    fn objects_are_closed_where_nothing_is_said() {
        let schema = json!({"properties": {"properties": {"properties": {}}, "b": {"additionalProperties": true, "properties": {}}},
            "items": {"type": "object", "patternProperties": {"a": {}}}, "const": {"properties": {}}, "$defs": {"c": {"type": "object"}}});
        let expected = json!({"properties": {"properties": {"properties": {}, "additionalProperties": false},
            "b": {"additionalProperties": true, "properties": {}}},
            "items": {"type": "object", "patternProperties": {"a": {}}, "additionalProperties": false},
            "const": {"properties": {}}, "$defs": {"c": {"type": "object"}}, "additionalProperties": false});
        assert_eq!(closed(schema), expected);
    }

    #[test]
    fn one_of_several_shapes_is_closed_and_what_shapes_make_together_is_not() {
        let (a, b) = (json!({"properties": {"a": {}}}), json!({"properties": {"b": {}}}));
        let shut = |schema: &Value| {
            let mut schema = schema.clone();
            schema["additionalProperties"] = json!(false);
            schema
        };
        assert_eq!(closed(json!({"anyOf": [a, b]})), json!({"anyOf": [shut(&a), shut(&b)]}));
        assert_eq!(closed(json!({"allOf": [a], "title": "A"})), json!({"allOf": [shut(&a)], "title": "A"}));
        for together in [
            json!({"allOf": [a, b]}),
            json!({"properties": {"a": {}}, "anyOf": [b, {"required": ["a"]}]}),
            json!({"anyOf": [a, b], "oneOf": [{"required": ["a"]}]}),
            json!({"allOf": [{"anyOf": [a, b]}, {"required": ["a"]}]}),
            json!({"properties": {"a": {}}, "dependentSchemas": {"a": b}}),
        ] {
            assert_eq!(closed(together.clone()), together);
        }
        // Parts of what is open are wholes again.
        let part = json!({"allOf": [{"properties": {"a": a}}, b]});
        assert_eq!(closed(part), json!({"allOf": [{"properties": {"a": shut(&a)}}, b]}));
    }

    #[test]
    fn an_object_that_needs_others_than_it_names_stays_open() {
        let named = json!({"a": {}, "b": {}});
        let is_shut = |more: Value| {
            let mut schema = json!({"properties": named});
            schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            closed(schema).get("additionalProperties").is_some()
        };
        for fits in [
            json!({"required": ["a", "b"], "minProperties": 2}),
            json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
            json!({"required": ["c"], "patternProperties": {"^c": {}}}),
        ] {
            assert!(is_shut(fits.clone()), "{fits}");
        }
        for needs in [
            json!({"required": ["a", "c"]}),
            json!({"minProperties": 3}),
            json!({"anyOf": [{"required": ["a"]}, {"required": ["c"]}]}),
            json!({"required": ["c"], "patternProperties": {}}),
        ] {
            assert!(!is_shut(needs.clone()), "{needs}");
        }
    }

    #[test]
    fn what_is_referred_to_is_closed_unless_something_stands_beside() {
        let schema = |root: Value| {
            let mut schema =
                json!({"$defs": {"base": {"properties": {"a": {}}}, "next": {"$ref": "#/$defs/base"}}});
            schema.as_object_mut().unwrap().extend(root.as_object().unwrap().clone());
            schema
        };
        let is_shut =
            |root: Value| closed(schema(root))["$defs"]["base"].get("additionalProperties").is_some();
        assert!(is_shut(json!({"$ref": "#/$defs/base"})));
        assert!(is_shut(json!({"anyOf": [{"$ref": "#/$defs/base"}, {"type": "null"}]})));
        assert!(is_shut(json!({"properties": {"it": {"$ref": "#/$defs/next", "description": "so"}}})));
        assert!(!is_shut(json!({"$ref": "#/$defs/base", "properties": {"b": {}}})));
        assert!(!is_shut(json!({"allOf": [{"$ref": "#/$defs/next"}, {"properties": {"b": {}}}]})));
        // Where a reference leads nobody knows, all is left as it is.
        let elsewhere = schema(json!({"allOf": [{"$ref": "#/$defs/next"}, {"$ref": "other.json"}]}));
        assert_eq!(closed(elsewhere.clone()), elsewhere);
        let round =
            json!({"properties": {"a": {"$ref": "#"}}, "anyOf": [{"$ref": "#"}, {"required": ["a"]}]});
        assert_eq!(closed(round.clone()), round);
    }
}
