//! A tokenizer of the client's own, for servers that have no `/tokenize` or do not say how many tokens they read and wrote.

use std::path::Path;

use anyhow::{Context, Result, bail};
use model::Checkpoint;
use model::source::{Places, Silent, locate};
use model::tokenizer::{Special, Tokenizer};

use crate::console::Misuse;

/// Cuts text into tokens.
pub(super) struct Cutter(Tokenizer);

impl Cutter {
    /// That of a folder, of a .gguf file, or of a model that is in the hub's cache; nothing is fetched.
    pub(super) fn open(name: &str) -> Result<Cutter> {
        Cutter::read(name).map(Cutter).with_context(|| {
            Misuse(format!("--tokenizer {name}: name a folder with tokenizer.json, or a .gguf file"))
        })
    }

    fn read(name: &str) -> Result<Tokenizer> {
        let given = Path::new(name);
        if given.join("tokenizer.json").is_file() {
            return Ok(Tokenizer::from_dir(given)?.0);
        }
        let path = locate(Some(name), &Places { offline: true, ..Places::from_env() }, &mut Silent)?;
        if path.is_dir() {
            return Ok(Tokenizer::from_dir(&path)?.0);
        }
        match Checkpoint::open(&path)?.take_vocab() {
            Some(vocab) => Ok(Tokenizer::from_gguf(vocab)?),
            None => bail!("there is no vocabulary in it"),
        }
    }

    /// Tokens of a text, without those that begin or end every prompt.
    pub(super) fn tokens(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.0.encode(text, Special::Without)?)
    }

    /// How many; nothing of a text that the tokenizer does not take.
    pub(super) fn count(&self, text: &str) -> Option<usize> {
        Some(self.tokens(text).ok()?.len())
    }
}
