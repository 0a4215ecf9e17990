//! What becomes of one request, told when it is over: a line of the log, and the time that it took. Whoever works on it
//! holds a share; the last one to let go ends it.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody};
use axum::extract::{MatchedPath, Request};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use model::api::{Delivery, Generate, Timings, UnknownFields};
use serde_json::{Value, json};

use crate::app::App;
use crate::crowd::FRAME_BYTES;
use crate::guest::Answering;
use crate::log::{Log, LogLevel, fields};
use crate::metrics::Metrics;

/// As nginx has it: the client went away before there was an answer.
const CLIENT_GONE: u16 = 499;
/// How a sequence ends that the engine failed, and one that cannot be had.
pub(crate) const FAILED: &str = "error";
pub(crate) const REFUSED: &str = "refused";
/// How ids begin that the server gives to requests.
pub(crate) const OWN: &str = "req-";
/// Where a request leads that leads nowhere.
const NOWHERE: &str = "none";
/// Bytes of a path that leads nowhere, and of a name in it, that the log has.
const MOST_OF_PATH: usize = 64;
const MOST_OF_NAME: usize = 24;
/// A method that is none of those that are known.
const UNKNOWN: &str = "OTHER";

/// One request of HTTP.
pub(crate) struct Account {
    log: Log,
    metrics: Arc<Metrics>,
    began: Instant,
    id: String,
    method: &'static str,
    /// The route, not what stands in its holes.
    route: String,
    /// What was asked for where there is no route, if it is a name and not something to keep.
    path: Option<String>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    status: Option<u16>,
    generated: Option<Generated>,
}

/// What a request to generate came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Generated {
    model: String,
    stream: bool,
    /// Of what is answered, if the request's body has it: another than the request's.
    id: Option<String>,
    prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) tokens: usize,
    /// Of the longest sequence.
    pub(crate) longest: usize,
    /// From the engine's inbox to the first step of any sequence.
    pub(crate) queued: Option<Duration>,
    /// From the engine's inbox to the first token.
    pub(crate) first_token: Option<Duration>,
    /// The same to the newest.
    pub(crate) last_token: Option<Duration>,
    /// Of each kind of end that there was.
    finishes: Vec<&'static str>,
    /// Fields of the request that mean nothing here.
    ignored: Option<String>,
}

impl Generated {
    pub(crate) fn new(request: &Generate) -> Generated {
        Generated {
            model: request.model.clone(),
            stream: matches!(request.delivery, Delivery::Stream { .. }),
            id: request.request_id.clone(),
            prompt_tokens: request.prompts.iter().map(Vec::len).sum(),
            ignored: ignored(&request.unknown_fields),
            ..Generated::default()
        }
    }

    /// How long that took so far. `cached_tokens`: of the prompts.
    pub(crate) fn timings(&self, cached_tokens: usize) -> Timings {
        let ms = |from: Option<Duration>, to: Option<Duration>| {
            let took = to.zip(from).map(|(to, from)| to.saturating_sub(from));
            took.map_or(0.0, |took| took.as_secs_f64() * 1e3)
        };
        Timings {
            cache_n: cached_tokens,
            prompt_n: self.prompt_tokens.saturating_sub(cached_tokens),
            queue_ms: ms(Some(Duration::ZERO), self.queued),
            prompt_ms: ms(self.queued, self.first_token),
            predicted_n: self.tokens,
            predicted_ms: ms(self.first_token, self.last_token),
        }
    }

    /// A sequence ended like this.
    pub(crate) fn finished(&mut self, how: &'static str) {
        if !self.finishes.contains(&how) {
            self.finishes.push(how);
        }
    }
}

impl Account {
    pub(crate) fn begin(log: Log, metrics: Arc<Metrics>, request: &Request, id: &str) -> Arc<Account> {
        let route = request.extensions().get::<MatchedPath>();
        Arc::new(Account {
            log,
            metrics,
            began: Instant::now(),
            id: id.to_string(),
            method: method(request),
            route: route.map_or(NOWHERE, MatchedPath::as_str).to_string(),
            path: route.is_none().then(|| named_path(request.uri().path())).flatten(),
            state: Mutex::default(),
        })
    }

    /// What the id of what is answered is made of.
    pub(crate) fn answer_id(&self) -> &str {
        self.id.strip_prefix(OWN).filter(|id| !id.is_empty()).unwrap_or(&self.id)
    }

    /// The head of the answer is on its way.
    pub(crate) fn responded(&self, status: u16) {
        self.state().status = Some(status);
    }

    /// All sequences have ended, or nobody wants them any more.
    pub(crate) fn generated(&self, generated: Generated) {
        self.state().generated = Some(generated);
    }

    /// The request is not over before this body of its answer is, nor is the answer.
    pub(crate) fn until_sent(self: Arc<Self>, body: Body, answering: Option<Arc<Answering>>) -> Body {
        Body::new(Accounted { body, rest: Bytes::new(), _account: self, _answering: answering })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A body that holds a share of its request. It comes in frames of a size: what a connection copies one into, it keeps.
struct Accounted {
    body: Body,
    /// Of the body's last frame.
    rest: Bytes,
    _account: Arc<Account>,
    _answering: Option<Arc<Answering>>,
}

impl HttpBody for Accounted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                end => return Poll::Ready(end),
            }
        }
        let most = self.rest.len().min(FRAME_BYTES);
        let piece = self.rest.split_to(most);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower() + rest);
        if let Some(upper) = body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

