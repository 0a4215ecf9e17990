//! Schedulers: what to compute next, from what came and what is done.

pub mod block;
mod fcfs;

pub use block::{BlockConfig, Delegate, Schedule};
pub use fcfs::{Fcfs, FcfsConfig, LimitError, PREEMPTIONS, Preempt, Preempted, ReadOrCompute};

use serde::{Deserialize, Serialize};
use spec::{Done, Nanos, Request, SeqId, Step, Tokens};

/// What a scheduler wants done next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Next {
    /// Start this step. It contains chunks, moves, or another layout than the step before.
    Run(Step),
    /// This sequence will not be served.
    Refuse(SeqId, Why),
    /// Nothing until an event comes, or until this time.
    Wait(Option<Nanos>),
}

/// Why a sequence is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Why {
    /// As many wait as may.
    #[error("{limit} requests wait already, which is the limit: try again later, or raise the queue's limit")]
    QueueFull {
        /// How many may wait.
        limit: usize,
    },
    /// It would not fit even alone.
    #[error(
        "prompt and new tokens need {needed} blocks of KV, and there are {capacity}: \
         shorten the prompt, ask for fewer tokens, or allow more memory"
    )]
    NeverFits {
        /// Blocks that it has at a time, at the most.
        needed: usize,
        /// Blocks that there are.
        capacity: usize,
    },
    /// Nothing to compute or nothing to generate.
    #[error("a request needs at least one prompt token and one new token, found {prompt} and {max_new}")]
    Empty {
        /// Tokens of the prompt.
        prompt: u32,
        /// Tokens to generate.
        max_new: u32,
    },
}

impl Why {
    /// Refuses a request with nothing to do.
    pub fn of_empty(request: &Request) -> Option<Why> {
        let empty = request.prompt == Tokens::ZERO || request.max_new == Tokens::ZERO;
        empty.then_some(Why::Empty { prompt: request.prompt.0, max_new: request.max_new.0 })
    }
}

/// Decides. It is told of every event before it is asked what to do, and all times are the world's.
pub trait Scheduler {
    /// A request came. Its name is new.
    fn arrive(&mut self, now: Nanos, request: Request);

    /// A sequence is no longer wanted. Unknown names are tolerated: it may have finished meanwhile.
    fn cancel(&mut self, now: Nanos, seq: SeqId);

    /// What to do now. Asked again until it answers `Wait`.
    fn next(&mut self, now: Nanos) -> Next;

    /// A step that it asked for is done.
    fn complete(&mut self, now: Nanos, done: &Done);
}
