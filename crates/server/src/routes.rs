//! Which path leads where, and what every request passes first.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::DefaultBodyLimit;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::FutureExt;
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use model::api::ApiError;

use crate::account::{Account, OWN};
use crate::app::App;
use crate::guest::Answering;
use crate::keys::Key;
use crate::refusal::{self, Refusal};
use crate::{generate, hold, info, openapi, page, spool};

/// What answers without a key: the page is the same everywhere, and asks for one.
const OPEN: [&str; 6] = ["/health", "/ready", "/", "/page.css", "/page.js", "/markdown.js"];
/// What servers like this one may have, and this one does not: clients that ask for it are told so.
const ELSEWHERE: [&str; 13] = [
    "/v1/embeddings",
    "/v1/moderations",
    "/v1/rerank",
    "/v1/score",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/audio/speech",
    "/v1/images/generations",
    "/v1/fine_tuning/jobs",
    "/pooling",
    "/score",
    "/rerank",
    "/classify",
];
/// How Anthropic's clients send a key.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Longest id that is taken over from a client.
const ID_BYTES: usize = 128;

pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/completions", post(generate::completions))
        .route("/v1/chat/completions", post(generate::chats))
        .route("/v1/responses", post(generate::responses))
        .route("/v1/responses/input_tokens", post(info::input))
        .route("/v1/messages", post(generate::messages))
        .route("/v1/messages/count_tokens", post(info::counted))
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
        .route("/markdown.js", get(page::markdown))
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

/// Bytes of a request's address and header fields.
pub(crate) const HEAD_BYTES: usize = 12 << 10;
/// Those fields: as many as hyper reads.
pub(crate) const FIELDS_MAX: usize = 100;

/// A body of JSON.
pub(crate) fn json(body: String) -> Response {
    ([(CONTENT_TYPE, "application/json")], body).into_response()
}

async fn nothing_here(request: Request) -> Refusal {
    let path = request.uri().path();
    let elsewhere = ELSEWHERE.contains(&path);
    if elsewhere { refusal::not_offered(path).into() } else { refusal::no_route(path).into() }
}

async fn wrong_method(request: Request) -> Refusal {
    refusal::wrong_method(request.method().as_str()).into()
}

/// Every request comes through here, whatever its path.
async fn enter(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    // Absent where the request came over no connection.
    let answering = request.extensions_mut().remove::<Arc<Answering>>();
    let id = request_id(request.headers()).unwrap_or_else(|| own_id(&app));
    let shown = id.to_str().unwrap_or_default();
    let account = Account::begin(app.config.log.clone(), Arc::clone(&app.metrics), &request, shown);
    request.extensions_mut().insert(Arc::clone(&account));
    let of_messages = is_of_messages(&request);
    let mut response = match fits(&request).and_then(|()| admit(&app, &request)) {
        // A bug in a handler is that request's alone: its client is told, and the connection lives on.
        Ok(()) => AssertUnwindSafe(next.run(request)).catch_unwind().await.unwrap_or_else(|_| broken()),
        Err(error) => Refusal(error).into_response(),
    };
    if of_messages {
        in_their_words(&mut response, &id);
    }
    app.metrics.responded(response.status().as_u16());
    account.responded(response.status().as_u16());
    response.headers_mut().insert("x-request-id", id);
    // What a browser is given is what its type says, and nothing that it guesses.
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response.map(|body| account.until_sent(body, answering))
}

/// Whether it is for an endpoint of Anthropic's.
fn is_of_messages(request: &Request) -> bool {
    let path = request.uri().path();
    path.strip_prefix("/v1/messages").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Errors and ids as Anthropic's clients look for them.
fn in_their_words(response: &mut Response, id: &HeaderValue) {
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        *response.body_mut() = Body::from(error.message_body(id.to_str().unwrap_or_default()).to_string());
    }
    response.headers_mut().insert("request-id", id.clone());
}

