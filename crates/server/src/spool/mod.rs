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
mod close;
mod counted;
mod expire;
mod failed;
mod feed;
mod file;
mod files;
mod gone;
mod incoming;
mod kind;
mod lines;
mod room;
mod store;
mod whole;
mod work;

pub(crate) use batches::{cancel, create as create_batch, get as get_batch, list as list_batches};
pub(crate) use files::{content, delete, get as get_file, list as list_files, upload};
pub(crate) use store::Spool;
pub(crate) use work::{bytes, work};

use axum::extract::Query;
use model::api::ApiError;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::ops::RangeInclusive;

/// Entries of a page of a list where the client does not say, and at the most: OpenAI's.
struct Page {
    usual: usize,
    most: usize,
}

const FILES: Page = Page { usual: 10_000, most: 10_000 };
const BATCHES: Page = Page { usual: 20, most: 100 };
/// How long a client may want a file to be kept, in seconds: OpenAI's.
pub(crate) const KEPT: RangeInclusive<u64> = 3600..=2_592_000;

/// How long a file is to be kept after it was made, as `param` says it with an `anchor` and `seconds`.
fn kept(param: &str, anchor: &str, seconds: Option<u64>) -> Result<u64, ApiError> {
    if anchor != "created_at" {
        return Err(ApiError::invalid(param, format!("{param}.anchor: expected created_at")));
    }
    seconds.filter(|seconds| KEPT.contains(seconds)).ok_or_else(|| {
        let range = format!("{} to {}", KEPT.start(), KEPT.end());
        ApiError::invalid(param, format!("{param}.seconds: expected a whole number, {range}"))
    })
}

/// A page of a list that is newest first, as `limit`, `after` and `order` ask. `gone`: when something was made that is
/// deleted by now.
fn page(
    mut all: Vec<Value>,
    query: &Query<HashMap<String, String>>,
    size: &Page,
    gone: &dyn Fn(&str) -> Option<u64>,
) -> Result<Value, ApiError> {
    let limit = match query.get("limit").map(|text| text.parse::<usize>()) {
        None => size.usual,
        Some(Ok(limit @ 1..)) => limit.min(size.most),
        Some(_) => return Err(ApiError::invalid("limit", "limit: expected a number from 1 on")),
    };
    let oldest_first = match query.get("order").map(String::as_str) {
        None | Some("desc") => false,
        Some("asc") => true,
        Some(_) => return Err(ApiError::invalid("order", "order: expected asc or desc")),
    };
    if oldest_first {
        all.reverse();
    }
    let begin = query.get("after").map_or(Ok(0), |after| {
        let here = all.iter().position(|entry| entry["id"] == after.as_str()).map(|at| at + 1);
        let place = |created: u64| {
            let deleted = (Some(created), json!(after).to_string());
            all.partition_point(|entry| (place_of(entry) < deleted) == oldest_first)
        };
        here.or_else(|| gone(after).map(place))
            .ok_or_else(|| ApiError::invalid("after", "after: there is nothing of this id in the list"))
    })?;
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

/// What lists are sorted by.
fn place_of(entry: &Value) -> (Option<u64>, String) {
    (entry["created_at"].as_u64(), entry["id"].to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids of a page of four files, of which the third was deleted.
    fn ids(query: &[(&str, &str)]) -> Result<Vec<String>, ApiError> {
        let all = [9, 7, 3].map(|n| json!({"id": format!("file-{n}"), "created_at": n})).to_vec();
        let query = query.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let page = page(all, &Query(query), &BATCHES, &|id| (id == "file-5").then_some(5))?;
        Ok(page["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["id"].as_str().unwrap().into())
            .collect())
    }

    #[test]
    fn files_are_listed_whole_and_batches_by_pages() {
        let all =
            |n: usize| (0..n).map(|n| json!({"id": format!("x-{n}"), "created_at": n})).collect::<Vec<_>>();
        let listed = |size: &Page, limit: Option<&str>| {
            let query = limit.map(|limit| ("limit".to_string(), limit.to_string())).into_iter().collect();
            let page = page(all(150), &Query(query), size, &|_| None).unwrap();
            (page["data"].as_array().unwrap().len(), page["has_more"].as_bool().unwrap())
        };
        assert_eq!((listed(&FILES, None), listed(&BATCHES, None)), ((150, false), (20, true)));
        assert_eq!((listed(&FILES, Some("120")), listed(&BATCHES, Some("120"))), ((120, true), (100, true)));
    }

    #[test]
    fn pages_go_on_after_what_was_deleted_meanwhile() {
        assert_eq!(ids(&[]).unwrap(), ["file-9", "file-7", "file-3"]);
        assert_eq!(ids(&[("after", "file-9"), ("limit", "1")]).unwrap(), ["file-7"]);
        assert_eq!(ids(&[("after", "file-5")]).unwrap(), ["file-3"]);
        assert_eq!(ids(&[("order", "asc")]).unwrap(), ["file-3", "file-7", "file-9"]);
        assert_eq!(ids(&[("order", "asc"), ("after", "file-5")]).unwrap(), ["file-7", "file-9"]);
        assert_eq!(ids(&[("after", "file-3")]).unwrap(), Vec::<String>::new());
        for wrong in [("after", "file-4"), ("order", "newest"), ("limit", "0")] {
            assert!(ids(&[wrong]).is_err(), "{wrong:?}");
        }
    }
}
