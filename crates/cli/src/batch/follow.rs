//! Who follows a job: shows how far it is, and passes on that it should end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use engine::job::{Ask, Ended, Tally, Watch};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::progress::Progress;
use crate::args::ProgressKind;
use crate::console::note;

/// Progress and signals of a job.
pub(super) struct Follow {
    progress: Progress,
    signals: Arc<AtomicUsize>,
    drain_timeout: Duration,
    /// When draining must be over.
    deadline: Option<Instant>,
}

impl Follow {
    /// From now on SIGTERM and SIGINT end the job in order, a second one at once.
    pub(super) fn new(kind: ProgressKind, drain_timeout: Duration) -> Result<Follow> {
        let signals = Arc::new(AtomicUsize::new(0));
        let (mut told, counted) =
            (Signals::new([SIGTERM, SIGINT]).context("the system refuses signals")?, Arc::clone(&signals));
        let count = move || {
            told.forever().for_each(|_| {
                counted.fetch_add(1, Ordering::Relaxed);
            });
        };
        thread::Builder::new().name("signals".into()).spawn(count).context("the system refuses threads")?;
        Ok(Follow { progress: Progress::new(kind), signals, drain_timeout, deadline: None })
    }

    /// The end.
    pub(super) fn end(&mut self, ended: Ended, tally: &Tally) {
        self.progress.end(ended, tally);
    }
}

impl Watch for Follow {
    fn ask(&mut self) -> Ask {
        match self.signals.load(Ordering::Relaxed) {
            0 => return Ask::GoOn,
            1 => {}
            _ => return Ask::End,
        }
        if self.deadline.is_none() {
            note!(
                "ending: requests that run have {} s to finish; a second signal ends at once",
                self.drain_timeout.as_secs()
            );
        }
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + self.drain_timeout);
        if Instant::now() < deadline { Ask::Drain } else { Ask::End }
    }

    fn tell(&mut self, tally: &Tally) {
        self.progress.tell(tally);
    }
}
