//! How words become tokens: as the `tokenizers` crate does it, or by scores.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::{
    DecoderWrapper, Model, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Token,
    TokenizerImpl,
};

use super::scored::Scored;

/// A tokenizer of the crate, with our way for words beside its own.
pub(super) type Inner =
    TokenizerImpl<Words, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// See the module.
pub(super) enum Words {
    Ranked(ModelWrapper),
    Scored(Scored),
}

impl From<BPE> for Words {
    fn from(model: BPE) -> Words {
        Words::Ranked(model.into())
    }
}

/// A `tokenizer.json` has none by scores.
impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Words, D::Error> {
        ModelWrapper::deserialize(deserializer).map(Words::Ranked)
    }
}

impl Model for Words {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, word: &str) -> tokenizers::Result<Vec<Token>> {
        match self {
            Words::Ranked(model) => model.tokenize(word),
            Words::Scored(model) => Ok(model.cut(word)),
        }
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        match self {
            Words::Ranked(model) => model.token_to_id(token),
            Words::Scored(model) => model.id_of(token),
        }
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        match self {
            Words::Ranked(model) => model.id_to_token(id),
            Words::Scored(model) => model.text_of(id).map(str::to_owned),
        }
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        match self {
            Words::Ranked(model) => model.get_vocab(),
            Words::Scored(model) => model.all().map(|(token, id)| (token.to_owned(), id)).collect(),
        }
    }

    fn get_vocab_size(&self) -> usize {
        match self {
            Words::Ranked(model) => model.get_vocab_size(),
            Words::Scored(model) => model.len(),
        }
    }

    fn save(&self, _: &Path, _: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        Err("tokenizers are read here, never written".into())
    }

    fn get_trainer(&self) -> TrainerWrapper {
        BpeTrainer::default().into()
    }
}
