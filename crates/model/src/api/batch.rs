//! OpenAI's batch lines: `{"custom_id", "method", "url", "body"}` in, responses out.

use serde_json::{Value, json};

use super::{ApiError, Context, Endpoint, Generate, chat, completion};

/// One line of input.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchLine {
    /// The client's name for the line.
    pub custom_id: String,
    /// Where the body would be posted.
    pub endpoint: Endpoint,
    /// The request.
    pub body: Value,
}

impl BatchLine {
    /// Reads a line. What is wrong with the body is found by [`BatchLine::generate`].
    pub fn parse(line: &str) -> Result<Self, ApiError> {
        let value: Value = serde_json::from_str(line)
            .map_err(|e| ApiError::json(format!("the line is not valid JSON (column {})", e.column())))?;
        if !value.is_object() {
            return Err(ApiError::invalid("", "the line is not a JSON object"));
        }
        let text = |name: &str| {
            let missing = || ApiError::invalid(name, format!("{name}: expected a string"));
            value.get(name).and_then(Value::as_str).ok_or_else(missing)
        };
        let custom_id = text("custom_id")?.to_owned();
        if text("method")? != "POST" {
            return Err(ApiError::invalid("method", "method: expected POST"));
        }
        let endpoint = match text("url")? {
            "/v1/completions" => Endpoint::Completions,
            "/v1/chat/completions" => Endpoint::Chat,
            other => {
                let message = format!("url: `{other}`; expected /v1/completions or /v1/chat/completions");
                return Err(ApiError::invalid("url", message));
            }
        };
        match value.get("body") {
            Some(body @ Value::Object(_)) => Ok(BatchLine { custom_id, endpoint, body: body.clone() }),
            _ => Err(ApiError::invalid("body", "body: expected an object")),
        }
    }

    /// Reads the request in the line.
    pub fn generate(&self, context: &Context) -> Result<Generate, ApiError> {
        match self.endpoint {
            Endpoint::Completions => completion(&self.body, context),
            Endpoint::Chat => chat(&self.body, context),
        }
    }
}

/// A line of output. `id`: unique in the batch.
pub fn batch_output(id: &str, custom_id: &str, outcome: &Result<Value, ApiError>) -> Value {
    let (status, body, error) = match outcome {
        Ok(body) => (200, body.clone(), Value::Null),
        Err(error) => (error.status, error.body(), error.object()),
    };
    json!({
        "id": format!("batch_req_{id}"),
        "custom_id": custom_id,
        "response": {"status_code": status, "request_id": format!("batch_{id}"), "body": body},
        "error": error,
    })
}
