//! Disks that are full. A limit on the size of files ends writes in the middle, as a full disk does, and nobody needs to be
//! permitted anything for it; what the system says of a disk that is really full is the same to all who ask
//! (`server/src/refusal.rs`), and `/dev/full` says it (`batch.rs`).

use std::process::Command;

use crate::common::{self, serving::Serving};
use crate::common::{Folder, command, golden, limited};
use serde_json::{Value, json};

/// Bytes that a file may have: more than some lines, less than the answers to some more.
const LIMIT: usize = 32 << 10;

fn line(i: usize) -> String {
    let body = json!({"prompt": [5 + i % 40, 9], "max_tokens": 6, "temperature": 0, "ignore_eos": true});
    json!({"custom_id": format!("c{i}"), "method": "POST", "url": "/v1/completions", "body": body})
        .to_string()
        + "\n"
}

#[test]
fn a_batch_on_a_full_disk_keeps_whole_answers_and_goes_on_when_there_is_room() {
    let (folder, model) = (Folder::new(), golden("llama"));
    let input = folder.write("in.jsonl", (0..150).map(line).collect::<String>());
    let args = |to: &str| {
        ["batch", &model, "-i", &input, "-o", &folder.name(to), "--created", "5"].map(str::to_string)
    };
    let run = |command: &mut Command| common::Ran::of(command.output().expect("the binary starts"));
    let free = |to: &str| run(&mut command(&args(to).each_ref().map(String::as_str)));
    let full = |to: &str| run(&mut limited(&command(&args(to).each_ref().map(String::as_str)), LIMIT));
    free("whole.jsonl").fine();
    let whole = folder.read("whole.jsonl");
    full("out.jsonl").refused(1, &["cannot write", "safe there: "]);
    let begun = folder.read("out.jsonl");
    assert!(
        begun.ends_with('\n') && whole.starts_with(&begun) && begun.len() < whole.len(),
        "only whole lines stay"
    );
    full("out.jsonl").refused(1, &["cannot write"]);
    let ran = free("out.jsonl");
    assert!(ran.err.contains("going on"), "{}", ran.err);
    ran.fine();
    assert_eq!(folder.read("out.jsonl"), whole);
}

#[test]
fn what_takes_the_place_of_others_leaves_nothing_on_a_full_disk() {
    let (folder, model) = (Folder::new(), golden("llama"));
    let input = folder.write("in.jsonl", (0..150).map(line).collect::<String>());
    let shards = ["0/2", "1/2"].map(|shard| {
        let to = folder.name(&format!("{}.jsonl", &shard[..1]));
        common::ballast(&["batch", &model, "-i", &input, "-o", &to, "--shard", shard]).fine();
        to
    });
    let merged = folder.name("merged.jsonl");
    let merge = command(&["batch", "merge", &shards[0], &shards[1], "-o", &merged]);
    let full = common::Ran::of(limited(&merge, LIMIT).output().expect("the binary starts"));
    assert!(!full.err.contains("goes on"), "{}", full.err);
    full.refused(1, &["cannot write", "merged.jsonl.part"]);
    assert!(!folder.path("merged.jsonl.part").exists() && !folder.path("merged.jsonl").exists());
}

fn answers(server: &Serving) -> bool {
    server
        .ask("POST", "/v1/completions", "", r#"{"prompt": [5], "max_tokens": 2}"#)
        .starts_with("HTTP/1.1 200")
}

#[test]
fn a_full_spool_refuses_files_and_the_server_goes_on() {
    let folder = Folder::new();
    let spool = folder.name("spool");
    let server = Serving::start_limited(&[&golden("llama"), "--spool-dir", &spool], LIMIT);
    let refused = server.upload(&(0..400).map(line).collect::<String>());
    assert!(refused.starts_with("HTTP/1.1 507") && refused.contains("x-should-retry: false"), "{refused}");
    assert!(answers(&server), "others are served");
    let kept = server.upload(&line(0));
    assert!(kept.starts_with("HTTP/1.1 200"), "nothing is left of what did not fit: {kept}");
    server.end();
    let server = Serving::start(&[&golden("llama"), "--spool-dir", &spool]);
    assert!(server.upload(&(0..400).map(line).collect::<String>()).starts_with("HTTP/1.1 200"));
    server.end();
}

#[test]
fn a_batch_whose_answers_do_not_fit_is_told_so() {
    let folder = Folder::new();
    let server = Serving::start_limited(&[&golden("llama"), "--spool-dir", &folder.name("spool")], LIMIT);
    // The input fits; the answers, which are longer, do not.
    let path = server.batch(&(0..110).map(line).collect::<String>());
    let ended = loop {
        let batch = server.get(&path);
        let status = batch["status"].as_str().expect("a status").to_string();
        assert_ne!(status, "completed", "{batch}");
        if status == "failed" {
            break batch;
        }
    };
    assert_eq!(ended["errors"]["data"][0]["code"], "spool_full", "{ended}");
    assert!(answers(&server), "others are served");
    has_its_answers(&server, &ended);
}

/// What it says it has, and no less than a line.
fn has_its_answers(server: &Serving, batch: &Value) {
    let id = batch["output_file_id"].as_str().unwrap_or_else(|| panic!("no answers: {batch}"));
    let response = server.ask("GET", &format!("/v1/files/{id}/content"), "", "");
    let chunks = response.split_once("\r\n\r\n").expect("a head").1.split("\r\n");
    // Each after its length.
    let lines = chunks.skip(1).step_by(2).collect::<String>().lines().count();
    assert!(lines > 0 && batch["request_counts"]["completed"] == lines, "{lines} answers, but {batch}");
}

/// A disk that is really full has no room to say what became of a batch either, unless that was kept.
#[test]
fn a_batch_that_fills_its_disk_has_its_answers_and_the_log_says_why() {
    let folder = Folder::new();
    let disk = folder.name("disk");
    std::fs::create_dir(&disk).expect("a folder");
    let model = golden("llama");
    let Some(server) = Serving::start_on_a_disk(&[&model, "--spool-dir", &disk], &disk, 2 * LIMIT) else {
        return eprintln!("skipped: this user may mount no disk of their own");
    };
    let path = server.batch(&(0..110).map(line).collect::<String>());
    let ended = loop {
        let batch = server.get(&path);
        assert_ne!(batch["status"], "completed", "{batch}");
        if batch["status"] == "failed" {
            break batch;
        }
    };
    assert_eq!(ended["errors"]["data"][0]["code"], "spool_full", "{ended}");
    has_its_answers(&server, &ended);
    assert!(answers(&server), "others are served");
    let log = server.end();
    let id = ended["id"].as_str().expect("an id");
    assert!(log.contains(&format!("{id} failed: cannot write {disk}/files/")), "{log}");
    assert!(log.contains("No space left on device"), "{log}");
}
