//! The events of a streamed message.

use serde_json::{Value, json};

use super::super::blocks::{Kind, Step};
use super::super::events::{Teller, named};
use super::super::{ApiError, Generate, Meta, News};
use super::answer::{message, stopped, usage};

/// Tells one message.
#[derive(Default)]
pub(in super::super) struct Stream {
    /// Blocks that are whole.
    whole: usize,
    /// What the one that is open is.
    open: Option<Kind>,
}

impl Teller for Stream {
    fn begin(&mut self, request: &Generate, meta: &Meta, out: &mut Vec<u8>) {
        tell("message_start", json!({"message": message(request, meta)}), out);
    }

    fn step(&mut self, step: Step, _: &Generate, _: &Meta, out: &mut Vec<u8>) {
        let index = self.whole;
        match step {
            Step::Opens(kind) => {
                tell("content_block_start", json!({"index": index, "content_block": empty(&kind)}), out);
                self.open = Some(kind);
            }
            Step::Grows(text) => {
                tell("content_block_delta", json!({"index": index, "delta": self.delta(&text)}), out);
            }
            Step::Closes(_) => {
                tell("content_block_stop", json!({"index": index}), out);
                self.whole += 1;
                self.open = None;
            }
        }
    }

    fn end(&mut self, request: &Generate, news: &News, has_called: bool, meta: &Meta, out: &mut Vec<u8>) {
        let [reason, sequence] = stopped(request, news.choice, has_called);
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        let mut end = json!({"delta": delta, "usage": usage(request, &news.choice.tokens, meta)});
        if let Some(timings) = &meta.timings {
            end["timings"] = timings.body();
        }
        tell("message_delta", end, out);
        tell("message_stop", json!({}), out);
    }

    fn failed(&mut self, _: &Generate, error: &ApiError, meta: &Meta, out: &mut Vec<u8>) {
        named("error", json!({}), error.message_body(&meta.id), out);
    }
}

impl Stream {
    fn delta(&self, text: &str) -> Value {
        match self.open {
            Some(Kind::Thought) => json!({"type": "thinking_delta", "thinking": text}),
            Some(Kind::Call { .. }) => json!({"type": "input_json_delta", "partial_json": text}),
            _ => json!({"type": "text_delta", "text": text}),
        }
    }
}

fn tell(event: &str, data: Value, out: &mut Vec<u8>) {
    named(event, json!({}), data, out);
}

/// A block as it begins.
fn empty(kind: &Kind) -> Value {
    match kind {
        Kind::Thought => json!({"type": "thinking", "thinking": "", "signature": ""}),
        Kind::Text => json!({"type": "text", "text": ""}),
        Kind::Call { id, name } => json!({"type": "tool_use", "id": id, "name": name, "input": {}}),
    }
}
