//! Tools and formats: requests in, answers and streams out.

use std::sync::Arc;

use serde_json::{Value, json};

use super::tests::{choice, complete, meta, model, parsed, refused, talk};
use super::*;
use crate::grammar::OutputFormat;
use crate::output::{Finish, FinishReason};

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])
}

#[test]
fn every_way_to_ask_for_a_format_is_understood() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    for (param, value) in [
        ("response_format", json!({"type": "json_object"})),
        ("response_format", json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})),
        ("structured_outputs", json!({"json": schema, "disable_any_whitespace": true})),
        ("structured_outputs", json!({"json": schema.to_string(), "regex": null})),
        ("structured_outputs", json!({"json_object": true})),
        ("structured_outputs", json!({"regex": "a+"})),
        ("structured_outputs", json!({"regex": "a+", "structural_tag": null})),
        ("structured_outputs", json!({"choice": ["a", "b"]})),
        ("structured_outputs", json!({"grammar": "start: \"a\""})),
        ("guided_json", schema.clone()),
        ("guided_regex", json!("a|b")),
        ("guided_choice", json!(["a"])),
        ("guided_grammar", json!("start: \"b\"")),
        ("json_schema", schema.clone()),
        ("grammar", json!("root ::= \"yes\" | \"no\"")),
    ] {
        let body = json!({param: value, "guided_decoding_backend": "auto"});
        let g = talk(body.clone()).unwrap_or_else(|e| panic!("{e}: {body}"));
        assert!(g.params.grammar.is_some() && g.unknown_fields.is_empty(), "{body}");
        let mut body = body;
        body["prompt"] = json!([9]);
        assert!(complete(body.clone()).unwrap().params.grammar.is_some(), "{body}");
    }
    let none = json!({"response_format": {"type": "text"}, "structured_outputs": null, "guided_json": null});
    assert!(talk(none).unwrap().params.grammar.is_none());
}

/// The same as the formats that they come to.
#[test]
fn how_a_format_is_meant_is_heard() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    for (asked, meant) in [
        (
            json!({"json": schema, "disable_additional_properties": true}),
            OutputFormat::Schema(schema.clone()),
        ),
        (json!({"json": schema, "disable_any_whitespace": true}), OutputFormat::Compact(schema.clone())),
        (json!({"json": schema, "disable_any_whitespace": false}), OutputFormat::Schema(schema.clone())),
        (
            json!({"json": schema, "disable_any_whitespace": true, "disable_additional_properties": true}),
            OutputFormat::Compact(schema.clone()),
        ),
        (
            json!({"json_object": true, "disable_any_whitespace": true}),
            OutputFormat::Compact(json!({"type": "object"})),
        ),
        (json!({"regex": "a", "disable_any_whitespace": true}), OutputFormat::Regex("a".to_owned())),
    ] {
        let body = json!({"structured_outputs": asked});
        let format =
            super::format::asked(&mut super::fields::Fields::of(&body).unwrap()).unwrap().unwrap().format;
        assert_eq!(format, meant, "{body}");
    }
}

#[test]
fn formats_that_are_wrong_are_named() {
    for (param, value) in [
        ("response_format", json!({})),
        ("response_format", json!("json")),
        ("response_format", json!({"type": "json_schema"})),
        ("response_format", json!({"type": "json_schema", "json_schema": {"schema": {"type": "frog"}}})),
        ("response_format", json!({"type": "structural_tag"})),
        ("structured_outputs", json!({})),
        ("structured_outputs", json!({"regex": "a", "choice": ["a"]})),
        ("structured_outputs", json!({"regex": "(["})),
        ("structured_outputs", json!({"regex": 5})),
        ("structured_outputs", json!({"choice": []})),
        ("structured_outputs", json!({"choice": [""]})),
        ("structured_outputs", json!({"json": "{"})),
        ("structured_outputs", json!({"frog": 1})),
        ("guided_grammar", json!("root ::= x")),
        ("guided_regex", json!(["a"])),
    ] {
        assert_eq!(refused(talk(json!({param: value}))), param, "{value}");
    }
    let two = json!({"response_format": {"type": "json_object"}, "guided_regex": "a"});
    assert_eq!(refused(talk(two)), "guided_regex");
}

