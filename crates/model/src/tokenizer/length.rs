//! How many tokens a text comes to at the least, told from its length: what has no room anywhere need not be cut up to be refused,
//! for which there is a hundred times its length of memory for a while.

use std::ops::RangeInclusive;

use serde_json::Value;
use tokenizers::ModelWrapper;

use super::pieces::Pieces;
use super::words::{Inner, Words};

/// A text of so many bytes may have one when it is put into its composed form: Greek letters with two marks, parts of Korean
/// syllables.
const COMPOSED: usize = 4;

/// How many tokens texts have at the least.
pub(super) struct Least {
    /// Bytes that become part of a token whatever stands beside them.
    counted: [bool; 256],
    /// How many of these one token stands for at the most.
    most_bytes: usize,
}

impl Least {
    pub(super) fn tokens(&self, text: &str) -> usize {
        text.bytes().filter(|byte| self.counted[usize::from(*byte)]).count() / self.most_bytes.max(1)
    }
}

/// Bytes that a vocabulary need not know, and yet it is known what becomes of texts: no rule that is followed here makes any, since no
/// text has them, or none but texts that have them already (control characters, planes of Unicode without a character).
const MAY_BE_UNKNOWN: [RangeInclusive<u8>; 5] =
    [0..=0x1f, 0x7f..=0x7f, 0xc0..=0xc1, 0xf1..=0xf2, 0xf5..=0xff];

/// Nothing where a text may have other bytes of which no token tells: where rules drop some, or have one token for all that they do
/// not know.
pub(super) fn least(inner: &Inner, pieces: &Pieces) -> Option<Least> {
    let normal = serde_json::to_value(inner.get_normalizer()).ok()?;
    let split = serde_json::to_value(inner.get_pre_tokenizer()).ok()?;
    let by_bytes = has(&normal, "ByteLevel") || has(&split, "ByteLevel");
    let knows_all = match inner.get_model() {
        Words::Ranked(ModelWrapper::BPE(bpe)) => by_bytes || bpe.byte_fallback,
        Words::Ranked(_) => false,
        Words::Scored(_) => true,
    };
    let mut counted = [false; 256];
    let tokens = || (0..pieces.len() as u32).map(|id| pieces.bytes(id));
    tokens().filter(|bytes| bytes.len() == 1).for_each(|bytes| counted[usize::from(bytes[0])] = true);
    let must = |byte: &u8| !MAY_BE_UNKNOWN.iter().any(|unknown| unknown.contains(byte));
    let known = (0..=u8::MAX).filter(must).all(|byte| counted[usize::from(byte)]);
    let added = inner.get_added_vocabulary().get_added_tokens_decoder();
    let stripped = added.values().any(|token| token.lstrip || token.rstrip);
    if !knows_all || stripped || !known {
        return None;
    }
    // As it is shown and as it is written: a mark for a space is longer than a space, and may stand in a text.
    let written = |id: u32| if by_bytes { 0 } else { inner.id_to_token(id).map_or(0, |token| token.len()) };
    let longest = tokens().zip(0..).map(|(shown, id)| shown.len().max(written(id))).max()?;
    Some(Least { counted, most_bytes: longest * most(&normal)?.max(most(&split)?) })
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
