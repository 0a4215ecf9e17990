//! Whether a value has the form that a JSON schema gives: the part of JSON Schema that the schemas of requests use.

use serde_json::{Map, Value};

use super::ApiError;

/// 400 where `value` has another form than `schema` says, with the place.
pub(super) fn form(schema: &Value, value: &Value) -> Result<(), ApiError> {
    let Some(place) = misfit(schema, value) else { return Ok(()) };
    let field = place.split(['.', '[']).next().unwrap_or_default();
    let shown = if place.is_empty() { "the body" } else { &place };
    let message = format!("{shown}: not of the form that it must have; /openapi.json describes it");
    Err(ApiError::invalid(field, message))
}

/// Where the value is not what the schema says, as `messages[1].role`; nothing where it is.
fn misfit(schema: &Value, value: &Value) -> Option<String> {
    if !is_of_type(&schema["type"], value)
        || !is_listed(&schema["enum"], value)
        || !is_in_range(schema, value)
    {
        return Some(String::new());
    }
    let inside = match value {
        Value::Object(fields) => misfit_of_object(schema, fields),
        Value::Array(items) => misfit_of_items(schema, items),
        _ => None,
    };
    inside
        .or_else(|| misfit_of_any(schema.get("anyOf")?, value))
        .or_else(|| misfit_of_any(schema.get("oneOf")?, value))
}

/// The place is that in the alternative which it comes nearest to: the one where most was as it should be.
fn misfit_of_any(alternatives: &Value, value: &Value) -> Option<String> {
    let depth = |place: &str| place.matches(['.', '[']).count();
    let mut deepest = String::new();
    for alternative in alternatives.as_array()? {
        let place = misfit(alternative, value)?;
        if deepest.is_empty() || depth(&place) > depth(&deepest) {
            deepest = place;
        }
    }
    Some(deepest)
}

fn misfit_of_object(schema: &Value, fields: &Map<String, Value>) -> Option<String> {
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    if let Some(missing) = required.into_iter().find(|name| !fields.contains_key(*name)) {
        return Some(missing.to_owned());
    }
    let others = &schema["additionalProperties"];
    fields.iter().find_map(|(name, value)| {
        let place = match schema["properties"].get(name) {
            Some(schema) => misfit(schema, value)?,
            None if others == false => String::new(),
            None => misfit(others, value)?,
        };
        Some(if place.is_empty() || place.starts_with('[') {
            format!("{name}{place}")
        } else {
            format!("{name}.{place}")
        })
    })
}

fn misfit_of_items(schema: &Value, items: &[Value]) -> Option<String> {
    let schema = schema.get("items")?;
    items.iter().enumerate().find_map(|(i, item)| {
        let place = misfit(schema, item)?;
        let dot = if place.is_empty() || place.starts_with('[') { "" } else { "." };
        Some(format!("[{i}]{dot}{place}"))
    })
}

fn is_of_type(kinds: &Value, value: &Value) -> bool {
    let is = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|x| x.fract() == 0.0),
        "null" => value.is_null(),
        other => unreachable!("a schema has the type {other}"),
    };
    match kinds {
        Value::String(kind) => is(kind),
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).any(is),
        _ => true,
    }
}

fn is_listed(values: &Value, value: &Value) -> bool {
    values.as_array().is_none_or(|values| values.contains(value))
}

