//! A streamed answer as the server-sent events of the endpoint that it came to.

use std::fmt::Display;
use std::io::Write;
use std::sync::Arc;

use serde_json::{Value, json};

use super::blocks::{Blocks, Step};
use super::{ApiError, Chunks, Endpoint, Generate, Meta, News, Timings, messages, responses};
use crate::tokenizer::Tokenizer;

/// Appends a server-sent event.
pub(super) fn event(data: &dyn Display, out: &mut Vec<u8>) {
    write!(out, "data: {data}\n\n").expect("writing to memory");
}

/// Appends one that has a name, which its data says too, and then `first` and `rest`.
pub(super) fn named(name: &str, first: Value, rest: Value, out: &mut Vec<u8>) {
    let mut data = json!({"type": name});
    for fields in [first, rest] {
        if let (Value::Object(data), Value::Object(fields)) = (&mut data, fields) {
            data.extend(fields);
        }
    }
    write!(out, "event: {name}\ndata: {data}\n\n").expect("writing to memory");
}

/// Writes the events of one answer, in order.
pub struct Events(Kind);

enum Kind {
    Chunks(Box<Chunks>),
    Blocks(Box<Told>),
}

/// An answer that is told block by block.
struct Told {
    request: Generate,
    meta: Meta,
    blocks: Blocks,
    begun: bool,
    teller: Box<dyn Teller + Send>,
}

/// Whose words an answer is told in.
pub(super) trait Teller {
    /// Before anything of it.
    fn begin(&mut self, request: &Generate, meta: &Meta, out: &mut Vec<u8>);
    /// What became of its blocks.
    fn step(&mut self, step: Step, request: &Generate, meta: &Meta, out: &mut Vec<u8>);
    /// It has ended. `has_called`: with calls, all of them whole.
    fn end(&mut self, request: &Generate, news: &News, has_called: bool, meta: &Meta, out: &mut Vec<u8>);
    /// Nothing more comes of it.
    fn failed(&mut self, request: &Generate, error: &ApiError, meta: &Meta, out: &mut Vec<u8>);
}

impl Events {
    /// Nothing has been sent yet.
    pub fn new(request: Generate, meta: Meta, tokenizer: Arc<Tokenizer>) -> Self {
        let teller: Box<dyn Teller + Send> = match request.endpoint {
            Endpoint::Completions | Endpoint::Chat => {
                return Events(Kind::Chunks(Box::new(Chunks::new(request, meta, tokenizer))));
            }
            Endpoint::Responses => Box::new(responses::Stream::default()),
            Endpoint::Messages => Box::new(messages::Stream::default()),
        };
        let blocks = Blocks::new(&request, &meta);
        Events(Kind::Blocks(Box::new(Told { request, meta, blocks, begun: false, teller })))
    }

    /// How many of the prompt's tokens were found in the prefix cache.
    pub fn found_in_cache(&mut self, tokens: usize) {
        match &mut self.0 {
            Kind::Chunks(chunks) => chunks.found_in_cache(tokens),
            Kind::Blocks(told) => told.meta.cached_tokens = Some(tokens),
        }
    }

    /// Times of the answer so far, to be told with its end.
    pub fn timed(&mut self, timings: Timings) {
        match &mut self.0 {
            Kind::Chunks(chunks) => chunks.timed(timings),
            Kind::Blocks(told) => told.meta.timings = Some(timings),
        }
    }

    /// What came of the answer.
    pub fn news(&mut self, news: &News, out: &mut Vec<u8>) {
        match &mut self.0 {
            Kind::Chunks(chunks) => chunks.events(news, out),
            Kind::Blocks(told) => told.news(news, out),
        }
    }

    /// The answer ends here, and not as it should.
    pub fn failed(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        match &mut self.0 {
            Kind::Chunks(_) => event(&error.body(), out),
            Kind::Blocks(told) => told.failed(error, out),
        }
    }

    /// The answer is whole.
    pub fn ended(&mut self, out: &mut Vec<u8>) {
        if let Kind::Chunks(chunks) = &self.0 {
            chunks.usage().iter().for_each(|chunk| event(chunk, out));
            event(&"[DONE]", out);
        }
    }
}

impl Told {
    fn begin(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.begun, true) {
            self.teller.begin(&self.request, &self.meta, out);
        }
    }

    fn news(&mut self, news: &News, out: &mut Vec<u8>) {
        self.begin(out);
        for step in self.blocks.push(news.text, news.finish.map(|finish| finish.reason)) {
            self.teller.step(step, &self.request, &self.meta, out);
        }
        if news.finish.is_some() {
            self.teller.end(&self.request, news, self.blocks.has_called, &self.meta, out);
        }
    }

    fn failed(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        self.begin(out);
        self.teller.failed(&self.request, error, &self.meta, out);
    }
}
