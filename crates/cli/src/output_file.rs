//! A file that a command will fill: found writable before anything heavy happens, emptied only when there is
//! something to put into it.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::console::show;

/// An open file. If nothing is ever written, it is as it was before, or gone where it was not.
pub(crate) struct OutputFile {
    path: PathBuf,
    file: File,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// It was not there before, and nothing is in it yet.
    New,
    /// It was there, and holds what it held.
    Old,
    /// It holds what this command wrote.
    Begun,
}

impl OutputFile {
    /// Opens the file for writing and changes nothing in it.
    pub(crate) fn open(path: &Path) -> Result<OutputFile> {
        let state = if path.exists() { State::Old } else { State::New };
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(OutputFile { path: path.to_owned(), file, state })
    }

    /// Empties the file, if it is one (a device or pipe has nothing to empty).
    pub(crate) fn begin(&mut self) -> Result<()> {
        self.state = State::Begun;
        if self.file.metadata().is_ok_and(|m| m.is_file()) {
            let emptied = self.file.set_len(0).and_then(|()| self.file.rewind());
            emptied.with_context(|| format!("cannot empty {}", self.path.display()))?;
        }
        Ok(())
    }

    /// Goes to its end, at the beginning of a line.
    pub(crate) fn go_on(&mut self) -> Result<()> {
        self.state = State::Begun;
        if !self.file.metadata().is_ok_and(|m| m.is_file()) {
            return Ok(());
        }
        let text = fs::read(&self.path).with_context(|| format!("cannot read {}", self.path.display()))?;
        let ended = self.file.seek(SeekFrom::End(0));
        ended.with_context(|| format!("cannot add to {}", self.path.display()))?;
        if text.last().is_some_and(|&byte| byte != b'\n') { self.write(b"\n") } else { Ok(()) }
    }

    /// Adds to it, at once: what is written is not lost if the process ends here.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).with_context(|| format!("cannot write {}", self.path.display()))
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.state == State::New {
            // Behind a link the file that was made, not the link.
            let _ = fs::canonicalize(&self.path).and_then(fs::remove_file);
        }
    }
}

/// Where the report goes that `--json` wants, if it does.
pub(crate) enum JsonReport {
    Nowhere,
    File(OutputFile),
    /// Standard output, whose name is `-`.
    Standard,
}

impl JsonReport {
    /// Finds the file writable.
    pub(crate) fn open(path: Option<&Path>) -> Result<JsonReport> {
        Ok(match path {
            None => JsonReport::Nowhere,
            Some(path) if path == Path::new("-") => JsonReport::Standard,
            Some(path) => JsonReport::File(OutputFile::open(path)?),
        })
    }

    /// Fills it.
    pub(crate) fn write(self, report: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(report)?;
        self.put(OutputFile::begin, &text)
    }

    /// Adds it as a line to what is there.
    pub(crate) fn append(self, report: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(report)?;
        self.put(OutputFile::go_on, &text)
    }

    fn put(self, begin: fn(&mut OutputFile) -> Result<()>, text: &str) -> Result<()> {
        match self {
            JsonReport::Nowhere => Ok(()),
            JsonReport::File(mut file) => {
                begin(&mut file)?;
                file.write(format!("{text}\n").as_bytes())
            }
            JsonReport::Standard => show!("{text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_before_there_is_something_new() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("old"), folder.path().join("new"));
        fs::write(&old, "old text").unwrap();
        drop((OutputFile::open(&old).unwrap(), OutputFile::open(&new).unwrap()));
        assert_eq!(fs::read_to_string(&old).unwrap(), "old text");
        assert!(!new.exists());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&new, &link).unwrap();
        drop(OutputFile::open(&link).unwrap());
        assert!(link.is_symlink() && !new.exists());
        for path in [&old, &new] {
            let mut file = OutputFile::open(path).unwrap();
            file.begin().unwrap();
            file.write(b"new").unwrap();
        }
        assert_eq!(fs::read_to_string(&old).unwrap(), "new");
        assert_eq!(fs::read_to_string(&new).unwrap(), "new");
        for _ in 0..2 {
            JsonReport::open(Some(&new)).unwrap().append(&[1]).unwrap();
        }
        assert_eq!(fs::read_to_string(&new).unwrap(), "new\n[1]\n[1]\n");
    }
}
