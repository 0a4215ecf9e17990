//! What the server says of itself: its document is true, its metrics are those that dashboards read.

use std::collections::HashSet;
use std::time::Duration;

use crate::common::spool::{Spool, upload};
use crate::common::{self, config, get, post, start};
use serde_json::{Value, json};
use server::Config;

/// Whether a value is what a schema says, as far as the document uses schemas.
fn check(document: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = document.pointer(&reference[1..]).unwrap_or_else(|| panic!("{reference}"));
        return check(document, target, value, at);
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let is = |kind: &&str| match *kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "null" => value.is_null(),
        other => panic!("{other}"),
    };
    assert!(kinds.is_empty() || kinds.iter().any(is), "{at}: {value} is none of {kinds:?}");
    assert!(schema["const"].is_null() || schema["const"] == *value, "{at}: {value}");
    assert!(schema["enum"].as_array().is_none_or(|values| values.contains(value)), "{at}: {value}");
    for name in schema["required"].as_array().into_iter().flatten().filter(|_| value.is_object()) {
        assert!(value.get(name.as_str().unwrap()).is_some(), "{at}: {name} is missing in {value}");
    }
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(value) = value.get(name) {
            check(document, schema, value, &format!("{at}.{name}"));
        }
    }
    for value in value.as_array().into_iter().flatten() {
        check(document, &schema["items"], value, &format!("{at}[]"));
    }
}

#[test]
fn answers_are_what_the_document_says() {
    let server = start("llama", config());
    let document = get(server.address, "/openapi.json").json();
    let messages = json!([{"role": "user", "content": "Ahoy"}]);
    let schema = |path: &str, method: &str, status: u16| {
        let operation = &document["paths"][path][method];
        let response = &operation["responses"][status.to_string()];
        assert!(response.is_object(), "{method} {path}: {status} is not documented");
        response["content"]["application/json"]["schema"].clone()
    };
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "The ship", "n": 2, "logprobs": 1, "max_tokens": 4})),
        ("/v1/completions", json!({"prompt": ""})),
        ("/v1/completions", json!({"prompt": [70_000]})),
        ("/v1/completions", json!({"prompt": "x", "model": "frog"})),
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 4, "logprobs": true})),
        ("/v1/chat/completions", json!({"messages": []})),
        ("/tokenize", json!({"prompt": "The ship", "return_token_strs": true})),
        ("/tokenize", json!({})),
        ("/detokenize", json!({"tokens": [5, 6]})),
        ("/detokenize", json!({"tokens": "x"})),
    ] {
        let got = post(server.address, path, &body);
        check(&document, &schema(path, "post", got.status), &got.json(), path);
    }
    for path in ["/v1/models", "/tokenizer_info", "/health", "/ready", "/version", "/load", "/openapi.json"] {
        let got = get(server.address, path);
        assert_eq!(got.status, 200, "{path}");
        check(&document, &schema(path, "get", 200), &got.json(), path);
        let wrong = post(server.address, path, &json!({}));
        assert_eq!(wrong.status, 405, "{path}");
        check(&document, &schema(path, "get", 405), &wrong.json(), path);
    }
    let one = get(server.address, "/v1/models/llama");
    check(&document, &schema("/v1/models/{id}", "get", 200), &one.json(), "a model");
    let none = get(server.address, "/v1/models/frog");
    check(&document, &schema("/v1/models/{id}", "get", 404), &none.json(), "no model");
}

#[test]
fn what_files_are_is_what_the_document_says() {
    let spool = Spool::new();
    let server = start("llama", spool.config());
    let file = upload(&server, "x", "batch", "{}").json();
    let content = get(server.address, &format!("/v1/files/{}/content", file["id"].as_str().unwrap()));
    let document = get(server.address, "/openapi.json").json();
    let described = &document["paths"]["/v1/files/{id}/content"]["get"]["responses"]["200"]["content"];
    let kinds: Vec<&String> = described.as_object().unwrap().keys().collect();
    assert_eq!(kinds, [content.header("content-type").unwrap()]);
}

#[test]
fn the_tokenizer_is_described_as_evaluators_read_it() {
    let server = start("llama", config());
    let info = get(server.address, "/tokenizer_info").json();
    assert!(info["chat_template"].as_str().unwrap().contains("helpful sailor"), "{info}");
    assert_eq!(info["model_max_length"], common::CONTEXT);
    assert!(info["eos_token"].is_string());
}

