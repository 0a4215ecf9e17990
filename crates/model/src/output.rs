//! A sequence's tokens to the text that its client sees, and the conditions that end it.

use std::sync::Arc;

use crate::sampling::SamplingParams;
use crate::tokenizer::{Detokenizer, Special, Tokenizer};

/// Why a text ended, in OpenAI's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it, or a stop condition did.
    Stop,
    /// It reached `max_tokens` or the end of the context.
    Length,
    /// It was cancelled, or its engine failed.
    Abort,
}

impl FinishReason {
    /// As in `finish_reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Abort => "abort",
        }
    }
}

/// Which stop condition ended a text (vLLM's `stop_reason`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// One of `stop_token_ids`.
    Token(u32),
    /// One of `stop`.
    Text(String),
}

/// The end of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    /// Why.
    pub reason: FinishReason,
    /// Which condition, if it was one of the request's own.
    pub cause: Option<StopCause>,
}

impl Finish {
    fn because(reason: FinishReason) -> Self {
        Finish { reason, cause: None }
    }
}

/// What a token adds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Text that can be shown now; it may be empty, and never ends inside a character.
    pub text: String,
    /// The end, with the last piece of text.
    pub finish: Option<Finish>,
}

/// Turns tokens into text as they come, holds back what may be the beginning of a stop string, and
/// says when the text ends.
///
/// As in vLLM: a token that ends the text is not shown, nor is a stop string, unless
/// `include_stop_str_in_output`; a stop string counts only if it is completed after `min_tokens`. A token that
/// ends the text always does: it is not drawn before, but where a format leaves nothing else. Where several stop strings are in the text, the one that
/// is complete first wins, so that the text does not depend on how it was cut into tokens.
#[derive(Clone, Debug)]
pub struct TextStream {
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    /// Ids that end a text, and whether the request named them.
    enders: Vec<(u32, Named)>,
    stops: Arc<[String]>,
    show_stop: bool,
    min_tokens: usize,
    max_tokens: usize,
    n_tokens: usize,
    /// Text not shown yet.
    held: String,
    finished: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    ByModel,
    ByRequest,
}

impl TextStream {
    /// Begins a text. `eos`: ids that end it unless the parameters ignore them. `max_tokens`: what
    /// the parameters allow or the context has room for, whichever is less.
    pub fn new(tokenizer: Arc<Tokenizer>, params: &SamplingParams, eos: &[u32], max_tokens: usize) -> Self {
        let special = if params.skip_special_tokens { Special::Without } else { Special::With };
        let eos = if params.ends_at_eos() { eos } else { &[] };
        let by_model = eos.iter().map(|&id| (id, Named::ByModel));
        let by_request = params.stop_token_ids.iter().map(|&id| (id, Named::ByRequest));
        TextStream {
            detokenizer: tokenizer.detokenizer(special),
            tokenizer,
            enders: by_model.chain(by_request).collect(),
            stops: params.stop.clone(),
            show_stop: params.include_stop_str_in_output,
            min_tokens: params.min_tokens as usize,
            max_tokens,
            n_tokens: 0,
            held: String::new(),
            finished: false,
        }
    }

    /// The text goes on where this prompt ends.
    pub fn after(mut self, prompt: &[u32]) -> Self {
        // Special tokens of a prompt are never shown in its answer.
        self.detokenizer.go_on(&self.tokenizer.continuation(prompt, Special::Without));
        self
    }

    /// Whether the text has ended.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Takes the next token. Tokens after the end (from steps in flight) add nothing.
    pub fn push(&mut self, token: u32) -> Delta {
        if self.finished {
            return Delta::default();
        }
        self.n_tokens += 1;
        let ender = self.enders.iter().find(|&&(id, _)| id == token).copied();
        let before = self.held.len();
        if ender.is_none() || self.show_stop {
            self.detokenizer.push(&self.tokenizer, token, &mut self.held);
        }
        if self.n_tokens > self.min_tokens
            && let Some(found) = self.find_stop(before)
        {
            return self.end_at_stop(found);
        }
        match ender {
            Some((_, Named::ByModel)) => self.end(Finish::because(FinishReason::Stop)),
            Some((id, Named::ByRequest)) => {
                self.end(Finish { reason: FinishReason::Stop, cause: Some(StopCause::Token(id)) })
            }
            None if self.n_tokens >= self.max_tokens => self.end(Finish::because(FinishReason::Length)),
            None => Delta { text: self.release(), finish: None },
        }
    }

