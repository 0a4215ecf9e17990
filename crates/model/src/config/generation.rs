//! `generation_config.json`: how the publisher samples, and where a text ends.

use crate::error::{Error, Result};
use crate::json::{self, Fields};
use crate::sampling::{GenerationConfig, Overrides};

pub(super) fn parse(text: &str, file: &str) -> Result<GenerationConfig> {
    let value = json::parse(text, file)?;
    let fields = Fields::of(&value, file)?;
    let number = |name: &str| fields.number(name).map(|found| found.map(|x| x as f32));
    let overrides = Overrides {
        temperature: number("temperature")?,
        top_p: number("top_p")?,
        top_k: fields.number("top_k")?.map(|k| k as i64),
        min_p: number("min_p")?,
        repetition_penalty: number("repetition_penalty")?,
        presence_penalty: number("presence_penalty")?,
        frequency_penalty: number("frequency_penalty")?,
        max_tokens: fields.count("max_new_tokens")?.map(|n| u32::try_from(n).unwrap_or(u32::MAX)),
        ..Overrides::default()
    };
    let config = GenerationConfig { overrides, eos: fields.tokens("eos_token_id")? };
    config
        .check()
        .map_err(|e| Error::malformed(file, format!("`{}` is {}", e.param, e.found), e.expected))?;
    Ok(config)
}
