//! A vocabulary from a GGUF file made into the same tokenizer that a `tokenizer.json` gives.

use serde_json::{Value, json};
use tokenizers::AddedToken;

use crate::gguf::{GgufVocab, Texts};

use super::load::{check_added, from_json, guarded};
use super::pairs::{BytePairs, Unknown, Whole};
use super::pieces::MAX_VOCAB;
use super::pretokenizer::{PreTokenizer, gpt2};
use super::vocabulary::Vocabulary;
use super::words::{Inner, Words};
use super::{Affixes, SpecialIds, Tokenizer, TokenizerError};

const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
/// Two tokens, and what they become.
type Merge = ((u32, u32), u32);

/// Most merges. The largest published vocabularies, of a quarter of a million tokens, have half a million.
const MAX_MERGES: usize = 3 << 19;
/// Most bytes that may be looked at to cut tokens into two: a token of n characters is cut in n - 1 places, and both parts are
/// looked up. The largest published vocabularies take a hundredth of it.
const MAX_CUT_BYTES: usize = 1 << 28;

impl Tokenizer {
    /// Builds the tokenizer of a GGUF file.
    pub fn from_gguf(mut vocab: GgufVocab) -> Result<Self, TokenizerError> {
        check(&vocab)?;
        let added = AddedTokens::of(&vocab)?;
        let vocabulary = Vocabulary::new(std::mem::take(&mut vocab.tokens));
        let (mut inner, add_bos) = match vocab.model.as_str() {
            "gpt2" => byte_pairs(vocabulary, &vocab)?,
            "llama" => (sentence_pieces(vocabulary, &vocab)?, true),
            other => {
                return Err(TokenizerError::Unsupported {
                    what: "GGUF vocabulary",
                    found: other.to_owned(),
                    supported: "gpt2, llama".to_owned(),
                });
            }
        };
        guarded("GGUF vocabulary", || added.add_to(&mut inner))??;
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
    for id in [vocab.bos, vocab.eos, vocab.eot, vocab.unk, vocab.pad].into_iter().flatten() {
        if id as usize >= n {
            let why = format!("special token id {id} of {n} tokens");
            return Err(TokenizerError::malformed("GGUF vocabulary", why));
        }
    }
    Ok(())
}

fn byte_pairs(vocabulary: Vocabulary, vocab: &GgufVocab) -> Result<(Inner, bool), TokenizerError> {
    let pre = PreTokenizer::named(vocab.pre.as_deref().unwrap_or("default"))?;
    let count = vocab.merges.as_ref().map_or(0, Texts::len);
    if count > MAX_MERGES {
        return Err(too_many_merges(count));
    }
    let mut both = String::new();
    let merge = |merge| {
        let (left, right) = split_merge(merge)?;
        both.clear();
        both.extend([left, right]);
        Ok(((id_of(left, &vocabulary)?, id_of(right, &vocabulary)?), id_of(&both, &vocabulary)?))
    };
    let merges = vocab.merges.iter().flat_map(Texts::iter).map(merge);
    let merges = merges.collect::<Result<Vec<Merge>, TokenizerError>>()?;
    let whole = if pre.ignore_merges { Whole::AsItIs } else { Whole::Merged };
    let pairs = BytePairs::new(vocabulary, &merges, (Unknown::Dropped, whole));
    let decoder = gpt2();
    Ok((assemble(Words::Pairs(pairs), pre.normalizer, Some(pre.steps), decoder)?, pre.add_bos))
}

fn id_of(token: &str, vocabulary: &Vocabulary) -> Result<u32, TokenizerError> {
    let missing = || TokenizerError::malformed("merges", format!("{token:?} is no token"));
    vocabulary.id(token).ok_or_else(missing)
}

/// A merge is two tokens with one space between; neither holds a space, but the first character may
/// be one in vocabularies that were not made byte-level.
pub(super) fn split_merge(merge: &str) -> Result<(&str, &str), TokenizerError> {
    let at = merge.char_indices().skip(1).find(|&(_, c)| c == ' ').map(|(at, _)| at);
    match at {
        Some(at) if at + 1 < merge.len() => Ok((&merge[..at], &merge[at + 1..])),
        _ => Err(TokenizerError::malformed("merges", format!("{merge:?} is not two tokens"))),
    }
}

fn sentence_pieces(vocabulary: Vocabulary, vocab: &GgufVocab) -> Result<Inner, TokenizerError> {
    if scores(vocab).len() != vocabulary.places() {
        return Err(TokenizerError::malformed("GGUF vocabulary", "a llama vocabulary needs scores"));
    }
    let merges = merges_of_scores(&vocabulary, vocab)?;
    let pairs = BytePairs::new(vocabulary, &merges, (Unknown::Bytes(vocab.unk), Whole::Merged));
    let space = vocab.add_space_prefix.unwrap_or(true);
    let normalizer = sentence_piece_normalizer(space);
    assemble(Words::Pairs(pairs), Some(normalizer), None, sentence_piece_decoder(space))
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
fn merges_of_scores(vocabulary: &Vocabulary, vocab: &GgufVocab) -> Result<Vec<Merge>, TokenizerError> {
    let (mut merges, mut looked_at) = (Vec::new(), 0usize);
    for (token, id) in vocabulary.iter().filter(|&(_, id)| !kind_is_special(vocab, id)) {
        looked_at = looked_at.saturating_add(token.len().saturating_mul(token.chars().count()));
        if looked_at > MAX_CUT_BYTES {
            let why = "its tokens are too long: words have some tens of characters";
            return Err(TokenizerError::malformed("GGUF vocabulary", why));
        }
        let score = scores(vocab)[id as usize];
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(left), Some(right)) = (vocabulary.id(left), vocabulary.id(right)) {
                merges.push((score, at, ((left, right), id)));
            }
        }
        if merges.len() > MAX_MERGES {
            return Err(too_many_merges(merges.len()));
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
    Ok(merges.into_iter().map(|(_, _, merge)| merge).collect())
}

fn too_many_merges(found: usize) -> TokenizerError {
    let why = format!("{found} merges or more; at most {MAX_MERGES} are read");
    TokenizerError::malformed("GGUF vocabulary", why)
}

fn kind_is_special(vocab: &GgufVocab, id: u32) -> bool {
    matches!(kinds(vocab).get(id as usize), Some(&(CONTROL | USER_DEFINED)))
}

/// Model, normaliser, pre-tokenizer and decoder together; the latter three as in tokenizer.json.
pub(super) fn assemble(
    model: Words,
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

/// Tokens that are found in a text before it is cut into words.
struct AddedTokens {
    control: Vec<AddedToken>,
    user_defined: Vec<AddedToken>,
}

impl AddedTokens {
    /// # Errors
    /// If there are more than any sound vocabulary has.
    fn of(vocab: &GgufVocab) -> Result<AddedTokens, TokenizerError> {
        let of_kind = move |kind: i32| {
            let tokens = vocab.tokens.iter().zip(kinds(vocab));
            tokens.filter(move |&(_, &k)| k == kind).map(|(token, _)| token)
        };
        let all = || of_kind(CONTROL).chain(of_kind(USER_DEFINED));
        check_added(all().count(), all().map(str::len).sum())?;
        let added = |kind, special: bool| {
            let tokens = of_kind(kind).filter(|token| !token.is_empty());
            tokens.map(|token| AddedToken::from(token, special).normalized(false)).collect()
        };
        Ok(AddedTokens { control: added(CONTROL, true), user_defined: added(USER_DEFINED, false) })
    }

    fn add_to(self, inner: &mut Inner) -> Result<(), TokenizerError> {
        let wrong = |e| TokenizerError::malformed("special tokens", e);
        inner.add_special_tokens(self.control).map_err(wrong)?;
        inner.add_tokens(self.user_defined).map_err(wrong)?;
        Ok(())
    }
}
