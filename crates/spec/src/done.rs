//! What came of a step: all that policy learns of the tokens.

use crate::{BlockHash, Kept, SeqId, StepId};
use serde::{Deserialize, Serialize};

/// What a chunk brought forth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Produced {
    /// No token: the chunk did not sample.
    Nothing,
    /// A token, and the sequence goes on.
    Token,
    /// A token, the last: the end of the sequence, a token to stop at, or the limit. (Whoever reads text cancels at a string.)
    Last,
    /// No token, and none will come: nothing that could come is allowed. What it computed is sound.
    Stuck,
    /// No token, and none will come: it went wrong, and nothing that it computed may serve others.
    Failed,
}

impl Produced {
    /// Whether there is a token more.
    pub fn is_token(self) -> bool {
        matches!(self, Produced::Token | Produced::Last)
    }
}

/// A block beyond the prompt's own hashes that became full, so that its KV can serve others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Full {
    /// Which block of the sequence, counted from 0.
    pub index: u32,
    /// Hash of its tokens and all before them.
    pub hash: BlockHash,
}

/// What came of one chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Whose.
    pub seq: SeqId,
    /// Whether it has a new token.
    pub produced: Produced,
    /// Blocks that became full in it and that hold generated tokens. (The prompt's hashes came with the request.)
    pub full: Vec<Full>,
}

/// A step is done: everything that it reads or writes is free of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Which.
    pub step: StepId,
    /// One for every chunk, in any order. A sequence that had finished before may be missing.
    pub outcomes: Vec<Outcome>,
    /// Copies of kept blocks that failed: of what was to be written nothing is known, and what was read may be unreadable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Kept>,
}

impl Done {
    /// A step in which nothing was lost.
    pub fn of(step: StepId, outcomes: Vec<Outcome>) -> Done {
        Done { step, outcomes, lost: Vec::new() }
    }
}
