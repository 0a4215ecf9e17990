//! One call, `{"name": .., "arguments": {..}}`, read as it comes.

use super::body::Step;
use super::value::{At, Value};

/// A call that is being read.
#[derive(Clone, Debug, Default)]
pub(super) struct CallObject {
    /// All of it, until it is known to be a call.
    raw: String,
    state: State,
    key: String,
    name: Option<String>,
    /// Arguments that came before the name.
    early: String,
    begun: bool,
    /// The arguments are whole; what else is called so is not looked at.
    argued: bool,
}

#[derive(Clone, Debug, Default)]
enum State {
    /// Nothing is here.
    #[default]
    Start,
    /// Between a brace or comma and a key.
    BeforeKey,
    Key(Value),
    /// After a key.
    Colon,
    BeforeValue,
    Value(Value, String),
    /// After a value.
    AfterValue,
}

impl CallObject {
    /// What was read, if it was not known to be a call.
    pub(super) fn into_raw(self) -> String {
        if self.begun { String::new() } else { self.raw }
    }

    /// Whether it is a call, and its arguments are whole.
    pub(super) fn is_argued(&self) -> bool {
        self.begun && self.argued
    }

    /// Takes the next character. `known`: whether a tool has a name.
    pub(super) fn push(&mut self, c: char, known: &dyn Fn(&str) -> bool) -> Step {
        if !self.begun {
            self.raw.push(c);
        }
        let state = std::mem::take(&mut self.state);
        let (state, step) = match (state, c) {
            (State::Start, '{') => (State::BeforeKey, Step::Going),
            (State::Start, _) => (State::Start, Step::Broken),
            (State::Key(value), c) => self.key(value, c),
            (State::Value(value, text), c) => self.value(value, text, c, known),
            (state, c) if c.is_whitespace() => (state, Step::Going),
            (State::BeforeKey, '"') => self.key(Value::default(), c),
            (State::Colon, ':') => (State::BeforeValue, Step::Going),
            (State::BeforeValue, c) => self.value(Value::default(), String::new(), c, known),
            (State::AfterValue, ',') => (State::BeforeKey, Step::Going),
            (State::AfterValue, '}') => (State::AfterValue, self.end()),
            (state, _) => (state, Step::Broken),
        };
        self.state = state;
        step
    }

    fn key(&mut self, mut value: Value, c: char) -> (State, Step) {
        let at = value.push(c);
        self.key.push(c);
        if at != At::Last {
            return (State::Key(value), Step::Going);
        }
        match serde_json::from_str(&std::mem::take(&mut self.key)) {
            Ok(key) => {
                self.key = key;
                (State::Colon, Step::Going)
            }
            Err(_) => (State::Colon, Step::Broken),
        }
    }

    fn is_arguments(&self) -> bool {
        !self.argued && (self.key == "arguments" || self.key == "parameters")
    }

    fn value(
        &mut self,
        mut value: Value,
        mut text: String,
        c: char,
        known: &dyn Fn(&str) -> bool,
    ) -> (State, Step) {
        let at = value.push(c);
        if at == At::After {
            let next = self.closed(&text, known);
            self.argued |= self.is_arguments();
            self.key.clear();
            // A comma or brace belongs to the object.
            return match (next, c) {
                (Step::Going, ',') => (State::BeforeKey, Step::Going),
                (Step::Going, '}') => (State::AfterValue, self.end()),
                (Step::Going, c) if c.is_whitespace() => (State::AfterValue, Step::Going),
                _ => (State::AfterValue, Step::Broken),
            };
        }
        let step = if self.is_arguments() {
            self.argument(c)
        } else {
            text.push(c);
            Step::Going
        };
        if at == At::Inside {
            return (State::Value(value, text), step);
        }
        let step = if step == Step::Going { self.closed(&text, known) } else { step };
        self.argued |= self.is_arguments();
        self.key.clear();
        (State::AfterValue, step)
    }

    fn argument(&mut self, c: char) -> Step {
        if self.begun {
            return Step::Argument(c);
        }
        self.early.push(c);
        match &self.name {
            Some(name) => {
                let step = Step::Begun(name.clone(), std::mem::take(&mut self.early));
                self.begun = true;
                step
            }
            None => Step::Going,
        }
    }

    /// A value is whole.
    fn closed(&mut self, text: &str, known: &dyn Fn(&str) -> bool) -> Step {
        if self.key != "name" && self.key != "tool_name" {
            return Step::Going;
        }
        match serde_json::from_str::<String>(text) {
            Ok(name) if known(&name) && self.name.is_none() => self.name = Some(name),
            _ => return Step::Broken,
        }
        Step::Going
    }

    fn end(&mut self) -> Step {
        match self.name.take() {
            _ if self.begun => Step::Done,
            None => Step::Broken,
            Some(name) => {
                self.begun = true;
                let arguments = std::mem::take(&mut self.early);
                Step::Whole(name, if arguments.is_empty() { "{}".to_owned() } else { arguments })
            }
        }
    }
}
