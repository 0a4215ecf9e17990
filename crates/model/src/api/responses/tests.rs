//! Items in, items out, whole and in events.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::tests::{choice, meta, model, parsed, talk};
use super::super::tests_of_thoughts::thinker;
use super::super::*;
use crate::output::{Finish, FinishReason};

fn ask(body: Value) -> Result<Generate, ApiError> {
    responses(&body, &model().context(1000, Streaming::Offered))
}

fn refused(body: Value) -> (String, String) {
    let error = ask(body.clone()).unwrap_err();
    assert_eq!(error.status, 400, "{body}");
    (error.param.unwrap_or_default(), error.message)
}

fn tool() -> Value {
    json!({"type": "function", "name": "f", "description": "does f", "parameters": {"type": "object"}, "strict": true})
}

#[test]
fn a_text_is_a_message_of_the_user() {
    let asked =
        ask(json!({"input": "Hi", "instructions": "Be brief.", "max_output_tokens": 5, "temperature": 0.3}))
            .unwrap();
    let messages = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]);
    let chat = talk(json!({"messages": messages, "max_tokens": 5, "temperature": 0.3})).unwrap();
    assert_eq!(asked.prompts, chat.prompts);
    assert_eq!(asked.params, chat.params);
    assert_eq!((asked.endpoint, asked.delivery), (Endpoint::Responses, Delivery::Whole));
    assert!(asked.unknown_fields.is_empty());
}

/// What an assistant thought, said and called is one message of a chat, and what came of its calls are others.
#[test]
fn items_are_the_messages_of_a_chat() {
    let items = json!([
        {"role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Add"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "I will.", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"x\": 1}"},
        {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
        {"role": "user", "content": "And?"},
    ]);
    let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}});
    let part = |text: &str| json!({"type": "text", "text": text});
    let messages = json!([
        {"role": "system", "content": [part("Be brief."), part("Be kind.")]},
        {"role": "user", "content": [part("Add")]},
        {"role": "assistant", "reasoning_content": "Hm.", "content": [part("I will.")],
         "tool_calls": [call("c1", "{\"x\": 1}"), call("c2", "{}")]},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": [part("two")]},
        {"role": "user", "content": "And?"},
    ]);
    let function = json!({"type": "function", "function": {"name": "f", "description": "does f",
                                                           "parameters": {"type": "object"}}});
    let asked = ask(json!({"input": items, "instructions": "Be brief.", "tools": [tool()]})).unwrap();
    let chat = talk(json!({"messages": messages, "tools": [function]})).unwrap();
    assert_eq!(asked.prompts, chat.prompts);
    assert_eq!(asked.calls, chat.calls);
}

#[test]
fn a_form_and_a_choice_of_tools_are_the_chats() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let format = json!({"format": {"type": "json_schema", "name": "a", "schema": schema, "strict": true}});
    let body = json!({"input": "Hi", "text": format});
    assert_eq!(
        super::as_chat(&body, &model().context(1000, Streaming::Offered)).unwrap().0["response_format"]["json_schema"]
            ["schema"],
        schema
    );
    assert!(ask(body).unwrap().params.grammar.is_some());
    let plain = ask(json!({"input": "Hi", "text": {"format": {"type": "text"}}})).unwrap();
    assert!(plain.params.grammar.is_none());
    let named = json!({"type": "function", "name": "f"});
    let allowed = json!({"type": "allowed_tools", "mode": "required", "tools": [named]});
    for choice in [json!("required"), named, allowed] {
        let asked = ask(json!({"input": "Hi", "tools": [tool()], "tool_choice": choice})).unwrap();
        assert!(asked.params.grammar.is_some(), "{choice}");
    }
    assert!(ask(json!({"input": "Hi", "tools": [tool()], "tool_choice": "none"})).unwrap().calls.is_none());
}

