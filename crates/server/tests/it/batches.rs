//! Files and batches: what is answered, where it is kept, and what a second server makes of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::common::spool::{Spool, batch, begin, content, ended, lines, sequences, upload};
use crate::common::{
    self, code, config, get, is_idle, metric, post, request, send, start, start_braked, until,
};
use serde_json::{Value, json};
use server::{Clock, Config, Ended, ServeError, Server, SpoolLimits};

/// Every file below, by its path.
fn all_files(root: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { all_files(&path) } else { vec![path] }).collect()
}

#[test]
fn a_batch_answers_as_the_route_does() {
    let spool = Spool::new();
    let server = start("llama", spool.config());
    let bad = json!({"custom_id": "bad", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "top_p": 7}});
    let id = begin(&server, &format!("{}{bad}\n", lines(9, 5)));
    let done = ended(&server, &id);
    assert_eq!(done["status"], "completed", "{done}");
    assert_eq!(done["request_counts"], json!({"total": 10, "completed": 9, "failed": 1}));
    let answers = content(&server, &done["output_file_id"]);
    for (i, line) in answers.lines().enumerate() {
        let line: Value = serde_json::from_str(line).unwrap();
        let body = json!({"prompt": [5 + i, 9], "max_tokens": 5, "temperature": 0, "ignore_eos": true});
        let alone = post(server.address, "/v1/completions", &body).json();
        assert_eq!(line["custom_id"], format!("c{i}"));
        assert_eq!(line["response"]["body"]["choices"], alone["choices"]);
    }
    assert_eq!(answers.lines().count(), 9);
    let errors: Value = serde_json::from_str(&content(&server, &done["error_file_id"])).unwrap();
    assert_eq!(errors["custom_id"], "bad");
    let listed = get(server.address, "/v1/batches?limit=1").json();
    assert_eq!((&listed["data"][0]["id"], &listed["has_more"]), (&json!(id), &json!(false)));
    until(|| is_idle(server.address));
}

#[test]
fn requests_of_batches_are_in_the_same_figures_as_others() {
    let spool = Spool::new();
    let server = start("llama", spool.config());
    let two = json!({"prompt": [5], "n": 2, "max_tokens": 4, "ignore_eos": true, "temperature": 1, "unheard_of": 1});
    let two = json!({"custom_id": "two", "method": "POST", "url": "/v1/completions", "body": two});
    let id = begin(&server, &format!("{}{two}\n", lines(5, 3)));
    assert_eq!(ended(&server, &id)["status"], "completed");
    until(|| is_idle(server.address));
    for (name, want) in [
        ("vllm:time_to_first_token_seconds_count", 7.0),
        ("vllm:e2e_request_latency_seconds_count", 7.0),
        ("vllm:request_queue_time_seconds_count", 7.0),
        ("vllm:request_generation_tokens_sum", 5.0 * 3.0 + 2.0 * 4.0),
        ("vllm:request_params_n_count", 6.0),
        ("vllm:request_max_num_generation_tokens_sum", 5.0 * 3.0 + 4.0),
        ("ballast_unknown_fields_total", 1.0),
    ] {
        assert_eq!(metric(server.address, name), want, "{name}");
    }
    assert_eq!((sequences(&server, "length"), sequences(&server, "abort")), (7.0, 0.0));
}

#[test]
fn a_name_never_becomes_a_path() {
    let spool = Spool::new();
    let server = start("llama", spool.config());
    let before = all_files(&spool.path()).len();
    for name in ["../../escaped", "/tmp/escaped", "..", "a/b", "x\\..\\y", "file-0"] {
        let file = upload(&server, name, "batch", "{}").json();
        assert_eq!(file["bytes"], 2, "{name}: {file}");
        let id = file["id"].as_str().unwrap();
        assert!(id.strip_prefix("file-").unwrap().bytes().all(|b| b.is_ascii_hexdigit()), "{id}");
    }
    let made = all_files(&spool.path());
    assert_eq!(made.len(), before + 12, "a file and its description each, all of them inside");
    assert!(made.iter().all(|path| !path.to_string_lossy().contains("escaped")), "{made:?}");
    for id in ["..%2f..%2flock", "%2e%2e", "..", "file-..%2f0", "file-0", "lock", "file-%00", "batch_1"] {
        for path in
            [format!("/v1/files/{id}"), format!("/v1/files/{id}/content"), format!("/v1/batches/{id}")]
        {
            assert_eq!(get(server.address, &path).status, 404, "{path}");
        }
    }
}

