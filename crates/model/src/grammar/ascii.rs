//! `\d` and `\w` as JSON Schema's expressions mean them (ECMA-262), of ASCII alone: the compiler has digits and letters of all
//! scripts. What is left of them are such texts for whoever reads expressions the other way, too.

use std::iter::Peekable;
use std::str::Chars;

use serde_json::{Map, Value};

const DIGITS: &str = "0-9";
const LETTERS: &str = "0-9A-Za-z_";

/// An expression with classes of ASCII for its `\d` and `\w`. Within a class that excludes they exclude as much as before; where a
/// class has one of them at an end of a range, the compiler refuses it as it did.
pub(super) fn ascii(expression: &str) -> String {
    let mut out = String::with_capacity(expression.len());
    // Of each class that is open, whether it excludes.
    let mut open: Vec<bool> = Vec::new();
    let mut rest = expression.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\\' => match (rest.next(), open.last()) {
                (Some('d'), None) => out.extend(["[", DIGITS, "]"]),
                (Some('w'), None) => out.extend(["[", LETTERS, "]"]),
                (Some(c @ ('d' | 'w')), Some(_)) if !open.contains(&true) && !ends_a_range(&out, &rest) => {
                    out.push_str(if c == 'd' { DIGITS } else { LETTERS });
                }
                (next, _) => out.extend(['\\'].into_iter().chain(next)),
            },
            '[' => {
                out.push('[');
                let excludes = rest.next_if_eq(&'^');
                out.extend(excludes);
                open.push(excludes.is_some());
                // The first of a class does not close it.
                out.extend(rest.next_if_eq(&']'));
            }
            ']' => {
                open.pop();
                out.push(']');
            }
            c => out.push(c),
        }
    }
    out
}

/// Whether what stands between these would be an end of a range.
fn ends_a_range(before: &str, after: &Peekable<Chars<'_>>) -> bool {
    let opens = ["[-", "[^-"].iter().any(|open| before.ends_with(open));
    let after: String = after.clone().take(2).collect();
    before.ends_with('-') && !opens || after.starts_with('-') && after != "-]"
}

/// The same of a schema's expressions.
pub(super) fn ascii_patterns(schema: &mut Map<String, Value>) {
    if let Some(Value::String(pattern)) = schema.get_mut("pattern") {
        *pattern = ascii(pattern);
    }
    if let Some(Value::Object(named)) = schema.get_mut("patternProperties") {
        *named = std::mem::take(named).into_iter().map(|(name, value)| (ascii(&name), value)).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_and_letters_are_those_of_ascii() {
        for (expression, expected) in [
            (r"^\d{3}-\w+$", r"^[0-9]{3}-[0-9A-Za-z_]+$"),
            (r"[\d.-]\.\\d", r"[0-9.-]\.\\d"),
            (r"[^\d\]]\D[]\d]", r"[^\d\]]\D[]0-9]"),
            (r"[a-z&&[^\w]][\w]\", r"[a-z&&[^\w]][0-9A-Za-z_]\"),
            (r"[+-\d][.-\w][\w-~]", r"[+-\d][.-\w][\w-~]"),
            (r"[-\d][\d-][\d\w]", r"[-0-9][0-9-][0-90-9A-Za-z_]"),
            ("ä(b|[c])", "ä(b|[c])"),
        ] {
            assert_eq!(ascii(expression), expected, "{expression}");
        }
    }
}
