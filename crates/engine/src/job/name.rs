//! The client's name for a line, as far as the line can be read.

use std::borrow::Cow;
use std::fmt;

use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::{Deserializer, Value};

/// The `custom_id` that stands before whatever is wrong with a line; empty if none does.
pub(super) fn custom_id(line: &[u8]) -> String {
    let mut name = String::new();
    // What ends it early is told by whoever reads the request.
    let _ = Deserializer::from_slice(line).deserialize_map(Name(&mut name));
    name
}

/// Finds the name, and keeps it whatever follows.
struct Name<'a>(&'a mut String);

impl<'de> Visitor<'de> for Name<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if key != "custom_id" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            // Of several the last counts, as for the request.
            *self.0 = match map.next_value()? {
                Value::String(name) => name,
                _ => String::new(),
            };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_up_to_what_is_wrong() {
        let deep = format!("{{\"custom_id\": \"a\", \"body\": {}", "[".repeat(1000));
        let named = [
            &br#"{"custom_id": "a", "body": {"prompt": "x}"#[..],
            br#"{"custom_id": "a", "body": {}} }"#,
            br#"{"body": {"custom_id": "b"}, "custom_id": "a", "method": GET}"#,
            br#"{"custom_id": "b", "custom_id": "\u0061""#,
            b"{\"custom_id\": \"a\", \"body\": \"\xff\"}",
            deep.as_bytes(),
        ];
        named.into_iter().for_each(|line| assert_eq!(custom_id(line), "a", "{}", line.escape_ascii()));
        let nameless = [
            &br#"{"custom_id": "a"#[..],
            br#"{"body": {"custom_id": "a"}}"#,
            br#"{"custom_id": 1}"#,
            br#"[{"custom_id": "a"}]"#,
            br#"{"body": {"prompt": "x}, "custom_id": "a"}"#,
            b"{",
            b"",
        ];
        nameless.into_iter().for_each(|line| assert_eq!(custom_id(line), "", "{}", line.escape_ascii()));
    }
}
