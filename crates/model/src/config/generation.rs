//! `generation_config.json`: how the publisher samples.

use crate::error::Result;
use crate::json::Fields;

/// What a publisher sets; absent fields are the reader's choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Whether to sample at all (transformers takes the likeliest token where this is absent).
    pub do_sample: Option<bool>,
    /// Divisor of the logits.
    pub temperature: Option<f64>,
    /// Number of likeliest tokens kept; 0 keeps all.
    pub top_k: Option<u32>,
    /// Share of probability kept.
    pub top_p: Option<f64>,
    /// Least probability kept, relative to the likeliest token's.
    pub min_p: Option<f64>,
    /// Divisor of the logits of tokens that occurred.
    pub repetition_penalty: Option<f64>,
    /// Taken off the logits of tokens that occurred.
    pub presence_penalty: Option<f64>,
    /// Taken off the logits for each time that a token occurred.
    pub frequency_penalty: Option<f64>,
    /// Most tokens to generate.
    pub max_new_tokens: Option<usize>,
    /// Token that begins a text.
    pub bos: Option<u32>,
    /// Tokens that end a text.
    pub eos: Option<Vec<u32>>,
}

pub(super) fn parse(text: &str, file: &str) -> Result<GenerationDefaults> {
    let value = super::parse(text, file)?;
    let fields = Fields::of(&value, file)?;
    let top_k = fields.number("top_k")?.map(|k| if k < 1.0 { 0 } else { k as u32 });
    Ok(GenerationDefaults {
        do_sample: fields.flag("do_sample")?,
        temperature: fields.number("temperature")?,
        top_k,
        top_p: fields.number("top_p")?,
        min_p: fields.number("min_p")?,
        repetition_penalty: fields.number("repetition_penalty")?,
        presence_penalty: fields.number("presence_penalty")?,
        frequency_penalty: fields.number("frequency_penalty")?,
        max_new_tokens: fields.size("max_new_tokens")?,
        bos: fields.tokens("bos_token_id")?.and_then(|ids| ids.first().copied()),
        eos: fields.tokens("eos_token_id")?,
    })
}
