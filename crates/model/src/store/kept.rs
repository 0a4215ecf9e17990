//! The stores that lie in a folder, for whoever wants to know what they take, or to have that back.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::alone::{LOCK, Lock, alone_at_once, clear, first_at_once};
use super::make::{CHECKSUMS, PANELS};
use super::manifest::Manifest;
use crate::error::{Error, Result};

/// A store, whole or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// What it is known by, 32 hexadecimal digits.
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// Bytes that the drive has given to it.
    pub bytes: u64,
    /// What it was packed from, and as what; none where it is not whole, or of a program that wrote it down otherwise.
    pub of: Option<String>,
    /// Whether it was finished.
    pub is_whole: bool,
    /// When it was last made or opened to be streamed from.
    pub used: SystemTime,
}

/// What became of a store that was to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The drive has its room back.
    Removed,
    /// It is being made, and stays.
    BeingMade,
    /// It had been removed meanwhile.
    Gone,
}

/// The stores in a folder, those last used first; none where the folder is not there.
///
/// # Errors
/// If the folder cannot be read.
pub fn kept(home: &Path) -> Result<Vec<Kept>> {
    let entries = match fs::read_dir(home) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(Error::io("read", home))?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::io("read", home))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Whatever else lies there is none of ours.
        if is_name(&name) && entry.path().is_dir() {
            all.push(Kept::look(name, entry.path()));
        }
    }
    all.sort_by(|a, b| (b.used, &a.name).cmp(&(a.used, &b.name)));
    Ok(all)
}

/// Notes that a store is used now. A folder that may not be written to does not have it noted.
pub(super) fn used(folder: &Path) {
    let lock = File::options().write(true).open(folder.join(LOCK));
    let _ = lock.and_then(|lock| lock.set_modified(SystemTime::now()));
}

fn is_name(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
}

/// What a store takes on the drive.
fn bytes_in(folder: &Path) -> u64 {
    let files = [PANELS, CHECKSUMS].into_iter().filter_map(|file| fs::metadata(folder.join(file)).ok());
    files.map(|file| 512 * file.blocks()).sum()
}

impl Kept {
    fn look(name: String, folder: PathBuf) -> Kept {
        let data = |file: &str| fs::metadata(folder.join(file)).ok();
        // One that this program cannot read may be another version's.
        let manifest = Manifest::read(&folder);
        let is_whole = !matches!(manifest, Ok(None));
        let of = manifest.ok().flatten().map(|manifest| manifest.of);
        Kept {
            bytes: bytes_in(&folder),
            is_whole,
            of: of.filter(|of| !of.is_empty()),
            used: data(LOCK).and_then(|lock| lock.modified().ok()).unwrap_or(SystemTime::UNIX_EPOCH),
            name,
            folder,
        }
    }

    /// What is left of it on the drive.
    pub fn bytes_left(&self) -> u64 {
        bytes_in(&self.folder)
    }

    /// Removes it, if nobody is making it. Who streams from it goes on, and the drive has the room back when they end.
    ///
    /// # Errors
    /// If its files cannot be removed, or there are others beside them.
    pub fn remove(&self) -> Result<Removal> {
        let has_files = |folder| fs::read_dir(folder).is_ok_and(|mut files| files.next().is_some());
        let _alone = match alone_at_once(&self.folder)? {
            Lock::Held(file) => file,
            Lock::Taken => return Ok(Removal::BeingMade),
            // Removed, and made anew by another.
            Lock::Gone if self.folder.join(LOCK).exists() => return Ok(Removal::BeingMade),
            // Where a lock comes and goes it is the first file and the last: these are of who made stores otherwise.
            Lock::Gone if has_files(&self.folder) => match first_at_once(&self.folder)? {
                Lock::Held(file) => file,
                Lock::Gone if !self.folder.exists() => return Ok(Removal::Gone),
                Lock::Taken | Lock::Gone => return Ok(Removal::BeingMade),
            },
            Lock::Gone => return self.remove_empty(),
        };
        clear(&self.folder)?;
        Ok(Removal::Removed)
    }

    /// The folder that is left of who was killed before it had a lock.
    fn remove_empty(&self) -> Result<Removal> {
        match fs::remove_dir(&self.folder) {
            Ok(()) => Ok(Removal::Removed),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Removal::Gone),
            // Somebody has begun meanwhile.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(Removal::BeingMade),
            Err(error) => Err(Error::io("remove", &self.folder)(error)),
        }
    }
}