/// Ranges of numbers, and of lengths.
fn is_in_range(schema: &Value, value: &Value) -> bool {
    let limit = |name: &str| schema.get(name).and_then(Value::as_f64);
    let within = |size: f64, least: &str, most: &str| {
        limit(least).is_none_or(|least| size >= least) && limit(most).is_none_or(|most| size <= most)
    };
    match value {
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or_default();
            within(number, "minimum", "maximum")
                && limit("exclusiveMinimum").is_none_or(|least| number > least)
        }
        Value::String(text) if schema.get("minLength").or(schema.get("maxLength")).is_some() => {
            within(text.chars().count() as f64, "minLength", "maxLength")
        }
        Value::Array(items) => within(items.len() as f64, "minItems", "maxItems"),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{OwnTemplates, schema};
    use super::*;
    use serde_json::json;

    fn offered(vocab: usize) -> schema::Offered {
        schema::Offered { vocab, max_logprobs: 20, own_templates: OwnTemplates::Taken }
    }

    fn place(schema: &Value, body: Value) -> Option<String> {
        misfit(schema, &body)
    }

    #[test]
    fn every_keyword_is_obeyed() {
        for (schema, good, bad) in [
            (
                json!({"type": "integer", "minimum": 1, "maximum": 3}),
                vec![json!(1), json!(3), json!(2.0)],
                vec![json!(0), json!(4), json!(1.5), json!("1"), json!(null)],
            ),
            (
                json!({"type": ["number", "null"], "exclusiveMinimum": 0}),
                vec![json!(0.1), json!(null)],
                vec![json!(0), json!(false)],
            ),
            (
                json!({"type": "string", "minLength": 1, "maxLength": 2}),
                vec![json!("ä"), json!("ab")],
                vec![json!(""), json!("abc")],
            ),
            (json!({"enum": ["a", null]}), vec![json!("a"), json!(null)], vec![json!("b"), json!(1)]),
            (
                json!({"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "string"}}),
                vec![json!(["a"])],
                vec![json!([]), json!([1]), json!(["a", "b", "c"])],
            ),
            (
                json!({"anyOf": [{"type": "string"}, {"type": "boolean"}]}),
                vec![json!("a"), json!(true)],
                vec![json!(1)],
            ),
            (
                json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "boolean"}}}),
                vec![json!({"a": true, "b": 1})],
                vec![json!({}), json!({"a": 1}), json!([])],
            ),
            (
                json!({"type": "object", "additionalProperties": false}),
                vec![json!({})],
                vec![json!({"a": 1})],
            ),
            (
                json!({"type": "object", "additionalProperties": {"type": "number"}}),
                vec![json!({"a": 1})],
                vec![json!({"a": "1"})],
            ),
        ] {
            good.iter().for_each(|value| assert_eq!(misfit(&schema, value), None, "{schema} {value}"));
            bad.iter().for_each(|value| assert!(misfit(&schema, value).is_some(), "{schema} {value}"));
        }
    }

    #[test]
    fn the_place_is_named() {
        let chat = schema::chat(&offered(100));
        let messages = |message: Value| json!({"messages": [{"role": "user", "content": "x"}, message]});
        assert_eq!(place(&chat, messages(json!({"role": "assistant"}))), None);
        assert_eq!(
            place(
                &chat,
                messages(json!({"role": "user", "content": ["a", {"type": "input_text", "text": "b"}]}))
            ),
            None
        );
        assert_eq!(
            place(&chat, messages(json!({"role": "assistant", "content": 7}))),
            Some("messages[1].content".into())
        );
        let part = json!({"role": "user", "content": [{"type": "refusal", "text": "b"}]});
        assert!(place(&chat, messages(part)).unwrap().starts_with("messages[1].content[0]"));
        let format =
            json!({"prompt": "x", "response_format": {"type": "text", "json_schema": {"schema": [1]}}});
        let completion = schema::completion(&offered(100));
        assert_eq!(place(&completion, format), Some("response_format.json_schema.schema".into()));
        assert_eq!(
            form(&completion, &json!({"prompt": "x", "user": 7})).unwrap_err().param.as_deref(),
            Some("user")
        );
        let manners =
            json!({"prompt": "x", "structured_outputs": {"regex": "a", "disable_any_whitespace": true}});
        assert_eq!(place(&completion, manners), None);
    }

    /// Keywords that this checks, or that need no check here.
    const KEYWORDS: [&str; 18] = [
        "type",
        "enum",
        "anyOf",
        "oneOf",
        "required",
        "properties",
        "additionalProperties",
        "items",
        "minItems",
        "maxItems",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "description",
        "format",
        "propertyNames",
    ];

    fn keywords(schema: &Value) {
        for (name, value) in schema.as_object().into_iter().flatten() {
            assert!(KEYWORDS.contains(&name.as_str()), "{name}");
            match name.as_str() {
                "properties" => value.as_object().unwrap().values().for_each(keywords),
                "anyOf" | "oneOf" => value.as_array().unwrap().iter().for_each(keywords),
                "items" | "additionalProperties" => keywords(value),
                _ => (),
            }
        }
    }

    #[test]
    fn the_schemas_say_nothing_that_is_not_checked() {
        let all = [
            schema::completion(&offered(9)),
            schema::chat(&offered(9)),
            schema::tokenize(),
            schema::detokenize(9),
        ];
        all.iter().for_each(keywords);
    }
}
