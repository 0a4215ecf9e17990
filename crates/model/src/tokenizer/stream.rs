//! Tokens to text, one at a time, without ever splitting a character.

use super::pieces::{Invalid, Kind, Pieces};
use super::{Special, Tokenizer};

/// The state between two tokens: bytes of a character that is not complete yet.
///
/// All deltas together, with what [`Detokenizer::finish`] gives, equal [`Tokenizer::decode`] of all
/// ids: that function is this one in a loop. Where bytes are not UTF-8 they become U+FFFD, once for
/// each broken sequence, or for each byte in vocabularies with byte fallback. (There the `tokenizers`
/// crate would spoil valid neighbours as well, which no stream could do.)
#[derive(Clone, Debug)]
pub struct Detokenizer {
    held: Vec<u8>,
    strip: usize,
    special: Special,
}

impl Detokenizer {
    pub(super) fn new(pieces: &Pieces, special: Special) -> Self {
        Detokenizer { held: Vec::with_capacity(8), strip: pieces.strip_start, special }
    }

    /// Appends the text that `id` completes to `out`; unknown ids have no text.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, out: &mut String) {
        let bytes = self.shown(&tokenizer.pieces, id);
        self.append(bytes, tokenizer.pieces.invalid, out);
    }

    /// Begins as `other` goes on.
    pub(crate) fn go_on(&mut self, other: &Detokenizer) {
        self.strip = other.strip;
    }

    /// This token came before the text.
    pub(super) fn passed(&mut self, tokenizer: &Tokenizer, id: u32) {
        if self.strip > 0 {
            self.shown(&tokenizer.pieces, id);
        }
    }

    /// What a token adds: without the spaces that a text does not begin with.
    fn shown<'a>(&mut self, pieces: &'a Pieces, id: u32) -> &'a [u8] {
        if pieces.kind(id) == Kind::Special && self.special == Special::Without {
            return &[];
        }
        let mut bytes = pieces.bytes(id);
        while self.strip > 0 && !bytes.is_empty() {
            if bytes[0] != b' ' {
                self.strip = 0;
                break;
            }
            self.strip -= 1;
            bytes = &bytes[1..];
        }
        bytes
    }

    /// Appends what an end of text makes of the bytes still held.
    pub fn finish(&mut self, tokenizer: &Tokenizer, out: &mut String) {
        if !self.held.is_empty() {
            replace(self.held.len(), tokenizer.pieces.invalid, out);
            self.held.clear();
        }
    }

    fn append(&mut self, bytes: &[u8], invalid: Invalid, out: &mut String) {
        self.held.extend_from_slice(bytes);
        let mut rest = self.held.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    out.push_str(text);
                    rest = &[];
                    break;
                }
                Err(e) => {
                    let (text, tail) = rest.split_at(e.valid_up_to());
                    out.push_str(std::str::from_utf8(text).unwrap_or_default());
                    rest = tail;
                    let Some(broken) = e.error_len() else { break };
                    replace(broken, invalid, out);
                    rest = &rest[broken..];
                }
            }
        }
        let done = self.held.len() - rest.len();
        self.held.drain(..done);
    }
}

fn replace(n_bytes: usize, invalid: Invalid, out: &mut String) {
    let n = if invalid == Invalid::PerByte { n_bytes } else { 1 };
    out.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, n));
}
