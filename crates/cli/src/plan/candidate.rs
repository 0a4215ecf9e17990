//! One way to run a job, and what it comes to in virtual time.

use engine::{Blocks, EngineConfig, Expected, Offload, Outline, WeightShare};
use policy::sched::{Delegate, Schedule};
use sim::Offline;
use spec::{Placement, Split};

use crate::resolve::kv_tokens;

/// Requests of one length, handed over at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) requests: usize,
    pub(crate) input: usize,
    pub(crate) output: usize,
    pub(crate) lengths: Lengths,
}

/// How much is known of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lengths {
    /// No others come: nothing is kept for longer ones.
    Exact,
    /// They are likely: others may be as long as the settings allow, and KV is kept for one of these at the least.
    Likely,
    /// As likely, with so much KV in all, in tokens.
    LikelyWithin(usize),
}

/// Tokens that each request generates in the rehearsal of a job that is a guess.
const SAMPLE: usize = 32;

impl Job {
    /// What is rehearsed of it: all that is known, and of a guess requests as many times shorter as make them short. A command
    /// that plans by itself is not to be kept waiting by thousands of steps that nobody knows.
    pub(crate) fn sample(self) -> Job {
        let times = match self.lengths {
            Lengths::Exact => 1,
            Lengths::Likely | Lengths::LikelyWithin(_) => self.output.div_ceil(SAMPLE).max(1),
        };
        Job { input: self.input.div_ceil(times), output: self.output.div_ceil(times), ..self }
    }

    /// The longest sequence.
    fn longest(self, base: &EngineConfig) -> Option<usize> {
        match self.lengths {
            Lengths::Exact => Some(self.input + self.output),
            Lengths::Likely | Lengths::LikelyWithin(_) => base.max_model_len,
        }
    }

    /// KV of so many sequences.
    fn kv_tokens(self, seqs: usize, base: &EngineConfig, longest: usize) -> usize {
        let likely = kv_tokens(seqs, self.input + self.output);
        match self.lengths {
            Lengths::Exact => likely,
            Lengths::Likely => likely.max(base.max_model_len.unwrap_or(longest).min(longest)),
            Lengths::LikelyWithin(tokens) => tokens,
        }
    }
}

/// How steps are made of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) schedule: Schedule,
    /// Sequences of a batch.
    pub(crate) batch_size: usize,
    /// Batches of a step.
    pub(crate) num_batches: usize,
    /// Sequences at once, if the batches have room for more.
    pub(crate) at_most: usize,
    /// Positions of a batch.
    pub(crate) step_tokens: usize,
    /// Where decodes attend whose KV lives away from the device.
    pub(crate) delegate: Delegate,
    pub(crate) homes: Homes,
}

/// What lives where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Homes {
    pub(crate) weights: WeightShare,
    pub(crate) kv: Split,
    pub(crate) hidden: Split,
}

impl Homes {
    /// As flags say; where they say nothing of weights, these come after KV.
    pub(crate) fn of(base: &EngineConfig) -> Homes {
        let weights = match base.offload.share {
            WeightShare::Fitting => WeightShare::AfterKv,
            told => told,
        };
        Homes { weights, kv: base.blocks.kv, hidden: base.blocks.hidden }
    }

    pub(crate) fn exactly(placement: Placement) -> Homes {
        let Placement { weights, kv, hidden } = placement;
        Homes { weights: WeightShare::Exactly(weights), kv, hidden }
    }

    /// Whether KV and activations stay on the device.
    pub(crate) fn stay(&self) -> bool {
        (self.kv, self.hidden) == (Split::RESIDENT, Split::RESIDENT)
    }
}

/// A candidate that fits, and what it comes to.
#[derive(Clone, Debug)]
pub(crate) struct Scored {
    pub(crate) candidate: Candidate,
    pub(crate) outline: Outline,
    pub(crate) run: Offline,
}

impl Candidate {
    /// Sequences at once.
    pub(crate) fn seqs(&self, job: Job) -> usize {
        (self.batch_size * self.num_batches).min(self.at_most).min(job.requests)
    }

    /// The engine that runs the job so.
    ///
    /// `longest`: what the model can read.
    pub(crate) fn config(&self, base: &EngineConfig, job: Job, longest: usize) -> EngineConfig {
        let seqs = self.seqs(job);
        EngineConfig {
            max_num_seqs: seqs,
            max_num_batched_tokens: self.step_tokens,
            max_model_len: job.longest(base),
            kv_tokens: Some(job.kv_tokens(seqs, base, longest)),
            offload: Offload { share: self.homes.weights, ..base.offload.clone() },
            blocks: Blocks {
                kv: self.homes.kv,
                hidden: self.homes.hidden,
                schedule: Some(self.schedule),
                batch_tokens: None,
                num_batches: Some(self.num_batches),
                batch_size: Some(self.batch_size),
                expected: Some(Expected {
                    requests: job.requests,
                    prompt: job.input,
                    output: Some(job.output),
                }),
                delegate: self.delegate,
                ..base.blocks
            },
            ..base.clone()
        }
    }
}
