//! `/openapi.json`: every route, field, range and answer. Limits are those that the code obeys, not copies of them.

mod answers;
mod others;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use model::api::{OwnTemplates, schema};
use model::sampling::MAX_LOGPROBS;
use serde_json::{Value, json};

use crate::app::App;
use crate::routes;
use crate::served::Served;

/// `GET /openapi.json`
pub(crate) async fn document(State(app): State<Arc<App>>) -> Response {
    // Until a model is there, any id may be one of its tokens.
    let unknown = schema::Offered {
        vocab: u32::MAX as usize,
        max_logprobs: MAX_LOGPROBS,
        own_templates: OwnTemplates::Refused,
    };
    let offered = app.served().map_or(unknown, Served::offered);
    routes::json(whole(app.config.max_body_bytes, &offered).to_string())
}

/// The document. `max_body_bytes`: of a request.
fn whole(max_body_bytes: usize, offered: &schema::Offered) -> Value {
    let about = format!(
        "OpenAI's API on one model. Bodies may have {max_body_bytes} bytes. Fields that are not listed are ignored \
         and counted; null is the same as absent."
    );
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Ballast", "version": env!("CARGO_PKG_VERSION"), "description": about,
                 "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "security": [{}, {"key": []}, {"x-api-key": []}],
        "paths": paths(),
        "components": {
            "schemas": schemas(offered),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"},
                                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"}},
        },
    })
}

fn schemas(offered: &schema::Offered) -> Value {
    let mut schemas = answers::schemas();
    schemas["CompletionRequest"] = schema::completion(offered);
    schemas["ChatRequest"] = schema::chat(offered);
    schemas["ResponsesRequest"] = schema::responses(offered);
    schemas["InputRequest"] = schema::responses_to_count();
    schemas["MessagesRequest"] = schema::messages(offered);
    schemas["CountRequest"] = schema::messages_to_count();
    schemas["TokenizeRequest"] = schema::tokenize();
    schemas["DetokenizeRequest"] = schema::detokenize(offered.vocab);
    schemas
}

fn paths() -> Value {
    let model = json!({"name": "id", "in": "path", "required": true, "schema": {"type": "string", "minLength": 1},
                       "description": "A served name."});
    let mut one_model = get("One model", "Model");
    one_model["parameters"] = json!([model]);
    one_model["responses"]["404"] = error("It is not served");
    let mut paths = json!({
        "/v1/completions": {"post": streamed("Go on with a text", "CompletionRequest", "Completion")},
        "/v1/chat/completions": {"post": streamed("Answer a conversation", "ChatRequest", "Chat")},
        "/v1/responses": {"post": streamed("Answer items", "ResponsesRequest", "Response")},
        "/v1/responses/input_tokens": {"post": post("How many tokens items are", "InputRequest", "InputTokens")},
        "/v1/messages": {"post": in_other_words(streamed("Answer messages of blocks", "MessagesRequest", "Message"))},
        "/v1/messages/count_tokens": {"post": in_other_words(post("How many tokens they are", "CountRequest", "Count"))},
        "/v1/models": {"get": get("What is served", "Models")},
        "/v1/models/{id}": {"get": one_model},
        "/tokenize": {"post": post("A text's tokens", "TokenizeRequest", "Tokens")},
        "/detokenize": {"post": post("Tokens' text", "DetokenizeRequest", "Text")},
        "/tokenizer_info": {"get": get("What a client needs to cut and render texts as this server does", "Tokenizer")},
        "/health": {"get": open("Whether the process works", "Status")},
        "/ready": {"get": open("Whether requests are welcome", "Status")},
        "/version": {"get": get("The version", "Version")},
        "/load": {"get": get("Requests under way", "Load")},
        "/metrics": {"get": metrics()},
        "/openapi.json": {"get": get("This document", "Document")},
    });
    if let Value::Object(paths) = &mut paths {
        paths.extend(others::paths());
    }
    paths
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

fn body(description: &str, schema: &str) -> Value {
    json!({"description": description, "content": {"application/json": {"schema": reference(schema)}}})
}

fn error(description: &str) -> Value {
    body(description, "Error")
}

/// What any route but the open ones may answer.
fn responses(schema: &str) -> Value {
    json!({
        "200": body("Done", schema),
        "401": error("A key is needed"),
        "403": error("Asked under another host's name"),
        "405": error("Another method is needed"),
        "500": error("The engine is dead"),
        "503": error("The model is being loaded, the server is ending, or too much waits; Retry-After says when"),
    })
}

fn get(summary: &str, schema: &str) -> Value {
    json!({"summary": summary, "responses": responses(schema)})
}

/// Without a key.
fn open(summary: &str, schema: &str) -> Value {
    json!({
        "summary": summary,
        "security": [],
        "responses": {
            "200": body("It is so", schema),
            "405": error("Another method is needed"),
            "500": error("The engine is dead"),
            "503": error("Not yet, or no more"),
        },
    })
}

fn metrics() -> Value {
    let mut metrics = get("Counters for Prometheus", "Text");
    metrics["responses"]["200"] =
        json!({"description": "Done", "content": {"text/plain": {"schema": {"type": "string"}}}});
    metrics
}

fn post(summary: &str, request: &str, schema: &str) -> Value {
    let mut responses = responses(schema);
    responses["400"] = error("Something in the request is wrong; `param` says what");
    responses["404"] = error("The model is not served");
    responses["408"] = error("The request did not come, or was not answered, in time");
    responses["413"] = error("The body is too large");
    responses["415"] = error("The body is not JSON");
    json!({
        "summary": summary,
        "requestBody": {"required": true, "content": {"application/json": {
            "schema": reference(request), "example": schema::example(request)}}},
        "responses": responses,
    })
}

/// With errors as Anthropic tells them.
fn in_other_words(mut operation: Value) -> Value {
    for (status, response) in operation["responses"].as_object_mut().into_iter().flatten() {
        if status != "200" {
            response["content"]["application/json"]["schema"] = reference("MessageError");
        }
    }
    operation
}

/// As one body or, with `stream`, as events.
fn streamed(summary: &str, request: &str, schema: &str) -> Value {
    let mut post = post(summary, request, schema);
    let events = "One of the events: a chunk, and at the end `[DONE]` or an error";
    let event = json!({"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}, "description": events});
    post["responses"]["200"]["content"]["text/event-stream"] = json!({"schema": event});
    post
}
