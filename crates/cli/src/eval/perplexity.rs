//! `eval perplexity`: how surprised a model is by a text.
//!
//! ```text
//! window 0   |scored .......................|
//! window 1              |context ...|scored |        windows of `--context` tokens, `--stride` apart:
//! window 2                      |context ...|scored |   each token is scored once, after at least context - stride
//! ```

use std::process::ExitCode;

use anyhow::{Result, bail};
use serde::Serialize;

use super::scored::{Ended, Scorer, Subject};
use crate::args::PerplexityArgs;
use crate::console::show;
use crate::output_file::JsonReport;

/// From one window to the next, where nobody says.
const STRIDE: usize = 512;

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    subject: Subject,
    context: usize,
    stride: usize,
    /// Tokens that were scored.
    tokens: usize,
    /// `exp` of the mean negative log-probability of a token.
    perplexity: f64,
    /// The standard error of that, from windows' means.
    perplexity_error: Option<f64>,
    /// Of all tokens, those that the model holds likeliest.
    top1: f64,
    seconds: f64,
    peak_rss_bytes: u64,
}

/// A stretch of the text: the tokens given, and how many of its last ones count.
struct Window {
    tokens: Vec<u32>,
    scored: usize,
}

pub(crate) fn perplexity(args: PerplexityArgs) -> Result<ExitCode> {
    let PerplexityArgs { common, context, stride } = args;
    let stride = stride.unwrap_or(STRIDE.min(context));
    if stride > context {
        bail!(
            "--stride {stride} is more than --context {context}: tokens between two windows would be left out"
        );
    }
    let json = JsonReport::open(common.json.as_deref())?;
    let text = super::text(common.text.as_deref())?;
    // Windows that have nothing in common begin with the last token of the one before.
    let longest = context + usize::from(stride == context);
    let scorer = Scorer::load(&common, longest + 1..=longest + 1)?;
    let windows = windows(&scorer.encode(&text)?, context, stride);
    if windows.is_empty() {
        bail!("the text has no second token: nothing can be predicted");
    }
    let tokens: Vec<Vec<u32>> = windows.iter().map(|w| w.tokens.clone()).collect();
    let scores = scorer.score(&tokens)?;
    let Ended { subject, seconds, peak_rss_bytes, exit } = scorer.finish(scores.len() < windows.len())?;
    if scores.is_empty() {
        return Ok(exit);
    }
    let counted = || windows.iter().zip(&scores).map(|(w, s)| &s[s.len() - w.scored..]);
    let means: Vec<f64> = counted().map(|s| mean(s.iter().map(|t| -f64::from(t.logprob)))).collect();
    let all: Vec<_> = counted().flatten().collect();
    let loss = mean(all.iter().map(|t| -f64::from(t.logprob)));
    let report = Report {
        subject,
        context,
        stride,
        tokens: all.len(),
        perplexity: loss.exp(),
        perplexity_error: standard_error(&means).map(|error| loss.exp() * error),
        top1: mean(all.iter().map(|t| f64::from(u8::from(t.rank == 1)))),
        seconds,
        peak_rss_bytes,
    };
    json.write(&report)?;
    show!(
        "perplexity {:.3}{} over {}, the likeliest token right {:.2} % of the time",
        report.perplexity,
        give_or_take(report.perplexity_error, 3),
        engine::counted(report.tokens, "token"),
        100.0 * report.top1
    )?;
    Ok(exit)
}

/// Cuts a text so that every token but the first is scored once.
fn windows(tokens: &[u32], context: usize, stride: usize) -> Vec<Window> {
    let mut windows = Vec::new();
    let mut scored = 1;
    while scored < tokens.len() {
        let step = if scored == 1 { context.max(2) - 1 } else { stride };
        let end = (scored + step).min(tokens.len());
        let start = end.saturating_sub(context.max(2));
        let start = start.min(scored - 1);
        windows.push(Window { tokens: tokens[start..end].to_vec(), scored: end - scored });
        scored = end;
    }
    windows
}

pub(super) fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

/// Of a mean; one value tells nothing of it.
pub(super) fn standard_error(values: &[f64]) -> Option<f64> {
    if values.len() < 2 {
        return None;
    }
    let (n, middle) = (values.len() as f64, mean(values.iter().copied()));
    let variance = values.iter().map(|v| (v - middle).powi(2)).sum::<f64>() / (n - 1.0);
    Some((variance / n).sqrt())
}

/// An error beside its figure, if it is known.
pub(super) fn give_or_take(error: Option<f64>, digits: usize) -> String {
    error.map_or(String::new(), |error| format!(" +- {error:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_where_it_is_known() {
        assert_eq!([None, Some(0.25)].map(|error| give_or_take(error, 3)), ["", " +- 0.250"]);
    }

    #[test]
    fn every_token_but_the_first_is_scored_once_with_the_context_promised() {
        let tokens: Vec<u32> = (0..1000).collect();
        for (context, stride) in [(128, 64), (100, 100), (64, 1), (2000, 512), (1, 1)] {
            let windows = windows(&tokens, context, stride);
            let scored: Vec<u32> =
                windows.iter().flat_map(|w| w.tokens[w.tokens.len() - w.scored..].to_vec()).collect();
            assert_eq!(scored, tokens[1..], "{context} {stride}");
            for w in &windows[1..] {
                let before = w.tokens.len() - w.scored;
                assert!(
                    w.tokens.len() <= context + 1 && before >= 1 && before >= context - stride,
                    "{context} {stride}"
                );
            }
        }
        assert!(windows(&tokens[..1], 128, 64).is_empty());
    }

    #[test]
    fn errors_of_means() {
        let found = [&[][..], &[2.0], &[1.0, 3.0], &[1.0, 1.0, 1.0]].map(standard_error);
        assert_eq!(found, [None, None, Some(1.0), Some(0.0)], "of one value nothing is known");
    }
}