#[test]
fn what_is_no_file_or_batch_is_refused() {
    let spool = Spool::new();
    let server = start("llama", spool.config());
    assert_eq!(upload(&server, "x", "fine-tune", "{}").status, 400);
    assert_eq!(upload(&server, "x", "batch", &"x".repeat(100_001)).status, 413);
    assert_eq!(post(server.address, "/v1/files", &json!({})).status, 400);
    let torn = "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\nabc";
    let kind = "Content-Type: multipart/form-data; boundary=B\r\n";
    assert_eq!(send(server.address, &request("POST", "/v1/files", kind, torn.as_bytes())).status, 400);
    assert_eq!(get(server.address, "/v1/files").json()["data"], json!([]), "nothing of them stays");
    let file = upload(&server, "x", "batch", &lines(1, 1)).json();
    let good =
        json!({"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"});
    for (field, value, status) in [
        ("input_file_id", json!("file-00"), 404),
        ("input_file_id", json!("../lock"), 404),
        ("input_file_id", json!(7), 400),
        ("endpoint", json!("http://elsewhere/v1"), 400),
        ("completion_window", json!("1h"), 400),
        ("metadata", json!(7), 400),
        ("metadata", json!({"a": 7}), 400),
        ("metadata", json!({"a": "x".repeat(513)}), 400),
        ("metadata", json!({"k".repeat(65): "x"}), 400),
        ("metadata", (0..17).map(|i| (i.to_string(), json!("x"))).collect(), 400),
    ] {
        let mut body = good.clone();
        body[field] = value;
        assert_eq!(post(server.address, "/v1/batches", &body).status, status, "{body}");
    }
    for (text, code) in [
        ("\n", "empty_file"),
        ("{\n", "invalid_request"),
        (&*(lines(1, 1) + &lines(1, 1)), "duplicate_custom_id"),
        (&*lines(1, 1).replace("/v1/completions", "/v1/chat/completions"), "mismatched_endpoint"),
    ] {
        let failed = ended(&server, &begin(&server, text));
        assert_eq!(
            (&failed["status"], &failed["errors"]["data"][0]["code"]),
            (&json!("failed"), &json!(code))
        );
    }
}

#[test]
fn a_batch_goes_on_in_the_next_server() {
    let spool = Spool::new();
    let first = start("llama", spool.config());
    let whole = begin(&first, &lines(40, 60));
    let expected = ended(&first, &whole);
    let expected = content(&first, &expected["output_file_id"]);
    let id = begin(&first, &lines(40, 60));
    until(|| batch(&first, &id)["request_counts"]["completed"].as_u64() > Some(0));
    let busy = Server::bind(spool.config()).err().unwrap();
    assert!(matches!(busy, ServeError::Spool { .. }), "one server at a time: {busy}");
    drop(first);
    let second = start("llama", spool.config());
    let done = ended(&second, &id);
    assert_eq!((&done["status"], &done["request_counts"]["completed"]), (&json!("completed"), &json!(40)));
    let strip = |text: &str| -> Vec<Value> {
        let line =
            |line: &str| serde_json::from_str::<Value>(line).unwrap()["response"]["body"]["choices"].clone();
        text.lines().map(line).collect()
    };
    assert_eq!(strip(&content(&second, &done["output_file_id"])), strip(&expected));
    assert_eq!(batch(&second, &whole)["status"], "completed", "what had ended is still known");
}

#[test]
fn a_batch_does_not_go_on_with_another_model() {
    let spool = Spool::new();
    let (first, brake) = start_braked("llama", spool.config());
    // More than are in flight at once: the job asks whether to go on before the last of them.
    let id = begin(&first, &lines(200, 300));
    until(|| {
        brake.step();
        batch(&first, &id)["request_counts"]["completed"].as_u64() > Some(0)
    });
    drop(first);
    let second = common::start_with(spool.config(), || {
        let mut served = common::served("llama");
        served.settings.insert("--kv".into(), "int4".into());
        served
    });
    let failed = ended(&second, &id);
    assert_eq!(
        (&failed["status"], &failed["errors"]["data"][0]["code"]),
        (&json!("failed"), &json!("batch_changed"))
    );
    let counts = &failed["request_counts"];
    let answered = content(&second, &failed["output_file_id"]).lines().count();
    assert!(
        answered > 0 && counts["completed"] == answered && counts["total"] == 200,
        "what was answered stays: {counts}"
    );
}

