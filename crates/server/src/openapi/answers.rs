//! Bodies of answers.

use serde_json::{Value, json};

/// All of them, by name.
pub(super) fn schemas() -> Value {
    let text = json!({"type": "string"});
    let whole = json!({"type": "integer", "minimum": 0});
    let maybe_text = json!({"type": ["string", "null"]});
    json!({
        "Error": error(),
        "Usage": usage(),
        "Completion": answer("text_completion", completion_choice()),
        "Chat": answer("chat.completion", chat_choice()),
        "Response": response(),
        "InputTokens": object(json!({"object": {"const": "response.input_tokens"}, "input_tokens": whole})),
        "Message": message(),
        "Count": object(json!({"input_tokens": whole})),
        "MessageError": object(json!({"type": {"const": "error"}, "error": object(json!({"type": text, "message": text}))})),
        "Model": object(json!({"id": text, "object": {"const": "model"}, "created": whole, "owned_by": text,
                               "root": maybe_text, "parent": maybe_text, "max_model_len": whole})),
        "Models": object(json!({"object": {"const": "list"},
                                "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}})),
        "Tokens": object(json!({"count": whole, "max_model_len": whole, "tokens": {"type": "array", "items": whole},
                                "token_strs": {"type": ["array", "null"], "items": maybe_text}})),
        "Text": object(json!({"prompt": text})),
        "Tokenizer": object(json!({"tokenizer_class": text, "bos_token": maybe_text, "eos_token": maybe_text,
                                   "pad_token": maybe_text, "unk_token": maybe_text, "chat_template": maybe_text,
                                   "model_max_length": whole, "vocab_size": whole})),
        "Thing": {"type": "object"},
        "Status": object(json!({"status": text})),
        "Version": object(json!({"version": text})),
        "Load": object(json!({"server_load": whole})),
        "Document": object(json!({"openapi": text, "info": {"type": "object"}, "paths": {"type": "object"}})),
    })
}

/// An object that has all of these, and maybe more.
fn object(properties: Value) -> Value {
    let required: Vec<String> =
        properties.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
    json!({"type": "object", "required": required, "properties": properties})
}

fn error() -> Value {
    let maybe = json!({"type": ["string", "null"]});
    let error = object(
        json!({"message": {"type": "string"}, "type": {"type": "string"}, "param": maybe, "code": maybe}),
    );
    object(json!({"error": error}))
}

fn usage() -> Value {
    let whole = json!({"type": "integer", "minimum": 0});
    let mut usage =
        object(json!({"prompt_tokens": whole, "completion_tokens": whole, "total_tokens": whole}));
    usage["properties"]["prompt_tokens_details"] = object(json!({"cached_tokens": whole}));
    usage["properties"]["completion_tokens_details"] = object(json!({"reasoning_tokens": whole}));
    usage
}

fn answer(kind: &str, choice: Value) -> Value {
    let mut answer = object(json!({
        "id": {"type": "string"},
        "object": {"const": kind},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "choices": {"type": "array", "minItems": 1, "items": choice},
        "usage": {"$ref": "#/components/schemas/Usage"},
    }));
    answer["properties"]["timings"] = json!({"type": "object", "description": "Counts and times in milliseconds, of servers that tell them."});
    answer
}

/// Of `/v1/responses`.
fn response() -> Value {
    let whole = json!({"type": "integer", "minimum": 0});
    let usage = object(json!({
        "input_tokens": whole, "input_tokens_details": object(json!({"cached_tokens": whole})),
        "output_tokens": whole, "output_tokens_details": object(json!({"reasoning_tokens": whole})), "total_tokens": whole}));
    let item =
        object(json!({"id": {"type": "string"}, "type": {"enum": ["reasoning", "message", "function_call"]},
                             "status": {"enum": ["completed", "incomplete"]}}));
    object(json!({
        "id": {"type": "string"},
        "object": {"const": "response"},
        "created_at": {"type": "integer"},
        "status": {"enum": ["completed", "incomplete", "cancelled"]},
        "error": {"type": "null"},
        "incomplete_details": {"type": ["object", "null"]},
        "model": {"type": "string"},
        "output": {"type": "array", "minItems": 1, "items": item},
        "usage": usage,
    }))
}

/// Of `/v1/messages`.
fn message() -> Value {
    let whole = json!({"type": "integer", "minimum": 0});
    let usage = object(
        json!({"input_tokens": whole, "cache_read_input_tokens": whole, "cache_creation_input_tokens": whole,
                              "output_tokens": whole}),
    );
    let block = object(json!({"type": {"enum": ["thinking", "text", "tool_use"]}}));
    object(json!({
        "id": {"type": "string"},
        "type": {"const": "message"},
        "role": {"const": "assistant"},
        "model": {"type": "string"},
        "content": {"type": "array", "items": block},
        "stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "model_context_window_exceeded"]},
        "stop_sequence": {"type": ["string", "null"]},
        "usage": usage,
    }))
}

fn ending(mut properties: Value) -> Value {
    properties["index"] = json!({"type": "integer", "minimum": 0});
    properties["logprobs"] = json!({"type": ["object", "null"]});
    properties["finish_reason"] = json!({"enum": ["stop", "length", "tool_calls", "abort"]});
    properties["stop_reason"] = json!({"type": ["string", "integer", "null"]});
    object(properties)
}

fn completion_choice() -> Value {
    ending(json!({"text": {"type": "string"}}))
}

fn chat_choice() -> Value {
    let function = object(json!({"name": {"type": "string"}, "arguments": {"type": "string"}}));
    let call = object(json!({"id": {"type": "string"}, "type": {"const": "function"}, "function": function}));
    let mut message = object(json!({"role": {"const": "assistant"}, "content": {"type": ["string", "null"]},
                                    "refusal": {"type": "null"}}));
    message["properties"]["reasoning_content"] =
        json!({"type": "string", "description": "What the model thought before."});
    message["properties"]["tool_calls"] = json!({"type": "array", "items": call});
    ending(json!({"message": message}))
}
