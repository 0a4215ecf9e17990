//! Reads and writes that bypass the system's page cache: aligned, several at once.
//!
//! A drive reaches its rate when it always has a few requests to work on. A few threads that each wait for one read
//! of some megabytes keep it busy; they sleep in the kernel and take no core from those who compute.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use kernels::helpers::Helpers;
use kernels::page_cache;
use kernels::reserve::reserve;

use crate::error::{Error, Result};
use kernels::lock::lock;

/// Offsets, lengths and addresses of direct reads are multiples of this.
pub const SECTOR: usize = 4096;
/// Bytes of one request.
pub(super) const REQUEST_BYTES: usize = 512 << 10;
/// Requests under way at once.
pub const READERS: usize = 8;

/// How a file is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Between the drive and our memory.
    Direct,
    /// Through the page cache, which is told to forget it at once: the file system (some network ones) has no direct
    /// access.
    Cached,
    /// From memory to memory: the file system (tmpfs) has no drive.
    Memory,
}

/// A file open for direct reads and writes.
#[derive(Debug)]
pub struct DirectFile {
    file: File,
    path: PathBuf,
    access: Access,
    helpers: Helpers,
    /// What to do when it turns out to be shorter than it was.
    remedy: &'static str,
}

/// Neighbouring bytes of a file, and where they go.
pub struct Stretch<'a> {
    /// Where they begin in the file: a multiple of [`SECTOR`], as are length and address of `into`.
    pub offset: u64,
    /// As many bytes as are wanted.
    pub into: &'a mut [u8],
}

/// Neighbouring bytes for a file.
pub struct Written<'a> {
    /// Where they go: a multiple of [`SECTOR`], as are length and address of `from`.
    pub offset: u64,
    /// The bytes.
    pub from: &'a [u8],
}

impl DirectFile {
    /// Makes a file to read and write, of `bytes` bytes that the drive has room for. It has no name from the beginning:
    /// whatever happens to the process, nothing of it is left. `path`: where it is, and how it is called where it is told of.
    ///
    /// # Errors
    /// The system's own; a full drive among them.
    pub fn nameless(path: &Path, bytes: u64) -> Result<DirectFile> {
        DirectFile::nameless_by(path, bytes, page_cache::bypass)
    }

    fn nameless_by(path: &Path, bytes: u64, bypass: Bypass) -> Result<DirectFile> {
        let folder = path.parent().unwrap_or(path);
        let file = tempfile::tempfile_in(folder).map_err(Error::io("create", path))?;
        let access = access(&file, bypass).map_err(Error::io("create", path))?;
        reserve(&file, bytes).map_err(Error::io("take room on the drive for", path))?;
        Ok(DirectFile::of(file, path, access, "somebody else cut it short: start again"))
    }

    /// Opens a file to read.
    ///
    /// # Errors
    /// The system's own.
    pub fn open(path: &Path) -> Result<DirectFile> {
        let (file, access) = open(path, File::options().read(true)).map_err(Error::io("open", path))?;
        Ok(DirectFile::of(
            file,
            path,
            access,
            "remove it (`ballast stores --remove` with the name of its folder), and it is made again",
        ))
    }

    fn of(file: File, path: &Path, access: Access, remedy: &'static str) -> DirectFile {
        DirectFile { file, path: path.to_owned(), access, helpers: Helpers::new(READERS - 1), remedy }
    }

    /// How it is reached.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Where it is, or was said to be.
    pub fn path(&self) -> &Path {
        &self.path
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
        let failed = self.at_once(requests, |Stretch { offset, into }| {
            self.file.read_exact_at(into, offset).map_err(|error| (offset, error))
        });
        failed.map_or(Ok(()), |(offset, error)| Err(self.broken(offset, error)))
    }

    /// Writes all stretches, several requests at a time.
    ///
    /// # Errors
    /// The system's own.
    pub fn write(&self, stretches: Vec<Written<'_>>) -> Result<()> {
        let requests = stretches.into_iter().flat_map(|Written { offset, from }| {
            let offsets = (offset..).step_by(REQUEST_BYTES);
            offsets.zip(from.chunks(REQUEST_BYTES)).map(|(offset, from)| Written { offset, from })
        });
        let failed =
            self.at_once(requests.collect(), |Written { offset, from }| self.file.write_all_at(from, offset));
        failed.map_or(Ok(()), |error| Err(Error::io("write", &self.path)(error)))
    }

