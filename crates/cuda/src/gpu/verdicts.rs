//! Which modules passed their trial, kept beside their machine code: a trial that ended the process is found there by the next one.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, PoisonError};

use super::{Gpu, kept};
use crate::module::{Module, Prefill};

/// What is known of each.
pub(super) type Verdicts = HashMap<Module, bool>;

const PASSED: &[u8] = b"passed";
const FAILED: &[u8] = b"failed";
const BEGAN: &[u8] = b"began, and did not end";

/// What a file says; nothing if there is none.
pub(super) fn read(path: &Path) -> Option<bool> {
    kept::read(path).map(|said| said == PASSED)
}

/// Runs a trial, of which the file says first that it began.
pub(super) fn keep(path: Option<&Path>, trial: &mut dyn FnMut() -> bool) -> bool {
    // What cannot be kept is tried again the next time.
    let note = |what| path.is_some_and(|path| kept::keep(path, what).is_ok());
    note(BEGAN);
    let passed = trial();
    note(if passed { PASSED } else { FAILED });
    passed
}

impl Gpu {
    pub(super) fn verdicts(&self) -> MutexGuard<'_, Verdicts> {
        self.verdicts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Beside the machine code that was tried.
    pub(super) fn verdict_at(&self, module: Module) -> Option<PathBuf> {
        Some(self.kept_at(module).ok()??.with_extension("verdict"))
    }

    /// Which kernel attends of many rows, and what came of trials, for people.
    pub fn attends_many_by(&self) -> String {
        let verdicts = self.verdicts();
        let tried = |passed| verdicts.values().filter(|verdict| **verdict == passed).count();
        match (self.prefill, tried(true), tried(false)) {
            (Prefill::Tried, passed, failed) => {
                format!("{} ({passed} shapes agree, {failed} do not)", self.prefill)
            }
            (prefill, ..) => prefill.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_that_does_not_end_is_not_passed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.verdict");
        assert_eq!(read(&path), None);
        for passes in [true, false] {
            assert_eq!(keep(Some(&path), &mut || passes), passes);
            assert_eq!(read(&path), Some(passes));
        }
        keep(Some(&path), &mut || true);
        let lost =
            std::panic::catch_unwind(|| keep(Some(&path), &mut || std::panic::resume_unwind(Box::new(0))));
        assert!(lost.is_err());
        assert_eq!(read(&path), Some(false));
        assert!(keep(None, &mut || true), "where nothing is kept");
    }
}
