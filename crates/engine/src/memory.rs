//! How much memory this process may use, and how much it does.

use std::fs;
use std::path::{Path, PathBuf};

/// The memory that the process may fill: the least of what its cgroups allow and what is free.
///
/// Planners that read the machine's total inside a container are killed for it, so every cgroup from the
/// process's own up to the root is asked (v2 `memory.max`, v1 `memory.limit_in_bytes`).
pub fn available_bytes() -> u64 {
    let free = meminfo("MemAvailable:").unwrap_or(u64::MAX);
    cgroup_limits().into_iter().fold(free, u64::min)
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

fn cgroup_limits() -> Vec<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    own.lines().filter_map(cgroup_folder).flat_map(|(root, path)| limits_up(&root, &path)).collect()
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

fn limits_up(root: &Path, path: &Path) -> Vec<u64> {
    path.ancestors()
        .flat_map(|p| ["memory.max", "memory.limit_in_bytes"].map(|file| root.join(p).join(file)))
        .filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
        .collect()
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
        assert_eq!(limits_up(root.path(), Path::new("a/b")), [4096]);
    }

    #[test]
    fn this_process_uses_some_and_never_more_than_its_peak() {
        // Both counters are approximate while other tests of this process map and unmap.
        let sane = || matches!(resident_bytes(), now if now > 0 && now <= peak_resident_bytes());
        assert!((0..100).any(|_| sane()));
        assert!(available_bytes() > 0);
    }
}
