//! Fields by themselves: what names an error, what is offered only by a flag, and words that must not come.

use serde_json::{Value, json};

use super::tests::{complete, model, refused, talk};
use super::*;
use crate::tokenizer::Special;

#[test]
fn chats_hear_of_their_own_fields() {
    assert_eq!(refused(talk(json!({"max_completion_tokens": 0}))), "max_completion_tokens");
    assert_eq!(
        refused(talk(json!({"max_completion_tokens": 100_000, "max_tokens": 1}))),
        "max_completion_tokens"
    );
    assert_eq!(refused(talk(json!({"max_tokens": 100_000}))), "max_tokens");
    let negative = talk(json!({"max_tokens": -1})).unwrap_err();
    assert!(negative.message.contains("expected a count from 0 to 4294967295, found -1"), "{negative}");
    let long = json!({"messages": [{"role": "user", "content": "ahoy ".repeat(2000)}]});
    let error = talk(long).unwrap_err();
    assert_eq!((error.code, error.param.as_deref()), (Some("context_length_exceeded"), Some("messages")));
    assert!(error.message.contains("shorten messages"), "{error}");
    let cut = json!({"truncate_prompt_tokens": 0});
    assert_eq!(refused(talk(cut)), "messages");
}

#[test]
fn long_prompts_are_cut_as_asked() {
    let prompt: Vec<u32> = (1..=1200).map(|i| i % 90).collect();
    let cut = |more: Value| {
        let mut body = json!({"prompt": prompt, "max_tokens": 100});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        complete(body).map(|g| g.prompts[0].clone())
    };
    assert_eq!(cut(json!({"truncate_prompt_tokens": 3})).unwrap(), prompt[1197..]);
    assert_eq!(cut(json!({"truncate_prompt_tokens": 3, "truncation_side": "left"})).unwrap(), prompt[1197..]);
    assert_eq!(cut(json!({"truncate_prompt_tokens": 3, "truncation_side": "right"})).unwrap(), prompt[..3]);
    assert_eq!(
        cut(json!({"truncate_prompt_tokens": -1})).unwrap(),
        prompt[300..],
        "100 of 1,000 are the answer's"
    );
    assert_eq!(
        cut(json!({"truncate_prompt_tokens": -1, "truncation_side": "right"})).unwrap(),
        prompt[..900]
    );
    let usual = complete(json!({"prompt": prompt, "truncate_prompt_tokens": -1})).unwrap();
    assert_eq!(usual.prompts[0], prompt[216..], "16 are the answer's where nothing is said");
    let scored = json!({"truncate_prompt_tokens": -1, "max_tokens": 0, "echo": true, "logprobs": 1});
    assert_eq!(cut(scored).unwrap(), prompt[201..], "scores take a place behind the prompt too");
    // What is far too long is not even cut up, unless an end of it is wanted.
    let long = "a".repeat(200_000);
    let why = complete(json!({"prompt": long})).unwrap_err();
    assert_eq!((why.param.as_deref(), why.code), (Some("prompt"), Some("context_length_exceeded")));
    assert!(why.message.contains("the prompt has at least"), "{}", why.message);
    let why = talk(json!({"messages": [{"role": "user", "content": long}]})).unwrap_err();
    assert!(why.message.contains("at least") && why.param.as_deref() == Some("messages"), "{}", why.message);
    assert_eq!(complete(json!({"prompt": long, "truncate_prompt_tokens": 3})).unwrap().prompts[0].len(), 3);
    let whole = json!({"prompt": [1, 2], "truncate_prompt_tokens": -1, "truncation_side": null});
    assert_eq!(complete(whole).unwrap().prompts, [[1, 2]]);
    let unknown = complete(json!({"prompt": [1], "truncation_side": "left"})).unwrap().unknown_fields;
    assert!(unknown.is_empty(), "{unknown:?}");
    assert_eq!(
        cut(json!({"truncate_prompt_tokens": -1, "max_tokens": 1000})).unwrap_err().code,
        Some("context_length_exceeded")
    );
    assert_eq!(
        refused(complete(json!({"prompt": [1], "truncate_prompt_tokens": -2}))),
        "truncate_prompt_tokens"
    );
    assert_eq!(refused(complete(json!({"prompt": [1], "truncation_side": "top"}))), "truncation_side");
}

#[test]
fn whole_numbers_may_be_written_with_a_point() {
    let g =
        complete(json!({"prompt": [9.0, 7], "max_tokens": 16.0, "seed": -3.0, "top_k": 5.0, "logprobs": 2.0,
        "stop_token_ids": [4.0]}));
    let g = g.unwrap();
    assert_eq!(
        (&g.prompts[0][..], g.params.max_tokens, g.params.seed),
        (&[9, 7][..], Some(16), Some(-3i64 as u64))
    );
    assert_eq!(g.params.logprobs, Some(2));
    assert_eq!(complete(json!({"prompt": [9], "logprobs": false})).unwrap().params.logprobs, None);
    assert_eq!(talk(json!({"logprobs": true, "top_logprobs": 1.0})).unwrap().params.logprobs, Some(1));
    for (field, wrong) in [
        ("max_tokens", json!(16.5)),
        ("max_tokens", json!(-1.0)),
        ("max_tokens", json!(1e300)),
        ("seed", json!(1e19)),
        ("seed", serde_json::from_str("-9223372036854775809").unwrap()),
        ("seed", serde_json::from_str("9223372036854775808").unwrap()),
        ("seed", json!(u64::MAX)),
        ("logprobs", json!(true)),
    ] {
        let mut body = json!({"prompt": [9]});
        body[field] = wrong;
        assert_eq!(refused(complete(body)), field);
    }
}

