//! Answers that must have a form: tool calls and formats, and what they leave behind when they are wrong.

use crate::common::{config, metric, post, start, with_tools};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn ask(more: Value) -> Value {
    let mut body =
        json!({"messages": [{"role": "user", "content": "Ahoy"}], "max_tokens": 200, "temperature": 0});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn forced() -> Value {
    let schema = json!({"type": "object", "properties": {"knots": {"enum": [5, 12]}}, "required": ["knots"],
                        "additionalProperties": false});
    ask(json!({
        "tools": [{"type": "function", "function": {"name": "sail", "parameters": schema}}],
        "tool_choice": {"type": "function", "function": {"name": "sail"}},
    }))
}

#[test]
fn a_forced_call_comes_whole_or_in_pieces() {
    let server = with_tools(config());
    let whole = post(server.address, CHAT, &forced()).json();
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &json!(null)),
        "{whole}"
    );
    let function = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(function["name"], "sail");
    let arguments = function["arguments"].as_str().unwrap();
    assert!(["{\"knots\": 5}", "{\"knots\": 12}"].contains(&arguments), "{arguments}");

    let mut body = forced();
    body["stream"] = json!(true);
    let mut events = post(server.address, CHAT, &body).events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let chunks: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let pieces = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array());
    let streamed: String =
        pieces.flatten().map(|piece| piece["function"]["arguments"].as_str().unwrap()).collect();
    assert_eq!(streamed, arguments);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

/// Who runs a tool when it reads `tool_calls` would not get far with half of its arguments.
#[test]
fn a_call_that_a_stop_string_cuts_is_no_call_to_run() {
    let server = with_tools(config());
    let schema =
        json!({"type": "object", "properties": {"ship": {"enum": ["Beagle"]}}, "required": ["ship"]});
    let tools = json!([{"type": "function", "function": {"name": "sail", "parameters": schema}}]);
    let mut body = ask(json!({"tools": tools, "tool_choice": "required", "stop": ["eag"]}));
    let whole = post(server.address, CHAT, &body).json();
    let choice = &whole["choices"][0];
    let arguments = &choice["message"]["tool_calls"][0]["function"]["arguments"];
    assert_eq!((arguments, &choice["stop_reason"]), (&json!("{\"ship\": \"B"), &json!("eag")), "{whole}");
    assert_eq!(choice["finish_reason"], "stop");
    body["stream"] = json!(true);
    let events = post(server.address, CHAT, &body).events();
    let last: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "stop", "{last}");
    // Behind its end it is one.
    (body["stream"], body["stop"]) = (json!(false), json!(["</tool_call>"]));
    let whole = post(server.address, CHAT, &body).json();
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls", "{whole}");
}

#[test]
fn a_tool_that_is_wrong_is_named() {
    let server = with_tools(config());
    let tool = |name: &str, schema: Value| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"a": schema}}}});
    let refused = |schema: Value| {
        let tools = json!([tool("sail", json!({"type": "integer"})), tool("moor", schema)]);
        let answer = post(server.address, CHAT, &ask(json!({"tools": tools, "tool_choice": "required"})));
        assert_eq!(answer.status, 400, "{}", answer.body);
        answer.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    let why = refused(json!({"type": "array", "uniqueItems": true}));
    assert!(why.starts_with("tools[1].function.parameters: ") && why.contains("uniqueItems"), "{why}");
    assert!(!why.contains('\n') && !why.contains("x-guid"), "{why}");
    let why = refused(json!({"$ref": "#/properties/a"}));
    assert!(why.ends_with("the `$ref` #/properties/a refers to itself"), "{why}");
}

#[test]
fn a_format_is_kept_and_a_wrong_one_harms_nobody() {
    let server = start("llama", config());
    let schema = json!({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
                        "additionalProperties": false});
    let good = ask(json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}));
    for bad in [
        json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "frog"}}}}),
        json!({"structured_outputs": {"regex": "(["}}),
        json!({"structured_outputs": {"grammar": "start: nowhere"}}),
        json!({"guided_json": "{"}),
        json!({"tools": [{"type": "function", "function": {"name": "f"}}]}),
    ] {
        let refused = post(server.address, CHAT, &ask(bad.clone()));
        assert_eq!(refused.status, 400, "{bad}");
        assert!(refused.json()["error"]["param"].is_string(), "{bad}");
        let answer = post(server.address, CHAT, &good).json();
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(value == json!({"a": 1}) || value == json!({"a": 2}), "{value}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
    let chosen =
        ask(json!({"structured_outputs": {"choice": ["aye", "nay"]}, "n": 3, "temperature": 1, "seed": 4}));
    for choice in post(server.address, CHAT, &chosen).json()["choices"].as_array().unwrap() {
        assert!(["aye", "nay"].contains(&choice["message"]["content"].as_str().unwrap()), "{choice}");
    }
}

#[test]
fn what_was_in_memory_is_counted_and_so_are_fields_that_nobody_knows() {
    let server = start("llama", config());
    let body = json!({"prompt": vec![7; 200], "max_tokens": 2, "temperature": 0, "ignore_eos": true, "frog": 1, "toad": 2});
    let cached = |body: &Value| {
        let answer = post(server.address, "/v1/completions", body).json();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached(&body), 0);
    assert_eq!(cached(&body), 192, "all blocks but the last, which must be computed for its logits");
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"include_usage": true});
    let mut events = post(server.address, "/v1/completions", &streamed).events();
    events.pop();
    let last: Value = serde_json::from_str(&events.pop().unwrap()).unwrap();
    assert_eq!(last["usage"]["prompt_tokens_details"]["cached_tokens"], 192);
    assert_eq!(metric(server.address, "ballast_unknown_fields_total"), 6.0);
}

/// More at once than may be compiled, each longer than a moment: nobody is sent away.
#[test]
fn a_crowd_of_formats_waits_for_its_turn() {
    let server = start("llama", config());
    let schema = |i: usize| {
        let all: serde_json::Map<String, Value> =
            (0..100).map(|p| (format!("p{i}_{p}"), json!({"const": 0}))).collect();
        let required: Vec<&String> = all.keys().collect();
        json!({"type": "object", "required": required, "properties": all})
    };
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let one = |i| {
            let body = ask(json!({"guided_json": schema(i), "max_tokens": 1}));
            post(server.address, CHAT, &body).status
        };
        let threads: Vec<_> = (0..60).map(|i| scope.spawn(move || one(i))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(statuses, [200; 60]);
}
