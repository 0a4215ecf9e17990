//! A vocabulary from a GGUF file made into the same tokenizer that a `tokenizer.json` gives.

use std::collections::HashMap;

use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::{AddedToken, Tokenizer as Inner};

use crate::gguf::GgufVocab;

use super::load::{check_added, from_json, guarded};
use super::pieces::MAX_VOCAB;
use super::pretokenizer::{PreTokenizer, gpt2};
use super::{Affixes, SpecialIds, Tokenizer, TokenizerError};

const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
/// Kinds that stand for themselves in a text.
const ADDED: [i32; 3] = [UNKNOWN, CONTROL, USER_DEFINED];
/// Most merges. The largest published vocabularies, of a quarter of a million tokens, have half a million.
const MAX_MERGES: usize = 3 << 19;
/// Most bytes that may be looked at to cut tokens into two: a token of n characters is cut in n - 1 places, and both parts are
/// looked up. The largest published vocabularies take a hundredth of it.
const MAX_CUT_BYTES: usize = 1 << 28;

impl Tokenizer {
    /// Builds the tokenizer of a GGUF file.
    pub fn from_gguf(mut vocab: GgufVocab) -> Result<Self, TokenizerError> {
        vocab.settle_special();
        let vocab = &vocab;
        check(vocab)?;
        let (mut inner, add_bos) = match vocab.model.as_str() {
            "gpt2" => byte_pairs(vocab)?,
            "llama" => (sentence_pieces(vocab)?, true),
            other => {
                return Err(TokenizerError::Unsupported {
                    what: "GGUF vocabulary",
                    found: other.to_owned(),
                    supported: "gpt2, llama".to_owned(),
                });
            }
        };
        guarded("GGUF vocabulary", || add_tokens(&mut inner, vocab))??;
        let ids = SpecialIds { bos: vocab.bos, eos: vocab.eos, pad: vocab.pad, unk: vocab.unk };
        let affixes = Affixes {
            prefix: vocab.bos.filter(|_| vocab.add_bos.unwrap_or(add_bos)).into_iter().collect(),
            suffix: vocab.eos.filter(|_| vocab.add_eos.unwrap_or(false)).into_iter().collect(),
        };
        Tokenizer::assemble(inner, ids, affixes)
    }
}

fn scores(vocab: &GgufVocab) -> &[f32] {
    vocab.scores.as_deref().unwrap_or(&[])
}

fn kinds(vocab: &GgufVocab) -> &[i32] {
    vocab.token_types.as_deref().unwrap_or(&[])
}

fn check(vocab: &GgufVocab) -> Result<(), TokenizerError> {
    let n = vocab.tokens.len();
    if n > MAX_VOCAB as usize {
        let why = format!("{n} tokens; at most {MAX_VOCAB} are read");
        return Err(TokenizerError::malformed("GGUF vocabulary", why));
    }
    let lens = [("scores", scores(vocab).len()), ("token_type", kinds(vocab).len())];
    for (what, len) in lens {
        if len != 0 && len != n {
            let why = format!("{len} {what} for {n} tokens");
            return Err(TokenizerError::malformed("GGUF vocabulary", why));
        }
    }
    Ok(())
}

fn byte_pairs(vocab: &GgufVocab) -> Result<(Inner, bool), TokenizerError> {
    let pre = PreTokenizer::named(vocab.pre.as_deref().unwrap_or("default"))?;
    let Some(merges) = &vocab.merges else {
        return Err(TokenizerError::malformed("GGUF vocabulary", "a gpt2 vocabulary needs merges"));
    };
    if merges.len() > MAX_MERGES {
        return Err(too_many_merges(merges.len()));
    }
    let merges = merges.iter().map(split_merge).collect::<Result<Vec<_>, _>>()?;
    let model = guarded("GGUF vocabulary", || {
        BPE::builder()
            .vocab_and_merges(ids(vocab), merges)
            .ignore_merges(pre.ignore_merges)
            .build()
            .map_err(|e| TokenizerError::malformed("GGUF vocabulary", e))
    })??;
    let decoder = gpt2();
    Ok((assemble(model, pre.normalizer, Some(pre.steps), decoder)?, pre.add_bos))
}

/// A merge is two tokens with one space between; neither holds a space, but the first character may
/// be one in vocabularies that were not made byte-level.
pub(super) fn split_merge(merge: &str) -> Result<(String, String), TokenizerError> {
    let at = merge.char_indices().skip(1).find(|&(_, c)| c == ' ').map(|(at, _)| at);
    match at {
        Some(at) if at + 1 < merge.len() => Ok((merge[..at].to_owned(), merge[at + 1..].to_owned())),
        _ => Err(TokenizerError::malformed("merges", format!("{merge:?} is not two tokens"))),
    }
}

