//! `/v1/files`

use std::collections::HashMap;
use std::fs::File;
use std::future::Future;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::multipart::Field;
use axum::extract::{Multipart, Query, Request, State};
use axum::response::{IntoResponse, Response};
use hyper::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use model::api::ApiError;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::feed::{self, Given};
use super::incoming::{Incoming, Unkept};
use super::kind::Kind;
use super::room::Taken;
use super::store::Spool;
use super::whole::naming;
use super::{FILES, kept, page};
use crate::app::App;
use crate::crowd::FRAME_BYTES;
use crate::generate::aside;
use crate::named::Id;
use crate::refusal::{self, Refusal};
use crate::routes;

/// Longest name that is remembered.
const NAME_CHARS: usize = 256;
/// Fields that a form may have: four mean something.
const MOST_FIELDS: usize = 64;
/// Bytes of the others together.
const UNKNOWN_BYTES: usize = 64 << 10;
/// Bytes a second that a client must send, once it has had as long as a body may take.
const LEAST_RATE: u64 = 16 << 10;

/// What an upload has brought so far.
struct Upload {
    name: Option<String>,
    purpose: Option<String>,
    /// How long it is to be kept: from when, and for how many seconds.
    expires: [Option<String>; 2],
    taken: Taken,
    /// Its file, once all of it is there.
    whole: Option<Unkept>,
}

/// `POST /v1/files`: a form with `purpose` and `file`.
pub(crate) async fn upload(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    let spool = app.spool()?;
    let (form, given) = feed::form(request).await?;
    let looking = Arc::clone(&app);
    aside(move || looking.spool()?.find_room()).await??;
    let id = Kind::File.id(&app.number().1);
    let taken = spool.room.begin();
    let mut upload = Upload { name: None, purpose: None, expires: [None, None], taken, whole: None };
    let received = receive(&app, &id, &mut upload, form, &given).await;
    let described = aside(move || keep(app.spool()?, &id, upload, received)).await?;
    Ok(routes::json(described?.to_string()))
}

/// What was received, described on the disk; or nothing is left of it.
fn keep(spool: &Spool, id: &str, upload: Upload, received: Result<(), ApiError>) -> Result<Value, ApiError> {
    received?;
    let (name, purpose) = upload.check()?;
    let keep_s = upload.keep_s()?;
    let described = spool.describe(id, &name, &purpose, keep_s).map_err(|why| spool.refusal(why))?;
    upload.taken.keep();
    upload.whole.into_iter().for_each(Unkept::keep);
    Ok(described)
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

    fn keep_s(&self) -> Result<Option<u64>, ApiError> {
        let [anchor, seconds] = &self.expires;
        if anchor.is_none() && seconds.is_none() {
            return Ok(None);
        }
        let seconds = seconds.as_ref().and_then(|seconds| seconds.parse().ok());
        kept("expires_after", anchor.as_deref().unwrap_or_default(), seconds).map(Some)
    }
}

/// A form as its sender sends it, who is waited for as long as is decent: neither silence nor a trickle holds a place for
/// ever.
struct Sender<'a> {
    given: &'a Given,
    began: Instant,
    silence: Duration,
    /// Bytes of data that came.
    received: u64,
}

impl Sender<'_> {
    /// Until when the next bytes must be here.
    fn until(&self) -> Instant {
        let whole = self.began + self.silence + Duration::from_secs(self.received / LEAST_RATE);
        whole.min(Instant::now() + self.silence)
    }

    /// What the parser finds next.
    async fn next<T, E>(
        &self,
        found: impl Future<Output = Result<Option<T>, E>>,
    ) -> Result<Option<T>, ApiError> {
        let found = timeout_at(self.until(), found).await.map_err(|_| refusal::slow())?;
        let found = found.map_err(|_| self.given.refusal())?;
        self.given.used();
        Ok(found)
    }

    async fn data(&mut self, field: &mut Field<'_>) -> Result<Option<Bytes>, ApiError> {
        let data = self.next(field.chunk()).await?;
        self.received += data.as_ref().map_or(0, |data| data.len() as u64);
        Ok(data)
    }
}

