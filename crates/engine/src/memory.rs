//! How much memory this process may use, and how much it does.

use std::fs;
use std::path::{Path, PathBuf};

/// The memory that the process may fill beside what it has: the least of what its cgroups leave and what is free.
///
/// Planners that read the machine's total inside a container are killed for it, so every cgroup from the
/// process's own up to the root is asked (v2 `memory.max`, v1 `memory.limit_in_bytes`).
pub fn available_bytes() -> u64 {
    let free = meminfo("MemAvailable:").unwrap_or(u64::MAX);
    cgroups_leave().into_iter().fold(free, u64::min)
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

fn cgroups_leave() -> Vec<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    own.lines().filter_map(cgroup_folder).flat_map(|(root, path)| left_up(&root, &path)).collect()
}

/// Where a line of `/proc/self/cgroup` (`0::/a/b` or `5:memory:/a/b`) has its limits: mount point and path.
fn cgroup_folder(line: &str) -> Option<(PathBuf, PathBuf)> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    let root = match controllers {
        "" => PathBuf::from("/sys/fs/cgroup"),
        list if list.split(',').any(|c| c == "memory") => PathBuf::from("/sys/fs/cgroup/memory"),
        _ => return None,
    };
    Some((root, PathBuf::from(path.trim_start_matches('/'))))
}

/// What each limit leaves beside what all processes below it use; the page cache makes way.
fn left_up(root: &Path, path: &Path) -> Vec<u64> {
    path.ancestors().filter_map(|folder| left(&root.join(folder))).collect()
}

fn left(folder: &Path) -> Option<u64> {
    let number = |file: &str| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
    let (limit, used) = match number("memory.max") {
        Some(limit) => (limit, number("memory.current")),
        None => (number("memory.limit_in_bytes")?, number("memory.usage_in_bytes")),
    };
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let of = |key: &str| stat.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok());
    let cached: u64 = ["inactive_file ", "active_file "].into_iter().filter_map(of).sum();
    Some(limit.saturating_sub(used.unwrap_or(0).saturating_sub(cached)))
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

    #[test]
    fn both_cgroup_dialects_are_found() {
        let v2 = cgroup_folder("0::/user/app").unwrap();
        assert_eq!(v2, ("/sys/fs/cgroup".into(), "user/app".into()));
        let v1 = cgroup_folder("5:cpu,memory:/job").unwrap();
        assert_eq!(v1, ("/sys/fs/cgroup/memory".into(), "job".into()));
        assert_eq!(cgroup_folder("4:freezer:/job"), None);
    }

    #[test]
    fn the_tightest_limit_on_the_way_up_counts() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("a/b")).unwrap();
        fs::write(root.path().join("a/memory.max"), "4096\n").unwrap();
        fs::write(root.path().join("a/b/memory.max"), "max\n").unwrap();
        assert_eq!(left_up(root.path(), Path::new("a/b")), [4096]);
    }

    #[test]
    fn what_others_use_below_a_limit_is_not_left_but_for_the_page_cache() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(root.path().join(file), text).unwrap();
        write("memory.max", "10000\n");
        write("memory.current", "7000\n");
        assert_eq!(left(root.path()), Some(3000));
        write("memory.stat", "anon 5000\nfile 2000\ninactive_file 1500\nactive_file 400\n");
        assert_eq!(left(root.path()), Some(4900));
        write("memory.current", "20000\n");
        assert_eq!(left(root.path()), Some(0));
        let old = tempfile::tempdir().unwrap();
        fs::write(old.path().join("memory.limit_in_bytes"), "5000\n").unwrap();
        fs::write(old.path().join("memory.usage_in_bytes"), "1000\n").unwrap();
        assert_eq!(left(old.path()), Some(4000));
    }

    #[test]
    fn this_process_uses_some_and_never_more_than_its_peak() {
        // Both counters are approximate while other tests of this process map and unmap.
        let sane = || matches!(resident_bytes(), now if now > 0 && now <= peak_resident_bytes());
        assert!((0..100).any(|_| sane()));
        assert!(available_bytes() > 0);
    }
}
