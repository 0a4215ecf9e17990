//! How long an answer took, in the shape that llama-server gave it.

use serde_json::{Value, json};

/// Times of a request, all of its sequences together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// Tokens of prompts whose KV was in memory.
    pub cache_n: usize,
    /// Tokens of prompts that were computed.
    pub prompt_n: usize,
    /// From the engine's inbox to the first step, in milliseconds.
    pub queue_ms: f64,
    /// From the first step to the first token, in milliseconds.
    pub prompt_ms: f64,
    /// Tokens generated so far.
    pub predicted_n: usize,
    /// From the first of them to the last, in milliseconds.
    pub predicted_ms: f64,
}

impl Timings {
    /// With what follows from them: time of each token, and tokens a second. What took no time has neither.
    pub(super) fn body(&self) -> Value {
        // The first token is the prompt's work: what follows it took this time.
        let following = self.predicted_n.saturating_sub(1);
        json!({
            "cache_n": self.cache_n,
            "queue_ms": self.queue_ms,
            "prompt_n": self.prompt_n,
            "prompt_ms": self.prompt_ms,
            "prompt_per_token_ms": ratio(self.prompt_ms, self.prompt_n as f64),
            "prompt_per_second": ratio(self.prompt_n as f64, self.prompt_ms / 1e3),
            "predicted_n": self.predicted_n,
            "predicted_ms": self.predicted_ms,
            "predicted_per_token_ms": ratio(self.predicted_ms, following as f64),
            "predicted_per_second": ratio(following as f64, self.predicted_ms / 1e3),
        })
    }
}

fn ratio(of: f64, by: f64) -> Option<f64> {
    (by > 0.0).then(|| of / by)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_follow_from_counts_and_times() {
        let timings = Timings {
            cache_n: 3,
            prompt_n: 10,
            queue_ms: 1.0,
            prompt_ms: 20.0,
            predicted_n: 5,
            predicted_ms: 8.0,
        };
        let body = timings.body();
        assert_eq!((&body["prompt_per_token_ms"], &body["prompt_per_second"]), (&json!(2.0), &json!(500.0)));
        assert_eq!(
            (&body["predicted_per_token_ms"], &body["predicted_per_second"]),
            (&json!(2.0), &json!(500.0))
        );
        let none = Timings { predicted_n: 1, ..Timings::default() }.body();
        assert!(none["prompt_per_second"].is_null() && none["predicted_per_second"].is_null(), "{none}");
    }
}
