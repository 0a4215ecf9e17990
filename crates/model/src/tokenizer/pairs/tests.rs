//! Against the `tokenizers` crate's own byte pairs, on vocabularies that grow as trained ones do.

use tokenizers::Model;
use tokenizers::models::bpe::BPE;

use super::*;

/// Numbers from a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

const LETTERS: [&str; 6] = ["a", "b", "c", "Ġ", "é", "日"];
/// No tokens by themselves.
const STRANGE: [&str; 3] = ["x", "ö", "👍"];

/// Letters and what else there is, then pairs of what is there: some of them twice, some of them ways to the same text.
fn grown(others: &[String], numbers: &mut Numbers) -> (Vec<String>, Vec<(String, String)>) {
    let mut tokens: Vec<String> = LETTERS.map(str::to_owned).to_vec();
    let mut merges = Vec::new();
    for _ in 0..40 {
        let (left, right) = (numbers.below(tokens.len()), numbers.below(tokens.len()));
        let (left, right) = (tokens[left].clone(), tokens[right].clone());
        let both = format!("{left}{right}");
        if both.chars().count() <= 6 {
            if !tokens.contains(&both) {
                tokens.push(both);
            }
            merges.push((left, right));
        }
    }
    tokens.extend_from_slice(others);
    (tokens, merges)
}

fn ours(tokens: &[String], merges: &[(String, String)], rules: (Unknown, Whole)) -> BytePairs {
    let vocabulary = Vocabulary::new(tokens.iter().collect());
    let id = |text: &str| vocabulary.id(text).unwrap();
    let merges: Vec<_> = merges.iter().map(|(l, r)| ((id(l), id(r)), id(&format!("{l}{r}")))).collect();
    BytePairs::new(vocabulary, &merges, rules)
}

fn check(others: &[String], with: impl Fn(&[String]) -> (Unknown, Whole)) {
    let mut numbers = Numbers(11);
    for _ in 0..60 {
        let (tokens, merges) = grown(others, &mut numbers);
        let rules = with(&tokens);
        let pairs = ours(&tokens, &merges, rules);
        let ids: tokenizers::models::bpe::Vocab = tokens.iter().cloned().zip(0..).collect();
        let mut theirs = BPE::builder().vocab_and_merges(ids, merges).ignore_merges(rules.1 == Whole::AsItIs);
        if let Unknown::Bytes(unknown) = rules.0 {
            theirs = theirs.byte_fallback(true).fuse_unk(true);
            theirs = unknown.into_iter().fold(theirs, |bpe, id| bpe.unk_token(tokens[id as usize].clone()));
        }
        let theirs = theirs.build().unwrap();
        for _ in 0..40 {
            let all: Vec<&str> = LETTERS.into_iter().chain(STRANGE).collect();
            let word: String = (0..numbers.below(24)).map(|_| all[numbers.below(all.len())]).collect();
            assert_eq!(pairs.tokenize(&word), theirs.tokenize(&word).unwrap(), "{word} of {tokens:?}");
        }
    }
}

#[test]
fn words_are_cut_as_the_library_cuts_them() {
    check(&[], |_| (Unknown::Dropped, Whole::Merged));
    check(&["aéc".to_owned()], |_| (Unknown::Dropped, Whole::AsItIs));
}

#[test]
fn characters_that_are_no_tokens_become_bytes_or_one_unknown_token() {
    let bytes: Vec<String> = (0..=255).map(|byte: u8| format!("<0x{byte:02X}>")).collect();
    check(&bytes, |_| (Unknown::Bytes(None), Whole::Merged));
    check(&[], |_| (Unknown::Bytes(None), Whole::Merged));
    let last = |tokens: &[String]| Some(tokens.len() as u32 - 1);
    check(&["<unk>".to_owned()], |tokens| (Unknown::Bytes(last(tokens)), Whole::Merged));
}

#[test]
fn a_text_that_is_there_twice_is_the_later_token() {
    let vocabulary = Vocabulary::new(["a", "b", "a"].into_iter().collect());
    assert_eq!((vocabulary.id("a"), vocabulary.id("b"), vocabulary.id("c")), (Some(2), Some(1), None));
    assert_eq!([0, 1, 2, 3].map(|id| vocabulary.token(id)), [None, Some("b"), Some("a"), None]);
    assert_eq!((vocabulary.len(), vocabulary.places()), (2, 3));
    assert_eq!(vocabulary.iter().collect::<Vec<_>>(), [("b", 1), ("a", 2)]);
}
