//! An answer as blocks, one after the other: thoughts, text, calls. So the newer endpoints show it.

use super::reading::{Read, Reading};
use super::response::call_seed;
use super::{Choice, Generate, Meta};
use crate::output::FinishReason;
use crate::tools::{Part, ToolFormat};

/// What a block is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// What the model thinks.
    Thought,
    /// What it says.
    Text,
    /// A call of a tool; its text is the arguments, a piece of JSON.
    Call {
        /// By which its result will name it.
        id: String,
        /// The tool's.
        name: String,
    },
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) kind: Kind,
    pub(super) text: String,
    /// The answer ends inside it.
    pub(super) is_cut: bool,
}

/// What becomes of blocks while an answer comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// One begins, empty.
    Opens(Kind),
    /// More of its text.
    Grows(String),
    /// It is whole.
    Closes(Block),
}

/// Cuts one answer into blocks.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    reading: Reading,
    open: Option<Block>,
    format: Option<ToolFormat>,
    meta: Meta,
    /// There are calls, and none of them is cut so far.
    pub(super) has_called: bool,
}

impl Blocks {
    pub(super) fn new(request: &Generate, meta: &Meta) -> Self {
        Blocks {
            reading: Reading::new(request),
            open: None,
            format: request.calls.as_ref().map(|calls| calls.format),
            meta: meta.clone(),
            has_called: false,
        }
    }

    /// Reads on. `end`: this is the last piece, and the last block is closed behind it, whole or not.
    pub(super) fn push(&mut self, text: &str, end: Option<FinishReason>) -> Vec<Step> {
        let Read { thought, parts, has_called } = self.reading.push(text, end.is_some());
        self.has_called = has_called;
        let mut steps = Vec::new();
        if !thought.is_empty() {
            self.grow(Kind::Thought, thought, &mut steps);
        }
        for part in parts {
            match part {
                Part::Text(text) => self.grow(Kind::Text, text, &mut steps),
                Part::Call { index, name } => self.begin(self.call(index, name), &mut steps),
                Part::Arguments { text, .. } => self.add(text, &mut steps),
            }
        }
        if let Some(reason) = end {
            let is_call = self.open.as_ref().is_some_and(|open| matches!(open.kind, Kind::Call { .. }));
            let is_cut = if is_call { self.reading.is_within_call() } else { reason != FinishReason::Stop };
            self.close(is_cut, &mut steps);
        }
        steps
    }

    fn call(&self, index: usize, name: String) -> Kind {
        let id = self.format.map(|format| format.call_id(&call_seed(&self.meta, 0, index)));
        Kind::Call { id: id.unwrap_or_default(), name }
    }

    /// Adds to a block of this kind: a new one, unless one is open.
    fn grow(&mut self, kind: Kind, text: String, steps: &mut Vec<Step>) {
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            self.begin(kind, steps);
        }
        self.add(text, steps);
    }

    fn begin(&mut self, kind: Kind, steps: &mut Vec<Step>) {
        self.close(false, steps);
        steps.push(Step::Opens(kind.clone()));
        self.open = Some(Block { kind, text: String::new(), is_cut: false });
    }

    fn add(&mut self, text: String, steps: &mut Vec<Step>) {
        if let Some(open) = &mut self.open {
            open.text.push_str(&text);
            steps.push(Step::Grows(text));
        }
    }

    fn close(&mut self, is_cut: bool, steps: &mut Vec<Step>) {
        if let Some(block) = self.open.take() {
            steps.push(Step::Closes(Block { is_cut, ..block }));
        }
    }
}

/// The blocks of a whole answer, and whether it ends with calls that are whole.
pub(super) fn whole(request: &Generate, choice: &Choice, meta: &Meta) -> (Vec<Block>, bool) {
    let mut blocks = Blocks::new(request, meta);
    let steps = blocks.push(&choice.text, Some(choice.finish.reason));
    let closed = |step| match step {
        Step::Closes(block) => Some(block),
        _ => None,
    };
    (steps.into_iter().filter_map(closed).collect(), blocks.has_called)
}
