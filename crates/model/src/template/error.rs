//! What can be wrong with a chat template or with what it is given.

use std::path::PathBuf;

/// Why a conversation could not be rendered.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The model publishes no template.
    #[error("this model has no chat template; use plain completions, or give one")]
    Missing,
    /// There is no template of that name.
    #[error("no chat template named `{name}`; there are: {known}")]
    Unnamed {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A template's file could not be read.
    #[error("cannot read {path}: {why}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said, or what is wrong with the text.
        why: String,
    },
    /// The template is longer than any published one.
    #[error("chat template of {found} bytes; at most {limit}")]
    TooLong {
        /// Bytes found.
        found: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The template is not Jinja, or fails on this conversation.
    #[error("the chat template fails: {0}")]
    Jinja(String),
    /// The template refuses the conversation (`raise_exception`).
    #[error("the chat template refuses this conversation: {0}")]
    Refused(String),
    /// The template works too long, too deep or writes too much.
    #[error("the chat template exceeds a limit: {0}")]
    Limit(String),
    /// There is nothing to answer.
    #[error("messages: there are no messages, and a conversation has one at the least")]
    Empty,
    /// A message is not one.
    #[error("messages[{index}]: {why}")]
    Message {
        /// Which.
        index: usize,
        /// What is wrong with it.
        why: String,
    },
}