#[test]
fn a_batch_that_waits_is_cancelled_without_being_begun() {
    let spool = Spool::new();
    let (server, brake) = start_braked("llama", spool.config());
    let ids = [begin(&server, &lines(200, 400)), begin(&server, &lines(3, 30))];
    for id in ids.iter().rev() {
        let cancelled = post(server.address, &format!("/v1/batches/{id}/cancel"), &json!({}));
        assert_eq!(cancelled.status, 200, "{}", cancelled.body);
    }
    brake.release();
    let waited = ended(&server, &ids[1]);
    assert_eq!((&waited["status"], &waited["in_progress_at"]), (&json!("cancelled"), &Value::Null));
    assert_eq!(ended(&server, &ids[0])["status"], "cancelled");
    until(|| is_idle(server.address));
}

#[test]
fn without_a_directory_there_are_no_files() {
    let server = start("llama", config());
    for path in ["/v1/files", "/v1/batches", "/v1/files/file-0", "/v1/batches/batch_0"] {
        assert_eq!(get(server.address, path).status, 501, "{path}");
    }
}

#[test]
fn a_batch_whose_engine_dies_ends_the_server_and_goes_on_in_the_next() {
    let spool = Spool::new();
    let (server, brake) = start_braked("llama", spool.config());
    let id = begin(&server, &lines(3, 5));
    until(|| batch(&server, &id)["status"] == "in_progress");
    brake.burst();
    assert!(matches!(server.end(), Ended::EngineDied(_)));
    let next = start("llama", spool.config());
    assert_eq!(ended(&next, &id)["request_counts"]["completed"], 3);
}

