//! Outputs of all shards, made one in the order of the input.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::apart::clash;
use super::files::{Existing, Paths, part, replace, state_path};
use super::kept::{self, Found};
use super::ledger::{Ledger, folder, sync_folders};
use super::{JobError, Record};
use crate::words::counted;

/// Answers that were merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merged {
    /// All of them.
    pub lines: usize,
    /// Errors among them.
    pub failed: usize,
}

/// One shard's output.
struct Part {
    path: PathBuf,
    record: Record,
    /// Answers, and errors where they are apart.
    files: Vec<(PathBuf, Vec<Found>)>,
}

/// Makes one output of those of all shards of a job; the new files appear whole or not at all.
///
/// # Errors
/// [`JobError::Shards`]: they do not make a whole; [`JobError::Exists`]; [`JobError::File`].
pub fn merge(shards: &[PathBuf], into: &Paths, existing: Existing) -> Result<Merged, JobError> {
    let taken = [Some(&into.answers), into.errors.as_ref()].into_iter().flatten().find(|path| path.exists());
    if let (Some(path), Existing::Continue) = (taken, existing) {
        return Err(JobError::Exists(path.clone()));
    }
    let parts = shards.iter().map(|path| Part::read(path)).collect::<Result<Vec<_>, _>>()?;
    check(&parts)?;
    let read: Vec<PathBuf> = parts.iter().flat_map(Part::paths).collect();
    if let Some(path) = clash(&read.iter().map(AsRef::as_ref).collect::<Vec<_>>(), Some(into), &[]) {
        let why = format!("{} would be written over what is merged: choose other names", path.display());
        return Err(JobError::Shards(why));
    }
    let mut all = BTreeMap::new();
    for (path, found) in parts.iter().flat_map(|part| &part.files) {
        for answer in found {
            if all.insert(answer.line, (path, answer)).is_some() {
                return Err(JobError::Shards(format!("line {} of the input is answered twice", answer.line)));
            }
        }
    }
    write(all.into_values(), into)
}

/// New files on their way to their names, of which none stays if one does not get there.
#[derive(Default)]
struct Halves(Vec<PathBuf>);

impl Drop for Halves {
    fn drop(&mut self) {
        self.0.iter().for_each(|path| _ = fs::remove_file(path));
    }
}

fn write<'a>(all: impl Iterator<Item = (&'a PathBuf, &'a Found)>, into: &Paths) -> Result<Merged, JobError> {
    let mut halves = Halves::default();
    let mut open = |path: &Path| {
        let path = part(path);
        let ledger = Ledger::anew(&path, Duration::MAX)?;
        halves.0.push(path);
        Ok::<_, JobError>(ledger)
    };
    let mut answers = open(&into.answers)?;
    let mut errors = into.errors.as_deref().map(&mut open).transpose()?;
    let mut merged = Merged { lines: 0, failed: 0 };
    let mut files: BTreeMap<&Path, File> = BTreeMap::new();
    for (path, found) in all {
        if !files.contains_key(path.as_path()) {
            files.insert(path, File::open(path).map_err(JobError::file("read", path))?);
        }
        let mut bytes = vec![0; (found.range.end - found.range.start) as usize];
        let file = &files[path.as_path()];
        file.read_exact_at(&mut bytes, found.range.start).map_err(JobError::file("read", path))?;
        match &mut errors {
            Some(errors) if !found.is_ok() => errors.append(&bytes)?,
            _ => answers.append(&bytes)?,
        }
        merged.lines += 1;
        merged.failed += usize::from(!found.is_ok());
    }
    answers.sync()?;
    errors.as_mut().map_or(Ok(()), Ledger::sync)?;
    for path in into.errors.iter().chain([&into.answers]) {
        replace(path)?;
    }
    halves.0.clear();
    sync_folders(into.each())?;
    Ok(merged)
}

impl Part {
    fn read(path: &Path) -> Result<Part, JobError> {
        let state = state_path(path);
        let text = fs::read_to_string(&state).map_err(JobError::file("read", &state))?;
        let wrong =
            |why: String| JobError::Shards(format!("{} is no state of a job: {why}", state.display()));
        let record: Record = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        if record.shard.index >= record.shard.of {
            return Err(wrong(format!("there is no shard {}", record.shard)));
        }
        let errors = record.error_file.as_ref().map(|name| folder(path).join(name));
        let digest = record.input_sha256.get(..16).ok_or_else(|| wrong("it names no input".into()))?;
        let mut files = Vec::new();
        for path in [Some(path.to_owned()), errors].into_iter().flatten() {
            let found = kept::read_numbered(&path, digest)?;
            files.push((path, found));
        }
        Ok(Part { path: path.to_owned(), record, files })
    }

    /// All that is read of it.
    fn paths(&self) -> impl Iterator<Item = PathBuf> {
        let files = self.files.iter().map(|(path, _)| path.clone());
        files.chain([state_path(&self.path)])
    }

    /// Lines that should be there and are not.
    fn missing(&self) -> usize {
        self.record
            .shard
            .lines(self.record.lines)
            .saturating_sub(self.files.iter().map(|(_, found)| found.len()).sum())
    }
}

/// Whether these are all shards of one job, all finished.
fn check(parts: &[Part]) -> Result<(), JobError> {
    let [first, ..] = parts else { return Err(JobError::Shards("there is nothing to merge".into())) };
    let wrong = |part: &Part, why: String| Err(JobError::Shards(format!("{}: {why}", part.path.display())));
    let of = first.record.shard.of;
    for part in parts {
        let alike = Record {
            shard: first.record.shard,
            error_file: first.record.error_file.clone(),
            order: first.record.order,
            ..part.record.clone()
        };
        let differences = first.record.differences(&alike);
        if part.record.shard.of != of || !differences.is_empty() {
            let shard = format!("it is shard {}, the first is {}", part.record.shard, first.record.shard);
            let why = if differences.is_empty() { shard } else { differences.join("; ") };
            return wrong(part, format!("another job than {}: {why}", first.path.display()));
        }
        if part.missing() > 0 {
            return wrong(
                part,
                format!("{} without an answer yet: run this shard again", counted(part.missing(), "line")),
            );
        }
    }
    let lacking = (0..of).find(|&index| !parts.iter().any(|part| part.record.shard.index == index));
    match lacking {
        Some(index) => Err(JobError::Shards(format!("shard {index}/{of} is missing"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Input;

    #[test]
    fn a_state_that_no_job_wrote_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (shard, into) = (folder.path().join("part"), folder.path().join("all"));
        let record = Record::new(&Input::new(b"a\nb\n".to_vec()), 0, BTreeMap::new());
        let whole = serde_json::to_string(&record).unwrap();
        let merged = |state: &str| {
            fs::write(state_path(&shard), state).unwrap();
            let into = Paths { answers: into.clone(), errors: None };
            merge(std::slice::from_ref(&shard), &into, Existing::Continue).unwrap_err().to_string()
        };
        assert!(merged(&whole).contains("2 lines without an answer yet"), "{}", merged(&whole));
        let broken = [
            whole.replace("\"of\":1", "\"of\":0"),
            whole.replace("\"index\":0", "\"index\":1"),
            whole.replace(&record.input_sha256, &format!("{}!é", "é".repeat(7))),
            whole[..9].to_string(),
        ];
        for state in broken {
            assert_ne!(state, whole);
            assert!(merged(&state).contains("part.state is no state of a job"), "{}", merged(&state));
        }
        let endless = whole.replace("\"lines\":2", &format!("\"lines\":{}", u64::MAX));
        assert!(merged(&endless).contains("without an answer yet"));
        assert!(!into.exists());
    }
}
