//! `/v1/files` and `/v1/batches`: files that clients leave here, and jobs on them that outlive the server.
//!
//! ```text
//! SPOOL/files/file-ID         bytes           SPOOL/batches/batch_ID.json   a batch, as clients see it,
//! SPOOL/files/file-ID.json    what they are                                 and where its answers go
//! ```
//!
//! Ids are made here, and only ids become paths: a client's file name is a text in a JSON file and nothing else.

mod batch;
mod batches;
mod file;
mod files;
mod store;
mod work;

pub(crate) use batches::{cancel, create as create_batch, get as get_batch, list as list_batches};
pub(crate) use files::{content, delete, get as get_file, list as list_files, upload};
pub(crate) use store::Spool;
pub(crate) use work::work;

use axum::extract::Query;
use model::api::ApiError;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Most entries of one page of a list.
const PAGE: usize = 100;
/// Entries of a page where the client does not say.
const USUAL_PAGE: usize = 20;

/// A page of a list, newest first, as `limit` and `after` ask.
fn page(all: &[Value], query: &Query<HashMap<String, String>>) -> Result<Value, ApiError> {
    let limit = match query.get("limit").map(|text| text.parse::<usize>()) {
        None => USUAL_PAGE,
        Some(Ok(limit @ 1..)) => limit.min(PAGE),
        Some(_) => return Err(ApiError::invalid("limit", "limit: expected a number from 1 on")),
    };
    let begin = match query.get("after") {
        None => 0,
        Some(after) => all
            .iter()
            .position(|entry| entry["id"] == after.as_str())
            .map(|at| at + 1)
            .ok_or_else(|| ApiError::invalid("after", "after: there is nothing of this id in the list"))?,
    };
    let data: Vec<&Value> = all[begin..].iter().take(limit).collect();
    let id = |entry: Option<&&Value>| entry.map_or(Value::Null, |entry| entry["id"].clone());
    Ok(json!({
        "object": "list",
        "first_id": id(data.first()),
        "last_id": id(data.last()),
        "has_more": begin + data.len() < all.len(),
        "data": data,
    }))
}
