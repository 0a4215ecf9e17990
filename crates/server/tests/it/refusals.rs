//! Whatever comes, the answer is an error that clients understand, and the next good request succeeds.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    self, Response, code, config, connect, get, good, heard, is_idle, metric, post, read, request, send,
    start, start_braked, start_with, try_metric, try_send, until,
};
use serde_json::json;
use server::{Config, Ended, ServeError};

const JSON: &str = "Content-Type: application/json\r\n";

#[test]
fn errors_have_openais_shape() {
    let server = start("llama", Config { max_body_bytes: 10_000, ..config() });
    let post =
        |path: &str, headers: &str, body: &[u8]| send(server.address, &request("POST", path, headers, body));
    let path = "/v1/completions";
    let deep = [b"[".repeat(5000), b"]".repeat(5000)].concat();
    for (response, status, want) in [
        (get(server.address, "/v1/else"), 404, Some("not_found")),
        (get(server.address, path), 405, Some("method_not_allowed")),
        (post("/health", JSON, b"{}"), 405, Some("method_not_allowed")),
        (post(path, JSON, b"{"), 400, Some("json_parse_error")),
        (post(path, JSON, b""), 400, Some("json_parse_error")),
        (post(path, JSON, b"\xff\xfe"), 400, Some("json_parse_error")),
        (post(path, JSON, &deep), 400, Some("json_parse_error")),
        (post(path, JSON, &b" ".repeat(10_001)), 413, Some("body_too_large")),
        (post(path, "Content-Type: text/plain\r\n", b"{}"), 415, Some("unsupported_media_type")),
        (
            post(path, "Content-Type: application/json\r\nContent-Encoding: gzip\r\n", b"\x1f\x8b"),
            415,
            Some("unsupported_content_encoding"),
        ),
        (post(path, JSON, b"{}"), 400, None),
        (post(path, JSON, br#"{"prompt": [5], "model": "gpt"}"#), 404, Some("model_not_found")),
        (post(path, JSON, br#"{"prompt": [5], "max_tokens": 9999}"#), 400, Some("context_length_exceeded")),
        (post("/v1/chat/completions", JSON, br#"{"messages": []}"#), 400, None),
        (
            post(
                path,
                JSON,
                br#"{"prompt": [5], "response_format": {"type": "text", "json_schema": {"strict": {}}}}"#,
            ),
            400,
            None,
        ),
        (
            post(
                path,
                JSON,
                br#"{"prompt": [5], "response_format": {"type": "text", "json_schema": {"schema": [1]}}}"#,
            ),
            400,
            None,
        ),
        // Its only token is the one that it may not end with yet.
        (
            post(
                path,
                JSON,
                br#"{"prompt": [5], "allowed_token_ids": [7], "stop_token_ids": [7], "min_tokens": 2}"#,
            ),
            400,
            None,
        ),
    ] {
        assert_eq!((response.status, code(&response).as_deref()), (status, want), "{}", response.body);
    }
    good(&server);
}

/// Whoever writes all of a request before reading anything hears why it was refused, and is not cut off in the midst of it.
#[test]
fn a_refusal_is_heard_by_clients_that_are_still_sending() {
    let keys = vec!["one".to_string()];
    let server = start("llama", Config { max_body_bytes: 1000, keys, ..config() });
    for (key, status, want) in [("one", 413, "body_too_large"), ("two", 401, "invalid_api_key")] {
        let mut client = connect(server.address);
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Length: 8000000\r\n\r\n"
        );
        client.write_all(head.as_bytes()).unwrap();
        for _ in 0..80 {
            client.write_all(&[b' '; 100_000]).unwrap();
        }
        let response = read(&mut client);
        assert_eq!((response.status, code(&response).as_deref()), (status, Some(want)));
        // Nobody sends another request behind it.
        assert_eq!(response.header("connection"), Some("close"));
    }
}

/// Nor is it listened to for ever.
#[test]
fn who_goes_on_sending_after_a_refusal_is_left() {
    let server = start("llama", Config { max_body_bytes: 1000, ..config() });
    let mut client = connect(server.address);
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000000000\r\n\r\n";
    client.write_all(head.as_bytes()).unwrap();
    let (began, piece) = (Instant::now(), vec![b' '; 1 << 20]);
    while client.write_all(&piece).is_ok() {
        assert!(began.elapsed() < Duration::from_secs(30), "it is still read");
    }
}

#[test]
fn a_chunked_body_has_a_limit_too() {
    let server = start("llama", Config { max_body_bytes: 1000, ..config() });
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = format!("400\r\n{}\r\n", " ".repeat(1024));
    let response = send(server.address, format!("{head}{chunk}0\r\n\r\n").as_bytes());
    assert_eq!((response.status, code(&response).as_deref()), (413, Some("body_too_large")));
}

#[test]
fn every_route_but_the_open_ones_needs_a_key() {
    let server = start("llama", Config { keys: vec!["one".into(), "two".into()], ..config() });
    let routes = [
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/llama"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("GET", "/version"),
        ("GET", "/load"),
        ("GET", "/metrics"),
        ("GET", "/v1/hold"),
        ("GET", "/page.js/"),
        ("GET", "/else"),
        ("GET", "/health/"),
        ("GET", "/ready/.."),
        ("GET", "//health"),
        ("GET", "/HEALTH"),
        ("GET", "/v1/models/../../health"),
        ("DELETE", "/v1/completions"),
    ];
    for (method, path) in routes {
        for key in
            ["", "Authorization: Bearer \r\n", "Authorization: Bearer three\r\n", "Authorization: one\r\n"]
        {
            let refused = send(server.address, &request(method, path, key, b"{}"));
            assert_eq!(
                (refused.status, refused.header("www-authenticate")),
                (401, Some("Bearer")),
                "{path} {key}"
            );
            assert_eq!(code(&refused).as_deref(), Some("invalid_api_key"));
        }
        for key in ["one", "two"] {
            let header = format!("Authorization: Bearer {key}\r\n");
            assert_ne!(send(server.address, &request(method, path, &header, b"{}")).status, 401, "{path}");
        }
    }
    for open in ["/health", "/ready", "/", "/page.css", "/page.js", "/markdown.js"] {
        assert_eq!(get(server.address, open).status, 200, "{open}");
    }
}

#[test]
fn a_page_elsewhere_cannot_ask_through_a_browser() {
    let server = start("llama", config());
    let ask = |host: &str| {
        send(
            server.address,
            format!("GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes(),
        )
    };
    for host in [
        "localhost",
        "localhost:8000",
        "127.0.0.1:8000",
        "[::1]:8000",
        "LOCALHOST",
        "chat.localhost:80",
        "localhost.",
    ] {
        assert_eq!(ask(host).status, 200, "{host}");
    }
    for host in [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evillocalhost",
    ] {
        let refused = ask(host);
        assert_eq!((refused.status, code(&refused).as_deref()), (403, Some("host_not_allowed")), "{host}");
    }
}

#[test]
fn a_page_of_another_site_changes_nothing() {
    let body = br#"{"prompt": [5], "max_tokens": 1}"#;
    let ask = |server: &common::Running, head: &str| {
        send(server.address, &request("POST", "/v1/completions", head, body))
    };
    let server = start("llama", config());
    for head in [
        "Sec-Fetch-Site: cross-site\r\n",
        "Sec-Fetch-Site: cross-site\r\nOrigin: http://localhost\r\n",
        "Origin: https://evil.example\r\n",
        "Origin: http://localhost:9\r\n",
        "Origin: null\r\n",
    ] {
        let refused = ask(&server, head);
        assert_eq!((refused.status, code(&refused).as_deref()), (403, Some("origin_not_allowed")), "{head}");
    }
    for head in [
        "",
        "Sec-Fetch-Site: same-origin\r\n",
        "Origin: http://LOCALHOST\r\n",
        "Sec-Fetch-Site: same-origin\r\nOrigin: null\r\n",
        "Origin: app://x\r\n",
    ] {
        assert_eq!(ask(&server, head).status, 200, "{head}");
    }
    // On every address as on loopback.
    let open = start("llama", Config { address: ([0, 0, 0, 0], 0).into(), ..config() });
    let refused = ask(&open, "Sec-Fetch-Site: cross-site\r\n");
    assert_eq!((refused.status, code(&refused).as_deref()), (403, Some("origin_not_allowed")));
    assert_eq!(ask(&open, "").status, 200);
    let link = request("GET", "/", "Sec-Fetch-Site: cross-site\r\n", b"");
    assert_eq!(send(server.address, &link).status, 200, "a link leads here");
    // A page that knows the key may.
    let server = start("llama", Config { keys: vec!["k".into()], ..config() });
    let head = "Sec-Fetch-Site: cross-site\r\nAuthorization: Bearer k\r\n";
    assert_eq!(ask(&server, head).status, 200);
}

#[test]
fn a_long_head_is_told_why() {
    let server = start("llama", config());
    let ask = |n: usize| {
        let head = format!("X-Long: {}\r\n", "y".repeat(n));
        send(server.address, &request("GET", "/version", &head, b""))
    };
    assert_eq!(ask(12_000).status, 200);
    let refused = ask(12_300);
    assert_eq!(
        (refused.status, code(&refused).as_deref()),
        (431, Some("headers_too_large")),
        "{}",
        refused.body
    );
}

#[test]
fn a_request_keeps_its_id() {
    let server = start("llama", config());
    let ask = |header: &str| send(server.address, &request("GET", "/version", header, b""));
    assert_eq!(ask("X-Request-Id: mine-7\r\n").header("x-request-id"), Some("mine-7"));
    let long = format!("X-Request-Id: {}\r\n", "x".repeat(200));
    let (a, b) = (ask(&long), ask(""));
    assert!(a.header("x-request-id").unwrap().len() < 100);
    assert_ne!(a.header("x-request-id"), b.header("x-request-id"));

    // What is answered has it too: whoever keeps one finds the other in the log.
    let generate = |header: &str, id: serde_json::Value| {
        let body = json!({"prompt": [5, 9], "max_tokens": 1, "request_id": id}).to_string();
        let header = format!("Content-Type: application/json\r\n{header}");
        let answer = send(server.address, &request("POST", "/v1/completions", &header, body.as_bytes()));
        let id = answer.header("x-request-id").unwrap().to_string();
        (id, answer.json()["id"].as_str().unwrap().to_string())
    };
    let (of_request, of_answer) = generate("", json!(null));
    assert_eq!(of_request.strip_prefix("req-"), of_answer.strip_prefix("cmpl-"));
    let own = "X-Request-Id: mine-7\r\n";
    assert_eq!(generate(own, json!(null)), ("mine-7".to_string(), "cmpl-mine-7".to_string()));
    assert_eq!(generate(own, json!("yours")), ("mine-7".to_string(), "cmpl-yours".to_string()));
}

#[test]
fn too_much_at_once_is_answered_with_200_or_503() {
    let server = start("llama", Config { max_num_queued_reqs: 3, ..config() });
    let body = json!({"prompt": vec![7; 100], "max_tokens": 30, "ignore_eos": true, "temperature": 0});
    let want = post(server.address, "/v1/completions", &body).json();
    let answers: Vec<Response> = thread::scope(|scope| {
        let ask = || post(server.address, "/v1/completions", &body);
        let threads: Vec<_> = (0..100).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let served = answers.iter().filter(|a| a.status == 200).count();
    assert!(served > 0);
    for answer in &answers {
        if answer.status == 200 {
            assert_eq!(answer.json()["choices"], want["choices"]);
        } else {
            assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
            assert_eq!(code(answer).as_deref(), Some("server_overloaded"));
        }
    }
    let rejected = metric(server.address, "vllm:admission_rejections_total");
    assert_eq!(rejected as usize, 100 - served);
    let many = json!({"prompt": [7], "n": 4, "max_tokens": 1});
    assert_eq!(post(server.address, "/v1/completions", &many).status, 400, "it could never be let in");
    until(|| is_idle(server.address));
    good(&server);
}

#[test]
fn connections_and_bodies_beyond_the_limit_are_told_so() {
    let server = start("llama", Config { max_connections: 3, ..config() });
    let ask = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n";
    // Those before may not have gone yet: then there is no room.
    let kept = || loop {
        let (mut client, mut head) = (connect(server.address), [0; 12]);
        client.write_all(ask).unwrap();
        if std::io::Read::read_exact(&mut client, &mut head).is_ok() && &head == b"HTTP/1.1 200" {
            return client;
        }
    };
    let clients = [kept(), kept(), kept()];
    let refused = get(server.address, "/version");
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(refused.json()["error"]["code"], "server_overloaded");
    // Whoever only looks how it is is answered.
    until(|| heard(server.address, "/health").is_some_and(|health| health.status == 200));
    until(|| try_metric(server.address, "ballast_connections").is_some_and(|connections| connections >= 3.0));
    assert_eq!(get(server.address, "/healing").status, 503);
    drop(clients);
    until(|| try_metric(server.address, "ballast_connections") == Some(1.0));
    assert!(metric(server.address, "ballast_connections_refused_total") >= 1.0);

    // Two bodies of which each has room alone, and both have not.
    let big = format!("{{\"prompt\": \"{}\"}}", "x".repeat(20 << 20));
    let bytes = request("POST", "/tokenize", JSON, big.as_bytes());
    let mut first = connect(server.address);
    first.write_all(&bytes[..bytes.len() - 5]).unwrap();
    until(|| metric(server.address, "ballast_body_bytes") >= (20 << 20) as f64 - 100_000.0);
    let second = send(server.address, &bytes);
    assert_eq!((second.status, second.header("retry-after")), (503, Some("1")), "{}", second.body);
    // Who sends as much as most do is not in their way.
    let usual = json!({"prompt": "x".repeat(200_000)});
    assert_eq!(post(server.address, "/tokenize", &usual).status, 200);
    first.write_all(&bytes[bytes.len() - 5..]).unwrap();
    let whole = read(&mut first);
    assert!([200, 400].contains(&whole.status), "{}", whole.status);
    until(|| metric(server.address, "ballast_body_bytes") == 0.0);
    good(&server);
}

#[test]
fn looks_that_never_end_are_in_the_way_for_a_moment_alone() {
    let server = start("llama", Config { max_connections: 1, ..config() });
    let look = request("GET", "/health", "", b"");
    let status = || try_send(server.address, &look).map(|response| response.status);
    let mut client = connect(server.address);
    client.write_all(&request("POST", "/v1/completions", JSON, b"{")[..40]).unwrap();
    until(|| get(server.address, "/version").status == 503);
    let mut stalled = Vec::new();
    until(|| {
        stalled.extend((0..4).map(|_| connect(server.address)));
        let last = stalled.len() - 4;
        stalled[last..].iter_mut().for_each(|stalled| stalled.write_all(&look[..look.len() - 4]).unwrap());
        status() == Some(503)
    });
    let since = Instant::now();
    until(|| status() == Some(200));
    assert!(since.elapsed() < config().header_timeout, "{:?}", since.elapsed());
    // Nor do they count among the clients.
    drop(client);
    until(|| get(server.address, "/version").status == 200);
    drop(stalled);
}

#[test]
fn a_template_without_end_is_the_requests_fault() {
    let server = start_with(config(), || {
        let mut served = common::served("llama");
        let endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
        served.template = Some(model::template::ChatTemplate::new(endless).unwrap());
        served
    });
    until(|| get(server.address, "/ready").status == 200);
    let body = json!({"messages": [{"role": "user", "content": "x"}]});
    let response = post(server.address, "/v1/chat/completions", &body);
    assert_eq!(response.status, 400, "{}", response.body);
    assert_eq!(code(&response).as_deref(), Some("template_limit"), "{}", response.body);
    good(&server);
}

#[test]
fn slow_senders_are_not_waited_for() {
    let brief = Duration::from_millis(100);
    // A client on a busy machine may be slow too: others ask until they are heard.
    let server = start_with(Config { header_timeout: brief, ..config() }, || common::served("llama"));
    let mut head = connect(server.address);
    head.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: loc").unwrap();
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut head, &mut rest).unwrap();
    let ready = request("GET", "/ready", "", b"");
    until(|| try_send(server.address, &ready).is_some_and(|response| response.status == 200));
    let server = start("llama", Config { body_timeout: brief, ..config() });
    let mut body = connect(server.address);
    let bytes = request("POST", "/v1/completions", JSON, b"{\"prompt\": [5]}");
    body.write_all(&bytes[..bytes.len() - 3]).unwrap();
    let response = read(&mut body);
    assert_eq!((response.status, code(&response).as_deref()), (408, Some("body_timeout")));
    until(|| try_send(server.address, &bytes).is_some_and(|response| response.status == 200));
}

#[test]
fn a_dead_engine_is_told_and_ends_the_server() {
    let (server, brake) = start_braked("llama", config());
    let body = json!({"prompt": [5, 9], "max_tokens": 2});
    let bytes = request("POST", "/v1/completions", JSON, body.to_string().as_bytes());
    let mut client = connect(server.address);
    client.write_all(&bytes).unwrap();
    until(|| metric(server.address, "ballast_queued_requests") == 1.0);
    brake.burst();
    let response = read(&mut client);
    assert_eq!((response.status, code(&response).as_deref()), (500, Some("engine_dead")));
    assert_eq!(response.header("x-should-retry"), Some("false"));
    assert!(!response.body.contains("a bug"), "details are not for clients");
    assert!(matches!(server.end(), Ended::EngineDied(_)));
}

#[test]
fn a_dead_engine_that_nobody_asks_ends_the_server() {
    let (server, brake) = start_braked("llama", config());
    brake.burst();
    let Ended::EngineDied(why) = server.end() else { panic!("it died") };
    assert!(why.contains("a bug"), "{why}");
}

#[test]
fn a_model_that_panics_while_it_is_loaded_ends_the_server() {
    let server = start_with(config(), || panic!("a bug, as the test wants it"));
    assert!(matches!(server.ended(), Err(ServeError::LoadPanicked)));
}

#[test]
fn a_body_of_many_values_is_refused_before_it_is_read() {
    let server = start("llama", config());
    let most = (32 << 20) / 64;
    let ask = |values: usize| {
        let body = format!("{{\"prompt\": [{}7]}}", "7,".repeat(values));
        send(server.address, &request("POST", "/tokenize", JSON, body.as_bytes()))
    };
    let refused = ask(most);
    assert_eq!((refused.status, code(&refused).as_deref()), (413, Some("body_too_large")));
    assert!(refused.body.contains(&most.to_string()), "{}", refused.body);
    assert_eq!(ask(most - 20).status, 400, "so many are read: a prompt of /tokenize is a text");
    good(&server);
}

#[test]
fn what_other_servers_have_is_named_as_not_offered() {
    let server = start("llama", config());
    for path in ["/v1/embeddings", "/v1/moderations", "/rerank"] {
        let response = post(server.address, path, &json!({"input": "x"}));
        let error = &response.json()["error"];
        assert_eq!((response.status, &error["type"]), (501, &json!("not_supported_error")), "{path}");
        assert_eq!(response.header("x-should-retry"), Some("false"), "{path}");
        assert!(error["message"].as_str().unwrap().contains(path), "{error}");
    }
    assert_eq!(post(server.address, "/v1/else", &json!({})).status, 404);
}

#[test]
fn metrics_are_open_only_where_that_is_asked_for() {
    let keys = || vec!["key".to_string()];
    for (open_metrics, status) in [(false, 401), (true, 200)] {
        let server = start("llama", Config { keys: keys(), open_metrics, ..config() });
        assert_eq!(get(server.address, "/metrics").status, status);
        for path in ["/metrics/", "/v1/models", "/load"] {
            assert_eq!(get(server.address, path).status, 401, "{path}");
        }
    }
}

#[test]
fn long_runs_of_one_character_are_tokenized_in_time_or_refused() {
    let server = start("qwen3", config());
    for text in [" ", "'", "a", "\n", "'s", "é", "\u{0301}", "1"] {
        let body = json!({"prompt": text.repeat(100_000)});
        let response = post(server.address, "/tokenize", &body);
        assert!([200, 400].contains(&response.status), "{text:?}: {}", response.status);
    }
    assert_eq!(post(server.address, "/tokenize", &json!({"prompt": "x"})).status, 200);
}
