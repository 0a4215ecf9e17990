//! Words cut as SentencePiece does it: of all neighbours those are merged first whose union has the best score, of equal ones the
//! first in the text.
//!
//! The `tokenizers` crate merges by ranks that all differ. Scores need not: vocabularies that were extended have 0 for all that is
//! new, and converters write one score for all where they find none.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use tokenizers::Token;

use crate::gguf::Texts;

/// Tokens by their text, with the scores of those that are merged to.
#[derive(Clone)]
pub(super) struct Scored {
    tokens: Texts,
    known: HashMap<Box<str>, (u32, Option<f32>)>,
    /// Those of single bytes, by byte.
    bytes: Vec<Option<u32>>,
    unk: Option<u32>,
    /// Of the longest text.
    longest: usize,
}

/// A piece of a word, with its neighbours; empty once it was merged with the one before it.
#[derive(Clone, Copy)]
struct Piece {
    from: u32,
    to: u32,
    before: u32,
    after: u32,
}

/// No neighbour.
const NONE: u32 = u32::MAX;

/// Two neighbours that could be merged.
struct Merge {
    score: f32,
    left: u32,
    right: u32,
    /// Bytes of both together: other than now if one of them was merged since.
    bytes: u32,
}

impl Scored {
    /// Of tokens by id and the scores of those that are merged to; a text that is there twice is the later one.
    pub(super) fn new(tokens: Texts, score: impl Fn(u32) -> Option<f32>, unk: Option<u32>) -> Scored {
        let known: HashMap<Box<str>, _> =
            tokens.iter().zip(0u32..).map(|(token, id)| (token.into(), (id, score(id)))).collect();
        let byte = |byte: usize| known.get(format!("<0x{byte:02X}>").as_str()).map(|&(id, _)| id);
        let bytes = (0..256).map(byte).collect();
        let longest = known.keys().map(|token| token.len()).max().unwrap_or(0);
        Scored { tokens, known, bytes, unk, longest }
    }

    /// Number of tokens of different texts.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    pub(super) fn id_of(&self, token: &str) -> Option<u32> {
        self.known.get(token).map(|&(id, _)| id)
    }

    /// A token's text; none of a text that is another's as well, and that one's.
    pub(super) fn text_of(&self, id: u32) -> Option<&str> {
        self.tokens.get(id as usize).filter(|text| self.id_of(text) == Some(id))
    }

    /// All tokens with their ids.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, u32)> {
        self.known.iter().map(|(token, &(id, _))| (&**token, id))
    }

    /// The tokens of a word of at most 4 GB. What has none is told by its bytes, or is unknown; nothing where the vocabulary knows
    /// no unknown.
    pub(super) fn cut(&self, word: &str) -> Vec<Token> {
        let mut tokens: Vec<Token> = Vec::new();
        for piece in self.merged(word) {
            let (text, offsets) = (piece.of(word), (piece.from as usize, piece.to as usize));
            // Their ids say it all.
            let token = |id| Token::new(id, String::new(), offsets);
            if let Some(id) = self.id_of(text) {
                tokens.push(token(id));
            } else if let Some(ids) =
                text.bytes().map(|byte| self.bytes[usize::from(byte)]).collect::<Option<Vec<_>>>()
            {
                tokens.extend(ids.into_iter().map(token));
            } else if let Some(unk) = self.unk {
                // Unknown ones in a row are one.
                match tokens.last_mut().filter(|last| last.id == unk) {
                    Some(last) => last.offsets.1 = offsets.1,
                    None => tokens.push(token(unk)),
                }
            }
        }
        tokens
    }

    /// Pieces that no merge is left for, from characters on.
    fn merged(&self, word: &str) -> impl Iterator<Item = Piece> + use<> {
        let mut pieces = characters(word);
        let pairs = (1..pieces.len() as u32).map(|right| (right - 1, right));
        let mut merges: BinaryHeap<Merge> =
            pairs.filter_map(|(left, right)| self.merge(word, &pieces, left, right)).collect();
        while let Some(Merge { left, right, bytes, .. }) = merges.pop() {
            let (a, b) = (pieces[left as usize], pieces[right as usize]);
            if a.from == a.to || b.from == b.to || b.to - a.from != bytes {
                continue;
            }
            pieces[left as usize] = Piece { to: b.to, after: b.after, ..a };
            pieces[right as usize].to = b.from;
            if b.after != NONE {
                pieces[b.after as usize].before = left;
                merges.extend(self.merge(word, &pieces, left, b.after));
            }
            if a.before != NONE {
                merges.extend(self.merge(word, &pieces, a.before, left));
            }
        }
        pieces.into_iter().filter(|piece| piece.from < piece.to)
    }

    fn merge(&self, word: &str, pieces: &[Piece], left: u32, right: u32) -> Option<Merge> {
        let both = Piece { to: pieces[right as usize].to, ..pieces[left as usize] };
        let text = both.of(word);
        let known = if text.len() > self.longest { None } else { self.known.get(text) };
        Some(Merge { score: known?.1?, left, right, bytes: text.len() as u32 })
    }
}

