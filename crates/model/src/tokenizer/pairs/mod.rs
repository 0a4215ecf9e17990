//! Byte pairs in flat lists. The `tokenizers` crate holds a vocabulary as two maps of strings, ten times its text, and on each
//! thread a map of words that it has seen.

mod merges;
mod symbols;
#[cfg(test)]
mod tests;

use std::ops::Range;

use tokenizers::Token;

use super::vocabulary::Vocabulary;
use merges::Merges;
use symbols::Symbols;

/// What becomes of characters that are no tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    /// They are left out: byte-level vocabularies have them all.
    Dropped,
    /// Their bytes are tokens (`<0x0A>`); a run of those whose bytes are not is one token, if there is one for that.
    Bytes(Option<u32>),
}

/// Whether a word that is a token is taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whole {
    /// Only if merges lead there.
    Merged,
    /// Always.
    AsItIs,
}

/// A vocabulary and its merges.
pub(super) struct BytePairs {
    vocabulary: Vocabulary,
    merges: Merges,
    unknown: Unknown,
    whole: Whole,
}

impl BytePairs {
    /// `best_first`: pairs of tokens and what they become.
    pub(super) fn new(
        vocabulary: Vocabulary,
        best_first: &[((u32, u32), u32)],
        (unknown, whole): (Unknown, Whole),
    ) -> BytePairs {
        let merges = Merges::new(vocabulary.places(), best_first);
        BytePairs { vocabulary, merges, unknown, whole }
    }

    pub(super) fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// The tokens of a word.
    pub(super) fn tokenize(&self, word: &str) -> Vec<Token> {
        if self.whole == Whole::AsItIs
            && let Some(id) = self.vocabulary.id(word)
        {
            return vec![Token::new(id, word.to_owned(), (0, word.len()))];
        }
        let symbols = self.symbols(word).merged(&self.merges);
        let token = |(id, range): (u32, Range<usize>)| {
            let text = self.vocabulary.text(id).unwrap_or_default();
            Token::new(id, text.to_owned(), (range.start, range.end))
        };
        symbols.iter().map(token).collect()
    }

    /// A word's characters, or what stands for them.
    fn symbols(&self, word: &str) -> Symbols {
        let mut symbols = Symbols::default();
        for (at, c) in word.char_indices() {
            let text = &word[at..at + c.len_utf8()];
            match self.vocabulary.id(text) {
                Some(id) => symbols.push(id, text.len()),
                None => self.push_unknown(text, &mut symbols),
            }
        }
        symbols
    }

    fn push_unknown(&self, text: &str, symbols: &mut Symbols) {
        let Unknown::Bytes(unknown) = self.unknown else { return };
        let byte = |byte: u8| self.vocabulary.id(&format!("<0x{byte:02X}>"));
        let bytes: Option<Vec<u32>> = text.bytes().map(byte).collect();
        match (bytes, unknown) {
            (Some(bytes), _) => bytes.into_iter().for_each(|id| symbols.push(id, 1)),
            (None, Some(id)) => symbols.push_or_lengthen(id, text.len()),
            (None, None) => {}
        }
    }
}
