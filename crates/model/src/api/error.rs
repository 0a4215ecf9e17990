//! Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

use serde_json::{Value, json};

use crate::sampling::ParamError;
use crate::template::TemplateError;
use crate::tokenizer::TokenizerError;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// `type`.
    pub kind: &'static str,
    /// What is wrong, for people.
    pub message: String,
    /// The field that is wrong.
    pub param: Option<String>,
    /// What is wrong, for programs; always a string or null (integers break clients).
    pub code: Option<&'static str>,
}

/// Most bytes of a message: what clients wrote is repeated in it, and errors are kept longer than requests.
const MESSAGE_BYTES: usize = 8 << 10;

impl ApiError {
    /// 400: the request is wrong in `param`. A message that is longer than anybody reads is cut.
    pub fn invalid(param: &str, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MESSAGE_BYTES {
            let end = (0..=MESSAGE_BYTES).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
            message.truncate(end);
            message.push_str("...");
            message.shrink_to_fit();
        }
        ApiError {
            status: 400,
            kind: "invalid_request_error",
            message,
            param: (!param.is_empty()).then(|| param.to_owned()),
            code: None,
        }
    }

    /// Whether the same request may be taken a moment later.
    pub fn is_overload(&self) -> bool {
        self.code == Some("server_overloaded")
    }

    /// 400: something that other servers offer and this one does not.
    pub fn not_supported(param: &str, what: &str) -> Self {
        let code = Some("not_supported");
        ApiError { code, ..ApiError::invalid(param, format!("{param}: {what} is not supported")) }
    }

    /// 404: no such model.
    pub fn model_not_found(name: &str, served: &[String]) -> Self {
        let message = format!("model `{name}` is not served; served: {}", served.join(", "));
        let code = Some("model_not_found");
        ApiError { status: 404, code, ..ApiError::invalid("model", message) }
    }

    /// 400: what was sent is not JSON. The payload is not repeated.
    pub fn json(message: String) -> Self {
        ApiError { code: Some("json_parse_error"), ..ApiError::invalid("", message) }
    }

    /// 400: prompt and answer do not fit the context. The fields that say what is in the prompt, and how long the answer
    /// may be; the second is named if less of it would do.
    pub fn too_long([of_prompt, of_answer]: [&str; 2], prompt: usize, answer: usize, context: usize) -> Self {
        let less_would_do = answer > 0 && prompt < context;
        let param = if less_would_do { of_answer } else { of_prompt };
        let message = format!(
            "this model's maximum context length is {context} tokens; the prompt has {prompt}{}; shorten {of_prompt}{}",
            match answer {
                0 if prompt == context => ", which leaves no place for another".to_owned(),
                0 => String::new(),
                _ => format!(" and {answer} are asked for"),
            },
            if less_would_do { format!(" or lower {of_answer}") } else { String::new() },
        );
        ApiError { code: Some("context_length_exceeded"), ..ApiError::invalid(param, message) }
    }

    /// The same of a text of which it was not even counted how long it is.
    pub fn far_too_long(of_prompt: &str, least: usize, context: usize) -> Self {
        let message = format!(
            "this model's maximum context length is {context} tokens; the prompt has at least {least}; shorten {of_prompt}"
        );
        ApiError { code: Some("context_length_exceeded"), ..ApiError::invalid(of_prompt, message) }
    }

    /// 500: the fault is ours; details go to the log, not to the client.
    pub fn internal() -> Self {
        ApiError { status: 500, kind: "server_error", ..ApiError::invalid("", "internal error") }
    }

    /// The response body.
    pub fn body(&self) -> Value {
        json!({"error": self.object()})
    }

    /// The response body of `/v1/messages`, in Anthropic's words. `request`: its id.
    pub fn message_body(&self, request: &str) -> Value {
        let kind = match self.status {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            408 => "timeout_error",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        };
        json!({"type": "error", "error": {"type": kind, "message": self.message}, "request_id": request})
    }

    /// The object inside `error`.
    pub fn object(&self) -> Value {
        json!({"message": self.message, "type": self.kind, "param": self.param, "code": self.code})
    }
}

impl From<ParamError> for ApiError {
    fn from(error: ParamError) -> Self {
        ApiError::invalid(error.param, error.to_string())
    }
}

impl From<TemplateError> for ApiError {
    fn from(error: TemplateError) -> Self {
        ApiError::invalid("messages", error.to_string())
    }
}

impl From<TokenizerError> for ApiError {
    fn from(error: TokenizerError) -> Self {
        let invalid = ApiError::invalid("prompt", error.to_string());
        match error {
            // No context is that long.
            TokenizerError::TooLong { .. } => ApiError { code: Some("context_length_exceeded"), ..invalid },
            _ => invalid,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_wrote_is_not_repeated_for_ever() {
        let error = ApiError::model_not_found(&"é".repeat(1 << 20), &[]);
        assert!(error.message.starts_with("model `é") && error.message.ends_with("é..."));
        assert!(error.message.len() <= MESSAGE_BYTES + 3 && error.message.capacity() < 2 * MESSAGE_BYTES);
        assert_eq!(ApiError::invalid("n", "é").message, "é");
    }
}
