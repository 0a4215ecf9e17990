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
    /// What answers may have that are not there yet, where that is much; and of all of them.
    promised: BTreeMap<usize, usize>,
    promised_bytes: usize,
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
            promised_bytes: 0,
        }
    }

    /// Whether another line may be begun.
    pub(super) fn has_room(&self) -> bool {
        let has_bytes = self.bytes + self.promised_bytes < self.most_bytes;
        self.begun.len() < self.window && (has_bytes || self.begun.is_empty())
    }

    /// The answer of a line that was begun may have so many bytes.
    pub(super) fn promise(&mut self, position: usize, bytes: usize) {
        if bytes > 0 {
            self.promised_bytes += bytes;
            self.promised_bytes -= self.promised.insert(position, bytes).unwrap_or(0);
        }
    }

    /// A line is begun.
    pub(super) fn begin(&mut self, position: usize) {
        debug_assert!(self.has_room());
        self.begun.push_back(position);
    }

    /// A line that was begun has its answer, of so many bytes.
    pub(super) fn put(&mut self, position: usize, bytes: usize, answer: A) {
        self.promised_bytes -= self.promised.remove(&position).unwrap_or(0);
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
        // A line that could not begin yet is taken twice.
        waiting.promise(0, 700);
        waiting.promise(0, 500);
        assert!(waiting.has_room(), "one line there is always room for");
        waiting.begin(0);
        assert!(!waiting.has_room());
        waiting.put(0, 7, ());
        assert!(waiting.has_room() && waiting.promised_bytes == 0);
        assert_eq!(waiting.take().map(|(position, _)| position), Some(0));
    }

    #[test]
    fn answers_wait_for_earlier_ones_or_do_not() {
        assert_eq!(story(OutputOrder::Input), [0, 1, 2]);
        assert_eq!(story(OutputOrder::Completion), [2, 0, 1]);
    }
}
