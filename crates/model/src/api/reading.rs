//! Tells an answer's thoughts, its text and its calls apart, as they come.

use super::Generate;
use crate::thoughts::{Apart, Split};
use crate::tools::{CallParser, Part};

/// How far one answer has been read.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    /// Where there may be thoughts.
    split: Option<Split>,
    /// Where there may be tool calls.
    parser: Option<CallParser>,
    /// Whether the client is told the thoughts.
    tells: bool,
}

/// What came of a new piece of text.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// Thoughts come before the rest.
    pub(super) thought: String,
    /// Text to show, and pieces of calls.
    pub(super) parts: Vec<Part>,
    /// There are calls, and none of them is cut here.
    pub(super) has_called: bool,
}

impl Reading {
    pub(super) fn new(request: &Generate) -> Self {
        Reading {
            split: request.thoughts.as_ref().map(|thoughts| thoughts.split()),
            parser: request.calls.as_ref().map(|calls| calls.parser()),
            tells: request.tells_thoughts(),
        }
    }

    /// Whether all text that is to come is shown as it is.
    pub(super) fn is_plain(&self) -> bool {
        self.parser.is_none() && self.split.as_ref().is_none_or(Split::is_in_answer)
    }

    /// Whether a call has begun and not ended.
    pub(super) fn is_within_call(&self) -> bool {
        self.parser.as_ref().is_some_and(CallParser::is_within_call)
    }

    /// Reads on. `ends`: this is the last piece.
    pub(super) fn push(&mut self, text: &str, ends: bool) -> Read {
        let Apart { mut thought, text } = self.apart(text, ends);
        if !self.tells {
            thought.clear();
        }
        let Some(parser) = &mut self.parser else {
            let parts = if text.is_empty() { vec![] } else { vec![Part::Text(text)] };
            return Read { thought, parts, has_called: false };
        };
        let mut parts = parser.push(&text);
        if ends {
            parts.extend(parser.finish());
        }
        let has_called = parser.n_calls() > 0 && !parser.is_within_call();
        Read { thought, parts, has_called }
    }

    fn apart(&mut self, text: &str, ends: bool) -> Apart {
        let Some(split) = &mut self.split else {
            return Apart { text: text.to_owned(), ..Apart::default() };
        };
        let mut apart = split.push(text);
        if ends {
            split.finish(&mut apart);
        }
        apart
    }
}
