//! A run as a list of entries: what the scheduler was told, and what it answered. Replayed in order through the same
//! scheduler, it must answer the same.

use crate::sched::{FcfsConfig, Next, Scheduler};
use serde::{Deserialize, Serialize};
use spec::{Done, Nanos, Request, SeqId};

/// One line of a log. The first is `Begin`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// The scheduler that is recorded.
    Begin {
        /// Version of this format.
        version: u32,
        /// Its limits.
        config: FcfsConfig,
    },
    /// It was told of a request.
    Arrive {
        /// When.
        at: Nanos,
        /// Which.
        request: Request,
    },
    /// It was told that a sequence is not wanted.
    Cancel {
        /// When.
        at: Nanos,
        /// Which.
        seq: SeqId,
    },
    /// It was told that a step is done.
    Done {
        /// When.
        at: Nanos,
        /// Which, and what came of it.
        done: Done,
    },
    /// It was asked what to do.
    Next {
        /// When.
        at: Nanos,
        /// What it answered.
        answer: Next,
    },
}

impl Entry {
    /// Version of the format.
    pub const VERSION: u32 = 1;
}

/// A scheduler that hands every call and answer to `sink` (a file, in the engine).
pub struct Recorded<S, F> {
    scheduler: S,
    sink: F,
}

impl<S, F: FnMut(&Entry)> Recorded<S, F> {
    /// Records `scheduler`, which has `config`, from its first call on.
    pub fn new(scheduler: S, config: &FcfsConfig, mut sink: F) -> Self {
        sink(&Entry::Begin { version: Entry::VERSION, config: config.clone() });
        Self { scheduler, sink }
    }
}

impl<S: Scheduler, F: FnMut(&Entry)> Scheduler for Recorded<S, F> {
    fn arrive(&mut self, now: Nanos, request: Request) {
        (self.sink)(&Entry::Arrive { at: now, request: request.clone() });
        self.scheduler.arrive(now, request);
    }

    fn cancel(&mut self, now: Nanos, seq: SeqId) {
        (self.sink)(&Entry::Cancel { at: now, seq });
        self.scheduler.cancel(now, seq);
    }

    fn next(&mut self, now: Nanos) -> Next {
        let answer = self.scheduler.next(now);
        (self.sink)(&Entry::Next { at: now, answer: answer.clone() });
        answer
    }

    fn complete(&mut self, now: Nanos, done: &Done) {
        (self.sink)(&Entry::Done { at: now, done: done.clone() });
        self.scheduler.complete(now, done);
    }
}
