//! `eval next-word`: how often a model knows the last word of a passage, in LAMBADA's form.

use std::process::ExitCode;

use anyhow::{Result, bail};
use engine::counted;
use serde::Serialize;

use super::passages::{Passage, passages};
use super::perplexity::{give_or_take, mean, standard_error};
use super::scored::{Ended, Scorer, Subject};
use crate::args::NextWordArgs;
use crate::console::show;
use crate::output_file::JsonReport;

/// Room for a passage; longer ones lose their beginning.
const LONGEST: usize = 512;
/// Less room is of no use: some words, the last one, and the token that follows.
const SHORTEST: usize = 32;

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    subject: Subject,
    passages: usize,
    /// Share of the passages all tokens of whose last word are the likeliest ones.
    accuracy: f64,
    /// Its standard error.
    accuracy_error: Option<f64>,
    /// `exp` of the mean negative log-probability of a last word.
    word_perplexity: f64,
    seconds: f64,
    peak_rss_bytes: u64,
}

/// Tokens of a passage, and how many of them are its last word.
struct Task {
    tokens: Vec<u32>,
    word: usize,
}

pub(crate) fn next_word(args: NextWordArgs) -> Result<ExitCode> {
    let NextWordArgs { common } = args;
    let json = JsonReport::open(common.json.as_deref())?;
    let found = passages(&super::text(common.text.as_deref())?);
    if found.is_empty() {
        bail!(
            "the text has no passage: 50 words in whole sentences, up to a full stop, question or exclamation mark, and one more \
             whose last word has four letters at the least; give a longer one"
        );
    }
    let scorer = Scorer::load(&common, SHORTEST..=LONGEST)?;
    let tasks: Vec<Task> = found.iter().map(|p| task(&scorer, p)).collect::<Result<_>>()?;
    let tokens: Vec<Vec<u32>> = tasks.iter().map(|t| t.tokens.clone()).collect();
    let scores = scorer.score(&tokens)?;
    let Ended { subject, seconds, peak_rss_bytes, exit } = scorer.finish(scores.len() < tasks.len())?;
    if scores.is_empty() {
        return Ok(exit);
    }
    let words = || tasks.iter().zip(&scores).map(|(task, s)| &s[s.len() - task.word..]);
    let right: Vec<f64> = words().map(|w| f64::from(u8::from(w.iter().all(|t| t.rank == 1)))).collect();
    let losses: Vec<f64> = words().map(|w| w.iter().map(|t| -f64::from(t.logprob)).sum()).collect();
    let report = Report {
        subject,
        passages: scores.len(),
        accuracy: mean(right.iter().copied()),
        accuracy_error: standard_error(&right),
        word_perplexity: mean(losses.iter().copied()).exp(),
        seconds,
        peak_rss_bytes,
    };
    json.write(&report)?;
    show!(
        "the last word right in {:.1} %{} of {}, perplexity of a word {:.2}",
        100.0 * report.accuracy,
        give_or_take(report.accuracy_error.map(|error| 100.0 * error), 1),
        counted(report.passages, "passage"),
        report.word_perplexity
    )?;
    Ok(exit)
}

/// The word's tokens are those after the beginning that the passage shares with its context alone.
fn task(scorer: &Scorer, passage: &Passage) -> Result<Task> {
    let context = scorer.encode(&passage.context)?;
    let mut tokens = scorer.encode(&format!("{} {}", passage.context, passage.word))?;
    let shared = context.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
    let word = tokens.len() - shared;
    let over = tokens.len().saturating_sub(scorer.longest - 1);
    tokens.drain(..over.min(shared.saturating_sub(1)));
    Ok(Task { tokens, word })
}
