//! What a person sees of long work: a bar on a terminal, plain lines otherwise, on standard error.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use engine::size;
use indicatif::{ProgressBar, ProgressStyle};

use crate::console::note;

/// How often plain lines come.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Whether anything but the result is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Voice {
    Normal,
    Quiet,
}

/// What is counted.
#[derive(Clone, Copy)]
pub(crate) enum Unit {
    Bytes,
    Items,
}

/// Progress of one piece of work, told from any thread.
pub(crate) struct Progress {
    what: String,
    total: u64,
    unit: Unit,
    shown: Shown,
}

enum Shown {
    Bar(ProgressBar),
    Lines(Mutex<Instant>),
    Nothing,
}

impl Progress {
    /// Progress towards `total`, which is zero where nobody knows it.
    pub(crate) fn new(what: &str, total: u64, unit: Unit, voice: Voice) -> Progress {
        let shown = match voice {
            Voice::Quiet => Shown::Nothing,
            Voice::Normal if std::io::stderr().is_terminal() => Shown::Bar(bar(what, total, unit)),
            Voice::Normal => Shown::Lines(Mutex::new(Instant::now())),
        };
        Progress { what: what.to_string(), total, unit, shown }
    }

    /// So much is done.
    pub(crate) fn set(&self, done: u64) {
        match &self.shown {
            Shown::Bar(bar) => bar.set_position(done),
            Shown::Lines(last) => self.line(done, last),
            Shown::Nothing => {}
        }
    }

    fn line(&self, done: u64, last: &Mutex<Instant>) {
        let mut last = last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if last.elapsed() >= LINE_EVERY {
            *last = Instant::now();
            match self.unit {
                Unit::Bytes if self.total == 0 => note!("{}: {}", self.what, size(&done)),
                Unit::Bytes => note!("{}: {} of {}", self.what, size(&done), size(&self.total)),
                Unit::Items => note!("{}: {done} of {}", self.what, self.total),
            }
        }
    }

    /// Takes the bar away.
    pub(crate) fn end(&self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

fn bar(what: &str, total: u64, unit: Unit) -> ProgressBar {
    let template = match unit {
        Unit::Bytes if total == 0 => "{msg} {spinner} {bytes}, {bytes_per_sec}",
        Unit::Bytes => "{msg} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
        Unit::Items => "{msg} [{bar:30}] {pos} of {len}, {per_sec}, {eta} left",
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(total).with_style(style.progress_chars("=> "));
    bar.set_message(what.to_string());
    bar
}

/// Progress of downloads: a stage has a name at once and a size when the other side tells it.
pub(crate) struct Download {
    voice: Voice,
    stage: String,
    shown: Option<Progress>,
}

impl Download {
    pub(crate) fn new(voice: Voice) -> Download {
        Download { voice, stage: String::new(), shown: None }
    }

    pub(crate) fn end(&mut self) {
        if let Some(progress) = self.shown.take() {
            progress.end();
        }
    }
}

impl model::source::Progress for Download {
    fn stage(&mut self, what: &str) {
        self.end();
        self.stage = what.to_string();
        if self.voice == Voice::Normal {
            note!("{what}");
        }
    }

    fn bytes(&mut self, done: u64, total: Option<u64>) {
        let (stage, voice) = (&self.stage, self.voice);
        let progress =
            self.shown.get_or_insert_with(|| Progress::new(stage, total.unwrap_or(0), Unit::Bytes, voice));
        progress.set(done);
    }

    fn waits(&mut self, why: &str, time: Duration) {
        self.end();
        if self.voice == Voice::Normal {
            note!("{}: {why}; trying again in {} s", self.stage, time.as_secs());
        }
    }
}
