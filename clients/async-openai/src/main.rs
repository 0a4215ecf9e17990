//! The Rust client `async-openai` against a running server: its types are stricter than Python's, so that what it
//! parses is what the protocol says.
//!
//!     cargo run -- URL KEY

use std::future::Future;
use std::time::{Duration, Instant};

use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::error::{ApiErrorResponse, OpenAIError};
use async_openai::types::chat::{CreateChatCompletionRequest, FinishReason};
use async_openai::types::completions::CreateCompletionRequest;
use futures::StreamExt;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// A client and the model that it asks for.
struct Suite {
    client: Client<OpenAIConfig>,
    url: String,
    model: String,
}

fn client(url: &str, key: &str) -> Client<OpenAIConfig> {
    Client::with_config(OpenAIConfig::new().with_api_base(format!("{url}/v1")).with_api_key(key))
}

/// What the server says of an error, or a failure of the test.
fn api_error<T>(answer: Result<T, OpenAIError>) -> Result<ApiErrorResponse, Box<dyn std::error::Error>> {
    match answer {
        Err(OpenAIError::ApiError(error)) => Ok(error),
        Err(other) => Err(format!("expected an error of the API, found: {other}").into()),
        Ok(_) => Err("expected an error, found an answer".into()),
    }
}

impl Suite {
    async fn new(url: &str, key: &str) -> Result<Suite, OpenAIError> {
        let client = client(url, key);
        let model = client.models().list().await?.data.remove(0).id;
        Ok(Suite { client, url: url.to_string(), model })
    }

    /// A request in the client's own types, from a body without its model.
    fn request<T: DeserializeOwned>(&self, mut body: Value) -> Result<T, serde_json::Error> {
        body["model"] = self.model.clone().into();
        serde_json::from_value(body)
    }

    async fn models_are_listed_and_found(&self) -> Outcome {
        assert_eq!(self.client.models().retrieve(&self.model).await?.id, self.model);
        let error = api_error(self.client.models().retrieve("no-such-model").await)?;
        assert_eq!(error.status_code.as_u16(), 404);
        Ok(())
    }

    async fn a_completion_has_text_usage_and_logprobs(&self) -> Outcome {
        let body =
            json!({"prompt": "The ship", "max_tokens": 8, "temperature": 0, "ignore_eos": true, "logprobs": 2, "echo": true});
        let answer = self.client.completions().create(self.request::<CreateCompletionRequest>(body)?).await?;
        let usage = answer.usage.ok_or("no usage")?;
        assert_eq!(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
        let logprobs = answer.choices[0].logprobs.as_ref().ok_or("no logprobs")?;
        assert_eq!(logprobs.tokens.len(), usage.total_tokens as usize);
        assert!(answer.choices[0].text.starts_with("The ship"));
        Ok(())
    }

    async fn prompts_of_every_kind_are_answered_in_order(&self) -> Outcome {
        for (prompt, n) in
            [(json!("a"), 1), (json!(["a", "b"]), 2), (json!([5, 6, 7]), 1), (json!([[5, 6], [7]]), 2)]
        {
            let body = json!({"prompt": prompt, "max_tokens": 3, "temperature": 0});
            let answer =
                self.client.completions().create(self.request::<CreateCompletionRequest>(body)?).await?;
            let found: Vec<u32> = answer.choices.iter().map(|choice| choice.index).collect();
            assert_eq!(found, (0..n).collect::<Vec<u32>>());
        }
        Ok(())
    }

    async fn a_stream_adds_up_to_the_whole(&self) -> Outcome {
        let body = json!({"messages": [{"role": "user", "content": "Ahoy"}], "max_completion_tokens": 60, "temperature": 0, "ignore_eos": true});
        let whole =
            self.client.chat().create(self.request::<CreateChatCompletionRequest>(body.clone())?).await?;
        let mut body = body;
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        let mut stream =
            self.client.chat().create_stream(self.request::<CreateChatCompletionRequest>(body)?).await?;
        let (mut text, mut finish, mut usage) = (String::new(), None, None);
        while let Some(chunk) = stream.next().await {
            let chunk = chunk?;
            usage = chunk.usage.or(usage);
            for choice in chunk.choices {
                text.push_str(choice.delta.content.as_deref().unwrap_or_default());
                finish = choice.finish_reason.or(finish);
            }
        }
        assert_eq!(Some(text), whole.choices[0].message.content);
        assert_eq!(finish, whole.choices[0].finish_reason);
        assert_eq!(usage.map(|u| u.total_tokens), whole.usage.map(|u| u.total_tokens));
        Ok(())
    }

    async fn a_forced_tool_call_is_parsed(&self) -> Outcome {
        let parameters = json!({"type": "object", "properties": {"knots": {"type": "integer", "minimum": 0, "maximum": 9}},
                                "required": ["knots"], "additionalProperties": false});
        let tool = json!({"type": "function", "function": {"name": "set_speed", "parameters": parameters}});
        let body = json!({"messages": [{"role": "user", "content": "Faster!"}], "tools": [tool], "temperature": 0,
                          "tool_choice": {"type": "function", "function": {"name": "set_speed"}}, "max_completion_tokens": 200});
        let answer = self.client.chat().create(self.request::<CreateChatCompletionRequest>(body)?).await?;
        let calls = answer.choices[0].message.tool_calls.as_ref().ok_or("no tool calls")?;
        let call = serde_json::to_value(&calls[0])?;
        assert_eq!(call["function"]["name"], "set_speed");
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap_or(""))?;
        assert!(arguments["knots"].is_u64());
        Ok(())
    }

