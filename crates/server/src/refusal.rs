//! Errors as responses, in OpenAI's shape, with the headers that clients obey.

use std::io::ErrorKind;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use engine::counted;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{HeaderMap, StatusCode};
use model::api::ApiError;

use crate::gate::Full;
use crate::routes::{FIELDS_MAX, HEAD_BYTES};

/// An error on its way to a client.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) ApiError);

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Refusal {
        Refusal(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Refusal(error) = self;
        let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Body::from(error.body().to_string())).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        advise(status, error.code, headers);
        // For endpoints that tell errors in other words.
        response.extensions_mut().insert(error);
        response
    }
}

/// The code of what would take as long again.
const TOOK_TOO_LONG: &str = "request_timeout";

/// What the client should do: without this, it tries everything from 500 on again at once, and what took too long (408).
fn advise(status: StatusCode, code: Option<&str>, headers: &mut HeaderMap) {
    let (name, value) = match (status, code) {
        (StatusCode::SERVICE_UNAVAILABLE, Some("model_loading")) => (RETRY_AFTER, "5"),
        (StatusCode::SERVICE_UNAVAILABLE, _) => (RETRY_AFTER, "1"),
        (StatusCode::UNAUTHORIZED, _) => (WWW_AUTHENTICATE, "Bearer"),
        (
            StatusCode::INTERNAL_SERVER_ERROR
            | StatusCode::INSUFFICIENT_STORAGE
            | StatusCode::NOT_IMPLEMENTED,
            _,
        )
        | (StatusCode::REQUEST_TIMEOUT, Some(TOOK_TOO_LONG)) => {
            ("x-should-retry".parse().expect("a name"), "false")
        }
        _ => return,
    };
    headers.insert(name, HeaderValue::from_static(value));
}

fn error(status: u16, kind: &'static str, code: &'static str, message: impl Into<String>) -> ApiError {
    ApiError { status, kind, message: message.into(), param: None, code: Some(code) }
}

/// 401.
pub(crate) fn no_key() -> ApiError {
    error(
        401,
        "authentication_error",
        "invalid_api_key",
        "a valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY",
    )
}

/// 403: a page elsewhere made a browser ask.
pub(crate) fn wrong_host() -> ApiError {
    let message = "this server listens on loopback and is asked under another host's name; \
                   ask for localhost, or set an API key";
    error(403, "invalid_request_error", "host_not_allowed", message)
}

/// 404.
pub(crate) fn no_route(path: &str) -> ApiError {
    let shown: String = path.chars().take(100).collect();
    error(404, "invalid_request_error", "not_found", format!("there is nothing at {shown}"))
}

/// 405.
pub(crate) fn wrong_method(method: &str) -> ApiError {
    error(405, "invalid_request_error", "method_not_allowed", format!("{method} is not possible here"))
}

/// 408.
pub(crate) fn slow() -> ApiError {
    error(408, "timeout", "body_timeout", "the body did not come in time")
}

/// 408: longer than `--request-timeout`.
pub(crate) fn took_too_long() -> ApiError {
    error(408, "timeout", TOOK_TOO_LONG, "the request took longer than this server allows")
}

/// 503: longer than `--queue-timeout`.
pub(crate) fn waited_too_long() -> ApiError {
    error(
        503,
        "timeout",
        "queue_timeout",
        "the request waited longer than this server allows; try again later",
    )
}

/// 403: a page of another site's, in a browser of somebody who may be let in.
pub(crate) fn wrong_origin() -> ApiError {
    let message = "pages of other sites may not use this server: it has no keys; start it with --api-key, or ask it from \
                   a page of its own";
    error(403, "invalid_request_error", "origin_not_allowed", message)
}

/// 431.
pub(crate) fn head_too_large(limit: usize) -> ApiError {
    error(
        431,
        "invalid_request_error",
        "headers_too_large",
        format!("address and header may have {limit} bytes, and the header {FIELDS_MAX} fields"),
    )
}

/// What the parser answers by itself, in words: a head that is longer than all that is read of one, or that is none.
pub(crate) fn unread(status: u16) -> ApiError {
    match status {
        400 => {
            let message = "what was sent is no request of HTTP/1.1: its method, address, version or header is malformed";
            error(400, "invalid_request_error", "malformed_request", message)
        }
        _ => ApiError { status, ..head_too_large(HEAD_BYTES) },
    }
}

/// 413.
pub(crate) fn too_large(limit: usize) -> ApiError {
    error(413, "invalid_request_error", "body_too_large", format!("the body may have {limit} bytes"))
}

/// 413: short, but large once it is read.
pub(crate) fn too_many_values(most: usize) -> ApiError {
    let message = format!("the body has more values than are read here: about {most}; send fewer at a time");
    error(413, "invalid_request_error", "body_too_large", message)
}

/// 501: OpenAI's API has it, and this server does not.
pub(crate) fn not_offered(path: &str) -> ApiError {
    let message = format!(
        "{path} is not offered: this server completes texts and chats, one model each; /openapi.json lists all routes"
    );
    error(501, "not_supported_error", "endpoint_not_supported", message)
}

