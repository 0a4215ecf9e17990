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

    /// Whether a header `Authorization: Bearer KEY` lets its client in.
    pub(crate) fn admit(&self, authorization: Option<&str>) -> bool {
        let bearer = authorization.and_then(|value| value.split_once(' '));
        let Some((_, given)) = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")) else {
            return self.is_open();
        };
        let given = digest(given.trim());
        let known = self.known().iter().fold(Choice::from(0), |known, key| known | key.ct_eq(&given));
        self.is_open() || known.into()
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
            assert!(keys.admit(Some(good)), "{good}");
        }
        for bad in ["", "one", "Bearer", "Bearer ", "Bearer on", "Bearer onee", "Basic one", "Bearer one two"]
        {
            assert!(!keys.admit(Some(bad)), "{bad}");
        }
        assert!(!keys.admit(None));
        keys.replace(&["three".into()]);
        assert!(keys.admit(Some("Bearer three")) && !keys.admit(Some("Bearer one")));
        keys.replace(&[]);
        assert!(keys.admit(Some("Bearer three")) && !keys.admit(None), "an empty file opens nothing");
        assert!(Keys::new(&[]).admit(None) && Keys::new(&[]).admit(Some("Bearer x")));
    }
}
