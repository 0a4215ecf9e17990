//! How long a thread was ready to run and had no processor, as the system counts it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// A thread's own count. Systems that keep none give nothing.
#[derive(Debug)]
pub(super) struct Queued(Option<File>);

impl Queued {
    /// That of the thread that calls.
    pub(super) fn of_this_thread() -> Queued {
        Queued(File::open("/proc/thread-self/schedstat").ok())
    }

    /// So far.
    pub(super) fn so_far(&self) -> Option<Duration> {
        let mut text = [0; 80];
        let len = self.0.as_ref()?.read_at(&mut text, 0).ok()?;
        // Nanoseconds on a processor, nanoseconds without one, and how often it got one.
        let ns = std::str::from_utf8(&text[..len]).ok()?.split_whitespace().nth(1)?.parse().ok()?;
        Some(Duration::from_nanos(ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn the_system_counts() {
        let queued = Queued::of_this_thread();
        let Some(before) = queued.so_far() else { return assert!(queued.0.is_none(), "a file that is read") };
        std::thread::sleep(Duration::from_millis(20));
        let after = queued.so_far().expect("it was there");
        assert!(after >= before && after - before < Duration::from_millis(20), "sleep is no waiting");
        assert_eq!(Queued(None).so_far(), None);
    }
}