    async fn a_schema_holds_the_answer(&self) -> Outcome {
        let schema = json!({"type": "object", "properties": {"ahoy": {"type": "boolean"}}, "required": ["ahoy"], "additionalProperties": false});
        let format = json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": true}});
        let body = json!({"messages": [{"role": "user", "content": "Ahoy?"}], "response_format": format, "max_completion_tokens": 200, "temperature": 0});
        let answer = self.client.chat().create(self.request::<CreateChatCompletionRequest>(body)?).await?;
        let text = answer.choices[0].message.content.clone().unwrap_or_default();
        assert!(serde_json::from_str::<Value>(&text)?["ahoy"].is_boolean(), "{text}");
        assert_eq!(answer.choices[0].finish_reason, Some(FinishReason::Stop));
        Ok(())
    }

    async fn errors_are_typed(&self) -> Outcome {
        let body = json!({"prompt": "a", "max_tokens": 3, "temperature": -1});
        let error = api_error(
            self.client.completions().create(self.request::<CreateCompletionRequest>(body)?).await,
        )?;
        assert_eq!(
            (error.status_code.as_u16(), error.api_error.param.as_deref()),
            (400, Some("temperature"))
        );
        let stranger = client(&self.url, "not the key");
        let error = api_error(stranger.models().list().await)?;
        assert_eq!(
            (error.status_code.as_u16(), error.api_error.code.as_deref()),
            (401, Some("invalid_api_key"))
        );
        Ok(())
    }

    /// Half of the clients hang up after two chunks; the others get all of their tokens.
    async fn streams_that_are_dropped_disturb_nobody(&self) -> Outcome {
        let one = |i: usize| async move {
            let body = json!({"prompt": [5, 6, i], "max_tokens": 40, "temperature": 0, "stream": true});
            let request: CreateCompletionRequest = serde_json::from_value({
                let mut body = body;
                body["model"] = self.model.clone().into();
                body["stream_options"] = json!({"include_usage": true});
                body
            })?;
            let mut stream = self.client.completions().create_stream(request).await?;
            let (mut chunks, mut finished) = (0, false);
            while let Some(chunk) = stream.next().await {
                finished |= chunk?.choices.iter().any(|choice| choice.finish_reason.is_some());
                chunks += 1;
                if i % 2 == 1 && chunks == 2 {
                    return Ok(());
                }
            }
            assert!(finished, "a stream ended without saying why");
            Outcome::Ok(())
        };
        for outcome in futures::future::join_all((0..32).map(one)).await {
            outcome?;
        }
        Ok(())
    }
}

/// Runs a test and says how it went.
async fn check(name: &str, test: impl Future<Output = Outcome>) -> bool {
    let began = Instant::now();
    let outcome = tokio::time::timeout(Duration::from_secs(120), test).await;
    let why = match outcome {
        Ok(Ok(())) => None,
        Ok(Err(why)) => Some(why.to_string()),
        Err(_) => Some("no answer in two minutes".to_string()),
    };
    let ok = why.is_none();
    println!(
        "{} {name} ({} ms){}",
        if ok { "ok    " } else { "FAILED" },
        began.elapsed().as_millis(),
        why.map_or(String::new(), |why| format!(": {why}"))
    );
    ok
}

macro_rules! checks {
    ($suite:ident: $($name:ident),*) => {
        [$(check(&stringify!($name).replace('_', " "), $suite.$name()).await),*]
    };
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    let mut args = std::env::args().skip(1);
    let (Some(url), Some(key)) = (args.next(), args.next()) else {
        return Err("usage: async-openai-test URL KEY".into());
    };
    let suite = Suite::new(&url, &key).await?;
    let outcomes = checks!(suite: models_are_listed_and_found, a_completion_has_text_usage_and_logprobs,
        prompts_of_every_kind_are_answered_in_order, a_stream_adds_up_to_the_whole, a_forced_tool_call_is_parsed,
        a_schema_holds_the_answer, errors_are_typed, streams_that_are_dropped_disturb_nobody);
    let passed = outcomes.iter().filter(|ok| **ok).count();
    println!("{passed} of {} passed", outcomes.len());
    if passed == outcomes.len() { Ok(()) } else { Err("some failed".into()) }
}
