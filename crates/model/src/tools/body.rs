//! One call, in whichever way a family of models writes it, read as it comes.

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

impl Body {
    /// What a character may begin where a call may begin.
    pub(super) fn begun_by(c: char, format: ToolFormat) -> Option<Self> {
        match (format, c) {
            (format, '<') if format.is_tagged() => Some(Body::Tagged(Tagged::default())),
            (ToolFormat::Olmo, c) => {
                (c.is_ascii_alphabetic() || c == '_').then(|| Body::Python(Python::default()))
            }
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

    /// What was read, if it was not known to be a call.
    pub(super) fn into_raw(self) -> String {
        match self {
            Body::Object(object) => object.into_raw(),
            Body::Tagged(tagged) => tagged.into_raw(),
            Body::Python(python) => python.into_raw(),
        }
    }
}