impl Piece {
    fn of(self, word: &str) -> &str {
        &word[self.from as usize..self.to as usize]
    }
}

/// A word's characters.
fn characters(word: &str) -> Vec<Piece> {
    let characters = (0u32..).zip(word.char_indices());
    let piece = |(at, (from, c)): (u32, (usize, char))| Piece {
        from: from as u32,
        to: (from + c.len_utf8()) as u32,
        before: at.checked_sub(1).unwrap_or(NONE),
        after: at + 1,
    };
    let mut pieces: Vec<Piece> = characters.map(piece).collect();
    if let Some(last) = pieces.last_mut() {
        last.after = NONE;
    }
    pieces
}

impl Ord for Merge {
    fn cmp(&self, other: &Merge) -> Ordering {
        // -0 is as good as 0.
        (self.score + 0.0).total_cmp(&(other.score + 0.0)).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Merge {
    fn partial_cmp(&self, other: &Merge) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Merge {
    fn eq(&self, other: &Merge) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Merge {}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(tokens: &[(&str, f32)], unk: Option<u32>, word: &str) -> Vec<u32> {
        let texts: Texts = tokens.iter().map(|(token, _)| token).collect();
        let scored = Scored::new(texts, |id| Some(tokens[id as usize].1), unk);
        scored.cut(word).into_iter().map(|token| token.id).collect()
    }

    #[test]
    fn of_equal_scores_the_first_in_the_text_is_merged() {
        let tokens = [("a", 0.0), ("b", 0.0), ("c", 0.0), ("ab", -1.0), ("bc", -1.0), ("cab", -2.0)];
        assert_eq!(cut(&tokens, None, "abcab"), [3, 5]);
        assert_eq!(cut(&tokens, None, "bcab"), [4, 3]);
        let zeros = [("a", 0.0), ("b", 0.0), ("c", 0.0), ("ab", -0.0), ("bc", 0.0)];
        assert_eq!(cut(&zeros, None, "abc"), [3, 2]);
        let better = [("a", 0.0), ("b", 0.0), ("c", 0.0), ("ab", -2.0), ("bc", -1.0)];
        assert_eq!(cut(&better, None, "abc"), [0, 4]);
    }

    #[test]
    fn what_has_no_token_is_bytes_or_unknown_or_merged_all_the_same() {
        assert_eq!(cut(&[("a", 0.0), ("?", 0.0)], Some(1), "xyax"), [1, 0, 1]);
        assert_eq!(cut(&[("a", 0.0)], None, "xax"), [0]);
        assert_eq!(cut(&[("xy", 0.0), ("?", 0.0)], Some(1), "xyx"), [0, 1]);
        let bytes: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
        let tokens: Vec<(&str, f32)> = bytes.iter().map(|text| (text.as_str(), 0.0)).collect();
        assert_eq!(cut(&tokens, None, "é"), [0xc3, 0xa9]);
    }
}
