//! The endpoints whose answers are blocks: whole, in events, with tools, and how they refuse.

use crate::common::{Response, Running, config, post, request, send, with_tools};
use serde_json::{Value, json};

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const CHAT: &str = "/v1/chat/completions";

/// A model that calls tools, behind a key.
fn begin() -> Running {
    with_tools(server::Config { keys: vec!["k".to_owned()], ..config() })
}

/// With the key, as each endpoint's clients send it.
fn ask(server: &Running, path: &str, body: &Value) -> Response {
    let key = if path.starts_with(MESSAGES) { "x-api-key: k" } else { "Authorization: Bearer k" };
    let head = format!("Content-Type: application/json\r\n{key}\r\n");
    send(server.address, &request("POST", path, &head, body.to_string().as_bytes()))
}

fn merged(body: &Value, more: Value) -> Value {
    let mut body = body.clone();
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn item() -> Value {
    json!({"input": "Ahoy", "max_output_tokens": 12, "temperature": 0, "ignore_eos": true})
}

fn message() -> Value {
    json!({"messages": [{"role": "user", "content": "Ahoy"}], "max_tokens": 12, "temperature": 0, "ignore_eos": true})
}

/// Events by their names.
fn events(response: &Response) -> Vec<(String, Value)> {
    assert_eq!(response.status, 200, "{}", response.body);
    let event = |event: &str| {
        let (name, data) = event.strip_prefix("event: ")?.split_once("\ndata: ")?;
        Some((name.to_owned(), serde_json::from_str(data).unwrap()))
    };
    response.body.split("\n\n").filter_map(event).collect()
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"knots": {"enum": [5, 12]}}, "required": ["knots"],
           "additionalProperties": false})
}

