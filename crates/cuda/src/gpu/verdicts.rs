//! Which modules passed their trial, kept beside their machine code: a trial that ended the process, or lost the device, is found there
//! by the next one.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, PoisonError};

use sha2::{Digest, Sha256};

use super::{Gpu, kept};
use crate::Outcome;
use crate::module::{Heads, Module, Prefill};

/// What is known of each.
pub(super) type Verdicts = HashMap<Module, bool>;

/// Which trial it is: one of another number says nothing.
const TRIAL: u32 = 2;

const PASSED: &[u8] = b"passed";
const FAILED: &[u8] = b"failed";
/// Its process ended or lost the device before it did, perhaps for another reason: it is tried once more.
const BEGAN: &[u8] = b"began, and did not end";
const BEGAN_AGAIN: &[u8] = b"began twice, and did not end";

/// What a file says, once nobody is at that trial; nothing if there is none, or it is to be tried once more.
pub(super) fn read(path: &Path) -> Option<bool> {
    let said = kept::read(path)?;
    if said == PASSED || said == FAILED {
        return verdict(&said);
    }
    let _alone = alone(path);
    verdict(&kept::read(path)?)
}

/// Nothing of a trial that began once.
fn verdict(said: &[u8]) -> Option<bool> {
    (said != BEGAN).then_some(said == PASSED)
}

/// Held for as long as a trial takes, which another process or another device of this one may want as well. The system takes it
/// from who ends. Nothing where files cannot be locked.
fn alone(path: &Path) -> Option<File> {
    fs::create_dir_all(path.parent()?).ok()?;
    let lock = path.with_extension("verdict.lock");
    let lock = File::options().create(true).truncate(false).write(true).open(lock).ok()?;
    lock.lock().ok().map(|()| lock)
}

/// Runs a trial, of which the file says first that it began, unless somebody else has run it meanwhile. Whether the module passed.
pub(super) fn keep(path: Option<&Path>, trial: &mut dyn FnMut() -> Outcome) -> bool {
    let _alone = path.and_then(alone);
    let said = path.and_then(kept::read);
    if let Some(known) = said.as_deref().and_then(verdict) {
        return known;
    }
    // What cannot be kept is tried again the next time.
    let note = |what| path.is_some_and(|path| kept::keep(path, what).is_ok());
    note(if said.is_some() { BEGAN_AGAIN } else { BEGAN });
    // One that loses the device unwinds, and has not ended either.
    let outcome = trial();
    match outcome {
        Outcome::Passed => _ = note(PASSED),
        Outcome::Failed => _ = note(FAILED),
        // It ended, and says nothing. A file that cannot be removed says that it did not end.
        Outcome::Open => _ = path.map(fs::remove_file),
    }
    outcome == Outcome::Passed
}

/// What a module is tried beside.
fn rivals(module: Module) -> [Module; 2] {
    match module {
        Module::Warpgroups { pages, head_dim, .. } => [
            Module::Attention(Heads::plain(pages, head_dim)),
            Module::Warpgroups { pages, head_dim, turns: false },
        ],
        other => [other; 2],
    }
}

/// Who passed and who did not.
fn in_words(verdicts: &Verdicts) -> String {
    let named = |passed| {
        let of = |(module, verdict): (&Module, &bool)| (*verdict == passed).then(|| module.to_string());
        let mut names: Vec<String> = verdicts.iter().filter_map(of).collect();
        names.sort();
        if names.is_empty() { "none".to_string() } else { names.join(", ") }
    };
    format!("passed: {}; not: {}", named(true), named(false))
}

impl Gpu {
    pub(super) fn verdicts(&self) -> MutexGuard<'_, Verdicts> {
        self.verdicts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Beside the machine code that was tried, of this device and these rivals.
    pub(super) fn verdict_at(&self, module: Module) -> Option<PathBuf> {
        let key = (TRIAL, &self.name, rivals(module).map(Module::source));
        let digest = Sha256::digest(format!("{key:?}"));
        let digest: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        Some(self.kept_at(module).ok()??.with_extension(format!("{digest}.verdict")))
    }

    /// Which kernel attends of many rows, and what came of trials, for people.
    pub fn attends_many_by(&self) -> String {
        match self.prefill {
            Prefill::Tried => format!("{} ({})", self.prefill, in_words(&self.verdicts())),
            prefill => prefill.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::any::Any;
    use std::panic::{catch_unwind, resume_unwind};
    use std::sync::Barrier;
    use std::thread;

    use kernels::attention::KvDtype;

    use super::*;
    use crate::Lost;

    /// What a trial unwinds with.
    type Why = fn() -> Box<dyn Any + Send>;

    #[test]
    fn a_trial_that_does_not_end_is_tried_once_more_and_then_not_passed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join("kernels").join(name);
        assert_eq!(read(&path("passes.verdict")), None);
        for (name, outcome, known) in [
            ("passes.verdict", Outcome::Passed, Some(true)),
            ("fails.verdict", Outcome::Failed, Some(false)),
            ("open.verdict", Outcome::Open, None),
        ] {
            assert_eq!(keep(Some(&path(name)), &mut || outcome), outcome == Outcome::Passed);
            assert_eq!(read(&path(name)), known);
        }
        assert!(keep(Some(&path("open.verdict")), &mut || Outcome::Passed), "it is tried again");
        let whys: [(&str, Why); 2] =
            [("ends.verdict", || Box::new(0)), ("lost.verdict", || Box::new(Lost("".into())))];
        for (name, why) in whys {
            let ends = path(name);
            for afterwards in [None, Some(false)] {
                assert!(catch_unwind(|| keep(Some(&ends), &mut || resume_unwind(why()))).is_err());
                assert_eq!(read(&ends), afterwards, "{name}");
            }
            assert!(!keep(Some(&ends), &mut || unreachable!("a third trial")));
        }
        let ends = path("ends.verdict");
        kept::keep(&ends, BEGAN).unwrap();
        assert!(keep(Some(&ends), &mut || Outcome::Passed) && read(&ends) == Some(true), "the second ends");
        assert!(keep(None, &mut || Outcome::Passed), "where nothing is kept");
    }

    #[test]
    fn trials_are_told_by_name() {
        let of = |turns| Module::Warpgroups { pages: KvDtype::Bf16, head_dim: 128, turns };
        let verdicts = Verdicts::from([(of(true), true), (of(false), true)]);
        assert_eq!(in_words(&verdicts), "passed: turns-Bf16-128, warpgroups-Bf16-128; not: none");
    }

    #[test]
    fn who_comes_during_a_trial_waits_for_it_and_believes_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.verdict");
        let (trial, others) = (Barrier::new(3), Barrier::new(3));
        let second = || {
            trial.wait();
            others.wait();
            keep(Some(&path), &mut || unreachable!("a second trial"))
        };
        let reader = || {
            trial.wait();
            assert_eq!(kept::read(&path).as_deref(), Some(BEGAN));
            others.wait();
            read(&path)
        };
        let mut first = || {
            trial.wait();
            others.wait();
            Outcome::Passed
        };
        thread::scope(|scope| {
            let (second, reader) = (scope.spawn(second), scope.spawn(reader));
            assert!(keep(Some(&path), &mut first));
            assert_eq!((second.join().unwrap(), reader.join().unwrap()), (true, Some(true)));
        });
    }
}
