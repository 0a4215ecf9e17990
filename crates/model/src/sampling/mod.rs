//! From logits to a token: parameters, their ranges, and the sampler of one sequence.

mod draw;
mod error;
mod generation;
mod grammar;
mod logprobs;
mod params;
mod row;
mod sampler;
#[cfg(test)]
mod tests;

pub use draw::Draws;
pub use error::{ParamError, SampleError};
pub use generation::GenerationConfig;
pub use grammar::{Grammar, Guide, Language};
pub use logprobs::{TokenLogprobs, logprobs_of};
pub use params::{Limits, MAX_BAD_WORDS, MAX_LOGPROBS, MAX_STOP_IDS, MAX_STOPS, Overrides, SamplingParams};
pub use row::argmax;
pub use sampler::{Sampled, Sampler, scratch_bytes_at_most};
