//! `bad_words`: texts that an answer must not have, as tokens that must not come.

use std::sync::Arc;

use super::fields::Fields;
use super::{ApiError, Context};
use crate::sampling::MAX_BAD_WORDS;
use crate::tokenizer::Special;

/// Longest word, in bytes.
pub(super) const MAX_WORD_BYTES: usize = 1024;

const FIELD: &str = "bad_words";

/// Reads the field.
pub(super) fn read(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let Some(list) = fields.list(FIELD)? else { return Ok(Vec::new()) };
    let wrong = |why: String| Err(ApiError::invalid(FIELD, format!("{FIELD}: {why}")));
    if list.len() > MAX_BAD_WORDS {
        return wrong(format!("{} words; at most {MAX_BAD_WORDS}", list.len()));
    }
    let text = |word: &serde_json::Value| word.as_str().map(str::to_owned);
    let Some(words) = list.iter().map(text).collect::<Option<Vec<String>>>() else {
        return wrong("expected a list of strings".to_owned());
    };
    match words.iter().find(|word| !(1..=MAX_WORD_BYTES).contains(&word.len())) {
        Some(word) => wrong(format!("expected words of 1 to {MAX_WORD_BYTES} bytes, found {}", word.len())),
        None => Ok(words),
    }
}

/// A word's tokens, as it stands at the beginning of a text, and as it stands after a space where that is written with as
/// many other tokens; as in vLLM.
pub(super) fn tokens(words: &[String], context: &Context) -> Result<Arc<[Vec<u32>]>, ApiError> {
    let encode = |text: &str| {
        let encoded = context.tokenizer.encode(text, Special::Without);
        encoded.map_err(|error| ApiError::invalid(FIELD, format!("{FIELD}: {error}")))
    };
    let mut all = Vec::new();
    for word in words {
        let word = word.trim_start();
        let (first, spaced) = (encode(word)?, encode(&format!(" {word}"))?);
        if spaced.first() != first.first() && spaced.len() == first.len() {
            all.push(spaced);
        }
        all.push(first);
    }
    all.retain(|tokens| !tokens.is_empty());
    Ok(all.into())
}
