//! Text to tokens and back.
//!
//! A [`Tokenizer`] is made from a Hugging Face `tokenizer.json` ([`Tokenizer::from_dir`]) or from the
//! vocabulary in a GGUF file ([`Tokenizer::from_gguf`]); what it does is the same. The byte-pair
//! work is the `tokenizers` crate's; decoding is ours ([`Detokenizer`]), so that a stream, a full
//! decode and the bytes in logprobs agree.

mod config;
mod error;
mod gguf;
mod length;
mod load;
mod outline;
mod pieces;
mod pretokenizer;
mod scored;
mod stream;
#[cfg(test)]
mod tests;
mod words;

pub use config::{AddedTokenConfig, NamedTemplate, TemplateField, TokenText, TokenTexts, TokenizerConfig};
pub use error::TokenizerError;
pub use stream::Detokenizer;

use std::sync::{Mutex, OnceLock, PoisonError};

use crate::grammar::{Budget, Grammar, GrammarError, Grammars, OutputFormat};
use pieces::{Kind, Pieces};

/// Longest text, in bytes: four times a context of a million tokens of English.
pub const MAX_TEXT_BYTES: usize = 16 << 20;
/// Longest run of white space, in characters. Pre-tokenizers look back over such runs and give up at
/// a million steps, after which words would silently be cut differently.
pub const MAX_SPACE_RUN: usize = 400_000;

/// Texts of more bytes are cut up one at a time: each takes some 150 times its length while it is.
const LONG_TEXT_BYTES: usize = 64 << 10;

/// Whether special tokens take part: put around a text when encoding, shown when decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Added, or shown.
    With,
    /// Not added, or skipped. (Special tokens written out in a text are recognised all the same.)
    Without,
}

/// Ids of the special tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Begin of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Unknown.
    pub unk: Option<u32>,
}

/// Tokens put before and after a text.
#[derive(Clone, Debug, Default)]
struct Affixes {
    prefix: Vec<u32>,
    suffix: Vec<u32>,
}

/// A vocabulary and the rules to cut text into it. Immutable and shared between threads.
pub struct Tokenizer {
    inner: words::Inner,
    pieces: Pieces,
    ids: SpecialIds,
    affixes: Affixes,
    /// How many tokens texts have at the least, where that can be told.
    least: Option<length::Least>,
    /// Held by who cuts up a long text.
    long: Mutex<()>,
    /// Made when first asked for: most tokenizers are never asked.
    grammars: OnceLock<Result<Grammars, GrammarError>>,
    /// Bytes of them that are kept, if that was said.
    grammars_kept: OnceLock<usize>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({} ids, {:?})", self.pieces.len(), self.ids)
    }
}

impl Tokenizer {
    fn assemble(inner: words::Inner, ids: SpecialIds, affixes: Affixes) -> Result<Self, TokenizerError> {
        let pieces = Pieces::of(&inner)?;
        let least = length::least(&inner, &pieces);
        Ok(Tokenizer {
            inner,
            pieces,
            ids,
            affixes,
            least,
            long: Mutex::new(()),
            grammars: OnceLock::new(),
            grammars_kept: OnceLock::new(),
        })
    }

    /// Number of ids: highest id plus one. A model's logits may be wider (padded); tokens beyond them are refused by the engine.
    pub fn vocab_size(&self) -> usize {
        self.pieces.len()
    }

    /// Tokens that text is cut into, without those that were added later: some models have no rows for all of these.
    pub fn text_tokens(&self) -> usize {
        self.inner.get_vocab_size(false)
    }

    /// Ids of the special tokens.
    pub fn special_ids(&self) -> SpecialIds {
        self.ids
    }

    /// Id of a token given as it stands in the vocabulary.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// A token as it stands in the vocabulary (`Ġthe`, `▁the`).
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Whether decoding [`Special::Without`] skips the token.
    pub fn is_special(&self, id: u32) -> bool {
        self.pieces.kind(id) == Kind::Special
    }

