//! The page at `/`: four small files inside the binary, which ask this server and nobody else.

use axum::response::{IntoResponse, Response};
use hyper::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY};

/// Only our own files run and are asked; nothing inline, no frames around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// `GET /`
pub(crate) async fn html() -> Response {
    file("text/html; charset=utf-8", include_str!("page/index.html"))
}

/// `GET /page.css`
pub(crate) async fn css() -> Response {
    file("text/css; charset=utf-8", include_str!("page/page.css"))
}

/// `GET /page.js`
pub(crate) async fn js() -> Response {
    file("text/javascript; charset=utf-8", include_str!("page/page.js"))
}

/// `GET /markdown.js`
pub(crate) async fn markdown() -> Response {
    file("text/javascript; charset=utf-8", include_str!("page/markdown.js"))
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        // A new binary is a new page.
        (CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}
