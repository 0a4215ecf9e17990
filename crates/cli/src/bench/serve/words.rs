//! Random prompts of given lengths in tokens, for a server whose tokenizer is its own.

use anyhow::{Result, bail};
use serde_json::{Value, json};
use sim::Rng;

use super::client::Client;
use super::cutter::Cutter;
use crate::args::Backend;
use crate::console::note;

/// Words that most vocabularies have as one token each, with the space before.
const WORDS: &str = "the of and to in is was for that with his her from this have are not had which but were all she \
    they you one been their has more who when will there out only also into other about than some time may over such \
    new two first our man me even most made after did many before must through back years where much your way well \
    down should because each just those people how too little state good very make world still own see men work long \
    get here between both life being under never day same another know while last might us great old year off come \
    since against go came right used take three small large house water light night hand head city line door road \
    river stone field table paper glass green white black blue gold silver iron wood fire wind rain snow sun moon \
    star sea ship boat sail port shore wave storm north south east west left high low deep wide open close near far \
    early late young strong soft hard cold warm dark bright quick slow full empty clean dry wet sharp round flat \
    straight broken quiet loud sweet bitter fresh heavy rich poor free busy ready simple common strange whole half";

/// Text as the field `prompt` or `messages` of a body has it.
pub(super) fn said(text: &str, backend: Backend) -> Value {
    if backend.is_chat() { json!([{"role": "user", "content": text}]) } else { json!(text) }
}

/// Makes prompts.
pub(super) enum Filler {
    /// Of ordinary tokens that the server named: exactly as long as asked.
    Tokens(Vec<u32>),
    /// Of words, so many to a token.
    Words { words_per_token: f64, backend: Backend },
}

impl Filler {
    /// What a tokenizer of the client's own makes.
    pub(super) fn own(cutter: &Cutter, backend: Backend) -> Result<Filler> {
        Ok(Filler::of(cutter.tokens(&all())?, backend))
    }

    /// Asks the server how it cuts words, with vLLM's `/tokenize`. A server without it gets words, about one a token.
    pub(super) fn ask(client: &Client, model: &str, backend: Backend) -> Result<Filler> {
        let body = json!({"model": model, "prompt": all(), "add_special_tokens": false});
        let answer = client.post("/tokenize", &body)?;
        // A server that has no such route does not know of the model there.
        if let Err(why) = &answer
            && why.contains(&format!("`{model}`"))
        {
            bail!("the server refuses --model {model}: {why}");
        }
        let tokens: Vec<u32> = answer
            .ok()
            .and_then(|answer| answer["tokens"].as_array().cloned())
            .map(|tokens| tokens.iter().filter_map(|token| token.as_u64()?.try_into().ok()).collect())
            .unwrap_or_default();
        if tokens.is_empty() {
            note!(
                "the server has no /tokenize: prompts have about as many tokens as asked; --tokenizer counts them here"
            );
        }
        Ok(Filler::of(tokens, backend))
    }

    /// `tokens`: of all words; none where nobody knows.
    fn of(tokens: Vec<u32>, backend: Backend) -> Filler {
        match tokens.len() {
            0 => Filler::Words { words_per_token: 1.0, backend },
            n if backend.is_chat() => {
                Filler::Words { words_per_token: words().len() as f64 / n as f64, backend }
            }
            _ => Filler::Tokens(tokens),
        }
    }

    /// A prompt of so many tokens, as its field of a body has it.
    pub(super) fn prompt(&self, tokens: usize, rng: &mut Rng) -> Value {
        match self {
            Filler::Tokens(ids) => (0..tokens).map(|_| any(ids, rng)).collect(),
            Filler::Words { words_per_token, backend } => {
                let (words, n) = (words(), (tokens as f64 * words_per_token).round().max(1.0) as usize);
                said(&(0..n).map(|_| any(&words, rng)).collect::<Vec<_>>().join(" "), *backend)
            }
        }
    }
}

fn all() -> String {
    format!(" {}", words().join(" "))
}

fn words() -> Vec<&'static str> {
    WORDS.split_whitespace().collect()
}

fn any<T: Copy>(of: &[T], rng: &mut Rng) -> T {
    of[rng.below(of.len() as u64) as usize]
}