fn broken() -> Response {
    Refusal(ApiError::internal()).into_response()
}

/// Longer heads are refused with a reason; the parser drops those that do not fit into its buffer at all.
fn fits(request: &Request) -> Result<(), ApiError> {
    let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len());
    let bytes = fields.sum::<usize>() + request.uri().to_string().len();
    if bytes > HEAD_BYTES { Err(refusal::head_too_large(HEAD_BYTES)) } else { Ok(()) }
}

/// By default nobody is let in.
fn admit(app: &App, request: &Request) -> Result<(), ApiError> {
    let headers = request.headers();
    let path = request.uri().path();
    if OPEN.contains(&path) {
        return Ok(());
    }
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let keys = [text(&AUTHORIZATION).map(Key::Authorization), text(&X_API_KEY).map(Key::Bare)];
    let keys: Vec<Key> = keys.into_iter().flatten().collect();
    let open = app.config.open_metrics && path == "/metrics";
    if !open && !app.keys.admit(&keys) {
        return Err(refusal::no_key());
    }
    let keyless = app.keys.is_open();
    if keyless && app.config.address.ip().is_loopback() && !headers.get(HOST).is_none_or(names_loopback) {
        return Err(refusal::wrong_host());
    }
    if keyless && !request.method().is_safe() && of_another_page(headers) {
        return Err(refusal::wrong_origin());
    }
    Ok(())
}

/// Whether a browser sends this for a page of somebody else's, which needs no permission for simple requests. Browsers say
/// so themselves; older ones name the page's origin, as do all to addresses that they do not trust, or say that it is to be
/// nobody's business (`null`).
fn of_another_page(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(site) = text("sec-fetch-site") {
        return site == "cross-site";
    }
    let authority = |origin: &str| origin.split_once("://").map(|(_, rest)| rest.to_ascii_lowercase());
    let web = |origin: &&str| origin.starts_with("http://") || origin.starts_with("https://");
    if text("origin") == Some("null") {
        return true;
    }
    let origin = text("origin").filter(web).and_then(authority);
    origin.is_some_and(|origin| text("host").map(str::to_ascii_lowercase) != Some(origin))
}

/// A name that somebody else's DNS answers for lets their pages reach this server through a browser.
fn names_loopback(host: &HeaderValue) -> bool {
    let host = host.to_str().unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    // Names below localhost nobody's DNS answers for (RFC 6761, section 6.3).
    let last = name.strip_suffix('.').unwrap_or(name).rsplit('.').next().unwrap_or_default();
    last.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// The client's own id, if it is sensible.
fn request_id(headers: &HeaderMap) -> Option<HeaderValue> {
    let id = headers.get("x-request-id")?;
    let sensible = (1..=ID_BYTES).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic);
    sensible.then(|| id.clone())
}

fn own_id(app: &App) -> HeaderValue {
    HeaderValue::from_str(&format!("{OWN}{}", app.number().1)).expect("hexadecimal")
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use hyper::service::Service;
    use hyper_util::service::TowerToHyperService;

    use super::*;
    use crate::config::Config;

    #[test]
    fn a_bug_in_a_handler_is_answered_and_told_without_its_details() {
        async fn bug() -> &'static str {
            panic!("a secret, as the test wants it")
        }
        let app = Arc::new(App::new(Config::new(([127, 0, 0, 1], 0).into()), None));
        let router = Router::new().fallback(bug).layer(from_fn_with_state(app, enter));
        let request = Request::builder().uri("/bug").body(Body::empty()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let response = TowerToHyperService::new(router).call(request).await.unwrap();
            assert_eq!(response.status(), 500);
            assert!(response.headers().contains_key("x-request-id"));
            let body = to_bytes(response.into_body(), 10_000).await.unwrap();
            let body = String::from_utf8_lossy(&body);
            assert!(body.contains("server_error") && !body.contains("secret"), "{body}");
        });
    }
}