/// Names in vLLM's Grafana dashboards that have a meaning here.
const DASHBOARD: [&str; 28] = [
    "vllm:inter_token_latency_seconds_bucket",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:e2e_request_latency_seconds_bucket",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
    "vllm:prompt_tokens_total",
    "vllm:num_requests_waiting",
    "vllm:num_requests_running",
    "vllm:kv_cache_usage_perc",
    "vllm:request_prompt_tokens_bucket",
    "vllm:request_generation_tokens_bucket",
    "vllm:request_queue_time_seconds_sum",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_decode_time_seconds_sum",
    "vllm:request_params_max_tokens_bucket",
    "vllm:num_preemptions_total",
    "vllm:prefix_cache_hits_total",
    "vllm:num_requests_waiting_by_reason",
    "vllm:iteration_tokens_total_bucket",
    "vllm:prompt_tokens_cached_total",
    "vllm:prompt_tokens_by_source_total",
    "vllm:prompt_tokens_cached_by_source_total",
    "vllm:external_prefix_cache_queries_total",
    "vllm:external_prefix_cache_hits_total",
    "vllm:request_num_preemptions_bucket",
    "vllm:corrupted_requests_total",
    "http_requests_total",
    "http_request_duration_seconds_bucket",
];

#[test]
fn metrics_are_those_that_dashboards_read_in_the_format_that_prometheus_reads() {
    let server = start("llama", config());
    let body = json!({"prompt": [5, 9], "max_tokens": 4, "temperature": 0, "ignore_eos": true});
    assert_eq!(post(server.address, "/v1/completions", &body).status, 200);
    // The last that a finished request adds to.
    common::until(|| common::metric(server.address, "vllm:request_generation_tokens_sum") == 4.0);
    for (name, value) in [
        ("vllm:request_queue_time_seconds_count", 1.0),
        ("vllm:request_prompt_tokens_sum", 2.0),
        ("vllm:request_generation_tokens_sum", 4.0),
        ("vllm:request_params_n_sum", 1.0),
        ("vllm:request_params_max_tokens_sum", 4.0),
        ("vllm:request_max_num_generation_tokens_sum", 4.0),
        ("vllm:request_prefill_kv_computed_tokens_sum", 2.0),
        // A step for the prompt, which draws the first token, and one for each token but the last.
        ("vllm:iteration_tokens_total_sum", 5.0),
        ("vllm:iteration_tokens_total_count", 4.0),
        ("vllm:prefix_cache_queries_total", 2.0),
        ("ballast_requests_lost_total", 0.0),
    ] {
        assert_eq!(common::metric(server.address, name), value, "{name}");
    }
    let text = get(server.address, "/metrics").body;
    let mut families = HashSet::new();
    let mut series = HashSet::new();
    for line in text.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            let (name, kind) = family.split_once(' ').unwrap();
            assert!(families.insert(name.to_string()), "{name} is there twice");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            // vLLM's histogram of steps is called a total.
            let total = name.ends_with("_total") && name != "vllm:iteration_tokens_total";
            assert_eq!(kind == "counter", total, "{line}");
        } else if !line.starts_with("# HELP ") {
            let (key, value) = line.rsplit_once(' ').unwrap();
            let name = key.split('{').next().unwrap();
            let of = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let known = families.contains(name) || of.is_some_and(|family| families.contains(family));
            assert!(known && key.ends_with('}') && value.parse::<f64>().is_ok(), "{line}");
            assert!(series.insert(key.to_string()), "{key} is there twice");
        }
    }
    for labels in [
        "tier=\"device\",part=\"weights\"",
        "link=\"up\"",
        "link=\"disk_read\"",
        "lane=\"device\"",
        "reason=\"deferred\"",
    ] {
        assert!(series.iter().any(|key| key.contains(labels)), "{labels}");
    }
    let completions = "{method=\"POST\",handler=\"/v1/completions\",status=\"2xx\"}";
    assert!(text.contains(&format!("http_requests_total{completions} 1\n")), "{text}");
    for name in DASHBOARD {
        assert!(series.iter().any(|key| key.starts_with(&format!("{name}{{"))), "{name}");
    }
}

#[test]
fn requests_that_take_too_long_are_told_so() {
    let limits = |request: Option<Duration>, queue: Option<Duration>| Config {
        request_timeout: request,
        queue_timeout: queue,
        ..config()
    };
    let body = json!({"prompt": vec![7; 40], "max_tokens": 400, "ignore_eos": true});
    let at_once = Some(Duration::ZERO);
    for (config, status, code) in
        [(limits(at_once, None), 408, "request_timeout"), (limits(None, at_once), 503, "queue_timeout")]
    {
        let server = start("llama", config);
        let late = post(server.address, "/v1/completions", &body);
        assert_eq!((late.status, &late.json()["error"]["code"]), (status, &json!(code)), "{}", late.body);
        let again = if status == 408 { Some("false") } else { None };
        assert_eq!(late.header("x-should-retry"), again, "what took too long would take as long again");
        common::until(|| common::is_idle(server.address));
        assert!(common::metric(server.address, "ballast_requests_overdue_total") >= 1.0);
    }
}
