//! The fields of a request body, read one by one; null is absent, and what nobody read is counted.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{ApiError, UnknownFields};
use crate::error::shorten;

/// Fields that clients send and that have no meaning here.
const IGNORED: [&str; 10] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "client_metadata",
    "verbosity",
    "prompt_cache_retention",
];

/// A body's fields that have not been read. They stay where they are: a body of a million numbers is not copied.
pub(super) struct Fields<'a>(BTreeMap<&'a str, &'a Value>);

impl<'a> Fields<'a> {
    pub(super) fn of(body: &'a Value) -> Result<Self, ApiError> {
        match body {
            Value::Object(map) => {
                Ok(Fields(map.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.as_str(), v)).collect()))
            }
            _ => Err(ApiError::invalid("", "the body is not a JSON object")),
        }
    }

    /// Takes a field as it is.
    pub(super) fn value(&mut self, name: &str) -> Option<&'a Value> {
        self.0.remove(name)
    }

    fn typed<T>(
        &mut self,
        name: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => Err(wrong(name, expected, value)),
        }
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "true or false", Value::as_bool)
    }

    pub(super) fn number(&mut self, name: &str) -> Result<Option<f32>, ApiError> {
        self.typed(name, "a number", |v| v.as_f64().map(|x| x as f32))
    }

    /// By the second name, another engine's, where the first is absent.
    pub(super) fn number_or(&mut self, name: &str, other: &str) -> Result<Option<f32>, ApiError> {
        let (first, second) = (self.number(name)?, self.number(other)?);
        Ok(first.or(second))
    }

    pub(super) fn integer(&mut self, name: &str) -> Result<Option<i64>, ApiError> {
        self.typed(name, "a signed 64-bit integer", whole)
    }

    pub(super) fn count(&mut self, name: &str) -> Result<Option<u32>, ApiError> {
        self.typed(name, "a count from 0 to 4294967295", |v| u32::try_from(whole(v)?).ok())
    }

    /// A count, or `false` for none.
    pub(super) fn count_or_off(&mut self, name: &str) -> Result<Option<u32>, ApiError> {
        if self.0.get(name) == Some(&&Value::Bool(false)) {
            self.0.remove(name);
        }
        self.count(name)
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        self.typed(name, "a string", |v| v.as_str().map(str::to_owned))
    }

    /// What stands for a text of any length, and differs where the text does.
    pub(super) fn digest(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        let digest = |text: &str| Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
        self.typed(name, "a string", |v| v.as_str().map(digest))
    }

    pub(super) fn list(&mut self, name: &str) -> Result<Option<&'a [Value]>, ApiError> {
        self.typed(name, "a list", |v| v.as_array().map(Vec::as_slice))
    }

    pub(super) fn object(&mut self, name: &str) -> Result<Option<&'a Map<String, Value>>, ApiError> {
        self.typed(name, "an object", Value::as_object)
    }

    /// A string or a list of strings.
    pub(super) fn texts(&mut self, name: &str) -> Result<Option<Vec<String>>, ApiError> {
        let text = |v: &Value| v.as_str().map(str::to_owned);
        self.typed(name, "a string or a list of strings", |v| match v {
            Value::String(s) => Some(vec![s.clone()]),
            Value::Array(list) => list.iter().map(text).collect(),
            _ => None,
        })
    }

    /// A list of token ids.
    pub(super) fn ids(&mut self, name: &str) -> Result<Option<Vec<u32>>, ApiError> {
        self.typed(name, "a list of token ids", token_ids)
    }

    /// `{"50256": -100, ...}`
    pub(super) fn bias(&mut self, name: &str) -> Result<Option<Vec<(u32, f32)>>, ApiError> {
        self.typed(name, "an object of numbers by token id", |v| {
            let entry = |(k, v): (&String, &Value)| Some((k.parse().ok()?, v.as_f64()? as f32));
            v.as_object()?.iter().map(entry).collect()
        })
    }

    /// Refuses a field that asks for something; `harmless` values ask for nothing.
    pub(super) fn refuse(&mut self, name: &str, harmless: &[Value], what: &str) -> Result<(), ApiError> {
        match self.value(name) {
            Some(value) if !harmless.contains(value) => Err(ApiError::not_supported(name, what)),
            _ => Ok(()),
        }
    }

    /// Those that have not been read.
    pub(super) fn rest(self) -> impl Iterator<Item = (&'a str, &'a Value)> {
        self.0.into_iter()
    }

    /// The fields that nobody knows.
    pub(super) fn unknown(self) -> UnknownFields {
        self.0.into_keys().filter(|name| !IGNORED.contains(name)).collect()
    }
}

pub(super) fn token_ids(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(|v| u32::try_from(whole(v)?).ok()).collect()
}

/// A whole number, written as `16` or as `16.0`: JSON knows one kind of numbers, and some clients write all of them so.
fn whole(value: &Value) -> Option<i64> {
    // Whole numbers beyond 64 bits are read as the nearest number that has a point, which these may be.
    const BEYOND: f64 = (1_u64 << 63) as f64;
    let exact = |x: &f64| x.fract() == 0.0 && x.abs() < BEYOND;
    value.as_i64().or_else(|| value.as_f64().filter(exact).map(|x| x as i64))
}

fn wrong(name: &str, expected: &str, found: &Value) -> ApiError {
    let found = match found {
        Value::Null => "null".into(),
        Value::Bool(_) => "a boolean".into(),
        Value::Number(number) => shorten(&number.to_string()),
        Value::String(_) => "a string".into(),
        // Its own words, as it may be of the right kind, and hold something else.
        Value::Array(_) | Value::Object(_) => shorten(&found.to_string()),
    };
    ApiError::invalid(name, format!("{name}: expected {expected}, found {found}"))
}
