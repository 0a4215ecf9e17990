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
    let long = json!({"messages": [{"role": "user", "content": "ahoy ".repeat(2000)}]});
    let error = talk(long).unwrap_err();
    assert_eq!((error.code, error.param.as_deref()), (Some("context_length_exceeded"), Some("messages")));
    assert!(error.message.contains("shorten messages"), "{error}");
    let cut = json!({"truncate_prompt_tokens": 0});
    assert_eq!(refused(talk(cut)), "messages");
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
