//! A batch, as clients see it and as its file has it.

use engine::job::Tally;
use model::api::{ApiError, Endpoint};
use serde_json::{Value, json};

use super::kept;

/// Most pairs of metadata, and characters of their keys and values: OpenAI's.
const METADATA: (usize, usize, usize) = (16, 64, 512);

/// A batch and where its answers go while it is worked on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Batch {
    /// What clients are told.
    pub(super) shown: Value,
    /// Ids of the files of answers and of errors.
    pub(super) answers: String,
    pub(super) errors: String,
    /// How long those are to be kept, if not as long as files can be.
    pub(super) keep_s: Option<u64>,
}

impl Batch {
    /// Reads a request for a batch that may take `window_s` seconds from `now` on. `ids`: of the batch, of its answers, of
    /// its errors.
    pub(super) fn new(
        request: &Value,
        ids: [String; 3],
        (now, window_s): (u64, u64),
    ) -> Result<Batch, ApiError> {
        let text = |name: &str| {
            let missing = || ApiError::invalid(name, format!("{name}: expected a string"));
            request[name].as_str().ok_or_else(missing)
        };
        let (input, endpoint) = (text("input_file_id")?, text("endpoint")?);
        let wrong = |why| ApiError::invalid("endpoint", format!("endpoint: {why}"));
        Endpoint::of_batch(endpoint).map_err(wrong)?;
        if text("completion_window")? != "24h" {
            return Err(ApiError::invalid("completion_window", "completion_window: expected 24h"));
        }
        let after = &request["output_expires_after"];
        let anchor = || after["anchor"].as_str().unwrap_or_default();
        let keep_s = (!after.is_null())
            .then(|| kept("output_expires_after", anchor(), after["seconds"].as_u64()))
            .transpose()?;
        let metadata = &request["metadata"];
        check(metadata)?;
        let [id, answers, errors] = ids;
        let shown = json!({
            "id": id, "object": "batch", "endpoint": endpoint, "errors": null, "input_file_id": input,
            "completion_window": "24h", "status": "validating", "output_file_id": null, "error_file_id": null,
            "created_at": now, "in_progress_at": null, "expires_at": now + window_s, "finalizing_at": null,
            "completed_at": null, "failed_at": null, "expired_at": null, "cancelling_at": null,
            "cancelled_at": null, "request_counts": {"total": 0, "completed": 0, "failed": 0},
            "metadata": metadata,
        });
        Ok(Batch { shown, answers, errors, keep_s })
    }

    pub(super) fn id(&self) -> &str {
        self.shown["id"].as_str().unwrap_or_default()
    }

    /// The file of its lines.
    pub(super) fn input(&self) -> &str {
        self.shown["input_file_id"].as_str().unwrap_or_default()
    }

    pub(super) fn status(&self) -> &str {
        self.shown["status"].as_str().unwrap_or_default()
    }

    /// Whether its answers or errors go there.
    pub(super) fn writes_to(&self, file: &str) -> bool {
        self.answers == file || self.errors == file
    }

    /// Whether nothing more will come of it.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.status(), "completed" | "failed" | "expired" | "cancelled")
    }

    /// The time of something that came to pass, or will.
    pub(super) fn at(&self, what: &str) -> u64 {
        self.shown[format!("{what}_at")].as_u64().unwrap_or_default()
    }

    /// When it ended, if it has.
    pub(super) fn ended_at(&self) -> u64 {
        self.at(self.status())
    }

    /// Whether it has taken as long as it may.
    pub(super) fn is_overdue(&self, now: u64) -> bool {
        !self.has_ended() && self.at("expires") <= now
    }

    /// Goes on to `status`, now.
    pub(super) fn advance(&mut self, status: &str, now: u64) {
        self.shown["status"] = json!(status);
        self.shown[format!("{status}_at")] = json!(now);
    }

    /// It is to end; who asks again changes nothing.
    pub(super) fn cancel(&mut self, now: u64) {
        if self.status() != "cancelling" {
            self.advance("cancelling", now);
        }
    }

    pub(super) fn count(&mut self, tally: &Tally) {
        self.counted([tally.lines, tally.done - tally.failed, tally.failed]);
    }

    /// So many lines, so many of them answered, so many errors.
    pub(super) fn counted(&mut self, [total, completed, failed]: [usize; 3]) {
        self.shown["request_counts"] = json!({"total": total, "completed": completed, "failed": failed});
    }

    /// Nobody can have any of its answers.
    pub(super) fn withhold(&mut self) {
        for answered in ["completed", "failed"] {
            self.shown["request_counts"][answered] = json!(0);
        }
    }

    /// Ends it: `errors` say why.
    pub(super) fn fail(&mut self, errors: &[Value], now: u64) {
        self.shown["errors"] = json!({"object": "list", "data": errors});
        self.advance("failed", now);
    }

    /// As a file.
    pub(super) fn to_json(&self) -> Value {
        json!({"batch": self.shown, "answers": self.answers, "errors": self.errors, "keep_s": self.keep_s})
    }

    /// From a file; nothing if it is none of ours.
    pub(super) fn from_json(value: &Value) -> Option<Batch> {
        let text = |name: &str| value[name].as_str().map(str::to_string);
        value["batch"]["id"].as_str()?;
        Some(Batch {
            shown: value["batch"].clone(),
            answers: text("answers")?,
            errors: text("errors")?,
            keep_s: value["keep_s"].as_u64(),
        })
    }
}

/// What is wrong with a batch, or with a line of it.
pub(super) fn error(code: &str, message: &str, param: Option<&str>, line: Value) -> Value {
    json!({"code": code, "message": message, "param": param, "line": line})
}

/// Metadata are short texts: what is known of a batch stays in memory.
fn check(metadata: &Value) -> Result<(), ApiError> {
    let (pairs, key_chars, value_chars) = METADATA;
    let fits = match metadata {
        Value::Null => true,
        Value::Object(all) => {
            all.len() <= pairs
                && all.iter().all(|(key, value)| {
                    let fits = |text: &str, most| text.chars().count() <= most;
                    fits(key, key_chars) && value.as_str().is_some_and(|value| fits(value, value_chars))
                })
        }
        _ => false,
    };
    let wrong = || {
        let message = format!(
            "metadata: expected an object of at most {pairs} texts of up to {value_chars} characters, under keys of up \
             to {key_chars}"
        );
        ApiError::invalid("metadata", message)
    };
    fits.then_some(()).ok_or_else(wrong)
}
