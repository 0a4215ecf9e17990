//! How much memory this process may use, and how much it does.

use std::fs;
use std::path::{Path, PathBuf};

/// The memory that the process may hold in all, what it holds now included: the least of what is free on the machine and what
/// its cgroups leave.
///
/// Planners that read the machine's total inside a container are killed for it, so every cgroup from the
/// process's own up to the root is asked (v2 `memory.max` and `memory.high`, v1 `memory.limit_in_bytes`).
pub fn allowed_bytes() -> u64 {
    let free = meminfo("MemAvailable:").map_or(u64::MAX, |free| free.saturating_add(resident_bytes()));
    let own = status("RssAnon:").unwrap_or(0);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    least(free, own, &groups, Path::new(CGROUPS))
}

/// Where cgroups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The least of what is `free` and of what the `groups` of a process (as in `/proc/self/cgroup`) leave it, mounted at `root`.
/// `own`: bytes of memory that the process holds, page cache apart, which the groups count as used.
fn least(free: u64, own: u64, groups: &str, root: &Path) -> u64 {
    let folders = groups.lines().filter_map(|line| cgroup_folder(line, root));
    folders.flat_map(|(root, path)| left_up(&root, &path, own)).fold(free, u64::min)
}

/// Bytes of memory that the process needs by now: what is free of its heap goes back first.
pub fn needed_bytes() -> u64 {
    kernels::heap::give_back();
    resident_bytes()
}

/// Resident memory of this process now, in bytes.
pub fn resident_bytes() -> u64 {
    status("VmRSS:").unwrap_or(0)
}

/// The most resident memory that this process ever had, in bytes.
pub fn peak_resident_bytes() -> u64 {
    status("VmHWM:").unwrap_or(0)
}

fn status(key: &str) -> Option<u64> {
    kib_line(&fs::read_to_string("/proc/self/status").ok()?, key)
}

fn meminfo(key: &str) -> Option<u64> {
    kib_line(&fs::read_to_string("/proc/meminfo").ok()?, key)
}

/// The value in bytes of a line such as `VmRSS:   1234 kB`.
fn kib_line(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(key))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// Where a line of `/proc/self/cgroup` (`0::/a/b` or `5:memory:/a/b`) has its limits: mount point and path.
fn cgroup_folder(line: &str, root: &Path) -> Option<(PathBuf, PathBuf)> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    let root = match controllers {
        "" => root.to_path_buf(),
        list if list.split(',').any(|c| c == "memory") => root.join("memory"),
        _ => return None,
    };
    Some((root, PathBuf::from(path.trim_start_matches('/'))))
}

/// What each limit leaves beside what other processes below it use; the page cache makes way.
fn left_up(root: &Path, path: &Path, own: u64) -> Vec<u64> {
    path.ancestors().filter_map(|folder| left(&root.join(folder), own)).collect()
}