/// A path that the log may have: short lower-case names. Anything else may be a key or a prompt that went astray.
fn named_path(path: &str) -> Option<String> {
    let is_of_names = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.".contains(&byte);
    let is_name = |name: &str| name.len() <= MOST_OF_NAME && name.bytes().all(is_of_names);
    (path.len() <= MOST_OF_PATH && path.split('/').all(is_name)).then(|| path.to_string())
}

/// A client may invent methods: those are one.
fn method(request: &Request) -> &'static str {
    match request.method().as_str() {
        "GET" => "GET",
        "POST" => "POST",
        "DELETE" => "DELETE",
        "HEAD" => "HEAD",
        "OPTIONS" => "OPTIONS",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        _ => UNKNOWN,
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        let (status, generated) = {
            let mut state = self.state();
            (state.status.unwrap_or(CLIENT_GONE), state.generated.take())
        };
        self.metrics.http.observe(self.method, &self.route, status, took);
        let failed = generated.as_ref().is_some_and(|generated| generated.finishes.contains(&FAILED));
        let level = match status {
            500 | 502 => LogLevel::Error,
            // A stream's status was sent before it failed.
            _ if failed => LogLevel::Error,
            // Who only looks, or asks again and again whether it is ready.
            _ if self.method == "GET" && (status < 400 || status == 503) => LogLevel::Debug,
            _ => LogLevel::Info,
        };
        let mut line = fields([
            ("id", json!(self.id)),
            ("method", json!(self.method)),
            ("path", json!(self.path.as_ref().unwrap_or(&self.route))),
            ("status", json!(status)),
        ]);
        if let Some(generated) = generated {
            line.extend(of_generated(&generated));
        }
        line.insert("total_ms".into(), ms(took));
        self.log.line(level, "request", line);
    }
}

/// A request whose head could not be read, and so nothing but the status of its answer is known.
pub(crate) fn unread(app: &App, id: &str, status: u16) {
    app.metrics.responded(status);
    app.metrics.http.observe(UNKNOWN, NOWHERE, status, Duration::ZERO);
    let line = [("id", json!(format!("{OWN}{id}"))), ("path", json!(NOWHERE)), ("status", json!(status))];
    app.config.log.line(LogLevel::Info, "request", fields(line));
}

/// Those that look like names of fields by them, others as `?`; nothing if there are none.
fn ignored(fields: &UnknownFields) -> Option<String> {
    let is_of_names = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let name = |name: &String| {
        let is_name = name.len() <= MOST_OF_NAME && name.bytes().all(is_of_names);
        if is_name { name.clone() } else { "?".to_string() }
    };
    let names: Vec<String> = fields.iter().map(name).collect();
    let more = (fields.len() > names.len()).then(|| format!(",and {} more", fields.len() - names.len()));
    (!names.is_empty()).then(|| names.join(",") + more.as_deref().unwrap_or_default())
}

fn of_generated(generated: &Generated) -> impl Iterator<Item = (String, Value)> {
    let finish = (!generated.finishes.is_empty()).then(|| generated.finishes.join(","));
    let told = [
        ("model", json!(generated.model)),
        ("stream", json!(generated.stream)),
        ("prompt_tokens", json!(generated.prompt_tokens)),
        ("cached_tokens", json!(generated.cached_tokens)),
        ("generated_tokens", json!(generated.tokens)),
        ("queue_ms", generated.queued.map_or(Value::Null, ms)),
        ("ttft_ms", generated.first_token.map_or(Value::Null, ms)),
        ("finish_reason", json!(finish)),
    ];
    let id = generated.id.as_ref().map(|id| ("answer_id", json!(id)));
    let ignored = generated.ignored.as_ref().map(|names| ("ignored_fields", json!(names)));
    told.into_iter().chain(id).chain(ignored).map(|(name, value)| (name.to_string(), value))
}

/// Milliseconds, to the microsecond.
fn ms(took: Duration) -> Value {
    json!(took.as_micros() as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_nowhere_are_told_by_names_alone() {
        for path in ["/v1/embeddings", "/api/chat", "/props", "/v1/responses", "/", "/index.html"] {
            assert_eq!(named_path(path).as_deref(), Some(path));
        }
        let long = format!("/{}", "a/".repeat(40));
        for path in ["/v1/sk-AbC", "/say%20hello", "/v1/0123456789012345678901234", &long, "/v1/\u{e4}"] {
            assert_eq!(named_path(path), None, "{path}");
        }
    }

    #[test]
    fn fields_that_mean_nothing_are_told_by_names_alone() {
        assert_eq!(ignored(&UnknownFields::default()), None);
        let told = |names: &[&str]| ignored(&names.iter().copied().collect()).unwrap();
        assert_eq!(told(&["mirostat", "my secret", "cache_prompt"]), "mirostat,?,cache_prompt");
        assert_eq!(told(&["a"; 10]), "a,a,a,a,a,a,a,a,and 2 more");
    }
}
