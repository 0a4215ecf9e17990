//! A file that only grows, by whole lines: each is written at once, and reaches the disk with others.

use std::collections::BTreeSet;
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::JobError;

/// Lines between two times that the disk is waited for.
const LINES_A_SYNC: usize = 256;

/// A file of whole lines.
pub(super) struct Ledger {
    path: PathBuf,
    file: File,
    /// Whole lines.
    written: Extent,
    /// Those that the disk has.
    synced: Extent,
    synced_at: Instant,
    sync_every: Duration,
    stays: Stays,
}

/// How far a file goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Extent {
    bytes: u64,
    lines: usize,
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
    /// A file of this job's, of which the first `len` bytes stay: `lines` whole lines.
    pub(super) fn over(
        mut file: File,
        path: &Path,
        (len, lines): (u64, usize),
        sync_every: Duration,
    ) -> Result<Ledger, JobError> {
        let cut = file.set_len(len).and_then(|()| file.seek(SeekFrom::Start(len)));
        cut.map_err(JobError::file("cut", path))?;
        Ok(Ledger {
            path: path.to_owned(),
            file,
            written: Extent { bytes: len, lines },
            synced: Extent { bytes: len, lines },
            synced_at: Instant::now(),
            sync_every,
            stays: Stays::Lines,
        })
    }

    /// A new file, of which nothing stays unless all of it can be written.
    pub(super) fn anew(path: &Path, sync_every: Duration) -> Result<Ledger, JobError> {
        Ok(Ledger { stays: Stays::Nothing, ..Ledger::over(alone(path)?, path, (0, 0), sync_every)? })
    }

    /// Adds a line, its end included. If it does not fit, none of it stays.
    pub(super) fn append(&mut self, line: &[u8]) -> Result<(), JobError> {
        if let Err(source) = self.file.write_all(line) {
            // Without the torn line. If the file cannot be cut, whoever goes on does it.
            let kept = self.file.set_len(self.written.bytes).and_then(|()| self.file.sync_data());
            if kept.is_ok() {
                self.synced = self.written;
            }
            return Err(self.give_up(source));
        }
        self.written =
            Extent { bytes: self.written.bytes + line.len() as u64, lines: self.written.lines + 1 };
        if self.unsynced() >= LINES_A_SYNC || self.synced_at.elapsed() >= self.sync_every {
            self.sync()?;
        }
        Ok(())
    }

    /// Waits for the disk, and finds the file where it belongs: what is in one without its name nobody will see.
    pub(super) fn sync(&mut self) -> Result<(), JobError> {
        if self.unsynced() > 0 {
            self.file.sync_data().map_err(|source| self.give_up(source))?;
            self.synced = self.written;
        }
        self.synced_at = Instant::now();
        let found = || is_at(&self.file, &self.path).map_err(JobError::file("find", &self.path));
        if self.written.lines == 0 || found()? {
            return Ok(());
        }
        let why = "it was removed or renamed meanwhile: what is written is not there under this name";
        Err(JobError::file("write", &self.path)(io::Error::other(why)))
    }

    /// Waits for the disk if lines have waited long enough.
    pub(super) fn sync_if_due(&mut self) -> Result<(), JobError> {
        if self.unsynced() > 0 && self.synced_at.elapsed() >= self.sync_every { self.sync() } else { Ok(()) }
    }

    fn unsynced(&self) -> usize {
        self.written.lines - self.synced.lines
    }

    fn give_up(&mut self, source: io::Error) -> JobError {
        if self.stays == Stays::Nothing {
            // It is what fills the disk; if it cannot go, the next attempt empties it.
            let _ = std::fs::remove_file(&self.path);
            return JobError::file("write", &self.path)(source);
        }
        // What the disk did not take may be a hole by now, and a second wait for it would not say so: it is not told as safe.
        let _ = self.file.set_len(self.synced.bytes);
        JobError::Full { path: self.path.clone(), safe: self.synced.lines, source }
    }
}

/// An output, opened or made, and taken from all other jobs under whatever name they know it: a link leads to it too, and two jobs
/// may have said the same file for errors. What is no file (`/dev/null`) anybody may write to.
pub(super) fn alone(path: &Path) -> Result<File, JobError> {
    loop {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(JobError::file("write", path))?;
        if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Ok(file);
        }
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(JobError::Busy(path.to_owned())),
            // Some network drives have no locks; the state's alone is asked for there.
            Err(TryLockError::Error(error)) if error.kind() != io::ErrorKind::Unsupported => {
                return Err(JobError::file("lock", path)(error));
            }
            // Unless whoever had it gave the name to another meanwhile.
            _ if is_at(&file, path).map_err(JobError::file("find", path))? => return Ok(file),
            _ => {}
        }
    }
}

/// Whether an open file is the one of this name.
pub(super) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let same = |a: &Metadata, b: &Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        found => Ok(same(&file.metadata()?, &found?)),
    }
}

/// Empties a file, so that the disk has none of it either.
pub(super) fn empty(file: &File, path: &Path) -> Result<(), JobError> {
    file.set_len(0).map_err(JobError::file("cut", path))?;
    sync_whole(file, path)
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
        let mut ledger =
            Ledger::over(alone(&path).expect("ours"), &path, (8, 2), Duration::ZERO).expect("opens");
        ledger.append(b"3\n").expect("fits");
        assert_eq!(std::fs::read_to_string(&path).expect("text"), "one\ntwo\n3\n");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_says_what_is_safe() {
        let file = OpenOptions::new().write(true).open("/dev/full").expect("there");
        let mut ledger = Ledger { path: "full".into(), ..of(file, (12, 6), (10, 5)) };
        let error = ledger.append(b"x\n").expect_err("full").to_string();
        assert!(error.contains("cannot write full") && error.contains("safe there: 5 answers"), "{error}");
    }

    fn of(file: File, written: (u64, usize), synced: (u64, usize)) -> Ledger {
        let extent = |(bytes, lines)| Extent { bytes, lines };
        let (written, synced) = (extent(written), extent(synced));
        let (synced_at, sync_every) = (Instant::now(), Duration::MAX);
        Ledger { path: "out".into(), file, written, synced, synced_at, sync_every, stays: Stays::Lines }
    }

    #[test]
    fn a_file_that_lost_its_name_is_not_taken_for_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let [path, other] = ["out", "other"].map(|name| folder.path().join(name));
        let begun = || {
            let mut ledger = Ledger::anew(&path, Duration::MAX).expect("opens");
            ledger.append(b"one\n").expect("fits");
            ledger
        };
        begun().sync().expect("there");
        for rename in [false, true] {
            let mut ledger = begun();
            std::fs::rename(&path, &other).expect("renamed");
            // Another of its name is not the same.
            if rename {
                std::fs::write(&path, "").expect("written");
            }
            for _ in 0..2 {
                let error = ledger.sync().expect_err("gone").to_string();
                assert!(error.contains("out: it was removed or renamed"), "{error}");
            }
        }
    }

    #[test]
    fn what_the_disk_did_not_take_is_neither_kept_nor_told_as_safe() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        std::fs::write(&path, "one\ntwo\n").expect("written");
        let file = OpenOptions::new().write(true).open(&path).expect("there");
        let mut ledger = of(file, (8, 2), (4, 1));
        let error = ledger.give_up(io::Error::from(io::ErrorKind::StorageFull)).to_string();
        assert!(error.contains("safe there: 1 answer"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).expect("text"), "one\n");
    }
}
