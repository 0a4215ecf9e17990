//! A vocabulary from a GGUF file made into the same tokenizer that a `tokenizer.json` gives.

use serde_json::{Value, json};
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, Vocab};

use crate::gguf::GgufVocab;

use super::load::{check_added, from_json, guarded};
use super::pieces::MAX_VOCAB;
use super::pretokenizer::{PreTokenizer, gpt2};
use super::scored::Scored;
use super::words::{Inner, Words};
use super::{Affixes, SpecialIds, Tokenizer, TokenizerError};

const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
/// Kinds that stand for themselves in a text.
const ADDED: [i32; 3] = [UNKNOWN, CONTROL, USER_DEFINED];
/// Most merges. The largest published vocabularies, of a quarter of a million tokens, have half a million.
const MAX_MERGES: usize = 3 << 19;
/// Most bytes of a token that text is merged to: all of them are looked at for each character that it grows by. The longest
/// published ones are rows of spaces or dashes, of some hundreds.
const MAX_WORD_BYTES: usize = 1 << 10;
/// Most bytes of all of them: published vocabularies have a few MB.
const MAX_WORDS_BYTES: usize = 64 << 20;

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
        let why = format!("{} merges; at most {MAX_MERGES} are read", merges.len());
        return Err(TokenizerError::malformed("GGUF vocabulary", why));
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
    // Nothing in a text is merged to a token that stands for itself.
    let score = |id| (!is_added(vocab, id)).then(|| scores(vocab)[id as usize]);
    let merged = vocab.tokens.iter().zip(0u32..).filter(|&(_, id)| score(id).is_some());
    let (mut longest, mut bytes) = (0, 0);
    for (token, _) in merged {
        (longest, bytes) = (token.len().max(longest), bytes + token.len());
    }
    if longest > MAX_WORD_BYTES || bytes > MAX_WORDS_BYTES {
        let why = "its tokens are too long: words have some tens of characters";
        return Err(TokenizerError::malformed("GGUF vocabulary", why));
    }
    let model = Words::Scored(Scored::new(vocab.tokens.clone(), score, vocab.unk));
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

fn is_added(vocab: &GgufVocab, id: u32) -> bool {
    kinds(vocab).get(id as usize).is_some_and(|kind| ADDED.contains(kind))
}

fn ids(vocab: &GgufVocab) -> Vocab {
    vocab.tokens.iter().map(str::to_owned).zip(0u32..).collect()
}

/// Model, normaliser, pre-tokenizer and decoder together; the latter three as in tokenizer.json.
pub(super) fn assemble(
    model: impl Into<Words>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    decoder: Value,
) -> Result<Inner, TokenizerError> {
    let mut inner = Inner::new(model.into());
    let normalizer: Option<tokenizers::NormalizerWrapper> =
        normalizer.map(|n| from_json("normalizer", n)).transpose()?;
    let pre: Option<tokenizers::PreTokenizerWrapper> =
        pre_tokenizer.map(|p| from_json("pre-tokenizer", p)).transpose()?;
    let decoder: tokenizers::DecoderWrapper = from_json("decoder", decoder)?;
    inner.with_normalizer(normalizer).map_err(|e| TokenizerError::malformed("normalizer", e))?;
    inner.with_pre_tokenizer(pre).with_decoder(Some(decoder));
    Ok(inner)
}

/// As llama.cpp has it, and the tokenizer.json of Phi 3: what follows the mark of a turn's begin or end is the mark's.
fn strips_right(vocab: &GgufVocab, token: &str) -> bool {
    let sentence_pieces = vocab.model == "llama";
    vocab.strips_right && sentence_pieces && !["<unk>", "<s>", "<|endoftext|>"].contains(&token)
}

fn add_tokens(inner: &mut Inner, vocab: &GgufVocab) -> Result<(), TokenizerError> {
    let of_kinds = |wanted: &'static [i32], special: bool| {
        vocab
            .tokens
            .iter()
            .zip(kinds(vocab))
            .filter(move |&(t, k)| wanted.contains(k) && !t.is_empty())
            .map(move |(t, _)| AddedToken::from(t, special).normalized(false).rstrip(strips_right(vocab, t)))
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
