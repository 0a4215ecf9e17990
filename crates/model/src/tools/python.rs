//! One call, `name(key=value, ..)`, read as it comes. Values are Python's or JSON's.

use serde_json::Value;

use super::body::Step;
use super::{Calls, is_name_char, literal};

/// Most bytes of a name or key.
const NAME_BYTES: usize = 256;

/// A call that is being read.
#[derive(Clone, Debug, Default)]
pub(super) struct Python {
    /// All of it, until it is known to be a call.
    raw: String,
    place: Place,
    name: String,
    begun: bool,
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
struct Scan {
    depth: u32,
    quote: Option<char>,
    escape: bool,
}

impl Scan {
    /// Whether a character stands within something.
    fn push(&mut self, c: char) -> bool {
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
    /// What was read, if it was not known to be a call.
    pub(super) fn into_raw(self) -> String {
        if self.begun { String::new() } else { self.raw }
    }

    /// Takes the next character.
    pub(super) fn push(&mut self, c: char, calls: &Calls) -> Step {
        if !self.begun {
            self.raw.push(c);
        }
        let place = std::mem::take(&mut self.place);
        let (place, step) = match place {
            Place::Name => self.name(c, calls),
            Place::Key(key) => self.key(key, c),
            Place::Value { key, text, scan } => self.value(key, text, scan, c),
        };
        self.place = place;
        step
    }

    fn name(&mut self, c: char, calls: &Calls) -> (Place, Step) {
        let is_any = |name: &str| calls.tools.iter().any(|tool| tool.name.starts_with(name));
        if c == '(' && !self.name.is_empty() {
            return (Place::Key(String::new()), Step::Going);
        }
        self.name.push(c);
        let sound =
            self.name.len() <= NAME_BYTES && (self.name.chars().all(is_name_char) || is_any(&self.name));
        (Place::Name, if sound { Step::Going } else { Step::Broken })
    }

    fn key(&mut self, mut key: String, c: char) -> (Place, Step) {
        match c {
            c if c.is_whitespace() && key.is_empty() => (Place::Key(key), Step::Going),
            ')' if key.is_empty() => (Place::Key(key), self.end()),
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
        let before = if self.begun { ", " } else { "{" };
        let more = format!("{before}{}: {value}", Value::from(key));
        let step = match (c, self.begun) {
            (')', true) => Step::Last(more + "}"),
            (')', false) => Step::Whole(std::mem::take(&mut self.name), more + "}"),
            (_, true) => Step::Arguments(more),
            (_, false) => Step::Begun(self.name.clone(), more),
        };
        self.begun = true;
        (Place::Key(String::new()), step)
    }

    fn end(&mut self) -> Step {
        match std::mem::replace(&mut self.begun, true) {
            true => Step::Last("}".to_owned()),
            false => Step::Whole(std::mem::take(&mut self.name), "{}".to_owned()),
        }
    }
}
