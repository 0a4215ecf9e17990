//! Reads that bypass the system's page cache: aligned, several at once.
//!
//! A drive reaches its rate when it always has a few requests to work on. A few threads that each wait for one read
//! of some megabytes keep it busy; they sleep in the kernel and take no core from those who compute.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use kernels::page_cache;

use crate::error::{Error, Result};

/// Offsets, lengths and addresses of direct reads are multiples of this.
pub(super) const SECTOR: usize = 4096;
/// Bytes of one request.
pub(super) const REQUEST_BYTES: usize = 512 << 10;
/// Requests under way at once.
pub const READERS: usize = 8;

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// From the drive into our memory.
    Direct,
    /// Through the page cache, which is told to forget it at once: the file system (tmpfs, some network ones) has no
    /// direct reads.
    Cached,
}

/// A file open for direct reads.
#[derive(Debug)]
pub struct DirectFile {
    file: File,
    path: PathBuf,
    access: Access,
}

/// Neighbouring bytes of a file, and where they go.
pub struct Stretch<'a> {
    /// Where they begin in the file: a multiple of [`SECTOR`], as are length and address of `into`.
    pub offset: u64,
    /// As many bytes as are wanted.
    pub into: &'a mut [u8],
}

impl DirectFile {
    /// Opens a file to read.
    ///
    /// # Errors
    /// The system's own.
    pub fn open(path: &Path) -> Result<DirectFile> {
        let (file, access) = open(path, File::options().read(true)).map_err(Error::io("open", path))?;
        Ok(DirectFile { file, path: path.to_owned(), access })
    }

    /// How it is read.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The file itself.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Reads all stretches, several requests at a time.
    ///
    /// # Errors
    /// If the file ends before, or cannot be read.
    pub fn read(&self, stretches: Vec<Stretch<'_>>) -> Result<()> {
        let requests: Vec<Stretch<'_>> = stretches.into_iter().flat_map(requests).collect();
        let readers = requests.len().min(READERS);
        let left = Mutex::new(requests.into_iter());
        let failed = Mutex::new(None);
        let work = || {
            while let Some(request) = next(&left) {
                if let Err(error) = self.file.read_exact_at(request.into, request.offset) {
                    lock(&failed).get_or_insert((request.offset, error));
                    return;
                }
            }
        };
        std::thread::scope(|scope| {
            (1..readers).for_each(|_| {
                scope.spawn(work);
            });
            work();
        });
        if self.access == Access::Cached {
            page_cache::forget(&self.file);
        }
        match failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            Some((offset, error)) => Err(self.broken(offset, error)),
            None => Ok(()),
        }
    }

    fn broken(&self, offset: u64, error: io::Error) -> Error {
        if error.kind() != io::ErrorKind::UnexpectedEof {
            return Error::io("read", &self.path)(error);
        }
        Error::Store {
            path: self.path.clone(),
            found: format!("is torn: it ends before byte {}", offset + SECTOR as u64),
            remedy: "delete its folder, and it is made again",
        }
    }
}

/// Opens for direct access where the file system has it.
pub(super) fn open(path: &Path, options: &mut std::fs::OpenOptions) -> io::Result<(File, Access)> {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::OpenOptionsExt;
        match options.clone().custom_flags(libc::O_DIRECT).open(path) {
            Ok(file) => return Ok((file, Access::Direct)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            Err(error) => return Err(error),
        }
    }
    Ok((options.open(path)?, Access::Cached))
}

fn requests(stretch: Stretch<'_>) -> impl Iterator<Item = Stretch<'_>> {
    let Stretch { offset, into } = stretch;
    let offsets = (offset..).step_by(REQUEST_BYTES);
    offsets.zip(into.chunks_mut(REQUEST_BYTES)).map(|(offset, into)| Stretch { offset, into })
}

fn next<'a>(left: &Mutex<impl Iterator<Item = Stretch<'a>>>) -> Option<Stretch<'a>> {
    lock(left).next()
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::AlignedBytes;

    fn file_of(bytes: usize) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let data: Vec<u8> = (0..bytes).map(|i| ((i / 4 * 7) >> (8 * (i % 4))) as u8).collect();
        std::fs::write(&path, data).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        page_cache::forget(&file);
        (folder, path)
    }

    #[test]
    fn stretches_come_whole_and_leave_nothing_in_the_cache() {
        let (_folder, path) = file_of(9 << 20);
        let direct = DirectFile::open(&path).unwrap();
        let mut memory = AlignedBytes::zeroed(8 << 20);
        let (a, b) = memory.split_at_mut(5 << 20);
        let stretches = vec![Stretch { offset: 4 << 20, into: a }, Stretch { offset: 4096, into: b }];
        direct.read(stretches).unwrap();
        if direct.access() == Access::Direct {
            assert_eq!(page_cache::cached_bytes(direct.file()).unwrap(), 0);
        }
        let all = std::fs::read(&path).unwrap();
        assert!(memory[..5 << 20] == all[4 << 20..9 << 20] && memory[5 << 20..] == all[4096..][..3 << 20]);
    }

    #[test]
    fn a_torn_file_is_named() {
        let (_folder, path) = file_of(3 << 20);
        let mut memory = AlignedBytes::zeroed(4 << 20);
        let read = DirectFile::open(&path).unwrap().read(vec![Stretch { offset: 0, into: &mut memory }]);
        let text = read.unwrap_err().to_string();
        assert!(text.contains("torn") && text.contains(&path.display().to_string()), "{text}");
    }
}
