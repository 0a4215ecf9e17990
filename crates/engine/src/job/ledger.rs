//! A file that only grows, by whole lines: each is written at once, and reaches the disk with others.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::JobError;

/// Lines between two times that the disk is waited for.
const LINES_A_SYNC: usize = 256;

/// A file of whole lines.
pub(super) struct Ledger {
    path: PathBuf,
    file: File,
    /// Bytes of whole lines.
    len: u64,
    lines: usize,
    unsynced: usize,
    synced_at: Instant,
    sync_every: Duration,
    stays: Stays,
}

/// What is there of a file that could not be written to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stays {
    /// Its whole lines, from which a job goes on.
    Lines,
    /// Nothing: it was to take another's place.
    Nothing,
}

impl Ledger {
    /// Opens a file and keeps its first `len` bytes, which are `lines` whole lines.
    pub(super) fn open(
        path: &Path,
        len: u64,
        lines: usize,
        sync_every: Duration,
    ) -> Result<Ledger, JobError> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let mut file = file.map_err(JobError::file("write", path))?;
        let cut = file.set_len(len).and_then(|()| file.seek(SeekFrom::Start(len)));
        cut.map_err(JobError::file("cut", path))?;
        Ok(Ledger {
            path: path.to_owned(),
            file,
            len,
            lines,
            unsynced: 0,
            synced_at: Instant::now(),
            sync_every,
            stays: Stays::Lines,
        })
    }

    /// A new file, of which nothing stays unless all of it can be written.
    pub(super) fn anew(path: &Path, sync_every: Duration) -> Result<Ledger, JobError> {
        Ok(Ledger { stays: Stays::Nothing, ..Ledger::open(path, 0, 0, sync_every)? })
    }

    /// Empties a file, so that the disk has none of it either.
    pub(super) fn emptied(path: &Path) -> Result<(), JobError> {
        let emptied = Ledger::open(path, 0, 0, Duration::MAX)?;
        sync_whole(&emptied.file, path)
    }

    /// Adds a line, its end included. If it does not fit, none of it stays.
    pub(super) fn append(&mut self, line: &[u8]) -> Result<(), JobError> {
        if let Err(source) = self.file.write_all(line) {
            return Err(self.give_up(source));
        }
        self.len += line.len() as u64;
        self.lines += 1;
        self.unsynced += 1;
        if self.unsynced >= LINES_A_SYNC || self.synced_at.elapsed() >= self.sync_every {
            self.sync()?;
        }
        Ok(())
    }

    /// Waits for the disk.
    pub(super) fn sync(&mut self) -> Result<(), JobError> {
        if self.unsynced > 0 {
            self.file.sync_data().map_err(|source| self.give_up(source))?;
            self.unsynced = 0;
        }
        self.synced_at = Instant::now();
        Ok(())
    }

    /// Waits for the disk if lines have waited long enough.
    pub(super) fn sync_if_due(&mut self) -> Result<(), JobError> {
        if self.unsynced > 0 && self.synced_at.elapsed() >= self.sync_every { self.sync() } else { Ok(()) }
    }

    fn give_up(&mut self, source: io::Error) -> JobError {
        if self.stays == Stays::Nothing {
            // It is what fills the disk; if it cannot go, the next attempt empties it.
            let _ = std::fs::remove_file(&self.path);
            return JobError::file("write", &self.path)(source);
        }
        // If the file cannot be cut, the torn line is cut by whoever goes on.
        let _ = self.file.set_len(self.len);
        JobError::Full { path: self.path.clone(), safe: self.lines, source }
    }
}

/// Waits until the disk has a file, or the names in a folder, as they are now.
pub(super) fn sync_whole(file: &File, path: &Path) -> Result<(), JobError> {
    file.sync_all().map_err(JobError::file("sync", path))?;
    #[cfg(test)]
    tests::SYNCED.with_borrow_mut(|synced| synced.push((path.to_owned(), file.metadata().unwrap().len())));
    Ok(())
}

/// Makes the names in the files' folders last.
pub(super) fn sync_folders<'a>(paths: impl Iterator<Item = &'a Path>) -> Result<(), JobError> {
    let folders: BTreeSet<&Path> = paths.map(folder).collect();
    folders.into_iter().try_for_each(|folder| {
        let open = File::open(folder).map_err(JobError::file("sync the folder", folder))?;
        sync_whole(&open, folder)
    })
}

pub(super) fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::cell::RefCell;

    thread_local! {
        /// What this thread synced, one after the other, and how long it was.
        pub(in super::super) static SYNCED: RefCell<Vec<(PathBuf, u64)>> = const { RefCell::new(Vec::new()) };
    }

    #[test]
    fn what_is_beyond_the_whole_lines_is_cut() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        std::fs::write(&path, "one\ntwo\nthr").expect("written");
        let mut ledger = Ledger::open(&path, 8, 2, Duration::ZERO).expect("opens");
        ledger.append(b"3\n").expect("fits");
        assert_eq!(std::fs::read_to_string(&path).expect("text"), "one\ntwo\n3\n");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_says_what_is_safe() {
        let file = OpenOptions::new().write(true).open("/dev/full").expect("there");
        let mut ledger = Ledger {
            path: "full".into(),
            file,
            len: 10,
            lines: 5,
            unsynced: 0,
            synced_at: Instant::now(),
            sync_every: Duration::ZERO,
            stays: Stays::Lines,
        };
        let error = ledger.append(b"x\n").expect_err("full").to_string();
        assert!(error.contains("cannot write full") && error.contains("safe there: 5 answers"), "{error}");
    }
}
