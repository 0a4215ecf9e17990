//! What a person sees of long work: a bar on a terminal, plain lines otherwise.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How often plain lines come.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Progress of one piece of work, told from any thread.
pub(crate) struct Progress {
    what: String,
    total: u64,
    unit: Unit,
    shown: Shown,
}

/// What is counted.
#[derive(Clone, Copy)]
pub(crate) enum Unit {
    Bytes,
    Items,
}

enum Shown {
    Bar(ProgressBar),
    Lines(Mutex<Instant>),
    Nothing,
}

impl Progress {
    /// Progress towards `total`, on standard error.
    pub(crate) fn new(what: &str, total: u64, unit: Unit, quiet: bool) -> Progress {
        let shown = match () {
            () if quiet => Shown::Nothing,
            () if std::io::stderr().is_terminal() => Shown::Bar(bar(what, total, unit)),
            () => Shown::Lines(Mutex::new(Instant::now())),
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

    /// The total is known better now.
    pub(crate) fn set_total(&self, total: u64) {
        if let Shown::Bar(bar) = &self.shown {
            bar.set_length(total);
        }
    }

    fn line(&self, done: u64, last: &Mutex<Instant>) {
        let mut last = last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if last.elapsed() >= LINE_EVERY {
            *last = Instant::now();
            match self.unit {
                Unit::Bytes => eprintln!("{}: {} of {}", self.what, engine::size(&done), engine::size(&self.total)),
                Unit::Items => eprintln!("{}: {done} of {}", self.what, self.total),
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
        Unit::Bytes => "{msg} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
        Unit::Items => "{msg} [{bar:30}] {pos} of {len}, {per_sec}, {eta} left",
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(total).with_style(style.progress_chars("=> "));
    bar.set_message(what.to_string());
    bar
}
