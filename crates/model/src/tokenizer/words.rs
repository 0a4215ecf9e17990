//! What cuts words into tokens: ours for GGUF files, the `tokenizers` crate's for its own.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::BpeTrainer;
use tokenizers::{
    DecoderWrapper, Model, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Token,
    TokenizerImpl,
};

use super::pairs::BytePairs;

/// The whole way from text to tokens.
pub(super) type Inner =
    TokenizerImpl<Words, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// See the module.
pub(super) enum Words {
    Pairs(BytePairs),
    Library(ModelWrapper),
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Words, D::Error> {
        ModelWrapper::deserialize(deserializer).map(Words::Library)
    }
}

impl Model for Words {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, word: &str) -> tokenizers::Result<Vec<Token>> {
        match self {
            Words::Pairs(pairs) => Ok(pairs.tokenize(word)),
            Words::Library(model) => model.tokenize(word),
        }
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        match self {
            Words::Pairs(pairs) => pairs.vocabulary().id(token),
            Words::Library(model) => model.token_to_id(token),
        }
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        match self {
            Words::Pairs(pairs) => pairs.vocabulary().token(id).map(str::to_owned),
            Words::Library(model) => model.id_to_token(id),
        }
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        match self {
            Words::Pairs(pairs) => {
                pairs.vocabulary().iter().map(|(text, id)| (text.to_owned(), id)).collect()
            }
            Words::Library(model) => model.get_vocab(),
        }
    }

    fn get_vocab_size(&self) -> usize {
        match self {
            Words::Pairs(pairs) => pairs.vocabulary().len(),
            Words::Library(model) => model.get_vocab_size(),
        }
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        match self {
            Words::Pairs(_) => Err("a GGUF file's vocabulary is not written: copy that file".into()),
            Words::Library(model) => model.save(folder, prefix),
        }
    }

    fn get_trainer(&self) -> TrainerWrapper {
        match self {
            Words::Pairs(_) => BpeTrainer::default().into(),
            Words::Library(model) => model.get_trainer(),
        }
    }
}
