//! `/v1/files`

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Multipart, Path, Query, State};
use axum::response::{IntoResponse, Response};
use hyper::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use model::api::ApiError;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout_at};

use super::page;
use super::room::Taken;
use super::store::{Kind, Spool};
use crate::app::App;
use crate::crowd::FRAME_BYTES;
use crate::generate::aside;
use crate::refusal::{self, Refusal};
use crate::routes;

/// Longest name that is remembered.
const NAME_CHARS: usize = 256;
/// Fields that a form may have: two mean something.
const MOST_FIELDS: usize = 64;
/// Bytes a second that a client must send, once it has had as long as a body may take.
const LEAST_RATE: u64 = 16 << 10;

/// What an upload has brought so far.
struct Upload {
    name: Option<String>,
    purpose: Option<String>,
    taken: Taken,
}

/// `POST /v1/files`: a form with `purpose` and `file`.
pub(crate) async fn upload(
    State(app): State<Arc<App>>,
    form: Option<Multipart>,
) -> Result<Response, Refusal> {
    let spool = app.spool()?;
    let form = form.ok_or_else(refusal::no_form)?;
    let looking = Arc::clone(&app);
    if !aside(move || looking.spool()?.has_room().map_err(refusal::spool)).await?? {
        return Err(refusal::spool_full().into());
    }
    let id = Kind::File.id(&app.number().1);
    let received = receive(&app, spool, &id, form).await;
    let described = aside(move || keep(app.spool()?, &id, received)).await?;
    Ok(routes::json(described?.to_string()))
}

/// What was received, described on the disk; or nothing is left of it.
fn keep(spool: &Spool, id: &str, received: Result<Upload, ApiError>) -> Result<Value, ApiError> {
    let described = received.and_then(|upload| {
        let (name, purpose) = upload.check()?;
        let described = spool.describe(id, &name, &purpose).map_err(refusal::spool)?;
        upload.taken.keep();
        Ok(described)
    });
    if described.is_err() {
        // Half a file is none; if it was not even begun, there is nothing to remove.
        let _ = std::fs::remove_file(spool.path(id));
    }
    described
}

impl Upload {
    fn check(&self) -> Result<(String, String), ApiError> {
        let missing = || ApiError::invalid("file", "file: there is none in the form");
        let name = self.name.as_ref().ok_or_else(missing)?;
        let missing = || ApiError::invalid("purpose", "purpose: expected batch");
        let purpose = self.purpose.clone().ok_or_else(missing)?;
        if purpose != "batch" {
            return Err(ApiError::invalid(
                "purpose",
                "purpose: expected batch; files have no other use here",
            ));
        }
        Ok((name.chars().take(NAME_CHARS).collect(), purpose))
    }
}

/// A file on its way to the disk. Once it cannot be written, the rest is read and dropped: a client that still sends
/// would not hear why.
struct Incoming {
    file: tokio::fs::File,
    refused: Option<std::io::Error>,
}

impl Incoming {
    fn new(file: std::fs::File) -> Incoming {
        Incoming { file: tokio::fs::File::from_std(file), refused: None }
    }

    async fn write(&mut self, bytes: &[u8], taken: &mut Taken) {
        if self.refused.is_none() && !taken.take(bytes.len() as u64) {
            self.refused = Some(ErrorKind::StorageFull.into());
        }
        if self.refused.is_none() {
            self.refused = self.file.write_all(bytes).await.err();
        }
    }

    async fn end(mut self) -> std::io::Result<()> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        self.file.flush().await?;
        self.file.sync_all().await
    }
}

/// How long a sender is waited for: neither silence nor a trickle holds a place for ever.
struct Patience {
    began: Instant,
    silence: Duration,
}

impl Patience {
    /// Until when the next bytes must be here, after so many.
    fn until(&self, received: u64) -> Instant {
        let whole = self.began + self.silence + Duration::from_secs(received / LEAST_RATE);
        whole.min(Instant::now() + self.silence)
    }
}

