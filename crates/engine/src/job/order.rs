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
pub(super) struct Waiting<T> {
    order: OutputOrder,
    window: usize,
    /// Positions that were begun and not written yet, oldest first.
    begun: VecDeque<usize>,
    ready: BTreeMap<usize, T>,
}

impl<T> Waiting<T> {
    pub(super) fn new(order: OutputOrder, window: usize) -> Waiting<T> {
        Waiting { order, window, begun: VecDeque::new(), ready: BTreeMap::new() }
    }

    /// Whether another line may be begun.
    pub(super) fn has_room(&self) -> bool {
        self.begun.len() < self.window
    }

    /// A line is begun.
    pub(super) fn begin(&mut self, position: usize) {
        debug_assert!(self.has_room());
        self.begun.push_back(position);
    }

    /// A line that was begun has its answer.
    pub(super) fn put(&mut self, position: usize, answer: T) {
        self.ready.insert(position, answer);
    }

    /// The answer to be written next, if it is there.
    pub(super) fn take(&mut self) -> Option<(usize, T)> {
        let position = match self.order {
            OutputOrder::Input => *self.begun.front()?,
            OutputOrder::Completion => *self.ready.first_key_value()?.0,
        };
        let answer = self.ready.remove(&position)?;
        let at = self.begun.iter().position(|&begun| begun == position)?;
        self.begun.remove(at);
        Some((position, answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn story(order: OutputOrder) -> Vec<usize> {
        let mut waiting = Waiting::new(order, 3);
        let mut written = Vec::new();
        (0..3).for_each(|position| waiting.begin(position));
        assert!(!waiting.has_room());
        for position in [2, 0, 1] {
            waiting.put(position, ());
            while let Some((position, ())) = waiting.take() {
                written.push(position);
            }
        }
        assert!(waiting.has_room() && waiting.begun.is_empty());
        written
    }

    #[test]
    fn answers_wait_for_earlier_ones_or_do_not() {
        assert_eq!(story(OutputOrder::Input), [0, 1, 2]);
        assert_eq!(story(OutputOrder::Completion), [2, 0, 1]);
    }
}
