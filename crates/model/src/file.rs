//! Files that are read at offsets, never mapped: another process may truncate them under us.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// How the text begins that Git LFS leaves where it has not fetched a file.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";
/// No such text is as long.
const POINTER_BYTES_MAX: u64 = 1024;

/// What is told of such a text.
pub(crate) const POINTER_FOUND: &str = "a Git LFS pointer in the place of the file";
/// What is to be done about it.
pub(crate) const POINTER_REMEDY: &str = "the file itself: `git lfs pull` in its folder fetches it";

/// Whether these are the first bytes of a file that was not fetched.
pub(crate) fn is_pointer(bytes: &[u8]) -> bool {
    bytes.starts_with(POINTER)
}

/// A regular file, open for reading.
#[derive(Debug)]
pub struct RegularFile {
    file: File,
    path: PathBuf,
    len: u64,
    written: Written,
}

impl RegularFile {
    /// Opens a file, refusing devices, pipes and folders (a pipe never ends, `/dev/zero` neither), and pointers of Git LFS.
    ///
    /// # Errors
    /// If it cannot be opened, is not regular, or only points to what was to be fetched.
    pub fn open(path: &Path) -> Result<RegularFile> {
        let kind = path.metadata().map_err(Error::io("open", path))?;
        if !kind.is_file() {
            return Err(Error::malformed(&path.display().to_string(), "no regular file", "a regular file"));
        }
        let file = File::open(path).map_err(Error::io("open", path))?;
        let data = file.metadata().map_err(Error::io("read", path))?;
        let (len, written) = (data.len(), Written::of(&data));
        RegularFile { file, path: path.to_owned(), len, written }.fetched()
    }

    fn fetched(self) -> Result<RegularFile> {
        let mut begin = [0; POINTER.len()];
        if (POINTER.len() as u64..POINTER_BYTES_MAX).contains(&self.len) {
            self.read_at(0, &mut begin)?;
        }
        if is_pointer(&begin) {
            Err(Error::malformed(&self.name(), POINTER_FOUND, POINTER_REMEDY))
        } else {
            Ok(self)
        }
    }

    /// Length when it was opened, in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// When it had last been written when it was opened.
    pub fn written(&self) -> Written {
        self.written
    }

    /// Whether nobody has written to it since it was opened.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn is_as_opened(&self) -> Result<bool> {
        let data = self.file.metadata().map_err(Error::io("read", &self.path))?;
        Ok(data.len() == self.len && Written::of(&data).modified_ns == self.written.modified_ns)
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its name for messages.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Fills `into` from `offset` bytes into the file.
    ///
    /// # Errors
    /// If the file ends before, or cannot be read.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(into, offset).map_err(Error::io("read", &self.path))
    }

    /// The open file, positioned at its beginning.
    pub fn reader(&self) -> &File {
        &self.file
    }
}

/// When a file was last written, in nanoseconds since 1970, as far as 292 years before and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// By its own account, which whoever copies a file may put back to what it was.
    pub modified_ns: i64,
    /// By the system's, of its name and rights too.
    #[serde(default)]
    pub changed_ns: i64,
}

impl Written {
    fn of(data: &Metadata) -> Written {
        let ns = |seconds: i64, rest| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
        Written {
            modified_ns: ns(data.mtime(), data.mtime_nsec()),
            changed_ns: ns(data.ctime(), data.ctime_nsec()),
        }
    }
}

/// Reads a whole small text file.
///
/// # Errors
/// If it is longer than `most_bytes`, no regular file, unreadable, or not UTF-8.
pub fn read_text(path: &Path, most_bytes: u64) -> Result<String> {
    let file = RegularFile::open(path)?;
    if file.len() > most_bytes {
        let found = format!("{} bytes long", file.len());
        return Err(Error::malformed(&file.name(), found, format!("at most {most_bytes} bytes")));
    }
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(0, &mut bytes)?;
    String::from_utf8(bytes).map_err(|e| {
        Error::malformed(
            &file.name(),
            format!("byte {} is not UTF-8", e.utf8_error().valid_up_to()),
            "UTF-8 text",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_of_git_lfs_say_what_fetches_the_file() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
            .expect("written");
        let told = RegularFile::open(&path).unwrap_err().to_string();
        assert!(told.contains("model.safetensors") && told.contains("`git lfs pull`"), "{told}");
    }

    #[test]
    fn devices_and_long_files_are_refused() {
        assert!(matches!(RegularFile::open(Path::new("/dev/zero")), Err(Error::Malformed { .. })));
        let folder = tempfile::tempdir().expect("a temporary folder");
        assert!(matches!(RegularFile::open(folder.path()), Err(Error::Malformed { .. })));
        let path = folder.path().join("text");
        std::fs::write(&path, "four").expect("written");
        assert_eq!(read_text(&path, 4).expect("short enough"), "four");
        assert!(matches!(read_text(&path, 3), Err(Error::Malformed { .. })));
        std::fs::write(&path, [b'a', 0xff]).expect("written");
        assert!(read_text(&path, 4).unwrap_err().to_string().contains("byte 1"));
    }
}
