//! What is served is what the engine says offline, streamed or not.

use crate::common::{self, config, get, post, served, start};
use engine::Answer;
use model::api::{Context, Endpoint, Meta, Streaming, response};
use model::template::WallClock;
use serde_json::{Value, json};
use server::Served;

/// The body that the engine gives without a server.
fn offline(served: &Served, endpoint: Endpoint, body: &Value) -> Value {
    let context = Context {
        tokenizer: &served.tokenizer,
        template: served.template.as_ref(),
        tool_template: served.tool_template.as_ref(),
        special: served.special.clone(),
        generation: &served.generation,
        served: &served.names,
        vocab_size: served.engine.spec().vocab,
        context_len: served.engine.hold().max_model_len,
        max_logprobs: 20,
        own_templates: model::api::OwnTemplates::Refused,
        thoughts: model::thoughts::Manner::default(),
        streaming: Streaming::Offered,
        now: WallClock::default(),
    };
    let request = endpoint.read(body, &context).unwrap();
    let choices = Answer::begin(&served.engine, &served.tokenizer, &request, 0).unwrap().wait().unwrap();
    let meta = Meta { id: String::new(), created: 0, cached_tokens: None, timings: None };
    // As a client reads it: numbers through text.
    serde_json::from_str(&response(&request, &choices, &meta, &served.tokenizer)).unwrap()
}

/// Without what depends on those that asked before.
fn uncached(mut body: Value) -> Value {
    if let Some(usage) = body.get_mut("usage").and_then(Value::as_object_mut) {
        let details = usage.remove("prompt_tokens_details").expect("servers know");
        assert!(details["cached_tokens"].is_u64(), "{details}");
    }
    body
}

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn completions() -> Vec<Value> {
    vec![
        json!({"prompt": "The ship", "temperature": 0}),
        json!({"prompt": ["The ship", "sails", "è 漢字 🚢"], "n": 2, "seed": 7, "max_tokens": 40}),
        json!({"prompt": [[5, 9, 17], [40]], "max_tokens": 8, "logprobs": 3, "temperature": 0, "ignore_eos": true}),
        json!({"prompt": [5, 9, 17, 33], "echo": true, "logprobs": 1, "max_tokens": 1, "temperature": 0}),
        json!({"prompt": "a b c", "stop": ["e", "t"], "seed": 3, "max_tokens": 200, "unheard_of": 1}),
        json!({"prompt": "sea", "seed": 5, "max_tokens": 30, "return_token_ids": true, "echo": true}),
    ]
}

fn chats() -> Vec<Value> {
    let messages = json!([{"role": "user", "content": "Ahoy"}]);
    vec![
        json!({"messages": messages, "temperature": 0, "max_tokens": 12}),
        json!({"messages": messages, "seed": 1, "n": 3, "max_completion_tokens": 20, "logprobs": true, "top_logprobs": 2}),
        json!({"messages": messages, "seed": 2, "stop": "a", "max_tokens": 60, "return_token_ids": true}),
    ]
}

fn cases() -> impl Iterator<Item = (Endpoint, &'static str, Value)> {
    let completions = completions().into_iter().map(|body| (Endpoint::Completions, COMPLETIONS, body));
    completions.chain(chats().into_iter().map(|body| (Endpoint::Chat, CHAT, body)))
}

#[test]
fn both_endpoints_answer_as_the_engine_does_offline() {
    for model in ["llama", "qwen3"] {
        let (server, twin) = (start(model, config()), served(model));
        for (endpoint, path, body) in cases() {
            let got = post(server.address, path, &body);
            assert_eq!(got.status, 200, "{body}: {}", got.body);
            let (got, want) = (uncached(got.json()), offline(&twin, endpoint, &body));
            for field in ["object", "model", "choices", "usage"] {
                assert_eq!(got[field], want[field], "{model} {body}");
            }
            assert!(got["created"].as_u64() > Some(1_600_000_000));
        }
    }
}

