//! Which algorithm the library has for a product: it is searched for once.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::product::{Places, Product};

/// How often a search that fails is made: it may for want of memory that is there later.
const TRIES: u32 = 4;

/// Some algorithm, in the library's words.
pub(super) type Algorithm = [u64; 8];

/// What one is chosen for: the product, and how A, B, D and the bias are aligned.
pub(super) type Key = (Product, [u32; 4]);

pub(super) fn key(product: &Product, places: &Places) -> Key {
    (*product, [places.a, places.b, places.d, places.bias].map(alignment))
}

/// The largest power of two up to 256 of which an address is a multiple.
fn alignment(address: u64) -> u32 {
    1 << address.trailing_zeros().min(8)
}

/// What is known of such a product.
#[derive(Clone, Copy)]
enum Known {
    /// It has this one, which was asked for and taken or not yet.
    Has { algorithm: Algorithm, is_taken: bool },
    /// It has none, or refused the product: our own kernels compute it.
    Lacks,
    /// So many searches failed, one after the other.
    Failed { times: u32 },
}

/// Those that were searched for.
#[derive(Default)]
pub(super) struct Algorithms(Mutex<HashMap<Key, Known>>);

impl Algorithms {
    fn known(&self) -> MutexGuard<'_, HashMap<Key, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one for such a product, if it was found.
    pub(super) fn known_for(&self, key: &Key) -> Option<Algorithm> {
        match self.known().get(key) {
            Some(Known::Has { algorithm, .. }) => Some(*algorithm),
            _ => None,
        }
    }

    /// The one for such a product, found now unless it is known. `note` is told why the first search failed.
    pub(super) fn find(
        &self,
        key: Key,
        search: impl FnOnce() -> Result<Option<Algorithm>, String>,
        note: impl FnOnce(&str),
    ) -> Option<Algorithm> {
        let mut known = self.known();
        let times = match known.get(&key) {
            Some(Known::Has { algorithm, .. }) => return Some(*algorithm),
            Some(Known::Lacks) => return None,
            Some(Known::Failed { times }) => *times,
            None => 0,
        };
        if times == TRIES {
            return None;
        }
        let (found, algorithm) = match search() {
            Ok(Some(algorithm)) => (Known::Has { algorithm, is_taken: false }, Some(algorithm)),
            Ok(None) => (Known::Lacks, None),
            Err(why) => {
                if times == 0 {
                    note(&why);
                }
                (Known::Failed { times: times + 1 }, None)
            }
        };
        known.insert(key, found);
        algorithm
    }

    /// Whether such a product was taken.
    pub(super) fn is_taken(&self, key: &Key) -> bool {
        matches!(self.known().get(key), Some(Known::Has { is_taken: true, .. }))
    }

    /// Such a product was taken.
    pub(super) fn took(&self, key: Key) {
        if let Some(Known::Has { is_taken, .. }) = self.known().get_mut(&key) {
            *is_taken = true;
        }
    }

    /// Such a product was refused, and is not asked for again.
    pub(super) fn gave_up(&self, key: Key) {
        self.known().insert(key, Known::Lacks);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::product::{Layout, Numbers};

    #[test]
    fn alignment_is_256_at_most() {
        assert_eq!([0, 1 << 40, 4096 + 48, 7].map(alignment), [256, 256, 16, 1]);
    }

    #[test]
    fn a_search_that_fails_is_made_again_a_few_times() {
        let all = Algorithms::default();
        let matrix = Layout { numbers: Numbers::Bf16, rows: 32, cols: 32, stride: 32, transposed: false };
        let product = |adds| Product { a: matrix, b: matrix, d: matrix, adds, biased: false };
        let places = Places { a: 0, b: 0, d: 0, bias: 0, workspace: 0 };
        let (searches, notes) = (Cell::new(0), Cell::new(0));
        let find = |adds, found: Result<Option<Algorithm>, String>| {
            let search = || {
                searches.set(searches.get() + 1);
                found
            };
            all.find(key(&product(adds), &places), search, |_| notes.set(notes.get() + 1))
        };
        let fails = || Err("no memory".to_owned());
        assert_eq!((find(true, fails()), find(true, fails())), (None, None));
        assert_eq!(find(true, Ok(Some([7; 8]))), Some([7; 8]));
        assert_eq!((find(true, fails()), searches.get(), notes.get()), (Some([7; 8]), 3, 1));
        (0..9).for_each(|_| assert_eq!(find(false, fails()), None));
        assert_eq!((searches.get(), notes.get()), (3 + TRIES, 2));
        // What is given up stays so.
        let key = key(&product(true), &places);
        all.took(key);
        assert!(all.is_taken(&key));
        all.gave_up(key);
        assert_eq!((find(true, Ok(Some([7; 8]))), all.is_taken(&key)), (None, false));
    }
}
