//! The endpoints that generate.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use hyper::HeaderMap;
use hyper::header::HeaderValue;
use model::api::{ApiError, Delivery, Endpoint, Events, Generate, Meta, response};
use tokio::time::{Instant, sleep, timeout_at};

use crate::account::Account;
use crate::app::App;
use crate::body::{self, Whole};
use crate::clock::unix_now;
use crate::gate::Permit;
use crate::live::Live;
use crate::refusal::Refusal;
use crate::routes::json;
use crate::sse;

/// Bytes of a body that are one token of a prompt, roughly: until they are counted.
const BYTES_A_TOKEN: usize = 4;

/// Before one whose turn it is looks again: somebody new took its place, or others take longer than they may.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// `POST /v1/completions`
pub(crate) async fn completions(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    Ok(answer(app, request, Endpoint::Completions).await?)
}

/// `POST /v1/chat/completions`
pub(crate) async fn chats(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    Ok(answer(app, request, Endpoint::Chat).await?)
}

/// `POST /v1/responses`
pub(crate) async fn responses(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    Ok(answer(app, request, Endpoint::Responses).await?)
}

/// `POST /v1/messages`
pub(crate) async fn messages(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    Ok(answer(app, request, Endpoint::Messages).await?)
}

async fn answer(app: Arc<App>, request: Request, endpoint: Endpoint) -> Result<Response, ApiError> {
    app.accepting()?;
    no_priority(request.headers())?;
    let account = request.extensions().get::<Arc<Account>>().cloned();
    let body = body::read(request, &app).await?;
    let permit = app.gate.enter(body.len() / BYTES_A_TOKEN).map_err(|full| app.refuse_full(full))?;
    let Begun(request, meta, live) = begin(&app, body, endpoint, permit, account).await?;
    match request.delivery {
        Delivery::Whole => whole(app, request, meta, live).await,
        Delivery::Stream { .. } => {
            let tokenizer = Arc::clone(&app.served()?.tokenizer);
            Ok(sse::response(live, Events::new(request, meta, tokenizer), app.config.ping_every))
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

/// A request whose sequences the engine has.
struct Begun(Generate, Meta, Live);

/// Reads a request and hands it to the engine. Grammars that others are compiling it waits for, and holds no thread meanwhile.
async fn begin(
    app: &Arc<App>,
    body: Whole,
    endpoint: Endpoint,
    mut permit: Permit,
    account: Option<Arc<Account>>,
) -> Result<Begun, ApiError> {
    let body = Arc::new(body);
    let (mut turn, mut until) = (None, None);
    loop {
        let (shared, bytes, account) = (Arc::clone(app), Arc::clone(&body), account.clone());
        match aside(move || prepare(&shared, &bytes, endpoint, permit, account)).await?? {
            Prepared::Begun(begun) => return Ok(*begun),
            Prepared::Busy(kept, busy) => {
                permit = kept;
                let waits = async {
                    match turn {
                        None => turn = app.grammars.acquire().await.ok(),
                        Some(_) => place(app).await,
                    }
                };
                let until = *until.get_or_insert_with(|| Instant::now() + app.config.format_timeout);
                timeout_at(until, waits).await.map_err(|_| busy)?;
            }
        }
    }
}

/// Until there is a place to compile a grammar: reading a request before would be for nothing.
async fn place(app: &App) {
    loop {
        sleep(LOOK_AGAIN).await;
        if app.served().map_or(true, |served| served.tokenizer.has_place_for_grammar()) {
            return;
        }
    }
}

/// What came of reading a request: its sequences, or that there was no place to compile its grammar.
enum Prepared {
    Begun(Box<Begun>),
    Busy(Permit, ApiError),
}

/// From bytes to sequences in the engine.
fn prepare(
    app: &Arc<App>,
    body: &[u8],
    endpoint: Endpoint,
    permit: Permit,
    account: Option<Arc<Account>>,
) -> Result<Prepared, ApiError> {
    let served = app.accepting()?;
    let value = body::parse(body, &app.crowd)?;
    let read = endpoint.read(&value, &served.context());
    drop(value);
    let request = match read {
        Err(busy) if busy.is_overload() => return Ok(Prepared::Busy(permit, busy)),
        read => read?,
    };
    let (seed, own_id) = app.number();
    // That of the log, where nothing else is asked for.
    let heard = || account.as_ref().map(|account| account.answer_id().to_owned());
    let id = request.request_id.clone().or_else(heard).unwrap_or(own_id);
    let live = Live::begin(app, served, &request, permit, seed, account)?;
    let meta = Meta { id, created: unix_now(), cached_tokens: None, timings: None };
    Ok(Prepared::Begun(Box::new(Begun(request, meta, live))))
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