/// The whole that the chunks of one choice make up.
fn gathered(chunks: &[Value], index: usize, path: &str) -> Value {
    let own = |chunk: &Value| chunk["choices"][0].clone();
    let mut pieces = chunks
        .iter()
        .filter(|c| !c["choices"].as_array().unwrap().is_empty())
        .map(own)
        .filter(|c| c["index"] == index);
    let text = |piece: &Value| match path {
        CHAT => piece["delta"]["content"].as_str().unwrap_or("").to_string(),
        _ => piece["text"].as_str().unwrap().to_string(),
    };
    let all: Vec<Value> = pieces.by_ref().collect();
    if path == CHAT {
        assert_eq!(all[0]["delta"], json!({"role": "assistant", "content": ""}));
        assert!(all[1..].iter().all(|piece| piece["delta"].get("role").is_none()));
    }
    let (last, before) = all.split_last().unwrap();
    assert!(before.iter().all(|piece| piece["finish_reason"].is_null()), "only the last is the last");
    let list = |pick: &dyn Fn(&Value) -> &Value| -> Vec<Value> {
        all.iter().flat_map(|piece| pick(piece).as_array().cloned().unwrap_or_default()).collect()
    };
    json!({
        "text": all.iter().map(text).collect::<String>(),
        "finish_reason": last["finish_reason"],
        "stop_reason": last["stop_reason"],
        "content": list(&|piece| &piece["logprobs"]["content"]),
        "tokens": list(&|piece| &piece["logprobs"]["tokens"]),
        "token_logprobs": list(&|piece| &piece["logprobs"]["token_logprobs"]),
        "text_offset": list(&|piece| &piece["logprobs"]["text_offset"]),
        "token_ids": list(&|piece| &piece["token_ids"]),
        "prompt_token_ids": if path == CHAT { json!([]) } else { list(&|piece| &piece["prompt_token_ids"]).into() },
    })
}

/// The same view of an answer that was not streamed.
fn viewed(choice: &Value, path: &str) -> Value {
    let text = if path == CHAT { &choice["message"]["content"] } else { &choice["text"] };
    let list = |value: &Value| Value::Array(value.as_array().cloned().unwrap_or_default());
    let logprobs = &choice["logprobs"];
    json!({
        "text": text,
        "finish_reason": choice["finish_reason"],
        "stop_reason": choice["stop_reason"],
        "content": list(&logprobs["content"]),
        "tokens": list(&logprobs["tokens"]),
        "token_logprobs": list(&logprobs["token_logprobs"]),
        "text_offset": list(&logprobs["text_offset"]),
        "token_ids": list(&choice["token_ids"]),
        "prompt_token_ids": list(&choice["prompt_token_ids"]),
    })
}

#[test]
fn a_stream_makes_up_the_whole() {
    let server = start("llama", config());
    for (_, path, body) in cases() {
        let whole = uncached(post(server.address, path, &body).json());
        let mut streamed = body.clone();
        streamed["stream"] = json!(true);
        streamed["stream_options"] = json!({"include_usage": true});
        let got = post(server.address, path, &streamed);
        assert_eq!((got.status, got.header("content-type")), (200, Some("text/event-stream; charset=utf-8")));
        let mut events = got.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        let chunks: Vec<Value> =
            events.iter().map(|event| uncached(serde_json::from_str(event).unwrap())).collect();
        let (last, chunks) = chunks.split_last().unwrap();
        assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &whole["usage"]), "{body}");
        assert!(chunks.iter().all(|chunk| chunk["id"] == last["id"] && chunk.get("usage").is_none()));
        for choice in whole["choices"].as_array().unwrap() {
            let index = choice["index"].as_u64().unwrap() as usize;
            assert_eq!(gathered(chunks, index, path), viewed(choice, path), "{body}");
        }
    }
}

#[test]
fn usage_can_be_in_every_chunk_or_in_none() {
    let server = start("llama", config());
    let ask = |options: Value| {
        let body = json!({"prompt": [5, 9], "max_tokens": 5, "temperature": 0, "ignore_eos": true,
                          "logprobs": 0, "stream": true, "stream_options": options});
        let mut events = post(server.address, COMPLETIONS, &body).events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        events
            .iter()
            .map(|event| serde_json::from_str::<Value>(event).unwrap()["usage"].clone())
            .collect::<Vec<_>>()
    };
    assert!(ask(json!({})).iter().all(Value::is_null));
    let none = json!({"include_usage": false, "continuous_usage_stats": true});
    assert!(ask(none).iter().all(Value::is_null));
    let counted: Vec<_> = ask(json!({"include_usage": true, "continuous_usage_stats": true}));
    let tokens: Vec<_> = counted.iter().map(|usage| usage["completion_tokens"].as_u64().unwrap()).collect();
    assert_eq!(tokens, [1, 2, 3, 4, 5, 5]);
    assert!(counted.iter().all(|usage| usage["prompt_tokens"] == 2));
}

