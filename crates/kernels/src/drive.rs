//! What a drive is, and has free.

use std::path::{Path, PathBuf};

use crate::page_cache::lives_in_memory;

/// The folder above a path, or itself, that is there already.
fn there(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    path.ancestors().find(|path| path.exists()).map(Path::to_path_buf)
}

/// Whether what is written to a path stays in memory, as on tmpfs; not where the system does not say.
pub fn is_memory(path: &Path) -> bool {
    let file = there(path).and_then(|there| std::fs::File::open(there).ok());
    file.is_some_and(|file| lives_in_memory(&file).unwrap_or(false))
}

/// Has writes beyond the system's limit on the length of files (`ulimit -f`) fail as on a full drive, where they would end the
/// process without a word. For the beginning of a program.
#[cfg(unix)]
pub fn outlive_limits() {
    // SAFETY: no handler is set, the signal is ignored.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Bytes that this process may still write to the drive of a path, of which only a folder above may be there yet; nothing
/// where the system does not say.
#[cfg(unix)]
pub fn free_bytes(path: &Path) -> Option<u64> {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    let there = there(path)?;
    let name = CString::new(there.as_os_str().as_bytes()).ok()?;
    // SAFETY: `name` ends with a zero, and `found` is where one `statvfs` may be written.
    let found = told(|found| unsafe { libc::statvfs(name.as_ptr(), found) })?;
    #[allow(clippy::unnecessary_cast, reason = "these are narrower on some systems")]
    Some((found.f_bavail as u64).saturating_mul(found.f_frsize as u64))
}

/// Bytes that are free on the drive of a file for who asks, the administrator's part among them if that is who asks; nothing
/// where the system does not say.
#[cfg(target_os = "linux")]
pub(crate) fn free_on(file: &std::fs::File) -> Option<u64> {
    use std::os::fd::AsRawFd;

    // SAFETY: a call on an open file, and `found` is where one `statvfs` may be written.
    let found = told(|found| unsafe { libc::fstatvfs(file.as_raw_fd(), found) })?;
    // SAFETY: a call without arguments.
    let is_administrator = unsafe { libc::geteuid() } == 0;
    let blocks = if is_administrator { found.f_bfree } else { found.f_bavail };
    #[allow(clippy::unnecessary_cast, reason = "these are narrower on some systems")]
    Some((blocks as u64).saturating_mul(found.f_frsize as u64))
}

/// What a call says of a drive; nothing if it fails, or the drive does not tell its size, as some that are made by programs do not.
#[cfg(unix)]
fn told(call: impl FnOnce(*mut libc::statvfs) -> libc::c_int) -> Option<libc::statvfs> {
    let mut found = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    if call(found.as_mut_ptr()) != 0 {
        return None;
    }
    // SAFETY: all zeros are a valid `statvfs`, and the call filled it.
    let found = unsafe { found.assume_init() };
    (found.f_blocks > 0).then_some(found)
}

/// Bytes that are free. This system is not asked.
#[cfg(not(unix))]
pub fn free_bytes(_path: &Path) -> Option<u64> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn memory_is_no_drive() {
        assert!(!is_memory(Path::new(env!("CARGO_MANIFEST_DIR"))));
        if Path::new("/dev/shm").is_dir() {
            assert!(is_memory(Path::new("/dev/shm/not/there/yet")));
        }
    }

    #[test]
    fn a_folder_that_is_not_there_yet_is_on_the_drive_of_the_one_above() {
        let here = std::env::temp_dir();
        let (free, below) = (free_bytes(&here).unwrap(), free_bytes(&here.join("not/there/yet")).unwrap());
        assert!(free > 0 && below > 0);
        // Others write and remove meanwhile, but not most of it.
        assert!(free / 2 <= below && below / 2 <= free, "{free} {below}");
    }
}
