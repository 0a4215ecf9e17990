//! Who may ask: every route but a few needs a key, if there are keys at all.

use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// Digests of the keys, so that a comparison takes the same time however much of a key is right.
pub(crate) struct Keys(Vec<[u8; 32]>);

impl Keys {
    pub(crate) fn new(keys: &[String]) -> Keys {
        Keys(keys.iter().map(|key| digest(key)).collect())
    }

    /// Whether nobody needs a key.
    pub(crate) fn is_open(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a header `Authorization: Bearer KEY` lets its client in.
    pub(crate) fn admit(&self, authorization: Option<&str>) -> bool {
        let bearer = authorization.and_then(|value| value.split_once(' '));
        let Some((_, given)) = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")) else {
            return self.is_open();
        };
        let given = digest(given.trim());
        let known = self.0.iter().fold(Choice::from(0), |known, key| known | key.ct_eq(&given));
        self.is_open() || known.into()
    }
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
        assert!(Keys::new(&[]).admit(None) && Keys::new(&[]).admit(Some("Bearer x")));
    }
}