    /// The bytes that a token stands for; empty for an unknown id.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.pieces.bytes(id)
    }

    /// A token's bytes as text, with U+FFFD for parts of characters: the `token` of logprobs.
    pub fn token_text(&self, id: u32) -> String {
        String::from_utf8_lossy(self.token_bytes(id)).into_owned()
    }

    /// Cuts a text into tokens.
    ///
    /// Special tokens written out in the text become those tokens, as in transformers.
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>, TokenizerError> {
        check_size(text)?;
        let long = (text.len() > LONG_TEXT_BYTES).then_some(&self.long);
        let _alone = long.map(|long| long.lock().unwrap_or_else(PoisonError::into_inner));
        let encoding = load::guarded("text", || self.inner.encode_fast(text, false))?
            .map_err(|e| TokenizerError::Encode(e.to_string()))?;
        let ids = encoding.get_ids();
        Ok(match special {
            Special::Without => ids.to_vec(),
            Special::With => [&self.affixes.prefix, ids, &self.affixes.suffix].concat(),
        })
    }

    /// Tokens that a text has at the least, told without cutting it up; 0 where that cannot be told.
    pub fn least_tokens(&self, text: &str) -> usize {
        self.least.as_ref().map_or(0, |least| least.tokens(text))
    }

    /// How many tokens [`Special::With`] puts before a text, and after it.
    pub fn added(&self) -> (usize, usize) {
        (self.affixes.prefix.len(), self.affixes.suffix.len())
    }

    /// Tokens to text; unknown ids have no text.
    pub fn decode(&self, ids: &[u32], special: Special) -> String {
        let mut out = String::new();
        let mut stream = self.detokenizer(special);
        for &id in ids {
            stream.push(self, id, &mut out);
        }
        stream.finish(self, &mut out);
        out
    }

    /// Bytes of grammars that are kept for the next request, at most: for whoever has little memory, before the first is made.
    pub fn keep_grammars(&self, bytes: usize) {
        self.grammars_kept.get_or_init(|| bytes);
    }

    /// What texts in this vocabulary can be held to.
    ///
    /// # Errors
    /// [`GrammarError`].
    pub fn grammar(&self, format: &OutputFormat) -> Result<Grammar, GrammarError> {
        let usual = Budget::default();
        let cache_bytes = self.grammars_kept.get().copied().unwrap_or(usual.cache_bytes);
        let made = self.grammars.get_or_init(|| Grammars::new(self, Budget { cache_bytes, ..usual }));
        made.as_ref().map_err(Clone::clone)?.compile(format)
    }

    /// Bytes of grammars that are kept for the next request.
    pub fn kept_grammar_bytes(&self) -> usize {
        self.grammars.get().and_then(|made| made.as_ref().ok()).map_or(0, Grammars::kept_bytes)
    }

    /// Whether a grammar may be compiled now; a moment later it may be otherwise.
    pub fn has_place_for_grammar(&self) -> bool {
        !matches!(self.grammars.get(), Some(Ok(grammars)) if !grammars.has_place())
    }

    /// Begins a text that comes token by token.
    pub fn detokenizer(&self, special: Special) -> Detokenizer {
        Detokenizer::new(&self.pieces, special)
    }

    /// Goes on with a text that has begun with these tokens: where a vocabulary marks the first word by a space before it,
    /// which no text shows, the words that follow keep theirs.
    pub(crate) fn continuation(&self, begun: &[u32], special: Special) -> Detokenizer {
        let mut text = self.detokenizer(special);
        begun.iter().for_each(|&id| text.passed(self, id));
        text
    }
}

fn check_size(text: &str) -> Result<(), TokenizerError> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(TokenizerError::TooLong { found: text.len(), limit: MAX_TEXT_BYTES });
    }
    if text.len() > MAX_SPACE_RUN {
        let longest = text.split(|c: char| !c.is_whitespace()).map(|s| s.chars().count()).max();
        if let Some(found) = longest.filter(|&n| n > MAX_SPACE_RUN) {
            return Err(TokenizerError::LongRun { found, limit: MAX_SPACE_RUN });
        }
    }
    Ok(())
}
