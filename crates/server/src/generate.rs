//! The two endpoints that generate.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use hyper::HeaderMap;
use hyper::header::HeaderValue;
use model::api::{ApiError, Chunks, Delivery, Endpoint, Generate, Meta, chat, completion, response};

use crate::account::Account;
use crate::app::App;
use crate::body;
use crate::clock::unix_now;
use crate::gate::Permit;
use crate::live::Live;
use crate::refusal::Refusal;
use crate::routes::json;
use crate::sse;

/// Bytes of a body that are one token of a prompt, roughly: until they are counted.
const BYTES_A_TOKEN: usize = 4;

/// `POST /v1/completions`
pub(crate) async fn completions(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    Ok(answer(app, request, Endpoint::Completions).await?)
}

/// `POST /v1/chat/completions`
pub(crate) async fn chats(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    Ok(answer(app, request, Endpoint::Chat).await?)
}

async fn answer(app: Arc<App>, request: Request, endpoint: Endpoint) -> Result<Response, ApiError> {
    app.accepting()?;
    no_priority(request.headers())?;
    let account = request.extensions().get::<Arc<Account>>().cloned();
    let body = body::read(request, &app).await?;
    let permit = app.gate.enter(body.len() / BYTES_A_TOKEN).map_err(|full| app.refuse_full(full))?;
    let shared = Arc::clone(&app);
    let (request, meta, live) = aside(move || prepare(&shared, &body, endpoint, permit, account)).await??;
    match request.delivery {
        Delivery::Whole => whole(app, request, meta, live).await,
        Delivery::Stream { .. } => {
            let tokenizer = Arc::clone(&app.served()?.tokenizer);
            Ok(sse::response(live, Chunks::new(request, meta, tokenizer), app.config.ping_every))
        }
    }
}

/// What vLLM reads beside the body's field, and would mean as much here: nothing is served before others.
fn no_priority(headers: &HeaderMap) -> Result<(), ApiError> {
    match headers.get("x-vllm-priority").map(HeaderValue::as_bytes) {
        None | Some(b"0") => Ok(()),
        Some(_) => Err(ApiError::not_supported("priority", "a priority")),
    }
}

/// Runs what takes long on a thread that may be blocked. If nobody waits any more, its result is dropped.
pub(crate) async fn aside<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(f).await.map_err(|_| ApiError::internal())
}

/// From bytes to sequences in the engine.
fn prepare(
    app: &Arc<App>,
    body: &[u8],
    endpoint: Endpoint,
    permit: Permit,
    account: Option<Arc<Account>>,
) -> Result<(Generate, Meta, Live), ApiError> {
    let served = app.accepting()?;
    let value = body::parse(body, &app.crowd)?;
    let context = served.context();
    let request = match endpoint {
        Endpoint::Completions => completion(&value, &context),
        Endpoint::Chat => chat(&value, &context),
    }?;
    drop(value);
    let (seed, own_id) = app.number();
    let id = request.request_id.clone().unwrap_or(own_id);
    let live = Live::begin(app, served, &request, permit, seed, account)?;
    Ok((request, Meta { id, created: unix_now(), cached_tokens: None, timings: None }, live))
}

async fn whole(app: Arc<App>, request: Generate, meta: Meta, mut live: Live) -> Result<Response, ApiError> {
    while let Some(news) = live.next().await {
        news?;
    }
    let meta = Meta { cached_tokens: Some(live.cached_tokens()), timings: live.timings(), ..meta };
    let body = aside(move || {
        let tokenizer = &app.served()?.tokenizer;
        Ok::<_, ApiError>(response(&request, &live.into_choices(), &meta, tokenizer))
    });
    Ok(json(body.await??).into_response())
}
