//! How much a `tokenizer.json` holds, counted before anything is built from it: building takes a hundred times as long.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::TokenizerError;
use super::load::check_added;
use super::pieces::MAX_VOCAB;

/// The sizes of what takes long.
#[derive(Deserialize)]
pub(super) struct Outline {
    #[serde(default)]
    added_tokens: Vec<Added>,
    model: Option<Model>,
}

#[derive(Deserialize)]
struct Added {
    #[serde(default)]
    content: Option<String>,
}

#[derive(Deserialize)]
struct Model {
    #[serde(default)]
    vocab: Count,
}

/// Entries of an object or list; 0 of anything else.
#[derive(Clone, Copy, Default)]
struct Count(usize);

impl Outline {
    /// Counts; what else may be wrong with the file is for its reader to find.
    pub(super) fn of(json: &[u8]) -> Result<Outline, TokenizerError> {
        serde_json::from_slice(json).map_err(|e| TokenizerError::malformed("tokenizer.json", e))
    }

    /// Refuses what would take minutes and gigabytes.
    pub(super) fn check(&self) -> Result<(), TokenizerError> {
        let tokens = self.model.as_ref().map_or(0, |model| model.vocab.0);
        if tokens > MAX_VOCAB as usize {
            let why = format!("{tokens} tokens; at most {MAX_VOCAB} are read");
            return Err(TokenizerError::malformed("vocabulary", why));
        }
        let bytes = self.added_tokens.iter().flat_map(|added| &added.content).map(String::len).sum();
        check_added(self.added_tokens.len(), bytes)
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Count, D::Error> {
        deserializer.deserialize_any(Counting)
    }
}

struct Counting;

impl<'de> Visitor<'de> for Counting {
    type Value = Count;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a vocabulary")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Count, A::Error> {
        let mut count = 0;
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(Count(count))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Count, A::Error> {
        let mut count = 0;
        while entries.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(Count(count))
    }
}
