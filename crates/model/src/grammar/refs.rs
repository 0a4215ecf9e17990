//! References within a schema: those whose pointers are escaped, which the compiler does not read, lead to a copy under a plain
//! name; those that lead back to themselves are errors.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::GrammarError;
use super::dialect::{each_schema, look};

/// Bytes of all copies at most: many pointers may lead into the same large schema. Beyond it the compiler says that it finds nothing.
const COPIED_BYTES_MAX: usize = 1 << 20;

/// Gives what is referred to by an escaped pointer (`#/$defs/a~1b`, `#/$defs/L%3Cint%3E`) a name of its own.
pub(super) fn unescape(schema: &mut Value) {
    let mut copies: BTreeMap<String, (String, Value)> = BTreeMap::new();
    let (whole, mut bytes) = (&*schema, 0);
    let seen = look(whole, &mut |schema| {
        let Some(pointer) = reference(schema).filter(|pointer| pointer.contains(['~', '%'])) else {
            return Ok(());
        };
        let target = decoded(pointer).and_then(|pointer| whole.pointer(&pointer));
        let Some(target) = target.filter(|_| !copies.contains_key(pointer)) else { return Ok(()) };
        bytes += target.to_string().len();
        if bytes > COPIED_BYTES_MAX {
            return Err(GrammarError::Invalid("its references lead to too much".to_owned()));
        }
        let is_free = |name: &String| whole.pointer(&format!("/$defs/{name}")).is_none();
        let mut names = (copies.len()..).map(|n| format!("reference-{n}"));
        let name = names.find(|name| is_free(name) && copies.values().all(|(taken, _)| taken != name));
        let Some(name) = name else { return Ok(()) };
        copies.insert(pointer.to_owned(), (name, target.clone()));
        Ok(())
    });
    let Some(root) = schema.as_object_mut().filter(|_| seen.is_ok() && !copies.is_empty()) else { return };
    let Value::Object(definitions) = root.entry("$defs").or_insert(json!({})) else { return };
    definitions.extend(copies.values().cloned());
    each_schema(schema, &|schema| {
        if let Some((name, _)) = reference(schema).and_then(|pointer| copies.get(pointer)) {
            let plain = format!("#/$defs/{name}");
            schema.insert("$ref".to_owned(), plain.into());
        }
    });
}

/// Refuses a reference that says nothing but what it says itself.
pub(super) fn check(schema: &Value) -> Result<(), GrammarError> {
    // Those that are known to lead somewhere: each is followed once.
    let mut sound = BTreeSet::new();
    look(schema, &mut |within| {
        let (mut next, mut seen) = (reference(within).map(str::to_owned), BTreeSet::new());
        while let Some(pointer) = next.filter(|pointer| !sound.contains(pointer)) {
            let target = decoded(&pointer).and_then(|pointer| schema.pointer(&pointer));
            next = target.and_then(Value::as_object).and_then(reference).map(str::to_owned);
            if !seen.insert(pointer.clone()) {
                return Err(GrammarError::Invalid(format!("the `$ref` #{pointer} refers to itself")));
            }
        }
        sound.extend(seen);
        Ok(())
    })
}

/// The pointer behind `#` of a schema that refers to another one in the same text.
fn reference(schema: &Map<String, Value>) -> Option<&str> {
    schema.get("$ref")?.as_str()?.strip_prefix('#')
}

/// A pointer as it is after a `#` in an address, without the escapes of addresses.
pub(crate) fn decoded(pointer: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), pointer.as_bytes());
    while let Some((byte, behind)) = rest.split_first() {
        let escaped = (*byte == b'%').then(|| std::str::from_utf8(behind.get(..2)?).ok()).flatten();
        let code = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        rest = if code.is_some() { &behind[2..] } else { behind };
        bytes.push(code.unwrap_or(*byte));
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_references_get_plain_names() {
        let mut schema = json!({
            "properties": {"a": {"$ref": "#/$defs/a~1b"}, "b": {"$ref": "#/$defs/L%3Cint%3E"}, "c": {"$ref": "#/$defs/plain"},
                "d": {"$ref": "#/$defs/nowhere~0"}},
            "$defs": {"a/b": {"items": {"$ref": "#/$defs/a~1b"}}, "L<int>": {"type": "integer"}, "plain": {},
                "reference-0": {"type": "null"}}});
        unescape(&mut schema);
        let at = |pointer: &str| schema.pointer(pointer).unwrap();
        let [a, b] = ["a", "b"].map(|name| at(&format!("/properties/{name}/$ref")).as_str().unwrap());
        assert_eq!(at(&b[1..]), &json!({"type": "integer"}));
        assert_eq!(at(&a[1..]), &json!({"items": {"$ref": a}}), "within itself, too");
        assert_eq!(at("/$defs/reference-0"), &json!({"type": "null"}), "whose name it is");
        assert_eq!(at("/properties/c"), &json!({"$ref": "#/$defs/plain"}));
        assert_eq!(at("/properties/d"), &json!({"$ref": "#/$defs/nowhere~0"}));
    }

    #[test]
    fn what_refers_to_itself_alone_is_refused() {
        let why = |schema: Value| check(&schema).err().map(|error| error.to_string());
        assert!(why(json!({"$ref": "#"})).unwrap().contains("refers to itself"));
        let round =
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}});
        assert!(why(round).unwrap().contains("refers to itself"));
        assert_eq!(why(json!({"properties": {"child": {"$ref": "#"}}})), None);
        assert_eq!(why(json!({"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}})), None);
    }

    /// Each of many pointers leads into the same large schema: copies have an end.
    #[test]
    fn copies_are_bounded() {
        let mut schema = json!({});
        let deep = (0..2000).fold(
            json!({"type": "null"}),
            |inner, i| json!({"$ref": format!("#/x{}", "/a~1b".repeat(i)), "a/b": inner}),
        );
        schema["x"] = deep;
        let before = schema.clone();
        unescape(&mut schema);
        assert_eq!(schema, before, "left as it is");
    }

    #[test]
    fn addresses_are_decoded() {
        assert_eq!(decoded("/a%20b~1%C3%A9%zz%"), Some("/a b~1é%zz%".to_owned()));
        assert_eq!(decoded("%ff"), None);
    }
}