/// Of the tools that a choice does not allow the model sees nothing.
#[test]
fn some_tools_are_allowed() {
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    let three = json!([named("f"), named("g"), named("h")]);
    let ask = |mode: &str, tools: Value| {
        let allowed = json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}});
        talk(json!({"tools": three, "tool_choice": allowed}))
    };
    let g = ask("auto", json!([named("h"), named("f")])).unwrap();
    assert_eq!(g.calls.unwrap().names(), ["f", "h"]);
    let many = ask("auto", vec![named("g"); 1000].into()).unwrap();
    assert_eq!(many.calls.unwrap().names(), ["g"]);
    assert!(g.params.grammar.is_none());
    let alone = talk(json!({"tools": [named("g")], "tool_choice": "required"})).unwrap();
    let g = ask("required", json!([named("g")])).unwrap();
    assert!(g.params.grammar.is_some() && g.prompts == alone.prompts);
    for (mode, tools) in [
        ("auto", json!([])),
        ("auto", json!([named("x")])),
        ("none", json!([named("f")])),
        ("auto", json!(["f"])),
    ] {
        assert_eq!(refused(ask(mode, tools.clone())), "tool_choice", "{mode} {tools}");
    }
}

#[test]
fn tool_choices() {
    let ask = |choice: Value| talk(json!({"tools": tools(), "tool_choice": choice}));
    for (choice, calls, forced) in [
        (json!(null), true, false),
        (json!("auto"), true, false),
        (json!("none"), false, false),
        (json!("required"), true, true),
        (json!({"type": "function", "function": {"name": "f"}}), true, true),
    ] {
        let g = ask(choice.clone()).unwrap();
        assert_eq!((g.calls.is_some(), g.params.grammar.is_some()), (calls, forced), "{choice}");
    }
    for bad in [json!("maybe"), json!(5), json!({}), json!({"function": {"name": "z"}})] {
        assert_eq!(refused(ask(bad.clone())), "tool_choice", "{bad}");
    }
    let both =
        json!({"tools": tools(), "tool_choice": "required", "response_format": {"type": "json_object"}});
    assert_eq!(refused(talk(both)), "tool_choice");
    for bad in [
        json!([{"type": "code", "function": {"name": "f"}}]),
        json!([{"function": {"name": ""}}]),
        json!([5]),
        json!(vec![tools()[0].clone(); MAX_TOOLS + 1]),
    ] {
        assert_eq!(refused(talk(json!({"tools": bad}))), "tools", "{bad}");
    }
    let frog = json!([{"function": {"name": "f", "parameters": {"type": "frog"}}}]);
    assert_eq!(refused(talk(json!({"tools": frog, "tool_choice": "required"}))), "tools");
    assert!(talk(json!({"tools": frog})).is_ok(), "nobody reads it but the model");
    let deep = crate::grammar::tests::deep_schema("a", 650, 25);
    let deep = json!([{"function": {"name": "f", "parameters": deep}}]);
    for choice in [json!("required"), json!({"type": "function", "function": {"name": "f"}})] {
        let body = json!({"tools": deep, "tool_choice": choice, "truncate_prompt_tokens": 99});
        let error = talk(body).unwrap_err();
        assert_eq!((error.status, error.code), (400, Some("invalid_grammar")), "{error}");
    }
    let many = vec![json!({"role": "user", "content": ""}); MAX_MESSAGES + 1];
    assert_eq!(refused(talk(json!({"messages": many}))), "messages");
}

