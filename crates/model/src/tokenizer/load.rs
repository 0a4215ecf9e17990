//! Hugging Face files to a tokenizer: `tokenizer.json`, or GPT-2's older `vocab.json` and `merges.txt`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::{AddedToken, ModelWrapper};

use super::config::{TokenText, TokenizerConfig};
use super::gguf::{assemble, split_merge};
use super::outline::Outline;
use super::pretokenizer::{PreTokenizer, gpt2};
use super::words::{Inner, Words};
use super::{Affixes, SpecialIds, Tokenizer, TokenizerError};
use crate::error::shorten;
use crate::file::{POINTER_FOUND, POINTER_REMEDY, is_pointer};

/// No published tokenizer.json comes near this size.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// Most added tokens, and their text in bytes: all of them are searched for at once, by an automaton that takes far longer to
/// make than the vocabulary. Llama models that speak have 65,536 for sounds.
const MAX_ADDED: usize = 1 << 17;
const MAX_ADDED_BYTES: usize = 1 << 22;

impl Tokenizer {
    /// Loads the tokenizer of a Hugging Face model directory, with its tokenizer_config.json and
    /// special_tokens_map.json where they are.
    pub fn from_dir(dir: &Path) -> Result<(Self, TokenizerConfig), TokenizerError> {
        let mut config = match read(&dir.join("tokenizer_config.json"))? {
            Some(json) => TokenizerConfig::parse(&json)?,
            None => TokenizerConfig::default(),
        };
        if let Some(json) = read(&dir.join("special_tokens_map.json"))? {
            config.take_special_tokens_map(&json)?;
        }
        let tokenizer = if let Some(json) = read(&dir.join("tokenizer.json"))? {
            Tokenizer::from_hf(&json, &config)?
        } else {
            let (vocab, merges) = (read(&dir.join("vocab.json"))?, read(&dir.join("merges.txt"))?);
            let (Some(vocab), Some(merges)) = (vocab, merges) else {
                return Err(TokenizerError::Missing { dir: dir.to_owned(), instead: instead(dir) });
            };
            if let Some(json) = read(&dir.join("added_tokens.json"))? {
                config.take_added_tokens(&json)?;
            }
            Tokenizer::from_gpt2(&vocab, &merges, &config)?
        };
        Ok((tokenizer, config))
    }

    /// Builds a tokenizer from the text of a `tokenizer.json`.
    pub fn from_hf(json: &[u8], config: &TokenizerConfig) -> Result<Self, TokenizerError> {
        Outline::of(json)?.check()?;
        let mut inner = guarded("tokenizer.json", || Inner::from_bytes(json))?
            .map_err(|e| TokenizerError::malformed("tokenizer.json", e))?;
        disarm(&mut inner)?;
        let ids = add_special(&mut inner, config)?;
        let affixes = guarded("post-processor", || probe(&inner))??;
        Tokenizer::assemble(inner, ids, affixes)
    }

    /// Builds a tokenizer from GPT-2's two files (OPT is published so, and Qwen by its older class).
    pub fn from_gpt2(vocab: &[u8], merges: &[u8], config: &TokenizerConfig) -> Result<Self, TokenizerError> {
        let vocab: BTreeMap<String, u32> =
            serde_json::from_slice(vocab).map_err(|e| TokenizerError::malformed("vocab.json", e))?;
        let merges = std::str::from_utf8(merges).map_err(|e| TokenizerError::malformed("merges.txt", e))?;
        let merges = merges
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with("#version"))
            .map(split_merge)
            .collect::<Result<Vec<_>, _>>()?;
        let model = guarded("vocab.json", || {
            BPE::builder()
                .vocab_and_merges(vocab.into_iter().collect::<tokenizers::models::bpe::Vocab>(), merges)
                .build()
        })?
        .map_err(|e| TokenizerError::malformed("vocab.json with merges.txt", e))?;
        let PreTokenizer { normalizer, steps, .. } = PreTokenizer::named(class(config)?)?;
        let mut inner = assemble(model, normalizer, Some(steps), gpt2())?;
        let ids = add_special(&mut inner, config)?;
        // No post-processor says what is put around a text.
        let around = |id: Option<u32>, flag| id.filter(|_| flag == Some(true)).into_iter().collect();
        let (prefix, suffix) = (around(ids.bos, config.add_bos_token), around(ids.eos, config.add_eos_token));
        Tokenizer::assemble(inner, ids, Affixes { prefix, suffix })
    }
}

