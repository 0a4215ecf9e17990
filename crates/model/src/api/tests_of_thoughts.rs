//! Thoughts: which answers may have some, and how those are told, whole and in pieces.

use std::sync::Arc;

use serde_json::{Value, json};

use super::tests::{Model, choice, meta, model, parsed, refused};
use super::*;
use crate::output::{Finish, FinishReason};
use crate::thoughts::{Manner, Shown};
use crate::tokenizer::TokenizerConfig;

/// A model of Qwen3's manners, whose markers are tokens, special ones or not, or none.
pub(super) fn thinker(markers: Option<bool>) -> Model {
    let fixture = include_str!("../../tests/fixtures/tokenizer/llama-bpe.json");
    let mut fixture: Value = serde_json::from_str(fixture).unwrap();
    let n = fixture["hf"]["model"]["vocab"].as_object().unwrap().len();
    for (at, text) in ["<think>", "</think>"].into_iter().enumerate().filter(|_| markers.is_some()) {
        fixture["hf"]["added_tokens"].as_array_mut().unwrap().push(json!({
            "id": n + at, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": markers == Some(true),
        }));
    }
    let json = serde_json::to_vec(&fixture["hf"]).unwrap();
    let template = include_str!("../../tests/fixtures/templates/qwen3.jinja");
    let mut model = model();
    model.tokenizer = Tokenizer::from_hf(&json, &TokenizerConfig::default()).unwrap();
    model.template = ChatTemplate::new(template).unwrap();
    model
}

fn ask(model: &Model, mut body: Value) -> Result<Generate, ApiError> {
    body["messages"] = json!([{"role": "user", "content": "Hi"}]);
    chat(&body, &model.context(1000, Streaming::Offered))
}

const TEXT: &str = "<think>\nHm, hi?\n</think>\n\nHello.";

/// An answer of this text, whose first three tokens are its thoughts.
fn answer(model: &Model, text: &str) -> Choice {
    let marker = |text| model.tokenizer.id_of(text).unwrap_or(0);
    let finish = Finish { reason: FinishReason::Stop, cause: None };
    Choice { finish, ..choice(&[marker("<think>"), 5, marker("</think>"), 6, 7], text) }
}

fn whole(model: &Model, request: &Generate, text: &str) -> Value {
    parsed(&response(request, &[answer(model, text)], &meta(), &model.tokenizer))
}

/// What the chunks of a stream come to, put together: thoughts and text; and what the last of them counts.
fn streamed(model: Model, request: &Generate, text: &str) -> (String, String, Value) {
    let whole = answer(&model, text);
    let mut chunks = Chunks::new(request.clone(), meta(), Arc::new(model.tokenizer));
    let (mut thought, mut said) = (String::new(), String::new());
    let mut pieces: Vec<&str> = text.split_inclusive(' ').collect();
    pieces.resize(pieces.len().max(5), "");
    for (i, text) in pieces.iter().enumerate() {
        let finish = (i + 1 == pieces.len()).then_some(&whole.finish);
        for chunk in
            chunks.of(&News { index: 0, choice: &whole, text, tokens: &(i.min(4)..(i + 1).min(5)), finish })
        {
            let delta = &chunk["choices"][0]["delta"];
            assert!(delta["reasoning_content"].is_null() || said.is_empty(), "thoughts come first");
            thought += delta["reasoning_content"].as_str().unwrap_or_default();
            said += delta["content"].as_str().unwrap_or_default();
        }
    }
    (thought, said, chunks.usage().unwrap()["usage"].clone())
}

