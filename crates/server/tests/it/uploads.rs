//! Files on their way: in, by clients that take their time, and out, to browsers.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use crate::common::spool::{Spool, ended, lines, upload};
use crate::common::{code, config, connect, get, post, request, send, start};
use serde_json::{Value, json};
use server::{Config, SpoolLimits};

const KIND: &str = "Content-Type: multipart/form-data; boundary=B\r\n";

#[test]
fn a_trickle_and_a_form_without_end_are_not_waited_for() {
    let spool = Spool::new();
    let patience = Duration::from_millis(500);
    let server = start("llama", Config { body_timeout: patience, ..spool.config() });
    let head = request("POST", "/v1/files", &format!("{KIND}Content-Length: 90000\r\n"), b"");
    let head = String::from_utf8(head).unwrap().replacen("Content-Length: 0\r\n", "", 1);
    let field = "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\n";
    let mut client = connect(server.address);
    client.write_all(format!("{head}{field}").as_bytes()).unwrap();
    // No silence is ever as long as it may be.
    client.set_read_timeout(Some(patience / 20)).unwrap();
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        match client.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => answer.extend_from_slice(&piece[..n]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                // It is refused meanwhile, perhaps.
                let _ = client.write_all(b"x");
            }
            Err(_) => break,
        }
    }
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    let empty = "--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n\r\n".repeat(65);
    let form = request("POST", "/v1/files", KIND, format!("{empty}--B--\r\n").as_bytes());
    assert_eq!(send(server.address, &form).status, 400);
    assert_eq!(get(server.address, "/v1/files").json()["data"], json!([]), "nothing of them stays");
}

#[test]
fn a_file_without_a_byte_is_none() {
    let spool = Spool::new();
    let server = start("llama", spool.config());
    let refused = upload(&server, "in.jsonl", "batch", "");
    assert_eq!(refused.status, 400, "{}", refused.body);
    let error = &refused.json()["error"];
    assert_eq!((&error["param"], &error["type"]), (&json!("file"), &json!("invalid_request_error")));
    assert!(error["message"].as_str().unwrap().starts_with("file: it is empty"), "{error}");
    assert_eq!(get(server.address, "/v1/files").json()["data"], json!([]), "nothing of it stays");
}

#[test]
fn a_file_is_saved_and_not_shown() {
    let spool = Spool::new();
    let server = start("llama", Config { spool_dir: Some(spool.path()), ..config() });
    let file = upload(&server, "x.html\"\r\nA: b", "batch", "<script>").json();
    let id = file["id"].as_str().unwrap();
    let content = get(server.address, &format!("/v1/files/{id}/content"));
    assert_eq!(content.body, "<script>");
    assert_eq!(content.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(content.header("content-disposition"), Some(&*format!("attachment; filename=\"{id}.jsonl\"")));
    assert_eq!(get(server.address, "/nowhere").header("x-content-type-options"), Some("nosniff"));
}

#[test]
fn a_form_has_one_file_and_what_it_took_is_free_again() {
    let spool = Spool::new();
    let limits = SpoolLimits { bytes: 3000, ..SpoolLimits::default() };
    let server = start("llama", Config { spool: limits, ..spool.config() });
    let file = |text: &str| {
        format!("--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\n{text}\r\n")
    };
    let purpose = "--B\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n";
    let form = [purpose, &file(&"x".repeat(2500)), &file("y"), "--B--\r\n"].concat();
    let refused = send(server.address, &request("POST", "/v1/files", KIND, form.as_bytes()));
    assert_eq!(
        (refused.status, refused.json()["error"]["param"].as_str()),
        (400, Some("file")),
        "{}",
        refused.body
    );
    assert_eq!(get(server.address, "/v1/files").json()["data"], json!([]), "nothing of it stays");
    assert_eq!(upload(&server, "z", "batch", &"z".repeat(2900)).status, 200, "there is room");
}

#[test]
fn a_file_has_as_many_bytes_as_it_may_and_the_rest_of_its_form_few() {
    let spool = Spool::new();
    let server = start("llama", spool.config());
    let most = spool.config().max_file_bytes as usize;
    let field = |head: &str, text: &str| {
        format!("--B\r\nContent-Disposition: form-data; name={head}\r\n\r\n{text}\r\n")
    };
    let send = |file: usize, unknown: usize| {
        let file = field("\"file\"; filename=\"x\"", &"x".repeat(file));
        // In two parts, which count together.
        let unknown = field("\"note\"", &"y".repeat(unknown / 2)).repeat(2);
        let form = [field("\"purpose\"", "batch"), file, unknown, "--B--\r\n".into()].concat();
        send(server.address, &request("POST", "/v1/files", KIND, form.as_bytes()))
    };
    let kept = send(most, 64 << 10);
    assert_eq!((kept.status, &kept.json()["bytes"]), (200, &json!(most)), "{}", kept.body);
    for (file, unknown, want) in [(most + 1, 0, "file_too_large"), (1, (64 << 10) + 2, "body_too_large")] {
        let refused = send(file, unknown);
        assert_eq!((refused.status, code(&refused).as_deref()), (413, Some(want)), "{}", refused.body);
    }
    assert_eq!(get(server.address, "/v1/files").json()["data"].as_array().unwrap().len(), 1);
}

#[test]
fn what_is_no_form_is_refused_before_all_of_it_is_there() {
    let spool = Spool::new();
    let server = start("llama", Config { body_timeout: Duration::from_secs(30), ..spool.config() });
    let field = "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n";
    for begin in ["", field] {
        // More is announced than ever comes.
        let head = request("POST", "/v1/files", &format!("{KIND}Content-Length: 1000000000\r\n"), b"");
        let head = String::from_utf8(head).unwrap().replacen("Content-Length: 0\r\n", "", 1);
        let refused = send(server.address, format!("{head}{begin}{}", "x".repeat(60_000)).as_bytes());
        assert_eq!((refused.status, code(&refused).as_deref()), (400, Some("form_expected")), "{begin}");
    }
    for kind in ["multipart/form-data", "multipart/form-data;;", "text/plain", "\u{e9}"] {
        let kind = format!("Content-Type: {kind}\r\n");
        let refused = send(server.address, &request("POST", "/v1/files", &kind, b"x"));
        assert_eq!((refused.status, code(&refused).as_deref()), (400, Some("form_expected")), "{kind}");
    }
    let none = send(server.address, &request("POST", "/v1/files", "", b"x"));
    assert_eq!((none.status, code(&none).as_deref()), (400, Some("form_expected")));
    assert_eq!(upload(&server, "x", "batch", &"x".repeat(90_000)).status, 200);
}

#[test]
fn answers_of_a_batch_are_files_of_which_there_are_so_many() {
    let spool = Spool::new();
    let limits = SpoolLimits { files: 1, ..SpoolLimits::default() };
    let server = start("llama", Config { spool: limits, ..spool.config() });
    let file = upload(&server, "x", "batch", "{}\n").json();
    let body =
        json!({"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"});
    let refused = post(server.address, "/v1/batches", &body);
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (507, &json!("spool_full")));
    assert_eq!(get(server.address, "/v1/batches").json()["data"], json!([]));
}

