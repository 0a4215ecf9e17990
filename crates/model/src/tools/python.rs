//! One call, `name(key=value, ..)`, read as it comes. Values are Python's or JSON's.

use super::body::{Draft, Step};
use super::{Calls, NAME_BYTES, is_name_char, literal};

/// A call that is being read.
#[derive(Clone, Debug, Default)]
pub(super) struct Python {
    pub(super) draft: Draft,
    place: Place,
}

#[derive(Clone, Debug, Default)]
enum Place {
    #[default]
    Name,
    Key(String),
    Value {
        key: String,
        text: String,
        scan: Scan,
    },
}

/// What stands open in a value.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scan {
    depth: u32,
    quote: Option<char>,
    escape: bool,
}

impl Scan {
    pub(super) fn is_quoted(&self) -> bool {
        self.quote.is_some()
    }

    /// Whether a character stands within something.
    pub(super) fn push(&mut self, c: char) -> bool {
        match (self.quote, c) {
            (Some(_), _) if std::mem::take(&mut self.escape) => true,
            (Some(_), '\\') => {
                self.escape = true;
                true
            }
            (Some(quote), c) => {
                self.quote = Some(quote).filter(|&quote| quote != c);
                true
            }
            (None, '"' | '\'') => {
                self.quote = Some(c);
                true
            }
            (None, '(' | '[' | '{') => {
                self.depth += 1;
                true
            }
            (None, ')' | ']' | '}') if self.depth > 0 => {
                self.depth -= 1;
                true
            }
            _ => self.depth > 0,
        }
    }
}

impl Python {
    /// Takes the next character.
    pub(super) fn push(&mut self, c: char, calls: &Calls) -> Step {
        self.draft.read(c);
        let place = std::mem::take(&mut self.place);
        let (place, step) = match place {
            Place::Name => self.in_name(c, calls),
            Place::Key(key) => self.key(key, c),
            Place::Value { key, text, scan } => self.value(key, text, scan, c),
        };
        self.place = place;
        step
    }

    fn in_name(&mut self, c: char, calls: &Calls) -> (Place, Step) {
        let is_any = |name: &str| calls.tools.iter().any(|tool| tool.name.starts_with(name));
        let name = &mut self.draft.name;
        if c == '(' && !name.is_empty() {
            return (Place::Key(String::new()), Step::Going);
        }
        name.push(c);
        let sound = name.len() <= NAME_BYTES && (name.chars().all(is_name_char) || is_any(name));
        (Place::Name, if sound { Step::Going } else { Step::Broken })
    }

    fn key(&mut self, mut key: String, c: char) -> (Place, Step) {
        match c {
            c if c.is_whitespace() && key.is_empty() => (Place::Key(key), Step::Going),
            ')' if key.is_empty() => (Place::Key(key), self.draft.end(String::new())),
            '=' if !key.is_empty() => {
                let key = key.trim_end().to_owned();
                (Place::Value { key, text: String::new(), scan: Scan::default() }, Step::Going)
            }
            c if !"=,()\"'\n".contains(c) => {
                key.push(c);
                let step = if key.len() > NAME_BYTES { Step::Broken } else { Step::Going };
                (Place::Key(key), step)
            }
            _ => (Place::Key(key), Step::Broken),
        }
    }

    fn value(&mut self, key: String, mut text: String, mut scan: Scan, c: char) -> (Place, Step) {
        if scan.push(c) || !",)".contains(c) {
            text.push(c);
            return (Place::Value { key, text, scan }, Step::Going);
        }
        let Some(value) = literal::to_json(&text) else { return (Place::default(), Step::Broken) };
        let more = self.draft.key(&key) + &value;
        let step = if c == ')' { self.draft.end(more) } else { self.draft.more(more) };
        (Place::Key(String::new()), step)
    }
}
