//! OpenAI's batch lines: `{"custom_id", "method", "url", "body"}` in, responses out.

use serde_json::{Value, json};

use super::text::Text;
use super::{ApiError, Context, Endpoint, Generate};

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

/// What stands before a line's id in that of its answer.
pub const ANSWER_ID: &str = "batch_req_";

impl BatchLine {
    /// Reads a line. What is wrong with the body is found by [`BatchLine::generate`].
    pub fn parse(line: &str) -> Result<Self, ApiError> {
        let mut value: Value = serde_json::from_str(line)
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
        let url = text("url")?;
        let wrong = |why| ApiError::invalid("url", format!("url: `{url}`; {why}"));
        let endpoint = Endpoint::of_batch(url).map_err(wrong)?;
        match value.get_mut("body").map(Value::take) {
            Some(body @ Value::Object(_)) => Ok(BatchLine { custom_id, endpoint, body }),
            _ => Err(ApiError::invalid("body", "body: expected an object")),
        }
    }

    /// Reads the request in the line.
    pub fn generate(&self, context: &Context) -> Result<Generate, ApiError> {
        self.endpoint.read(&self.body, context)
    }
}

/// A line of output, without its end. `id`: unique in the batch; a body is JSON.
pub fn batch_output(id: &str, custom_id: &str, outcome: &Result<String, ApiError>) -> String {
    let (status, error) = match outcome {
        Ok(_) => (200, Value::Null),
        Err(error) => (error.status, error.object()),
    };
    let answer =
        [("status_code", json!(status)), ("request_id", json!(format!("batch_{id}"))), ("body", Value::Null)];
    let line = [
        ("id", json!(format!("{ANSWER_ID}{id}"))),
        ("custom_id", json!(custom_id)),
        ("response", Value::Null),
        ("error", error),
    ];
    let mut out = Text::default();
    out.object(line, |out, name, value| match name {
        "response" => {
            out.object(answer.iter().map(|(name, value)| (name, value)), |out, name, value| {
                match (name, outcome) {
                    ("body", Ok(body)) => out.json(body),
                    ("body", Err(error)) => out.value(&error.body()),
                    _ => out.value(value),
                }
            })
        }
        _ => out.value(&value),
    });
    out.into_string()
}