    /// Ends the text from outside; what was held back is shown.
    pub fn abort(&mut self) -> Delta {
        if self.finished {
            return Delta::default();
        }
        self.end(Finish::because(FinishReason::Abort))
    }

    fn end(&mut self, finish: Finish) -> Delta {
        self.finished = true;
        self.detokenizer.finish(&self.tokenizer, &mut self.held);
        Delta { text: std::mem::take(&mut self.held), finish: Some(finish) }
    }

    fn end_at_stop(&mut self, (start, stop): (usize, usize)) -> Delta {
        self.finished = true;
        let cause = self.stops[stop].clone();
        let keep = if self.show_stop { start + cause.len() } else { start };
        let mut text = std::mem::take(&mut self.held);
        text.truncate(keep);
        let finish = Finish { reason: FinishReason::Stop, cause: Some(StopCause::Text(cause)) };
        Delta { text, finish: Some(finish) }
    }

    /// Start and index of the stop string that is complete first, and only by text after `before`;
    /// of those complete at once, the longest.
    fn find_stop(&self, before: usize) -> Option<(usize, usize)> {
        let found = self.stops.iter().enumerate().filter_map(|(i, stop)| {
            let from = next_char(&self.held, (before + 1).saturating_sub(stop.len()));
            let at = from + self.held[from..].find(stop.as_str())?;
            Some((at + stop.len(), at, i))
        });
        found.filter(|&(end, ..)| end > before).min().map(|(_, start, i)| (start, i))
    }

    /// Takes the text that no stop string can claim any more.
    fn release(&mut self) -> String {
        let claimed = self.stops.iter().map(|stop| claimed(&self.held, stop)).max().unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - claimed);
        std::mem::replace(&mut self.held, kept)
    }
}

/// Where the first character begins that does not begin before `at`, which is in the text or its end.
fn next_char(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at += 1;
    }
    at
}

