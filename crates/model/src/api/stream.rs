//! Bodies of a streamed answer of the two older endpoints: a chunk for what each token adds, and a last one that counts.

use std::ops::Range;
use std::sync::Arc;

use serde_json::{Value, json};

use super::echo::{Offsets, echoed};
use super::events::event;
use super::logprobs::Shown;
use super::plain::Frame;
use super::reading::{Read, Reading};
use super::response::{call_seed, finish_reason, id, stop_reason, usage};
use super::{Choice, Delivery, Endpoint, Generate, Meta, Timings};
use crate::output::Finish;
use crate::tokenizer::Tokenizer;
use crate::tools::Part;

/// Makes the chunks of one answer, in order.
///
/// A choice's first chunk carries the role (chat) or the prompt (completions with `echo`), its last the finish
/// reason. Texts and log-probabilities of a choice's chunks, put together, are those of the whole answer.
#[derive(Clone, Debug)]
pub struct Chunks {
    request: Generate,
    meta: Meta,
    tokenizer: Arc<Tokenizer>,
    choices: Vec<Progress>,
    /// Of the chunks that are only text, if any of them may be.
    frame: Option<Frame>,
}

/// How far a choice has come.
#[derive(Clone, Debug, Default)]
struct Progress {
    reading: Reading,
    begun: bool,
    n_tokens: usize,
    /// Those of them that are thoughts, if that is known.
    n_thought: Option<usize>,
    /// Where its tokens begin, if anyone asks.
    offsets: Option<Offsets>,
}

impl Progress {
    /// Whether its next text is shown as it is: it has begun, and thinks no more.
    fn is_plain(&self) -> bool {
        self.begun && self.reading.is_plain()
    }
}

/// What came of a choice.
#[derive(Clone, Copy, Debug)]
pub struct News<'a> {
    /// Which: all choices of the first prompt, then of the second, ...
    pub index: usize,
    /// As far as it has come.
    pub choice: &'a Choice,
    /// The text that can be shown now.
    pub text: &'a str,
    /// Which of its tokens are new.
    pub tokens: &'a Range<usize>,
    /// If this is the end of it.
    pub finish: Option<&'a Finish>,
}

/// New text as its client sees it.
#[derive(Debug, Default)]
struct Said {
    thought: String,
    text: String,
    /// Pieces of calls in OpenAI's shape.
    calls: Vec<Value>,
    /// There are calls, and none of them is cut here.
    has_called: bool,
}

impl Said {
    fn shows(&self) -> bool {
        !self.thought.is_empty() || !self.text.is_empty() || !self.calls.is_empty()
    }

    fn delta(&self) -> Value {
        let mut delta = json!({});
        if !self.thought.is_empty() {
            delta["reasoning_content"] = json!(self.thought);
        }
        if !self.text.is_empty() {
            delta["content"] = json!(self.text);
        }
        if !self.calls.is_empty() {
            delta["tool_calls"] = json!(self.calls);
        }
        delta
    }
}

impl Chunks {
    /// Nothing has been sent yet.
    pub fn new(request: Generate, meta: Meta, tokenizer: Arc<Tokenizer>) -> Self {
        let n = request.sequences();
        let choices = vec![Progress { reading: Reading::new(&request), ..Progress::default() }; n];
        let more = request.calls.is_some() || request.params.logprobs.is_some() || request.return_token_ids;
        let counts = matches!(request.delivery, Delivery::Stream { continuous_usage: true, .. });
        let mut chunks = Chunks { request, meta, tokenizer, choices, frame: None };
        chunks.frame = (!more && !counts).then(|| Frame::new(|choices| chunks.chunk(choices)));
        chunks
    }

    /// Appends the same as [`Chunks::of`] to `out`, as the server-sent events that they are sent as.
    pub fn events(&mut self, news: &News, out: &mut Vec<u8>) {
        let progress = &mut self.choices[news.index];
        match &self.frame {
            Some(frame) if progress.is_plain() && news.finish.is_none() => {
                progress.n_tokens += news.tokens.len();
                if !news.text.is_empty() {
                    out.extend_from_slice(b"data: ");
                    frame.around(self.request.endpoint, news.index, news.text, out);
                    out.extend_from_slice(b"\n\n");
                }
            }
            _ => self.of(news).iter().for_each(|chunk| event(chunk, out)),
        }
    }

    /// What is to be sent: nothing while text is held back, two chunks at a chat's beginning.
    pub fn of(&mut self, news: &News) -> Vec<Value> {
        let first = !std::mem::replace(&mut self.choices[news.index].begun, true);
        self.count(news);
        let echoes = first && self.request.echo.is_some();
        let details = self.request.params.logprobs.is_some() || self.request.return_token_ids;
        let said = self.said(news);
        let shows = said.shows() || news.finish.is_some() || (details && !news.tokens.is_empty());
        let mut chunks = Vec::new();
        if first && self.request.endpoint != Endpoint::Completions {
            chunks.push(self.role(news));
        }
        if shows || echoes {
            let mut chunk = self.content(news, &said, echoes);
            if first && self.request.endpoint == Endpoint::Completions && self.request.return_token_ids {
                chunk["choices"][0]["prompt_token_ids"] = json!(self.request.prompts[news.choice.prompt]);
            }
            chunks.push(chunk);
        }
        chunks
    }

    /// Prompt tokens that were found in memory, for the counts from now on.
    pub fn found_in_cache(&mut self, tokens: usize) {
        self.meta.cached_tokens = Some(tokens);
    }

    /// Times of the answer so far, for the last chunk of each choice.
    pub fn timed(&mut self, timings: Timings) {
        self.meta.timings = Some(timings);
    }

