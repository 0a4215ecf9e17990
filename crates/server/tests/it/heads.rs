//! Heads of requests: those that nothing can be made of, and fields in them that ask for something.

use std::io::{Read, Write};

use crate::common::{Response, code, config, connect, get, good, read, request, send, start};

const ASK: &[u8] = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Refused as all requests are that make no sense.
#[track_caller]
fn is_refusal(response: &Response, status: u16, want: &str) {
    assert_eq!((response.status, code(response).as_deref()), (status, Some(want)), "{}", response.head);
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(response.header("connection"), Some("close"));
    assert!(response.header("date").is_some());
}

#[test]
fn what_cannot_be_read_is_answered_as_all_else_is_and_counted() {
    let server = start("llama", config());
    let long = format!("GET /version HTTP/1.1\r\nHost: localhost\r\nX-Long: {}\r\n\r\n", "y".repeat(100_000));
    is_refusal(&send(server.address, long.as_bytes()), 431, "headers_too_large");
    for bytes in [
        &b"nonsense\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /version HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /ver sion HTTP/1.1\r\n\r\n",
        b"GET /version HTTP/9.9\r\nHost: localhost\r\n\r\n",
    ] {
        is_refusal(&send(server.address, bytes), 400, "malformed_request");
    }
    let metrics = get(server.address, "/metrics").body;
    for line in [
        "http_requests_total{method=\"OTHER\",handler=\"none\",status=\"4xx\"} 6",
        "ballast_http_responses_total{model_name=\"llama\",engine=\"0\",status=\"431\"} 1",
        "ballast_http_responses_total{model_name=\"llama\",engine=\"0\",status=\"400\"} 5",
    ] {
        assert!(metrics.lines().any(|told| told == line), "{line}: {metrics}");
    }
    good(&server);
}

#[test]
fn what_cannot_be_read_after_a_good_request_spoils_nothing_of_its_answer() {
    let server = start("llama", config());
    let version = get(server.address, "/version").body;
    // Once the answer is here, and along with the request.
    for together in [false, true] {
        let mut client = connect(server.address);
        client.write_all(&[ASK, if together { b"nonsense\r\n\r\n" } else { b"" }].concat()).unwrap();
        let mut first = Vec::new();
        while !first.ends_with(version.as_bytes()) {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            first.push(byte[0]);
        }
        assert!(first.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&first));
        if !together {
            client.write_all(b"nonsense\r\n\r\n").unwrap();
        }
        let refused = read(&mut client);
        assert_eq!(refused.status, 400, "{}", refused.head);
        if !together {
            is_refusal(&refused, 400, "malformed_request");
        }
    }
    good(&server);
}

#[test]
fn a_priority_in_the_head_is_not_passed_over() {
    let server = start("llama", config());
    let ask = |priority: &str| {
        let head = format!("Content-Type: application/json\r\nX-Vllm-Priority: {priority}\r\n");
        send(
            server.address,
            &request("POST", "/v1/completions", &head, br#"{"prompt": [5], "max_tokens": 1}"#),
        )
    };
    assert_eq!(ask("0").status, 200);
    let refused = ask("5");
    assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (400, Some("priority")));
}
