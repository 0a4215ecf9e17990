//! Routes beside generation: the page, files and batches.

use model::api::Endpoint;
use serde_json::{Map, Value, json};

use super::{error, get};
use crate::spool::KEPT;

/// All of them, by path.
pub(super) fn paths() -> Map<String, Value> {
    let file = || with_id(get("A file", "Thing"));
    let batch = || with_id(get("A batch", "Thing"));
    let all = [
        ("/", json!({"get": text("The page", "text/html")})),
        ("/page.css", json!({"get": text("Its style", "text/css")})),
        ("/page.js", json!({"get": text("Its script", "text/javascript")})),
        ("/markdown.js", json!({"get": text("What it shows answers by", "text/javascript")})),
        ("/v1/hold", json!({"get": get("What sits in memory, and how busy the lanes were", "Thing")})),
        ("/v1/files", json!({"get": spool(get("All files", "Thing")), "post": upload()})),
        ("/v1/files/{id}", json!({"get": spool(file()), "delete": spool(file())})),
        ("/v1/files/{id}/content", json!({"get": spool(with_id(text("Its bytes", "application/jsonl")))})),
        ("/v1/batches", json!({"get": spool(get("All batches", "Thing")), "post": batch_made()})),
        ("/v1/batches/{id}", json!({"get": spool(batch())})),
        ("/v1/batches/{id}/cancel", json!({"post": spool(made(batch()))})),
    ];
    all.into_iter().map(|(path, methods)| (path.to_owned(), methods)).collect()
}

fn text(summary: &str, kind: &str) -> Value {
    let mut operation = get(summary, "Thing");
    operation["responses"]["200"] =
        json!({"description": "Done", "content": {(kind): {"schema": {"type": "string"}}}});
    operation
}

fn with_id(mut operation: Value) -> Value {
    operation["parameters"] =
        json!([{"name": "id", "in": "path", "required": true, "schema": {"type": "string", "minLength": 1}}]);
    operation
}

/// What can go wrong with files and batches.
fn spool(mut operation: Value) -> Value {
    operation["responses"]["400"] = error("Something in the request is wrong");
    operation["responses"]["404"] = error("There is no such thing");
    operation["responses"]["501"] = error("This server has no --spool-dir");
    operation["responses"]["507"] = error("The disk is full");
    operation
}

/// What can go wrong with bodies.
fn made(mut operation: Value) -> Value {
    operation["requestBody"] = json!({"content": {"application/json": {"schema": {"type": "object"}}}});
    for (status, why) in
        [("408", "The body did not come in time"), ("413", "Too large"), ("415", "Of another type")]
    {
        operation["responses"][status] = error(why);
    }
    operation
}

fn batch_made() -> Value {
    let mut operation = spool(made(get("Begin a batch", "Thing")));
    let expiry = json!({"type": "object", "required": ["anchor", "seconds"],
                        "properties": {"anchor": {"enum": ["created_at"]}, "seconds": seconds()}});
    let schema = json!({"type": "object", "required": ["input_file_id", "endpoint", "completion_window"],
                        "properties": {"input_file_id": {"type": "string", "minLength": 1},
                                       "endpoint": {"enum": Endpoint::OF_BATCHES.map(Endpoint::path)},
                                       "completion_window": {"enum": ["24h"]},
                                       "output_expires_after": {"anyOf": [expiry, {"type": "null"}]},
                                       "metadata": {"type": ["object", "null"]}}});
    operation["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": schema}}});
    operation
}

/// How long a file is to be kept.
fn seconds() -> Value {
    json!({"type": "integer", "minimum": KEPT.start(), "maximum": KEPT.end()})
}

fn upload() -> Value {
    let mut upload = spool(made(get("Hand in a file", "Thing")));
    let form = json!({"type": "object", "required": ["file", "purpose"],
                      "properties": {"file": {"type": "string", "contentMediaType": "application/octet-stream"},
                                     "purpose": {"enum": ["batch"]},
                                     "expires_after[anchor]": {"enum": ["created_at"]},
                                     "expires_after[seconds]": seconds()},
                      "dependentRequired": {"expires_after[anchor]": ["expires_after[seconds]"],
                                            "expires_after[seconds]": ["expires_after[anchor]"]}});
    upload["requestBody"] = json!({"required": true, "content": {"multipart/form-data": {"schema": form}}});
    upload
}
