//! Log-probabilities in the shapes of the two endpoints, and vLLM's for prompts.

use serde_json::{Map, Value, json};

use super::Generate;
use crate::sampling::TokenLogprobs;
use crate::tokenizer::Tokenizer;

/// JSON has no infinity; vLLM's floor.
const FLOOR: f32 = -9999.0;

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
    pub(super) fn completion(&self, tokens: &[(u32, Option<&TokenLogprobs>)], offsets: &[usize]) -> Value {
        let lists = |f: &dyn Fn(&TokenLogprobs) -> Value| -> Vec<Value> {
            tokens.iter().map(|(_, lp)| lp.map_or(Value::Null, f)).collect()
        };
        json!({
            "tokens": tokens.iter().map(|&(id, _)| self.token(id)).collect::<Vec<_>>(),
            "token_logprobs": lists(&|lp| json!(floored(lp.logprob))),
            "top_logprobs": lists(&|lp| self.by_token(lp)),
            "text_offset": offsets,
        })
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
    pub(super) fn chat(&self, tokens: &[TokenLogprobs]) -> Value {
        let one = |id: u32, logprob: f32| {
            let bytes = self.tokenizer.token_bytes(id);
            json!({"token": self.token(id), "logprob": floored(logprob), "bytes": bytes})
        };
        let content = tokens.iter().map(|lp| {
            let mut token = one(lp.token, lp.logprob);
            token["top_logprobs"] = lp.top.iter().map(|&(id, x)| one(id, x)).collect();
            token
        });
        json!({"content": content.collect::<Vec<_>>()})
    }

    /// vLLM's `prompt_logprobs`: by token id, null for the first.
    pub(super) fn prompt(&self, tokens: &[Option<TokenLogprobs>]) -> Value {
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
        tokens.iter().map(|lp| lp.as_ref().map_or(Value::Null, one)).collect()
    }
}

fn floored(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { FLOOR }
}
