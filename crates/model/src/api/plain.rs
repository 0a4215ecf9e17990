//! The chunk that almost all chunks are: some text and nothing else. It is written around the text instead of being put
//! together from values, byte for byte the same.

use std::io::Write;

use serde_json::{Value, json};

use super::Endpoint;

/// Stands where the choices are while the frame is made. An id may have it too, but the choices come last.
const CHOICES: &str = "\u{0}choices\u{0}";

/// What is around a choice in each chunk of an answer.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    before: String,
    after: String,
}

impl Frame {
    /// `chunk`: as it is made around given choices.
    pub(super) fn new(chunk: impl FnOnce(Vec<Value>) -> Value) -> Frame {
        let text = chunk(vec![json!(CHOICES)]).to_string();
        let mark = json!(CHOICES).to_string();
        let (before, after) = text.rsplit_once(&mark).expect("a chunk has its choices");
        Frame { before: before.to_string(), after: after.to_string() }
    }

    /// Appends the chunk of a choice that says `text` and goes on.
    pub(super) fn around(&self, endpoint: Endpoint, index: usize, text: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(self.before.as_bytes());
        let said = match endpoint {
            Endpoint::Completions => write!(out, "{{\"index\":{index},\"text\":"),
            _ => write!(out, "{{\"index\":{index},\"delta\":{{\"content\":"),
        };
        said.and_then(|()| Ok(serde_json::to_writer(&mut *out, text)?)).expect("writing to memory");
        if endpoint != Endpoint::Completions {
            out.push(b'}');
        }
        out.extend_from_slice(b",\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null}");
        out.extend_from_slice(self.after.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::super::tests::{choice, complete, meta, model, talk};
    use super::super::{Chunks, Generate, Meta, News};
    use super::CHOICES;

    /// Pieces of an answer, held back ones and hard ones among them.
    const PIECES: [&str; 6] = ["Ahoy", "", " \"quoted\"\\ \n\u{1}\u{7f}", "äß😀\u{2028}", "</s>", "end"];

    fn check(request: &Generate) {
        let mut values = Chunks::new(request.clone(), meta(), Arc::new(model().tokenizer));
        let mut texts = values.clone();
        let whole = choice(&[5, 6, 7, 8, 9, 10], "whatever");
        let n = request.sequences();
        for (i, text) in PIECES.into_iter().enumerate() {
            for index in 0..n {
                let finish = (i + 1 == PIECES.len()).then_some(&whole.finish);
                let news = News { index, choice: &whole, text, tokens: &(i..i + 1), finish };
                let want: String =
                    values.of(&news).iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
                let mut events = Vec::new();
                texts.events(&news, &mut events);
                assert_eq!(String::from_utf8(events).unwrap(), want, "{i} {text:?}");
            }
        }
        assert_eq!(texts.usage(), values.usage());
    }

    #[test]
    fn a_frame_and_its_text_are_the_chunk() {
        for more in [json!({}), json!({"n": 3}), json!({"stream_options": {"include_usage": true}})] {
            let mut body = json!({"stream": true});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            check(&talk(body.clone()).unwrap());
            body["prompt"] = json!(["a", "b"]);
            check(&complete(body).unwrap());
        }
    }

    #[test]
    fn no_id_breaks_the_frame() {
        let request = complete(json!({"prompt": "x", "stream": true})).unwrap();
        let meta = Meta { id: format!("\"{CHOICES}"), ..meta() };
        let mut chunks = Chunks::new(request, meta, Arc::new(model().tokenizer));
        let whole = choice(&[5, 6], "whatever");
        for tokens in [0..1, 1..2] {
            let news = News { index: 0, choice: &whole, text: "Ahoy", tokens: &tokens, finish: None };
            let want: String =
                chunks.clone().of(&news).iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
            let mut events = Vec::new();
            chunks.events(&news, &mut events);
            assert_eq!(String::from_utf8(events).unwrap(), want);
        }
    }

    #[test]
    fn what_has_more_than_text_is_put_together() {
        let usage = json!({"stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true}});
        check(&talk(usage).unwrap());
        for body in [
            json!({"stream": true, "prompt": "a", "echo": true}),
            json!({"stream": true, "prompt": "a", "return_token_ids": true}),
        ] {
            check(&complete(body).unwrap());
        }
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
        check(&talk(json!({"stream": true, "tools": [tool]})).unwrap());
    }
}
