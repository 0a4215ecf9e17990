//! The messages of a chat, put together from what the newer endpoints call items or blocks.

use serde_json::{Map, Value, json};

use super::{Context, MAX_MESSAGES};

/// Messages in the shape of `/v1/chat/completions`.
pub(super) struct Turns {
    messages: Vec<Value>,
    /// The template has a place for what the system says later.
    later_system: bool,
    /// What an assistant thought, said and called, which is one message however it came.
    open: Map<String, Value>,
}

impl Turns {
    pub(super) fn new(context: &Context) -> Turns {
        Turns { messages: Vec::new(), later_system: context.takes_system_later(), open: Map::new() }
    }

    /// The system says something, once or again. Where the template has no place for that later, it stands in the user's words.
    pub(super) fn instructed(&mut self, content: Value) {
        // Nothing displaces what a template says where nobody says anything.
        if content == "" || content.as_array().is_some_and(Vec::is_empty) {
            return;
        }
        let begins = self.open.is_empty() && self.messages.iter().all(|message| message["role"] == "system");
        self.said_on(if begins || self.later_system { "system" } else { "user" }, content);
    }

    /// Somebody says something. `content`: a text, or a list of parts of text.
    pub(super) fn said(&mut self, role: &str, content: Value) {
        if role == "assistant" {
            if self.open.contains_key("content") || self.open.contains_key("tool_calls") {
                self.close();
            }
            self.open.insert("content".to_owned(), content);
            return;
        }
        self.close();
        self.messages.push(json!({"role": role, "content": content}));
    }

    /// The same, but what the same one has said just before is one message with it.
    pub(super) fn said_on(&mut self, role: &str, content: Value) {
        let goes_on = self.open.is_empty() && self.messages.last().is_some_and(|last| last["role"] == role);
        match self.messages.last_mut().filter(|_| goes_on) {
            Some(last) => {
                let before = &mut last["content"];
                if !before.is_array() {
                    *before = parts(before.take()).into();
                }
                if let Value::Array(before) = before {
                    before.extend(parts(content));
                }
            }
            None => self.said(role, content),
        }
    }

    /// The assistant thinks before it says or calls something.
    pub(super) fn thought(&mut self, text: &str) {
        if self.open.contains_key("content") || self.open.contains_key("tool_calls") {
            self.close();
        }
        match self.open.get_mut("reasoning_content") {
            Some(Value::String(before)) => {
                before.push('\n');
                before.push_str(text);
            }
            _ => {
                self.open.insert("reasoning_content".to_owned(), text.into());
            }
        }
    }

    /// The assistant calls a tool; `arguments` is a text of JSON.
    pub(super) fn called(&mut self, id: &str, name: &str, arguments: &str) {
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"id": id, "type": "function", "function": function});
        let calls = self.open.entry("tool_calls").or_insert_with(|| json!([]));
        if let Value::Array(calls) = calls {
            calls.push(call);
        }
    }

    /// What came of a call.
    pub(super) fn answered(&mut self, id: &str, content: Value) {
        self.close();
        self.messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
    }

    /// The assistant's message ends here.
    pub(super) fn close(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let mut message = std::mem::take(&mut self.open);
        message.insert("role".to_owned(), json!("assistant"));
        message.entry("content").or_insert(Value::Null);
        self.messages.push(message.into());
    }

    pub(super) fn into_messages(mut self) -> Vec<Value> {
        self.close();
        self.messages
    }
}

/// Whether these are more messages than a conversation may have.
pub(super) fn too_many(all: &[Value]) -> Option<String> {
    (all.len() > MAX_MESSAGES).then(|| format!("{} of them; at most {MAX_MESSAGES}", all.len()))
}

fn parts(content: Value) -> Vec<Value> {
    match content {
        Value::Array(parts) => parts,
        text => vec![json!({"type": "text", "text": text})],
    }
}
