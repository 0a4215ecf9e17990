//! The page and what it shows; clients/page_test.py uses it in a browser.

use std::io::{Read, Write};

use crate::common::{
    self, config, connect, get, is_idle, metric, request, start, start_braked, start_with, until,
};
use serde_json::{Value, json};

fn hold(server: &common::Running) -> Value {
    let response = get(server.address, "/v1/hold");
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

/// What a part of a tier uses and has reserved.
fn bytes(hold: &Value, tier: &str, part: &str) -> (u64, u64) {
    let tier = hold["tiers"].as_array().unwrap().iter().find(|each| each["tier"] == tier).unwrap();
    let part = tier["parts"].as_array().unwrap().iter().find(|each| each["part"] == part).unwrap();
    (part["used_bytes"].as_u64().unwrap(), part["reserved_bytes"].as_u64().unwrap())
}

#[test]
fn the_page_asks_nobody_else_and_runs_nothing_inline() {
    let server = start("llama", config());
    for path in ["/", "/page.css", "/page.js", "/markdown.js"] {
        let response = get(server.address, path);
        let policy = response.header("content-security-policy").unwrap();
        for rule in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"] {
            assert!(policy.contains(rule), "{policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
        // The one address is a name for a kind of element, which nobody fetches.
        let addresses = response.body.matches("://").count();
        assert_eq!(addresses, response.body.matches("http://www.w3.org/2000/svg").count(), "{path}");
        assert!(!response.body.contains("innerHTML"), "what a model says is no markup");
        assert!(!response.body.contains(" style="), "{path}");
    }
}

#[test]
fn the_hold_shows_what_a_request_takes_and_gives_back() {
    let (server, brake) = start_braked("llama", config());
    let idle = hold(&server);
    assert_eq!(idle["state"], "ready");
    assert_eq!(idle["model"], "llama");
    assert!(bytes(&idle, "device", "weights").0 > 0);
    let body = json!({"prompt": vec![7; 200], "max_tokens": 300, "n": 4, "ignore_eos": true, "stream": true});
    let mut client = connect(server.address);
    client
        .write_all(&request(
            "POST",
            "/v1/completions",
            "Content-Type: application/json\r\n",
            body.to_string().as_bytes(),
        ))
        .unwrap();
    assert!(client.read(&mut [0; 100]).unwrap() > 0);
    // The brake is one of them.
    until(|| {
        brake.step();
        metric(server.address, "vllm:num_requests_running") == 5.0
    });
    let busy = hold(&server);
    let (used, reserved) = bytes(&busy, "device", "kv");
    assert!(0 < used && used <= reserved, "{used} of {reserved}");
    assert_eq!(busy["queue"]["running"], 5);
    let lanes = busy["lanes"].as_array().unwrap();
    assert_eq!((lanes.len(), &lanes[0]["lane"]), (8, &json!("device")));
    assert!(lanes[0]["busy_s"].as_f64().unwrap() > 0.0 && lanes[0]["used"] == true);
    assert!(lanes[2]["used"] == false, "nothing is copied where everything is resident");
    drop(client);
    brake.release();
    until(|| is_idle(server.address));
    assert_eq!(bytes(&hold(&server), "device", "kv").0, 0);
}

#[test]
fn the_page_is_there_before_the_model() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let server = start_with(config(), move || {
        wait.recv().unwrap();
        common::served("llama")
    });
    assert_eq!(get(server.address, "/").status, 200);
    let loading = hold(&server);
    assert_eq!((&loading["state"], &loading["model"]), (&json!("loading the model"), &json!(null)));
    go.send(()).unwrap();
    until(|| hold(&server)["state"] == "ready");
}
