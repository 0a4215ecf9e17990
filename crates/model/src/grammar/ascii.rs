//! Expressions as JSON Schema means them (ECMA-262), in the syntax that the compiler reads, which is Rust's. `\d`, `\w` and `\s` are of
//! ASCII alone here: the compiler has digits, letters and spaces of all scripts. What is left of them are such texts for whoever reads
//! expressions the other way, too.

use std::iter::Peekable;
use std::str::Chars;

use serde_json::{Map, Value};

const DIGITS: &str = "0-9";
const LETTERS: &str = "0-9A-Za-z_";
const SPACES: &str = r"\t-\r ";

/// Whose syntax an expression has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Syntax {
    Rust,
    Ecma,
}

/// An expression with classes of ASCII for its `\d`, `\w` and `\s`. Within a class that excludes they exclude as much as before; where a
/// class has one of them at an end of a range, the compiler refuses it as it did.
pub(super) fn ascii(expression: &str) -> String {
    rewritten(expression, Syntax::Rust)
}

/// One of JSON Schema's.
pub(crate) fn ecma(expression: &str) -> String {
    rewritten(expression, Syntax::Ecma)
}

fn rewritten(expression: &str, syntax: Syntax) -> String {
    let mut out = String::with_capacity(expression.len());
    // Of each class that is open, whether it excludes.
    let mut open: Vec<bool> = Vec::new();
    let mut rest = expression.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\\' => match (rest.next(), open.last()) {
                (Some(c @ ('d' | 'w' | 's')), None) => out.extend(["[", of_ascii(c), "]"]),
                (Some(c @ ('d' | 'w' | 's')), Some(_))
                    if !open.contains(&true) && !ends_a_range(&out, &rest) =>
                {
                    out.push_str(of_ascii(c));
                }
                (Some(c), class) if syntax == Syntax::Ecma => escape(c, class.is_some(), &mut rest, &mut out),
                (next, _) => out.extend(['\\'].into_iter().chain(next)),
            },
            // Classes have no classes in them, and no operators.
            '[' if syntax == Syntax::Ecma && !open.is_empty() => out.push_str("\\["),
            '&' | '-' | '~' if syntax == Syntax::Ecma && !open.is_empty() && is_doubled(&out, c) => {
                out.extend(['\\', c]);
            }
            '[' => {
                out.push('[');
                let excludes = rest.next_if_eq(&'^');
                out.extend(excludes);
                open.push(excludes.is_some());
                if syntax == Syntax::Ecma && excludes.is_some() {
                    // A class that has every control character has quotes and backslashes for the compiler, whatever it says of them.
                    out.push_str("\\x00");
                    // No range of it and what follows.
                    out.push_str(rest.next_if_eq(&'-').map_or("", |_| "\\-"));
                }
                // The first of a class does not close it.
                if rest.next_if_eq(&']').is_some() {
                    out.push_str("\\]");
                }
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

fn of_ascii(class: char) -> &'static str {
    match class {
        'd' => DIGITS,
        'w' => LETTERS,
        _ => SPACES,
    }
}

/// Whether a character of a class stands behind another one, which is not escaped.
fn is_doubled(before: &str, c: char) -> bool {
    before.strip_suffix(c).is_some_and(|before| !before.ends_with('\\'))
}

/// What is escaped, where the compiler reads it otherwise or not at all.
fn escape(c: char, in_class: bool, rest: &mut Peekable<Chars<'_>>, out: &mut String) {
    match c {
        '<' | '>' => out.push(c),
        '0' if !rest.peek().is_some_and(char::is_ascii_digit) => out.push_str("\\x00"),
        'b' if in_class => out.push_str("\\x08"),
        'c' if rest.peek().is_some_and(char::is_ascii_alphabetic) => {
            let letter = rest.next().map_or(0, |letter| letter as u32 % 32);
            out.push_str(&format!("\\x{letter:02x}"));
        }
        c => out.extend(['\\', c]),
    }
}

/// Whether what stands between these would be an end of a range.
fn ends_a_range(before: &str, after: &Peekable<Chars<'_>>) -> bool {
    let opens = ["[-", "[^-"].iter().any(|open| before.ends_with(open));
    let after: String = after.clone().take(2).collect();
    before.ends_with('-') && !opens || after.starts_with('-') && after != "-]"
}

/// A schema's expressions, as the compiler reads them.
pub(super) fn patterns(schema: &mut Map<String, Value>) {
    if let Some(Value::String(pattern)) = schema.get_mut("pattern") {
        *pattern = ecma(pattern);
    }
    if let Some(Value::Object(named)) = schema.get_mut("patternProperties") {
        *named = std::mem::take(named).into_iter().map(|(name, value)| (ecma(&name), value)).collect();
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
            (r"[^\d\]]\D[]\d]", r"[^\d\]]\D[\]0-9]"),
            (r"[a-z&&[^\w]][\w]\", r"[a-z&&[^\w]][0-9A-Za-z_]\"),
            (r"[+-\d][.-\w][\w-~]", r"[+-\d][.-\w][\w-~]"),
            (r"[-\d][\d-][\d\w]", r"[-0-9][0-9-][0-90-9A-Za-z_]"),
            (r"\s[\s,][^\s]\S", r"[\t-\r ][\t-\r ,][^\s]\S"),
            ("ä(b|[c])", "ä(b|[c])"),
        ] {
            assert_eq!(ascii(expression), expected, "{expression}");
        }
    }
    #[test]
    fn expressions_of_schemas_are_read_as_ecma_reads_them() {
        for (expression, expected) in [
            (r#"^[^"]{1,5}\d$"#, r#"^[^\x00"]{1,5}[0-9]$"#),
            (r"^a[b]c[[a][^[\]][^]]$", r"^a[b]c[\[a][^\x00\[\]][^\x00\]]$"),
            (r"[a&&b][+--][~~~]&&--[\--a]", r"[a&\&b][+-\-][~\~~]&&--[\--a]"),
            (r"[^-a][^^-]", r"[^\x00\-a][^\x00^-]"),
            (r"\<\>\cJ\0[\b]\b\01\[", r"<>\x0a\x00[\x08]\b\01\["),
        ] {
            assert_eq!(rewritten(expression, Syntax::Ecma), expected, "{expression}");
        }
    }
}
