//! What was deleted a short time ago: a client that goes through pages and deletes what it finds names it for the next page.

use std::collections::VecDeque;

/// How many are remembered.
const MOST: usize = 10_000;

/// Ids and the times at which they were made.
#[derive(Default)]
pub(super) struct Gone(VecDeque<(String, u64)>);

impl Gone {
    /// This was deleted.
    pub(super) fn note(&mut self, id: &str, created: u64) {
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back((id.to_string(), created));
    }

    /// When it was made.
    pub(super) fn created(&self, id: &str) -> Option<u64> {
        self.0.iter().rev().find(|(gone, _)| gone == id).map(|(_, created)| *created)
    }
}
