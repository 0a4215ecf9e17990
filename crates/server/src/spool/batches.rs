//! `/v1/batches`

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{Path, Query, Request, State};
use axum::response::Response;
use model::api::ApiError;

use super::batch::Batch;
use super::page;
use super::store::{Kind, TooMany};
use crate::app::App;
use crate::body;
use crate::generate::aside;
use crate::refusal::{self, Refusal};
use crate::routes;

/// `POST /v1/batches`
pub(crate) async fn create(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    app.spool()?;
    let body = body::read(request, &app).await?;
    // It is on the disk before the answer says so; streams do not wait for that.
    Ok(routes::json(aside(move || begin(&app, &body)).await??))
}

/// A batch that is kept, as it is shown.
fn begin(app: &App, body: &[u8]) -> Result<String, ApiError> {
    let spool = app.spool()?;
    let request = body::parse(body, &app.crowd)?;
    let ids = [Kind::Batch, Kind::File, Kind::File].map(|kind| kind.id(&app.number().1));
    let now = spool.now();
    let batch = Batch::new(&request, ids, (now, spool.limits.window.as_secs()))?;
    let input = batch.shown["input_file_id"].as_str().unwrap_or_default();
    let file = spool.file(input).ok_or_else(|| refusal::nothing_of("file", input))?;
    if file["purpose"] != "batch" {
        return Err(ApiError::invalid(
            "input_file_id",
            "input_file_id: expected a file with the purpose batch",
        ));
    }
    let shown = batch.shown.to_string();
    let put = spool.put(batch).map_err(refusal::spool)?;
    put.map_err(|TooMany| refusal::too_many_batches(spool.limits.batches))?;
    spool.news.notify_one();
    Ok(shown)
}

/// `GET /v1/batches`
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    query: Query<HashMap<String, String>>,
) -> Result<Response, Refusal> {
    Ok(routes::json(page(app.spool()?.batches(), &query, &|_| None)?.to_string()))
}

/// `GET /v1/batches/{id}`
pub(crate) async fn get(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, Refusal> {
    let batch = app.spool()?.batch(&id).ok_or_else(|| refusal::nothing_of("batch", &id))?;
    Ok(routes::json(batch.shown.to_string()))
}

/// `POST /v1/batches/{id}/cancel`: lines under way are not answered any more, those that were stay.
pub(crate) async fn cancel(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, Refusal> {
    Ok(routes::json(aside(move || end(&app, &id)).await??))
}

/// A batch that is being cancelled, as it is shown.
fn end(app: &App, id: &str) -> Result<String, ApiError> {
    let spool = app.spool()?;
    let batch = spool.batch(id).ok_or_else(|| refusal::nothing_of("batch", id))?;
    if batch.has_ended() {
        let message = format!("the batch is {}", batch.status());
        return Err(ApiError::invalid("batch_id", message));
    }
    let now = spool.now();
    let cancelling = spool.update(id, |batch| batch.advance("cancelling", now)).map_err(refusal::spool)?;
    spool.news.notify_one();
    // It may have ended meanwhile, by itself or because of this: what is told is what was done.
    let batch = cancelling.or_else(|| spool.batch(id)).ok_or_else(|| refusal::nothing_of("batch", id))?;
    Ok(batch.shown.to_string())
}
