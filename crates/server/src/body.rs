//! A request's body: bounded in bytes and time, and JSON.

use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::HeaderMap;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE};
use model::api::ApiError;
use serde_json::Value;

use crate::config::Config;
use crate::refusal;

/// Reads a body whole.
pub(crate) async fn read(request: Request, config: &Config) -> Result<Bytes, ApiError> {
    let (head, body) = request.into_parts();
    claims_json(&head.headers)?;
    let limit = config.max_body_bytes;
    let announced = head.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if announced.is_some_and(|bytes: u64| bytes > limit as u64) {
        return Err(refusal::too_large(limit));
    }
    let whole = tokio::time::timeout(config.body_timeout, collect(body, limit));
    whole.await.unwrap_or_else(|_| Err(refusal::slow()))
}

async fn collect(body: Body, limit: usize) -> Result<Bytes, ApiError> {
    match Limited::new(body, limit).collect().await {
        Ok(whole) => Ok(whole.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(refusal::too_large(limit)),
        Err(_) => Err(refusal::broken_body()),
    }
}

/// JSON, or nothing said; a form that a browser sends by itself says something else.
fn claims_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(claim) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let claim = claim.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let json = claim.eq_ignore_ascii_case("application/json");
    if json { Ok(()) } else { Err(refusal::not_json()) }
}

/// Parses a body; nesting is bounded by the parser.
pub(crate) fn parse(body: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::json(&error))
}
