//! Tells thoughts from an answer as its text comes: what may begin a marker is held back, and white space around either.

use super::{Begins, Markers};

/// Reads one text.
#[derive(Clone, Debug)]
pub struct Split {
    markers: Markers,
    place: Place,
    /// What is not told yet.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Where thoughts may begin.
    Before,
    /// In them, before the first that is no white space.
    Opened,
    Within,
    /// Behind them, before the first that is no white space.
    Closed,
    Answer,
}

/// More of a text, its two parts apart: thoughts come before the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Apart {
    /// What the model thinks.
    pub thought: String,
    /// What it answers.
    pub text: String,
}

impl Split {
    pub(super) fn new(markers: Markers, begins: Begins) -> Self {
        let place = match begins {
            Begins::Before => Place::Before,
            Begins::Within => Place::Opened,
        };
        Split { markers, place, held: String::new() }
    }

    /// Reads a text whole.
    pub fn whole(mut self, text: &str) -> Apart {
        let mut apart = self.push(text);
        self.finish(&mut apart);
        apart
    }

    /// Whether all that is to come is the answer, and nothing is held back.
    pub fn is_in_answer(&self) -> bool {
        self.place == Place::Answer
    }

    /// Reads on.
    pub fn push(&mut self, text: &str) -> Apart {
        let mut out = Apart::default();
        if self.place == Place::Answer {
            out.text.push_str(text);
            return out;
        }
        self.held.push_str(text);
        while self.step(&mut out) {}
        out
    }

    /// The text has ended: adds what was held back. What ends within a marker is what it is within.
    pub fn finish(&mut self, out: &mut Apart) {
        let held = std::mem::take(&mut self.held);
        match self.place {
            Place::Before => out.text.push_str(&held),
            Place::Opened => out.thought.push_str(held.trim()),
            Place::Within => out.thought.push_str(held.trim_end()),
            Place::Closed | Place::Answer => (),
        }
    }

    /// Whether there is more to look at.
    fn step(&mut self, out: &mut Apart) -> bool {
        match self.place {
            Place::Before => self.before(),
            Place::Opened | Place::Within => self.within(out),
            Place::Closed => self.closed(),
            Place::Answer => {
                out.text.push_str(&std::mem::take(&mut self.held));
                false
            }
        }
    }

    fn before(&mut self) -> bool {
        let first = self.held.trim_start();
        if let Some(rest) = first.strip_prefix(self.markers.opens) {
            self.held = rest.to_owned();
            self.place = Place::Opened;
            return true;
        }
        if !self.markers.opens.starts_with(first) {
            self.place = Place::Answer;
        }
        self.place == Place::Answer
    }

    fn within(&mut self, out: &mut Apart) -> bool {
        if self.place == Place::Opened {
            self.held.drain(..self.held.len() - self.held.trim_start().len());
        }
        let end = self.held.find(self.markers.closes);
        let told = end.unwrap_or_else(|| self.held.len() - begun(&self.held, self.markers.closes));
        let thought = self.held[..told].trim_end();
        if !thought.is_empty() {
            self.place = Place::Within;
        }
        out.thought.push_str(thought);
        let told = end.map_or(thought.len(), |at| at + self.markers.closes.len());
        self.held.drain(..told);
        if end.is_some() {
            self.place = Place::Closed;
        }
        end.is_some()
    }

    fn closed(&mut self) -> bool {
        let answer = self.held.trim_start();
        if !answer.is_empty() {
            self.held = answer.to_owned();
            self.place = Place::Answer;
        }
        self.place == Place::Answer
    }
}

/// Bytes at the end of a text that may begin a marker.
fn begun(text: &str, marker: &str) -> usize {
    (1..marker.len()).rev().find(|&n| text.ends_with(&marker[..n])).unwrap_or(0)
}
