//! Whoever counts what becomes of a job's requests, as a server does.

use model::api::ApiError;
use model::output::FinishReason;

use crate::front::request::{Event, Failure};

/// Told of one request of a job, until its last sequence has ended; where it is dropped before that, the request was given up.
pub trait Hears {
    /// What is told of every event of one of its sequences, on the threads that compute. `prompt_tokens`: of that sequence.
    fn sequence(&mut self, prompt_tokens: usize) -> Box<dyn FnMut(&Event) + Send>;
    /// A sequence of so many tokens ended by itself.
    fn finished(&mut self, reason: FinishReason, n_tokens: usize);
    /// A sequence ended otherwise: what the answer says of that.
    fn failed(&mut self, why: Failure) -> ApiError;
}

/// Counts nothing.
pub(super) struct Deaf;

impl Hears for Deaf {
    fn sequence(&mut self, _: usize) -> Box<dyn FnMut(&Event) + Send> {
        Box::new(|_| ())
    }

    fn finished(&mut self, _: FinishReason, _: usize) {}

    fn failed(&mut self, why: Failure) -> ApiError {
        why.into()
    }
}
