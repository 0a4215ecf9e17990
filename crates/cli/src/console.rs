//! Standard output and standard error, either of which may be closed or full at any time.

use std::fmt::Arguments;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;

use anyhow::{Error, Result};
use engine::job::JobError;

/// As clap ends.
pub(crate) const EXIT_MISUSE: u8 = 2;
/// A batch that was interrupted (EX_TEMPFAIL).
pub(crate) const EXIT_INTERRUPTED: u8 = 75;
/// As a shell tells of what Ctrl-C ended.
pub(crate) const EXIT_CTRL_C: u8 = 130;

/// Says something to the person, on standard error. If nobody listens, that is no failure.
macro_rules! note {
    ($($words:tt)*) => { $crate::console::write_note(format_args!($($words)*)) };
}

/// Writes a line of the result on standard output; an error where it does not arrive.
macro_rules! show {
    ($($words:tt)*) => { $crate::console::write_out(format_args!("{}\n", format_args!($($words)*))) };
}

pub(crate) use {note, show};

/// Who read standard output has enough of it, as `head` does: an end, and no failure.
#[derive(Debug, thiserror::Error)]
#[error("standard output was closed")]
pub(crate) struct Hangup;

/// The command was wrong: exit code 2, as for flags that are.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Misuse(pub(crate) String);

pub(crate) fn write_note(words: Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{words}");
}

/// Where the report of this process goes, if it makes one: set before the first line is shown.
static REPORT: OnceLock<ReportTo> = OnceLock::new();

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReportTo {
    /// Somebody waits for it, whether the lines are read or not.
    File,
    /// Whoever reads it as JSON is told what people read elsewhere.
    StandardOutput,
}

pub(crate) fn report_goes_to(place: ReportTo) {
    // The first is the one of the command itself.
    let _ = REPORT.set(place);
}

/// Words as they are, no line end added, seen at once.
pub(crate) fn write_out(words: Arguments<'_>) -> Result<()> {
    match REPORT.get() {
        Some(ReportTo::StandardOutput) => {
            let _ = io::stderr().lock().write_fmt(words);
            Ok(())
        }
        Some(ReportTo::File) => even_unread(put(words)),
        None => put(words),
    }
}

/// What was shown, of a command whose end does not depend on who reads it.
pub(crate) fn even_unread(shown: Result<()>) -> Result<()> {
    shown.or_else(|error| if error.is::<Hangup>() { Ok(()) } else { Err(error) })
}

/// The report itself, where it goes to standard output.
pub(crate) fn write_report(text: &str) -> Result<()> {
    put(format_args!("{text}\n"))
}

fn put(words: Arguments<'_>) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_fmt(words).and_then(|()| out.flush()).map_err(refused)
}

fn refused(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Hangup.into(),
        _ => Error::new(error).context("cannot write to standard output"),
    }
}

/// A file of the command line that cannot be read: where it is not there, the command was wrong.
pub(crate) fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let words = format!("cannot read {}", path.display());
    move |error| match error.kind() {
        io::ErrorKind::NotFound => Misuse(format!("{words}: {error}")).into(),
        _ => Error::new(error).context(words),
    }
}

/// The text of a file of the command line, without the mark that some editors put before it.
pub(crate) fn text_of(path: &Path) -> Result<String> {
    Ok(unmarked(std::fs::read_to_string(path).map_err(unreadable(path))?))
}

/// A text without that mark.
pub(crate) fn unmarked(text: String) -> String {
    text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text)
}

/// How the process ends with this error.
pub(crate) fn exit_code(error: &Error) -> ExitCode {
    let job = error.downcast_ref::<JobError>();
    match job {
        _ if error.is::<Hangup>() => ExitCode::SUCCESS,
        // A batch is work that somebody asked for: without a reader it is not done.
        Some(JobError::Stream(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::from(EXIT_INTERRUPTED)
        }
        Some(job) if job.is_misuse() => ExitCode::from(EXIT_MISUSE),
        _ if error.is::<Misuse>() => ExitCode::from(EXIT_MISUSE),
        _ => ExitCode::FAILURE,
    }
}

/// An error and its causes, each said once (a message often quotes its cause).
pub(crate) fn told(error: &Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            let between = if text.is_empty() { "" } else { ": " };
            text = text + between + &cause;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_is_quoted_is_not_repeated() {
        let error = Error::msg("no space").context("cannot write x: no space").context("the record");
        assert_eq!(told(&error), "the record: cannot write x: no space");
    }
}
