//! A spool directory, and a client of it.

use std::fs::File;
use std::path::PathBuf;

use serde_json::{Value, json};
use server::Config;
use tempfile::TempDir;

use super::{Response, Running, config, get, post, request, send, until};

/// A directory that goes with its test.
pub(crate) struct Spool(TempDir);

impl Spool {
    pub(crate) fn new() -> Spool {
        Spool(tempfile::tempdir().unwrap())
    }

    /// Not there yet.
    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("spool")
    }

    pub(crate) fn config(&self) -> Config {
        Config { spool_dir: Some(self.path()), max_file_bytes: 100_000, ..config() }
    }

    /// Waits until no server has it: a thread of one that ended may.
    pub(crate) fn wait_until_free(&self) {
        let lock = File::open(self.path().join("lock")).unwrap();
        until(|| lock.try_lock().is_ok());
    }
}

pub(crate) fn upload(server: &Running, name: &str, purpose: &str, text: &str) -> Response {
    let body = format!(
        "--B\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n{purpose}\r\n\
         --B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n{text}\r\n--B--\r\n"
    );
    let kind = "Content-Type: multipart/form-data; boundary=B\r\n";
    send(server.address, &request("POST", "/v1/files", kind, body.as_bytes()))
}

/// So many lines, and what each says.
pub(crate) fn lines(n: usize, max_tokens: usize) -> String {
    let line = |i: usize| {
        let body = json!({"prompt": [5 + i % 50, 9], "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true});
        json!({"custom_id": format!("c{i}"), "method": "POST", "url": "/v1/completions", "body": body})
            .to_string()
            + "\n"
    };
    (0..n).map(line).collect()
}

pub(crate) fn begin(server: &Running, text: &str) -> String {
    let file = upload(server, "in.jsonl", "batch", text).json();
    let body =
        json!({"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"});
    let batch = post(server.address, "/v1/batches", &body);
    assert_eq!(batch.status, 200, "{}", batch.body);
    assert_eq!(batch.json()["status"], "validating");
    batch.json()["id"].as_str().unwrap().to_string()
}

pub(crate) fn batch(server: &Running, id: &str) -> Value {
    get(server.address, &format!("/v1/batches/{id}")).json()
}

pub(crate) fn ended(server: &Running, id: &str) -> Value {
    until(|| {
        ["completed", "failed", "expired", "cancelled"]
            .contains(&batch(server, id)["status"].as_str().unwrap())
    });
    batch(server, id)
}

pub(crate) fn content(server: &Running, id: &Value) -> String {
    let response = get(server.address, &format!("/v1/files/{}/content", id.as_str().unwrap()));
    assert_eq!(response.status, 200, "{}", response.body);
    response.body
}

/// Sequences that ended so.
pub(crate) fn sequences(server: &Running, how: &str) -> f64 {
    let metrics = get(server.address, "/metrics").body;
    let so = format!("finished_reason=\"{how}\"");
    let line =
        metrics.lines().find(|line| line.starts_with("vllm:request_success_total{") && line.contains(&so));
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}
