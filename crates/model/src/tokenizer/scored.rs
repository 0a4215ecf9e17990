//! Words cut as SentencePiece does it: of all neighbours those are merged first whose union has the best score, of equal ones the
//! first in the text.
//!
//! The `tokenizers` crate merges by ranks that all differ. Scores need not: vocabularies that were extended have 0 for all that is
//! new, and converters write one score for all where they find none.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, HashSet};

use tokenizers::Token;

use crate::gguf::Texts;

/// Tokens by their text, with the scores of those that are merged to.
pub(super) struct Scored {
    tokens: Texts,
    known: HashMap<Box<str>, (u32, Option<f32>)>,
    /// Those of single bytes, by byte.
    bytes: Vec<Option<u32>>,
    unk: Option<u32>,
    /// Of the longest text.
    longest: usize,
    /// Neighbouring characters in what is merged to: nothing is ever merged across others.
    neighbours: HashSet<(char, char)>,
}

/// A piece of a word, with its neighbours; empty once it was merged with the one before it.
#[derive(Clone, Copy, Default)]
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
        let merged = known.iter().filter(|(_, (_, score))| score.is_some());
        let neighbours = merged.flat_map(|(token, _)| token.chars().zip(token.chars().skip(1))).collect();
        Scored { tokens, known, bytes, unk, longest, neighbours }
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
        let (mut tokens, mut pieces, mut merges) = (Vec::new(), Vec::new(), BinaryHeap::new());
        let mut characters = word.char_indices().peekable();
        while let Some((from, c)) = characters.next() {
            let to = from + c.len_utf8();
            pieces.push(Piece { from: from as u32, to: to as u32, ..Piece::default() });
            let next = characters.peek().map(|&(_, next)| next);
            // As a rule that is a word of the language: there is little to order.
            if next.is_none_or(|next| !self.neighbours.contains(&(c, next))) {
                self.merge_all(word, &mut pieces, &mut merges);
                pieces
                    .drain(..)
                    .filter(|piece| piece.from < piece.to)
                    .for_each(|piece| self.tell(word, piece, &mut tokens));
            }
        }
        tokens
    }

    /// Puts a piece's tokens behind those before it.
    fn tell(&self, word: &str, piece: Piece, tokens: &mut Vec<Token>) {
        let (text, offsets) = (piece.of(word), (piece.from as usize, piece.to as usize));
        // Their ids say it all.
        let token = |id| Token::new(id, String::new(), offsets);
        let bytes = || text.bytes().map(|byte| self.bytes[usize::from(byte)]).collect::<Option<Vec<_>>>();
        if let Some(id) = self.id_of(text) {
            tokens.push(token(id));
        } else if let Some(ids) = bytes() {
            tokens.extend(ids.into_iter().map(token));
        } else if let Some(unk) = self.unk {
            // Unknown ones in a row are one.
            match tokens.last_mut().filter(|last| last.id == unk) {
                Some(last) => last.offsets.1 = offsets.1,
                None => tokens.push(token(unk)),
            }
        }
    }

    /// Merges neighbours, characters at first, until nothing is left to merge. `merges` is empty before and after.
    fn merge_all(&self, word: &str, pieces: &mut [Piece], merges: &mut BinaryHeap<Merge>) {
        for (at, piece) in (0u32..).zip(pieces.iter_mut()) {
            (piece.before, piece.after) = (at.checked_sub(1).unwrap_or(NONE), at + 1);
        }
        if let Some(last) = pieces.last_mut() {
            last.after = NONE;
        }
        merges
            .extend((1..pieces.len() as u32).filter_map(|right| self.merge(word, pieces, right - 1, right)));
        while let Some(Merge { left, right, bytes, .. }) = merges.pop() {
            let (a, b) = (pieces[left as usize], pieces[right as usize]);
            if a.from == a.to || b.from == b.to || b.to - a.from != bytes {
                continue;
            }
            pieces[left as usize] = Piece { to: b.to, after: b.after, ..a };
            pieces[right as usize].to = b.from;
            if b.after != NONE {
                pieces[b.after as usize].before = left;
                merges.extend(self.merge(word, pieces, left, b.after));
            }
            if a.before != NONE {
                merges.extend(self.merge(word, pieces, a.before, left));
            }
        }
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

    /// The definition, word for word: the whole text is looked at for each merge.
    fn by_definition(tokens: &[(String, f32)], word: &str) -> Vec<u32> {
        let id = |text: &str| tokens.iter().rposition(|(token, _)| token == text);
        let mut pieces: Vec<String> = word.chars().map(String::from).collect();
        let score = |pieces: &[String], at: usize| id(&pieces[at..at + 2].concat()).map(|id| tokens[id].1);
        let best = |pieces: &[String]| {
            let scores =
                (1..pieces.len()).filter_map(|at| score(pieces, at - 1).map(|score| (score, at - 1)));
            scores.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1))).map(|(_, at)| at)
        };
        while let Some(at) = best(&pieces) {
            let right = pieces.remove(at + 1);
            pieces[at] += &right;
        }
        pieces.iter().filter_map(|piece| id(piece)).map(|id| id as u32).collect()
    }

    #[test]
    fn texts_are_cut_as_the_definition_has_it() {
        let mut seed = 5u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for _ in 0..300 {
            let mut text = |most: u64| -> String {
                (0..=next(most)).map(|_| ['a', 'b', 'c', 'é', '▁'][next(5) as usize]).collect()
            };
            let texts: Vec<String> = (0..25).map(|_| text(4)).collect();
            let word = text(40);
            let tokens: Vec<(String, f32)> =
                texts.into_iter().map(|text| (text, next(4) as f32 - 2.0)).collect();
            let borrowed: Vec<(&str, f32)> =
                tokens.iter().map(|(text, score)| (text.as_str(), *score)).collect();
            assert_eq!(cut(&borrowed, None, &word), by_definition(&tokens, &word), "{word} by {tokens:?}");
        }
    }
}