/// How a class of transformers that has those two files cuts text, by the name that GGUF has for it.
fn class(config: &TokenizerConfig) -> Result<&'static str, TokenizerError> {
    let class = config.tokenizer_class.as_deref().unwrap_or("GPT2Tokenizer");
    match class.strip_suffix("Fast").unwrap_or(class) {
        "GPT2Tokenizer" | "CodeGenTokenizer" => Ok("gpt-2"),
        "Qwen2Tokenizer" => Ok("qwen2"),
        found => Err(TokenizerError::Unsupported {
            what: "tokenizer_class of a folder without tokenizer.json",
            found: shorten(found),
            supported: "GPT2Tokenizer, CodeGenTokenizer, Qwen2Tokenizer".to_owned(),
        }),
    }
}

/// Tokenizers of other kinds that a folder has.
fn instead(dir: &Path) -> &'static str {
    let has = |name: &str| dir.join(name).is_file();
    match (has("tekken.json"), has("tokenizer.model")) {
        (true, _) => " (its tekken.json, Mistral's own, is not read)",
        (_, true) => " (its tokenizer.model, SentencePiece's, is not read)",
        _ => "",
    }
}

/// Adds the tokens that the config declares; those of them that mean something.
fn add_special(inner: &mut Inner, config: &TokenizerConfig) -> Result<SpecialIds, TokenizerError> {
    guarded("added tokens", || add_tokens(inner, config))??;
    let id = |t: &Option<TokenText>| t.as_ref().and_then(|t| inner.token_to_id(t.as_str()));
    Ok(SpecialIds {
        bos: id(&config.bos_token),
        eos: id(&config.eos_token),
        pad: id(&config.pad_token),
        unk: id(&config.unk_token),
    })
}

/// Refuses more added tokens than any sound vocabulary has.
pub(super) fn check_added(count: usize, bytes: usize) -> Result<(), TokenizerError> {
    if count > MAX_ADDED || bytes > MAX_ADDED_BYTES {
        let why =
            format!("{count} of {bytes} bytes; at most {MAX_ADDED} of {MAX_ADDED_BYTES} bytes are read");
        return Err(TokenizerError::malformed("added tokens", why));
    }
    Ok(())
}

/// What would make tokens depend on anything but the text: truncation, padding, and the random
/// dropping of merges that is meant for training.
fn disarm(inner: &mut Inner) -> Result<(), TokenizerError> {
    inner.with_padding(None);
    inner.with_truncation(None).map_err(|e| TokenizerError::malformed("truncation", e))?;
    if let Words::Ranked(ModelWrapper::BPE(bpe)) = inner.get_model()
        && bpe.dropout.is_some()
    {
        let mut bpe = bpe.clone();
        bpe.dropout = None;
        inner.with_model(bpe);
    }
    Ok(())
}

/// Tokens that tokenizer_config.json declares.
fn add_tokens(inner: &mut Inner, config: &TokenizerConfig) -> Result<(), TokenizerError> {
    let wrong = |e| TokenizerError::malformed("added tokens", e);
    let declared = declared(inner, config);
    check_added(declared.len(), declared.iter().map(|(_, t)| t.content.len()).sum())?;
    inner.add_tokens(declared.iter().map(|(_, t)| t.clone())).map_err(wrong)?;
    for (id, t) in &declared {
        let given = inner.token_to_id(&t.content);
        if given != Some(*id) {
            let why = format!("{:?} is declared as id {id}, the vocabulary gives {given:?}", t.content);
            return Err(TokenizerError::malformed("added_tokens_decoder", why));
        }
    }
    // Those that the vocabulary lacks would get ids for which the model has no row.
    let added = inner.get_added_vocabulary();
    let known: BTreeMap<_, _> =
        added.get_added_tokens_decoder().values().map(|token| (token.content.as_str(), token)).collect();
    let named: Vec<_> = config
        .special()
        .filter(|(t, _)| inner.token_to_id(t).is_some() && !added.is_special_token(t))
        .filter_map(|(t, always)| match known.get(t) {
            // As it was added, with whatever it takes on its sides.
            Some(known) => always.then(|| AddedToken { special: true, ..(*known).clone() }),
            None => Some(AddedToken::from(t, true).normalized(false)),
        })
        .collect();
    check_added(named.len(), named.iter().map(|t| t.content.len()).sum())?;
    inner.add_special_tokens(named).map_err(wrong)?;
    Ok(())
}