#[test]
fn what_is_wrong_or_not_built_is_named_as_its_client_knows_it() {
    for (body, param, says) in [
        (json!({}), "input", "missing"),
        (json!({"input": []}), "input", "there is nothing in the list"),
        (json!({"input": 5}), "input", "expected a text"),
        (
            json!({"input": [{"type": "item_reference", "id": "x"}]}),
            "input",
            "input[0]: an item of an earlier answer",
        ),
        (json!({"input": [{"type": "computer_call"}]}), "input", "`computer_call` is not supported"),
        (json!({"input": [{"role": "king", "content": "x"}]}), "input", "role `king`"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
            "input",
            "reads text only",
        ),
        (json!({"input": "x", "previous_response_id": "resp_1"}), "previous_response_id", "none is kept"),
        (json!({"input": "x", "background": true}), "background", "not supported"),
        (json!({"input": "x", "truncation": "auto"}), "truncation", "not supported"),
        (json!({"input": "x", "max_tokens": 5}), "max_tokens", "here it is max_output_tokens"),
        (json!({"input": "x", "messages": []}), "messages", "here it is input"),
        (
            json!({"input": "x", "max_output_tokens": 0}),
            "max_output_tokens",
            "max_output_tokens: expected at least 1",
        ),
        (json!({"input": "x", "max_output_tokens": 2000}), "max_output_tokens", "lower max_output_tokens"),
        (json!({"input": "x ".repeat(3000)}), "input", "shorten input"),
        (json!({"input": "x", "tools": [{"type": "custom", "name": "x"}]}), "tools", "`custom`"),
        (
            json!({"input": "x", "tools": [tool()], "tool_choice": {"type": "function", "name": "g"}}),
            "tool_choice",
            "`g`",
        ),
        (json!({"input": "x", "include": ["message.output_text.logprobs"]}), "include", "log-probabilities"),
        (json!({"input": "x", "text": {"format": {"type": "frog"}}}), "text.format", "text.format: type"),
        (json!({"input": "x", "n": 2}), "n", "not supported"),
        (json!({"input": "x", "prompt_logprobs": 1}), "prompt_logprobs", "not supported"),
        (json!({"input": "x", "metadata": [1]}), "metadata", "metadata"),
        (
            json!({"input": [{"role": "user", "content": "x"}, {"role": "user", "content": [{"type": "input_text"}]}],
                   "instructions": "y"}),
            "input",
            "input[1]: content: a part of text needs `text`",
        ),
        (
            json!({"input": "x", "tools": [{"type": "web_search"}, {"type": "function", "name": "f",
                   "parameters": {"type": "frog"}}], "tool_choice": "required"}),
            "tools",
            "tools[1].parameters: ",
        ),
        (
            json!({"input": "x", "min_tokens": 9, "max_output_tokens": 5}),
            "min_tokens",
            "at most max_output_tokens",
        ),
        (
            json!({"input": "x", "tools": [tool()], "tool_choice": "required", "text": {"format": {"type": "json_object"}}}),
            "tool_choice",
            "tool_choice and text.format exclude each other",
        ),
    ] {
        let (found, message) = refused(body.clone());
        assert!(found == param && message.contains(says), "{body}: {found}: {message}");
    }
}

/// An answer that says something and calls twice, and its pieces as they come.
const PIECES: [&str; 5] = [
    "Let me",
    " see.\n<tool_call>\n{\"name\": \"f\", ",
    "\"arguments\": {\"x\": 1}}\n</tool_call>\n<tool",
    "_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
    "",
];

fn finished(reason: FinishReason, text: &str) -> Choice {
    Choice { finish: Finish { reason, cause: None }, ..choice(&[5, 6, 7, 8, 9], text) }
}

/// The events of an answer that comes so.
fn events(request: &Generate, pieces: &[&str], reason: FinishReason) -> Vec<Value> {
    let choice = finished(reason, &pieces.concat());
    let mut events = Events::new(request.clone(), meta(), Arc::new(model().tokenizer));
    let mut out = Vec::new();
    for (i, text) in pieces.iter().enumerate() {
        let finish = (i + 1 == pieces.len()).then_some(&choice.finish);
        events.news(&News { index: 0, choice: &choice, text, tokens: &(i..i + 1), finish }, &mut out);
    }
    events.ended(&mut out);
    read(&out)
}

