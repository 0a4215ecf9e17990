//! A word as a chain of tokens, and how pairs of neighbours become one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use super::merges::Merges;

/// No neighbour.
const NONE: u32 = u32::MAX;

/// A token, and its neighbours as places in the list. Texts are 16 MiB at most, so that places and lengths fit.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    id: u32,
    /// Bytes of the word; 0 once it is part of its left neighbour.
    bytes: u32,
    before: u32,
    after: u32,
}

/// The tokens of a word.
#[derive(Debug, Default)]
pub(super) struct Symbols(Vec<Symbol>);

/// Pairs of neighbours that can be merged, the best first; among equals the leftmost. `(rank, place of the left one, what it becomes)`.
type Queue = BinaryHeap<Reverse<(u32, u32, u32)>>;

impl Symbols {
    pub(super) fn push(&mut self, id: u32, bytes: usize) {
        let place = self.0.len() as u32;
        if let Some(last) = self.0.last_mut() {
            last.after = place;
        }
        let before = place.checked_sub(1).unwrap_or(NONE);
        self.0.push(Symbol { id, bytes: bytes as u32, before, after: NONE });
    }

    /// Adds to the last one, if that is the same token.
    pub(super) fn push_or_lengthen(&mut self, id: u32, bytes: usize) {
        match self.0.last_mut() {
            Some(last) if last.id == id => last.bytes += bytes as u32,
            _ => self.push(id, bytes),
        }
    }

    /// Merges the best pair until none is left.
    pub(super) fn merged(mut self, merges: &Merges) -> Symbols {
        let mut queue = Queue::with_capacity(self.0.len());
        (0..self.0.len() as u32).for_each(|place| self.offer(place, merges, &mut queue));
        while let Some(Reverse((_, place, id))) = queue.pop() {
            if self.merge(place, id, merges) {
                let before = self.0[place as usize].before;
                [before, place].into_iter().for_each(|place| self.offer(place, merges, &mut queue));
            }
        }
        self.0.retain(|symbol| symbol.bytes > 0);
        self
    }

    /// Puts the pair that begins here in the queue, if there is one that becomes a token.
    fn offer(&self, place: u32, merges: &Merges, queue: &mut Queue) {
        let pair = self.0.get(place as usize).and_then(|left| Some((left, self.0.get(left.after as usize)?)));
        if let Some(merged) = pair.and_then(|(left, right)| merges.of(left.id, right.id)) {
            queue.push(Reverse((merged.rank, place, merged.id)));
        }
    }

    /// Merges what is there with its right neighbour; false if another merge has changed either.
    fn merge(&mut self, place: u32, id: u32, merges: &Merges) -> bool {
        let left = self.0[place as usize];
        let Some(&right) = self.0.get(left.after as usize).filter(|_| left.bytes > 0) else { return false };
        if merges.of(left.id, right.id).is_none_or(|merged| merged.id != id) {
            return false;
        }
        self.0[left.after as usize].bytes = 0;
        if let Some(next) = self.0.get_mut(right.after as usize) {
            next.before = place;
        }
        let bytes = left.bytes + right.bytes;
        self.0[place as usize] = Symbol { id, bytes, before: left.before, after: right.after };
        true
    }

    /// Each token with its bytes of the word.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, Range<usize>)> {
        let mut end = 0;
        self.0.iter().map(move |symbol| {
            let start = end;
            end += symbol.bytes as usize;
            (symbol.id, start..end)
        })
    }
}
