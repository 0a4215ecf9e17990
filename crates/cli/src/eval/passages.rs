//! Passages whose last word is to be guessed, cut from any text.
//!
//! As in LAMBADA (Paperno et al., 2016): some sentences of context, then one whose last word is the target. Nobody has
//! sorted out those that a person could not guess: rates are low, and good to compare two formats of one model.

/// A passage without its last word, and that word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Passage {
    /// Ends before the blank.
    pub(super) context: String,
    /// Letters only.
    pub(super) word: String,
}

/// Words of context at the least.
const CONTEXT_WORDS: usize = 50;
/// Letters of a target at the least: `the` and `him` are too easily said.
const LETTERS: usize = 4;

/// All passages of a text that do not overlap, in order.
pub(super) fn passages(text: &str) -> Vec<Passage> {
    let mut found = Vec::new();
    let mut context = String::new();
    for sentence in text.split("\n\n").flat_map(sentences) {
        let begun = context.len();
        if begun > 0 {
            context.push(' ');
        }
        context.push_str(sentence);
        if context[..begun].split_whitespace().count() >= CONTEXT_WORDS
            && let Some(passage) = passage(&context)
        {
            found.push(passage);
            context.clear();
        }
    }
    found
}

/// Sentences of a paragraph: up to a full stop, question or exclamation mark, quotes included.
fn sentences(paragraph: &str) -> impl Iterator<Item = &str> {
    paragraph.split_inclusive(['.', '?', '!']).map(str::trim).filter(|s| s.contains(char::is_alphabetic))
}

fn passage(text: &str) -> Option<Passage> {
    let body = text.trim_end_matches(|c: char| !c.is_alphabetic());
    let (context, word) = body.rsplit_once(' ')?;
    let plain = word.chars().count() >= LETTERS && word.chars().all(char::is_alphabetic);
    plain.then(|| Passage { context: context.to_string(), word: word.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passage_ends_with_the_word_to_guess() {
        let filler = "The old whale swam on. ".repeat(11);
        let text = format!("{filler}And then we saw the Whale!\n\nNothing came of it.");
        let all = passages(&text);
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].word, "Whale");
        assert!(all[0].context.ends_with("And then we saw the"));
    }

    #[test]
    fn short_words_and_figures_are_no_targets() {
        assert_eq!(passage("The leg was Ahab's."), None);
        assert_eq!(passage("He saw him. I saw him."), None);
        assert_eq!(
            passage("A ship is a ship."),
            Some(Passage { context: "A ship is a".into(), word: "ship".into() })
        );
    }

    #[test]
    fn the_text_that_comes_along_has_enough_of_them() {
        assert!(passages(super::super::TEXT).len() >= 200);
    }
}