#[test]
fn files_are_kept_as_long_as_their_client_wants_and_no_longer_than_they_may() {
    let spool = Spool::new();
    let day = Duration::from_secs(24 * 60 * 60);
    let limits = SpoolLimits { keep: 2 * day, ..SpoolLimits::default() };
    let server = start("llama", Config { spool: limits, ..spool.config() });
    let field = |name: &str, text: &str| {
        format!("--B\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n")
    };
    let file = "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\n{}\r\n--B--\r\n";
    let expiring = |expires: &[(&str, &str)]| {
        let expires = expires.iter().map(|(name, text)| field(&format!("expires_after[{name}]"), text));
        let form = [field("purpose", "batch"), expires.collect(), file.to_owned()].concat();
        send(server.address, &request("POST", "/v1/files", KIND, form.as_bytes()))
    };
    let lasts = |file: &Value| file["expires_at"].as_u64().unwrap() - file["created_at"].as_u64().unwrap();
    let anchor = ("anchor", "created_at");
    for (asked, kept) in [("3600", 3600), ("2592000", 2 * day.as_secs())] {
        assert_eq!(lasts(&expiring(&[anchor, ("seconds", asked)]).json()), kept);
    }
    for wrong in [
        &[anchor][..],
        &[("seconds", "3600")],
        &[anchor, ("seconds", "3599")],
        &[anchor, ("seconds", "soon")],
    ] {
        let refused = expiring(wrong);
        assert_eq!(
            (refused.status, refused.json()["error"]["param"].as_str()),
            (400, Some("expires_after")),
            "{wrong:?}"
        );
    }

    let input = upload(&server, "in", "batch", &lines(1, 1)).json();
    assert_eq!(lasts(&input), 2 * day.as_secs());
    let mut body = json!({"input_file_id": input["id"], "endpoint": "/v1/completions", "completion_window": "24h",
                          "output_expires_after": {"anchor": "created_at", "seconds": 7200}});
    let id = post(server.address, "/v1/batches", &body).json()["id"].as_str().unwrap().to_string();
    let answers = ended(&server, &id)["output_file_id"].as_str().unwrap().to_string();
    assert_eq!(lasts(&get(server.address, &format!("/v1/files/{answers}")).json()), 7200);
    body["output_expires_after"]["seconds"] = json!(1);
    let refused = post(server.address, "/v1/batches", &body);
    assert_eq!(
        (refused.status, refused.json()["error"]["param"].as_str()),
        (400, Some("output_expires_after"))
    );
}
