//! What can be wrong with a tokenizer or with what it is given.

use std::path::PathBuf;

/// Why a tokenizer could not be loaded, or a text not be encoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Neither `tokenizer.json` nor `vocab.json` with `merges.txt`.
    #[error(
        "no tokenizer in {dir}{instead}: expected tokenizer.json, or vocab.json with merges.txt; \
         convert the model's tokenizer to tokenizer.json or name another directory"
    )]
    Missing {
        /// The model's directory.
        dir: PathBuf,
        /// What is there instead, and is not read.
        instead: &'static str,
    },
    /// The file is not what it should be.
    #[error("malformed {what}: {why}")]
    Malformed {
        /// The file, or the part of it.
        what: &'static str,
        /// What was found.
        why: String,
    },
    /// A kind of vocabulary, pre-tokenizer or decoder that is not built.
    #[error("unsupported {what} `{found}`; supported: {supported}")]
    Unsupported {
        /// What it is a kind of.
        what: &'static str,
        /// The kind found.
        found: String,
        /// The kinds that work.
        supported: String,
    },
    /// More text than a request may bring.
    #[error("text of {found} bytes; at most {limit} bytes are tokenized in one piece")]
    TooLong {
        /// Bytes given.
        found: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// A run of one kind of character that the pre-tokenizer's regular expression could not cross.
    #[error("a run of {found} white-space characters; at most {limit} are tokenized")]
    LongRun {
        /// Length of the run, in characters.
        found: usize,
        /// Characters allowed.
        limit: usize,
    },
    /// The tokenizer refused the text.
    #[error("cannot tokenize this text: {0}")]
    Encode(String),
}

impl TokenizerError {
    pub(crate) fn malformed(what: &'static str, why: impl std::fmt::Display) -> Self {
        TokenizerError::Malformed { what, why: why.to_string() }
    }
}
