//! What is known of a file.

use serde_json::{Value, json};

/// As its `.json` has it: what clients are told. `expires_at`: when it is deleted, by itself.
pub(super) fn describe(
    id: &str,
    (name, purpose): (&str, &str),
    bytes: u64,
    now: u64,
    expires_at: u64,
) -> Value {
    json!({
        "id": id,
        "object": "file",
        "bytes": bytes,
        "created_at": now,
        "filename": name,
        "purpose": purpose,
        "status": "processed",
        "expires_at": expires_at,
        "status_details": null,
    })
}
