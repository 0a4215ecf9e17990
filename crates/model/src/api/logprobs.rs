//! Log-probabilities in the shapes of the two endpoints, and vLLM's for prompts.
//!
//! There may be a hundred thousand of them in an answer, and as values they take ten times what they take as text: so lists are
//! made item by item, and written as they are made.

use serde_json::{Map, Value, json};

use super::Generate;
use super::text::Text;
use crate::sampling::TokenLogprobs;
use crate::tokenizer::Tokenizer;

/// JSON has no infinity; vLLM's floor.
const FLOOR: f32 = -9999.0;

/// A list whose items are made when they are asked for.
pub(super) type Items<'a> = Box<dyn Iterator<Item = Value> + 'a>;

/// As a list.
pub(super) fn write(items: Items<'_>, out: &mut Text) {
    out.list(items, |out, item| out.value(&item));
}

/// Such lists by their names.
pub(super) struct Lists<'a>(Vec<(&'static str, Items<'a>)>);

impl Lists<'_> {
    /// All of it: what a chunk of a stream has is little.
    pub(super) fn whole(self) -> Value {
        self.0.into_iter().map(|(name, items)| (name, items.collect::<Value>())).collect()
    }

    /// As an object.
    pub(super) fn write(self, out: &mut Text) {
        out.object(self.0, |out, _, items| write(items, out));
    }
}

/// Shows tokens as a request wants them.
pub(super) struct Shown<'a> {
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) as_ids: bool,
}

impl<'a> Shown<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, request: &Generate) -> Self {
        Shown { tokenizer, as_ids: request.tokens_as_ids }
    }

    fn token(&self, id: u32) -> String {
        if self.as_ids { format!("token_id:{id}") } else { self.tokenizer.token_text(id) }
    }

    /// Completions: parallel lists, the prompt's first where it is echoed. The first token of a text
    /// has no probability.
    pub(super) fn completion<'b>(
        &'b self,
        tokens: &'b [(u32, Option<&'b TokenLogprobs>)],
        offsets: &'b [usize],
    ) -> Lists<'b> {
        let scored = |f: Box<dyn Fn(&TokenLogprobs) -> Value + 'b>| -> Items<'b> {
            Box::new(tokens.iter().map(move |(_, lp)| lp.map_or(Value::Null, &f)))
        };
        Lists(vec![
            ("tokens", Box::new(tokens.iter().map(|&(id, _)| json!(self.token(id))))),
            ("token_logprobs", scored(Box::new(|lp| json!(floored(lp.logprob))))),
            ("top_logprobs", scored(Box::new(|lp| self.by_token(lp)))),
            ("text_offset", Box::new(offsets.iter().map(|offset| json!(offset)))),
        ])
    }

    /// The best tokens and the one taken, by text; of several tokens with one text the best.
    fn by_token(&self, lp: &TokenLogprobs) -> Value {
        let mut map = Map::new();
        for (id, logprob) in lp.top.iter().copied().chain([(lp.token, lp.logprob)]) {
            map.entry(self.token(id)).or_insert(json!(floored(logprob)));
        }
        Value::Object(map)
    }

    /// Chat: an object for each token.
    pub(super) fn chat<'b>(&'b self, tokens: &'b [TokenLogprobs]) -> Lists<'b> {
        let one = |id: u32, logprob: f32| {
            let bytes = self.tokenizer.token_bytes(id);
            json!({"token": self.token(id), "logprob": floored(logprob), "bytes": bytes})
        };
        let content = tokens.iter().map(move |lp| {
            let mut token = one(lp.token, lp.logprob);
            token["top_logprobs"] = lp.top.iter().map(|&(id, x)| one(id, x)).collect();
            token
        });
        Lists(vec![("content", Box::new(content))])
    }

    /// vLLM's `prompt_logprobs`: by token id, null for the first.
    pub(super) fn prompt<'b>(&'b self, tokens: &'b [Option<TokenLogprobs>]) -> Items<'b> {
        let one = |lp: &TokenLogprobs| {
            let mut map = Map::new();
            let ranked = lp.top.iter().zip(1..).map(|(&(id, x), rank)| (id, x, rank));
            for (id, x, rank) in [(lp.token, lp.logprob, lp.rank)].into_iter().chain(ranked) {
                let text = self.tokenizer.token_text(id);
                let entry = json!({"logprob": floored(x), "rank": rank, "decoded_token": text});
                map.entry(id.to_string()).or_insert(entry);
            }
            Value::Object(map)
        };
        Box::new(tokens.iter().map(move |lp| lp.as_ref().map_or(Value::Null, one)))
    }
}

fn floored(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { FLOOR }
}
