//! How deep and how wide a schema is. What it refers to is followed down once, wherever it is named: all of it may be one path.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::grammar::GrammarError;
use crate::grammar::dialect::{BOUND_END, BOUNDS, look, whole};
use crate::grammar::refs;

/// Most levels of a schema, those of everything that it refers to added up.
const LEVELS: usize = 2000;
/// Most properties of an object, and most that it requires: compiling takes the square of their number, a second or two of so many.
const PROPERTIES: usize = 2000;

/// Whether the compiler's stack is enough for it.
///
/// # Errors
/// [`GrammarError::Invalid`].
pub(in crate::grammar) fn fits(root: &Value) -> Result<(), GrammarError> {
    refs::check(root)?;
    let mut patterns = Vec::new();
    widths(root, &mut patterns)?;
    look(root, &mut |schema| {
        let bounds = BOUNDS.as_flattened().iter().filter_map(|key| schema.get(*key));
        bounds.into_iter().try_for_each(bounds_something)?;
        ["const", "enum", "multipleOf"].iter().filter_map(|key| schema.get(*key)).try_for_each(told_apart)
    })?;
    super::expressions(patterns)?;
    let mut targets = BTreeSet::new();
    let mut levels = measure(root, &mut targets);
    for target in &targets {
        levels += find(root, target).map_or(1, |value| measure(value, &mut BTreeSet::new()));
        if levels > LEVELS {
            let why = format!("the schema and what it refers to have more than {LEVELS} levels");
            return Err(GrammarError::Invalid(why));
        }
    }
    Ok(())
}

/// Refuses objects of too many properties; bytes of expressions.
fn widths(value: &Value, patterns: &mut Vec<usize>) -> Result<(), GrammarError> {
    let Value::Object(all) = value else {
        return value.as_array().into_iter().flatten().try_for_each(|value| widths(value, patterns));
    };
    let required = all.get("required").and_then(Value::as_array).map_or(0, Vec::len);
    let known = all.get("properties").and_then(Value::as_object).map_or(0, |all| all.len());
    if known.max(required) > PROPERTIES {
        let why = format!("an object of {} properties; at most {PROPERTIES}", known.max(required));
        return Err(GrammarError::Invalid(why));
    }
    patterns.extend(all.get("pattern").and_then(Value::as_str).map(str::len));
    let keys = all.get("patternProperties").and_then(Value::as_object);
    patterns.extend(keys.into_iter().flat_map(|keys| keys.keys().map(String::len)));
    all.values().try_for_each(|value| widths(value, patterns))
}

/// Refuses bounds that the compiler cannot count up to.
fn bounds_something(bound: &Value) -> Result<(), GrammarError> {
    let is_within = bound.as_number().is_none_or(|bound| bound.as_f64().is_some_and(|x| x.abs() < BOUND_END));
    let why = || format!("a bound of {bound}; bounds are within 2^63 of zero");
    is_within.then_some(()).ok_or_else(|| GrammarError::Invalid(why()))
}

/// Refuses numbers that the compiler, to which all of them are f64, takes for their neighbours.
fn told_apart(value: &Value) -> Result<(), GrammarError> {
    const MOST: f64 = (1_u64 << 53) as f64;
    match value {
        Value::Array(all) => all.iter().try_for_each(told_apart),
        Value::Object(all) => all.values().try_for_each(told_apart),
        Value::Number(number) => {
            let near = number.as_f64().unwrap_or(f64::INFINITY);
            let is_exact = whole(number).map_or(near.abs() <= MOST, |whole| near as i128 == whole);
            let why =
                || format!("{number} is beyond 2^53, where numbers are not told apart: make it a string");
            is_exact.then_some(()).ok_or_else(|| GrammarError::Invalid(why()))
        }
        _ => Ok(()),
    }
}

/// What a reference names, as the compiler finds it: `~0` and `~1`, which are escapes in a JSON pointer, stand for
/// themselves there. What it does not find it refuses.
fn find<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    if reference == "#" {
        return Some(root);
    }
    match reference.strip_prefix("#/")? {
        "" => Some(root),
        path => path.split('/').try_fold(root, |value, segment| match value {
            Value::Array(all) => all.get(segment.parse::<usize>().ok()?),
            value => value.get(segment),
        }),
    }
}