/// Named as they say themselves, and numbered.
fn read(out: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(out).unwrap();
    let all = text.split_terminator("\n\n").enumerate().map(|(at, event)| {
        let (name, data) = event.split_once('\n').unwrap();
        let data = parsed(data.strip_prefix("data: ").unwrap());
        assert_eq!(name.strip_prefix("event: ").unwrap(), data["type"], "{event}");
        assert_eq!(data["sequence_number"], at);
        data
    });
    all.collect()
}

#[test]
fn an_answer_is_items_and_its_stream_adds_up_to_them() {
    let request =
        ask(json!({"input": "Hi", "tools": [tool()], "metadata": {"a": "b"}, "stream": true})).unwrap();
    let whole = finished(FinishReason::Stop, &PIECES.concat());
    let body = parsed(&response(&request, &[whole], &meta(), &model().tokenizer));
    let kinds: Vec<&Value> = body["output"].as_array().unwrap().iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["message", "function_call", "function_call"]);
    assert_eq!(body["output"][0]["content"][0]["text"], "Let me see.");
    assert_eq!(body["output"][1]["arguments"], "{\"x\": 1}");
    assert_ne!(body["output"][1]["call_id"], body["output"][2]["call_id"]);
    assert_eq!(
        (&body["status"], &body["error"], &body["incomplete_details"]),
        (&json!("completed"), &Value::Null, &Value::Null)
    );
    assert_eq!(
        (&body["metadata"], &body["tools"], &body["temperature"]),
        (&json!({"a": "b"}), &json!([tool()]), &json!(0.6))
    );
    let usage = &body["usage"];
    assert_eq!(usage["total_tokens"].as_u64(), Some(usage["input_tokens"].as_u64().unwrap() + 5));

    let events = events(&request, &PIECES, FinishReason::Stop);
    assert_eq!(events[0]["type"], "response.created");
    assert_eq!(
        (&events[0]["response"]["status"], &events[0]["response"]["output"]),
        (&json!("in_progress"), &json!([]))
    );
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["response"]), (&json!("response.completed"), &body));
    let mut items: Vec<Value> = Vec::new();
    let mut gathered = String::new();
    for event in &events {
        let at = event["output_index"].as_u64().unwrap_or_default() as usize;
        match event["type"].as_str().unwrap() {
            "response.output_item.added" => {
                assert_eq!(at, items.len());
                gathered.clear();
                items.push(event["item"].clone());
            }
            "response.output_text.delta" | "response.function_call_arguments.delta" => {
                assert_eq!(event["item_id"], items[at]["id"]);
                gathered += event["delta"].as_str().unwrap();
            }
            "response.output_text.done" => assert_eq!(event["text"], gathered),
            "response.function_call_arguments.done" => assert_eq!(event["arguments"], gathered),
            "response.output_item.done" => {
                assert_eq!((&event["item"]["id"], &event["item"]), (&items[at]["id"], &body["output"][at]));
            }
            _ => (),
        }
    }
    assert_eq!(items.len(), 3);
}

#[test]
fn an_answer_that_ends_early_says_why() {
    let request = ask(json!({"input": "Hi", "tools": [tool()], "stream": true})).unwrap();
    let cut = events(&request, &PIECES[..2], FinishReason::Length);
    let last = &cut.last().unwrap();
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(last["response"]["incomplete_details"]["reason"], "max_output_tokens");
    let within =
        events(&request, &["<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\""], FinishReason::Length);
    let item = &within.last().unwrap()["response"]["output"][0];
    assert_eq!((&item["status"], &item["type"]), (&json!("incomplete"), &json!("function_call")));
    let silent = events(&request, &[""], FinishReason::Stop);
    assert_eq!(silent.last().unwrap()["response"]["output"][0]["content"][0]["text"], "");

    let mut failing = Events::new(request, meta(), Arc::new(model().tokenizer));
    let mut out = Vec::new();
    failing.failed(&ApiError::internal(), &mut out);
    let told = read(&out);
    let last = told.last().unwrap();
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    assert_eq!(last["response"]["error"]["code"], "server_error");
}

