//! A request's body: bounded in bytes and time, and JSON.

use std::ops::Deref;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::HeaderMap;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use model::api::{ApiError, values};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use crate::app::App;
use crate::crowd::{Crowd, Room};
use crate::refusal;

/// A body, and the room that it takes.
pub(crate) struct Whole {
    bytes: Vec<u8>,
    _room: Room,
}

impl Deref for Whole {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads a body whole.
pub(crate) async fn read(request: Request, app: &App) -> Result<Whole, ApiError> {
    let (head, body) = request.into_parts();
    claims_json(&head.headers)?;
    let limit = app.config.max_body_bytes;
    let announced = head.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if announced.is_some_and(|bytes: u64| bytes > limit as u64) {
        return Err(refusal::too_large(limit));
    }
    let whole = tokio::time::timeout(app.config.body_timeout, collect(body, limit, &app.crowd));
    whole.await.unwrap_or_else(|_| Err(refusal::slow()))
}

/// Bodies that are being read at the same time share what room there is; one that finds none is not waited with, since
/// others might wait for it.
async fn collect(body: Body, limit: usize, crowd: &Arc<Crowd>) -> Result<Whole, ApiError> {
    let mut body = Limited::new(body, limit);
    let (mut bytes, mut room) = (Vec::new(), crowd.body());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            if error.is::<LengthLimitError>() { refusal::too_large(limit) } else { refusal::broken_body() }
        })?;
        let Ok(data) = frame.into_data() else { continue };
        room.take(data.len()).ok_or_else(refusal::bodies_full)?;
        bytes.extend_from_slice(&data);
    }
    Ok(Whole { bytes, _room: room })
}

/// JSON, or nothing said; a form that a browser sends by itself says something else. As it is, not compressed.
fn claims_json(headers: &HeaderMap) -> Result<(), ApiError> {
    if headers
        .get_all(CONTENT_ENCODING)
        .iter()
        .any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
    {
        return Err(refusal::compressed());
    }
    let Some(claim) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let claim = claim.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let json = claim.eq_ignore_ascii_case("application/json");
    if json { Ok(()) } else { Err(refusal::not_json()) }
}

/// A body that has been read, and the room that it takes.
pub(crate) struct Parsed {
    value: Value,
    _room: OwnedSemaphorePermit,
}

impl Deref for Parsed {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.value
    }
}

/// Parses a body; nesting is bounded by the parser. A value takes more room than its text, so that values are counted before
/// there are any.
pub(crate) fn parse(body: &[u8], crowd: &Crowd) -> Result<Parsed, ApiError> {
    let (values, most) = (values(body), crowd.values_most());
    if values > most {
        return Err(refusal::too_many_values(most));
    }
    let room = crowd.values(values).ok_or_else(refusal::bodies_full)?;
    let value = serde_json::from_slice(body).map_err(|e| {
        // Of what the parser says nothing is passed on: it may repeat the body.
        let what = if e.to_string().starts_with("recursion limit exceeded") {
            "nested more than 127 levels deep"
        } else {
            "not valid JSON"
        };
        ApiError::json(format!("the body is {what} (line {}, column {})", e.line(), e.column()))
    })?;
    Ok(Parsed { value, _room: room })
}
