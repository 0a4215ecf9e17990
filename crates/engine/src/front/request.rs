//! What is asked of the engine, and what it answers.

use std::time::Instant;

use model::sampling::{SampleError, SamplingParams, TokenLogprobs};
use policy::sched::Why;

use crate::words::counted;

/// One sequence to generate.
#[derive(Clone, Debug)]
pub struct Request {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// How tokens are chosen and when to stop (stop strings are the caller's: the engine sees no text).
    pub params: SamplingParams,
    /// Seed where the parameters have none.
    pub seed: u64,
    /// Requests with different salts never share KV.
    pub salt: u128,
}

/// What comes of a request, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It is part of a step for the first time.
    Began(Began),
    /// Log-probability of the prompt's token at this position, given those before; from position 1 on.
    Prompt(usize, TokenLogprobs),
    /// The next token.
    Token(Token),
    /// Nothing more follows.
    Finished(Finish),
    /// Nothing more follows, and it went wrong.
    Failed(Failure),
}

/// Who is told what comes of a request, in order. It is called on the threads that compute: it must not block.
pub type Sink = Box<dyn FnMut(Event) + Send>;

/// The beginning of a sequence's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Began {
    /// When its first step was handed to the lanes.
    pub at: Instant,
    /// Tokens of its prompt whose KV was in memory already.
    pub cached_tokens: usize,
}

/// A generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Which.
    pub id: u32,
    /// When it was drawn.
    pub at: Instant,
    /// Present if asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It drew an end-of-sequence or stop token, which was its last.
    Stop,
    /// It has as many tokens as it may.
    Length,
}

/// Why a request came to nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The prompt is longer than a sequence may be.
    #[error("the prompt has {}, and {}", counted(*prompt, "token"), shorter(*prompt, *max, *positions))]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Longest sequence, one generated token included.
        max: usize,
        /// The longest that the model itself can read.
        positions: usize,
    },
    /// The prompt names a token that the model does not have.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The scheduler will not serve it.
    #[error(transparent)]
    Refused(#[from] Why),
    /// The model's output made no sense.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// What it has on the drive could not be read or written; others go on.
    #[error(
        "its KV or activations are lost: {0}; send it again, and if that fails too, see to that drive, \
         or name a folder on another with --offload-dir"
    )]
    Drive(String),
    /// The engine is dead.
    #[error("the engine stopped: {0}")]
    Engine(String),
}

/// What a prompt that is too long has to keep to. No flag makes a model read more than it can.
fn shorter(prompt: usize, max: usize, positions: usize) -> String {
    if prompt >= positions {
        return format!("this model can read {positions}, its answer among them: shorten the prompt");
    }
    format!("a sequence may have {max}: shorten it, or raise --max-model-len (to {positions} at most)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_that_is_too_long_is_told_what_helps() {
        let told = |prompt| Failure::TooLong { prompt, max: 64, positions: 512 }.to_string();
        assert!(
            told(100)
                .ends_with("a sequence may have 64: shorten it, or raise --max-model-len (to 512 at most)")
        );
        let own = told(512);
        assert!(own.ends_with("this model can read 512, its answer among them: shorten the prompt"), "{own}");
    }
}
