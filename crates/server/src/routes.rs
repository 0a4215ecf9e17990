//! Which path leads where, and what every request passes first.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use model::api::ApiError;

use crate::account::Account;
use crate::app::App;
use crate::refusal::{self, Refusal};
use crate::{generate, hold, info, openapi, page, spool};

/// What answers without a key: the page is the same everywhere, and asks for one.
const OPEN: [&str; 5] = ["/health", "/ready", "/", "/page.css", "/page.js"];
/// Longest id that is taken over from a client.
const ID_BYTES: usize = 128;

pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/completions", post(generate::completions))
        .route("/v1/chat/completions", post(generate::chats))
        .route("/v1/models", get(info::models))
        .route("/v1/models/{*id}", get(info::model))
        .route("/tokenizer_info", get(info::tokenizer))
        .route("/openapi.json", get(openapi::document))
        .route("/tokenize", post(info::to_tokens))
        .route("/detokenize", post(info::to_text))
        .route("/v1/hold", get(hold::hold))
        // Its body is a file, written as it comes and counted by its reader.
        .route("/v1/files", get(spool::list_files).post(spool::upload).layer(DefaultBodyLimit::disable()))
        .route("/v1/files/{id}", get(spool::get_file).delete(spool::delete))
        .route("/v1/files/{id}/content", get(spool::content))
        .route("/v1/batches", get(spool::list_batches).post(spool::create_batch))
        .route("/v1/batches/{id}", get(spool::get_batch))
        .route("/v1/batches/{id}/cancel", post(spool::cancel))
        .route("/", get(page::html))
        .route("/page.css", get(page::css))
        .route("/page.js", get(page::js))
        .route("/health", get(info::health))
        .route("/ready", get(info::ready))
        .route("/version", get(info::version))
        .route("/load", get(info::load))
        .route("/metrics", get(info::metrics))
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(&app), enter))
        .with_state(app)
}

/// A body of JSON.
pub(crate) fn json(body: String) -> Response {
    ([(CONTENT_TYPE, "application/json")], body).into_response()
}

async fn nothing_here(request: Request) -> Refusal {
    refusal::no_route(request.uri().path()).into()
}

async fn wrong_method(request: Request) -> Refusal {
    refusal::wrong_method(request.method().as_str()).into()
}

/// Every request comes through here, whatever its path.
async fn enter(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let id = request_id(request.headers()).unwrap_or_else(|| own_id(&app));
    let shown = id.to_str().unwrap_or_default();
    let account = Account::begin(app.config.log.clone(), Arc::clone(&app.metrics), &request, shown);
    request.extensions_mut().insert(Arc::clone(&account));
    let mut response = match admit(&app, &request) {
        Ok(()) => next.run(request).await,
        Err(error) => Refusal(error).into_response(),
    };
    app.metrics.responded(response.status().as_u16());
    account.responded(response.status().as_u16());
    response.headers_mut().insert("x-request-id", id);
    response.map(|body| account.until_sent(body))
}

/// By default nobody is let in.
fn admit(app: &App, request: &Request) -> Result<(), ApiError> {
    let headers = request.headers();
    if OPEN.contains(&request.uri().path()) {
        return Ok(());
    }
    let authorization = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    if !app.keys.admit(authorization) {
        return Err(refusal::no_key());
    }
    let exposed = app.keys.is_open() && app.config.address.ip().is_loopback();
    if exposed && !headers.get(HOST).is_none_or(names_loopback) {
        return Err(refusal::wrong_host());
    }
    Ok(())
}

/// A name that somebody else's DNS answers for lets their pages reach this server through a browser.
fn names_loopback(host: &HeaderValue) -> bool {
    let host = host.to_str().unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// The client's own id, if it is sensible.
fn request_id(headers: &HeaderMap) -> Option<HeaderValue> {
    let id = headers.get("x-request-id")?;
    let sensible = (1..=ID_BYTES).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic);
    sensible.then(|| id.clone())
}

fn own_id(app: &App) -> HeaderValue {
    HeaderValue::from_str(&format!("req-{}", app.number().1)).expect("hexadecimal")
}
