//! One process at a time.

use super::Progress;
use crate::error::{Error, Result};
use std::fs::{File, TryLockError};
use std::path::Path;

/// Held until dropped, or until the process ends.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for the lock at `path`, creating its folder; says so if it has to wait.
    pub(super) fn hold(path: &Path, progress: &mut dyn Progress) -> Result<Lock> {
        if let Some(folder) = path.parent() {
            create_folder(folder)?;
        }
        let options = File::options().create(true).truncate(false).write(true).open(path);
        let file = options.map_err(Error::io("create", path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress.stage("waiting for another process that fetches the same file");
                file.lock().map_err(Error::io("lock", path))?;
            }
            Err(TryLockError::Error(e)) => return Err(Error::io("lock", path)(e)),
        }
        Ok(Lock { _file: file })
    }
}

pub(super) fn create_folder(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(Error::io("create", path))
}