fn sentence_pieces(vocab: &GgufVocab) -> Result<Inner, TokenizerError> {
    if scores(vocab).len() != vocab.tokens.len() {
        return Err(TokenizerError::malformed("GGUF vocabulary", "a llama vocabulary needs scores"));
    }
    let unk = vocab.unk.and_then(|id| vocab.tokens.get(id as usize)).map(str::to_owned);
    let merges = merges_of_scores(vocab)?;
    let model = guarded("GGUF vocabulary", || {
        let mut builder =
            BPE::builder().vocab_and_merges(ids(vocab), merges).fuse_unk(true).byte_fallback(true);
        if let Some(unk) = unk {
            builder = builder.unk_token(unk);
        }
        builder.build().map_err(|e| TokenizerError::malformed("GGUF vocabulary", e))
    })??;
    let space = vocab.add_space_prefix.unwrap_or(true);
    assemble(model, Some(sentence_piece_normalizer(space)), None, sentence_piece_decoder(space))
}

fn sentence_piece_normalizer(space_prefix: bool) -> Value {
    let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let steps =
        if space_prefix { vec![json!({"type": "Prepend", "prepend": "▁"}), spaces] } else { vec![spaces] };
    json!({"type": "Sequence", "normalizers": steps})
}

fn sentence_piece_decoder(space_prefix: bool) -> Value {
    let mut steps = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if space_prefix {
        steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": steps})
}

/// SentencePiece merges the neighbours whose union scores best; as ranked merges: every way to cut a
/// token into two, by score of the token, then by length of the left part (longest first). A text that is
/// there twice is the later one.
///
/// # Errors
/// If that is more work than any sound vocabulary takes.
fn merges_of_scores(vocab: &GgufVocab) -> Result<Vec<(String, String)>, TokenizerError> {
    let known: HashMap<&str, u32> = vocab.tokens.iter().zip(0u32..).collect();
    let (mut merges, mut looked_at) = (Vec::new(), 0usize);
    for ((id, token), &score) in (0u32..).zip(vocab.tokens.iter()).zip(scores(vocab)) {
        if known[token] != id || kind_is_special(vocab, id) {
            continue;
        }
        looked_at = looked_at.saturating_add(token.len().saturating_mul(token.chars().count()));
        if looked_at > MAX_CUT_BYTES {
            let why = "its tokens are too long: words have some tens of characters";
            return Err(TokenizerError::malformed("GGUF vocabulary", why));
        }
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if known.contains_key(left) && known.contains_key(right) {
                merges.push((score, left, right));
            }
        }
        if merges.len() > MAX_MERGES {
            return Err(too_many_merges(merges.len()));
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.len().cmp(&a.1.len())));
    Ok(merges.into_iter().map(|(_, l, r)| (l.to_owned(), r.to_owned())).collect())
}

fn too_many_merges(found: usize) -> TokenizerError {
    let why = format!("{found} merges or more; at most {MAX_MERGES} are read");
    TokenizerError::malformed("GGUF vocabulary", why)
}

fn kind_is_special(vocab: &GgufVocab, id: u32) -> bool {
    kinds(vocab).get(id as usize).is_some_and(|kind| ADDED.contains(kind))
}

fn ids(vocab: &GgufVocab) -> Vocab {
    vocab.tokens.iter().map(str::to_owned).zip(0u32..).collect()
}

/// Model, normaliser, pre-tokenizer and decoder together; the latter three as in tokenizer.json.
pub(super) fn assemble(
    model: BPE,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    decoder: Value,
) -> Result<Inner, TokenizerError> {
    let mut inner = Inner::new(model);
    let normalizer: Option<tokenizers::NormalizerWrapper> =
        normalizer.map(|n| from_json("normalizer", n)).transpose()?;
    let pre: Option<tokenizers::PreTokenizerWrapper> =
        pre_tokenizer.map(|p| from_json("pre-tokenizer", p)).transpose()?;
    let decoder: tokenizers::DecoderWrapper = from_json("decoder", decoder)?;
    inner.with_normalizer(normalizer).map_err(|e| TokenizerError::malformed("normalizer", e))?;
    inner.with_pre_tokenizer(pre).with_decoder(Some(decoder));
    Ok(inner)
}

fn add_tokens(inner: &mut Inner, vocab: &GgufVocab) -> Result<(), TokenizerError> {
    let of_kinds = |wanted: &'static [i32], special: bool| {
        vocab
            .tokens
            .iter()
            .zip(kinds(vocab))
            .filter(move |&(t, k)| wanted.contains(k) && !t.is_empty())
            .map(move |(t, _)| AddedToken::from(t, special).normalized(false))
            .collect::<Vec<_>>()
    };
    let added = vocab.tokens.iter().zip(kinds(vocab)).filter(|(_, kind)| ADDED.contains(kind));
    let (count, bytes) = added.fold((0, 0), |(n, bytes), (token, _)| (n + 1, bytes + token.len()));
    check_added(count, bytes)?;
    let wrong = |e| TokenizerError::malformed("special tokens", e);
    inner.add_special_tokens(of_kinds(&[UNKNOWN, CONTROL], true)).map_err(wrong)?;
    inner.add_tokens(of_kinds(&[USER_DEFINED], false)).map_err(wrong)?;
    Ok(())
}