/// Functions in a namespace have longer names for the model, and their own for the client.
#[test]
fn functions_may_be_in_a_namespace() {
    let space = json!({"type": "namespace", "name": "sea", "tools": [tool()]});
    let called = json!([{"role": "user", "content": "x"},
                        {"type": "function_call", "call_id": "c", "namespace": "sea", "name": "f", "arguments": "{}"},
                        {"type": "function_call_output", "call_id": "c", "output": "y"}]);
    let request = ask(json!({"input": called, "tools": [tool(), space], "stream": true})).unwrap();
    assert_eq!(request.calls.as_ref().unwrap().names(), ["f", "sea.f"]);
    let text = "<tool_call>\n{\"name\": \"sea.f\", \"arguments\": {}}\n</tool_call>";
    let item = events(&request, &[text], FinishReason::Stop).last().unwrap()["response"]["output"][0].clone();
    assert_eq!((&item["name"], &item["namespace"]), (&json!("f"), &json!("sea")));
    let outside = text.replace("sea.", "");
    let item =
        events(&request, &[&outside], FinishReason::Stop).last().unwrap()["response"]["output"][0].clone();
    assert_eq!((&item["name"], item.get("namespace")), (&json!("f"), None));
    assert!(
        model()
            .tokenizer
            .decode(&request.prompts[0], crate::tokenizer::Special::With)
            .contains("\"name\": \"sea.f\", \"arg")
    );
}

/// Whose name begins as another's does is not in that one.
#[test]
fn names_in_namespaces_are_told_apart() {
    let space = |name: &str| json!({"type": "namespace", "name": name, "tools": [tool()]});
    let plain = json!({"type": "function", "name": "a.g"});
    let request = ask(json!({"input": "x", "tools": [plain, space("a"), space("a.b")]})).unwrap();
    for (full, namespace, name) in
        [("a.b.f", Some("a.b"), "f"), ("a.f", Some("a"), "f"), ("a.g", None, "a.g")]
    {
        assert_eq!(super::answer::own_name(&request, full), (namespace, name));
    }
    let twice = json!({"type": "function", "name": "a.f"});
    assert!(refused(json!({"input": "x", "tools": [twice, space("a")]})).1.contains("two functions `a.f`"));
}

/// A long name of a space is not copied for each of its functions.
#[test]
fn spaces_have_names_and_sizes_of_functions() {
    let space = |name: String, tools: Value| json!([{"type": "namespace", "name": name, "tools": tools}]);
    let (_, why) = refused(json!({"input": "x", "tools": space("a".repeat(257), json!([tool()]))}));
    assert!(why.contains("tools[0]: expected a namespace with a name of 1 to 256 bytes"), "{why}");
    let (_, why) = refused(json!({"input": "x", "tools": space("a".to_owned(), json!(vec![tool(); 1025]))}));
    assert!(why.contains("1025 tools; at most 1024"), "{why}");
}

