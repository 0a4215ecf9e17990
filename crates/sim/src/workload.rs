//! What people ask for: lengths and arrivals, drawn with a seed or read from a trace.

use crate::rng::Rng;
use spec::{Nanos, Tokens};
use std::io::BufRead;

/// How a length is drawn; at least one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lengths {
    /// Always this.
    Fixed(Tokens),
    /// Any of these, both ends included.
    Uniform(Tokens, Tokens),
    /// Log-normal with this mean, and this deviation of the logarithm, up to `max`.
    LogNormal {
        /// Mean of the lengths.
        mean: f64,
        /// Deviation of their logarithm.
        sigma: f64,
        /// Longer ones are cut to this.
        max: Tokens,
    },
}

impl Lengths {
    fn draw(self, rng: &mut Rng) -> Tokens {
        let drawn = match self {
            Lengths::Fixed(n) => n,
            Lengths::Uniform(low, high) => Tokens(rng.within(u64::from(low.0), u64::from(high.0)) as u32),
            Lengths::LogNormal { mean, sigma, max } => {
                let mu = mean.ln() - sigma * sigma / 2.0;
                Tokens((mu + sigma * rng.normal()).exp().round() as u32).min(max)
            }
        };
        drawn.max(Tokens(1))
    }
}

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// All at the beginning.
    AtOnce,
    /// Independently of each other, this many a second on average.
    Poisson {
        /// Requests a second.
        per_s: f64,
    },
}

/// One request to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// When it comes.
    pub arrival: Nanos,
    /// Tokens of its prompt.
    pub prompt: Tokens,
    /// Tokens that it generates before it ends by itself.
    pub output: Tokens,
}

/// A distribution of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// Of prompts.
    pub prompt: Lengths,
    /// Of outputs.
    pub output: Lengths,
    /// In time.
    pub arrivals: Arrivals,
}

impl Workload {
    /// `count` requests in order of arrival.
    pub fn draw(&self, count: usize, seed: u64) -> Vec<Job> {
        let mut rng = Rng::new(seed);
        let mut at = 0.0;
        let mut job = || {
            if let Arrivals::Poisson { per_s } = self.arrivals {
                at += rng.exponential(1.0 / per_s);
            }
            let arrival = Nanos::from_secs(at);
            Job { arrival, prompt: self.prompt.draw(&mut rng), output: self.output.draw(&mut rng) }
        };
        (0..count).map(|_| job()).collect()
    }
}

/// A trace that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The reader failed.
    #[error("the trace could not be read: {0}")]
    Read(#[from] std::io::Error),
    /// A column is missing.
    #[error("the trace's first line must name the columns prompt_tokens and output_tokens, found {found:?}")]
    Columns {
        /// The first line.
        found: String,
    },
    /// A line is not three or two numbers.
    #[error("line {line} of the trace: expected a number for {column}, found {found:?}")]
    Number {
        /// Counted from 1.
        line: usize,
        /// Which column.
        column: &'static str,
        /// What stood there.
        found: String,
    },
}

/// Reads a CSV of `arrival_s` (optional; else all come at once), `prompt_tokens` and `output_tokens`, in any order.
///
/// # Errors
/// When a column is missing or a field is not a number.
pub fn trace(reader: impl BufRead) -> Result<Vec<Job>, TraceError> {
    let mut lines = reader.lines();
    let header = lines.next().transpose()?.unwrap_or_default();
    let column = |names: &[&str]| header.split(',').position(|name| names.contains(&name.trim()));
    let prompt = column(&["prompt_tokens"]);
    let output = column(&["output_tokens", "generated_tokens"]);
    let (Some(prompt), Some(output)) = (prompt, output) else {
        return Err(TraceError::Columns { found: header });
    };
    let arrival = column(&["arrival_s", "arrival"]);
    let mut jobs = Vec::new();
    for (line, text) in (2..).zip(lines) {
        let text = text?;
        if text.trim().is_empty() {
            continue;
        }
        let row = Row { line, fields: text.split(',').collect() };
        jobs.push(Job {
            arrival: arrival
                .map_or(Ok(Nanos::ZERO), |at| row.number(at, "arrival_s").map(Nanos::from_secs))?,
            prompt: Tokens(row.number(prompt, "prompt_tokens")? as u32),
            output: Tokens(row.number(output, "output_tokens")? as u32),
        });
    }
    Ok(jobs)
}

struct Row<'a> {
    line: usize,
    fields: Vec<&'a str>,
}

impl Row<'_> {
    fn number(&self, at: usize, column: &'static str) -> Result<f64, TraceError> {
        let text = self.fields.get(at).map_or("", |field| field.trim());
        let number = text.parse::<f64>().ok().filter(|number| *number >= 0.0);
        number.ok_or_else(|| TraceError::Number { line: self.line, column, found: text.to_string() })
    }
}