/// Levels of a value; what it refers to is added. The parser bounds how deep values are.
fn measure<'a>(value: &'a Value, targets: &mut BTreeSet<&'a str>) -> usize {
    match value {
        Value::Array(all) => 1 + all.iter().map(|value| measure(value, targets)).max().unwrap_or(0),
        Value::Object(all) => {
            targets.extend(all.get("$ref").and_then(Value::as_str));
            1 + all.values().map(|value| measure(value, targets)).max().unwrap_or(0)
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    /// Definitions of two levels, of which each refers to the next.
    fn chain(name: &str, n: usize) -> Value {
        let next = |i: usize| json!({"items": {"$ref": format!("#/$defs/{name}{}", i + 1)}});
        let all: Map<String, Value> = (0..n).map(|i| (format!("{name}{i}"), next(i))).collect();
        json!({"$ref": format!("#/$defs/{name}0"), "$defs": all})
    }

    #[test]
    fn a_schema_is_as_deep_as_all_that_it_refers_to() {
        for name in ["a", "~0", "~1", "%25", "a b"] {
            assert_eq!(fits(&chain(name, 900)), Ok(()), "{name}");
            assert!(fits(&chain(name, 1100)).unwrap_err().to_string().contains("2000 levels"), "{name}");
        }
        for own in ["#", "#/", "#/properties", "#/nowhere/at/all", "https://example.org", "", "/properties"] {
            assert_eq!(fits(&json!({"properties": {"x": {"$ref": own}}})), Ok(()), "{own}");
        }
    }

    #[test]
    fn an_object_has_so_many_properties_and_a_pattern_so_many_bytes() {
        let object = |n: usize| {
            let all: Map<String, Value> = (0..n).map(|i| (format!("p{i}"), json!({}))).collect();
            json!({"items": {"properties": all}})
        };
        assert_eq!(fits(&object(2000)), Ok(()));
        assert!(fits(&object(2001)).unwrap_err().to_string().contains("2001 properties"));
        let required: Vec<String> = (0..2001).map(|i| i.to_string()).collect();
        assert!(fits(&json!({"required": required})).is_err());
        let long = "[ab]?".repeat(4000);
        assert!(
            fits(&json!({"anyOf": [{"pattern": long}]})).unwrap_err().to_string().contains("20000 bytes")
        );
        assert!(fits(&json!({"patternProperties": {long: {}}})).is_err());
    }

    #[test]
    fn numbers_that_are_taken_for_their_neighbours_are_refused() {
        for right in [json!(1_u64 << 53), json!(1_u64 << 60), json!(-1.5), json!(9_007_199_254_740_991_i64)] {
            assert_eq!(
                fits(&json!({"enum": [right, "a"], "const": right, "default": (1_u64 << 53) + 1})),
                Ok(())
            );
        }
        // Where nothing is a constraint.
        for free in
            [json!({"default": {"const": 1e30}}), json!({"properties": {"const": {"examples": [1e30]}}})]
        {
            assert_eq!(fits(&free), Ok(()), "{free}");
        }
        for wrong in [json!(1_234_567_890_123_456_789_i64), json!(u64::MAX), json!(i64::MIN + 1), json!(1e30)]
        {
            for schema in [
                json!({"enum": [1, wrong]}),
                json!({"properties": {"id": {"const": {"a": [wrong]}}}}),
                json!({"items": {"multipleOf": wrong}}),
            ] {
                assert!(fits(&schema).unwrap_err().to_string().contains("make it a string"), "{schema}");
            }
        }
    }

    #[test]
    fn references_are_found_where_the_compiler_finds_them() {
        let root = json!({"a": {"b/c": 1, "": 2, "~1": 3}, "l": [4, {"x": 5}], "~0": 6});
        for (reference, found) in [
            ("#/a/~1", Some(json!(3))),
            ("#/~0", Some(json!(6))),
            ("#/a/", Some(json!(2))),
            ("#/l/1/x", Some(json!(5))),
            ("#/l/+0", Some(json!(4))),
            ("#/", Some(root.clone())),
            ("#/a/b~1c", None),
            ("#/l/x", None),
            ("#/~0/x", None),
            ("#a", None),
        ] {
            assert_eq!(find(&root, reference), found.as_ref(), "{reference}");
        }
    }
}
