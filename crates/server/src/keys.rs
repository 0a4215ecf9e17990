//! Who may ask: every route but a few needs a key, if there are keys at all.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// Digests of the keys, so that a comparison takes the same time however much of a key is right.
pub(crate) struct Keys(RwLock<Vec<[u8; 32]>>);

impl Keys {
    pub(crate) fn new(keys: &[String]) -> Keys {
        Keys(RwLock::new(digests(keys)))
    }

    /// Other keys from now on. None at all would leave the server open: then those that there are stay.
    pub(crate) fn replace(&self, keys: &[String]) {
        if !keys.is_empty() {
            *self.0.write().unwrap_or_else(PoisonError::into_inner) = digests(keys);
        }
    }

    fn known(&self) -> RwLockReadGuard<'_, Vec<[u8; 32]>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody needs a key.
    pub(crate) fn is_open(&self) -> bool {
        self.known().is_empty()
    }

    /// Whether any of these lets its client in.
    pub(crate) fn admit(&self, given: &[Key]) -> bool {
        self.is_open() || given.iter().filter_map(Key::text).any(|key| self.knows(key))
    }

    fn knows(&self, key: &str) -> bool {
        let given = digest(key.trim());
        self.known().iter().fold(Choice::from(0), |known, key| known | key.ct_eq(&given)).into()
    }
}

/// A key as clients send it.
#[derive(Clone, Copy)]
pub(crate) enum Key<'a> {
    /// `Authorization: Bearer KEY`
    Authorization(&'a str),
    /// `x-api-key: KEY`
    Bare(&'a str),
}

impl<'a> Key<'a> {
    fn text(&self) -> Option<&'a str> {
        match *self {
            Key::Authorization(value) => {
                let (scheme, key) = value.split_once(' ')?;
                scheme.eq_ignore_ascii_case("bearer").then_some(key)
            }
            Key::Bare(key) => Some(key),
        }
    }
}

fn digests(keys: &[String]) -> Vec<[u8; 32]> {
    keys.iter().map(|key| digest(key)).collect()
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_of_the_keys_and_nothing_else_opens() {
        let keys = Keys::new(&["one".into(), "two".into()]);
        for good in ["Bearer one", "bearer two", "BEARER  two"] {
            assert!(keys.admit(&[Key::Authorization(good)]), "{good}");
        }
        for bad in ["", "one", "Bearer", "Bearer ", "Bearer on", "Bearer onee", "Basic one", "Bearer one two"]
        {
            assert!(!keys.admit(&[Key::Authorization(bad)]), "{bad}");
        }
        assert!(!keys.admit(&[]));
        assert!(keys.admit(&[Key::Bare("two")]) && !keys.admit(&[Key::Bare("Bearer two"), Key::Bare("")]));
        assert!(keys.admit(&[Key::Authorization("Bearer none"), Key::Bare("one")]), "one of them is enough");
        keys.replace(&["three".into()]);
        assert!(keys.admit(&[Key::Bare("three")]) && !keys.admit(&[Key::Bare("one")]));
        keys.replace(&[]);
        assert!(keys.admit(&[Key::Bare("three")]) && !keys.admit(&[]), "an empty file opens nothing");
        assert!(Keys::new(&[]).admit(&[]) && Keys::new(&[]).admit(&[Key::Bare("x")]));
    }
}
