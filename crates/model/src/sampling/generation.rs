//! The publisher's defaults for sampling.

use super::{Overrides, ParamError, SamplingParams};

/// What is used of `generation_config.json`, which [`read_generation`](crate::config::read_generation) reads.
/// As in vLLM `do_sample` is not: a temperature decides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Temperature, top p, top k, min p, penalties and the most tokens to generate, where a request does not say.
    pub overrides: Overrides,
    /// Tokens that end a text.
    pub eos: Option<Vec<u32>>,
}

impl GenerationConfig {
    /// Whether its numbers are within their ranges: the publisher's mistakes are told as such, and not as a request's.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check(&self) -> Result<(), ParamError> {
        let mut params = SamplingParams::default();
        params.apply(&self.overrides)?;
        params.check_numbers()
    }
}
