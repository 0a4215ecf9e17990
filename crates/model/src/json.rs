//! Typed access to the fields of a JSON object, with errors that name file and field.

use crate::error::{Error, Result, shorten};
use serde_json::{Map, Value};

/// JSON as Python writes it: with `NaN` and `Infinity`, which are no numbers, as null.
pub(crate) fn parse(text: &str, file: &str) -> Result<Value> {
    let plain = serde_json::from_str(text);
    plain.or_else(|e| {
        let wrong = |_| Error::malformed(file, e.to_string(), "JSON");
        serde_json::from_str(&without_floats(text)).map_err(wrong)
    })
}

/// With null for the numbers that JSON does not have, outside strings.
fn without_floats(text: &str) -> String {
    let null = |plain: &str| {
        ["-Infinity", "Infinity", "NaN"]
            .iter()
            .fold(plain.to_owned(), |text, word| text.replace(word, "null"))
    };
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(opens) = rest.find('"') {
        let within = &rest[opens + 1..];
        let mut is_escaped = false;
        let closes = within.find(|c| {
            let was_escaped = is_escaped;
            is_escaped = c == '\\' && !was_escaped;
            c == '"' && !was_escaped
        });
        let end = closes.map_or(rest.len(), |closes| opens + closes + 2);
        out.push_str(&null(&rest[..opens]));
        out.push_str(&rest[opens..end]);
        rest = &rest[end..];
    }
    out + &null(rest)
}

/// An object of a file. A field that is `null` counts as absent.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    pub(crate) file: &'a str,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The fields of `value`, which has to be an object.
    pub(crate) fn of(value: &'a Value, file: &'a str) -> Result<Fields<'a>> {
        let map = value.as_object().ok_or_else(|| Error::malformed(file, kind(value), "a JSON object"))?;
        Ok(Fields { file, map })
    }

    /// Whether a field is there and says `null`, which some architectures tell from its absence.
    pub(crate) fn has_null(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(Value::is_null)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'a str> {
        self.map.keys().map(String::as_str)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn typed<T>(&self, name: &str, want: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.wrong(name, want))
    }

    /// The error for a field with a value that cannot be.
    pub(crate) fn wrong(&self, name: &str, want: &str) -> Error {
        let found = shorten(&self.map.get(name).map_or("absent".into(), Value::to_string));
        Error::malformed(self.file, format!("`{name}` is {found}"), want)
    }

    pub(crate) fn size(&self, name: &str) -> Result<Option<usize>> {
        self.typed(name, "a whole number from 0", |v| usize::try_from(v.as_u64()?).ok())
    }

    /// The same, where it may be written as Python writes a float.
    pub(crate) fn count(&self, name: &str) -> Result<Option<u64>> {
        let whole = |x: &f64| *x >= 0.0 && x.fract() == 0.0;
        self.typed(name, "a whole number from 0", |v| {
            v.as_u64().or_else(|| v.as_f64().filter(whole).map(|x| x as u64))
        })
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<f64>> {
        self.typed(name, "a number", |v| v.as_f64().filter(|x| x.is_finite()))
    }

    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>> {
        self.typed(name, "true or false", Value::as_bool)
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>> {
        self.typed(name, "a string", Value::as_str)
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<Fields<'a>>> {
        let file = self.file;
        self.typed(name, "an object", move |v| Some(Fields { file, map: v.as_object()? }))
    }

    /// A token's number, or a list of them; one below 0, as some write where there is none, is none.
    pub(crate) fn tokens(&self, name: &str) -> Result<Option<Vec<u32>>> {
        let token = |v: &Value| match v.as_i64()? {
            ..0 => Some(None),
            id => u32::try_from(id).ok().map(Some),
        };
        self.typed(name, "a token's number, or a list of them", |v| {
            let all = std::slice::from_ref(v);
            let tokens: Option<Vec<_>> = v.as_array().map_or(all, Vec::as_slice).iter().map(token).collect();
            Some(tokens?.into_iter().flatten().collect())
        })
    }

    pub(crate) fn texts(&self, name: &str) -> Result<Option<Vec<&'a str>>> {
        self.typed(name, "a list of strings", |v| v.as_array()?.iter().map(Value::as_str).collect())
    }

    pub(crate) fn numbers(&self, name: &str) -> Result<Option<Vec<f64>>> {
        self.typed(name, "a list of numbers", |v| v.as_array()?.iter().map(Value::as_f64).collect())
    }

    pub(crate) fn needed_size(&self, name: &str) -> Result<usize> {
        self.size(name)?.ok_or_else(|| self.wrong(name, "a whole number"))
    }

    pub(crate) fn needed_number(&self, name: &str) -> Result<f64> {
        self.number(name)?.ok_or_else(|| self.wrong(name, "a number"))
    }

    /// The first entry that is not absent, empty, false or zero.
    pub(crate) fn first_set(&self, names: &[&'static str]) -> Option<&'static str> {
        names.iter().copied().find(|name| match self.get(name) {
            None | Some(Value::Bool(false)) => false,
            Some(Value::Number(n)) => n.as_f64() != Some(0.0),
            Some(Value::Array(a)) => !a.is_empty(),
            Some(Value::Object(o)) => !o.is_empty(),
            Some(_) => true,
        })
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_python_writes_for_numbers_that_are_none_is_null() {
        let text = r#"{"a": [0.0, Infinity, -Infinity], "NaN \\\" Infinity": "-Infinity", "b": NaN}"#;
        let value = parse(text, "config.json").unwrap();
        let expected =
            serde_json::json!({"a": [0.0, null, null], "NaN \\\" Infinity": "-Infinity", "b": null});
        assert_eq!(value, expected);
        for wrong in ["{\"a\": Infinite}", "{\"a", "{\"a\": Nan}", "NaN\"\\"] {
            assert!(parse(wrong, "config.json").unwrap_err().to_string().contains("config.json"), "{wrong}");
        }
    }

    #[test]
    fn counts_may_be_floats() {
        let value = serde_json::json!({"a": 2048.0, "b": 5, "c": 1.5, "d": -1.0, "e": 1e300});
        let fields = Fields::of(&value, "f").unwrap();
        assert_eq!((fields.count("a").unwrap(), fields.count("b").unwrap()), (Some(2048), Some(5)));
        assert!(fields.count("c").is_err() && fields.count("d").is_err());
        assert_eq!(fields.count("e").unwrap(), Some(u64::MAX));
    }
}