/// Entries of `added_tokens_decoder` that the vocabulary does not have as added tokens, or has with other flags, by id. An entry
/// for a text or an id that the vocabulary has otherwise is passed over: the vocabulary is what the model was trained with.
fn declared(inner: &Inner, config: &TokenizerConfig) -> Vec<(u32, AddedToken)> {
    let known = inner.get_added_vocabulary().get_added_tokens_decoder();
    let mut declared: Vec<_> = config
        .added_tokens_decoder
        .iter()
        .flatten()
        .filter_map(|(id, token)| Some((id.parse::<u32>().ok()?, token)))
        .map(|(id, token)| (id, token.to_added()))
        .filter(|(id, t)| {
            !t.content.is_empty() && inner.token_to_id(&t.content).is_none_or(|given| given == *id)
        })
        .filter(|(id, t)| inner.id_to_token(*id).is_none_or(|given| given == t.content))
        .filter(|(id, t)| known.get(id).is_none_or(|known| known != t))
        .collect();
    declared.sort_by_key(|&(id, _)| id);
    declared
}

/// What the post-processor puts around a text: encodes a short one with and without special tokens, and looks what differs.
fn probe(inner: &Inner) -> Result<Affixes, TokenizerError> {
    let encode = |special| {
        let encoding = inner.encode_fast("a", special);
        encoding.map(|e| e.get_ids().to_vec()).map_err(|e| TokenizerError::malformed("post-processor", e))
    };
    let (bare, whole) = (encode(false)?, encode(true)?);
    let at = whole.windows(bare.len().max(1)).position(|w| w == bare);
    Ok(match at {
        Some(at) if !bare.is_empty() => {
            Affixes { prefix: whole[..at].to_vec(), suffix: whole[at + bare.len()..].to_vec() }
        }
        _ => Affixes { prefix: whole, suffix: Vec::new() },
    })
}

/// Runs the `tokenizers` crate over foreign data.
pub(super) fn guarded<T>(what: &'static str, run: impl FnOnce() -> T) -> Result<T, TokenizerError> {
    crate::guard::guarded(run).map_err(|words| {
        TokenizerError::malformed(what, format!("the tokenizer library gave up on it: {}", shorten(&words)))
    })
}

/// A part of tokenizer.json that we wrote ourselves.
pub(super) fn from_json<T: DeserializeOwned>(what: &'static str, value: Value) -> Result<T, TokenizerError> {
    serde_json::from_value(value).map_err(|e| TokenizerError::malformed(what, e))
}

/// Reads a file that may be absent.
fn read(path: &Path) -> Result<Option<Vec<u8>>, TokenizerError> {
    let wrong = |source| TokenizerError::Read { path: path.to_owned(), source };
    match std::fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(wrong(e)),
        Ok(meta) if !meta.is_file() || meta.len() > MAX_FILE_BYTES => Err(TokenizerError::malformed(
            "tokenizer file",
            format!("{} is not a file of at most {MAX_FILE_BYTES} bytes", path.display()),
        )),
        Ok(_) => std::fs::read(path).map_err(wrong).and_then(|bytes| fetched(path, bytes)).map(Some),
    }
}

/// The bytes, if they are the file's own.
fn fetched(path: &Path, bytes: Vec<u8>) -> Result<Vec<u8>, TokenizerError> {
    if !is_pointer(&bytes) {
        return Ok(bytes);
    }
    let found = format!("{} is {POINTER_FOUND}; expected {POINTER_REMEDY}", path.display());
    Err(TokenizerError::malformed("tokenizer file", found))
}
