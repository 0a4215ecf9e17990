//! How much a `tokenizer.json` holds, counted before anything is built from it: building takes a hundred times as long.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::TokenizerError;
use super::load::check_added;
use super::pieces::MAX_VOCAB;

/// How many times as long text may become. Published tokenizers make a space three bytes, and put one before a text: twelve times.
const MAX_GROWTH: f64 = 256.0;
/// The same for a table of replacements: those of published tokenizers are made after NFKC, which makes 33 bytes of 3 at the most.
const TABLE_GROWTH: f64 = 12.0;

/// The sizes of what takes long.
#[derive(Deserialize)]
pub(super) struct Outline {
    #[serde(default)]
    added_tokens: Vec<Added>,
    model: Option<Model>,
    normalizer: Option<Step>,
    pre_tokenizer: Option<Step>,
    decoder: Option<Step>,
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

/// A step that text goes through, as far as it makes it longer.
#[derive(Deserialize)]
struct Step {
    #[serde(rename = "type")]
    kind: Option<String>,
    pattern: Option<Pattern>,
    content: Option<String>,
    prepend: Option<String>,
    /// Of a sequence.
    #[serde(default, alias = "pretokenizers", alias = "decoders")]
    normalizers: Vec<Step>,
}

#[derive(Deserialize)]
struct Pattern {
    /// A pattern without it is a regular expression.
    #[serde(rename = "String")]
    text: Option<String>,
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
        check_growth("normalizer", &[&self.normalizer, &self.pre_tokenizer])?;
        check_growth("decoder", &[&self.decoder])?;
        let bytes = self.added_tokens.iter().flat_map(|added| &added.content).map(String::len).sum();
        check_added(self.added_tokens.len(), bytes)
    }
}

/// Refuses steps that together make text longer than there is memory for.
fn check_growth(what: &'static str, steps: &[&Option<Step>]) -> Result<(), TokenizerError> {
    let growth: f64 = steps.iter().copied().flatten().map(Step::growth).product();
    if growth > MAX_GROWTH {
        let why = format!("it may make text {growth:.0} times as long; at most {MAX_GROWTH} times is read");
        return Err(TokenizerError::malformed(what, why));
    }
    Ok(())
}

impl Step {
    /// How many times as long it may make a text. What is put before a text weighs most where that is one byte.
    fn growth(&self) -> f64 {
        let own = match (&self.pattern, &self.content, &self.prepend) {
            (Some(pattern), Some(content), _) => pattern.growth(content),
            (_, _, Some(prepend)) => 1.0 + prepend.len() as f64,
            _ => match self.kind.as_deref() {
                // A byte becomes a character of two. Old files do not name it.
                None | Some("ByteLevel") => 2.0,
                Some("Precompiled") => TABLE_GROWTH,
                Some(_) => 1.0,
            },
        };
        self.normalizers.iter().fold(own, |growth, step| growth * step.growth())
    }
}

impl Pattern {
    /// How many times as long a text may be once this is replaced in it.
    fn growth(&self, content: &str) -> f64 {
        let (from, to) = (self.text.as_ref().map_or(0, String::len), content.len() as f64);
        // An expression may be found between all characters, as an empty text is.
        if from == 0 { 1.0 + to } else { (to / from as f64).max(1.0) }
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
