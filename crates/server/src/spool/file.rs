//! What is known of a file.

use serde_json::{Value, json};

use crate::served::unix_now;

/// As its `.json` has it: what clients are told.
pub(super) fn describe(id: &str, name: &str, purpose: &str, bytes: u64) -> Value {
    json!({
        "id": id,
        "object": "file",
        "bytes": bytes,
        "created_at": unix_now(),
        "filename": name,
        "purpose": purpose,
        "status": "processed",
        "expires_at": null,
        "status_details": null,
    })
}
