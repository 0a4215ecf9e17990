//! Requests that are drawn: what is valid is answered as it asked for, whatever is done to its bytes is never the
//! server's fault, and nothing hangs.

use crate::common::{Response, Running, config, is_idle, post, request, send, start, until};
use proptest::prelude::*;
use proptest::test_runner::{Config as Runs, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};

/// The same draws in every run.
fn runner(cases: u32) -> TestRunner {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    TestRunner::new_with_rng(Runs { cases, failure_persistence: None, ..Runs::default() }, rng)
}

/// A body and what its answer must have.
#[derive(Clone, Debug)]
struct Asked {
    path: &'static str,
    body: Value,
    choices: usize,
    stream: bool,
}

/// One prompt or several, of text or tokens, and how many there are.
fn prompts() -> impl Strategy<Value = (Value, usize)> {
    let text = || "[a-zA-Zäß ]{1,30}";
    let tokens = || prop::collection::vec(3u32..200, 1..40);
    prop_oneof![
        text().prop_map(|text| (json!(text), 1)),
        tokens().prop_map(|tokens| (json!(tokens), 1)),
        prop::collection::vec(text(), 1..4).prop_map(|texts| (json!(texts), texts.len())),
        prop::collection::vec(tokens(), 1..4).prop_map(|lists| (json!(lists), lists.len())),
    ]
}

fn messages() -> impl Strategy<Value = Value> {
    let role = prop::sample::select(vec!["user", "assistant"]);
    prop::collection::vec((role, "[ -~äß]{1,20}"), 1..4).prop_map(|turns| {
        turns.iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
    })
}

/// Fields that both endpoints have.
fn parameters() -> impl Strategy<Value = Vec<(&'static str, Value)>> {
    let maybe = prop::option::of::<BoxedStrategy<(&'static str, Value)>>;
    let field = |name: &'static str, value: BoxedStrategy<Value>| {
        maybe(value.prop_map(move |value| (name, value)).boxed())
    };
    let fields = vec![
        field("temperature", (0f32..2.0).prop_map(|x| json!(x)).boxed()),
        field("top_p", (0.01f32..=1.0).prop_map(|x| json!(x)).boxed()),
        field("top_k", (-1i32..50).prop_map(|x| json!(x)).boxed()),
        field("min_p", (0f32..=1.0).prop_map(|x| json!(x)).boxed()),
        field("presence_penalty", (-2f32..=2.0).prop_map(|x| json!(x)).boxed()),
        field("repetition_penalty", (0.5f32..2.0).prop_map(|x| json!(x)).boxed()),
        field("seed", any::<i64>().prop_map(|x| json!(x)).boxed()),
        field("stop", prop::collection::vec("[a-z]{1,3}", 0..3).prop_map(|x| json!(x)).boxed()),
        field("ignore_eos", any::<bool>().prop_map(|x| json!(x)).boxed()),
        field(
            "logit_bias",
            (3u32..200, -100f32..100.0).prop_map(|(id, x)| json!({id.to_string(): x})).boxed(),
        ),
        field("user", any::<String>().prop_map(|x| json!(x)).boxed()),
        field("unheard_of", any::<bool>().prop_map(|x| json!({"deep": [x]})).boxed()),
    ];
    fields.prop_map(|fields| fields.into_iter().flatten().collect())
}

fn asked() -> impl Strategy<Value = Asked> {
    let kind = prop_oneof![
        prompts().prop_map(|(prompt, n)| ("/v1/completions", json!({"prompt": prompt}), n)),
        messages().prop_map(|messages| ("/v1/chat/completions", json!({"messages": messages}), 1)),
    ];
    (kind, parameters(), 1usize..5, 1usize..3, any::<bool>()).prop_map(
        |((path, mut body, prompts), fields, max_tokens, n, stream)| {
            fields.into_iter().for_each(|(name, value)| body[name] = value);
            body["max_tokens"] = json!(max_tokens);
            body["n"] = json!(n);
            body["stream"] = json!(stream);
            if stream {
                body["stream_options"] = json!({"include_usage": true});
            }
            Asked { path, body, choices: prompts * n, stream }
        },
    )
}

