//! How many tokens a text comes to at the least, told from its length: what has no room anywhere need not be cut up to be refused,
//! for which there is a hundred times its length of memory for a while.

use serde_json::Value;
use tokenizers::ModelWrapper;

use super::pieces::Pieces;
use super::words::{Inner, Words};

/// A text of so many bytes may have one when it is put into its composed form: Greek letters with two marks, parts of Korean
/// syllables.
const COMPOSED: usize = 4;

/// Bytes of text that a token stands for at the most. Nothing where a text may have bytes of which no token tells: where rules drop
/// some, or have one token for all that they do not know.
pub(super) fn most_bytes(inner: &Inner, pieces: &Pieces) -> Option<usize> {
    let normal = serde_json::to_value(inner.get_normalizer()).ok()?;
    let split = serde_json::to_value(inner.get_pre_tokenizer()).ok()?;
    let by_bytes = has(&normal, "ByteLevel") || has(&split, "ByteLevel");
    let knows_all = match inner.get_model() {
        Words::Ranked(ModelWrapper::BPE(bpe)) => by_bytes || bpe.byte_fallback,
        Words::Ranked(_) => false,
        Words::Scored(_) => true,
    };
    let mut single = [false; 256];
    let tokens = || (0..pieces.len() as u32).map(|id| pieces.bytes(id));
    tokens().filter(|bytes| bytes.len() == 1).for_each(|bytes| single[usize::from(bytes[0])] = true);
    let added = inner.get_added_vocabulary().get_added_tokens_decoder();
    let stripped = added.values().any(|token| token.lstrip || token.rstrip);
    if !knows_all || stripped || !single.iter().all(|known| *known) {
        return None;
    }
    // As it is shown and as it is written: a mark for a space is longer than a space, and may stand in a text.
    let written = |id: u32| if by_bytes { 0 } else { inner.id_to_token(id).map_or(0, |token| token.len()) };
    let longest = tokens().zip(0..).map(|(shown, id)| shown.len().max(written(id))).max()?;
    Some(longest * most(&normal)?.max(most(&split)?))
}

/// Whether a rule, or one of its parts, is of a type.
fn has(rule: &Value, kind: &str) -> bool {
    rule["type"] == kind || parts(rule).any(|part| has(part, kind))
}

fn parts(rule: &Value) -> impl Iterator<Item = &Value> {
    [&rule["normalizers"], &rule["pretokenizers"]].into_iter().filter_map(Value::as_array).flatten()
}

/// How many bytes a rule makes one of at the most; nothing of one that is not known.
fn most(rule: &Value) -> Option<usize> {
    if rule.is_null() {
        return Some(1);
    }
    match rule["type"].as_str()? {
        // What is composed already is composed no further.
        "Sequence" => parts(rule).map(most).try_fold(1, |all: usize, part| Some(all.max(part?))),
        "NFC" => Some(COMPOSED),
        // A space for another mark of it.
        "Replace" if rule["pattern"]["String"] == " " && rule["content"] != "" => Some(1),
        "Prepend" | "ByteLevel" | "Digits" | "Metaspace" => Some(1),
        "Split" | "Punctuation" if rule["behavior"] != "Removed" => Some(1),
        _ => None,
    }
}
