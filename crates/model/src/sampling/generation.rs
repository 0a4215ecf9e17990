//! `generation_config.json`: the publisher's defaults for sampling, and the ids that end a text.

use serde::Deserialize;

use super::{Overrides, ParamError};

/// What is used of `generation_config.json`. As in vLLM `do_sample` is not: a temperature decides.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct GenerationConfig {
    /// See [`Overrides`].
    #[serde(default)]
    pub temperature: Option<f32>,
    /// See [`Overrides`].
    #[serde(default)]
    pub top_p: Option<f32>,
    /// See [`Overrides`].
    #[serde(default)]
    pub top_k: Option<i64>,
    /// See [`Overrides`].
    #[serde(default)]
    pub min_p: Option<f32>,
    /// See [`Overrides`].
    #[serde(default)]
    pub repetition_penalty: Option<f32>,
    /// See [`Overrides`].
    #[serde(default)]
    pub presence_penalty: Option<f32>,
    /// See [`Overrides`].
    #[serde(default)]
    pub frequency_penalty: Option<f32>,
    /// Most tokens to generate where a request does not say.
    #[serde(default)]
    pub max_new_tokens: Option<u32>,
    /// End of sequence: one id or several.
    #[serde(default)]
    pub eos_token_id: Option<Ids>,
}

/// One id or a list.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Ids {
    /// `2`
    One(u32),
    /// `[2, 32000]`
    Many(Vec<u32>),
}

impl Ids {
    /// The ids.
    pub fn as_slice(&self) -> &[u32] {
        match self {
            Ids::One(id) => std::slice::from_ref(id),
            Ids::Many(ids) => ids,
        }
    }
}

impl GenerationConfig {
    /// Parses `generation_config.json`.
    pub fn parse(json: &[u8]) -> Result<Self, ParamError> {
        serde_json::from_slice(json)
            .map_err(|e| ParamError::new("generation_config.json", "sampling defaults", e))
    }

    /// The ids that end a text; empty if the file does not say.
    pub fn eos_token_ids(&self) -> &[u32] {
        self.eos_token_id.as_ref().map_or(&[], Ids::as_slice)
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
