//! OpenAI's request and response bodies, for the batch runner and the server alike: pure functions,
//! to which time and ids are given.

mod batch;
mod blocks;
mod chat;
mod check;
mod completion;
mod echo;
mod error;
mod events;
mod fields;
mod format;
mod logprobs;
mod messages;
mod names;
mod plain;
mod reading;
mod request;
mod response;
mod responses;
pub mod schema;
mod stream;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_fields;
#[cfg(test)]
mod tests_of_thoughts;
#[cfg(test)]
mod tests_of_tools;
mod text;
mod thoughts;
mod timings;
mod tokenize;
mod tools;
mod truncation;
mod turns;
mod unknown;
mod values;
mod words;

pub use batch::{ANSWER_ID, BatchLine, batch_output};
pub use chat::{MAX_MESSAGES, chat};
pub use completion::completion;
pub use error::ApiError;
pub use events::Events;
pub use messages::{count_tokens, messages};
pub use request::{Delivery, Endpoint, Generate, MAX_CHOICES, MAX_PROMPTS};
pub use response::{Choice, Meta, counts, response};
pub use responses::{Kept, input_tokens, responses};
pub use stream::{Chunks, News};
pub use timings::Timings;
pub use tokenize::{detokenize, tokenize};
pub use tools::MAX_TOOLS;
pub use unknown::UnknownFields;
pub use values::{VALUE_BYTES, values};

use crate::sampling::{GenerationConfig, Limits};
use crate::template::{ChatTemplate, SpecialTexts, WallClock};
use crate::thoughts::Manner;
use crate::tokenizer::Tokenizer;

/// Whether answers can be sent in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streaming {
    /// By a server.
    Offered,
    /// In a batch a request for it is an error.
    Refused,
}

/// Whether a conversation may bring the template that it is rendered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnTemplates {
    /// The model's is used, and no other.
    Refused,
    /// It may, within the limits that all templates have.
    Taken,
}

/// What requests are read against.
#[derive(Clone, Debug)]
pub struct Context<'a> {
    /// Of the model.
    pub tokenizer: &'a Tokenizer,
    /// For chats; without one they are refused.
    pub template: Option<&'a ChatTemplate>,
    /// For chats with tools, where the model has one of their own.
    pub tool_template: Option<&'a ChatTemplate>,
    /// Texts of the special tokens, for templates.
    pub special: SpecialTexts,
    /// The publisher's defaults.
    pub generation: &'a GenerationConfig,
    /// Names that the model is served under, the first is the usual one.
    pub served: &'a [String],
    /// Ids of the model are below this.
    pub vocab_size: usize,
    /// Tokens that prompt and answer may have together.
    pub context_len: usize,
    /// Log-probabilities per token that may be asked for.
    pub max_logprobs: u32,
    /// Whether requests may bring templates.
    pub own_templates: OwnTemplates,
    /// What becomes of thoughts where a request does not say.
    pub thoughts: Manner,
    /// Whether streams are offered.
    pub streaming: Streaming,
    /// What templates see as the date.
    pub now: WallClock,
}

impl Context<'_> {
    /// Whether all templates take what the system says in the middle of a conversation.
    fn takes_system_later(&self) -> bool {
        [self.template, self.tool_template].into_iter().flatten().all(ChatTemplate::takes_system_later)
    }

    fn limits(&self) -> Limits {
        Limits { vocab_size: self.vocab_size as u32, max_logprobs: self.max_logprobs }
    }
}