/// 415.
pub(crate) fn not_json() -> ApiError {
    error(415, "invalid_request_error", "unsupported_media_type", "expected Content-Type: application/json")
}

/// 415.
pub(crate) fn compressed() -> ApiError {
    let message = "expected a body without Content-Encoding: send it as it is";
    error(415, "invalid_request_error", "unsupported_content_encoding", message)
}

/// 400: the body ended before its time.
pub(crate) fn broken_body() -> ApiError {
    error(400, "invalid_request_error", "body_incomplete", "the body could not be read to its end")
}

/// 400: no multipart form.
pub(crate) fn no_form() -> ApiError {
    let message = "expected a multipart/form-data body with the fields purpose and file";
    error(400, "invalid_request_error", "form_expected", message)
}

/// 400: what should be a multipart form, and has no beginning, or a part of it no head that ends.
pub(crate) fn no_part(most: usize) -> ApiError {
    let message = format!(
        "expected a multipart/form-data body: its first boundary, or the end of the head of one of its parts, did not come \
         within {most} bytes"
    );
    error(400, "invalid_request_error", "form_expected", message)
}

/// 413.
pub(crate) fn file_too_large(limit: u64) -> ApiError {
    error(413, "invalid_request_error", "file_too_large", format!("a file may have {limit} bytes"))
}

/// 413: what is in a form beside its file.
pub(crate) fn form_too_large(most: usize) -> ApiError {
    let message = format!("fields of a form that mean nothing here may have {most} bytes together");
    error(413, "invalid_request_error", "body_too_large", message)
}

/// 404.
pub(crate) fn nothing_of(kind: &str, id: &str) -> ApiError {
    let shown: String = id.chars().take(100).collect();
    error(404, "invalid_request_error", "not_found", format!("there is no {kind} {shown}"))
}

/// 501.
pub(crate) fn no_spool() -> ApiError {
    let message = "this server keeps no files: it was started without --spool-dir";
    error(501, "not_supported_error", "no_spool_dir", message)
}

/// 507: there are as many files as may be.
pub(crate) fn spool_full() -> ApiError {
    error(507, "server_error", "spool_full", "there is no room for more files; delete some")
}

/// 507: as many batches wait as may.
pub(crate) fn too_many_batches(most: usize) -> ApiError {
    let most = counted(most, "batch");
    let message = format!("not more than {most} may be under way: wait for one to end, or cancel one");
    error(507, "server_error", "too_many_batches", message)
}

/// 500: what the system says names paths, which are not for clients.
pub(crate) fn spool(why: &std::io::Error) -> ApiError {
    if is_full(why) {
        return spool_full();
    }
    error(500, "server_error", "spool_error", "the spool directory could not be read or written")
}

/// Whether there is no room: on the disk, in the user's share of it, or in the largest file that the user may have.
pub(crate) fn is_full(why: &std::io::Error) -> bool {
    matches!(why.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

/// 500: whatever the reason, it is not for the client; who runs the server finds it in the log.
pub(crate) fn dead() -> ApiError {
    let message = "the engine has stopped, and this server is ending; the server's log names the cause";
    error(500, "server_error", "engine_dead", message)
}

/// 503: others are served, and this one may be when it comes again. What the system says names paths.
pub(crate) fn lost_on_drive() -> ApiError {
    let message = "what this request keeps on the server's drive could not be read or written; send it again";
    error(503, "server_error", "kv_lost", message)
}

/// 503: not yet.
pub(crate) fn loading() -> ApiError {
    error(503, "unavailable_error", "model_loading", "the model is being loaded")
}

/// 503: no more.
pub(crate) fn draining() -> ApiError {
    error(503, "overloaded_error", "server_shutting_down", "this server is shutting down")
}

/// 503: no place for another connection.
pub(crate) fn crowded() -> ApiError {
    let message = "this server has as many connections as it may (--max-connections); try again later";
    error(503, "overloaded_error", "server_overloaded", message)
}

/// 503: no room for another body.
pub(crate) fn bodies_full() -> ApiError {
    let message = "too many bytes of other requests are being read; try again later";
    error(503, "overloaded_error", "server_overloaded", message)
}

/// 503: later.
pub(crate) fn full(which: Full) -> ApiError {
    let what = match which {
        Full::Requests => "requests",
        Full::Tokens => "prompt tokens",
    };
    error(
        503,
        "overloaded_error",
        "server_overloaded",
        format!("too many {what} wait already; try again later"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_room_is_told_as_that_whatever_is_full() {
        for (kind, status, code) in [
            (ErrorKind::StorageFull, 507, "spool_full"),
            (ErrorKind::QuotaExceeded, 507, "spool_full"),
            (ErrorKind::FileTooLarge, 507, "spool_full"),
            (ErrorKind::PermissionDenied, 500, "spool_error"),
        ] {
            let told = spool(&kind.into());
            assert_eq!((told.status, told.code), (status, Some(code)), "{kind}");
        }
        #[cfg(target_os = "linux")]
        {
            use std::io::Write;
            let full = std::fs::File::create("/dev/full").and_then(|mut file| file.write_all(b"x"));
            assert!(is_full(&full.unwrap_err()), "what the system says of a full disk");
        }
    }
}
