//! What a run was like for those who asked.

use policy::sched::Why;
use serde::Serialize;
use spec::{Lane, Nanos, Op, SeqId, Tokens};
use std::collections::BTreeMap;

/// What happened to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// When it came.
    pub arrival: Nanos,
    /// Tokens of its prompt.
    pub prompt: Tokens,
    /// When the first step began that it was in.
    pub began: Option<Nanos>,
    /// When its first token came.
    pub first: Option<Nanos>,
    /// When its newest token came.
    pub newest: Option<Nanos>,
    /// Its tokens so far.
    pub generated: Tokens,
    /// How it ended.
    pub end: End,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It has not.
    Open,
    /// With its last token.
    Finished,
    /// Its client went away.
    Cancelled,
    /// It was not served.
    Refused(Why),
}

/// All requests of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// By name.
    pub requests: BTreeMap<SeqId, Tally>,
    /// Steps that ran.
    pub steps: u64,
    /// Positions that they computed, those computed again included.
    pub computed: u64,
    /// How long each lane worked, by [`Lane::index`]; lanes of several ranks together.
    pub busy: [Nanos; Lane::COUNT],
    /// How long each kind of op took in all, by [`Op::kind`].
    pub ops: [Nanos; Op::KINDS.len()],
}

impl Metrics {
    /// A request came.
    pub fn arrive(&mut self, seq: SeqId, arrival: Nanos, prompt: Tokens) {
        let tally = Tally {
            arrival,
            prompt,
            began: None,
            first: None,
            newest: None,
            generated: Tokens::ZERO,
            end: End::Open,
        };
        self.requests.insert(seq, tally);
    }

    /// A request is in a step that begins.
    pub fn begin(&mut self, seq: SeqId, now: Nanos) {
        if let Some(tally) = self.requests.get_mut(&seq) {
            tally.began.get_or_insert(now);
        }
    }

    /// A token came.
    pub fn token(&mut self, seq: SeqId, now: Nanos) {
        let Some(tally) = self.requests.get_mut(&seq) else { return };
        tally.first = tally.first.or(Some(now));
        tally.newest = Some(now);
        tally.generated += Tokens(1);
    }

    /// A request ended, unless it had before.
    pub fn end(&mut self, seq: SeqId, end: End) {
        if let Some(tally) = self.requests.get_mut(&seq).filter(|tally| tally.end == End::Open) {
            tally.end = end;
        }
    }

    /// Whether it goes on.
    pub fn is_open(&self, seq: SeqId) -> bool {
        self.requests.get(&seq).is_some_and(|tally| tally.end == End::Open)
    }

    /// The whole run in a few figures.
    pub fn summary(&self) -> Summary {
        let all = self.requests.values();
        let count = |end: fn(&End) -> bool| all.clone().filter(|tally| end(&tally.end)).count();
        let begin = all.clone().map(|tally| tally.arrival).min().unwrap_or_default();
        let end = all.clone().filter_map(|tally| tally.newest).max().unwrap_or(begin);
        let generated: u64 = all.clone().map(|tally| u64::from(tally.generated.0)).sum();
        let makespan_s = (end - begin).as_secs();
        Summary {
            finished: count(|end| *end == End::Finished),
            cancelled: count(|end| *end == End::Cancelled),
            refused: count(|end| matches!(end, End::Refused(_))),
            open: count(|end| *end == End::Open),
            generated_tokens: generated,
            makespan_s,
            generated_tokens_per_s: if makespan_s > 0.0 { generated as f64 / makespan_s } else { 0.0 },
            ttft_s: Quantiles::of(all.clone().filter_map(Tally::ttft_s).collect()),
            tpot_s: Quantiles::of(all.filter_map(Tally::tpot_s).collect()),
            steps: self.steps,
            computed_tokens: self.computed,
        }
    }
}

impl Tally {
    /// Time to the first token, in seconds.
    pub fn ttft_s(&self) -> Option<f64> {
        Some((self.first? - self.arrival).as_secs())
    }

    /// Time per token after the first, in seconds.
    pub fn tpot_s(&self) -> Option<f64> {
        let after = self.generated.0.checked_sub(1).filter(|n| *n > 0)?;
        Some((self.newest? - self.first?).as_secs() / f64::from(after))
    }
}

/// Middle and tail of a distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Mean.
    pub mean: f64,
    /// Half are below.
    pub p50: f64,
    /// Nine of ten are below.
    pub p90: f64,
    /// 99 of 100 are below.
    pub p99: f64,
}

impl Quantiles {
    /// Of some values (nearest rank); zeros where there are none.
    pub fn of(mut values: Vec<f64>) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        values.sort_by(f64::total_cmp);
        let rank = |q: f64| values[((values.len() as f64 * q).ceil() as usize).clamp(1, values.len()) - 1];
        Self {
            mean: values.iter().sum::<f64>() / values.len() as f64,
            p50: rank(0.5),
            p90: rank(0.9),
            p99: rank(0.99),
        }
    }
}

/// A run in a few figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Requests with all their tokens.
    pub finished: usize,
    /// Requests whose client went away.
    pub cancelled: usize,
    /// Requests not served.
    pub refused: usize,
    /// Requests without an end.
    pub open: usize,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// From the first arrival to the last token.
    pub makespan_s: f64,
    /// Tokens generated over the makespan.
    pub generated_tokens_per_s: f64,
    /// Time to first token.
    pub ttft_s: Quantiles,
    /// Time per token after the first.
    pub tpot_s: Quantiles,
    /// Steps that ran.
    pub steps: u64,
    /// Positions computed, those computed again included.
    pub computed_tokens: u64,
}
