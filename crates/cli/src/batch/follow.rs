//! Who follows a job: shows how far it is, and passes on that it should end.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use engine::job::{Ask, Ended, Tally, Watch};
use model::api::ApiError;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals as Told;

use super::progress::Progress;
use super::reasons::Reasons;
use crate::args::ProgressKind;
use crate::console::note;

/// What a job has to end in order once it was told twice.
const PATIENCE: Duration = Duration::from_secs(3);

/// SIGTERM and SIGINT, as they are counted.
#[derive(Clone, Default)]
pub(super) struct Signals {
    count: Arc<AtomicUsize>,
    /// Whether the job has begun: before, there is nothing to end in order.
    begun: Arc<AtomicBool>,
    /// Whether all is written that will be.
    written: Arc<AtomicBool>,
}

impl Signals {
    /// From now on they do not end the process as they would; one that comes before the job begins does, with this code, and
    /// removes what nothing came of.
    pub(super) fn heard(code: u8, unbegun: Vec<PathBuf>) -> Result<Signals> {
        let signals = Signals::default();
        let Signals { count, begun, written } = signals.clone();
        let mut told = Told::new([SIGTERM, SIGINT]).context("the system refuses signals")?;
        let hear = move || {
            for _ in told.forever() {
                if !begun.load(Ordering::SeqCst) {
                    note!("ending before the first line; the same command begins again");
                    // If it stays, it says nothing.
                    unbegun.iter().for_each(|path| _ = std::fs::remove_file(path));
                    std::process::exit(code.into());
                }
                if count.fetch_add(1, Ordering::SeqCst) > 0 {
                    // It ends by itself, unless nobody reads what it writes.
                    thread::park_timeout(PATIENCE);
                    if !written.load(Ordering::SeqCst) {
                        note!("ending while the answers are being written; whole lines are safe");
                    }
                    std::process::exit(code.into());
                }
            }
        };
        thread::Builder::new().name("signals".into()).spawn(hear).context("the system refuses threads")?;
        Ok(signals)
    }
}

/// Progress and signals of a job.
pub(super) struct Follow {
    progress: Progress,
    reasons: Reasons,
    signals: Signals,
    drain_timeout: Duration,
    /// When draining must be over.
    deadline: Option<Instant>,
    /// How a job goes on that is interrupted.
    pub(super) resumes: &'static str,
}

/// How it does where nothing else was asked for.
pub(super) const SAME_COMMAND: &str = "the same command goes on";

impl Follow {
    /// From now on SIGTERM and SIGINT end the job in order, a second one at once.
    pub(super) fn new(kind: ProgressKind, signals: Signals, drain_timeout: Duration) -> Follow {
        signals.begun.store(true, Ordering::SeqCst);
        Follow {
            progress: Progress::new(kind),
            reasons: Reasons::default(),
            signals,
            drain_timeout,
            deadline: None,
            resumes: SAME_COMMAND,
        }
    }

    /// The end.
    pub(super) fn end(&mut self, ended: Ended, tally: &Tally) {
        self.signals.written.store(true, Ordering::SeqCst);
        self.progress.end(ended, tally, self.resumes);
        self.progress.say_why(&self.reasons);
    }
}

impl Watch for Follow {
    fn ask(&mut self) -> Ask {
        match self.signals.count.load(Ordering::SeqCst) {
            0 => return Ask::GoOn,
            1 => {}
            _ => return Ask::End,
        }
        if self.deadline.is_none() {
            note!(
                "ending: answers that have begun have {} s to be finished; a second signal ends at once",
                self.drain_timeout.as_secs()
            );
        }
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + self.drain_timeout);
        if Instant::now() < deadline { Ask::Drain } else { Ask::End }
    }

    fn tell(&mut self, tally: &Tally) {
        self.progress.tell(tally);
    }

    fn failed(&mut self, error: &ApiError) {
        self.reasons.add(&error.to_string());
    }
}