/// The answer's choices that ended, and its count of tokens.
fn ended(asked: &Asked, response: &Response) -> (usize, Value) {
    if !asked.stream {
        let body = response.json();
        return (body["choices"].as_array().unwrap().len(), body["usage"].clone());
    }
    let events = response.events();
    let (last, chunks) = events.split_last().expect("a stream has an end");
    assert_eq!(last, "[DONE]", "{}", response.body);
    let chunks: Vec<Value> = chunks.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect();
    let finished = |chunk: &Value| {
        chunk["choices"].as_array().unwrap().iter().filter(|c| c["finish_reason"].is_string()).count()
    };
    (chunks.iter().map(finished).sum(), chunks.last().expect("a chunk")["usage"].clone())
}

fn idle(server: &Running) {
    until(|| is_idle(server.address));
}

#[test]
fn what_is_valid_is_answered_as_it_asked_for() {
    let server = start("llama", config());
    let run = runner(120).run(&asked(), |asked| {
        let response = post(server.address, asked.path, &asked.body);
        prop_assert_eq!(response.status, 200, "{}", response.body);
        let (choices, usage) = ended(&asked, &response);
        prop_assert_eq!(choices, asked.choices);
        let count = |name: &str| usage[name].as_u64().unwrap_or_else(|| panic!("{usage}"));
        let most = asked.choices as u64 * asked.body["max_tokens"].as_u64().unwrap();
        prop_assert!((1..=most).contains(&count("completion_tokens")), "{}", usage);
        prop_assert_eq!(count("total_tokens"), count("prompt_tokens") + count("completion_tokens"));
        Ok(())
    });
    run.unwrap();
    idle(&server);
}

/// What happens to bytes on their way.
#[derive(Clone, Debug)]
enum Harm {
    Cut(prop::sample::Index),
    Set(prop::sample::Index, u8),
    Insert(prop::sample::Index, Vec<u8>),
    Twice(prop::sample::Index, prop::sample::Index),
}

fn harm() -> impl Strategy<Value = Harm> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        at().prop_map(Harm::Cut),
        (at(), any::<u8>()).prop_map(|(at, byte)| Harm::Set(at, byte)),
        (at(), prop::collection::vec(any::<u8>(), 1..6)).prop_map(|(at, bytes)| Harm::Insert(at, bytes)),
        (at(), at()).prop_map(|(from, to)| Harm::Twice(from, to)),
    ]
}

fn harmed(mut bytes: Vec<u8>, harms: &[Harm]) -> Vec<u8> {
    for harm in harms {
        if bytes.is_empty() {
            break;
        }
        let n = bytes.len();
        match harm {
            Harm::Cut(at) => bytes.truncate(at.index(n)),
            Harm::Set(at, byte) => bytes[at.index(n)] = *byte,
            Harm::Insert(at, more) => {
                let at = at.index(n);
                bytes.splice(at..at, more.iter().copied());
            }
            Harm::Twice(from, to) => {
                let (from, to) = (from.index(n).min(to.index(n)), from.index(n).max(to.index(n)));
                let piece = bytes[from..to].to_vec();
                bytes.splice(to..to, piece);
            }
        }
    }
    bytes
}

#[test]
fn bytes_that_were_harmed_are_never_the_servers_fault() {
    let server = start("llama", config());
    let run = runner(300).run(&(asked(), prop::collection::vec(harm(), 1..4)), |(asked, harms)| {
        let bytes = harmed(asked.body.to_string().into_bytes(), &harms);
        let response =
            send(server.address, &request("POST", asked.path, "Content-Type: application/json\r\n", &bytes));
        prop_assert!([200, 400, 404].contains(&response.status), "{}", response.body);
        if response.status != 200 {
            prop_assert!(response.json()["error"]["message"].is_string(), "{}", response.body);
        }
        Ok(())
    });
    run.unwrap();
    idle(&server);
}
