//! Fields of a request that nobody knows.

use crate::error::shorten;

/// Most names that are kept.
const NAMES: usize = 8;

/// How many there are, and the beginnings of the first names. They are the client's, and stay as long as its request:
/// there may be millions of bytes of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnknownFields {
    count: usize,
    names: Vec<String>,
}

impl UnknownFields {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// One more.
    pub(super) fn add(&mut self, name: &str) {
        if self.count < NAMES {
            self.names.push(shorten(name));
        }
        self.count += 1;
    }

    /// The names that are kept.
    pub fn iter(&self) -> std::slice::Iter<'_, String> {
        self.names.iter()
    }
}

impl<'a> FromIterator<&'a str> for UnknownFields {
    fn from_iter<I: IntoIterator<Item = &'a str>>(all: I) -> Self {
        let mut fields = UnknownFields::default();
        all.into_iter().for_each(|name| fields.add(name));
        fields
    }
}
