//! The events of a streamed answer: each says what it is, and they are numbered.

use serde_json::{Value, json};

use super::super::blocks::{Block, Kind, Step};
use super::super::events::{Teller, named};
use super::super::{ApiError, Generate, Meta, News};
use super::answer::{self, End, finished, item, item_id, object, own_name, part, status_of};

/// Tells one answer.
#[derive(Default)]
pub(in super::super) struct Stream {
    /// Of the next event.
    number: u64,
    /// That are whole.
    items: Vec<Value>,
    /// What the item that is open is.
    open: Option<Kind>,
}

impl Teller for Stream {
    fn begin(&mut self, request: &Generate, meta: &Meta, out: &mut Vec<u8>) {
        for event in ["response.created", "response.in_progress"] {
            self.tell(event, json!({"response": object(request, meta, "in_progress")}), out);
        }
    }

    fn step(&mut self, step: Step, request: &Generate, meta: &Meta, out: &mut Vec<u8>) {
        match step {
            Step::Opens(kind) => self.open(kind, request, meta, out),
            Step::Grows(text) => self.grow(&text, meta, out),
            Step::Closes(block) => self.close(&block, request, meta, out),
        }
    }

    fn end(&mut self, request: &Generate, news: &News, _: bool, meta: &Meta, out: &mut Vec<u8>) {
        let Some(finish) = news.finish else { return };
        if self.items.is_empty() {
            self.open(Kind::Text, request, meta, out);
            self.close(&answer::nothing(), request, meta, out);
        }
        let usage = answer::usage(request, news.choice, meta);
        let response = finished(request, meta, End { items: std::mem::take(&mut self.items), finish, usage });
        let event =
            if response["status"] == "completed" { "response.completed" } else { "response.incomplete" };
        self.tell(event, json!({"response": response}), out);
    }

    fn failed(&mut self, request: &Generate, error: &ApiError, meta: &Meta, out: &mut Vec<u8>) {
        let mut response = object(request, meta, "failed");
        response["output"] = std::mem::take(&mut self.items).into();
        response["error"] = json!({"code": error.code.unwrap_or(error.kind), "message": error.message});
        self.tell("response.failed", json!({"response": response}), out);
    }
}

impl Stream {
    fn tell(&mut self, event: &str, data: Value, out: &mut Vec<u8>) {
        named(event, json!({"sequence_number": self.number}), data, out);
        self.number += 1;
    }

    /// What an event of an item or of its part says of the place.
    fn place(&self, kind: &Kind, meta: &Meta) -> Value {
        let mut place =
            json!({"item_id": item_id(meta, self.items.len(), kind), "output_index": self.items.len()});
        if !matches!(kind, Kind::Call { .. }) {
            place["content_index"] = json!(0);
        }
        place
    }

    fn open(&mut self, kind: Kind, request: &Generate, meta: &Meta, out: &mut Vec<u8>) {
        let block = Block { kind, text: String::new(), is_cut: false };
        let mut begun = item(request, meta, self.items.len(), &block, "in_progress");
        if begun.get("content").is_some() {
            begun["content"] = json!([]);
        }
        let at = self.items.len();
        self.tell("response.output_item.added", json!({"output_index": at, "item": begun}), out);
        if !matches!(block.kind, Kind::Call { .. }) {
            let mut event = self.place(&block.kind, meta);
            event["part"] = part(&block);
            self.tell("response.content_part.added", event, out);
        }
        self.open = Some(block.kind);
    }

    fn grow(&mut self, text: &str, meta: &Meta, out: &mut Vec<u8>) {
        let Some(kind) = &self.open else { return };
        let mut event = self.place(kind, meta);
        event["delta"] = json!(text);
        let name = match kind {
            Kind::Thought => "response.reasoning_text.delta",
            Kind::Text => {
                event["logprobs"] = json!([]);
                "response.output_text.delta"
            }
            Kind::Call { .. } => "response.function_call_arguments.delta",
        };
        self.tell(name, event, out);
    }

    fn close(&mut self, block: &Block, request: &Generate, meta: &Meta, out: &mut Vec<u8>) {
        let mut event = self.place(&block.kind, meta);
        match &block.kind {
            Kind::Thought => {
                event["text"] = json!(block.text);
                self.tell("response.reasoning_text.done", event, out);
            }
            Kind::Text => {
                event["text"] = json!(block.text);
                event["logprobs"] = json!([]);
                self.tell("response.output_text.done", event, out);
            }
            Kind::Call { name, .. } => {
                event["name"] = json!(own_name(request, name).1);
                event["arguments"] = json!(block.text);
                self.tell("response.function_call_arguments.done", event, out);
            }
        }
        if !matches!(block.kind, Kind::Call { .. }) {
            let mut event = self.place(&block.kind, meta);
            event["part"] = part(block);
            self.tell("response.content_part.done", event, out);
        }
        let at = self.items.len();
        let item = item(request, meta, at, block, status_of(block));
        self.tell("response.output_item.done", json!({"output_index": at, "item": item}), out);
        self.items.push(item);
        self.open = None;
    }
}
