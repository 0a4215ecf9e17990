//! The words of a grammar in Lark's syntax, cut as the compiler cuts them: what one of the two took for a part of a string
//! and the other did not would be hidden from whoever measures.

use serde_json::{Deserializer, Value};

/// What is of interest in a grammar's text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Word<'a> {
    /// Of a rule or a terminal.
    Name(&'a str),
    /// `%ignore` and the like, which begin a statement.
    Statement,
    /// `%lark`, before a grammar in braces.
    Lark,
    /// The schema after `%json`.
    Schema(Box<Value>),
    /// One of `:.&~()[]{}?*+`, and `=` for the two colons of a parameter.
    Mark(char),
    /// A regular expression of so many bytes.
    Expression(usize),
    /// JSON that cannot be read.
    Broken,
}

/// The rest of a text.
pub(super) struct Words<'a>(pub(super) &'a str);

impl<'a> Iterator for Words<'a> {
    type Item = Word<'a>;

    fn next(&mut self) -> Option<Word<'a>> {
        loop {
            let first = self.0.chars().next()?;
            let rest = &self.0[first.len_utf8()..];
            if let Some(end) = name(self.0) {
                let (name, rest) = self.0.split_at(end);
                return self.word(rest, Word::Name(name));
            }
            self.0 = match first {
                '"' => after_string(rest),
                '/' if rest.starts_with('/') => after_line(rest),
                '/' => {
                    let behind = after(rest, '/');
                    let word = Word::Expression((rest.len() - behind.len()).saturating_sub(1));
                    return self.word(behind.trim_start_matches(['i', 'm', 's', 'l', 'u', 'x']), word);
                }
                '#' => after_line(rest),
                '<' => rest.split_once('>').map_or("", |(_, rest)| rest),
                '@' => rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || "_-".contains(c)),
                '%' => match keyword(rest) {
                    (rest, Some(word)) => return self.word(rest, word),
                    (rest, None) => rest,
                },
                ':' if rest.starts_with(':') => return self.word(&rest[1..], Word::Mark('=')),
                ':' | '.' | '&' | '~' | '(' | ')' | '[' | ']' | '{' | '}' | '?' | '*' | '+' => {
                    return self.word(rest, Word::Mark(first));
                }
                _ => rest,
            };
        }
    }
}

impl<'a> Words<'a> {
    fn word(&mut self, rest: &'a str, word: Word<'a>) -> Option<Word<'a>> {
        self.0 = rest;
        Some(word)
    }
}

/// Where the name ends that a text begins with: `!?[_?]?[a-z][_a-z0-9-]*` or `_?[A-Z][_A-Z0-9-]*`. Small and capital letters
/// do not mix: `aB` is two names.
fn name(text: &str) -> Option<usize> {
    let text = text.as_bytes();
    let before = match text {
        [b'!', b'_' | b'?', ..] => 2,
        [b'!' | b'_' | b'?', ..] => 1,
        _ => 0,
    };
    let is_letter = match text.get(before)? {
        b'a'..=b'z' => u8::is_ascii_lowercase,
        b'A'..=b'Z' if matches!(text[..before], [] | [b'_']) => u8::is_ascii_uppercase,
        _ => return None,
    };
    let goes_on = |c: &&u8| is_letter(c) || c.is_ascii_digit() || matches!(c, b'_' | b'-');
    Some(before + text[before..].iter().take_while(goes_on).count())
}

/// What is after the percent sign and its word, which brings a word of its own if it is of interest.
fn keyword(text: &str) -> (&str, Option<Word<'_>>) {
    const STATEMENTS: [&str; 4] = ["ignore", "import", "override", "declare"];
    if let Some(rest) = text.strip_prefix("json") {
        return json(rest, |value| Some(Word::Schema(Box::new(value))));
    }
    if let Some(rest) = text.strip_prefix("regex") {
        return json(rest, |_| None);
    }
    if let Some(rest) = text.strip_prefix("llguidance") {
        return json(rest, |_| Some(Word::Statement));
    }
    if let Some(rest) = text.strip_prefix("lark") {
        return (rest, Some(Word::Lark));
    }
    match STATEMENTS.iter().find_map(|word| text.strip_prefix(word)) {
        Some(rest) => (rest, Some(Word::Statement)),
        None => (text.strip_prefix("if").unwrap_or(text), None),
    }
}

/// The value of JSON that a text begins with made into a word, and what is after it.
fn json<'a>(text: &'a str, word: impl FnOnce(Value) -> Option<Word<'a>>) -> (&'a str, Option<Word<'a>>) {
    let mut values = Deserializer::from_str(text).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) => (&text[values.byte_offset()..], word(value)),
        _ => ("", Some(Word::Broken)),
    }
}

/// After a string and its flag.
fn after_string(text: &str) -> &str {
    let rest = after(text, '"');
    rest.strip_prefix('i').unwrap_or(rest)
}

/// After the next `end` that has no backslash before it.
fn after(text: &str, end: char) -> &str {
    let mut characters = text.char_indices();
    while let Some((at, c)) = characters.next() {
        if c == '\\' {
            characters.next();
        } else if c == end {
            return &text[at + 1..];
        }
    }
    ""
}

fn after_line(text: &str) -> &str {
    text.find('\n').map_or("", |at| &text[at..])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(text: &str) -> String {
        let name = |word| if let Word::Name(name) = word { Some(name) } else { None };
        Words(text).filter_map(name).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn names_are_cut_as_the_compiler_cuts_them() {
        for (text, expected) in [
            ("r1R r2Z-a _x _X !?a ?b aBc", "r1 R r2 Z- a _x _X !?a ?b a B c"),
            ("\"a\\\"b\"ic \"d\"e /f\\/g/isxh", "c e h"),
            ("a // b \"\nc # d \"\ne", "a c e"),
            ("<\">a<\">b <|c|>d", "a b d"),
            ("@abc-D d a::_ b.3 c", "d a b c"),
            ("%regex {\"substring_chars\": \"a\\\"b\"}c %if true(d)", "c true d"),
            ("%json {\"a\": [\"{\"]}b %ignore C", "b C"),
        ] {
            assert_eq!(names(text), expected, "{text}");
        }
    }

    #[test]
    fn schemas_are_read_wherever_they_stand() {
        let words: Vec<Word> = Words("a: %json{\"b\": 1} %lark { %json true }").collect();
        let schema = |value: Value| Word::Schema(Box::new(value));
        assert_eq!(words[2], schema(json!({"b": 1})));
        assert_eq!(words[3..], [Word::Lark, Word::Mark('{'), schema(json!(true)), Word::Mark('}')]);
        for broken in ["%json {", "%json", "%regex x", "%llguidance [1e999]"] {
            assert_eq!(Words(broken).last(), Some(Word::Broken), "{broken}");
        }
    }
}
