//! What a schema says and the compiler does not take as JSON Schema means it.

use serde_json::{Map, Number, Value, json};

use super::GrammarError;
use super::ascii::patterns;
use super::close::close;
use super::refs::unescape;

/// Formats of strings that are constraints here. JSON Schema leaves all of them to whoever reads one: another (pydantic writes
/// `password` and `path`) says nothing of a text.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
/// Keywords whose values are no schemas.
pub(super) const VALUES: [&str; 5] = ["const", "enum", "default", "examples", "example"];
/// Keywords whose values are schemas by names, which may be those of keywords.
pub(super) const BY_NAMES: [&str; 5] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// A schema as the compiler is to read it, with these settings of its own; what a request says of those is dropped.
pub(crate) fn settled(schema: Map<String, Value>, mut settings: Map<String, Value>) -> Value {
    let mut schema = Value::from(schema);
    unescape(&mut schema);
    close(&mut schema);
    each_schema(&mut schema, &|schema| {
        forget_format(schema);
        allow_null(schema);
        narrow_bounds(schema);
        patterns(schema);
    });
    // Whoever writes it names shapes that exclude each other: one of them is some of them.
    settings.insert("coerce_one_of".to_owned(), json!(true));
    schema["x-guidance"] = settings.into();
    schema
}

/// What looks at a schema.
type See<'a> = dyn FnMut(&Map<String, Value>) -> Result<(), GrammarError> + 'a;

/// Looks at a schema and at each within it.
pub(super) fn look(schema: &Value, see: &mut See<'_>) -> Result<(), GrammarError> {
    let all = match schema {
        Value::Array(all) => return all.iter().try_for_each(|schema| look(schema, see)),
        Value::Object(all) => all,
        _ => return Ok(()),
    };
    see(all)?;
    for (key, value) in all.iter().filter(|(key, _)| !VALUES.contains(&key.as_str())) {
        match value {
            Value::Object(named) if BY_NAMES.contains(&key.as_str()) => {
                named.values().try_for_each(|schema| look(schema, see))?;
            }
            value => look(value, see)?,
        }
    }
    Ok(())
}

/// Changes a schema and each within it.
pub(super) fn each_schema(schema: &mut Value, change: &dyn Fn(&mut Map<String, Value>)) {
    let all = match schema {
        Value::Array(all) => return all.iter_mut().for_each(|schema| each_schema(schema, change)),
        Value::Object(all) => all,
        _ => return,
    };
    change(all);
    for (key, value) in all.iter_mut().filter(|(key, _)| !VALUES.contains(&key.as_str())) {
        match value {
            Value::Object(named) if BY_NAMES.contains(&key.as_str()) => {
                named.values_mut().for_each(|schema| each_schema(schema, change));
            }
            value => each_schema(value, change),
        }
    }
}

fn forget_format(schema: &mut Map<String, Value>) {
    let unheard = |format: &Value| format.as_str().is_some_and(|format| !FORMATS.contains(&format));
    if schema.get("format").is_some_and(unheard) {
        schema.remove("format");
    }
}

/// OpenAPI's word for it, which JSON Schema does not know.
fn allow_null(schema: &mut Map<String, Value>) {
    if schema.get("nullable") == Some(&json!(true))
        && let Some(kind @ Value::String(_)) = schema.get("type")
    {
        schema["type"] = json!([kind, "null"]);
    }
}

/// The compiler makes whole numbers of 64 bits of bounds; from here on, and down to as much below zero, it takes all for the last, and
/// may not come to an end.
pub(super) const BOUND_END: f64 = (1_u64 << 63) as f64;
/// Bounds of numbers, least ones first, open ones second.
pub(super) const BOUNDS: [[&str; 2]; 2] = [["minimum", "exclusiveMinimum"], ["maximum", "exclusiveMaximum"]];

/// Bounds are f64 to the compiler, which moves those beyond 2^53 by up to half a step: outwards some of them. Here they move inwards,
/// and to where it still counts if they are too far out to say anything.
fn narrow_bounds(schema: &mut Map<String, Value>) {
    for ([plain, exclusive], is_least) in BOUNDS.into_iter().zip([true, false]) {
        // An older word for it stands beside the bound.
        let is_open = schema.get(exclusive) == Some(&json!(true));
        for (key, is_open) in [(plain, is_open), (exclusive, true)] {
            let Some(bound) = schema.get(key).and_then(Value::as_number) else { continue };
            let near = whole(bound).map(|bound| within(bound, is_least, is_open)).or(bound.as_f64());
            let Some(near) = near.filter(|near| whole(bound).is_some() || near.abs() >= BOUND_END) else {
                continue;
            };
            let farthest = BOUND_END.next_down();
            let near = if is_least { near.max(-farthest) } else { near.min(farthest) };
            // Those of 64 bits stay within them.
            schema.insert(key.to_owned(), Number::from_i128(near as i128).map_or(json!(near), Value::from));
        }
    }
}

