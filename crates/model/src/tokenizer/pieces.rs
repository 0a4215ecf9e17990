//! The bytes that each token stands for, worked out once from the tokenizer's decoder.
//!
//! All decoders in use for language models are, per token, a map to bytes; what is left for a text as
//! a whole is at most to drop a leading space. So one table serves full decoding, streaming and the
//! bytes in logprobs, and the three agree by construction.

use serde_json::Value;

use super::TokenizerError;
use super::words::Inner;

/// The largest published vocabularies have a quarter of this.
pub(super) const MAX_VOCAB: u32 = 1 << 20;
/// Most bytes of a token; words have some tens.
const MAX_TOKEN_BYTES: usize = 1 << 16;
/// Most bytes of all tokens; the largest published vocabularies have some millions.
const MAX_TABLE_BYTES: usize = 1 << 28;

/// What a token is to the one who reads the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Special,
    Absent,
}

/// How invalid UTF-8 is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Invalid {
    /// One replacement character for each maximal broken sequence (byte-level vocabularies).
    PerSequence,
    /// One for each byte (byte fallback).
    PerByte,
}

/// Bytes of every token, and what the decoder does to a text as a whole.
#[derive(Debug)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    kinds: Vec<Kind>,
    pub(super) invalid: Invalid,
    /// Spaces dropped at the start of a text.
    pub(super) strip_start: usize,
}

impl Pieces {
    /// Works out the table; refuses decoders that are not a map from tokens to bytes.
    pub(super) fn of(inner: &Inner) -> Result<Self, TokenizerError> {
        let rules = Rules::of(inner)?;
        let n = count(inner)?;
        let mut pieces = Pieces {
            bytes: Vec::with_capacity(n * 6),
            ends: Vec::with_capacity(n),
            kinds: Vec::with_capacity(n),
            invalid: rules.invalid(),
            strip_start: rules.strip_start,
        };
        let added = inner.get_added_vocabulary();
        for id in 0..n as u32 {
            let token = inner.id_to_token(id);
            pieces.kinds.push(match &token {
                None => Kind::Absent,
                Some(t) if added.is_special_token(t) => Kind::Special,
                Some(_) => Kind::Text,
            });
            let begin = pieces.bytes.len();
            rules.append(token.as_deref().unwrap_or(""), &mut pieces.bytes)?;
            pieces.ends.push(end(begin, pieces.bytes.len())?);
        }
        Ok(pieces)
    }

    /// Number of ids, absent ones included.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of a token; none for an id that is not in the vocabulary.
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        let Some(&end) = self.ends.get(id as usize) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id as usize - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// What the token is.
    pub(super) fn kind(&self, id: u32) -> Kind {
        self.kinds.get(id as usize).copied().unwrap_or(Kind::Absent)
    }
}

/// Where a token ends in the table.
fn end(begin: usize, end: usize) -> Result<u32, TokenizerError> {
    if end - begin > MAX_TOKEN_BYTES {
        return Err(too_long());
    }
    let fits = u32::try_from(end).ok().filter(|_| end <= MAX_TABLE_BYTES);
    let why = || format!("its tokens stand for more than {MAX_TABLE_BYTES} bytes");
    fits.ok_or_else(|| TokenizerError::malformed("vocabulary", why()))
}

fn too_long() -> TokenizerError {
    let why = format!("a token stands for more than {MAX_TOKEN_BYTES} bytes");
    TokenizerError::malformed("vocabulary", why)
}

/// Highest id plus one, checked before a table of that size is made.
fn count(inner: &Inner) -> Result<usize, TokenizerError> {
    // As a rule ids have no gaps: then there are as many as tokens, and the vocabulary need not be copied to be looked through.
    let tokens = inner.get_vocab_size(true);
    let gapless = |n: u32| (0..n).all(|id| inner.id_to_token(id).is_some());
    if (1..=MAX_VOCAB as usize).contains(&tokens) && gapless(tokens as u32) {
        return Ok(tokens);
    }
    let highest = inner.get_vocab(true).into_values().max();
    match highest {
        None => Err(TokenizerError::malformed("vocabulary", "it is empty")),
        Some(id) if id >= MAX_VOCAB => {
            Err(TokenizerError::malformed("vocabulary", format!("token id {id}; ids are below {MAX_VOCAB}")))
        }
        Some(id) => Ok(id as usize + 1),
    }
}

/// A decoder as steps on one token.
#[derive(Default)]
struct Rules {
    byte_level: bool,
    byte_fallback: bool,
    fused: bool,
    strip_start: usize,
    replace: Vec<(String, String)>,
    prefix: &'static str,
}

impl Rules {
    fn of(inner: &Inner) -> Result<Self, TokenizerError> {
        let mut rules = Rules::default();
        match inner.get_decoder() {
            // Without a decoder tokens are joined with spaces.
            None => (rules.prefix, rules.strip_start) = (" ", 1),
            Some(decoder) => {
                let decoder =
                    serde_json::to_value(decoder).map_err(|e| TokenizerError::malformed("decoder", e))?;
                rules.add(&decoder)?;
            }
        }
        Ok(rules)
    }