#[test]
fn only_a_prompts_scores() {
    let server = start("llama", config());
    let body = json!({"prompt": [5, 9, 17], "echo": true, "logprobs": 1, "max_tokens": 0});
    let whole = post(server.address, COMPLETIONS, &body).json();
    assert_eq!(whole["usage"]["completion_tokens"], 0);
    assert_eq!(whole["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap().len(), 3);
    let streamed =
        json!({"prompt": [5, 9, 17], "echo": true, "logprobs": 1, "max_tokens": 0, "stream": true});
    let events = post(server.address, COMPLETIONS, &streamed).events();
    let chunk: Value = serde_json::from_str(&events[0]).unwrap();
    assert_eq!(chunk["choices"][0]["logprobs"], whole["choices"][0]["logprobs"]);
    assert_eq!(events.len(), 2);
}

#[test]
fn the_server_says_what_it_is() {
    let server = start("llama", config());
    let models = get(server.address, "/v1/models").json();
    assert_eq!(models["object"], "list");
    assert_eq!((&models["data"][0]["id"], &models["data"][1]["id"]), (&json!("llama"), &json!("org/alias")));
    assert_eq!(models["data"][0]["max_model_len"], common::CONTEXT);
    for id in ["llama", "org/alias", "org%2Falias"] {
        assert_eq!(get(server.address, &format!("/v1/models/{id}")).json()["object"], "model", "{id}");
    }
    assert_eq!(get(server.address, "/v1/models/else").json()["error"]["code"], "model_not_found");
    assert_eq!(get(server.address, "/health").json(), json!({"status": "ok"}));
    assert!(get(server.address, "/version").json()["version"].is_string());
    let body = json!({"prompt": [5, 9], "max_tokens": 3, "temperature": 0, "ignore_eos": true});
    assert_eq!(post(server.address, COMPLETIONS, &body).status, 200);
    for (name, value) in [
        ("vllm:prompt_tokens_total", 2.0),
        ("vllm:generation_tokens_total", 3.0),
        ("vllm:time_to_first_token_seconds_count", 1.0),
        ("vllm:inter_token_latency_seconds_count", 2.0),
        ("vllm:e2e_request_latency_seconds_count", 1.0),
    ] {
        common::until(|| common::metric(server.address, name) == value);
    }
    let text = get(server.address, "/metrics").body;
    assert!(text.contains(
        "vllm:request_success_total{model_name=\"llama\",engine=\"0\",finished_reason=\"length\"} 1"
    ));
    common::until(|| common::is_idle(server.address));
}

#[test]
fn texts_become_tokens_and_texts_again() {
    let server = start("llama", config());
    let text = "Ahoy, è 漢字";
    let body = json!({"prompt": text, "add_special_tokens": false, "return_token_strs": true});
    let cut = post(server.address, "/tokenize", &body).json();
    let tokens = cut["tokens"].as_array().unwrap();
    assert_eq!(
        (cut["count"].as_u64(), &cut["max_model_len"]),
        (Some(tokens.len() as u64), &json!(common::CONTEXT))
    );
    assert_eq!(cut["token_strs"].as_array().unwrap().len(), tokens.len());
    let back = post(server.address, "/detokenize", &json!({"tokens": tokens})).json();
    assert_eq!(back, json!({"prompt": text}));
    let chat = json!({"messages": [{"role": "user", "content": "Ahoy"}]});
    let cut = post(server.address, "/tokenize", &chat).json();
    let back = post(server.address, "/detokenize", &json!({"tokens": cut["tokens"]})).json();
    assert!(back["prompt"].as_str().unwrap().ends_with("Ahoy<|im_end|>\n<|im_start|>assistant\n"), "{back}");
    let bad = post(server.address, "/detokenize", &json!({"tokens": [99_999]}));
    assert_eq!((bad.status, &bad.json()["error"]["param"]), (400, &json!("tokens")));
}