#[test]
fn thoughts_are_told_beside_the_answer() {
    let model = || thinker(Some(false));
    let request = ask(&model(), json!({})).unwrap();
    let body = whole(&model(), &request, TEXT);
    let message = &body["choices"][0]["message"];
    assert_eq!(
        (&message["content"], &message["reasoning_content"]),
        (&json!("Hello."), &json!("Hm, hi?")),
        "{body}"
    );
    assert_eq!(body["usage"]["completion_tokens_details"], json!({"reasoning_tokens": 3}));
    let stream = json!({"stream": true, "stream_options": {"include_usage": true}});
    let (thought, said, usage) = streamed(model(), &ask(&model(), stream).unwrap(), TEXT);
    assert_eq!((thought.as_str(), said.as_str(), &usage), ("Hm, hi?", "Hello.", &body["usage"]));
    let plain = whole(&model(), &request, "Hello.");
    assert_eq!(plain["choices"][0]["message"]["content"], "Hello.");
    assert!(plain["choices"][0]["message"].get("reasoning_content").is_none(), "{plain}");
}

#[test]
fn a_request_says_what_becomes_of_thoughts() {
    let model = thinker(Some(false));
    let message = |more: Value| {
        let request = ask(&model, more).unwrap();
        assert!(request.unknown_fields.is_empty());
        let body = whole(&model, &request, TEXT);
        let message = &body["choices"][0]["message"];
        (message["content"].as_str().unwrap().to_owned(), message["reasoning_content"].clone())
    };
    let (text, thought) = ("Hello.".to_owned(), json!("Hm, hi?"));
    assert_eq!(message(json!({"reasoning_format": "auto"})), (text.clone(), thought.clone()));
    assert_eq!(message(json!({"reasoning_format": "deepseek"})), (text.clone(), thought));
    assert_eq!(message(json!({"reasoning_format": "none"})), (TEXT.to_owned(), Value::Null));
    assert_eq!(message(json!({"include_reasoning": false})), (text, Value::Null));
    assert_eq!(
        message(json!({"enable_thinking": false})),
        (TEXT.to_owned(), Value::Null),
        "it is told not to"
    );
    assert_eq!(refused(ask(&model, json!({"reasoning_format": "loud"}))), "reasoning_format");
    let model = thinker(Some(true));
    assert!(!ask(&model, json!({})).unwrap().params.skip_special_tokens, "markers must be seen");
}

#[test]
fn thoughts_may_be_limited() {
    let model = thinker(Some(false));
    let closes = model.tokenizer.id_of("</think>").unwrap();
    let opens = model.tokenizer.id_of("<think>").unwrap();
    for field in ["thinking_token_budget", "thinking_budget_tokens"] {
        let request = ask(&model, json!({field: 1})).unwrap();
        assert!(request.unknown_fields.is_empty(), "{field}");
        assert_eq!(possible(&model, &request, &[opens, 5]), [closes]);
        assert!(ask(&model, json!({field: -1})).unwrap().params.grammar.is_none(), "no limit");
    }
    let both = ask(&model, json!({"thinking_token_budget": 1, "reasoning_format": "none"})).unwrap();
    assert_eq!((possible(&model, &both, &[opens, 5]), both.thoughts), (vec![closes], None));
    let at_once = json!({"thinking_token_budget": 1, "reasoning_format": "none", "guided_choice": ["yes"]});
    let at_once = ask(&model, at_once).unwrap();
    assert!(!possible(&model, &at_once, &[]).contains(&opens), "a form holds from the first token on");
    let silent = json!({"thinking_token_budget": 1, "enable_thinking": false});
    assert!(ask(&model, silent).unwrap().params.grammar.is_none(), "there are no thoughts to limit");
    let unmarked = ask(&thinker(None), json!({"thinking_token_budget": 1})).unwrap_err();
    assert_eq!(unmarked.param.as_deref(), Some("thinking_token_budget"));
    let limited = |manner: Manner, mut body: Value| {
        body["messages"] = json!([{"role": "user", "content": "Hi"}]);
        let context = Context { thoughts: manner, ..model.context(1000, Streaming::Offered) };
        chat(&body, &context).unwrap()
    };
    let three = Manner { most: Some(3), ..Manner::default() };
    let request = limited(three, json!({}));
    assert_eq!(possible(&model, &request, &[opens, 5, 5, 5]), [closes], "the server's limit");
    let request = limited(three, json!({"thinking_token_budget": 1}));
    assert_eq!(possible(&model, &request, &[opens, 5]), [closes], "the request's comes first");
    assert!(limited(three, json!({"thinking_token_budget": -1})).params.grammar.is_none());
    // A server may leave them in the text, and limit them there; a request may have them told apart.
    let in_text = Manner { shown: Shown::InText, ..three };
    let request = limited(in_text, json!({}));
    assert_eq!((possible(&model, &request, &[opens, 5, 5, 5]), request.thoughts), (vec![closes], None));
    assert!(limited(in_text, json!({"reasoning_format": "auto"})).thoughts.is_some_and(|it| it.are_told()));
}