/// What a group leaves of its limit, `own` bytes of those in use being this process's. `memory.high` is one too: who goes
/// beyond it is slowed down until he makes way.
fn left(folder: &Path, own: u64) -> Option<u64> {
    let number = |file: &str| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
    let (limit, used) = match number("memory.max").into_iter().chain(number("memory.high")).min() {
        Some(limit) => (limit, number("memory.current")),
        None => (number("memory.limit_in_bytes")?, number("memory.usage_in_bytes")),
    };
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let of = |key: &str| stat.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok());
    // Where groups count what lies below them apart, as version 1 does, that is what their use has.
    let all = |key: &str| of(&format!("total_{key} ")).or_else(|| of(&format!("{key} ")));
    let cached: u64 = ["inactive_file", "active_file"].into_iter().filter_map(all).sum();
    let others = used.unwrap_or(0).saturating_sub(cached).saturating_sub(own);
    Some(limit.saturating_sub(others))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_status_are_kibibytes() {
        let text = "Name:\tx\nVmRSS:\t    1024 kB\nVmHWM:\tsoon kB\n";
        assert_eq!(kib_line(text, "VmRSS:"), Some(1 << 20));
        assert_eq!((kib_line(text, "VmHWM:"), kib_line(text, "VmSwap:")), (None, None));
    }

    /// Below what stays the heap cannot shrink by itself.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn what_is_free_of_the_heap_is_not_needed() {
        let mut pieces: Vec<Vec<u8>> = (0..1 << 16).map(|_| vec![1; 4096]).collect();
        let last = pieces.split_off(pieces.len() - 1);
        let all = resident_bytes();
        drop(pieces);
        let needed = needed_bytes();
        assert!(needed + (128 << 20) < all, "{needed} of {all}, of which 256 MiB were given up");
        assert_eq!(last[0][0], 1);
    }

    #[test]
    fn both_cgroup_dialects_are_found() {
        let root = Path::new(CGROUPS);
        let v2 = cgroup_folder("0::/user/app", root).unwrap();
        assert_eq!(v2, ("/sys/fs/cgroup".into(), "user/app".into()));
        let v1 = cgroup_folder("5:cpu,memory:/job", root).unwrap();
        assert_eq!(v1, ("/sys/fs/cgroup/memory".into(), "job".into()));
        assert_eq!(cgroup_folder("4:freezer:/job", root), None);
    }

    #[test]
    fn the_tightest_limit_on_the_way_up_counts() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("a/b")).unwrap();
        fs::write(root.path().join("a/memory.max"), "4096\n").unwrap();
        fs::write(root.path().join("a/b/memory.max"), "max\n").unwrap();
        assert_eq!(left_up(root.path(), Path::new("a/b"), 0), [4096]);
    }

    #[test]
    fn what_others_use_below_a_limit_is_not_left_but_for_the_page_cache() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(root.path().join(file), text).unwrap();
        write("memory.max", "10000\n");
        write("memory.current", "7000\n");
        assert_eq!(left(root.path(), 0), Some(3000));
        write("memory.stat", "anon 5000\nfile 2000\ninactive_file 1500\nactive_file 400\n");
        assert_eq!(left(root.path(), 0), Some(4900));
        write("memory.current", "20000\n");
        assert_eq!(left(root.path(), 0), Some(0));
        let old = tempfile::tempdir().unwrap();
        fs::write(old.path().join("memory.limit_in_bytes"), "5000\n").unwrap();
        fs::write(old.path().join("memory.usage_in_bytes"), "1000\n").unwrap();
        assert_eq!(left(old.path(), 0), Some(4000));
        let below = "inactive_file 1\nactive_file 2\ntotal_inactive_file 300\ntotal_active_file 200\n";
        fs::write(old.path().join("memory.stat"), below).unwrap();
        assert_eq!(left(old.path(), 0), Some(4500), "version 1 has what lies below in lines of its own");
    }

    /// A group of one's own inside one that is shared with others.
    #[test]
    fn what_a_process_holds_counts_once_and_never_beyond_a_limit() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("pod/own")).unwrap();
        let write = |file: &str, text: &str| fs::write(root.path().join(file), text).unwrap();
        write("pod/own/memory.max", "5000\n");
        write("pod/own/memory.current", "1000\n");
        let found = |free, own| least(free, own, "1:name=systemd:/x\n0::/pod/own\n", root.path());
        assert_eq!(found(u64::MAX, 1000), 5000, "alone: the limit, and no more");
        assert_eq!(found(u64::MAX, 4000), 5000, "not even if the group does not count all of it");
        assert_eq!(found(u64::MAX, 600), 4600, "beside another");
        write("pod/memory.max", "9000\n");
        write("pod/memory.current", "6000\n");
        assert_eq!(found(u64::MAX, 1000), 4000, "beside those of the other groups");
        assert_eq!(found(3000, 1000), 3000, "what is free is the least");
        write("pod/memory.high", "7000\n");
        assert_eq!(found(u64::MAX, 1000), 2000);
        write("pod/memory.max", "max\n");
        assert_eq!(found(u64::MAX, 1000), 2000, "a limit of its own");
        write("pod/memory.high", "max\n");
        assert_eq!(found(u64::MAX, 1000), 5000);
    }

    #[test]
    fn this_process_uses_some_and_never_more_than_its_peak() {
        // Both counters are approximate while other tests of this process map and unmap.
        let sane = || matches!(resident_bytes(), now if now > 0 && now <= peak_resident_bytes());
        assert!((0..100).any(|_| sane()));
        assert!(allowed_bytes() > 0);
    }
}
