//! The tokens that begin and end a text, where a configuration does not say.

use super::Family;
use crate::error::Result;
use crate::json::Fields;

impl Family {
    /// Some families know their tokens; a field that says `null` says that there is none.
    pub(super) fn bos(self, fields: &Fields) -> Result<Option<u32>> {
        let known = match self {
            Family::Llama
            | Family::Mistral
            | Family::Ministral3
            | Family::Phi3
            | Family::Granite
            | Family::Granite4
            | Family::Ernie45
            | Family::Phi => Some(1),
            Family::SeedOss | Family::Exaone4 | Family::NeoX | Family::StableLm => Some(0),
            Family::Cohere | Family::Cohere2 => Some(5),
            Family::StarCoder2 => Some(50_256),
            Family::Opt | Family::Gemma | Family::Gemma2 | Family::Gemma3 | Family::Nemotron => Some(2),
            Family::SmolLm3 | Family::Arcee => Some(128_000),
            Family::Qwen2Vl => Some(151_643),
            Family::Qwen2
            | Family::Qwen3
            | Family::Qwen3Vl
            | Family::Olmo2
            | Family::Olmo3
            | Family::Glm
            | Family::Glm4 => None,
        };
        let default = known.filter(|_| !fields.has_null("bos_token_id"));
        Ok(fields.tokens("bos_token_id")?.map_or(default, |ids| ids.first().copied()))
    }

    pub(super) fn ends(self, fields: &Fields) -> Result<Vec<u32>> {
        let known = match self {
            Family::Llama
            | Family::Mistral
            | Family::Ministral3
            | Family::Granite
            | Family::Granite4
            | Family::SeedOss
            | Family::Exaone4
            | Family::Ernie45
            | Family::Phi
            | Family::NeoX
            | Family::Opt => Some(2),
            // Where there is null, too.
            Family::Glm | Family::Glm4 => {
                return Ok(fields.tokens("eos_token_id")?.unwrap_or_else(|| vec![151_329, 151_336, 151_338]));
            }
            Family::Gemma | Family::Gemma2 | Family::Gemma3 => Some(1),
            Family::Phi3 => Some(32_000),
            Family::Cohere | Family::Cohere2 => Some(255_001),
            Family::StarCoder2 => Some(50_256),
            Family::StableLm => Some(0),
            Family::SmolLm3 | Family::Arcee => Some(128_001),
            Family::Nemotron => Some(3),
            Family::Olmo2 | Family::Olmo3 => Some(50_279),
            Family::Qwen2Vl => Some(151_645),
            Family::Qwen2 | Family::Qwen3 | Family::Qwen3Vl => None,
        };
        let default = known.filter(|_| !fields.has_null("eos_token_id"));
        Ok(fields.tokens("eos_token_id")?.unwrap_or_else(|| Vec::from_iter(default)))
    }
}
