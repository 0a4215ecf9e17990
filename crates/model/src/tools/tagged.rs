//! One call, `<function=name><parameter=key>value</parameter>..</function>`, read as it comes. Values are texts as they are: of
//! which type each is, the tool's schema says.

use serde_json::Value;

use super::body::{Draft, Step};
use super::python::Scan;
use super::types::{Types, as_json};
use super::{Calls, NAME_BYTES};

pub(super) const FUNCTION: &str = "<function=";
pub(super) const PARAMETER: &str = "<parameter=";
pub(super) const END_OF_PARAMETER: &str = "</parameter>";
pub(super) const END: &str = "</function>";

/// A call that is being read.
#[derive(Clone, Debug, Default)]
pub(super) struct Tagged {
    pub(super) draft: Draft,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    /// In the beginning of a tag.
    Tag(String),
    Name,
    /// Where a tag may begin.
    Between,
    Key(String),
    Value(Text),
}

impl Default for Place {
    fn default() -> Self {
        Place::Tag(String::new())
    }
}

/// A value that is being read.
#[derive(Clone, Debug, Default)]
struct Text {
    types: Types,
    /// All of it; of a text, what is not told yet.
    read: String,
    /// What may begin the end.
    held: String,
    /// What stands open in it, if it is no text.
    scan: Scan,
    /// A line break comes next, if any, which is no part of it.
    fresh: bool,
}

impl Tagged {
    /// The call whose first tag has been read up to its name.
    pub(super) fn named() -> Self {
        Tagged { draft: Draft::behind(FUNCTION), place: Place::Name }
    }

    /// Takes the next character.
    pub(super) fn push(&mut self, c: char, calls: &Calls) -> Step {
        self.draft.read(c);
        let place = std::mem::replace(&mut self.place, Place::Between);
        let (place, step) = match place {
            Place::Name => self.in_name(c),
            Place::Between if c.is_whitespace() => (Place::Between, Step::Going),
            Place::Between => self.tag(String::new(), c),
            Place::Tag(tag) => self.tag(tag, c),
            Place::Key(key) => self.key(key, c, calls),
            Place::Value(text) => value(text, c),
        };
        self.place = place;
        if matches!(step, Step::Arguments(_)) {
            self.draft.told();
        }
        step
    }

    fn in_name(&mut self, c: char) -> (Place, Step) {
        if c == '>' && !self.draft.name.is_empty() {
            return (Place::Between, Step::Going);
        }
        self.draft.name.push(c);
        let sound = !"<>\n".contains(c) && self.draft.name.len() <= NAME_BYTES;
        (Place::Name, if sound { Step::Going } else { Step::Broken })
    }

    fn tag(&mut self, mut tag: String, c: char) -> (Place, Step) {
        tag.push(c);
        let expected: &[&str] = if self.draft.name.is_empty() { &[FUNCTION] } else { &[PARAMETER, END] };
        match &*tag {
            FUNCTION if self.draft.name.is_empty() => (Place::Name, Step::Going),
            PARAMETER if !self.draft.name.is_empty() => (Place::Key(String::new()), Step::Going),
            END if !self.draft.name.is_empty() => (Place::Between, self.draft.end(String::new())),
            tag if expected.iter().any(|whole| whole.starts_with(tag)) => {
                (Place::Tag(tag.to_owned()), Step::Going)
            }
            // It is a call all the same, and what comes may close it, or be the next.
            _ if self.draft.begun => (Place::Between, Step::Early(tag)),
            _ => (Place::Between, Step::Broken),
        }
    }

    fn key(&mut self, mut key: String, c: char, calls: &Calls) -> (Place, Step) {
        if c != '>' {
            key.push(c);
            let step = if c == '\n' || key.len() > NAME_BYTES { Step::Broken } else { Step::Going };
            return (Place::Key(key), step);
        }
        let types = calls.tool(&self.draft.name).map_or_else(Types::default, |tool| tool.types_of(&key));
        let quote = if types.is_text() { "\"" } else { "" };
        let more = self.draft.key(&key) + quote;
        let text = Text { types, fresh: true, ..Text::default() };
        (Place::Value(text), self.draft.more(more))
    }
}

/// The next character of a value: a text is told as it comes, anything else when it is whole.
fn value(mut text: Text, c: char) -> (Place, Step) {
    if std::mem::take(&mut text.fresh) && c == '\n' {
        return (Place::Value(text), Step::Going);
    }
    text.held.push(c);
    let sure = sure(&text.held);
    text.take(sure);
    if text.held.trim_start_matches('\n') == END_OF_PARAMETER && !text.is_quoted() {
        let told = match text.types.is_text() {
            true => escaped(&text.read) + "\"",
            false => as_json(&text.read, &text.types),
        };
        return (Place::Between, Step::Arguments(told));
    }
    let told = if text.types.is_text() { escaped(&std::mem::take(&mut text.read)) } else { String::new() };
    let step = if told.is_empty() { Step::Going } else { Step::Arguments(told) };
    (Place::Value(text), step)
}

impl Text {
    /// So many bytes of what may have been its end are of it.
    fn take(&mut self, sure: usize) {
        let is_text = self.types.is_text();
        for c in self.held.drain(..sure) {
            if !is_text {
                self.scan.push(c);
            }
            self.read.push(c);
        }
    }

    /// Whether a text within a list or an object is open: what looks like the end is in it.
    fn is_quoted(&self) -> bool {
        self.scan.is_quoted() && self.read.trim_start().starts_with(['[', '{'])
    }
}

/// Bytes at a text's beginning that are no part of what ends a value: the rest may begin that, with the line break before it.
fn sure(text: &str) -> usize {
    let may_end = |text: &str| {
        END_OF_PARAMETER.starts_with(text)
            || text.strip_prefix('\n').is_some_and(|text| END_OF_PARAMETER.starts_with(text))
    };
    text.char_indices().map(|(at, _)| at).find(|&at| may_end(&text[at..])).unwrap_or(text.len())
}

/// As it stands in a text of JSON.
fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