    /// Several requests at a time; the first error, after which no more are begun.
    fn at_once<R: Send, E: Send>(
        &self,
        requests: Vec<R>,
        run: impl Fn(R) -> std::result::Result<(), E> + Sync,
    ) -> Option<E> {
        let workers = requests.len().min(READERS);
        let left = Mutex::new(requests.into_iter());
        let failed = Mutex::new(None);
        let work = || {
            while let Some(request) = next(&left) {
                if let Err(error) = run(request) {
                    lock(&failed).get_or_insert(error);
                    return;
                }
            }
        };
        self.helpers.run(workers.saturating_sub(1), work);
        if self.access == Access::Cached {
            page_cache::forget(&self.file);
        }
        failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn broken(&self, offset: u64, error: io::Error) -> Error {
        if error.kind() != io::ErrorKind::UnexpectedEof {
            return Error::io("read", &self.path)(error);
        }
        self.torn(offset + SECTOR as u64)
    }

    fn torn(&self, end: u64) -> Error {
        Error::Torn { path: self.path.clone(), end, remedy: self.remedy }
    }

    /// Whether it still has so many bytes. Whoever cut it short and wrote on would read zeros where it had others.
    ///
    /// # Errors
    /// If it is shorter, or the system does not say.
    pub fn reaches(&self, bytes: u64) -> Result<()> {
        let len = self.file.metadata().map_err(Error::io("look at", &self.path))?.len();
        if len < bytes { Err(self.torn(bytes)) } else { Ok(()) }
    }
}

/// Asks for direct access to an open file; false where there is none.
type Bypass = fn(&File) -> io::Result<bool>;

/// Opens for direct access where the file system has it.
pub(super) fn open(path: &Path, options: &std::fs::OpenOptions) -> io::Result<(File, Access)> {
    let file = options.open(path)?;
    let access = access(&file, page_cache::bypass)?;
    Ok((file, access))
}

fn access(file: &File, bypass: Bypass) -> io::Result<Access> {
    Ok(match (page_cache::lives_in_memory(file)?, bypass(file)?) {
        (true, _) => Access::Memory,
        (_, true) => Access::Direct,
        _ => Access::Cached,
    })
}

fn requests(stretch: Stretch<'_>) -> impl Iterator<Item = Stretch<'_>> {
    let Stretch { offset, into } = stretch;
    let offsets = (offset..).step_by(REQUEST_BYTES);
    offsets.zip(into.chunks_mut(REQUEST_BYTES)).map(|(offset, into)| Stretch { offset, into })
}

fn next<R>(left: &Mutex<impl Iterator<Item = R>>) -> Option<R> {
    lock(left).next()
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
    fn a_nameless_file_gives_back_what_was_written_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = DirectFile::nameless(&folder.path().join("x"), 3 << 20).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!(file.file().metadata().unwrap().len(), 3 << 20);
        let mut memory = AlignedBytes::zeroed(4 << 20);
        let (out, back) = memory.split_at_mut(2 << 20);
        out.iter_mut().zip(0..).for_each(|(byte, i): (&mut u8, u32)| *byte = (i % 251) as u8);
        file.write(vec![Written { offset: 1 << 20, from: out }]).unwrap();
        file.read(vec![Stretch { offset: 1 << 20, into: back }]).unwrap();
        assert!(out == back);
    }

    #[test]
    fn a_file_in_memory_is_told_from_one_on_a_drive() {
        let folder = Path::new("/dev/shm");
        if !folder.is_dir() {
            return eprintln!("skipped: this system has no /dev/shm");
        }
        let file = DirectFile::nameless(&folder.join("x"), SECTOR as u64).unwrap();
        assert_eq!(file.access(), Access::Memory);
    }

    #[test]
    fn a_nameless_file_is_made_where_there_is_no_direct_access() {
        let folder = tempfile::tempdir().unwrap();
        let file = DirectFile::nameless_by(&folder.path().join("x"), 1 << 20, |_| Ok(false)).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(file.access() != Access::Direct && file.file().metadata().unwrap().len() == 1 << 20);
        let mut memory = [7; 2 * SECTOR];
        let (out, back) = memory.split_at_mut(SECTOR);
        back.fill(0);
        file.write(vec![Written { offset: SECTOR as u64, from: out }]).unwrap();
        file.read(vec![Stretch { offset: SECTOR as u64, into: back }]).unwrap();
        assert!(out == back);
    }

    #[test]
    fn the_same_threads_serve_every_call() {
        let (_folder, path) = file_of(1 << 20);
        let direct = DirectFile::open(&path).unwrap();
        let seen = Mutex::new(std::collections::HashSet::new());
        for _ in 0..50 {
            let failed: Option<()> = direct.at_once(vec![(); 64], |()| {
                lock(&seen).insert(std::thread::current().id());
                Ok(())
            });
            assert!(failed.is_none());
        }
        assert!(lock(&seen).len() <= READERS);
    }

    #[test]
    fn a_file_larger_than_its_drive_is_refused_before_it_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let error = DirectFile::nameless(&folder.path().join("x"), 1 << 60).unwrap_err().to_string();
        assert!(error.contains("take room on the drive"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
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