#[test]
fn both_say_what_a_chat_says_whole_and_in_pieces() {
    let server = begin();
    let chat = ask(&server, CHAT, &message()).json();
    let said = chat["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert!(!said.is_empty());

    let whole = ask(&server, RESPONSES, &item()).json();
    assert_eq!(whole["output"][0]["content"][0]["text"], said, "{whole}");
    assert_eq!(
        (&whole["status"], &whole["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    assert_eq!(whole["usage"]["output_tokens"], 12);
    let streamed = events(&ask(&server, RESPONSES, &merged(&item(), json!({"stream": true}))));
    let deltas = streamed.iter().filter(|(name, _)| name == "response.output_text.delta");
    assert_eq!(deltas.map(|(_, data)| data["delta"].as_str().unwrap()).collect::<String>(), said);
    let (last, data) = streamed.last().unwrap();
    assert_eq!(last, "response.incomplete");
    assert_eq!(data["response"]["usage"]["total_tokens"], whole["usage"]["total_tokens"]);

    let whole = ask(&server, MESSAGES, &message()).json();
    assert_eq!(whole["content"], json!([{"type": "text", "text": said}]));
    assert_eq!((&whole["stop_reason"], &whole["role"]), (&json!("max_tokens"), &json!("assistant")));
    let streamed = events(&ask(&server, MESSAGES, &merged(&message(), json!({"stream": true}))));
    let deltas = streamed.iter().filter(|(name, _)| name == "content_block_delta");
    assert_eq!(deltas.map(|(_, data)| data["delta"]["text"].as_str().unwrap()).collect::<String>(), said);
    assert_eq!(streamed.last().unwrap().0, "message_stop");
    let usage = &streamed[streamed.len() - 2].1["usage"];
    assert_eq!(usage["output_tokens"], 12);
    // What an earlier request left in the cache is no input here.
    let counted = ask(&server, "/v1/messages/count_tokens", &message()).json();
    let input = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(counted["input_tokens"], input);
    assert_eq!(ask(&server, "/v1/responses/input_tokens", &item()).json()["input_tokens"], input);
}

#[test]
fn both_call_tools() {
    let server = begin();
    let tool = json!({"type": "function", "name": "sail", "parameters": schema()});
    let forced = json!({"tools": [tool], "tool_choice": {"type": "function", "name": "sail"}, "max_output_tokens": 200});
    let whole =
        ask(&server, RESPONSES, &merged(&item(), merged(&forced, json!({"ignore_eos": false})))).json();
    let call = &whole["output"][0];
    assert_eq!(
        (&call["type"], &call["name"], &call["status"]),
        (&json!("function_call"), &json!("sail"), &json!("completed"))
    );
    assert!(["{\"knots\": 5}", "{\"knots\": 12}"].contains(&call["arguments"].as_str().unwrap()));
    assert_eq!(whole["status"], "completed");

    let tool = json!({"name": "sail", "input_schema": schema()});
    let forced = json!({"tools": [tool], "tool_choice": {"type": "any"}, "max_tokens": 200, "ignore_eos": false,
                        "stream": true, "tool_choice": {"type": "tool", "name": "sail"}});
    let streamed = events(&ask(&server, MESSAGES, &merged(&message(), forced)));
    let started =
        &streamed.iter().find(|(name, _)| name == "content_block_start").unwrap().1["content_block"];
    assert_eq!((&started["type"], &started["name"]), (&json!("tool_use"), &json!("sail")));
    let pieces = streamed.iter().filter(|(name, _)| name == "content_block_delta");
    let input: String = pieces.map(|(_, data)| data["delta"]["partial_json"].as_str().unwrap()).collect();
    let input: Value = serde_json::from_str(&input).unwrap();
    assert!(input == json!({"knots": 5}) || input == json!({"knots": 12}), "{input}");
    let (_, delta) = streamed.iter().find(|(name, _)| name == "message_delta").unwrap();
    assert_eq!(delta["delta"]["stop_reason"], "tool_use");

    // Their ids lead back to what came of them.
    let id = started["id"].as_str().unwrap();
    let turns = json!([
        {"role": "user", "content": "Ahoy"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "sail", "input": input}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "done"}]},
    ]);
    let more = json!({"messages": turns, "tools": [{"name": "sail", "input_schema": schema()}]});
    assert_eq!(ask(&server, MESSAGES, &merged(&message(), more)).status, 200);
}

/// Each in its clients' words, whatever is wrong.
#[test]
fn errors_are_told_in_the_words_of_the_endpoint() {
    let server = begin();
    let anthropic = |response: &Response, status: u16, kind: &str| {
        let body = response.json();
        assert_eq!(
            (response.status, &body["type"], &body["error"]["type"]),
            (status, &json!("error"), &json!(kind)),
            "{body}"
        );
        assert!(body["error"]["message"].is_string());
        assert_eq!(body["request_id"].as_str(), response.header("request-id"));
    };
    anthropic(&ask(&server, MESSAGES, &json!({"messages": []})), 400, "invalid_request_error");
    anthropic(&ask(&server, MESSAGES, &merged(&message(), json!({"model": "none"}))), 404, "not_found_error");
    anthropic(&post(server.address, MESSAGES, &message()), 401, "authentication_error");
    anthropic(
        &send(server.address, &request("GET", MESSAGES, "x-api-key: k\r\n", b"")),
        405,
        "invalid_request_error",
    );
    anthropic(&ask(&server, "/v1/messages/count_tokens", &json!({})), 400, "invalid_request_error");
    anthropic(&ask(&server, "/v1/messages/batches", &json!({})), 404, "not_found_error");
    let openai = ask(&server, RESPONSES, &json!({"input": "x", "previous_response_id": "resp_1"}));
    let body = openai.json();
    assert_eq!((openai.status, &body["error"]["param"]), (400, &json!("previous_response_id")), "{body}");
    assert!(openai.header("request-id").is_none());
    assert_eq!(post(server.address, RESPONSES, &item()).json()["error"]["code"], "invalid_api_key");
}
