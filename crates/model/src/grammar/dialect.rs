//! What a schema says and the compiler does not take as JSON Schema means it.

use serde_json::{Map, Value, json};

/// Formats of strings that are constraints here. JSON Schema leaves all of them to whoever reads one: another (pydantic writes
/// `password` and `path`) says nothing of a text.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
/// Keywords whose values are no schemas.
const VALUES: [&str; 5] = ["const", "enum", "default", "examples", "example"];
/// Keywords whose values are schemas by names, which may be those of keywords.
const BY_NAMES: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// A schema as the compiler is to read it, with these settings of its own; what a request says of those is dropped.
pub(crate) fn settled(schema: Map<String, Value>, mut settings: Map<String, Value>) -> Value {
    let mut schema = Value::from(schema);
    forget_formats(&mut schema);
    // Whoever writes it names shapes that exclude each other: one of them is some of them.
    settings.insert("coerce_one_of".to_owned(), json!(true));
    schema["x-guidance"] = settings.into();
    schema
}

fn forget_formats(schema: &mut Value) {
    let all = match schema {
        Value::Array(all) => return all.iter_mut().for_each(forget_formats),
        Value::Object(all) => all,
        _ => return,
    };
    let unheard = |format: &Value| format.as_str().is_some_and(|format| !FORMATS.contains(&format));
    if all.get("format").is_some_and(unheard) {
        all.remove("format");
    }
    for (key, value) in all.iter_mut().filter(|(key, _)| !VALUES.contains(&key.as_str())) {
        match value {
            Value::Object(named) if BY_NAMES.contains(&key.as_str()) => {
                named.values_mut().for_each(forget_formats);
            }
            value => forget_formats(value),
        }
    }
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
            "c": {"const": {"format": "binary"}, "anyOf": [{}]}}, "x-guidance": {"coerce_one_of": true}});
        assert_eq!(settled, expected);
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
