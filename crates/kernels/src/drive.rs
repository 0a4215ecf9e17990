//! What a drive has free.

use std::path::Path;

/// Bytes that this process may still write to the drive of a path, of which only a folder above may be there yet; nothing
/// where the system does not say.
#[cfg(unix)]
pub fn free_bytes(path: &Path) -> Option<u64> {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    let path = std::path::absolute(path).ok()?;
    let there = path.ancestors().find(|path| path.exists())?;
    let name = CString::new(there.as_os_str().as_bytes()).ok()?;
    let mut found = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: `name` ends with a zero, and the call writes no more than one `statvfs` to `found`.
    if unsafe { libc::statvfs(name.as_ptr(), found.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: all zeros are a valid `statvfs`, and the call filled it.
    let found = unsafe { found.assume_init() };
    #[allow(clippy::unnecessary_cast, reason = "these are narrower on some systems")]
    let (blocks, each) = (found.f_bavail as u64, found.f_frsize as u64);
    Some(blocks.saturating_mul(each))
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
    fn a_folder_that_is_not_there_yet_is_on_the_drive_of_the_one_above() {
        let here = std::env::temp_dir();
        let (free, below) = (free_bytes(&here).unwrap(), free_bytes(&here.join("not/there/yet")).unwrap());
        assert!(free > 0 && below > 0);
        // Others write and remove meanwhile, but not most of it.
        assert!(free / 2 <= below && below / 2 <= free, "{free} {below}");
    }
}