#[test]
fn lines_that_cannot_be_answered_are_named_with_their_fields() {
    let spool = Spool::new();
    let server = start("llama", Config { max_body_bytes: 2000, ..spool.config() });
    let line = |id: &str, url: &str, body: Value| {
        json!({"custom_id": id, "method": "POST", "url": url, "body": body}).to_string() + "\n"
    };
    let completions = "/v1/completions";
    let text = [
        line("a", completions, json!({"prompt": [5]})),
        line("a", completions, json!({"prompt": [5]})),
        line("b", "/v1/chat/completions", json!({})),
        line("c", "/v1/embeddings", json!({})),
        line("d", completions, json!({"prompt": vec![5; 3000]})),
        "{\"custom_id\": 7}\n".to_string(),
    ];
    let failed = ended(&server, &begin(&server, &text.concat()));
    let told: Vec<(u64, &str, &Value)> = failed["errors"]["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| (e["line"].as_u64().unwrap(), e["code"].as_str().unwrap(), &e["param"]))
        .collect();
    assert_eq!(
        told,
        [
            (2, "duplicate_custom_id", &json!("custom_id")),
            (3, "mismatched_endpoint", &json!("url")),
            (4, "invalid_request", &json!("url")),
            (5, "line_too_large", &Value::Null),
            (6, "invalid_request", &json!("custom_id")),
        ]
    );
    // An empty line is none: these are too many requests without being too large a file.
    let many = "{}\n".repeat(50_001);
    let server = Config { max_file_bytes: 1 << 20, ..config() };
    let spool = Spool::new();
    let server = start("llama", Config { spool_dir: spool.config().spool_dir, ..server });
    let failed = ended(&server, &begin(&server, &many));
    assert_eq!(failed["errors"]["data"][0]["code"], "too_many_requests", "{failed}");
}

/// A clock that goes on when it is told to.
struct Hand(Arc<AtomicU64>);

impl Hand {
    fn new() -> Hand {
        Hand(Arc::new(AtomicU64::new(1_800_000_000)))
    }

    fn clock(&self) -> Clock {
        let now = Arc::clone(&self.0);
        Clock::new(move || now.load(SeqCst))
    }

    fn goes_on(&self, seconds: u64) {
        self.0.fetch_add(seconds, SeqCst);
    }
}

const DAY_S: u64 = 24 * 60 * 60;

#[test]
fn a_batch_that_takes_too_long_expires_with_what_it_has() {
    let (spool, hand) = (Spool::new(), Hand::new());
    let (server, brake) = start_braked("llama", Config { clock: hand.clock(), ..spool.config() });
    let slow = begin(&server, &lines(200, 400));
    until(|| batch(&server, &slow)["status"] == "in_progress");
    let behind = begin(&server, &lines(3, 5));
    assert_eq!(batch(&server, &behind)["expires_at"], json!(1_800_000_000 + DAY_S));
    hand.goes_on(DAY_S - 1);
    assert_eq!(batch(&server, &slow)["status"], "in_progress");
    hand.goes_on(1);
    brake.release();
    for (id, lines) in [(&slow, 200), (&behind, 3)] {
        let expired = ended(&server, id);
        assert_eq!((&expired["status"], &expired["expired_at"]), (&json!("expired"), &expired["expires_at"]));
        let counts = &expired["request_counts"];
        let count = |name: &str| counts[name].as_u64().unwrap();
        assert_eq!((count("total"), count("completed") + count("failed")), (lines, lines), "{counts}");
        let errors = content(&server, &expired["error_file_id"]);
        let told: Vec<Value> = errors.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(told.len() as u64, count("failed"));
        assert!(
            told.iter().all(|line| line["error"]["code"] == "batch_expired" && line["response"].is_null())
        );
        assert_eq!(told.last().unwrap()["custom_id"], format!("c{}", lines - 1));
    }
    until(|| is_idle(server.address));
}

#[test]
fn files_and_ended_batches_are_kept_for_a_time() {
    let (spool, hand) = (Spool::new(), Hand::new());
    let config = || Config { clock: hand.clock(), ..spool.config() };
    let server = start("llama", config());
    let id = begin(&server, &lines(2, 3));
    let done = ended(&server, &id);
    let file = get(server.address, &format!("/v1/files/{}", done["output_file_id"].as_str().unwrap())).json();
    assert_eq!(file["expires_at"], json!(1_800_000_000 + 30 * DAY_S));
    hand.goes_on(30 * DAY_S - 1);
    drop(server);
    let server = start("llama", config());
    assert_eq!(get(server.address, "/v1/files").json()["data"].as_array().unwrap().len(), 2);
    hand.goes_on(60);
    until(|| get(server.address, "/v1/files").json()["data"] == json!([]));
    until(|| get(server.address, &format!("/v1/batches/{id}")).status == 404);
    // What a file is goes before its bytes: in the end nothing of them is on the disk.
    until(|| all_files(&spool.path()) == [spool.path().join("lock")]);
}

#[test]
fn a_spool_holds_as_much_as_it_may() {
    let (spool, room) = (Spool::new(), 3000);
    let limits = SpoolLimits { bytes: room, batches: 2, ..SpoolLimits::default() };
    let (server, brake) = start_braked("llama", Config { spool: limits, ..spool.config() });
    let big = upload(&server, "big", "batch", &"x".repeat(2500)).json();
    let refused = upload(&server, "more", "batch", &"x".repeat(501));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (507, &json!("spool_full")));
    assert_eq!(
        upload(&server, "less", "batch", &"x".repeat(400)).status,
        200,
        "what was refused takes no room"
    );
    let delete = |id: &Value| {
        let path = format!("/v1/files/{}", id.as_str().unwrap());
        assert_eq!(send(server.address, &request("DELETE", &path, "", b"")).status, 200);
    };
    delete(&big["id"]);
    // Two batches wait, and a third cannot.
    let ids = [begin(&server, &lines(1, 60)), begin(&server, &lines(1, 3))];
    let file = upload(&server, "third", "batch", &lines(1, 3)).json();
    let body =
        json!({"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"});
    let refused = post(server.address, "/v1/batches", &body);
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (507, &json!("too_many_batches")));
    brake.release();
    ids.iter().for_each(|id| assert_eq!(ended(&server, id)["status"], "completed"));
    assert_eq!(post(server.address, "/v1/batches", &body).status, 200);
    // One of the two is forgotten for it: the first that ended, which may be either.
    let statuses = || {
        let mut all = [0, 1].map(|i| get(server.address, &format!("/v1/batches/{}", ids[i])).status);
        all.sort_unstable();
        all
    };
    until(|| statuses() == [200, 404]);
}

