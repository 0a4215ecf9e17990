//! Messages of blocks in, a message of blocks out, whole and in events.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::tests::{Model, choice, meta, model, parsed, talk};
use super::super::tests_of_thoughts::thinker;
use super::super::*;
use crate::output::{Finish, FinishReason, StopCause};

fn ask(mut body: Value) -> Result<Generate, ApiError> {
    for (name, usual) in [("max_tokens", json!(50)), ("messages", json!([{"role": "user", "content": "Hi"}]))]
    {
        if body.get(name).is_none() {
            body[name] = usual;
        }
    }
    messages(&body, &model().context(1000, Streaming::Offered))
}

fn tool() -> Value {
    json!({"name": "f", "description": "does f", "input_schema": {"type": "object"}})
}

#[test]
fn blocks_are_the_messages_of_a_chat() {
    let blocks = json!([
        {"role": "user", "content": "Add"},
        {"role": "user", "content": [{"type": "text", "text": "now", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "x"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "I will."},
            {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}},
            {"type": "tool_use", "id": "c2", "name": "f", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": "one"},
            {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "two"}], "is_error": true},
            {"type": "text", "text": "And?"}]},
    ]);
    let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}});
    let part = |text: &str| json!({"type": "text", "text": text});
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [part("Add"), part("now")]},
        {"role": "assistant", "reasoning_content": "Hm.", "content": "I will.",
         "tool_calls": [call("c1", "{\"x\":1}"), call("c2", "{}")]},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "two"},
        {"role": "user", "content": [part("And?")]},
    ]);
    let function = json!({"type": "function", "function": {"name": "f", "description": "does f", "parameters": {"type": "object"}}});
    let system = json!([{"type": "text", "text": "Be brief."}]);
    let asked = ask(
        json!({"system": system, "messages": blocks, "tools": [tool()], "top_k": 3, "stop_sequences": ["x"]}),
    )
    .unwrap();
    let chat =
        json!({"messages": messages, "tools": [function], "max_tokens": 50, "top_k": 3, "stop": ["x"]});
    let chat = talk(chat).unwrap();
    assert_eq!((&asked.prompts, &asked.calls, &asked.params), (&chat.prompts, &chat.calls, &chat.params));
    assert_eq!(asked.unknown_fields.iter().collect::<Vec<_>>(), ["is_error"]);
    assert_eq!(asked.endpoint, Endpoint::Messages);
}

/// As many as a body may have; who copied what was said before for each would not come to an end.
#[test]
fn a_great_many_blocks_are_read_at_once() {
    let text = json!({"type": "text", "text": "x"});
    let thought = json!({"type": "thinking", "thinking": "x"});
    let messages = json!([
        {"role": "user", "content": vec![text; 100_000]},
        {"role": "assistant", "content": vec![thought; 100_000]},
        {"role": "user", "content": "x"}]);
    let body = json!({"max_tokens": 5, "messages": messages});
    let chat = super::as_chat(&body, &model().context(1000, Streaming::Offered)).unwrap().0;
    assert_eq!(chat["messages"][0]["content"].as_array().unwrap().len(), 100_000);
    assert_eq!(chat["messages"][1]["reasoning_content"].as_str().unwrap().len(), 199_999);
    let many = json!({"messages": vec![json!({"role": "user", "content": "x"}); MAX_MESSAGES + 1]});
    assert_eq!(ask(many).unwrap_err().param.as_deref(), Some("messages"));
}

/// Nothing displaces what the template says by itself.
#[test]
fn a_system_that_says_nothing_is_none() {
    let plain = ask(json!({})).unwrap().prompts;
    for nothing in [json!(""), json!([]), json!([{"type": "text", "text": ""}])] {
        assert_eq!(ask(json!({"system": nothing})).unwrap().prompts, plain);
    }
}

#[test]
fn what_an_assistant_has_begun_is_gone_on_with() {
    let messages = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}]);
    let asked = ask(json!({"messages": messages})).unwrap();
    let chat = talk(json!({"messages": messages, "continue_final_message": true})).unwrap();
    assert_eq!(asked.prompts, chat.prompts);
    let parts = json!([{"type": "text", "text": "We"}, {"type": "text", "text": "ll"}]);
    let asked = ask(json!({"messages": [messages[0], {"role": "assistant", "content": parts}]})).unwrap();
    assert_eq!(asked.prompts, chat.prompts, "nothing is put between them");
}