/// A server that has one may use it; this one has none, and says which.
#[test]
fn tools_of_servers_are_left_out_and_that_is_told() {
    let request =
        ask(json!({"input": "Hi", "tools": [tool(), {"type": "web_search", "external_web_access": false}]}))
            .unwrap();
    assert_eq!(request.unknown_fields.iter().collect::<Vec<_>>(), ["web_search"]);
    assert_eq!(request.kept.unwrap().repeated()["tools"], json!([tool()]));
    let must =
        json!({"input": "Hi", "tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}});
    assert_eq!(refused(must).0, "tool_choice");
}

/// What is long is not kept for an answer that would only repeat it, whatever it is made of.
#[test]
fn short_fields_are_repeated_and_long_ones_left_out() {
    let many = vec![json!({"": 0}); 400];
    let tools: Vec<Value> = (0..60).map(|_| tool()).collect();
    let body = json!({"input": "Hi", "user": "me", "instructions": "x".repeat(1900), "tools": tools,
                      "metadata": {"a": many}, "reasoning": {"effort": "low"}});
    let kept = responses(&body, &model().context(10_000, Streaming::Offered)).unwrap().kept.unwrap();
    assert!(kept.repeats.len() < 3000, "{}", kept.repeats.len());
    let repeats = kept.repeated();
    assert_eq!((&repeats["user"], &repeats["reasoning"]), (&json!("me"), &json!({"effort": "low"})));
    assert_eq!(
        (&repeats["metadata"], &repeats["tools"], &repeats["tool_choice"]),
        (&json!({}), &json!([]), &json!("auto"))
    );
}

/// As many as a body may have; who copied what was said before for each would not come to an end.
#[test]
fn a_great_many_parts_are_read_at_once() {
    let part = json!({"type": "input_text", "text": "x"});
    let item = json!({"role": "developer", "content": [part]});
    let body = json!({"input": vec![item; MAX_MESSAGES]});
    let chat = super::as_chat(&body, &model().context(1000, Streaming::Offered)).unwrap().0;
    assert_eq!(chat["messages"][0]["content"].as_array().unwrap().len(), MAX_MESSAGES);
    let many = json!({"input": vec![json!({"role": "user", "content": "x"}); MAX_MESSAGES + 1]});
    assert_eq!(refused(many).0, "input");
}

/// A thought is an item, whole and in events; who is cut in it, or in a text, is not whole.
#[test]
fn thoughts_are_items_of_their_own() {
    let text = "<think>\nHm, hi?\n</think>\n\nHello.";
    let model = thinker(Some(false));
    let request =
        responses(&json!({"input": "Hi", "stream": true}), &model.context(1000, Streaming::Offered)).unwrap();
    let marker = |text| model.tokenizer.id_of(text).unwrap();
    let tokens = vec![marker("<think>"), 5, marker("</think>"), 6, 7];
    let of = |text: &str, reason| Choice { tokens: tokens.clone(), ..finished(reason, text) };
    let body = |choice: Choice| parsed(&response(&request, &[choice], &meta(), &model.tokenizer));
    let whole = body(of(text, FinishReason::Stop));
    let kinds: Vec<&Value> = whole["output"].as_array().unwrap().iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["reasoning", "message"]);
    assert_eq!(whole["output"][0]["content"], json!([{"type": "reasoning_text", "text": "Hm, hi?"}]));
    assert_eq!(whole["usage"]["output_tokens_details"]["reasoning_tokens"], 3);
    let cut = body(of(&text[..14], FinishReason::Length));
    assert_eq!(
        (&cut["output"][0]["type"], &cut["output"][0]["status"]),
        (&json!("reasoning"), &json!("incomplete"))
    );

    let choice = of(text, FinishReason::Stop);
    let mut events = Events::new(request, meta(), Arc::new(thinker(Some(false)).tokenizer));
    let mut out = Vec::new();
    for (i, text) in text.split_inclusive(' ').enumerate() {
        events.news(&News { index: 0, choice: &choice, text, tokens: &(i..i + 1), finish: None }, &mut out);
    }
    events.news(
        &News { index: 0, choice: &choice, text: "", tokens: &(3..5), finish: Some(&choice.finish) },
        &mut out,
    );
    let told = read(&out);
    let thought = told.iter().filter(|event| event["type"] == "response.reasoning_text.delta");
    assert_eq!(thought.map(|event| event["delta"].as_str().unwrap()).collect::<String>(), "Hm, hi?");
    assert!(
        told.iter()
            .any(|event| event["type"] == "response.reasoning_text.done" && event["text"] == "Hm, hi?")
    );
    assert_eq!(told.last().unwrap()["response"]["output"], whole["output"]);
}

#[test]
fn tokens_of_input_are_counted() {
    let space = json!({"type": "namespace", "name": "sea", "tools": [tool()]});
    for body in [
        json!({"input": "Hi", "instructions": "Be brief."}),
        json!({"input": "Hi", "tools": [tool(), space]}),
        json!({"input": "Hi", "tools": [tool()], "tool_choice": "none"}),
    ] {
        let count = input_tokens(&body, &model().context(1000, Streaming::Offered)).unwrap();
        assert_eq!(count["input_tokens"], ask(body).unwrap().prompts[0].len());
    }
}
