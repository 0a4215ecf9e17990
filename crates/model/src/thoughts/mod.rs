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

/// What stands around thoughts, and around the answer behind them where something does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Markers {
    opens: &'static str,
    closes: &'static str,
    answer: Option<[&'static str; 2]>,
}

impl Markers {
    const fn bare(opens: &'static str, closes: &'static str) -> Markers {
        Markers { opens, closes, answer: None }
    }
}

/// DeepSeek R1 and what learnt from it, Qwen, SmolLM3, EXAONE 4, GLM-Z1, OLMo 3, Phi-4.
const THINK: Markers = Markers::bare("<think>", "</think>");
/// Granite 3.3.
const THINK_AND_RESPOND: Markers = Markers { answer: Some(["<response>", "</response>"]), ..THINK };
/// Mistral's; Seed-OSS; Command R7B and A.
const OTHERS: [Markers; 3] = [
    Markers::bare("[THINK]", "[/THINK]"),
    Markers::bare("<seed:think>", "</seed:think>"),
    Markers {
        answer: Some(["<|START_RESPONSE|>", "<|END_RESPONSE|>"]),
        ..Markers::bare("<|START_THINKING|>", "<|END_THINKING|>")
    },
];

impl Markers {
    /// Those that a chat template knows of: it writes them, or cuts them off what was said before.
    pub fn of_template(source: &str) -> Option<Self> {
        let has = |known: &Markers| {
            let thinks = source.contains(known.opens) || source.contains(known.closes);
            thinks && known.answer.is_none_or(|[opens, _]| source.contains(opens))
        };
        [THINK_AND_RESPOND, THINK].into_iter().chain(OTHERS).find(has)
    }

    /// Whether each is one token: what thoughts are counted by.
    pub fn are_tokens(self, tokenizer: &Tokenizer) -> bool {
        self.ids(tokenizer).is_some()
    }

    fn ids(self, tokenizer: &Tokenizer) -> Option<Ids> {
        let id = |text: &str| tokenizer.id_of(text);
        id(self.opens).zip(id(self.closes)).map(|(opens, closes)| Ids { opens, closes })
    }

    /// Where an answer to a conversation that was rendered so begins; nowhere in thoughts, if the template has closed them.
    /// `continued`: what the answer goes on with, at the prompt's end, which may have opened thoughts, or stand in some.
    fn begins(self, prompt: &str, continued: Option<&str>) -> Option<Begins> {
        let end = prompt.trim_end();
        let Some(said) = continued.map(str::trim) else {
            return match end.ends_with(self.opens) {
                true => Some(Begins::Within),
                false => (!end.ends_with(self.closes)).then_some(Begins::Before),
            };
        };
        let before = end.strip_suffix(said).unwrap_or(end).trim_end();
        let is_open = match (said.rfind(self.opens), said.rfind(self.closes)) {
            (None, None) => before.ends_with(self.opens),
            (opened, closed) => opened > closed,
        };
        is_open.then_some(Begins::Within)
    }
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
    manner: Manner,
}

/// What becomes of thoughts, and how many there may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// Whether the client is told them.
    pub shown: Shown,
    /// Tokens between their markers at the most.
    pub most: Option<u32>,
}

/// What becomes of thoughts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shown {
    /// They are told beside the answer.
    #[default]
    Beside,
    /// They are left out.
    Never,
    /// They are a part of the answer.
    InText,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ids {
    opens: u32,
    closes: u32,
}

impl Thoughts {
    /// Of the answers to a prompt; none where it has closed them. `continued`: what they go on with, at its end.
    pub fn behind(
        prompt: &str,
        continued: Option<&str>,
        markers: Markers,
        tokenizer: &Tokenizer,
        manner: Manner,
    ) -> Option<Self> {
        let (begins, ids) = (markers.begins(prompt, continued)?, markers.ids(tokenizer));
        Some(Thoughts { markers, begins, ids, manner })
    }

    /// Whether the client is told them beside the answer.
    pub fn are_told(&self) -> bool {
        self.manner.shown == Shown::Beside
    }

    /// Whether they are told from the answer.
    pub fn are_apart(&self) -> bool {
        self.manner.shown != Shown::InText
    }

    /// Whether texts must be shown with special tokens to be read.
    pub fn has_special_marker(&self, tokenizer: &Tokenizer) -> bool {
        let is_special = |ids: Ids| tokenizer.is_special(ids.opens) || tokenizer.is_special(ids.closes);
        self.are_apart() && self.ids.is_some_and(is_special)
    }

    /// Begins to read a text.
    pub fn split(&self) -> Split {
        Split::new(self.markers, self.begins)
    }

    /// Whether tokens tell where they begin and end.
    pub fn is_marked_by_tokens(&self) -> bool {
        self.ids.is_some()
    }

    /// Whether there may be so many of them and no more.
    pub fn are_limited(&self) -> bool {
        self.manner.most.is_some()
    }

    /// Answers that begin with thoughts, or not, no longer ones than they may be, and then have a form, if any; none where all answers
    /// are such, or no token tells where thoughts end.
    pub fn then(&self, form: Option<Grammar>) -> Option<Grammar> {
        let held = form.is_some() || self.are_limited();
        self.ids.filter(|_| held).map(|ids| Behind::grammar(form, self.begins, ids, self.manner.most))
    }

    /// How many of an answer's tokens are thoughts, their markers among them. None where no token tells.
    pub fn count(&self, tokens: &[u32]) -> Option<usize> {
        let ids = self.ids?;
        let begun = self.begins == Begins::Within || tokens.first() == Some(&ids.opens);
        let end = || tokens.iter().position(|&id| id == ids.closes).map_or(tokens.len(), |at| at + 1);
        Some(if begun { end() } else { 0 })
    }
}