#[test]
fn a_template_without_a_format_of_calls_is_an_error_until_one_is_named() {
    let m = model();
    let source = "{{ tools }}{{ messages[0].content }}";
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "tools": tools()});
    let ask = |template: ChatTemplate| {
        chat(&body, &Context { template: Some(&template), ..m.context(1000, Streaming::Offered) })
    };
    assert_eq!(refused(ask(ChatTemplate::new(source).unwrap())), "tools");
    let named = ChatTemplate::new(source).unwrap().with_tool_format(crate::tools::ToolFormat::Mistral);
    assert!(ask(named).unwrap().calls.is_some());
}

const TEXT: &str = "So:\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n\
                    <tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";

fn said(reason: FinishReason) -> Choice {
    Choice { finish: Finish { reason, cause: None }, ..choice(&[5, 6], TEXT) }
}

#[test]
fn calls_in_a_body() {
    let m = model();
    let g = talk(json!({"tools": tools()})).unwrap();
    let body = parsed(&response(&g, &[said(FinishReason::Stop)], &meta(), &m.tokenizer));
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "So:");
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls[0]["function"], json!({"name": "f", "arguments": "{\"a\": 1}"}));
    assert_eq!((calls.len(), &calls[1]["type"]), (2, &json!("function")));
    assert!(calls[0]["id"].as_str().unwrap().starts_with("call_") && calls[0]["id"] != calls[1]["id"]);
    let cut = parsed(&response(&g, &[said(FinishReason::Length)], &meta(), &m.tokenizer));
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    let one = talk(json!({"tools": tools(), "parallel_tool_calls": false})).unwrap();
    let body = parsed(&response(&one, &[said(FinishReason::Stop)], &meta(), &m.tokenizer));
    assert_eq!(body["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1);
    let plain = talk(json!({})).unwrap();
    let body = parsed(&response(&plain, &[said(FinishReason::Stop)], &meta(), &m.tokenizer));
    assert_eq!(body["choices"][0]["message"]["content"], TEXT, "without tools a text is a text");
}

/// The chunks of `TEXT`, streamed in pieces.
fn streamed(g: &Generate, size: usize) -> Vec<Value> {
    let mut chunks = Chunks::new(g.clone(), meta(), Arc::new(model().tokenizer));
    let whole = said(FinishReason::Stop);
    let chars: Vec<char> = TEXT.chars().collect();
    let pieces: Vec<String> = chars.chunks(size).map(|piece| piece.iter().collect()).collect();
    let last = pieces.len() - 1;
    let news = |(i, text): (usize, &String)| {
        let finish = (i == last).then_some(&whole.finish);
        chunks.of(&News { index: 0, choice: &whole, text, tokens: &(0..0), finish })
    };
    pieces.iter().enumerate().flat_map(news).collect()
}

#[test]
fn calls_in_a_stream_make_up_those_of_the_body() {
    let g = talk(json!({"tools": tools(), "stream": true})).unwrap();
    let body = parsed(&response(&g, &[said(FinishReason::Stop)], &meta(), &model().tokenizer));
    for size in [1, 3, 7, 1000] {
        let chunks = streamed(&g, size);
        let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
        let content: String = deltas.iter().filter_map(|delta| delta["content"].as_str()).collect();
        assert_eq!(content, "So:");
        let mut calls: Vec<Value> = Vec::new();
        for piece in deltas.iter().filter_map(|delta| delta["tool_calls"].as_array()).flatten() {
            let index = piece["index"].as_u64().unwrap() as usize;
            let more = piece["function"]["arguments"].as_str().unwrap();
            if index == calls.len() {
                let function = json!({"name": piece["function"]["name"], "arguments": more});
                calls.push(json!({"id": piece["id"], "type": piece["type"], "function": function}));
                continue;
            }
            assert!(piece.get("id").is_none() && piece["function"].get("name").is_none(), "{piece}");
            let before = calls[index]["function"]["arguments"].as_str().unwrap();
            calls[index]["function"]["arguments"] = json!(format!("{before}{more}"));
        }
        assert_eq!(Value::Array(calls), body["choices"][0]["message"]["tool_calls"], "pieces of {size}");
        assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    }
}
