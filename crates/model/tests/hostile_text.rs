//! Random damage to everything that text passes through: errors are fine, panics and hangs are not.

use model::api::schema::{self, Offered};
use model::api::{BatchLine, Context, OwnTemplates, Streaming, chat, completion};
use model::output::TextStream;
use model::sampling::{GenerationConfig, Limits, Overrides, Sampler, SamplingParams};
use model::template::{SpecialTexts, WallClock};
use model::tokenizer::TokenizerConfig;
use model::{ChatTemplate, Conversation, Special, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

const SMOLLM: &str = include_str!("fixtures/tokenizer/smollm.json");
const LLAMA: &str = include_str!("fixtures/tokenizer/llama.json");

fn hf(fixture: &str) -> Value {
    serde_json::from_str::<Value>(fixture).unwrap()["hf"].take()
}

static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let json = serde_json::to_vec(&hf(LLAMA)).unwrap();
    Arc::new(Tokenizer::from_hf(&json, &TokenizerConfig::default()).unwrap())
});

/// Every field that requests have, and one that they have not.
static FIELDS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let offered =
        Offered { vocab: TOKENIZER.vocab_size(), max_logprobs: 20, own_templates: OwnTemplates::Taken };
    let forms = [schema::completion(&offered), schema::chat(&offered)];
    let named = forms.iter().flat_map(|form| form["properties"].as_object().unwrap().keys().cloned());
    let all: BTreeSet<String> = named.chain(["unheard_of".to_owned()]).collect();
    all.into_iter().collect()
});

/// A small JSON value of any kind.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3i64..40).prop_map(Value::from),
        any::<f64>().prop_map(|x| json!(x)),
        "[a-z<>|▁é👍 %{}]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-z_]{1,8}", inner), 0..4)
                .prop_map(|kv| Value::Object(kv.into_iter().collect())),
        ]
    })
}

/// Replaces the value reached by the steps; a step picks one of the children.
fn damage(value: &mut Value, steps: &[usize], with: Value) {
    let Some((step, rest)) = steps.split_first() else {
        *value = with;
        return;
    };
    let child = match value {
        Value::Array(items) if !items.is_empty() => {
            let n = items.len();
            &mut items[step % n]
        }
        Value::Object(map) if !map.is_empty() => {
            let n = map.len();
            map.values_mut().nth(step % n).unwrap()
        }
        leaf => {
            *leaf = with;
            return;
        }
    };
    damage(child, rest, with);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tokenizer_json(steps in prop::collection::vec(any::<usize>(), 1..5), with in any_json(), llama in any::<bool>()) {
        let mut file = hf(if llama { LLAMA } else { SMOLLM });
        damage(&mut file, &steps, with);
        let json = serde_json::to_vec(&file).unwrap();
        if let Ok(tokenizer) = Tokenizer::from_hf(&json, &TokenizerConfig::default()) {
            if let Ok(ids) = tokenizer.encode("It's 2 o'clock, né? 👍", Special::With) {
                tokenizer.decode(&ids, Special::Without);
            }
            tokenizer.decode(&[0, 1, u32::MAX, 300], Special::With);
        }
    }

    #[test]
    fn any_text_survives_encoding_and_decoding(text in ".{0,60}") {
        let ids = TOKENIZER.encode(&text, Special::With).unwrap();
        prop_assert_eq!(TOKENIZER.decode(&ids, Special::Without), text);
    }

    #[test]
    fn streams_equal_full_decode(ids in prop::collection::vec(0u32..700, 0..40)) {
        let params = SamplingParams { ignore_eos: true, ..SamplingParams::default() };
        let mut stream = TextStream::new(TOKENIZER.clone(), &params, &[2], usize::MAX);
        let mut text: String = ids.iter().map(|&id| stream.push(id).text).collect();
        text += &stream.abort().text;
        prop_assert_eq!(text, TOKENIZER.decode(&ids, Special::Without));
    }

    #[test]
    fn template_soup(words in prop::collection::vec(prop::sample::select(&WORDS[..]), 0..24)) {
        let messages = [json!({"role": "user", "content": "hi"})];
        let rendered = ChatTemplate::new(&words.concat())
            .and_then(|t| t.render(&Conversation { messages: &messages, ..Conversation::default() }));
        drop(rendered);
    }

    #[test]
    fn request_bodies(fields in prop::collection::vec((prop::sample::select(&FIELDS[..]), any_json()), 0..6)) {
        let template = ChatTemplate::new("{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}").unwrap();
        let generation = GenerationConfig::default();
        let served = ["m".to_owned()];
        let context = Context {
            tokenizer: &TOKENIZER,
            template: Some(&template),
            tool_template: None,
            special: SpecialTexts::default(),
            generation: &generation,
            served: &served,
            vocab_size: TOKENIZER.vocab_size(),
            context_len: 100,
            max_logprobs: 20,
            own_templates: OwnTemplates::Taken,
            thoughts: model::thoughts::Manner::default(),
            streaming: Streaming::Offered,
            now: WallClock::default(),
        };
        let mut body = json!({"prompt": "x", "messages": [{"role": "user", "content": "x"}]});
        for (name, value) in fields {
            body[name.as_str()] = value;
        }
        for generate in [completion(&body, &context), chat(&body, &context)].into_iter().flatten() {
            prop_assert!(generate.prompts.iter().all(|p| !p.is_empty() && p.len() <= 100));
        }
        drop(BatchLine::parse(&body.to_string()));
    }

    #[test]
    fn samplers_take_a_token_or_say_why(
        logits in prop::collection::vec(prop_oneof![8 => -40f32..40.0, 1 => any::<f32>()], 1..80),
        temperature in prop_oneof![Just(0.0f32), 1e-4f32..4.0, Just(1e30)],
        top_k in -1i64..90,
        top_p in 1e-6f32..1.0,
        min_p in 0f32..1.0,
    ) {
        let request = Overrides {
            temperature: Some(temperature), top_k: Some(top_k), top_p: Some(top_p), min_p: Some(min_p),
            logprobs: Some(4), repetition_penalty: Some(1.3), ..Overrides::default()
        };
        let params = SamplingParams::resolve(&request, &GenerationConfig::default(), Limits { vocab_size: 80, max_logprobs: 20 }).unwrap();
        let mut sampler = Sampler::new(params, &[1, 79], &[2], 3);
        for _ in 0..3 {
            match sampler.sample(&logits) {
                Ok(sampled) => {
                    let x = logits[sampled.token as usize];
                    prop_assert!(x > f32::NEG_INFINITY, "{x}");
                    prop_assert!(sampled.logprobs.unwrap().logprob <= 0.0);
                }
                Err(_) => prop_assert!(logits.iter().any(|x| !x.is_finite()) || logits.iter().all(|&x| x == f32::NEG_INFINITY)),
            }
        }
    }
}

const WORDS: [&str; 30] = [
    "{{",
    "}}",
    "{%",
    "%}",
    "{%-",
    "-%}",
    "{#",
    "#}",
    " if ",
    " else ",
    " endif ",
    " for m in messages ",
    " endfor ",
    " set x = ",
    "messages",
    "[0]",
    "[::-1]",
    ".content",
    "|tojson",
    "|length",
    "(",
    ")",
    "'",
    "\"",
    " ~ ",
    " + ",
    " generation ",
    " endgeneration ",
    "\\",
    "é",
];
