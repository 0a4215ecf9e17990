//! `echo`, and where tokens begin in the text that a client sees.
//!
//! A text that echoes begins with its prompt as the client gave it: special tokens in it are shown, those that the tokenizer
//! put around it are not, and take no place.

use super::Generate;
use crate::tokenizer::{Detokenizer, Special, Tokenizer};

/// The text of a prompt that is echoed.
pub(super) fn echoed(request: &Generate, prompt: usize, tokenizer: &Tokenizer) -> String {
    let given = request.echo.as_ref().map(|given| given[prompt].clone()).unwrap_or_default();
    tokenizer.decode(&request.prompts[prompt][given], Special::With)
}

/// Where the tokens of a choice begin, in characters of its text. One that completes no character begins where the
/// character does.
#[derive(Clone, Debug)]
pub(super) struct Offsets {
    characters: usize,
    answer: Detokenizer,
}

impl Offsets {
    /// Those of a text that goes on from a prompt.
    pub(super) fn new(request: &Generate, prompt: usize, tokenizer: &Tokenizer) -> Self {
        let special = if request.params.skip_special_tokens { Special::Without } else { Special::With };
        let mut answer = tokenizer.detokenizer(special);
        answer.go_on(&tokenizer.continuation(&request.prompts[prompt], Special::Without));
        Offsets { characters: 0, answer }
    }

    /// Of a prompt that is echoed, before any token of the answer.
    pub(super) fn of_prompt(
        &mut self,
        request: &Generate,
        prompt: usize,
        tokenizer: &Tokenizer,
    ) -> Vec<usize> {
        let Some(given) = request.echo.as_ref().map(|given| &given[prompt]) else { return Vec::new() };
        let (mut text, mut shown) = (tokenizer.detokenizer(Special::With), String::new());
        let mut offsets = Vec::with_capacity(request.prompts[prompt].len());
        for (at, &id) in request.prompts[prompt].iter().enumerate() {
            offsets.push(self.characters);
            if given.contains(&at) {
                text.push(tokenizer, id, &mut shown);
            }
            if at + 1 == given.end {
                text.finish(tokenizer, &mut shown);
            }
            self.take(&mut shown);
        }
        offsets
    }

    /// Of the next tokens of the answer.
    pub(super) fn of_answer(
        &mut self,
        tokens: impl Iterator<Item = u32>,
        tokenizer: &Tokenizer,
    ) -> Vec<usize> {
        let mut shown = String::new();
        let next = |id| {
            let at = self.characters;
            self.answer.push(tokenizer, id, &mut shown);
            self.take(&mut shown);
            at
        };
        tokens.map(next).collect()
    }

