//! Bodies that mean something in part: never the server's fault.

mod common;

use common::{code, config, good, is_idle, post, start, until};
use proptest::prelude::*;
use proptest::test_runner::{Config as Runs, TestRunner};
use serde_json::{Value, json};

/// JSON of any kind, with the names of fields that mean something in it.
fn json_value() -> impl Strategy<Value = Value> {
    let number = prop_oneof![
        Just(json!(i64::MIN)),
        Just(json!(u64::MAX)),
        Just(json!(-1)),
        Just(json!(0)),
        Just(json!(1e308)),
        (0u32..400).prop_map(|n| json!(n)),
        any::<f32>().prop_map(|x| json!(x)),
    ];
    let text = prop_oneof![Just(String::new()), "[ -~]{0,12}", any::<String>()];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        number,
        text.prop_map(Value::String)
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        let key = prop_oneof![
            Just("role".to_string()),
            Just("content".to_string()),
            Just("type".to_string()),
            "[a-z]{1,5}"
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map(key, inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

const FIELDS: [&str; 40] = [
    "model",
    "prompt",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "n",
    "best_of",
    "logprobs",
    "top_logprobs",
    "echo",
    "prompt_logprobs",
    "logit_bias",
    "allowed_token_ids",
    "stream",
    "stream_options",
    "tools",
    "tool_choice",
    "response_format",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "documents",
    "truncate_prompt_tokens",
    "return_token_ids",
    "cache_salt",
    "tokens",
];

#[test]
fn odd_bodies_are_never_the_servers_fault() {
    let server = start("llama", config());
    let field = (prop::sample::select(&FIELDS[..]), json_value());
    let extra = prop::collection::vec(field, 0..4);
    let path =
        prop::sample::select(vec!["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]);
    let mut runner = TestRunner::new_with_rng(
        Runs { cases: 600, failure_persistence: None, ..Runs::default() },
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let run = runner.run(&(path, extra), |(path, extra)| {
        let mut body = match path {
            "/v1/chat/completions" => {
                json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 3})
            }
            "/detokenize" => json!({"tokens": [1]}),
            _ => json!({"prompt": "x", "max_tokens": 3}),
        };
        extra.into_iter().for_each(|(name, value)| body[name] = value);
        let response = post(server.address, path, &body);
        prop_assert!(response.status < 500, "{path} {body}: {}", response.body);
        prop_assert!(response.status == 200 || code(&response).is_some() || response.status == 400);
        Ok(())
    });
    run.unwrap();
    until(|| is_idle(server.address));
    good(&server);
}