#[test]
fn answers_that_there_is_no_room_for_end_their_batch() {
    let spool = Spool::new();
    let text = lines(60, 3);
    let limits = SpoolLimits { bytes: text.len() as u64 + 2000, ..SpoolLimits::default() };
    let server = start("llama", Config { spool: limits, ..spool.config() });
    let failed = ended(&server, &begin(&server, &text));
    assert_eq!(
        (&failed["status"], &failed["errors"]["data"][0]["code"]),
        (&json!("failed"), &json!("spool_full"))
    );
    assert!(content(&server, &failed["output_file_id"]).lines().count() > 0, "what was answered stays");
    until(|| is_idle(server.address));
}

#[test]
fn lines_are_no_streams_nor_a_crowd_and_what_they_say_in_vain_is_counted() {
    let spool = Spool::new();
    let server = start("llama", spool.config());
    let line = |id: &str, body: Value| {
        json!({"custom_id": id, "method": "POST", "url": "/v1/completions", "body": body}).to_string() + "\n"
    };
    let text = [
        line("stream", json!({"prompt": [5], "stream": true})),
        line("crowd", json!({"prompt": [[5], [6]], "n": 65})),
        line("good", json!({"prompt": [5], "max_tokens": 1, "frobnicate": 1, "defenestrate": 2})),
    ];
    let done = ended(&server, &begin(&server, &text.concat()));
    assert_eq!(done["request_counts"], json!({"total": 3, "completed": 1, "failed": 2}), "{done}");
    let errors = content(&server, &done["error_file_id"]);
    assert!(errors.lines().all(|line| line.contains("\"status_code\":400")), "{errors}");
    assert!(errors.contains("130 sequences in one line; at most 128"), "{errors}");
    assert_eq!(common::metric(server.address, "ballast_unknown_fields_total"), 2.0);
}

#[test]
fn a_batch_that_could_not_be_closed_is_closed_by_the_next_server() {
    let (spool, text) = (Spool::new(), lines(3, 5));
    let limits = SpoolLimits { bytes: 6000, ..SpoolLimits::default() };
    let config = || Config { spool: limits, ..spool.config() };
    let (first, brake) = start_braked("llama", config());
    let id = begin(&first, &text);
    until(|| batch(&first, &id)["status"] == "in_progress");
    // What became of it cannot be written.
    let blocked = spool.path().join("batches").join(format!("{id}.part"));
    std::fs::create_dir(&blocked).unwrap();
    brake.release();
    let failed = ended(&first, &id);
    assert_eq!(failed["errors"]["data"][0]["code"], "spool_error");
    assert_eq!(get(first.address, "/v1/files").json()["data"].as_array().unwrap().len(), 1);
    drop(first);
    std::fs::remove_dir(&blocked).unwrap();
    let next = start("llama", config());
    let done = ended(&next, &id);
    assert_eq!((&done["status"], &done["request_counts"]["completed"]), (&json!("completed"), &json!(3)));
    let bytes = text.len() + content(&next, &done["output_file_id"]).len();
    assert_eq!(upload(&next, "rest", "batch", &"x".repeat(6000 - bytes)).status, 200, "all is counted once");
    assert_eq!(upload(&next, "more", "batch", "x").status, 507);
    let left = all_files(&spool.path());
    assert!(left.iter().all(|path| path.extension().is_none_or(|end| end == "json")), "{left:?}");
}

#[test]
fn what_is_named_by_no_text_is_not_there() {
    let spool = Spool::new();
    let server = start("llama", spool.config());
    for (method, path, want) in [
        ("GET", "/v1/models/%FF", "model_not_found"),
        ("GET", "/v1/files/%FF", "not_found"),
        ("GET", "/v1/files/%FF/content", "not_found"),
        ("DELETE", "/v1/files/%FF", "not_found"),
        ("GET", "/v1/batches/%FF", "not_found"),
        ("POST", "/v1/batches/%FF/cancel", "not_found"),
    ] {
        let refused = send(server.address, &request(method, path, "", b""));
        assert_eq!((refused.status, code(&refused).as_deref()), (404, Some(want)), "{method} {path}");
    }
}
