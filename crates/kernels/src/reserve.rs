//! Room on a drive, taken before it is used.

use std::fs::File;
use std::io;
#[cfg(target_os = "linux")]
use std::os::unix::fs::MetadataExt;

#[cfg(target_os = "linux")]
use crate::drive::free_on;

/// Gives a file `bytes` bytes, all of which the drive then has room for.
///
/// File systems that cannot set room aside (NFS before 4.2, some of FUSE) are written to instead: a new file only, since
/// zeros go to all of it.
///
/// # Errors
/// The system's own: a full drive, a quota, or a limit on files. The file is as long as before then, and what was taken beyond
/// that is given back.
#[cfg(target_os = "linux")]
pub fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    // A drive without room gives all that it has before it says so: meanwhile there would be none for anybody.
    let taken = file.metadata()?.blocks().saturating_mul(512);
    if free_on(file).is_some_and(|free| bytes.saturating_sub(taken) > free) {
        return Err(io::Error::from_raw_os_error(libc::ENOSPC));
    }
    reserve_by(file, bytes, fallocate)
}

/// Gives a file `bytes` bytes. This system cannot say whether the drive has room for them.
///
/// # Errors
/// The system's own.
#[cfg(not(target_os = "linux"))]
pub fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    file.set_len(bytes)
}

/// Not `posix_fallocate`: where a file system has no such call that writes single bytes, which direct files refuse.
#[cfg(target_os = "linux")]
fn reserve_by(
    file: &File,
    bytes: u64,
    mut allocate: impl FnMut(&File, libc::off_t) -> io::Result<()>,
) -> io::Result<()> {
    let len = libc::off_t::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    if len == 0 {
        return Ok(());
    }
    let before = file.metadata()?.len();
    let taken = loop {
        match allocate(file, len) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
                break zeros(file, bytes);
            }
            taken => break taken,
        }
    };
    // What the system gave before it had no more stays the file's, beyond its old end too.
    if taken.is_err() {
        file.set_len(before)?;
    }
    taken
}

#[cfg(target_os = "linux")]
fn fallocate(file: &File, len: libc::off_t) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: a call on an open file; it writes no memory of ours.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Writes zeros, in whole pages from a whole page on as direct files want them.
#[cfg(target_os = "linux")]
fn zeros(file: &File, bytes: u64) -> io::Result<()> {
    use crate::AlignedBytes;
    use crate::arena::PAGE;
    use std::os::unix::fs::FileExt;

    const AT_ONCE: usize = 1 << 20;
    let memory = AlignedBytes::zeroed(AT_ONCE + PAGE);
    let begin = memory.as_ptr().addr().next_multiple_of(PAGE) - memory.as_ptr().addr();
    let page = &memory[begin..][..AT_ONCE];
    let before = file.metadata()?.len();
    let end = bytes.next_multiple_of(PAGE as u64);
    (0..end)
        .step_by(AT_ONCE)
        .try_for_each(|at| file.write_all_at(&page[..AT_ONCE.min((end - at) as usize)], at))
        // A drive may promise what it has no room for until it is asked to keep it.
        .and_then(|()| file.sync_data())?;
    file.set_len(bytes.max(before))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_was_interrupted_is_made_again_and_zeros_stand_in_for_one_that_is_missing() {
        let file = tempfile::tempfile().unwrap();
        let direct = crate::page_cache::bypass(&file).unwrap();
        let mut answers = [libc::EINTR, libc::EINTR, libc::EOPNOTSUPP].into_iter();
        let bytes = (3 << 20) + 100;
        reserve_by(&file, bytes, |_, _| Err(io::Error::from_raw_os_error(answers.next().unwrap()))).unwrap();
        assert_eq!(answers.next(), None);
        let found = file.metadata().unwrap();
        assert_eq!(found.len(), bytes);
        assert!(
            found.blocks() * 512 >= bytes,
            "{} of {bytes} are there, direct: {direct}",
            found.blocks() * 512
        );
    }

    #[test]
    fn a_drive_is_asked_for_no_more_than_it_has() {
        let file = tempfile::tempfile().unwrap();
        let free = free_on(&file).expect("this system says it");
        let error = reserve(&file, free.saturating_mul(2)).unwrap_err();
        assert_eq!((error.kind(), file.metadata().unwrap().blocks()), (io::ErrorKind::StorageFull, 0));
        reserve(&file, 1 << 20).unwrap();
        reserve(&file, 1 << 20).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    }

    /// As ext4 does for who may not have the administrator's part, and any file system whose quota ends.
    #[test]
    fn what_was_given_before_an_error_is_given_back() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(100).unwrap();
        let full = |file: &File, _| {
            fallocate(file, 1 << 20)?;
            Err(io::Error::from_raw_os_error(libc::ENOSPC))
        };
        let error = reserve_by(&file, 2 << 20, full).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        let found = file.metadata().unwrap();
        assert!(found.len() == 100 && found.blocks() * 512 <= 4096, "{found:?}");
    }
}
