//! The publisher's defaults for sampling.

use super::{Overrides, ParamError, SamplingParams};

/// What is used of `generation_config.json`, which [`read_generation`](crate::config::read_generation) reads.
/// As in vLLM `do_sample` is not: a temperature decides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// See [`Overrides`].
    pub temperature: Option<f32>,
    /// See [`Overrides`].
    pub top_p: Option<f32>,
    /// See [`Overrides`].
    pub top_k: Option<i64>,
    /// See [`Overrides`].
    pub min_p: Option<f32>,
    /// See [`Overrides`].
    pub repetition_penalty: Option<f32>,
    /// See [`Overrides`].
    pub presence_penalty: Option<f32>,
    /// See [`Overrides`].
    pub frequency_penalty: Option<f32>,
    /// Most tokens to generate where a request does not say.
    pub max_new_tokens: Option<u32>,
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
        params.apply(&self.overrides())?;
        params.check_numbers()
    }

    pub(super) fn overrides(&self) -> Overrides {
        Overrides {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            max_tokens: self.max_new_tokens,
            ..Overrides::default()
        }
    }
}