async fn receive(app: &App, spool: &Spool, id: &str, mut form: Multipart) -> Result<Upload, ApiError> {
    let mut upload = Upload { name: None, purpose: None, taken: spool.room.begin() };
    let limit = app.config.max_file_bytes;
    let mut left = limit;
    let slow = |_| refusal::slow();
    let broken = |_| refusal::broken_body();
    let patience = Patience { began: Instant::now(), silence: app.config.body_timeout };
    let mut fields = 0;
    while let Some(mut field) =
        timeout_at(patience.until(limit - left), form.next_field()).await.map_err(slow)?.map_err(broken)?
    {
        fields += 1;
        if fields > MOST_FIELDS {
            return Err(refusal::no_form());
        }
        let name = field.name().unwrap_or_default().to_string();
        let is_file = name == "file";
        let mut text = Vec::new();
        let mut file = None;
        if is_file {
            if upload.name.is_some() {
                return Err(ApiError::invalid("file", "file: expected one in the form, found several"));
            }
            upload.name = Some(field.file_name().unwrap_or("upload.jsonl").to_string());
            file = Some(Incoming::new(spool.create(id).map_err(refusal::spool)?));
        }
        while let Some(bytes) =
            timeout_at(patience.until(limit - left), field.chunk()).await.map_err(slow)?.map_err(broken)?
        {
            left = left.checked_sub(bytes.len() as u64).ok_or_else(|| refusal::file_too_large(limit))?;
            match &mut file {
                Some(file) => file.write(&bytes, &mut upload.taken).await,
                // Fields that nobody knows are passed over, whatever their length.
                None if name != "purpose" => (),
                None if text.len() + bytes.len() > NAME_CHARS => {
                    return Err(ApiError::invalid(
                        "purpose",
                        "purpose: expected batch, found something longer",
                    ));
                }
                None => text.extend_from_slice(&bytes),
            }
        }
        if let Some(file) = file {
            file.end().await.map_err(refusal::spool)?;
        }
        if name == "purpose" {
            upload.purpose = Some(String::from_utf8_lossy(&text).into_owned());
        }
    }
    Ok(upload)
}

/// `GET /v1/files`
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    query: Query<HashMap<String, String>>,
) -> Result<Response, Refusal> {
    let shared = Arc::clone(&app);
    let mut files = aside(move || shared.spool()?.files().map_err(refusal::spool)).await??;
    if let Some(purpose) = query.get("purpose") {
        files.retain(|file| file["purpose"] == purpose.as_str());
    }
    let gone = app.spool()?.gone.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    Ok(routes::json(page(files, &query, &|id| gone.created(id))?.to_string()))
}

/// `GET /v1/files/{id}`
pub(crate) async fn get(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, Refusal> {
    let file = app.spool()?.file(&id).ok_or_else(|| refusal::nothing_of("file", &id))?;
    Ok(routes::json(file.to_string()))
}

/// `GET /v1/files/{id}/content`
pub(crate) async fn content(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    let spool = app.spool()?;
    spool.file(&id).ok_or_else(|| refusal::nothing_of("file", &id))?;
    let file = tokio::fs::File::open(spool.path(&id)).await.map_err(refusal::spool)?;
    let pieces = futures_util::stream::try_unfold(file, |mut file| async move {
        let mut piece = bytes::BytesMut::with_capacity(FRAME_BYTES);
        let read = tokio::io::AsyncReadExt::read_buf(&mut file, &mut piece).await?;
        Ok::<_, std::io::Error>((read > 0).then(|| (piece.freeze(), file)))
    });
    // A client wrote it: a browser saves it under a name of ours, and shows nothing.
    let saved = format!("attachment; filename=\"{id}.jsonl\"");
    let headers = [(CONTENT_TYPE, "application/jsonl".to_string()), (CONTENT_DISPOSITION, saved)];
    Ok((headers, Body::from_stream(pieces)).into_response())
}

/// `DELETE /v1/files/{id}`
pub(crate) async fn delete(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, Refusal> {
    let spool = app.spool()?;
    spool.file(&id).ok_or_else(|| refusal::nothing_of("file", &id))?;
    if spool.is_in_use(&id) {
        return Err(ApiError::invalid("file_id", "a batch that has not ended uses this file").into());
    }
    spool.delete(&id).map_err(refusal::spool)?;
    Ok(routes::json(json!({"id": id, "object": "file", "deleted": true}).to_string()))
}
