//! What a schema says and the compiler does not take as JSON Schema means it.

use serde_json::{Map, Value, json};

/// Formats of strings that are constraints here. JSON Schema leaves all of them to whoever reads one: another (pydantic writes
/// `password` and `path`) says nothing of a text.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
/// Keywords whose values are no schemas.
const VALUES: [&str; 5] = ["const", "enum", "default", "examples", "example"];

/// A schema as the compiler is to read it, with these settings of its own; what a request says of those is dropped.
pub(crate) fn settled(mut schema: Map<String, Value>, mut settings: Map<String, Value>) -> Value {
    schema.values_mut().for_each(forget_formats);
    forget_format(&mut schema);
    // Whoever writes it names shapes that exclude each other: one of them is some of them.
    settings.insert("coerce_one_of".to_owned(), json!(true));
    schema.insert("x-guidance".to_owned(), settings.into());
    schema.into()
}

fn forget_formats(value: &mut Value) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(forget_formats),
        Value::Object(all) => {
            forget_format(all);
            all.iter_mut()
                .filter(|(key, _)| !VALUES.contains(&key.as_str()))
                .for_each(|(_, value)| forget_formats(value));
        }
        _ => {}
    }
}

/// A property may be called so; its value is a schema then, and no text.
fn forget_format(schema: &mut Map<String, Value>) {
    let unheard = |format: &Value| format.as_str().is_some_and(|format| !FORMATS.contains(&format));
    if schema.get("format").is_some_and(unheard) {
        schema.remove("format");
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
}