#[test]
fn a_choice_of_tools_and_a_form_are_the_chats() {
    for (choice, forced, most) in [
        (json!({"type": "auto"}), false, 128),
        (json!({"type": "any", "disable_parallel_tool_use": true}), true, 1),
        (json!({"type": "tool", "name": "f"}), true, 128),
    ] {
        let asked = ask(json!({"tools": [tool()], "tool_choice": choice})).unwrap();
        assert_eq!((asked.params.grammar.is_some(), asked.calls.unwrap().most), (forced, most), "{choice}");
    }
    assert!(ask(json!({"tools": [tool()], "tool_choice": {"type": "none"}})).unwrap().calls.is_none());
    let form = json!({"type": "json_schema", "schema": {"type": "object"}});
    for body in [json!({"output_config": {"format": form}}), json!({"output_format": form})] {
        assert!(ask(body).unwrap().params.grammar.is_some());
    }
}

/// Clients that have no length in mind give a long one.
#[test]
fn an_answer_may_be_shorter_than_is_asked_for() {
    let asked = ask(json!({"max_tokens": 100_000})).unwrap();
    let room = 1000 - asked.prompts[0].len();
    assert_eq!(asked.answer_len(asked.prompts[0].len()), room);
    let stopped = |request: &Generate| {
        let finish = Finish { reason: FinishReason::Length, cause: None };
        let choice = Choice { finish, ..choice(&[5, 6], "x y") };
        parsed(&response(request, &[choice], &meta(), &model().tokenizer))["stop_reason"].clone()
    };
    assert_eq!(stopped(&asked), "model_context_window_exceeded");
    assert_eq!(stopped(&ask(json!({"max_tokens": 2})).unwrap()), "max_tokens");
    let long = json!({"messages": [{"role": "user", "content": "x ".repeat(3000)}]});
    assert_eq!(ask(long).unwrap_err().code, Some("context_length_exceeded"));
}

#[test]
fn what_is_wrong_or_not_built_is_named_as_its_client_knows_it() {
    let of = |role: &str, block: Value| json!({"messages": [{"role": role, "content": [block]}]});
    for (body, param, says) in [
        (json!({"max_tokens": null}), "max_tokens", "missing"),
        (json!({"max_tokens": 0}), "max_tokens", "max_tokens: expected at least 1"),
        (json!({"messages": []}), "messages", "messages"),
        (
            json!({"messages": [{"role": "king", "content": "x"}]}),
            "messages",
            "role `king`; expected user, assistant or system",
        ),
        (
            of("user", json!({"type": "image", "source": {}})),
            "messages",
            "`image`; this model reads text and tool_result",
        ),
        (of("user", json!({"type": "tool_result", "content": "x"})), "messages", "tool_use_id"),
        (
            of("assistant", json!({"type": "tool_use", "id": "a", "name": "f", "input": "x"})),
            "messages",
            "expected an object",
        ),
        (json!({"system": 5}), "system", "system: expected a text"),
        (json!({"tools": [{"type": "bash_20250124", "name": "bash"}]}), "tools", "`bash_20250124`"),
        (
            json!({"context_management": {"edits": [{"type": "compact_1"}]}}),
            "context_management",
            "`compact_1`",
        ),
        (json!({"tool_choice": {"type": "must"}}), "tool_choice", "expected auto, any, tool or none"),
        (json!({"thinking": {"type": "maybe"}}), "thinking", "enabled, adaptive or disabled"),
        (json!({"stop_sequences": [""]}), "stop_sequences", "stop_sequences"),
        (json!({"stop": ["x"]}), "stop", "here it is stop_sequences"),
        (json!({"output_config": {"format": {"type": "regex"}}}), "output_config", "expected json_schema"),
        (json!({"mcp_servers": [{}]}), "mcp_servers", "not supported"),
        (json!({"context_management": {"edits": "x"}}), "context_management", "expected a list"),
        (
            json!({"tools": [{"type": "web_search_1"}, {"name": ""}]}),
            "tools",
            "tools[1]: expected a function",
        ),
        (
            json!({"tools": [{"type": "web_search_1"}, {"name": "f", "input_schema": {"type": "frog"}}],
                   "tool_choice": {"type": "any"}}),
            "tools",
            "tools[1].input_schema: ",
        ),
        (
            json!({"messages": [{"role": "user", "content": []}]}),
            "messages",
            "messages[0]: content: there is no block",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "a "}]}),
            "messages",
            "messages[1]: content: what an answer is to go on with ends with white space",
        ),
        (
            json!({"tools": [{"name": "f", "input_schema": [1]}]}),
            "tools",
            "tools[0]: input_schema: expected an object",
        ),
        (
            json!({"tools": [{"name": "f", "description": 1}]}),
            "tools",
            "tools[0]: description: expected a text",
        ),
        (json!({"prompt_logprobs": 1}), "prompt_logprobs", "not supported"),
        (json!({"return_token_ids": true}), "return_token_ids", "not supported"),
    ] {
        let error = ask(body.clone()).unwrap_err();
        let found = error.param.as_deref().unwrap_or_default();
        assert!(found == param && error.message.contains(says), "{body}: {found}: {error}");
        let told = error.message_body("req-1");
        assert_eq!(
            (&told["type"], &told["error"]["type"]),
            (&json!("error"), &json!("invalid_request_error"))
        );
    }
}

