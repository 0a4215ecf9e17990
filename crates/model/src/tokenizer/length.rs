//! How many tokens a text comes to at the least, told from its length: what has no room anywhere need not be cut up to be refused,
//! for which there is a hundred times its length of memory for a while.

use serde_json::Value;

use super::pieces::Pieces;
use super::words::Inner;

/// A text of so many bytes has one when it is put into its composed form where it had three: three parts of a Korean syllable.
const COMPOSED: usize = 3;

/// Bytes of text that a token stands for at the most. Nothing where a text may have bytes of which no token tells: where rules drop
/// some, or have one token for all that they do not know.
pub(super) fn most_bytes(inner: &Inner, pieces: &Pieces) -> Option<usize> {
    let tokens = || (0..pieces.len() as u32).map(|id| pieces.bytes(id));
    let mut single = [false; 256];
    tokens().filter(|bytes| bytes.len() == 1).for_each(|bytes| single[usize::from(bytes[0])] = true);
    let added = inner.get_added_vocabulary().get_added_tokens_decoder();
    let whole =
        single.iter().all(|known| *known) && !added.values().any(|token| token.lstrip || token.rstrip);
    let longest = tokens().map(<[u8]>::len).max().filter(|_| whole)?;
    let rules =
        [serde_json::to_value(inner.get_normalizer()), serde_json::to_value(inner.get_pre_tokenizer())];
    let [composed, kept] = rules.map(|rules| rules.ok().and_then(|rules| most(&rules)));
    Some(longest * composed? * kept?)
}

/// How many bytes a rule makes one of at the most; nothing of one that is not known.
fn most(rule: &Value) -> Option<usize> {
    if rule.is_null() {
        return Some(1);
    }
    let all = |rules: &Value| rules.as_array()?.iter().map(most).product::<Option<usize>>();
    match rule["type"].as_str()? {
        "Sequence" => {
            all(if rule["normalizers"].is_array() { &rule["normalizers"] } else { &rule["pretokenizers"] })
        }
        "NFC" => Some(COMPOSED),
        // A space for another mark of it.
        "Replace" if rule["pattern"]["String"] == " " && rule["content"] != "" => Some(1),
        "Prepend" | "ByteLevel" | "Digits" | "Metaspace" => Some(1),
        "Split" | "Punctuation" if rule["behavior"] != "Removed" => Some(1),
        _ => None,
    }
}
