//! Tells thoughts from an answer as its text comes: what may begin a marker is held back, and white space around either.

use super::{Begins, Markers};

/// Reads one text.
#[derive(Clone, Debug)]
pub struct Split {
    markers: Markers,
    place: Place,
    /// What is not told yet.
    held: String,
    /// White space comes next, if any: it goes.
    skips: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Where thoughts may begin.
    Before,
    Within,
    /// Behind them, or behind what stands around an answer.
    Behind,
    /// In an answer that something stands around.
    Wrapped,
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
            Begins::Within => Place::Within,
        };
        Split { markers, place, held: String::new(), skips: begins == Begins::Within }
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
            Place::Within => out.thought.push_str(held.trim_end()),
            Place::Behind | Place::Wrapped => out.text.push_str(held.trim_end()),
            Place::Answer => (),
        }
    }

    /// Whether there is more to look at.
    fn step(&mut self, out: &mut Apart) -> bool {
        if self.skips {
            self.held.drain(..self.held.len() - self.held.trim_start().len());
            self.skips = self.held.is_empty();
        }
        match self.place {
            Place::Before => self.before(),
            Place::Within => self.within(out),
            Place::Behind => self.behind(),
            Place::Wrapped => self.wrapped(out),
            Place::Answer => {
                out.text.push_str(&std::mem::take(&mut self.held));
                false
            }
        }
    }

    /// An answer may begin without thoughts, with what stands around it or not.
    fn before(&mut self) -> bool {
        let first = self.held.trim_start();
        let answer = self.markers.answer.map(|[opens, _]| (opens, Place::Wrapped));
        let may_come = [Some((self.markers.opens, Place::Within)), answer].into_iter().flatten();
        if let Some((opens, place)) = may_come.clone().find(|(opens, _)| first.starts_with(opens)) {
            self.held = first[opens.len()..].to_owned();
            self.go(place);
            return true;
        }
        if !may_come.clone().any(|(opens, _)| opens.starts_with(first)) {
            self.place = Place::Answer;
        }
        self.place == Place::Answer
    }

    fn within(&mut self, out: &mut Apart) -> bool {
        let ended = self.up_to(self.markers.closes, &mut out.thought);
        if ended {
            self.go(Place::Behind);
        }
        ended
    }

    fn behind(&mut self) -> bool {
        let opens = self.markers.answer.map_or("", |[opens, _]| opens);
        if let Some(wrapped) = self.held.strip_prefix(opens).filter(|_| !opens.is_empty()) {
            self.held = wrapped.to_owned();
            self.go(Place::Wrapped);
        } else if !opens.starts_with(&self.held) {
            self.place = Place::Answer;
        }
        self.place != Place::Behind
    }

    /// What closes the answer goes, and what is behind it is of the answer still.
    fn wrapped(&mut self, out: &mut Apart) -> bool {
        let ended = self.markers.answer.is_some_and(|[_, closes]| self.up_to(closes, &mut out.text));
        if ended {
            self.go(Place::Behind);
        }
        ended
    }

    fn go(&mut self, place: Place) {
        self.place = place;
        self.skips = true;
    }

    /// Tells what is held up to a marker, or to what may begin one, without the white space before that. Whether the marker is there,
    /// which goes then.
    fn up_to(&mut self, marker: &str, told: &mut String) -> bool {
        let end = self.held.find(marker);
        let sure = end.unwrap_or_else(|| self.held.len() - begun(&self.held, marker));
        let shown = self.held[..sure].trim_end().len();
        told.push_str(&self.held[..shown]);
        self.held.drain(..end.map_or(shown, |end| end + marker.len()));
        end.is_some()
    }
}

/// Bytes at the end of a text that may begin a marker.
fn begun(text: &str, marker: &str) -> usize {
    (1..marker.len()).rev().find(|&n| text.ends_with(&marker[..n])).unwrap_or(0)
}
