//! Objects have the properties that a schema names and no others, where it leaves that open: JSON Schema allows any, whoever writes
//! one means those (and other engines take it so). An object that several schemas describe together stays open: each of them names
//! a part of its properties.

use serde_json::{Map, Value, json};

/// Keywords whose schemas describe the same value as the one that they stand in.
const LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
const SINGLE: [&str; 4] = ["if", "then", "else", "not"];
/// Those whose schemas describe parts of the value: by names, in lists or alone.
const BY_NAMES: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
const PARTS: [&str; 6] =
    ["items", "prefixItems", "contains", "additionalItems", "additionalProperties", "unevaluatedProperties"];
/// What says of properties how they are.
const OWN: [&str; 4] = ["properties", "patternProperties", "additionalProperties", "required"];
/// Stands, while a schema is closed, in those that another one refers to beside what it says itself.
const SHARED: &str = "x-shared";

/// Closes the objects of a schema.
pub(super) fn close(schema: &mut Value) {
    let mut shared = Vec::new();
    refer(schema, false, &mut shared);
    while let Some(pointer) = shared.pop() {
        // What is not found may be any of them.
        let Some(target) = pointer.strip_prefix('#').and_then(|at| schema.pointer_mut(at)) else {
            return forget(schema);
        };
        let Value::Object(object) = &mut *target else { continue };
        if object.insert(SHARED.to_owned(), json!(true)).is_none() {
            refer(target, true, &mut shared);
        }
    }
    settle(schema, false);
}

/// Whether several schemas describe one value: this one and those that it names, or, if it is `shared`, this one and others.
fn is_shared(schema: &Map<String, Value>, shared: bool) -> bool {
    let own = usize::from(OWN.iter().any(|key| schema.contains_key(*key)));
    let all_of = schema.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
    let others = ["anyOf", "oneOf", "$ref", "dependentSchemas"].iter().chain(&SINGLE);
    let others = others.filter(|key| schema.contains_key(**key)).count();
    shared || schema.contains_key(SHARED) || own + all_of + others > 1
}

/// The schemas right within one, and whether they describe the same value.
fn within(schema: &mut Map<String, Value>) -> impl Iterator<Item = (&mut Value, bool)> {
    schema.iter_mut().flat_map(|(key, value)| {
        let key = key.as_str();
        let dependent = key == "dependentSchemas";
        let same = dependent || LISTS.contains(&key) || SINGLE.contains(&key);
        let all: Vec<&mut Value> = if dependent || BY_NAMES.contains(&key) {
            value.as_object_mut().into_iter().flat_map(Map::values_mut).collect()
        } else if !same && !PARTS.contains(&key) {
            vec![]
        } else if value.is_array() {
            value.as_array_mut().into_iter().flatten().collect()
        } else {
            vec![value]
        };
        all.into_iter().map(move |schema| (schema, same))
    })
}

/// Finds what schemas refer to that are not alone with it.
fn refer(schema: &mut Value, shared: bool, found: &mut Vec<String>) {
    let Value::Object(schema) = schema else { return };
    let shared = is_shared(schema, shared);
    if shared && let Some(Value::String(pointer)) = schema.get("$ref") {
        found.push(pointer.clone());
    }
    within(schema).for_each(|(schema, same)| refer(schema, shared && same, found));
}

fn settle(schema: &mut Value, shared: bool) {
    let Value::Object(schema) = schema else { return };
    let shared = is_shared(schema, shared);
    schema.remove(SHARED);
    let says = |key: &str| schema.contains_key(key);
    let names = says("properties") || says("patternProperties");
    if names && !shared && !says("additionalProperties") && !says("unevaluatedProperties") {
        schema.insert("additionalProperties".to_owned(), json!(false));
    }
    within(schema).for_each(|(schema, same)| settle(schema, shared && same));
}

/// Leaves a schema as it was.
fn forget(schema: &mut Value) {
    let Value::Object(schema) = schema else { return };
    schema.remove(SHARED);
    within(schema).for_each(|(schema, _)| forget(schema));
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
