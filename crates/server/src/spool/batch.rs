//! A batch, as clients see it and as its file has it.

use engine::job::Tally;
use model::api::ApiError;
use serde_json::{Value, json};

use crate::served::unix_now;

/// A day, which is all that OpenAI offers; nothing expires here.
const WINDOW_S: u64 = 24 * 60 * 60;

/// A batch and where its answers go while it is worked on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Batch {
    /// What clients are told.
    pub(super) shown: Value,
    /// Ids of the files of answers and of errors.
    pub(super) answers: String,
    pub(super) errors: String,
}

impl Batch {
    /// Reads a request for a batch. `ids`: of the batch, of its answers, of its errors.
    pub(super) fn new(request: &Value, ids: [String; 3]) -> Result<Batch, ApiError> {
        let text = |name: &str| {
            let missing = || ApiError::invalid(name, format!("{name}: expected a string"));
            request[name].as_str().ok_or_else(missing)
        };
        let (input, endpoint) = (text("input_file_id")?, text("endpoint")?);
        if !["/v1/chat/completions", "/v1/completions"].contains(&endpoint) {
            let message = "endpoint: expected /v1/chat/completions or /v1/completions";
            return Err(ApiError::invalid("endpoint", message));
        }
        if text("completion_window")? != "24h" {
            return Err(ApiError::invalid("completion_window", "completion_window: expected 24h"));
        }
        let metadata = &request["metadata"];
        if !metadata.is_null() && !metadata.is_object() {
            return Err(ApiError::invalid("metadata", "metadata: expected an object"));
        }
        let [id, answers, errors] = ids;
        let now = unix_now();
        let shown = json!({
            "id": id, "object": "batch", "endpoint": endpoint, "errors": null, "input_file_id": input,
            "completion_window": "24h", "status": "validating", "output_file_id": null, "error_file_id": null,
            "created_at": now, "in_progress_at": null, "expires_at": now + WINDOW_S, "finalizing_at": null,
            "completed_at": null, "failed_at": null, "expired_at": null, "cancelling_at": null,
            "cancelled_at": null, "request_counts": {"total": 0, "completed": 0, "failed": 0},
            "metadata": metadata,
        });
        Ok(Batch { shown, answers, errors })
    }

    pub(super) fn status(&self) -> &str {
        self.shown["status"].as_str().unwrap_or_default()
    }

    /// Whether nothing more will come of it.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.status(), "completed" | "failed" | "cancelled")
    }

    /// Goes on to `status`, now.
    pub(super) fn advance(&mut self, status: &str) {
        self.shown["status"] = json!(status);
        self.shown[format!("{status}_at")] = json!(unix_now());
    }

    pub(super) fn count(&mut self, tally: &Tally) {
        let completed = tally.done - tally.failed;
        self.shown["request_counts"] =
            json!({"total": tally.lines, "completed": completed, "failed": tally.failed});
    }

    /// Ends it: `errors` say why.
    pub(super) fn fail(&mut self, errors: &[Value]) {
        self.shown["errors"] = json!({"object": "list", "data": errors});
        self.advance("failed");
    }

    /// As a file.
    pub(super) fn to_json(&self) -> Value {
        json!({"batch": self.shown, "answers": self.answers, "errors": self.errors})
    }

    /// From a file; nothing if it is none of ours.
    pub(super) fn from_json(value: &Value) -> Option<Batch> {
        let text = |name: &str| value[name].as_str().map(str::to_string);
        value["batch"]["id"].as_str()?;
        Some(Batch { shown: value["batch"].clone(), answers: text("answers")?, errors: text("errors")? })
    }
}
