//! Who makes a store, or removes it, holds its lock; whoever removes it takes the lock along.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::make::{CHECKSUMS, PANELS};
use super::manifest::{self, Manifest};
use crate::error::{Error, Result};

/// Held by who makes the store; written last when it was last used.
pub(super) const LOCK: &str = "lock";

/// A store's files but for its manifest, in the order in which they go.
const FILES: [&str; 4] = [CHECKSUMS, PANELS, manifest::PART, LOCK];

/// Waits until nobody else makes the store or removes it. Makes its folder where there is none.
pub(super) fn alone(folder: &Path) -> Result<File> {
    let path = folder.join(LOCK);
    let home = folder.parent().unwrap_or(folder);
    fs::create_dir_all(home).map_err(Error::no_store(home))?;
    loop {
        // The folder may go while it is made, and before the lock is: only what stays in the way is an error.
        match fs::create_dir(folder) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists && !is_no_folder(folder) => continue,
            made => made.map_err(Error::no_store(folder))?,
        }
        let file = match File::options().create(true).truncate(false).write(true).open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound && !path.is_symlink() => continue,
            file => file.map_err(Error::no_store(&path))?,
        };
        file.lock().map_err(Error::io("lock", &path))?;
        if is_at(&file, &path)? {
            return Ok(file);
        }
    }
}

/// What became of a lock that was asked for and not waited for.
pub(super) enum Lock {
    Held(File),
    /// By another.
    Taken,
    /// The store was removed.
    Gone,
}

/// As [`alone`], of a store that is there, and without waiting.
pub(super) fn alone_at_once(folder: &Path) -> Result<Lock> {
    try_lock(folder, File::options().write(true))
}

/// The same of a store that has no lock yet.
pub(super) fn first_at_once(folder: &Path) -> Result<Lock> {
    try_lock(folder, File::options().create(true).truncate(false).write(true))
}

fn try_lock(folder: &Path, options: &OpenOptions) -> Result<Lock> {
    let path = folder.join(LOCK);
    let file = match options.open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Lock::Gone),
        file => file.map_err(Error::io("open", &path))?,
    };
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Ok(Lock::Taken),
        held => held.map_err(|error| Error::io("lock", &path)(error.into()))?,
    }
    Ok(if is_at(&file, &path)? { Lock::Held(file) } else { Lock::Gone })
}

/// Removes the store whose lock is held: the lock as its last file, so that nobody makes it anew among what goes.
///
/// # Errors
/// If files cannot be removed, or there are others beside them.
pub(super) fn clear(folder: &Path) -> Result<()> {
    // From here on it is not whole, and whoever finds it makes it again.
    Manifest::remove(folder)?;
    for name in FILES {
        let path = folder.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Error::io("remove", &path)(error));
            }
            _ => {}
        }
    }
    match fs::remove_dir(folder) {
        // Somebody waited for that, and makes it anew or has removed it.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty && !has_others(folder) => Ok(()),
        removed => removed.map_err(Error::io("remove", folder)),
    }
}

/// Whether there are files that are not a store's.
fn has_others(folder: &Path) -> bool {
    let ours = |name: &OsStr| FILES.iter().chain([&manifest::NAME]).any(|ours| name == *ours);
    let Ok(there) = fs::read_dir(folder) else { return false };
    there.flatten().any(|file| !ours(&file.file_name()))
}

fn is_no_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|there| !there.is_dir())
}

/// Whether a file that was waited for is still the one at its path.
pub(super) fn is_at(file: &File, path: &Path) -> Result<bool> {
    let held = file.metadata().map_err(Error::io("read", path))?;
    Ok(fs::metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == (held.dev(), held.ino())))
}
