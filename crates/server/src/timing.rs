//! When a sequence's tokens came, as its metrics want it.

use std::sync::Arc;
use std::time::Instant;

use engine::Event;

use crate::metrics::Metrics;

/// One sequence's times; they are counted when it is dropped, however it ended.
pub(crate) struct Timing {
    metrics: Arc<Metrics>,
    submitted: Instant,
    prompt_tokens: usize,
    cached_tokens: usize,
    scheduled: Option<Instant>,
    first: Option<Instant>,
    last: Option<Instant>,
    n_tokens: usize,
}

impl Timing {
    pub(crate) fn new(metrics: Arc<Metrics>, submitted: Instant, prompt_tokens: usize) -> Timing {
        Timing {
            metrics,
            submitted,
            prompt_tokens,
            cached_tokens: 0,
            scheduled: None,
            first: None,
            last: None,
            n_tokens: 0,
        }
    }

    pub(crate) fn note(&mut self, event: &Event) {
        match event {
            Event::Began(began) => {
                self.scheduled = Some(began.at);
                self.cached_tokens = began.cached_tokens;
                self.metrics.queued.observe(began.at.saturating_duration_since(self.submitted));
            }
            Event::Token(token) => self.token(token.at),
            _ => (),
        }
    }

    fn token(&mut self, at: Instant) {
        self.n_tokens += 1;
        self.first.get_or_insert(at);
        match self.last.replace(at) {
            None => self.metrics.first_token.observe(at.saturating_duration_since(self.submitted)),
            Some(last) => self.metrics.next_token.observe(at.saturating_duration_since(last)),
        }
    }
}

impl Drop for Timing {
    fn drop(&mut self) {
        let (Some(scheduled), Some(first), Some(last)) = (self.scheduled, self.first, self.last) else {
            return;
        };
        let metrics = &self.metrics;
        let decode = last.saturating_duration_since(first);
        metrics.prefill.observe(first.saturating_duration_since(scheduled));
        metrics.decode.observe(decode);
        metrics.inference.observe(last.saturating_duration_since(scheduled));
        if self.n_tokens > 1 {
            metrics.token_mean.observe(decode / (self.n_tokens as u32 - 1));
        }
        metrics.prompt_tokens.observe_count(self.prompt_tokens);
        metrics.computed_prompt_tokens.observe_count(self.prompt_tokens.saturating_sub(self.cached_tokens));
        metrics.generated_tokens.observe_count(self.n_tokens);
    }
}