/// The next bound within that the compiler can tell from this one; of open ones that, too, of which it takes the number beside.
fn within(bound: i128, is_least: bool, is_open: bool) -> f64 {
    let (inwards, one): (fn(f64) -> f64, f64) =
        if is_least { (f64::next_up, 1.0) } else { (f64::next_down, -1.0) };
    let is_beyond = |near: f64| if is_least { (near as i128) < bound } else { (near as i128) > bound };
    let mut near = bound as f64;
    if is_beyond(near) {
        near = inwards(near);
    }
    if is_open && near + one == near {
        near = inwards(near);
    }
    near
}

/// The value of a number without a point.
pub(super) fn whole(number: &Number) -> Option<i128> {
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_that_nobody_knows_say_nothing() {
        let schema = json!({"format": "path", "properties": {
            "a": {"type": "string", "format": "password"}, "b": {"format": "date"}, "format": {"type": "string"},
            "c": {"const": {"format": "binary"}, "anyOf": [{"format": "byte"}]}}, "x-guidance": {"lenient": true}});
        let Value::Object(schema) = schema else { unreachable!() };
        let settled = settled(schema, Map::new());
        let expected = json!({"properties": {
            "a": {"type": "string"}, "b": {"format": "date"}, "format": {"type": "string"},
            "c": {"const": {"format": "binary"}, "anyOf": [{}]}}, "additionalProperties": false,
            "x-guidance": {"coerce_one_of": true}});
        assert_eq!(settled, expected);
    }

    /// What is kept of one schema.
    fn alone(schema: Value) -> Value {
        let Value::Object(schema) = schema else { unreachable!() };
        let mut settled = settled(schema, Map::new());
        settled.as_object_mut().unwrap().remove("x-guidance");
        settled
    }

    #[test]
    fn what_may_be_null_by_openapi_may_be() {
        let all = json!({"items": {"type": "string", "nullable": true}});
        assert_eq!(alone(all)["items"]["type"], json!(["string", "null"]));
        for same in [
            json!({"type": "string", "nullable": false}),
            json!({"nullable": true}),
            json!({"type": "string"}),
        ] {
            assert_eq!(alone(same.clone()), same);
        }
    }

    #[test]
    fn bounds_that_are_not_told_apart_move_inwards() {
        let moved =
            |key: &str, bound: i128| alone(json!({key: bound}))[key].as_number().and_then(whole).unwrap();
        for key in ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"] {
            for exact in [0, -5, (1 << 53) - 1, 1 - (1 << 53)] {
                assert_eq!(moved(key, exact), exact);
            }
        }
        assert_eq!(
            (moved("minimum", 1 << 60), moved("maximum", i64::MIN.into())),
            (1 << 60, i64::MIN.into())
        );
        // What the compiler takes one from has to be another number afterwards.
        for open in [1_i128 << 53, 1 << 54, (1 << 54) + 4] {
            let (least, most) = (moved("exclusiveMinimum", open), moved("exclusiveMaximum", open));
            assert!(
                least as f64 + 1.0 > open as f64 && most as f64 - 1.0 < open as f64,
                "{least} {open} {most}"
            );
        }
        let older = alone(json!({"minimum": 1_u64 << 54, "exclusiveMinimum": true}));
        assert_eq!(older["minimum"], json!((1_u64 << 54) + 4));
        let odd = (1 << 53) + 1;
        assert_eq!((moved("minimum", odd), moved("exclusiveMaximum", odd)), (odd + 1, odd - 1));
        assert_eq!((moved("exclusiveMinimum", -odd), moved("maximum", -odd)), (1 - odd, -odd - 1));
        let farthest = (1 << 63) - 1024;
        assert_eq!(moved("maximum", u64::MAX.into()), farthest);
        assert_eq!(
            (moved("minimum", i64::MIN.into()), moved("exclusiveMinimum", i64::MIN.into())),
            (-farthest, -farthest)
        );
        let far = alone(json!({"minimum": -1e300, "maximum": -1e20}));
        assert_eq!((&far["minimum"], &far["maximum"]), (&json!(-farthest as i64), &json!(-1e20)));
        assert_eq!(moved("maximum", i64::MAX.into()), (1 << 63) - 1024);
        assert_eq!(alone(json!({"maximum": 1.5, "minimum": "2"})), json!({"maximum": 1.5, "minimum": "2"}));
    }

    #[test]
    fn values_stay_and_properties_may_be_called_as_keywords_are() {
        let settled = |schema: Value| {
            let Value::Object(schema) = schema else { unreachable!() };
            settled(schema, Map::new())
        };
        let values = json!({"enum": [{"format": "path"}], "default": {"format": "path"}});
        let kept = settled(values.clone());
        assert_eq!((&kept["enum"], &kept["default"]), (&values["enum"], &values["default"]));
        let named = json!({"properties": {"default": {"format": "path"}, "properties": {"format": "path"}}});
        assert_eq!(settled(named)["properties"], json!({"default": {}, "properties": {}}));
    }
}
