//! Which grammars a text in Lark's syntax has, which definitions each of them, and what they name.

use serde_json::Value;

use super::words::{Word, Words};
use crate::grammar::GrammarError;

/// A definition: what it is called, and what it names, as often as it does.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Definition<'a> {
    /// Empty for a statement.
    pub(super) name: &'a str,
    pub(super) names: Vec<&'a str>,
    /// How many groups are in one another.
    pub(super) groups: usize,
    /// What may be there or be repeated, and every fourth byte of expressions.
    pub(super) parts: u64,
}

/// A grammar's definitions. What is no grammar has something too, which the compiler refuses.
pub(super) type Grammar<'a> = Vec<Definition<'a>>;

/// What a text comes to.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Outline<'a> {
    /// The grammar, and each that another has in braces: its names are its own.
    pub(super) grammars: Vec<Grammar<'a>>,
    pub(super) schemas: Vec<Value>,
    /// Intersections and complements.
    pub(super) products: usize,
    /// Bytes of each regular expression.
    pub(super) expressions: Vec<usize>,
}

/// A grammar that goes on.
#[derive(Default)]
struct Open<'a> {
    grammar: Grammar<'a>,
    braces: usize,
    groups: usize,
}

/// Reads a grammar.
///
/// # Errors
/// [`GrammarError::Invalid`]: JSON that cannot be read, after which nothing is certain.
pub(super) fn outline(text: &str) -> Result<Outline<'_>, GrammarError> {
    let words: Vec<Word> = Words(text).collect();
    let (mut outline, mut open, mut at) = (Outline::default(), vec![Open::default()], 0);
    while let Some(word) = words.get(at) {
        let is_nested = open.len() > 1;
        let Some(inner) = open.last_mut() else { break };
        at += 1;
        match word {
            Word::Name(name) => match body(&words[at..]) {
                Some(header) => {
                    inner.define(name);
                    at += header;
                }
                None => inner.name(name),
            },
            Word::Statement => inner.define(""),
            Word::Lark if words.get(at) == Some(&Word::Mark('{')) => {
                at += 1;
                open.push(Open::default());
            }
            Word::Mark('}') if is_nested && inner.braces == 0 => {
                outline.grammars.extend(open.pop().map(|open| open.grammar));
            }
            Word::Mark('&' | '~') => outline.products += 1,
            Word::Mark(mark) => inner.mark(*mark),
            Word::Expression(bytes) => {
                outline.expressions.push(*bytes);
                inner.has(*bytes as u64 / 4);
            }
            Word::Schema(schema) => outline.schemas.push(Value::clone(schema)),
            Word::Broken => return Err(GrammarError::Invalid("it has JSON that cannot be read".to_owned())),
            Word::Lark => {}
        }
    }
    outline.grammars.extend(open.into_iter().rev().map(|open| open.grammar));
    Ok(outline)
}

impl<'a> Open<'a> {
    fn define(&mut self, name: &'a str) {
        self.groups = 0;
        let name = name.trim_start_matches('!').trim_start_matches('?');
        self.grammar.push(Definition { name, ..Definition::default() });
    }

    fn name(&mut self, name: &'a str) {
        if let Some(definition) = self.grammar.last_mut() {
            definition.names.push(name);
        }
    }

    fn has(&mut self, parts: u64) {
        if let Some(definition) = self.grammar.last_mut() {
            definition.parts += parts;
        }
    }

    fn mark(&mut self, mark: char) {
        match mark {
            '?' | '*' | '+' => self.has(1),
            '{' => self.braces += 1,
            '}' => self.braces = self.braces.saturating_sub(1),
            '(' | '[' => self.groups += 1,
            ')' | ']' => self.groups = self.groups.saturating_sub(1),
            _ => {}
        }
        if let Some(definition) = self.grammar.last_mut() {
            definition.groups = definition.groups.max(self.groups);
        }
    }
}

/// How many words are before the body of a definition, if these, after a name, are that: a parameter, a priority and
/// attributes may be before the colon.
fn body(words: &[Word]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += match words.get(at)? {
            Word::Mark(':') => return Some(at + 1),
            Word::Mark('=' | '.') => 1,
            Word::Mark('[') => 1 + attributes(&words[at + 1..])?,
            _ => return None,
        }
    }
}

/// How many words there are up to the bracket that ends them, which have no other.
fn attributes(words: &[Word]) -> Option<usize> {
    let at = words.iter().position(|word| matches!(word, Word::Mark('[' | ']')))?;
    (words[at] == Word::Mark(']')).then_some(at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each grammar's definitions, what they name, and their groups.
    fn shown(text: &str) -> Vec<String> {
        let one = |d: &Definition| format!("{}: {} {}", d.name, d.names.join(" "), d.groups);
        let all = outline(text).unwrap().grammars;
        all.iter().map(|all| all.iter().map(one).collect::<Vec<_>>().join("; ")).collect()
    }

    #[test]
    fn definitions_are_found_wherever_they_stand() {
        let text = "start: a B \"c: d\" /e: \\/ f/ // g: h\n# i: j\n  | a\na.3: B{2,3} B\n?b [x=1, y=\"]:\"] : ~/x/ & /y/\n\
                    %ignore /z/ C";
        assert_eq!(shown(text), ["start: a B a 0; a: B B 0; b:  0; : C 0"]);
        assert_eq!(outline(text).unwrap().products, 2);
        assert_eq!(
            shown("a[stop=/]\"/]: B\n!c: d [e (f)] \"]: g\"\nh::_: a::incr(_)"),
            ["a: B 0; c: d e f 2; h: a incr 1"]
        );
        assert_eq!(
            shown("a: b (c ((\nd: ("),
            ["a: b c 3; d:  1"],
            "groups that do not end, end with the rule"
        );
    }

    #[test]
    fn a_grammar_in_braces_has_names_of_its_own() {
        let text = "a: B{1,2} %lark { a: c{3} %lark { d: e } f\n } g\nh: i";
        assert_eq!(shown(text), ["d: e 0", "a: c f 0", "a: B g 0; h: i 0"]);
        assert_eq!(shown("a: } b"), ["a: b 0"]);
        assert_eq!(shown("a: %lark { b: c"), ["b: c 0", "a:  0"]);
        let schemas = outline("a: %lark { b: %json {\"c\": [1]} }\nd: %json true").unwrap().schemas;
        assert_eq!(schemas, [serde_json::json!({"c": [1]}), serde_json::json!(true)]);
    }
}