async fn receive(
    app: &Arc<App>,
    id: &str,
    upload: &mut Upload,
    mut form: Multipart,
    given: &Given,
) -> Result<(), ApiError> {
    let mut sender = Sender { given, began: Instant::now(), silence: app.config.body_timeout, received: 0 };
    let (mut fields, mut unknown) = (0, 0);
    while let Some(mut field) = sender.next(form.next_field()).await? {
        fields += 1;
        if fields > MOST_FIELDS {
            return Err(refusal::no_form());
        }
        match field.name() {
            Some("file") if upload.name.is_some() => {
                return Err(ApiError::invalid("file", "file: expected one in the form, found several"));
            }
            Some("file") => {
                upload.name = Some(field.file_name().unwrap_or("upload.jsonl").to_string());
                upload.whole = Some(file(app, id, &mut sender, &mut field, &mut upload.taken).await?);
            }
            Some("purpose") => upload.purpose = Some(short("purpose", &mut sender, &mut field).await?),
            Some("expires_after[anchor]") => {
                upload.expires[0] = Some(short("expires_after", &mut sender, &mut field).await?);
            }
            Some("expires_after[seconds]") => {
                upload.expires[1] = Some(short("expires_after", &mut sender, &mut field).await?);
            }
            _ => unknown = pass_over(&mut sender, &mut field, unknown).await?,
        }
    }
    Ok(())
}

async fn file(
    app: &Arc<App>,
    id: &str,
    sender: &mut Sender<'_>,
    field: &mut Field<'_>,
    taken: &mut Taken,
) -> Result<Unkept, ApiError> {
    let (shared, own_id) = (Arc::clone(app), id.to_string());
    let created = aside(move || {
        let spool = shared.spool()?;
        Incoming::create(spool, &own_id).map_err(|why| spool.refusal(why))
    });
    let (mut file, mut bytes, most) = (created.await??, 0, app.config.max_file_bytes);
    while let Some(data) = sender.data(field).await? {
        bytes += data.len() as u64;
        if bytes > most {
            return Err(refusal::file_too_large(most));
        }
        file.write(&data, taken).await;
    }
    if bytes == 0 {
        return Err(ApiError::invalid(
            "file",
            "file: it is empty; expected requests, one JSON object a line",
        ));
    }
    let spool = app.spool()?;
    let ended = file.end().await.map_err(|why| spool.refusal(naming(&spool.path(id))(why)));
    ended?.ok_or_else(refusal::spool_full)
}