/// A template that would leave it out, or refuse it, has it in the user's words.
#[test]
fn the_system_may_speak_later() {
    let body = json!({"max_tokens": 5, "system": "a", "messages": [
        {"role": "user", "content": "b"}, {"role": "system", "content": "c"}, {"role": "assistant", "content": "d"},
        {"role": "user", "content": "e"}]});
    let roles = |template: &str| {
        let mut model = model();
        model.template = ChatTemplate::new(template).unwrap();
        let chat = super::as_chat(&body, &model.context(1000, Streaming::Offered)).unwrap().0;
        let role = |message: &Value| message["role"].as_str().unwrap().to_owned();
        chat["messages"].as_array().unwrap().iter().map(role).collect::<Vec<_>>().join(" ")
    };
    let all = "{% for m in messages %}{{ m.content }}{% endfor %}";
    assert_eq!(roles(all), "system user system assistant user");
    let users = "{% for m in messages %}{% if m.role != 'system' or loop.first %}{{ m.content }}{% endif %}{% endfor %}";
    assert_eq!(roles(users), "system user assistant user");
}

#[test]
fn older_thoughts_are_forgotten_as_asked() {
    let thought = |text: &str| {
        json!({"role": "assistant", "content": [
        {"type": "thinking", "thinking": text}, {"type": "text", "text": "x"}]})
    };
    let user = json!({"role": "user", "content": "x"});
    let left = |edit: Value| {
        let body = json!({"max_tokens": 5, "messages": [user, thought("a"), user, thought("b"), user],
                          "context_management": {"edits": [edit]}});
        let chat = super::as_chat(&body, &model().context(1000, Streaming::Offered)).unwrap().0;
        let all = chat["messages"].as_array().unwrap().iter();
        all.filter_map(|message| message["reasoning_content"].as_str()).collect::<String>()
    };
    assert_eq!(left(json!({"type": "clear_thinking_20251015", "keep": "all"})), "ab");
    assert_eq!(
        left(json!({"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}})),
        "b"
    );
    assert_eq!(left(json!({"type": "clear_thinking_20251015"})), "b");
}

#[test]
fn tools_of_servers_are_left_out_and_that_is_told() {
    let search = json!({"type": "web_search_20250305", "name": "web_search"});
    let request = ask(json!({"tools": [search, tool()]})).unwrap();
    assert_eq!(request.unknown_fields.iter().collect::<Vec<_>>(), ["web_search"]);
    assert_eq!(request.calls.unwrap().names(), ["f"]);
}

#[test]
fn thinking_is_asked_for_and_refused() {
    let variables = |thinking: Value| {
        let body =
            json!({"max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}], "thinking": thinking});
        super::as_chat(&body, &model().context(1000, Streaming::Offered)).unwrap().0
    };
    let on = variables(json!({"type": "enabled", "budget_tokens": 1024}));
    assert_eq!((&on["enable_thinking"], &on["thinking_token_budget"]), (&json!(true), &json!(1024)));
    assert!(on.get("include_reasoning").is_none());
    let off = variables(json!({"type": "disabled"}));
    assert_eq!((&off["enable_thinking"], &off["include_reasoning"]), (&json!(false), &json!(false)));
}

fn finished(reason: FinishReason, cause: Option<StopCause>, text: &str) -> Choice {
    Choice { finish: Finish { reason, cause }, ..choice(&[5, 6, 7, 8], text) }
}

/// What events make of a message, and their names.
fn streamed(request: &Generate, pieces: &[&str], choice: &Choice) -> (Value, Vec<String>) {
    streamed_by(model(), request, pieces, choice)
}

fn streamed_by(model: Model, request: &Generate, pieces: &[&str], choice: &Choice) -> (Value, Vec<String>) {
    let mut events = Events::new(request.clone(), meta(), Arc::new(model.tokenizer));
    let mut out = Vec::new();
    for (i, text) in pieces.iter().enumerate() {
        let finish = (i + 1 == pieces.len()).then_some(&choice.finish);
        events.news(&News { index: 0, choice, text, tokens: &(i..i + 1), finish }, &mut out);
    }
    events.ended(&mut out);
    let (mut message, mut names, mut json) = (Value::Null, Vec::new(), String::new());
    for event in String::from_utf8(out).unwrap().split_terminator("\n\n") {
        let (name, data) = event.split_once("\ndata: ").unwrap();
        let data = parsed(data);
        assert_eq!(name.strip_prefix("event: ").unwrap(), data["type"]);
        names.push(data["type"].as_str().unwrap().to_owned());
        let at = data["index"].as_u64().unwrap_or_default() as usize;
        match data["type"].as_str().unwrap() {
            "message_start" => message = data["message"].clone(),
            "content_block_start" => {
                assert_eq!(at, message["content"].as_array().unwrap().len());
                message["content"].as_array_mut().unwrap().push(data["content_block"].clone());
                json.clear();
            }
            "content_block_delta" => {
                let (block, delta) = (&mut message["content"][at], &data["delta"]);
                match delta["type"].as_str().unwrap() {
                    "thinking_delta" => {
                        let thought = block["thinking"].as_str().unwrap().to_owned();
                        block["thinking"] = json!(thought + delta["thinking"].as_str().unwrap());
                    }
                    "text_delta" => {
                        block["text"] = json!(
                            block["text"].as_str().unwrap().to_owned() + delta["text"].as_str().unwrap()
                        )
                    }
                    "input_json_delta" => json += delta["partial_json"].as_str().unwrap(),
                    other => panic!("{other}"),
                }
            }
            "content_block_stop" if !json.is_empty() => message["content"][at]["input"] = parsed(&json),
            "message_delta" => {
                message["stop_reason"] = data["delta"]["stop_reason"].clone();
                message["stop_sequence"] = data["delta"]["stop_sequence"].clone();
                message["usage"] = data["usage"].clone();
            }
            _ => (),
        }
    }
    (message, names)
}

#[test]
fn an_answer_is_blocks_and_its_stream_adds_up_to_them() {
    let request = ask(json!({"tools": [tool()], "stream": true})).unwrap();
    let pieces =
        ["Let me see.", "\n<tool_call>\n{\"name\": \"f\", \"arg", "uments\": {\"x\": 1}}\n</tool_call>", ""];
    let choice = finished(FinishReason::Stop, None, &pieces.concat());
    let body = parsed(&response(&request, std::slice::from_ref(&choice), &meta(), &model().tokenizer));
    assert_eq!(body["content"][0], json!({"type": "text", "text": "Let me see."}));
    assert_eq!((&body["content"][1]["name"], &body["content"][1]["input"]), (&json!("f"), &json!({"x": 1})));
    assert_eq!((&body["stop_reason"], &body["usage"]["output_tokens"]), (&json!("tool_use"), &json!(4)));
    let (message, names) = streamed(&request, &pieces, &choice);
    assert_eq!(message, body);
    assert_eq!((names[0].as_str(), names.last().unwrap().as_str()), ("message_start", "message_stop"));
}

/// They are told to who asks for them.
#[test]
fn thoughts_are_blocks_of_their_own() {
    let pieces = ["<think>\nHm", ", hi?\n</think>", "\n\nHel", "lo."];
    for (thinking, kinds) in [
        (json!({"type": "adaptive"}), vec!["thinking", "text"]),
        (json!({"type": "adaptive", "display": "omitted"}), vec!["text"]),
        (Value::Null, vec!["text"]),
    ] {
        let model = thinker(Some(false));
        let body = json!({"max_tokens": 50, "stream": true, "messages": [{"role": "user", "content": "Hi"}], "thinking": thinking});
        let request = messages(&body, &model.context(1000, Streaming::Offered)).unwrap();
        let marker = |text| model.tokenizer.id_of(text).unwrap();
        let tokens = [marker("<think>"), 5, marker("</think>"), 6];
        let choice =
            Choice { tokens: tokens.to_vec(), ..finished(FinishReason::Stop, None, &pieces.concat()) };
        let body = parsed(&response(&request, std::slice::from_ref(&choice), &meta(), &model.tokenizer));
        let blocks = body["content"].as_array().unwrap();
        assert_eq!(
            blocks.iter().map(|block| block["type"].as_str().unwrap()).collect::<Vec<_>>(),
            kinds,
            "{thinking}"
        );
        assert_eq!(blocks.last().unwrap()["text"], "Hello.");
        if kinds.len() > 1 {
            assert_eq!(blocks[0]["thinking"], "Hm, hi?");
        }
        assert_eq!(body["usage"]["output_tokens_details"]["thinking_tokens"], 3);
        assert_eq!(streamed_by(model, &request, &pieces, &choice).0, body, "{thinking}");
    }
}

#[test]
fn a_budget_that_nothing_keeps_is_told() {
    let model = thinker(None);
    let body = json!({"max_tokens": 50, "messages": [{"role": "user", "content": "Hi"}],
                      "thinking": {"type": "enabled", "budget_tokens": 1024}});
    let request = messages(&body, &model.context(1000, Streaming::Offered)).unwrap();
    assert_eq!(request.unknown_fields.iter().collect::<Vec<_>>(), ["budget_tokens"]);
}

#[test]
fn why_an_answer_ended_is_told() {
    let request = ask(json!({"tools": [tool()], "stream": true, "max_tokens": 4})).unwrap();
    let text = |text: &str| Some(StopCause::Text(text.to_owned()));
    let cut = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\"";
    for (choice, reason, sequence) in [
        (finished(FinishReason::Stop, None, "a"), "end_turn", Value::Null),
        (finished(FinishReason::Stop, text("x"), "a"), "stop_sequence", json!("x")),
        (finished(FinishReason::Length, None, "a"), "max_tokens", Value::Null),
        (finished(FinishReason::Length, None, cut), "max_tokens", Value::Null),
        (finished(FinishReason::Stop, None, ""), "end_turn", Value::Null),
    ] {
        let body = parsed(&response(&request, std::slice::from_ref(&choice), &meta(), &model().tokenizer));
        assert_eq!((&body["stop_reason"], &body["stop_sequence"]), (&json!(reason), &sequence), "{choice:?}");
        if choice.text != cut {
            assert_eq!(streamed(&request, &[&choice.text], &choice).0, body);
        }
    }
}

#[test]
fn tokens_are_counted_and_what_the_cache_had_is_none_of_the_input() {
    let body = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let model = model();
    let count = count_tokens(&body, &model.context(1000, Streaming::Offered)).unwrap();
    let request = ask(body).unwrap();
    assert_eq!(count["input_tokens"], request.prompts[0].len());
    let cached = Meta { cached_tokens: Some(3), ..meta() };
    let answer = finished(FinishReason::Stop, None, "a");
    let usage = parsed(&response(&request, &[answer], &cached, &model.tokenizer))["usage"].clone();
    assert_eq!(usage["input_tokens"].as_u64().unwrap() + 3, count["input_tokens"].as_u64().unwrap());
    assert_eq!(usage["cache_read_input_tokens"], 3);
}
