//! A spool directory that refuses: clients hear that it does, and the log has the path and what the system says.

use std::fs;

use crate::common::spool::{Spool, begin, ended, lines, upload};
use crate::common::{Response, Running, code, post, request, send, start, start_braked};
use serde_json::{Value, json};
use server::{Config, Log, LogFormat, LogLevel};
use tempfile::NamedTempFile;

/// A log that tells errors, and where they are.
fn errors() -> (Log, NamedTempFile) {
    let written = NamedTempFile::new().unwrap();
    let log = Log::to(written.reopen().unwrap(), LogFormat::Text, LogLevel::Error).unwrap();
    (log, written)
}

fn create(server: &Running, file: &Value) -> Response {
    let body = json!({"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"});
    post(server.address, "/v1/batches", &body)
}

#[test]
fn why_a_request_failed_is_for_the_log_and_not_for_its_client() {
    let (spool, (log, written)) = (Spool::new(), errors());
    let server = start("llama", Config { log: log.clone(), ..spool.config() });
    let file = upload(&server, "x", "batch", &lines(1, 1)).json()["id"].clone();
    let id = file.as_str().unwrap();
    let check = |refused: &Response, path: &str, why: &str| {
        assert_eq!((refused.status, code(refused).as_deref()), (500, Some("spool_error")));
        assert!(!refused.body.contains(spool.path().to_str().unwrap()), "{}", refused.body);
        log.flush();
        let told = fs::read_to_string(written.path()).unwrap();
        let found = told.lines().any(|line| line.contains(path) && line.contains(why));
        assert!(found, "{path} and {why:?} in: {told}");
    };
    for (folder, away) in [("batches", "b"), ("files", "f")] {
        let [folder, away] = [folder, away].map(|name| spool.path().join(name));
        fs::rename(&folder, &away).unwrap();
        let refused = match folder.ends_with("files") {
            true => upload(&server, "y", "batch", &lines(1, 1)),
            false => create(&server, &file),
        };
        check(&refused, folder.to_str().unwrap(), "No such file");
        fs::rename(&away, &folder).unwrap();
    }
    // A folder is no file, whoever asks for its end.
    let path = spool.path().join("files").join(id);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let refused = send(server.address, &request("DELETE", &format!("/v1/files/{id}"), "", b""));
    check(&refused, &format!("{}: ", path.display()), "os error");
}

#[test]
fn why_a_batch_failed_is_for_the_log_and_not_for_its_client() {
    let (spool, (log, written)) = (Spool::new(), errors());
    let (server, brake) = start_braked("llama", Config { log: log.clone(), ..spool.config() });
    let [first, second] = [0; 2].map(|_| begin(&server, &lines(3, 5)));
    // What its job writes down cannot be: a folder is no file.
    let record = fs::read(spool.path().join("batches").join(format!("{second}.json"))).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    let state = spool.path().join("files").join(format!("{}.state", record["answers"].as_str().unwrap()));
    fs::create_dir(&state).unwrap();
    brake.release();
    let failed = ended(&server, &second);
    assert_eq!(failed["errors"]["data"][0]["code"], "spool_error", "{failed}");
    assert!(!failed.to_string().contains(spool.path().to_str().unwrap()), "{failed}");
    assert_eq!(ended(&server, &first)["status"], "completed", "others go on");
    log.flush();
    let told = fs::read_to_string(written.path()).unwrap();
    let why = format!("{second} failed: cannot write {}: ", state.display());
    assert!(told.contains(&why) && told.contains("os error"), "{why} in: {told}");
}