/// The text of a field that has a few characters.
async fn short(param: &str, sender: &mut Sender<'_>, field: &mut Field<'_>) -> Result<String, ApiError> {
    let mut text = Vec::new();
    while let Some(bytes) = sender.data(field).await? {
        if text.len() + bytes.len() > NAME_CHARS {
            let message = format!("{param}: expected at most {NAME_CHARS} bytes, found more");
            return Err(ApiError::invalid(param, message));
        }
        text.extend_from_slice(&bytes);
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// A field that nobody knows, after so many bytes of others: how many there are by now.
async fn pass_over(
    sender: &mut Sender<'_>,
    field: &mut Field<'_>,
    mut bytes: usize,
) -> Result<usize, ApiError> {
    while let Some(data) = sender.data(field).await? {
        bytes += data.len();
        if bytes > UNKNOWN_BYTES {
            return Err(refusal::form_too_large(UNKNOWN_BYTES));
        }
    }
    Ok(bytes)
}

/// `GET /v1/files`
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    query: Query<HashMap<String, String>>,
) -> Result<Response, Refusal> {
    Ok(routes::json(aside(move || listed(app.spool()?, &query)).await??))
}

fn listed(spool: &Spool, query: &Query<HashMap<String, String>>) -> Result<String, ApiError> {
    let mut files = spool.files().map_err(|why| spool.refusal(why))?;
    if let Some(purpose) = query.get("purpose") {
        files.retain(|file| file["purpose"] == purpose.as_str());
    }
    let gone = spool.gone.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    Ok(page(files, query, &FILES, &|id| gone.created(id))?.to_string())
}

/// `GET /v1/files/{id}`
pub(crate) async fn get(State(app): State<Arc<App>>, Id(id): Id) -> Result<Response, Refusal> {
    let file = aside(move || app.spool()?.file(&id).ok_or_else(|| refusal::nothing_of("file", &id)));
    Ok(routes::json(file.await??.to_string()))
}

/// `GET /v1/files/{id}/content`
pub(crate) async fn content(State(app): State<Arc<App>>, Id(id): Id) -> Result<Response, Refusal> {
    // A client wrote it: a browser saves it under a name of ours, and shows nothing.
    let saved = format!("attachment; filename=\"{id}.jsonl\"");
    let file = tokio::fs::File::from_std(aside(move || opened(app.spool()?, &id)).await??);
    let pieces = futures_util::stream::try_unfold(file, |mut file| async move {
        let mut piece = bytes::BytesMut::with_capacity(FRAME_BYTES);
        let read = tokio::io::AsyncReadExt::read_buf(&mut file, &mut piece).await?;
        Ok::<_, std::io::Error>((read > 0).then(|| (piece.freeze(), file)))
    });
    let headers = [(CONTENT_TYPE, "application/jsonl".to_string()), (CONTENT_DISPOSITION, saved)];
    Ok((headers, Body::from_stream(pieces)).into_response())
}

fn opened(spool: &Spool, id: &str) -> Result<File, ApiError> {
    spool.file(id).ok_or_else(|| refusal::nothing_of("file", id))?;
    let path = spool.path(id);
    File::open(&path).map_err(|error| gone_or(spool, id, naming(&path)(error)))
}

/// `DELETE /v1/files/{id}`
pub(crate) async fn delete(State(app): State<Arc<App>>, Id(id): Id) -> Result<Response, Refusal> {
    Ok(routes::json(aside(move || deleted(app.spool()?, &id)).await??))
}

fn deleted(spool: &Spool, id: &str) -> Result<String, ApiError> {
    spool.file(id).ok_or_else(|| refusal::nothing_of("file", id))?;
    if spool.is_in_use(id) {
        return Err(ApiError::invalid("file_id", "a batch that has not ended uses this file"));
    }
    spool.delete(id).map_err(|error| gone_or(spool, id, error))?;
    Ok(json!({"id": id, "object": "file", "deleted": true}).to_string())
}

/// What the system says of a file that somebody else may have deleted a moment ago.
fn gone_or(spool: &Spool, id: &str, error: std::io::Error) -> ApiError {
    let gone = error.kind() == ErrorKind::NotFound;
    if gone { refusal::nothing_of("file", id) } else { spool.refusal(error) }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::config::Config;

    #[tokio::test]
    async fn a_client_that_goes_away_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::new(([127, 0, 0, 1], 0).into());
        let spool = Spool::open(folder.path(), &config).unwrap();
        let app = Arc::new(App::new(config, Some(spool)));
        let begin = "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\nsome of it";
        let begin = futures_util::stream::iter([Ok::<_, axum::Error>(Bytes::from(begin))]);
        let body = Body::from_stream(futures_util::StreamExt::chain(begin, futures_util::stream::pending()));
        let request = Request::builder().header(CONTENT_TYPE, "multipart/form-data; boundary=B").body(body);
        let files = || std::fs::read_dir(folder.path().join("files")).unwrap().count();
        let upload = tokio::spawn(upload(State(Arc::clone(&app)), request.unwrap()));
        while files() == 0 {
            tokio::task::yield_now().await;
        }
        upload.abort();
        assert!(upload.await.unwrap_err().is_cancelled());
        // What was being made when it went away goes as soon as it is there.
        let gone = async {
            while files() > 0 {
                tokio::task::yield_now().await;
            }
        };
        assert!(timeout(Duration::from_secs(60), gone).await.is_ok(), "half a file stays");
        let spool = app.spool().unwrap();
        assert!(spool.room.begin().take(spool.limits.bytes), "it takes no room");
    }
}