    fn take(&mut self, shown: &mut String) {
        self.characters += shown.chars().count();
        shown.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::super::tests::{choice, complete, meta, model, parsed};
    use super::super::{Choice, Chunks, News, response};
    use super::*;
    use crate::sampling::TokenLogprobs;

    /// An answer that has a character in several tokens, and a special token.
    const ANSWER: &str = "ö👍<|im_start|>!";

    fn answered(text: &str, tokenizer: &Tokenizer) -> Choice {
        let tokens = tokenizer.encode(text, Special::Without).unwrap();
        let logprob = |&token: &u32| TokenLogprobs { token, logprob: -1.0, rank: 1, top: Vec::new() };
        let logprobs = tokens.iter().map(logprob).collect();
        let said = tokenizer.decode(&tokens, Special::Without);
        Choice { logprobs, ..choice(&tokens, &said) }
    }

    /// The text of an answer, its tokens and their offsets; the same streamed.
    fn shown(body: Value) -> (String, Vec<String>, Vec<usize>) {
        let (request, m) = (complete(body).unwrap(), model());
        let choice = answered(ANSWER, &m.tokenizer);
        let whole = parsed(&response(&request, std::slice::from_ref(&choice), &meta(), &m.tokenizer));
        let whole = whole["choices"][0].clone();
        let mut chunks = Chunks::new(request, meta(), Arc::new(m.tokenizer));
        let (mut text, mut offsets) = (String::new(), Vec::new());
        for at in 0..choice.tokens.len() {
            // All of the text at once: which token brings it is another's business.
            let said = if at == 0 { choice.text.as_str() } else { "" };
            let news = News { index: 0, choice: &choice, text: said, tokens: &(at..at + 1), finish: None };
            for chunk in chunks.of(&news) {
                text += chunk["choices"][0]["text"].as_str().unwrap();
                offsets.extend(
                    chunk["choices"][0]["logprobs"]["text_offset"].as_array().unwrap().iter().cloned(),
                );
            }
        }
        assert_eq!((&json!(text), &json!(offsets)), (&whole["text"], &whole["logprobs"]["text_offset"]));
        let tokens = serde_json::from_value(whole["logprobs"]["tokens"].clone()).unwrap();
        (text, tokens, serde_json::from_value(json!(offsets)).unwrap())
    }

    #[test]
    fn a_prompt_is_echoed_as_it_was_given() {
        let body = |prompt: Value| json!({"prompt": prompt, "echo": true, "logprobs": 0, "max_tokens": 9});
        let (text, tokens, offsets) = shown(body(json!("<|im_start|>user\nhé")));
        assert_eq!(text, "<|im_start|>user\nhéö👍!");
        assert_eq!(tokens[..2], ["<|endoftext|>", "<|im_start|>"]);
        assert_eq!(offsets[..3], [0, 0, 12], "what the tokenizer added takes no place");
        let given = model().tokenizer.encode("hé", Special::With).unwrap();
        let (text, _, offsets) = shown(body(json!(given)));
        assert_eq!((text.as_str(), &offsets[..3]), ("<|endoftext|>héö👍!", &[0, 13, 14][..]));
        let (text, _, offsets) = shown(json!({"prompt": "hé", "logprobs": 0, "max_tokens": 9}));
        assert_eq!((text.as_str(), offsets[0]), ("ö👍!", 0));
    }

    #[test]
    fn tokens_are_where_their_offsets_say() {
        for more in [json!({}), json!({"skip_special_tokens": false}), json!({"add_special_tokens": false})] {
            let mut body = json!({"prompt": "ä<|im_end|> b👍", "echo": true, "logprobs": 0, "max_tokens": 9});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let specials = more["skip_special_tokens"] == false;
            let (mut text, tokens, offsets) = shown(body);
            if specials {
                // The choice that is shown here left it out.
                text = text.replace("👍!", "👍<|im_start|>!");
            }
            let text: Vec<char> = text.chars().collect();
            let ends = offsets.iter().skip(1).copied().chain([text.len()]);
            for ((token, &begin), end) in tokens.iter().zip(&offsets).zip(ends) {
                let found: String = text[begin..end].iter().collect();
                let hidden = found.is_empty() && token.starts_with("<|");
                assert!(found == *token || hidden || token.contains('\u{fffd}'), "{token}: {found}");
            }
            assert_eq!(text.iter().filter(|&&c| c == '👍').count(), 2, "the second in the answer");
        }
    }

    #[test]
    fn what_is_cut_off_is_not_shown() {
        let echo = |more: Value| {
            let mut body = json!({"prompt": "abc", "echo": true, "max_tokens": 9});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let request = complete(body).unwrap();
            (request.prompts[0].len(), echoed(&request, 0, &model().tokenizer))
        };
        let whole = echo(json!({}));
        assert_eq!(whole.1, "abc");
        let left = echo(json!({"truncate_prompt_tokens": whole.0 - 1}));
        assert_eq!(left, (whole.0 - 1, "abc".to_owned()), "what the tokenizer added is cut first");
        let right = echo(json!({"truncate_prompt_tokens": 1, "truncation_side": "right"}));
        assert_eq!(right, (1, String::new()));
    }
}
