//! How much memory a body takes once it is read.

use serde_json::Value;

/// Bytes that a value takes at most, one for each that [`values`] counts: itself, and the memory of a short string.
pub const VALUE_BYTES: usize = size_of::<Value>() + 32;
/// A list or an object has room for so many from the first on.
const FIRST_ROOM: usize = 4;

/// How many values a body of JSON will be at most, counted without reading it: a body of `1,1,1,` becomes forty times as
/// large as it was. Keys count, and so does the room that every list and object begins with.
pub fn values(body: &[u8]) -> usize {
    let (mut values, mut inside, mut escaped) = (1, false, false);
    for &byte in body {
        if inside {
            inside = escaped || byte != b'"';
            escaped = byte == b'\\' && !escaped;
            continue;
        }
        match byte {
            b'"' => inside = true,
            b',' | b':' => values += 1,
            b'[' | b'{' => values += FIRST_ROOM,
            _ => (),
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_and_what_stands_in_strings_is_not() {
        for (body, expected) in [
            ("1", 1),
            ("[1,2,3]", 7),
            (r#"{"a": 1, "b": [2]}"#, 12),
            (r#""a,b:[{\"" "#, 1),
            (r#"["\\",1]"#, 6),
            (r#"["\\\",,,"]"#, 5),
            ("", 1),
        ] {
            assert_eq!(values(body.as_bytes()), expected, "{body}");
        }
    }

    #[test]
    fn nothing_takes_more_than_was_counted() {
        /// Bytes of a value: itself, what it refers to, and an estimate of the allocator's own.
        fn bytes(value: &Value) -> usize {
            const ENTRY: usize = size_of::<(u64, String, Value)>();
            let more = match value {
                Value::String(text) => (text.len() + 16).max(32),
                Value::Array(list) => {
                    16 + list.capacity() * size_of::<Value>() - list.len() * size_of::<Value>()
                        + list.iter().map(bytes).sum::<usize>()
                }
                Value::Object(map) => {
                    let room = map.len().next_power_of_two().max(FIRST_ROOM);
                    let entries =
                        map.iter().map(|(key, value)| key.len() + 32 + bytes(value) - size_of::<Value>());
                    48 + room * (ENTRY + 9) + entries.sum::<usize>()
                }
                _ => 0,
            };
            size_of::<Value>() + more
        }
        for unit in ["1", "[]", "[1]", "{}", "\"a\"", "{\"a\":1}", "{\"a\":\"b\",\"c\":\"d\",\"e\":[[1]]}"] {
            let body = format!("[{}]", vec![unit; 1000].join(","));
            let value: Value = serde_json::from_str(&body).unwrap();
            let counted = values(body.as_bytes()) * VALUE_BYTES;
            // A list that grows doubles: what it has no use for is never touched.
            let slack = 1024 * size_of::<Value>();
            assert!(bytes(&value) <= counted + body.len() + slack, "{unit}: {} of {counted}", bytes(&value));
        }
    }
}
