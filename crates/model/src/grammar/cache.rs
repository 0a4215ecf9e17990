//! Compiled grammars, the least recently used forgotten first.

use std::collections::HashMap;

use crate::sampling::Grammar;

/// A cache of bounded bytes.
pub(super) struct Cache {
    limit: usize,
    bytes: usize,
    clock: u64,
    entries: HashMap<[u8; 32], Entry>,
}

struct Entry {
    grammar: Grammar,
    bytes: usize,
    used: u64,
}

impl Cache {
    pub(super) fn new(limit: usize) -> Cache {
        Cache { limit, bytes: 0, clock: 0, entries: HashMap::new() }
    }

    pub(super) fn get(&mut self, key: &[u8; 32]) -> Option<Grammar> {
        self.clock += 1;
        let entry = self.entries.get_mut(key)?;
        entry.used = self.clock;
        Some(entry.grammar.clone())
    }

    /// Keeps a grammar, unless it alone is more than all may be.
    pub(super) fn put(&mut self, key: [u8; 32], grammar: Grammar) {
        let bytes = grammar.bytes();
        if bytes > self.limit {
            return;
        }
        if let Some(before) = self.entries.remove(&key) {
            self.bytes -= before.bytes;
        }
        while self.bytes + bytes > self.limit {
            self.forget_oldest();
        }
        self.clock += 1;
        self.bytes += bytes;
        self.entries.insert(key, Entry { grammar, bytes, used: self.clock });
    }

    fn forget_oldest(&mut self) {
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key);
        let entry = oldest.and_then(|key| self.entries.remove(&key)).expect("bytes are held by entries");
        self.bytes -= entry.bytes;
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}
