//! One call, in whichever way a family of models writes it, read as it comes.

use serde_json::Value;

use super::object::CallObject;
use super::python::Python;
use super::tagged::Tagged;
use super::{Calls, ToolFormat};

/// A call that is being read.
#[derive(Clone, Debug)]
pub(super) enum Body {
    Object(CallObject),
    Tagged(Tagged),
    Python(Python),
}

/// What a character adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing yet.
    Going,
    /// It is a call, of this name; the arguments so far.
    Begun(String, String),
    /// One more character of its arguments.
    Argument(char),
    /// More of them.
    Arguments(String),
    /// It is whole.
    Done,
    /// It is whole, and these end its arguments.
    Last(String),
    /// Its end is missing, and this stands there.
    Early(String),
    /// It is whole, and a call of this name with these arguments.
    Whole(String, String),
    /// It is no call.
    Broken,
}

/// What is read of a call in a format that names the function before its arguments: known to be one by its first argument, or by its end.
#[derive(Clone, Debug, Default)]
pub(super) struct Draft {
    /// All of it, until it is known to be a call; then what came behind the last of its arguments.
    raw: String,
    /// Of the function.
    pub(super) name: String,
    /// It is known to be a call, and has arguments.
    pub(super) begun: bool,
}

impl Draft {
    /// Of which this has been read.
    pub(super) fn behind(raw: &str) -> Self {
        Draft { raw: raw.to_owned(), ..Draft::default() }
    }

    pub(super) fn read(&mut self, c: char) {
        self.raw.push(c);
    }

    /// What has been read belongs to an argument.
    pub(super) fn told(&mut self) {
        if self.begun {
            self.raw.clear();
        }
    }

    /// A key, and what stands around it in JSON, up to its value.
    pub(super) fn key(&self, key: &str) -> String {
        let before = if self.begun { ", " } else { "{" };
        format!("{before}{}: ", Value::from(key))
    }

    /// More arguments.
    pub(super) fn more(&mut self, arguments: String) -> Step {
        self.raw.clear();
        match std::mem::replace(&mut self.begun, true) {
            true => Step::Arguments(arguments),
            false => Step::Begun(self.name.clone(), arguments),
        }
    }

    /// The last arguments, if there are any more.
    pub(super) fn end(&mut self, last: String) -> Step {
        let opens = if self.begun || !last.is_empty() { "" } else { "{" };
        let last = format!("{opens}{last}}}");
        match std::mem::replace(&mut self.begun, true) {
            true => Step::Last(last),
            false => Step::Whole(self.name.clone(), last),
        }
    }

    /// What was read, if it was not known to be a call.
    fn into_raw(self) -> String {
        if self.begun { String::new() } else { self.raw }
    }
}

impl Body {
    /// What a character may begin where a call may begin.
    pub(super) fn begun_by(c: char, calls: &Calls) -> Option<Self> {
        match (calls.format, c) {
            (format, '<') if format.is_tagged() => Some(Body::Tagged(Tagged::default())),
            (ToolFormat::Olmo, c) => begins_name(c, calls).then(|| Body::Python(Python::default())),
            (_, '{') => Some(Body::Object(CallObject::default())),
            _ => None,
        }
    }

    /// Takes the next character.
    pub(super) fn push(&mut self, c: char, calls: &Calls) -> Step {
        match self {
            Body::Object(object) => {
                let strict = calls.format == ToolFormat::Llama3;
                object.push(c, &|name| !strict || calls.tool(name).is_some())
            }
            Body::Tagged(tagged) => tagged.push(c, calls),
            Body::Python(python) => python.push(c, calls),
        }
    }

    /// What makes the arguments of a call whole that goes wrong after it began, where anything does, and what was read behind them.
    pub(super) fn mended(&mut self) -> Option<(&'static str, String)> {
        match self {
            Body::Object(object) => object.is_argued().then(|| ("", String::new())),
            Body::Tagged(Tagged { draft, .. }) | Body::Python(Python { draft, .. }) => {
                draft.begun.then(|| ("}", std::mem::take(&mut draft.raw)))
            }
        }
    }

    /// What was read, if it was not known to be a call.
    pub(super) fn into_raw(self) -> String {
        match self {
            Body::Object(object) => object.into_raw(),
            Body::Tagged(tagged) => tagged.draft.into_raw(),
            Body::Python(python) => python.draft.into_raw(),
        }
    }
}

/// Whether a name may begin with a character: as Python has it, or as some tool has it.
pub(super) fn begins_name(c: char, calls: &Calls) -> bool {
    c.is_ascii_alphabetic() || c == '_' || calls.tools.iter().any(|tool| tool.name.starts_with(c))
}
