//! A drive that fails under a server: requests that live there are told so, and the others, and later ones, are served. A limit
//! on the size of files, lowered while the server runs, ends writes as a drive does.

use crate::common::serving::Serving;
use crate::common::{Folder, golden};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::{Value, json};

/// Bytes that a file of the server may have, as long as its drive works.
const LIMIT: u64 = 1 << 30;

fn works(server: &Serving, bytes: u64) {
    let pid = Pid::from_raw(server.id() as i32).expect("it runs");
    let limit = Rlimit { current: Some(bytes), maximum: Some(LIMIT) };
    prlimit(Some(pid), Resource::Fsize, limit).expect("limits of a process of ours");
}

/// The status of an answer, and what was generated or the code of its error.
fn ask(server: &Serving, prompt: u32, salt: &str) -> (u32, String) {
    let prompt: Vec<u32> = (0..80).map(|i| 3 + (prompt * 31 + i * 17) % 90).collect();
    let body = json!({"prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": true,
        "cache_salt": salt, "logprobs": 1});
    let response = server.ask("POST", "/v1/completions", "", &body.to_string());
    let (head, body) = response.split_once("\r\n\r\n").expect("a head");
    let body: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {response}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let code = || body["error"]["code"].as_str().expect("a code").to_string();
    (status, if status == 200 { body["choices"][0].to_string() } else { code() })
}

#[test]
fn requests_that_a_drive_loses_are_told_and_leave_nothing_behind() {
    let model = golden("llama");
    // KV on the drive, then activations.
    for shares in [["100", "0", "0", "0", "100", "0"], ["100", "0", "100", "0", "0", "0"]] {
        let folder = Folder::new();
        let offload = folder.name("offload");
        let flags = ["--schedule", "zigzag", "--offload-dir", &offload, "--percent"];
        let args = [&[&model[..]], &flags[..], &shares[..]].concat();
        let server = Serving::start_limited(&args, LIMIT as usize);
        let (status, first) = ask(&server, 1, "a");
        assert_eq!(status, 200, "{first}");
        works(&server, 0);
        for _ in 0..2 {
            assert_eq!(ask(&server, 2, "a"), (503, "kv_lost".into()), "{shares:?}");
        }
        works(&server, LIMIT);
        // What the lost ones computed is in nobody's way, nor taken for what it should have been.
        assert_eq!(ask(&server, 1, "b"), (200, first), "{shares:?}");
        let again = ask(&server, 2, "a");
        assert_eq!(again, ask(&server, 2, "b"), "{shares:?}");
        assert_eq!(again.0, 200);
        let log = server.end();
        assert!(
            log.contains("cannot write") && log.contains("/kv-") && log.contains("--offload-dir"),
            "{log}"
        );
    }
}

#[test]
fn a_store_that_is_torn_under_a_server_ends_it_by_name() {
    let (folder, model) = (Folder::new(), golden("llama"));
    let offload = folder.name("offload");
    let shares = ["--percent", "0", "0", "100", "0", "100", "0"];
    let server = Serving::start(&[&[&model, "--offload-dir", &offload], &shares[..]].concat());
    assert_eq!(ask(&server, 1, "a").0, 200);
    let panels = folder.find("panels.bin");
    std::fs::File::options().write(true).open(panels).expect("a store").set_len(4096).expect("torn");
    assert_eq!(ask(&server, 2, "a"), (500, "engine_dead".into()));
    let log = server.ended(1);
    assert!(log.contains("torn") && log.contains("panels.bin"), "{log}");
}
