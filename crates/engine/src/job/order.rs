//! In which order answers are written.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

/// In which order answers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputOrder {
    /// That of the requests.
    Input,
    /// As they come.
    Completion,
}

/// Answers that may have to wait for earlier ones; never more lines than the window.
pub(super) struct Waiting<A> {
    order: OutputOrder,
    window: usize,
    /// Positions that were begun and not written yet, oldest first.
    begun: VecDeque<usize>,
    /// Each with its bytes.
    ready: BTreeMap<usize, (usize, A)>,
    /// Those of all, and how many there may be before no other line is begun.
    bytes: usize,
    most_bytes: usize,
    /// What answers will have that are not there yet, where that is much.
    promised: BTreeMap<usize, usize>,
}

impl<A> Waiting<A> {
    pub(super) fn new(order: OutputOrder, window: usize, most_bytes: usize) -> Waiting<A> {
        Waiting {
            order,
            window,
            begun: VecDeque::new(),
            ready: BTreeMap::new(),
            bytes: 0,
            most_bytes,
            promised: BTreeMap::new(),
        }
    }

    /// Whether another line may be begun.
    pub(super) fn has_room(&self) -> bool {
        let bytes = self.bytes + self.promised.values().sum::<usize>();
        self.begun.len() < self.window && (bytes < self.most_bytes || self.begun.is_empty())
    }

    /// The answer of a line that was begun may have so many bytes.
    pub(super) fn promise(&mut self, position: usize, bytes: usize) {
        if bytes > 0 {
            self.promised.insert(position, bytes);
        }
    }

    /// A line is begun.
    pub(super) fn begin(&mut self, position: usize) {
        debug_assert!(self.has_room());
        self.begun.push_back(position);
    }

    /// A line that was begun has its answer, of so many bytes.
    pub(super) fn put(&mut self, position: usize, bytes: usize, answer: A) {
        self.promised.remove(&position);
        self.bytes += bytes;
        self.ready.insert(position, (bytes, answer));
    }

    /// The answer to be written next, if it is there.
    pub(super) fn take(&mut self) -> Option<(usize, A)> {
        let position = match self.order {
            OutputOrder::Input => *self.begun.front()?,
            OutputOrder::Completion => *self.ready.first_key_value()?.0,
        };
        let (bytes, answer) = self.ready.remove(&position)?;
        self.bytes -= bytes;
        let at = self.begun.iter().position(|&begun| begun == position)?;
        self.begun.remove(at);
        Some((position, answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn story(order: OutputOrder) -> Vec<usize> {
        let mut waiting = Waiting::new(order, 3, 100);
        let mut written = Vec::new();
        (0..3).for_each(|position| waiting.begin(position));
        assert!(!waiting.has_room());
        for position in [2, 0, 1] {
            waiting.put(position, 1, ());
            while let Some((position, _)) = waiting.take() {
                written.push(position);
            }
        }
        assert!(waiting.has_room() && waiting.begun.is_empty());
        written
    }

    #[test]
    fn no_more_is_begun_while_what_waits_is_large() {
        let mut waiting = Waiting::new(OutputOrder::Input, 9, 100);
        (0..3).for_each(|position| waiting.begin(position));
        waiting.put(2, 50, ());
        assert!(waiting.has_room() && waiting.take().is_none());
        waiting.put(1, 50, ());
        assert!(!waiting.has_room() && waiting.take().is_none());
        waiting.put(0, 1, ());
        while waiting.take().is_some() {}
        assert!(waiting.has_room());
    }

    #[test]
    fn what_is_promised_counts_until_it_is_there() {
        let mut waiting = Waiting::new(OutputOrder::Completion, 9, 100);
        waiting.promise(0, 500);
        assert!(waiting.has_room(), "one line there is always room for");
        waiting.begin(0);
        assert!(!waiting.has_room());
        waiting.put(0, 7, ());
        assert!(waiting.has_room());
        assert_eq!(waiting.take().map(|(position, _)| position), Some(0));
    }

    #[test]
    fn answers_wait_for_earlier_ones_or_do_not() {
        assert_eq!(story(OutputOrder::Input), [0, 1, 2]);
        assert_eq!(story(OutputOrder::Completion), [2, 0, 1]);
    }
}
