//! What a model thinks before it answers: how a family of models marks it, how it is told from the answer, and how an answer
//! that must have a form is let to begin with it.

mod form;
mod split;
#[cfg(test)]
mod tests;

pub use split::{Apart, Split};

use crate::sampling::Grammar;
use crate::tokenizer::Tokenizer;
use form::Behind;

/// What stands around thoughts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Markers {
    opens: &'static str,
    closes: &'static str,
}

/// DeepSeek R1 and what learnt from it, Qwen, SmolLM3, EXAONE 4, GLM-Z1, OLMo 3, Phi-4; Mistral's; Seed-OSS.
const KNOWN: [Markers; 3] = [
    Markers { opens: "<think>", closes: "</think>" },
    Markers { opens: "[THINK]", closes: "[/THINK]" },
    Markers { opens: "<seed:think>", closes: "</seed:think>" },
];

impl Markers {
    /// Those that a chat template knows of: it writes them, or cuts them off what was said before.
    pub fn of_template(source: &str) -> Option<Self> {
        KNOWN.into_iter().find(|known| source.contains(known.opens) || source.contains(known.closes))
    }

    /// Where an answer to a conversation that was rendered so begins; nowhere in thoughts, if the template has closed them. A
    /// message that is gone on with may itself have begun some, before it or within.
    fn begins(self, prompt: &str, answer: Answer) -> Option<Begins> {
        let end = prompt.trim_end();
        let is_open = || end.rfind(self.opens) > end.rfind(self.closes);
        match answer {
            _ if end.ends_with(self.opens) => Some(Begins::Within),
            Answer::GoesOn => is_open().then_some(Begins::Within),
            Answer::Begins => (!end.ends_with(self.closes)).then_some(Begins::Before),
        }
    }
}

/// Whether an answer is one of its own, or goes on with a message that the client wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Its own.
    Begins,
    /// The last message's.
    GoesOn,
}

/// Where an answer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begins {
    /// Where a model may open thoughts, or not.
    Before,
    /// In thoughts that the prompt has opened.
    Within,
}

/// How the answers to a request are read.
#[derive(Clone, Debug, PartialEq)]
pub struct Thoughts {
    markers: Markers,
    begins: Begins,
    /// The tokens that the markers are, where each is one.
    ids: Option<Ids>,
    /// Whether the client is told them.
    pub shown: Shown,
}

/// What becomes of thoughts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// They are told beside the answer.
    Beside,
    /// They are left out.
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ids {
    opens: u32,
    closes: u32,
}

impl Thoughts {
    /// Of the answers to a prompt; none where it has closed them.
    pub fn behind(
        prompt: &str,
        answer: Answer,
        markers: Markers,
        tokenizer: &Tokenizer,
        shown: Shown,
    ) -> Option<Self> {
        let id = |text: &str| tokenizer.id_of(text);
        let ids = id(markers.opens).zip(id(markers.closes)).map(|(opens, closes)| Ids { opens, closes });
        Some(Thoughts { markers, begins: markers.begins(prompt, answer)?, ids, shown })
    }

    /// Whether texts must be shown with special tokens to be read.
    pub fn has_special_marker(&self, tokenizer: &Tokenizer) -> bool {
        self.ids.is_some_and(|ids| tokenizer.is_special(ids.opens) || tokenizer.is_special(ids.closes))
    }

    /// Begins to read a text.
    pub fn split(&self) -> Split {
        Split::new(self.markers, self.begins)
    }

    /// Answers that begin with thoughts, or not, and then have a form; none where no token tells where they end.
    pub fn then(&self, form: Grammar) -> Option<Grammar> {
        Some(Behind::grammar(form, self.begins, self.ids?))
    }

    /// How many of an answer's tokens are thoughts, their markers among them. None where no token tells.
    pub fn count(&self, tokens: &[u32]) -> Option<usize> {
        let ids = self.ids?;
        let begun = self.begins == Begins::Within || tokens.iter().take(2).any(|&id| id == ids.opens);
        let end = || tokens.iter().position(|&id| id == ids.closes).map_or(tokens.len(), |at| at + 1);
        Some(if begun { end() } else { 0 })
    }
}
