//! Log-probabilities, from the raw logits: before bias, penalties, temperature and truncation, as
//! vLLM reports them by default. So they say what the model thinks, whatever the sampler does.

use super::SampleError;
use super::row::{BLOCK, argmax, count_above, mass};

/// What the model thought of a token and of its best rivals.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The token that was taken.
    pub token: u32,
    /// Its natural log-probability.
    pub logprob: f32,
    /// Its rank: 1 for the most probable.
    pub rank: u32,
    /// The most probable tokens, best first; of equals, the lowest id first.
    pub top: Vec<(u32, f32)>,
}

/// Log-probability of `token` and of the `n_top` most probable under `logits`: `[vocab]` f32.
///
/// `token` must be within the row.
pub fn logprobs_of(logits: &[f32], token: u32, n_top: usize) -> Result<TokenLogprobs, SampleError> {
    let (_, max) = argmax(logits)?;
    let total: f64 = logits.chunks(BLOCK).map(|block| mass(block, max, 1.0)).sum();
    let log_total = total.ln();
    let logprob = |x: f32| (f64::from(x - max) - log_total) as f32;
    let taken = logits[token as usize];
    Ok(TokenLogprobs {
        token,
        logprob: logprob(taken),
        rank: 1 + count_above(logits, taken) as u32,
        top: top(logits, n_top).into_iter().map(|(x, id)| (id, logprob(x))).collect(),
    })
}

/// The `n` largest logits, best first. A block is looked into only if it holds one of them so far.
fn top(logits: &[f32], n: usize) -> Vec<(f32, u32)> {
    const SPAN: usize = 64;
    let mut best: Vec<(f32, u32)> = Vec::with_capacity(n + 1);
    if n == 0 {
        return best;
    }
    for (s, span) in logits.chunks(SPAN).enumerate() {
        let worst = if best.len() < n { f32::NEG_INFINITY } else { best[n - 1].0 };
        if best.len() == n && !span.iter().fold(false, |any, &x| any | (x > worst)) {
            continue;
        }
        for (i, &x) in span.iter().enumerate() {
            if best.len() < n || x > best[n - 1].0 {
                let at = best.partition_point(|&(b, _)| b >= x);
                best.insert(at, (x, (s * SPAN + i) as u32));
                best.truncate(n);
            }
        }
    }
    best
}