/// Bytes at the end of `text` that are a beginning of `stop`.
fn claimed(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    let (text, stop) = (text.as_bytes(), stop.as_bytes());
    (1..=longest).rev().find(|&n| text[text.len() - n..] == stop[..n]).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::TokenizerConfig;

    /// A byte-level tokenizer without merges: a token for each byte, and some special ones.
    fn tokenizer() -> Arc<Tokenizer> {
        let fixture = include_str!("../tests/fixtures/tokenizer/smollm.json");
        let fixture: serde_json::Value = serde_json::from_str(fixture).unwrap();
        let json = serde_json::to_vec(&fixture["hf"]).unwrap();
        Arc::new(Tokenizer::from_hf(&json, &TokenizerConfig::default()).unwrap())
    }

    const EOS: u32 = 2;

    fn params(stop: &[&str]) -> SamplingParams {
        SamplingParams { stop: stop.iter().map(|&s| s.to_owned()).collect(), ..SamplingParams::default() }
    }

    /// Ids of `text`, a token for each byte.
    fn bytes(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
        let id = |b: u8| (0..tokenizer.vocab_size() as u32).find(|&id| tokenizer.token_bytes(id) == [b]);
        text.bytes().map(|b| id(b).unwrap()).collect()
    }

    struct Run {
        deltas: Vec<String>,
        finish: Option<Finish>,
    }

    fn run(params: &SamplingParams, max: usize, ids: impl Fn(&Tokenizer) -> Vec<u32>) -> Run {
        let tokenizer = tokenizer();
        let mut stream = TextStream::new(tokenizer.clone(), params, &[EOS], max);
        let mut run = Run { deltas: Vec::new(), finish: None };
        for id in ids(&tokenizer) {
            let delta = stream.push(id);
            run.deltas.push(delta.text);
            run.finish = run.finish.or(delta.finish);
        }
        run
    }

    fn stopped_by(text: &str) -> Option<Finish> {
        let cause = Some(StopCause::Text(text.to_owned()));
        Some(Finish { reason: FinishReason::Stop, cause })
    }

    #[test]
    fn what_may_begin_a_stop_string_is_held_back() {
        let r = run(&params(&["abc", "bd"]), 99, |t| bytes(t, "xababd!"));
        assert_eq!(r.deltas, ["x", "", "", "ab", "", "a", ""]);
        assert_eq!(r.finish, stopped_by("bd"));
        let r = run(&params(&["abc"]), 4, |t| bytes(t, "xxab"));
        assert_eq!(r.deltas, ["x", "x", "", "ab"], "what was held back is shown at the end");
        assert_eq!(r.finish, Some(Finish::because(FinishReason::Length)));
    }

    #[test]
    fn text_does_not_depend_on_how_it_is_cut() {
        let text = "The quick brown fox jumps. END, don't END. 👍👍 é!";
        for stops in [
            vec!["END"],
            vec!["ick br", "own fox", "brown"],
            vec!["👍👍"],
            vec![" é", "é!"],
            vec!["zzz"],
            vec!["s. E", "END"],
        ] {
            for show in [false, true] {
                let p = SamplingParams { include_stop_str_in_output: show, ..params(&stops) };
                let one = run(&p, 999, |t| bytes(t, text));
                let other = run(&p, 999, |t| t.encode(text, Special::Without).unwrap());
                assert_eq!(one.deltas.concat(), other.deltas.concat(), "{stops:?}");
                assert_eq!(one.finish, other.finish, "{stops:?}");
            }
        }
    }

    #[test]
    fn stop_strings_are_shown_on_request_only() {
        let mut p = params(&["END"]);
        assert_eq!(run(&p, 99, |t| bytes(t, "a END b")).deltas.concat(), "a ");
        p.include_stop_str_in_output = true;
        assert_eq!(run(&p, 99, |t| bytes(t, "a END b")).deltas.concat(), "a END");
    }

    #[test]
    fn ids_end_a_text_and_are_not_shown() {
        let hi = |t: &Tokenizer, end: u32| [bytes(t, "hi"), vec![end], bytes(t, "more")].concat();
        let r = run(&params(&[]), 99, |t| hi(t, EOS));
        assert_eq!((r.deltas.concat().as_str(), r.finish), ("hi", Some(Finish::because(FinishReason::Stop))));
        let p = SamplingParams { stop_token_ids: [300].into(), ..params(&[]) };
        let r = run(&p, 99, |t| hi(t, 300));
        assert_eq!(r.deltas.concat(), "hi");
        assert_eq!(r.finish.unwrap().cause, Some(StopCause::Token(300)));
        let p = SamplingParams { ignore_eos: true, skip_special_tokens: false, ..params(&[]) };
        let r = run(&p, 99, |t| hi(t, EOS));
        assert_eq!((r.deltas.concat().as_str(), r.finish), ("hi<|im_end|>more", None));
    }

    #[test]
    fn a_stop_string_counts_after_min_tokens_and_an_end_that_was_drawn_at_once() {
        let p = SamplingParams { min_tokens: 5, ..params(&["b"]) };
        let r = run(&p, 99, |t| bytes(t, "abcabcabc"));
        assert_eq!(r.deltas.concat(), "abcabca");
        let p = SamplingParams { min_tokens: 3, ..params(&["abcd"]) };
        let r = run(&p, 99, |t| bytes(t, "abcdabcd"));
        assert_eq!((r.deltas.concat().as_str(), r.finish), ("", stopped_by("abcd")), "completed after them");
        // One that came too early is still held back, as another may begin with it.
        let p = SamplingParams { min_tokens: 4, ..params(&["。", "。\n"]) };
        let r = run(&p, 99, |t| bytes(t, "。。x"));
        assert_eq!((r.deltas.concat().as_str(), r.finish), ("。", stopped_by("。")));
        let p = SamplingParams { min_tokens: 3, ..params(&["abcd"]) };
        // A format had no more to come.
        let r = run(&p, 99, |t| [bytes(t, "a"), vec![EOS]].concat());
        assert_eq!((r.deltas.concat().as_str(), r.finish), ("a", Some(Finish::because(FinishReason::Stop))));
    }

    #[test]
    fn an_incomplete_character_is_shown_broken_at_the_end_only() {
        let r = run(&params(&[]), 3, |t| bytes(t, "👍"));
        assert_eq!(r.deltas, ["", "", "\u{fffd}", ""]);
        assert_eq!(r.finish, Some(Finish::because(FinishReason::Length)));
    }

    #[test]
    fn aborting_shows_what_was_held() {
        let tokenizer = tokenizer();
        let mut stream = TextStream::new(tokenizer.clone(), &params(&["ab"]), &[EOS], 9);
        assert_eq!(stream.push(bytes(&tokenizer, "a")[0]).text, "");
        let delta = stream.abort();
        assert_eq!((delta.text.as_str(), delta.finish), ("a", Some(Finish::because(FinishReason::Abort))));
        assert_eq!(stream.push(5), Delta::default());
        assert_eq!((stream.abort(), stream.n_tokens), (Delta::default(), 1));
    }
}
