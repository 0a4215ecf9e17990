//! How far a job is, for people and for programs, on standard error.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use engine::job::{Ended, Tally};
use engine::{counted, memory, size};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::forecast::Forecast;
use super::reasons::Reasons;
use crate::args::ProgressKind;
use crate::console::note;

/// How often plain lines and events come.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// How often the bar moves.
const BAR_EVERY: Duration = Duration::from_millis(200);

/// What is shown of a job.
pub(super) struct Progress {
    shown: Shown,
    began: Instant,
    last: Instant,
    forecast: Forecast,
}

enum Shown {
    Bar(ProgressBar),
    Lines,
    Json,
    Nothing,
}

impl Progress {
    pub(super) fn new(kind: ProgressKind) -> Progress {
        let shown = match kind {
            ProgressKind::Auto if std::io::stderr().is_terminal() => Shown::Bar(bar()),
            ProgressKind::Bar => Shown::Bar(bar()),
            ProgressKind::Auto | ProgressKind::Lines => Shown::Lines,
            ProgressKind::Json => Shown::Json,
            ProgressKind::None => Shown::Nothing,
        };
        let now = Instant::now();
        Progress { shown, began: now, last: now, forecast: Forecast::default() }
    }

    /// So far it is now.
    pub(super) fn tell(&mut self, tally: &Tally) {
        let every = if matches!(self.shown, Shown::Bar(_)) { BAR_EVERY } else { LINE_EVERY };
        if self.last.elapsed() < every {
            return;
        }
        self.last = Instant::now();
        let seconds = self.began.elapsed().as_secs_f64();
        let left = self.forecast.left(tally, seconds);
        match &self.shown {
            Shown::Bar(bar) => {
                bar.set_length(tally.lines as u64);
                bar.set_position(answered(tally) as u64);
                bar.set_message(line(tally, seconds, left));
            }
            Shown::Lines => note!("requests: {}", line(tally, seconds, left)),
            Shown::Json => note!("{}", event("progress", tally, seconds, left)),
            Shown::Nothing => {}
        }
    }

    /// The end.
    pub(super) fn end(&mut self, ended: Ended, tally: &Tally, resumes: &str) {
        let seconds = self.began.elapsed().as_secs_f64();
        let error = self.forecast.error(seconds);
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
        if let Shown::Json = self.shown {
            let name = if ended == Ended::Finished { "done" } else { "interrupted" };
            let mut event = event(name, tally, seconds, None);
            event["eta_error_at_half"] = json!(error);
            event["peak_memory_bytes"] = json!(memory::peak_resident_bytes());
            return note!("{event}");
        }
        note!("{}", summary(tally, seconds, error));
        if ended == Ended::Interrupted {
            let all = counted(tally.lines, "request");
            note!("interrupted after {} of {all}; {resumes}", tally.done);
        }
    }

    /// Why lines of this run failed, for people: programs find it in the output.
    pub(super) fn say_why(&self, reasons: &Reasons) {
        if !matches!(self.shown, Shown::Json) && !reasons.is_empty() {
            note!("{reasons}");
        }
    }
}

fn line(tally: &Tally, seconds: f64, left: Option<f64>) -> String {
    let rate = generated(tally) as f64 / seconds;
    let left = left.map_or("time left not known yet".to_string(), |left| format!("{} left", duration(left)));
    // Those that are not written yet are told of too.
    let failed = tally.earlier_failed + tally.answered_badly;
    let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
    format!("{} of {}{failed}, {rate:.0} generated/s, {left}", answered(tally), tally.lines)
}

/// Lines with an answer, some of which may wait to be written until an earlier line has one.
fn answered(tally: &Tally) -> usize {
    tally.earlier + tally.answered
}

/// Tokens of this run, whatever became of their lines so far.
fn generated(tally: &Tally) -> u64 {
    tally.answered_tokens + tally.tokens_under_way
}

fn event(name: &str, tally: &Tally, seconds: f64, left: Option<f64>) -> Value {
    json!({
        "event": name,
        "requests": tally.lines,
        "answered": answered(tally),
        "done": tally.done,
        "failed": tally.failed,
        "earlier": tally.earlier,
        "running": tally.under_way,
        "prompt_tokens": tally.prompt_tokens,
        "generated_tokens": generated(tally),
        "seconds": seconds,
        "eta_s": left,
    })
}

fn summary(tally: &Tally, seconds: f64, error: Option<f64>) -> String {
    let earlier =
        if tally.earlier > 0 { format!(" ({} by earlier runs)", tally.earlier) } else { String::new() };
    let error = error.map_or(String::new(), |e| {
        let how = if e < 0.0 { "short" } else { "long" };
        format!("; the end foretold at half of the work was {:.0} % too {how}", 100.0 * e.abs())
    });
    format!(
        "{}{earlier}, {} failed; {} prompt and {} generated tokens in {seconds:.1} s ({:.1} generated/s); \
         peak memory {}{error}",
        counted(tally.done, "request"),
        tally.failed,
        tally.prompt_tokens,
        tally.generated_tokens,
        tally.generated_tokens as f64 / seconds,
        size(&memory::peak_resident_bytes()),
    )
}

/// `45 s`, `12 min`, `3.5 h`.
fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

fn bar() -> ProgressBar {
    let style =
        ProgressStyle::with_template("[{bar:30}] {msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style.progress_chars("=> "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_wait_for_an_earlier_line_are_progress() {
        let tally = Tally {
            lines: 10,
            earlier: 2,
            done: 2,
            answered: 5,
            answered_tokens: 50,
            under_way: 1,
            tokens_under_way: 7,
            ..Tally::default()
        };
        assert_eq!(line(&tally, 10.0, Some(3.0)), "7 of 10, 6 generated/s, 3 s left");
        let event = event("progress", &tally, 10.0, None);
        assert_eq!((&event["answered"], &event["done"]), (&json!(7), &json!(2)));
        assert_eq!(event["generated_tokens"], 57);
    }

    #[test]
    fn durations_in_units_that_one_reads() {
        assert_eq!([45.2, 700.0, 12_600.0].map(duration), ["45 s", "12 min", "3.5 h"]);
    }
}
