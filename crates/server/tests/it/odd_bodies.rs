//! Bodies that mean something in part: never the server's fault.

use std::collections::BTreeSet;

use crate::common::{code, config, good, is_idle, post, start, until};
use model::api::OwnTemplates;
use model::api::schema::{self, Offered};
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

/// Every field that any request has, and one that none has.
fn fields() -> Vec<String> {
    let offered = Offered { vocab: 100, max_logprobs: 20, own_templates: OwnTemplates::Taken };
    let forms = [
        schema::completion(&offered),
        schema::chat(&offered),
        schema::responses(&offered),
        schema::messages(&offered),
        schema::tokenize(),
        schema::detokenize(100),
    ];
    let named = forms.iter().flat_map(|form| form["properties"].as_object().unwrap().keys().cloned());
    let all: BTreeSet<String> = named.chain(["unheard_of".to_string()]).collect();
    all.into_iter().collect()
}

#[test]
fn odd_bodies_are_never_the_servers_fault() {
    let server = start("llama", config());
    let field = (prop::sample::select(fields()), json_value());
    let extra = prop::collection::vec(field, 0..4);
    let paths = [
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/tokenize",
        "/detokenize",
    ];
    let path = prop::sample::select(paths.to_vec());
    let mut runner = TestRunner::new_with_rng(
        Runs { cases: 1200, failure_persistence: None, ..Runs::default() },
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let run = runner.run(&(path, extra), |(path, extra)| {
        let mut body = match path {
            "/v1/responses" => json!({"input": [{"role": "user", "content": "x"}], "max_output_tokens": 3}),
            "/v1/responses/input_tokens" => json!({"input": "x"}),
            "/v1/chat/completions" | "/v1/messages" | "/v1/messages/count_tokens" => {
                json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 3})
            }
            "/detokenize" => json!({"tokens": [1]}),
            _ => json!({"prompt": "x", "max_tokens": 3}),
        };
        extra.into_iter().for_each(|(name, value)| body[name.as_str()] = value);
        let response = post(server.address, path, &body);
        prop_assert!(response.status < 500, "{path} {body}: {}", response.body);
        let is_told = || path.starts_with("/v1/messages") || code(&response).is_some();
        prop_assert!(response.status == 200 || response.status == 400 || is_told());
        Ok(())
    });
    run.unwrap();
    until(|| is_idle(server.address));
    good(&server);
}
