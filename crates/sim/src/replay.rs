//! A recorded run, driven again through the same scheduler: it must answer the same at every step.

use crate::ledger::Ledger;
use policy::log::Entry;
use policy::sched::{Fcfs, FcfsConfig, Next, Scheduler};
use spec::Tier;
use std::io::BufRead;

/// KV blocks of a tier that a scheduler is made with, at the most: two thousand million positions. Each takes memory here before the
/// first step.
pub(crate) const BLOCKS_MAX: u32 = 1 << 26;

/// What a replay found where it found no difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Lines read.
    pub lines: usize,
    /// Requests that came.
    pub requests: usize,
    /// Steps answered, all as recorded.
    pub steps: usize,
    /// Steps that were in flight at the end of the log. A run that ended by itself has none.
    pub in_flight: usize,
    /// Requests that were not finished there.
    pub unfinished: usize,
}

/// Where a replay stopped.
#[derive(Debug, thiserror::Error)]
pub enum FirstDifference {
    /// The scheduler answers something else now.
    #[error("line {line}: the scheduler answered {recorded:?} when recorded, and {now:?} now")]
    Answer {
        /// Counted from 1.
        line: usize,
        /// As recorded.
        recorded: Box<Next>,
        /// As it is now.
        now: Box<Next>,
    },
    /// The log is not one.
    #[error("line {line} of the log: {why}")]
    Log {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// The log could not be read.
    #[error("the log could not be read: {0}")]
    Read(#[from] std::io::Error),
}

/// Drives the scheduler through a log of JSON lines.
///
/// # Errors
/// At the first answer that differs from the recorded one, or where the log makes no sense.
pub fn replay(reader: impl BufRead) -> Result<Replayed, FirstDifference> {
    let mut found = Replayed::default();
    let (mut scheduler, mut ledger) = (None, Ledger::default());
    for (line, text) in (1..).zip(reader.lines()) {
        let entry = parse(line, &text?)?;
        found.lines += 1;
        found.requests += usize::from(matches!(entry, Entry::Arrive { .. }));
        found.steps += usize::from(matches!(entry, Entry::Next { answer: Next::Run(_), .. }));
        match (&mut scheduler, entry) {
            (None, Entry::Begin { config, .. }) => scheduler = Some(Fcfs::new(config)),
            (Some(scheduler), entry) => {
                let asks = matches!(entry, Entry::Next { .. });
                if asks && let Some(seq) = ledger.left_waiting(|seq| scheduler.knows(seq)) {
                    let why =
                        format!("the step that sampled sequence {seq} is done without an outcome for it");
                    return Err(log(line, why));
                }
                ledger.take(&entry).map_err(|why| log(line, why))?;
                apply(scheduler, line, entry)?;
            }
            (None, _) => return Err(log(line, "the first line must be Begin")),
        }
    }
    match scheduler {
        Some(scheduler) => Ok(Replayed {
            in_flight: ledger.in_flight(),
            unfinished: ledger.open(|seq| scheduler.knows(seq)),
            ..found
        }),
        None => Err(log(1, "the log is empty: expected a Begin line")),
    }
}

fn log(line: usize, why: impl std::fmt::Display) -> FirstDifference {
    FirstDifference::Log { line, why: why.to_string() }
}

fn parse(line: usize, text: &str) -> Result<Entry, FirstDifference> {
    let entry = serde_json::from_str(text).map_err(|e| log(line, e))?;
    match entry {
        Entry::Begin { version, .. } if version != Entry::VERSION => Err(log(
            line,
            format!(
                "written in version {version} of the format, and this reads {}: record it again",
                Entry::VERSION
            ),
        )),
        Entry::Begin { ref config, .. } => check(config).map_err(|why| log(line, why)).map(|()| entry),
        entry => Ok(entry),
    }
}

/// Whether a scheduler can be made with these limits.
fn check(config: &FcfsConfig) -> Result<(), String> {
    config.check().map_err(|zero| zero.to_string())?;
    let too_many = Tier::ALL.into_iter().find(|&tier| config.blocks[tier] > BLOCKS_MAX);
    too_many.map_or(Ok(()), |tier| {
        let found = config.blocks[tier];
        Err(format!(
            "blocks.{} must be at most {BLOCKS_MAX}, found {found}",
            format!("{tier:?}").to_lowercase()
        ))
    })
}

fn apply(scheduler: &mut Fcfs, line: usize, entry: Entry) -> Result<(), FirstDifference> {
    match entry {
        Entry::Begin { .. } => unreachable!("the ledger takes no second one"),
        Entry::Arrive { request, .. } if scheduler.knows(request.id) => {
            return Err(log(line, format!("sequence {} arrived before", request.id)));
        }
        Entry::Arrive { at, request } => scheduler.arrive(at, request),
        Entry::Cancel { at, seq } => scheduler.cancel(at, seq),
        Entry::Done { at, done } => scheduler.complete(at, &done),
        Entry::Next { at, answer } => {
            let now = scheduler.next(at);
            if now != answer {
                return Err(FirstDifference::Answer { line, recorded: Box::new(answer), now: Box::new(now) });
            }
        }
    }
    Ok(())
}
