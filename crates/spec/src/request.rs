//! A request as policy sees it: counts and hashes, never tokens.

use crate::{BlockHash, Nanos, SeqId, Tokens};
use serde::{Deserialize, Serialize};

/// Whether a sequence may begin with KV that another one computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PrefixUse {
    /// It may, and its own blocks may serve others.
    Allowed,
    /// It must compute every position (prompt log-probabilities), and shares nothing.
    Forbidden,
}

/// One sequence to generate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Its name from now on.
    pub id: SeqId,
    /// When it came.
    pub arrival: Nanos,
    /// Tokens of its prompt, at least one.
    pub prompt: Tokens,
    /// At most this many tokens are generated, at least one.
    pub max_new: Tokens,
    /// One hash for every block that the prompt fills to the end, in order (may be empty: then nothing is reused).
    pub hashes: Vec<BlockHash>,
    /// Whether KV may be shared with others.
    pub prefix: PrefixUse,
}

impl Request {
    /// Positions whose KV it needs at most: the last token generated is never an input.
    pub fn kv_max(&self) -> Tokens {
        // No more than can be counted: a log may ask for anything, and what is so long is refused.
        Tokens(self.prompt.0.saturating_add(self.max_new.0)).saturating_sub(Tokens(1))
    }
}