#[test]
fn an_answer_goes_on_where_its_message_was() {
    let model = thinker(Some(false));
    let go_on = |before: &str, said: Value| {
        let messages = json!([{"role": "user", "content": before}, {"role": "assistant", "content": said}]);
        let body = json!({"messages": messages, "continue_final_message": true});
        let request = chat(&body, &model.context(1000, Streaming::Offered)).unwrap();
        let body = whole(&model, &request, "so it is.</think>Yes.");
        let message = &body["choices"][0]["message"];
        (message["content"].as_str().unwrap().to_owned(), message["reasoning_content"].clone())
    };
    let (within, answer) = (("Yes.".to_owned(), json!("so it is.")), "so it is.</think>Yes.".to_owned());
    assert_eq!(go_on("Is it?", json!("<think>\nWell, ")), within);
    assert_eq!(go_on("Is it?", json!([{"type": "text", "text": "<think>\nWell, "}])), within);
    assert_eq!(go_on("What is <think>?", json!("It is")), (answer, Value::Null));
}

#[test]
fn calls_stand_behind_thoughts() {
    let model = || thinker(Some(false));
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let text = "<think>\nI may <tool_call> now.\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let request = ask(&model(), json!({"tools": tools})).unwrap();
    let body = whole(&model(), &request, text);
    let message = &body["choices"][0]["message"];
    assert_eq!(message["tool_calls"][0]["function"]["name"], "f", "{body}");
    assert_eq!(message["reasoning_content"], "I may <tool_call> now.", "{body}");
    let body = json!({"tools": tools, "stream": true, "stream_options": {"include_usage": true}});
    let (thought, said, _) = streamed(model(), &ask(&model(), body).unwrap(), text);
    assert_eq!((thought.as_str(), said.as_str()), ("I may <tool_call> now.", ""));
}

/// What may come first, and what behind the tokens given.
fn possible(model: &Model, request: &Generate, before: &[u32]) -> Vec<u32> {
    let mut guide = request.params.grammar.as_ref().unwrap().begin();
    before.iter().for_each(|&token| guide.accept(token));
    let mut row = vec![0.0; model.tokenizer.vocab_size()];
    guide.mask(&mut row, &[], &[]).unwrap();
    (0u32..).zip(row).filter(|(_, logit)| *logit == 0.0).map(|(id, _)| id).collect()
}

#[test]
fn a_form_holds_behind_thoughts_where_tokens_mark_them() {
    let model = thinker(Some(false));
    let [opens, closes] = ["<think>", "</think>"].map(|text| model.tokenizer.id_of(text).unwrap());
    let yes = json!({"structured_outputs": {"choice": ["yes"]}});
    let form = possible(
        &model,
        &ask(&model, json!({"structured_outputs": {"choice": ["yes"]}, "enable_thinking": false})).unwrap(),
        &[],
    );
    assert!(!form.contains(&opens));
    let request = ask(&model, yes.clone()).unwrap();
    assert_eq!(possible(&model, &request, &[]), [&form[..], &[opens]].concat(), "thoughts, or the form");
    assert_eq!(possible(&model, &request, &[opens, 5]).len(), model.tokenizer.vocab_size());
    assert_eq!(possible(&model, &request, &[opens, 5, closes]), form);
    let bare = thinker(None);
    let request = ask(&bare, yes).unwrap();
    assert_eq!(
        (possible(&bare, &request, &[]), request.thoughts),
        (form, None),
        "no token would end thoughts"
    );
}