#[test]
fn bad_words_are_tokens_with_and_without_a_space() {
    let m = model();
    let encode = |text: &str| m.tokenizer.encode(text, Special::Without).unwrap();
    let words =
        |words: Value| complete(json!({"prompt": [9], "bad_words": words})).map(|g| g.params.bad_words);
    let (bare, spaced) = (encode("hello"), encode(" hello"));
    let expected: Vec<Vec<u32>> = match bare.len() == spaced.len() && bare[0] != spaced[0] {
        true => vec![spaced, bare],
        false => vec![bare],
    };
    assert_eq!(words(json!(["hello"])).unwrap()[..], expected[..]);
    assert_eq!(words(json!(["  hello"])).unwrap()[..], expected[..], "spaces before it do not matter");
    assert!(words(json!([])).unwrap().is_empty() && words(json!(null)).unwrap().is_empty());
    for wrong in [json!("hello"), json!([1]), json!([""]), json!(["x".repeat(1025)]), json!(vec!["x"; 129])] {
        let refused = words(wrong.clone()).unwrap_err();
        assert_eq!((refused.status, refused.param.as_deref()), (400, Some("bad_words")), "{wrong}");
    }
}

#[test]
fn templates_and_more_logprobs_only_where_they_are_offered() {
    let m = model();
    let offered = Context {
        own_templates: OwnTemplates::Taken,
        max_logprobs: 40,
        ..m.context(1000, Streaming::Offered)
    };
    let body = |more: &[(&str, Value)]| {
        let mut body = json!({"messages": [{"role": "user", "content": "hello"}]});
        more.iter().for_each(|(name, value)| body[*name] = value.clone());
        body
    };
    let own = ("chat_template", json!("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}"));
    let twice = chat(&body(std::slice::from_ref(&own)), &offered).unwrap();
    assert_eq!(twice.prompts, [m.tokenizer.encode("hellohello", Special::Without).unwrap()]);
    let tokens = tokenize(&body(std::slice::from_ref(&own)), &offered).unwrap();
    assert_eq!(tokens["tokens"], json!(twice.prompts[0]));
    for wrong in ["{% if %}", "{% for i in range(100000000) %}x{% endfor %}"] {
        let error = chat(&body(&[("chat_template", json!(wrong))]), &offered).unwrap_err();
        assert_eq!(error.status, 400, "{wrong}: {error}");
    }
    let tool = json!([{"type": "function", "function": {"name": "sail"}}]);
    let with_tools = chat(&body(&[own, ("tools", tool)]), &offered).unwrap();
    assert!(with_tools.calls.is_some(), "it writes calls as the model's own template does");

    let rivals = |n: u32| body(&[("logprobs", json!(true)), ("top_logprobs", json!(n))]);
    assert_eq!(chat(&rivals(40), &offered).unwrap().params.logprobs, Some(40));
    let error = chat(&rivals(41), &offered).unwrap_err();
    assert!(error.message.contains("--max-logprobs"), "{error}");
}

#[test]
fn an_end_may_be_ignored_until_a_format_leaves_nothing_else() {
    let body = json!({"prompt": [9], "ignore_eos": true, "structured_outputs": {"choice": ["hello"]}});
    let params = complete(body).unwrap().params;
    assert!(params.grammar.is_some() && params.ignore_eos && params.ends_at_eos());
    let open = complete(json!({"prompt": [9], "ignore_eos": true})).unwrap().params;
    assert!(!open.ends_at_eos());
}

#[test]
fn what_a_request_keeps_does_not_grow_with_its_texts() {
    let salted = |salt: String| complete(json!({"prompt": [9], "cache_salt": salt})).unwrap().cache_salt;
    let (long, other) = ("x".repeat(1 << 20), "x".repeat(1 << 20) + "y");
    assert_eq!(salted(long.clone()).unwrap().len(), 64);
    assert!(salted(long.clone()) == salted(long.clone()) && salted(long) != salted(other));
    assert_eq!(refused(complete(json!({"prompt": [9], "cache_salt": 1}))), "cache_salt");
    let mut body = json!({"prompt": [9], "user": "me"});
    (0..500).for_each(|i| body[format!("{i:03}{}", "ä".repeat(1000))] = json!(1));
    let unknown = complete(body).unwrap().unknown_fields;
    assert_eq!((unknown.len(), unknown.iter().count()), (500, 8));
    assert!(unknown.iter().all(|name| name.len() < 200 && name.starts_with("00")), "{unknown:?}");
}
