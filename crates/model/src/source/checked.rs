//! That a cached file's checksum was found right, remembered beside it, so that it is computed once.

use super::default_model::Package;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// A file of the right length, as it is now.
#[derive(Debug)]
pub(super) struct Checked {
    note: PathBuf,
    /// The checksum that it should have, and when it was last written.
    line: String,
}

impl Checked {
    /// Nothing if there is no such file, or one of another length.
    pub(super) fn of(path: &Path, package: &Package) -> Option<Checked> {
        let found = path.metadata().ok().filter(|m| m.is_file() && m.len() == package.file.bytes)?;
        let written = found.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_nanos();
        let mut note = path.as_os_str().to_owned();
        note.push(".checked");
        Some(Checked { note: note.into(), line: format!("{} {written}\n", package.file.sha256) })
    }

    /// Whether just this file was checked before.
    pub(super) fn is_remembered(&self) -> bool {
        std::fs::read_to_string(&self.note).is_ok_and(|noted| noted == self.line)
    }

    /// Where nothing can be written, the file is checked again next time.
    pub(super) fn remember(&self) {
        let _ = std::fs::write(&self.note, &self.line);
    }
}
