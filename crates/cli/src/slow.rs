//! Words about work that is over at once mostly, and where it is not would leave people wondering.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::console::note;

/// How long work may take that nothing is said of.
const PATIENCE: Duration = Duration::from_secs(3);

/// Work under way: ends when dropped.
pub(crate) struct Slow {
    under_way: Option<Sender<()>>,
    teller: Option<JoinHandle<()>>,
}

impl Slow {
    /// Says `words` if what begins now takes seconds.
    pub(crate) fn told(words: &'static str) -> Slow {
        Slow::after(PATIENCE, move || note!("{words}"))
    }

    fn after(patience: Duration, tell: impl FnOnce() + Send + 'static) -> Slow {
        let (under_way, ends) = channel();
        let wait = move || {
            if ends.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                tell();
            }
        };
        // Where the system has no thread to spare nothing is said.
        let teller = thread::Builder::new().name("slow".into()).spawn(wait).ok();
        Slow { under_way: Some(under_way), teller }
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        drop(self.under_way.take());
        if let Some(teller) = self.teller.take() {
            // It only writes a line.
            let _ = teller.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_slow_is_told() {
        let (tells, told) = channel();
        let quick = tells.clone();
        drop(Slow::after(Duration::from_secs(3600), move || quick.send("quick").expect("heard")));
        let slow = Slow::after(Duration::ZERO, move || tells.send("slow").expect("heard"));
        assert_eq!(told.recv(), Ok("slow"));
        drop(slow);
        assert!(told.recv().is_err(), "nobody else told anything");
    }
}
