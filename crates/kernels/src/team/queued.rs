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

    /// That it grows where threads wait is seen by the team that such threads make (`a_team_that_is_crowded_runs_on_fewer`).
    #[test]
    fn a_count_that_there_is_is_read() {
        let queued = Queued::of_this_thread();
        let (before, after) = (queued.so_far(), queued.so_far());
        assert!(before.is_some() == queued.0.is_some() && after >= before, "{before:?} {after:?}");
        assert_eq!(Queued(None).so_far(), None);
    }
}
