//! Texts of tokens by id, and ids by text, with each text held once.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use hashbrown::HashTable;

use crate::gguf::Texts;

/// A vocabulary whose ids are places in a list. A text that is there twice is the later token's.
pub(super) struct Vocabulary {
    texts: Texts,
    /// The id of each text, by its hash.
    ids: HashTable<u32>,
    hasher: RandomState,
}

impl Vocabulary {
    pub(super) fn new(texts: Texts) -> Vocabulary {
        let (mut ids, hasher) = (HashTable::with_capacity(texts.len()), RandomState::new());
        let text = |id: u32| texts.get(id as usize).unwrap_or_default();
        for (new, id) in texts.iter().zip(0u32..) {
            let same = |&known: &u32| text(known) == new;
            let entry = ids.entry(hasher.hash_one(new), same, |&known| hasher.hash_one(text(known)));
            entry.and_modify(|known| *known = id).or_insert(id);
        }
        Vocabulary { texts, ids, hasher }
    }

    /// How many different texts there are.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Places in the list: the highest id plus one.
    pub(super) fn places(&self) -> usize {
        self.texts.len()
    }

    pub(super) fn id(&self, text: &str) -> Option<u32> {
        let found = |&id: &u32| self.text(id) == Some(text);
        self.ids.find(self.hasher.hash_one(text), found).copied()
    }

    /// The text at a place of the list; none beyond its end.
    pub(super) fn text(&self, id: u32) -> Option<&str> {
        self.texts.get(id as usize)
    }

    /// The text of a token; none where a later one has the same.
    pub(super) fn token(&self, id: u32) -> Option<&str> {
        self.text(id).filter(|text| self.id(text) == Some(id))
    }

    /// Every text with its id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.texts.iter().zip(0u32..).filter(|&(text, id)| self.id(text) == Some(id))
    }
}
