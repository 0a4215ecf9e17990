//! `/tokenize` and `/detokenize`, in vLLM's shapes.

use serde_json::{Value, json};

use super::fields::Fields;
use super::{ApiError, Context, chat, check, schema};
use crate::tokenizer::Special;

/// Answers `{"prompt"}` (or `{"messages"}`, through the template) with its token ids.
///
/// # Errors
/// A field that is wrong, an unknown model, a text that cannot be cut.
pub fn tokenize(body: &Value, context: &Context) -> Result<Value, ApiError> {
    let mut fields = Fields::of(body)?;
    super::request::model(&mut fields, context)?;
    let strings = fields.flag("return_token_strs")?.unwrap_or(false);
    let special = fields.flag("add_special_tokens")?;
    let text = fields.text("prompt")?;
    let text = text.map_or_else(|| fields.text("content"), |text| Ok(Some(text)))?;
    let (text, special) = match text {
        Some(text) => (text, special.unwrap_or(true)),
        None if body.get("messages").is_some() => {
            (chat::prompt(&mut fields, context)?, special.unwrap_or(false))
        }
        None => return Err(ApiError::invalid("prompt", "prompt or messages is missing")),
    };
    let special = if special { Special::With } else { Special::Without };
    let tokens = context.tokenizer.encode(&text, special)?;
    check::form(&schema::TOKENIZE, body)?;
    let strings = strings.then(|| tokens.iter().map(|&id| context.tokenizer.token(id)).collect::<Vec<_>>());
    Ok(json!({
        "count": tokens.len(),
        "max_model_len": context.context_len,
        "tokens": tokens,
        "token_strs": strings,
    }))
}

/// Answers `{"tokens"}` with their text, special tokens included.
///
/// # Errors
/// A field that is wrong, an unknown model, an id outside the vocabulary.
pub fn detokenize(body: &Value, context: &Context) -> Result<Value, ApiError> {
    let mut fields = Fields::of(body)?;
    super::request::model(&mut fields, context)?;
    let tokens = fields.ids("tokens")?.ok_or_else(|| ApiError::invalid("tokens", "tokens is missing"))?;
    if let Some(id) = tokens.iter().find(|&&id| id as usize >= context.vocab_size) {
        let message = format!("tokens: token id {id}; ids are below {}", context.vocab_size);
        return Err(ApiError::invalid("tokens", message));
    }
    check::form(&schema::DETOKENIZE, body)?;
    Ok(json!({"prompt": context.tokenizer.decode(&tokens, Special::With)}))
}
