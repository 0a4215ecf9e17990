//! A tokenizer's vocabulary as llguidance reads it: a trie of bytes, special tokens apart, and one more id for
//! the end of text, since models have several or none.

use std::sync::Arc;

use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenizerEnv};

use crate::tokenizer::Tokenizer;

struct Vocabulary(TokTrie);

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        self.0.greedy_tokenize(bytes)
    }

    /// The model chooses how to cut its text.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

/// The vocabulary, with the end of text as its last id.
pub(super) fn of(tokenizer: &Tokenizer) -> TokEnv {
    let end = tokenizer.vocab_size() as u32;
    let marked = |text: &str| [&[TokTrie::SPECIAL_TOKEN_MARKER], text.as_bytes()].concat();
    let word = |id: u32| match tokenizer.is_special(id) {
        true => marked(&tokenizer.token(id).unwrap_or_default()),
        false => tokenizer.token_bytes(id).to_vec(),
    };
    let words: Vec<Vec<u8>> = (0..end).map(word).chain([marked("<|end of text|>")]).collect();
    Arc::new(Vocabulary(TokTrie::from(&TokRxInfo::new(end + 1, end), &words)))
}
