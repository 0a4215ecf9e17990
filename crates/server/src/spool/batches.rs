//! `/v1/batches`

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{Path, Query, Request, State};
use axum::response::Response;
use model::api::ApiError;

use super::batch::Batch;
use super::page;
use super::store::Kind;
use crate::app::App;
use crate::body;
use crate::refusal::{self, Refusal};
use crate::routes;

/// `POST /v1/batches`
pub(crate) async fn create(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    let spool = app.spool()?;
    let body = body::read(request, &app.config).await?;
    let request = body::parse(&body)?;
    let ids = [Kind::Batch, Kind::File, Kind::File].map(|kind| kind.id(&app.number().1));
    let batch = Batch::new(&request, ids)?;
    let input = batch.shown["input_file_id"].as_str().unwrap_or_default();
    if spool.file(input).is_none_or(|file| file["purpose"] != "batch") {
        let message = "input_file_id: there is no file of this id with the purpose batch";
        return Err(ApiError::invalid("input_file_id", message).into());
    }
    let shown = batch.shown.to_string();
    spool.put(batch).map_err(refusal::spool)?;
    spool.news.notify_one();
    Ok(routes::json(shown))
}

/// `GET /v1/batches`
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    query: Query<HashMap<String, String>>,
) -> Result<Response, Refusal> {
    Ok(routes::json(page(&app.spool()?.batches(), &query)?.to_string()))
}

/// `GET /v1/batches/{id}`
pub(crate) async fn get(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, Refusal> {
    let batch = app.spool()?.batch(&id).ok_or_else(|| refusal::nothing_of("batch", &id))?;
    Ok(routes::json(batch.shown.to_string()))
}

/// `POST /v1/batches/{id}/cancel`: lines under way are not answered any more, those that were stay.
pub(crate) async fn cancel(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, Refusal> {
    let spool = app.spool()?;
    let batch = spool.batch(&id).ok_or_else(|| refusal::nothing_of("batch", &id))?;
    if batch.has_ended() {
        let message = format!("the batch is {}", batch.status());
        return Err(ApiError::invalid("batch_id", message).into());
    }
    spool.update(&id, |batch| batch.advance("cancelling")).map_err(refusal::spool)?;
    spool.news.notify_one();
    let batch = spool.batch(&id).ok_or_else(|| refusal::nothing_of("batch", &id))?;
    Ok(routes::json(batch.shown.to_string()))
}
