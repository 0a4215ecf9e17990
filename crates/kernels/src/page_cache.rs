//! What the system keeps of a file in memory: how much it is, and how to be rid of it.
//!
//! A file that is streamed again and again never finds itself there, and whatever lies there is taken from the
//! memory that was allowed.

use std::fs::File;
use std::io;

/// Lets the system drop what it keeps of a file. Pages that are not written yet stay: sync first.
///
/// A wish: where the system has no such call, nothing happens.
#[cfg(target_os = "linux")]
pub fn forget(file: &File) {
    use std::os::fd::AsRawFd;
    // SAFETY: advice about an open file; it changes no contents.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// Lets the system drop what it keeps of a file. This system has no such call: nothing happens.
#[cfg(not(target_os = "linux"))]
pub fn forget(_file: &File) {}

/// Lets reads and writes of an open file pass the system's memory by; false where its file system has no such access.
///
/// Asked of an open file, since an open that asks for it makes a new file before it refuses.
///
/// # Errors
/// The system's own.
#[cfg(target_os = "linux")]
pub fn bypass(file: &File) -> io::Result<bool> {
    use std::os::fd::AsRawFd;
    // SAFETY: asks for flags of an open file.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: sets flags of an open file; how its bytes are reached changes, not what they are.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags | libc::O_DIRECT) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        error => Err(error),
    }
}

/// Lets reads and writes of an open file pass the system's memory by. This system has no such access.
///
/// # Errors
/// None.
#[cfg(not(target_os = "linux"))]
pub fn bypass(_file: &File) -> io::Result<bool> {
    Ok(false)
}

/// Whether a file's system keeps its bytes in memory and nowhere else: tmpfs and its like, which may allow direct access.
///
/// # Errors
/// The system's own.
#[cfg(target_os = "linux")]
pub fn lives_in_memory(file: &File) -> io::Result<bool> {
    use std::os::fd::AsRawFd;
    const IN_MEMORY: [u32; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6]; // tmpfs, ramfs, hugetlbfs
    let mut found = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: fills what it is given, for an open file.
    if unsafe { libc::fstatfs(file.as_raw_fd(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was filled.
    let kind = unsafe { found.assume_init() }.f_type as u32;
    Ok(IN_MEMORY.contains(&kind))
}

/// Whether a file's system keeps its bytes in memory and nowhere else. This system does not tell.
///
/// # Errors
/// None.
#[cfg(not(target_os = "linux"))]
pub fn lives_in_memory(_file: &File) -> io::Result<bool> {
    Ok(false)
}

/// Bytes of a file that the system keeps in memory, in whole pages.
///
/// # Errors
/// The system's own, if it does not map the file.
pub fn cached_bytes(file: &File) -> io::Result<u64> {
    use std::os::fd::AsRawFd;
    let len = file.metadata()?.len() as usize;
    if len == 0 {
        return Ok(0);
    }
    // SAFETY: a fresh mapping aliases nothing of ours; it is not read, only asked about.
    let base = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: sysconf only reads a constant.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as usize;
    let mut pages = vec![0u8; len.div_ceil(page)];
    // SAFETY: the range is the mapping just made, and there is a byte for each of its pages.
    let result = unsafe { libc::mincore(base, len, pages.as_mut_ptr().cast()) };
    let error = io::Error::last_os_error();
    // SAFETY: the mapping made above, which nothing borrows.
    unsafe { libc::munmap(base, len) };
    if result != 0 {
        return Err(error);
    }
    Ok(pages.iter().filter(|flags| **flags & 1 == 1).count() as u64 * page as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_system_without_direct_access_says_so() {
        assert!(!bypass(&File::open("/proc/self/status").unwrap()).unwrap());
    }

    #[test]
    fn what_was_just_written_is_kept() {
        let mut file = tempfile::tempfile().unwrap();
        assert_eq!(cached_bytes(&file).unwrap(), 0);
        file.write_all(&vec![1; 10 << 12]).unwrap();
        let kept = cached_bytes(&file).unwrap();
        file.sync_all().unwrap();
        forget(&file);
        assert!(kept >= 10 << 12, "{kept} bytes are kept of what was just written");
    }
}