    fn add(&mut self, step: &Value) -> Result<(), TokenizerError> {
        let kind = step["type"].as_str().unwrap_or("");
        match kind {
            "Sequence" => {
                for step in step["decoders"].as_array().into_iter().flatten() {
                    self.add(step)?;
                }
            }
            "ByteLevel" => self.byte_level = true,
            "ByteFallback" => self.byte_fallback = true,
            "Fuse" => self.fused = true,
            "Metaspace" => self.metaspace(step),
            "Replace" if step["pattern"]["String"].is_string() => {
                self.replace.push((text(&step["pattern"]["String"]), text(&step["content"])));
            }
            "Strip" if self.fused && step["content"] == " " && step["stop"] == 0 => {
                self.strip_start = step["start"].as_u64().unwrap_or(0).min(1 << 16) as usize;
            }
            other => return Err(unsupported(other)),
        }
        Ok(())
    }

    /// transformers writes decoders that name both; bytes are then put together by the second.
    fn invalid(&self) -> Invalid {
        if self.byte_fallback && !self.byte_level { Invalid::PerByte } else { Invalid::PerSequence }
    }

    fn metaspace(&mut self, step: &Value) {
        self.replace.push((text(&step["replacement"]), " ".to_owned()));
        self.strip_start = usize::from(step["prepend_scheme"] != "never");
    }

    fn append(&self, token: &str, out: &mut Vec<u8>) -> Result<(), TokenizerError> {
        out.extend_from_slice(self.prefix.as_bytes());
        if let Some(byte) = self.byte_fallback.then(|| fallback_byte(token)).flatten() {
            out.push(byte);
        } else if self.byte_level {
            append_byte_level(token, out);
        } else {
            let mut token = token.to_owned();
            for (from, to) in self.replace.iter().filter(|(from, _)| !from.is_empty()) {
                token = replaced(&token, from, to)?;
            }
            out.extend_from_slice(token.as_bytes());
        }
        Ok(())
    }
}

/// The token with every `from` made `to`, unless there is no end to it: the length is known before there is memory for it.
fn replaced(token: &str, from: &str, to: &str) -> Result<String, TokenizerError> {
    let new_bytes = token.matches(from).count().saturating_mul(to.len());
    if new_bytes > MAX_TOKEN_BYTES { Err(too_long()) } else { Ok(token.replace(from, to)) }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("").to_owned()
}

fn unsupported(found: &str) -> TokenizerError {
    TokenizerError::Unsupported {
        what: "decoder",
        found: found.to_owned(),
        supported: "ByteLevel, Metaspace, and sequences of Replace (of a string), ByteFallback, Fuse \
                    and Strip (of leading spaces, after Fuse)"
            .to_owned(),
    }
}

/// The byte of a byte-fallback token, `<0x0A>`.
fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() != 2 { None } else { u8::from_str_radix(hex, 16).ok() }
}

/// A byte-level token's bytes; a token with a character outside the alphabet stands for itself.
fn append_byte_level(token: &str, out: &mut Vec<u8>) {
    let start = out.len();
    for c in token.chars() {
        match byte_of(c) {
            Some(byte) => out.push(byte),
            None => {
                out.truncate(start);
                out.extend_from_slice(token.as_bytes());
                return;
            }
        }
    }
}

/// The byte behind a character of GPT-2's printable alphabet: printable Latin-1 stands for itself,
/// the other 68 bytes in order for U+0100 and on.
fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alphabet_covers_every_byte_once() {
        let mut seen = [0u32; 256];
        (0..0x200).filter_map(char::from_u32).filter_map(byte_of).for_each(|b| seen[b as usize] += 1);
        assert!(seen.iter().all(|&n| n == 1), "{seen:?}");
        assert_eq!(byte_of('Ġ'), Some(b' '));
        assert_eq!(byte_of('Ċ'), Some(b'\n'));
    }

    /// Forty times twice as long is 2^40 bytes.
    #[test]
    fn tokens_have_an_end() {
        let doubled = ("a".to_owned(), "aa".to_owned());
        let append = |times: usize| {
            let rules = Rules { replace: vec![doubled.clone(); times], ..Rules::default() };
            let mut out = Vec::new();
            rules.append("ba", &mut out).map(|()| out.len())
        };
        assert_eq!(append(16).unwrap(), 1 + MAX_TOKEN_BYTES);
        append(40).unwrap_err();
        end(0, 1 + MAX_TOKEN_BYTES).unwrap_err();
        assert_eq!(end(MAX_TABLE_BYTES - 1, MAX_TABLE_BYTES).unwrap(), 1 << 28);
        end(MAX_TABLE_BYTES, MAX_TABLE_BYTES + 1).unwrap_err();
    }

    #[test]
    fn fallback_bytes_are_two_hex_digits() {
        assert_eq!(fallback_byte("<0x0A>"), Some(10));
        assert_eq!(fallback_byte("<0xGG>"), None);
        assert_eq!(fallback_byte("<0xABC>"), None);
        assert_eq!(fallback_byte("<0x+1>").is_some(), u8::from_str_radix("+1", 16).is_ok());
    }
}
