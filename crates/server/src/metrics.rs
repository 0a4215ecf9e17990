//! Counters and histograms, and their text for Prometheus: `ballast_*`, and vLLM's names where the meaning is the same.

mod engine;
mod histogram;
mod http;
mod text;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use model::api::Generate;
use model::output::FinishReason;

use crate::gate::Full;
pub(crate) use engine::lane_name;
pub(crate) use histogram::Histogram;
pub(crate) use http::Http;

/// vLLM's bounds, in seconds.
const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const NEXT_TOKEN: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const WHOLE: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];

/// Of tokens: 1, 2, 5, 10, ... up to the longest contexts.
const TOKENS: &[f64] =
    &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6];
const CHOICES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];

/// How a sequence ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    Finished(FinishReason),
    /// Nobody wanted it any more.
    Aborted,
    Error,
}

/// What a server counts.
pub(crate) struct Metrics {
    /// From the engine's inbox to the first token of a sequence.
    pub(crate) first_token: Histogram,
    /// From each token to the next.
    pub(crate) next_token: Histogram,
    whole: Histogram,
    /// From the engine's inbox to the first step of a sequence.
    pub(crate) queued: Histogram,
    /// From there to its first token.
    pub(crate) prefill: Histogram,
    /// From there to its last.
    pub(crate) decode: Histogram,
    /// Both.
    pub(crate) inference: Histogram,
    /// Mean time of a sequence's tokens after the first.
    pub(crate) token_mean: Histogram,
    pub(crate) prompt_tokens: Histogram,
    pub(crate) generated_tokens: Histogram,
    /// Tokens of prompts that were not found in memory.
    pub(crate) computed_prompt_tokens: Histogram,
    /// Of the longest of a request's sequences.
    pub(crate) longest: Histogram,
    max_tokens: Histogram,
    choices: Histogram,
    overdue: AtomicU64,
    stopped: AtomicU64,
    at_length: AtomicU64,
    aborted: AtomicU64,
    errors: AtomicU64,
    full_of_requests: AtomicU64,
    full_of_tokens: AtomicU64,
    unknown_fields: AtomicU64,
    under_way: AtomicU64,
    responses: Mutex<BTreeMap<u16, u64>>,
    pub(crate) http: Http,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            first_token: Histogram::new(FIRST_TOKEN),
            next_token: Histogram::new(NEXT_TOKEN),
            whole: Histogram::new(WHOLE),
            queued: Histogram::new(WHOLE),
            prefill: Histogram::new(WHOLE),
            decode: Histogram::new(WHOLE),
            inference: Histogram::new(WHOLE),
            token_mean: Histogram::new(NEXT_TOKEN),
            prompt_tokens: Histogram::new(TOKENS),
            generated_tokens: Histogram::new(TOKENS),
            computed_prompt_tokens: Histogram::new(TOKENS),
            longest: Histogram::new(TOKENS),
            max_tokens: Histogram::new(TOKENS),
            choices: Histogram::new(CHOICES),
            overdue: AtomicU64::default(),
            stopped: AtomicU64::default(),
            at_length: AtomicU64::default(),
            aborted: AtomicU64::default(),
            errors: AtomicU64::default(),
            full_of_requests: AtomicU64::default(),
            full_of_tokens: AtomicU64::default(),
            unknown_fields: AtomicU64::default(),
            under_way: AtomicU64::default(),
            responses: Mutex::default(),
            http: Http::default(),
        }
    }
}

impl Metrics {
    pub(crate) fn request_began(&self, request: &Generate) {
        self.under_way.fetch_add(1, Relaxed);
        self.choices.observe_count(request.n as usize);
        let longest = request.prompts.iter().map(Vec::len).max().unwrap_or(0);
        self.max_tokens.observe_count(request.answer_len(longest));
        self.unknown_fields.fetch_add(request.unknown_fields.len() as u64, Relaxed);
    }

    pub(crate) fn request_ended(&self) {
        self.under_way.fetch_sub(1, Relaxed);
    }

    /// Requests that have sequences in the engine.
    pub(crate) fn under_way(&self) -> u64 {
        self.under_way.load(Relaxed)
    }

    pub(crate) fn sequence_ended(&self, outcome: Outcome, took: Duration) {
        let counter = match outcome {
            Outcome::Finished(FinishReason::Stop) => &self.stopped,
            Outcome::Finished(FinishReason::Length) => &self.at_length,
            Outcome::Finished(FinishReason::Abort) | Outcome::Aborted => &self.aborted,
            Outcome::Error => &self.errors,
        };
        counter.fetch_add(1, Relaxed);
        self.whole.observe(took);
    }

    /// A request took longer than it may.
    pub(crate) fn overdue(&self) {
        self.overdue.fetch_add(1, Relaxed);
    }

    /// Histograms of sequences, with what they say.
    fn histograms(&self) -> [(&'static str, &'static str, &Histogram); 14] {
        [
            (
                "time_to_first_token_seconds",
                "From the engine's inbox to a sequence's first token.",
                &self.first_token,
            ),
            ("inter_token_latency_seconds", "From each token to the next.", &self.next_token),
            ("e2e_request_latency_seconds", "From the engine's inbox to the end.", &self.whole),
            ("request_queue_time_seconds", "From the engine's inbox to the first step.", &self.queued),
            ("request_prefill_time_seconds", "From the first step to the first token.", &self.prefill),
            ("request_decode_time_seconds", "From the first token to the last.", &self.decode),
            ("request_inference_time_seconds", "From the first step to the last token.", &self.inference),
            (
                "request_time_per_output_token_seconds",
                "Mean time of a sequence's tokens after the first.",
                &self.token_mean,
            ),
            ("request_prompt_tokens", "Tokens of a sequence's prompt.", &self.prompt_tokens),
            ("request_generation_tokens", "Tokens that a sequence generated.", &self.generated_tokens),
            (
                "request_prefill_kv_computed_tokens",
                "Tokens of a sequence's prompt whose KV was not in memory.",
                &self.computed_prompt_tokens,
            ),
            (
                "request_max_num_generation_tokens",
                "Tokens of the longest of a request's choices.",
                &self.longest,
            ),
            ("request_params_max_tokens", "Tokens that a request allows.", &self.max_tokens),
            ("request_params_n", "Choices that a request wants.", &self.choices),
        ]
    }

    pub(crate) fn rejected(&self, full: Full) {
        let counter = match full {
            Full::Requests => &self.full_of_requests,
            Full::Tokens => &self.full_of_tokens,
        };
        counter.fetch_add(1, Relaxed);
    }

    pub(crate) fn responded(&self, status: u16) {
        let mut responses = self.responses.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *responses.entry(status).or_default() += 1;
    }
}
