//! Traces of real services: who came when, with how many tokens. CSV, one request a line.

use crate::workload::Job;
use spec::{Nanos, Tokens};
use std::io::BufRead;

/// A trace that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The reader failed.
    #[error("the trace could not be read: {0}")]
    Read(#[from] std::io::Error),
    /// A column is missing.
    #[error(
        "the trace's first line must name its columns, prompt_tokens and output_tokens among them \
         (or ContextTokens and GeneratedTokens), found {found:?}"
    )]
    Columns {
        /// The first line.
        found: String,
    },
    /// A field is not what its column says.
    #[error("line {line} of the trace: expected {expected} for {column}, found {found:?}")]
    Field {
        /// Counted from 1.
        line: usize,
        /// Which column.
        column: &'static str,
        /// What should stand there.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
}

/// Which field of a line is what.
struct Columns {
    prompt: usize,
    output: usize,
    arrival: Option<Arrival>,
}

/// How arrivals are written.
#[derive(Clone, Copy)]
enum Arrival {
    Seconds(usize),
    /// `2023-11-16 18:15:46.6805900`, as in the Azure traces.
    Timestamp(usize),
}

/// Reads a CSV with columns for prompt and output lengths, and perhaps for arrivals (`arrival_s`, or `TIMESTAMP`), in any
/// order. Arrivals count from the first; without them all come at once.
///
/// # Errors
/// When a column is missing or a field is not a number or a time.
pub fn trace(reader: impl BufRead) -> Result<Vec<Job>, TraceError> {
    let mut lines = reader.lines();
    let header = lines.next().transpose()?.unwrap_or_default();
    let columns = Columns::of(&header).ok_or(TraceError::Columns { found: header })?;
    let mut rows = Vec::new();
    for (line, text) in (2..).zip(lines) {
        let text = text?;
        if !text.trim().is_empty() {
            rows.push(columns.read(&Row { line, fields: text.split(',').map(str::trim).collect() })?);
        }
    }
    let first = rows.iter().map(|(at, _)| *at).fold(f64::INFINITY, f64::min);
    Ok(rows.into_iter().map(|(at, job)| Job { arrival: Nanos::from_secs(at - first), ..job }).collect())
}

impl Columns {
    fn of(header: &str) -> Option<Self> {
        let column = |names: &[&str]| header.split(',').position(|name| names.contains(&name.trim()));
        let timestamp = column(&["TIMESTAMP"]).map(Arrival::Timestamp);
        Some(Self {
            prompt: column(&["prompt_tokens", "ContextTokens"])?,
            output: column(&["output_tokens", "generated_tokens", "GeneratedTokens"])?,
            arrival: column(&["arrival_s"]).map(Arrival::Seconds).or(timestamp),
        })
    }

    fn read(&self, row: &Row<'_>) -> Result<(f64, Job), TraceError> {
        let at = match self.arrival {
            None => 0.0,
            Some(Arrival::Seconds(at)) => row.seconds(at)?,
            Some(Arrival::Timestamp(at)) => row.timestamp(at)?,
        };
        let (prompt, output) =
            (row.tokens(self.prompt, "the prompt")?, row.tokens(self.output, "the output")?);
        Ok((at, Job { arrival: Nanos::ZERO, prompt, output }))
    }
}

struct Row<'a> {
    line: usize,
    fields: Vec<&'a str>,
}

impl Row<'_> {
    fn text(&self, at: usize) -> &str {
        self.fields.get(at).copied().unwrap_or_default()
    }

    fn wrong(&self, at: usize, column: &'static str, expected: &'static str) -> TraceError {
        TraceError::Field { line: self.line, column, expected, found: self.text(at).to_string() }
    }

    fn tokens(&self, at: usize, column: &'static str) -> Result<Tokens, TraceError> {
        self.text(at).parse().map(Tokens).map_err(|_| self.wrong(at, column, "a count of tokens"))
    }

    fn seconds(&self, at: usize) -> Result<f64, TraceError> {
        let seconds = self.text(at).parse().ok().filter(|s: &f64| s.is_finite() && *s >= 0.0);
        seconds.ok_or_else(|| self.wrong(at, "the arrival", "seconds"))
    }

    fn timestamp(&self, at: usize) -> Result<f64, TraceError> {
        let parts =
            |text: &str| text.split(['-', ' ', 'T', ':']).map(|part| part.parse::<f64>().ok()).collect();
        let numbers: Option<Vec<f64>> = parts(self.text(at));
        match numbers.as_deref() {
            Some(&[year, month, day, hours, minutes, seconds]) if (1.0..=12.0).contains(&month) => {
                Ok(((days(year, month, day) * 24.0 + hours) * 60.0 + minutes) * 60.0 + seconds)
            }
            _ => Err(self.wrong(at, "the arrival", "a date and a time")),
        }
    }
}

/// Days since the first of March of the year zero, in the Gregorian calendar: February is the last month of a year.
fn days(year: f64, month: f64, day: f64) -> f64 {
    let (year, month) = if month < 3.0 { (year - 1.0, month + 9.0) } else { (year, month - 3.0) };
    let leap_days = (year / 4.0).floor() - (year / 100.0).floor() + (year / 400.0).floor();
    365.0 * year + leap_days + ((153.0 * month + 2.0) / 5.0).floor() + day - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(arrival: u64, prompt: u32, output: u32) -> Job {
        Job { arrival: Nanos(arrival), prompt: Tokens(prompt), output: Tokens(output) }
    }

    fn error(text: &str) -> String {
        trace(text.as_bytes()).expect_err("it is wrong").to_string()
    }

    #[test]
    fn lengths_alone_come_at_once() {
        let jobs = trace("prompt_tokens,output_tokens\n269,42\n\n270, 52\n".as_bytes()).expect("a trace");
        assert_eq!(jobs, [job(0, 269, 42), job(0, 270, 52)]);
    }

    #[test]
    fn timestamps_count_from_the_first_across_midnight_and_leap_days() {
        let rows = "2024-02-28 23:59:59.5000000,374,44\n2024-03-01 00:00:00.7500000,396,109\n";
        let jobs =
            trace(format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}").as_bytes()).expect("a trace");
        let second = jobs[1].arrival.0 as f64 * 1e-9 - (86_400.0 + 1.25);
        assert_eq!(jobs[0], job(0, 374, 44));
        assert!(second.abs() < 1e-3, "{jobs:?}");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        assert!(error("").contains("found \"\""));
        assert!(error("a,b\n1,2\n").contains("prompt_tokens"));
        assert!(error("prompt_tokens,output_tokens\n1,2\n3\n").starts_with("line 3 of the trace"));
        assert!(error("prompt_tokens,output_tokens\n-1,2\n").contains("found \"-1\""));
        assert!(error("arrival_s,prompt_tokens,output_tokens\nNaN,1,2\n").contains("seconds"));
        assert!(error("TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,2\n").contains("a date and a time"));
    }
}