    /// The last chunk, if the request wants tokens counted.
    pub fn usage(&self) -> Option<Value> {
        let Delivery::Stream { usage: true, .. } = self.request.delivery else { return None };
        let prompt = self.request.prompts.iter().map(Vec::len).sum();
        let completion = self.choices.iter().map(|c| c.n_tokens).sum();
        let thought = self.choices.iter().map(|c| c.n_thought).sum();
        let mut chunk = self.chunk(vec![]);
        chunk["usage"] = usage(prompt, completion, thought, &self.meta);
        Some(chunk)
    }

    fn count(&mut self, news: &News) {
        let progress = &mut self.choices[news.index];
        progress.n_tokens += news.tokens.len();
        let counted = news.finish.is_some()
            || matches!(self.request.delivery, Delivery::Stream { continuous_usage: true, .. });
        if let Some(thoughts) = self.request.thoughts.as_ref().filter(|_| counted) {
            progress.n_thought = thoughts.count(&news.choice.tokens[..news.tokens.end]);
        }
    }

    fn role(&self, news: &News) -> Value {
        let mut choice = json!({
            "index": news.index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": null,
            "finish_reason": null,
            "stop_reason": null,
        });
        if self.request.return_token_ids {
            choice["prompt_token_ids"] = json!(self.request.prompts[news.choice.prompt]);
        }
        self.counted(news, self.chunk(vec![choice]))
    }

    fn content(&mut self, news: &News, said: &Said, echoes: bool) -> Value {
        let logprobs = self.logprobs(news, echoes);
        let mut choice = json!({"index": news.index});
        match self.request.endpoint {
            Endpoint::Completions if echoes => {
                let prompt = echoed(&self.request, news.choice.prompt, &self.tokenizer);
                choice["text"] = json!(prompt + news.text);
            }
            Endpoint::Completions => choice["text"] = json!(news.text),
            _ => choice["delta"] = said.delta(),
        }
        choice["logprobs"] = logprobs;
        choice["finish_reason"] = json!(news.finish.map(|finish| finish_reason(finish, said.has_called)));
        choice["stop_reason"] = news.finish.map_or(Value::Null, stop_reason);
        if self.request.return_token_ids {
            choice["token_ids"] = json!(news.choice.tokens[news.tokens.clone()]);
        }
        let mut chunk = self.counted(news, self.chunk(vec![choice]));
        if let (Some(timings), Some(_)) = (&self.meta.timings, news.finish) {
            chunk["timings"] = timings.body();
        }
        chunk
    }

    /// What a choice's new text is to its client: thoughts, text to show, and pieces of calls.
    fn said(&mut self, news: &News) -> Said {
        let reading = &mut self.choices[news.index].reading;
        let Read { thought, parts, has_called } = reading.push(news.text, news.finish.is_some());
        let mut said = Said { thought, has_called, ..Said::default() };
        for part in parts {
            self.add(news.index, part, &mut said);
        }
        said
    }

    fn add(&self, choice: usize, part: Part, said: &mut Said) {
        match part {
            Part::Text(text) => said.text.push_str(&text),
            Part::Call { index, name } => {
                let format = self.request.calls.as_ref().map(|calls| calls.format);
                let id = format.map(|format| format.call_id(&call_seed(&self.meta, choice, index)));
                let function = json!({"name": name, "arguments": ""});
                said.calls.push(json!({"index": index, "id": id, "type": "function", "function": function}));
            }
            Part::Arguments { index, text } => match said.calls.last_mut() {
                Some(call) if call["index"] == index => {
                    let before = call["function"]["arguments"].as_str().unwrap_or_default();
                    call["function"]["arguments"] = json!(format!("{before}{text}"));
                }
                _ => said.calls.push(json!({"index": index, "function": {"arguments": text}})),
            },
        }
    }

    fn logprobs(&mut self, news: &News, echoes: bool) -> Value {
        if self.request.params.logprobs.is_none() {
            return Value::Null;
        }
        let shown = Shown::new(&self.tokenizer, &self.request);
        let new = news.choice.logprobs.get(news.tokens.clone()).unwrap_or_default();
        if self.request.endpoint != Endpoint::Completions {
            return shown.chat(new).whole();
        }
        let (request, number) = (&self.request, news.choice.prompt);
        let places = &mut self.choices[news.index].offsets;
        let places = places.get_or_insert_with(|| Offsets::new(request, number, &self.tokenizer));
        let mut offsets =
            if echoes { places.of_prompt(request, number, &self.tokenizer) } else { Vec::new() };
        offsets.extend(places.of_answer(new.iter().map(|lp| lp.token), &self.tokenizer));
        let prompt = request.prompts[number].iter().enumerate().filter(|_| echoes);
        let scores = &news.choice.prompt_logprobs;
        let of_prompt = prompt.map(|(i, &id)| (id, scores.get(i).and_then(Option::as_ref)));
        let all: Vec<_> = of_prompt.chain(new.iter().map(|lp| (lp.token, Some(lp)))).collect();
        shown.completion(&all, &offsets).whole()
    }

    /// With the tokens of this choice so far, if the request wants that.
    fn counted(&self, news: &News, mut chunk: Value) -> Value {
        if let Delivery::Stream { continuous_usage: true, .. } = self.request.delivery {
            let prompt = self.request.prompts[news.choice.prompt].len();
            let progress = &self.choices[news.index];
            chunk["usage"] = usage(prompt, progress.n_tokens, progress.n_thought, &self.meta);
        }
        chunk
    }

    fn chunk(&self, choices: Vec<Value>) -> Value {
        let object = match self.request.endpoint {
            Endpoint::Completions => "text_completion",
            _ => "chat.completion.chunk",
        };
        json!({
            "id": id(self.request.endpoint, &self.meta),
            "object": object,
            "created": self.meta.created,
            "model": self.request.model,
            "choices": choices,
        })
    }
}
