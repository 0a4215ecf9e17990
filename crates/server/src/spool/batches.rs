//! `/v1/batches`. Whoever changes a batch holds all of them until it is on the disk: nobody waits for that on a thread that
//! streams need.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{Query, Request, State};
use axum::response::Response;
use model::api::ApiError;

use super::batch::Batch;
use super::kind::Kind;
use super::store::TooMany;
use super::{BATCHES, page};
use crate::app::App;
use crate::body;
use crate::generate::aside;
use crate::named::Id;
use crate::refusal::{self, Refusal};
use crate::routes;

/// `POST /v1/batches`
pub(crate) async fn create(State(app): State<Arc<App>>, request: Request) -> Result<Response, Refusal> {
    app.spool()?;
    let body = body::read(request, &app).await?;
    // It is on the disk before the answer says so.
    Ok(routes::json(aside(move || begin(&app, &body)).await??))
}

/// A batch that is kept, as it is shown.
fn begin(app: &App, body: &[u8]) -> Result<String, ApiError> {
    let spool = app.spool()?;
    let request = body::parse(body, &app.crowd)?;
    let ids = [Kind::Batch, Kind::File, Kind::File].map(|kind| kind.id(&app.number().1));
    let now = spool.now();
    let batch = Batch::new(&request, ids, (now, spool.limits.window.as_secs()))?;
    let input = batch.input();
    let file = spool.file(input).ok_or_else(|| refusal::nothing_of("file", input))?;
    if file["purpose"] != "batch" {
        return Err(ApiError::invalid(
            "input_file_id",
            "input_file_id: expected a file with the purpose batch",
        ));
    }
    // Its answers are files, too.
    spool.find_room()?;
    let shown = batch.shown.to_string();
    let put = spool.put(batch).map_err(|why| spool.refusal(why))?;
    put.map_err(|TooMany| refusal::too_many_batches(spool.limits.batches))?;
    spool.news.notify_one();
    Ok(shown)
}

/// `GET /v1/batches`
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    query: Query<HashMap<String, String>>,
) -> Result<Response, Refusal> {
    let listed = aside(move || page(app.spool()?.batches(), &query, &BATCHES, &|_| None));
    Ok(routes::json(listed.await??.to_string()))
}

/// `GET /v1/batches/{id}`
pub(crate) async fn get(State(app): State<Arc<App>>, Id(id): Id) -> Result<Response, Refusal> {
    let batch = aside(move || app.spool()?.batch(&id).ok_or_else(|| refusal::nothing_of("batch", &id)));
    Ok(routes::json(batch.await??.shown.to_string()))
}

/// `POST /v1/batches/{id}/cancel`: lines under way are not answered any more, those that were stay.
pub(crate) async fn cancel(State(app): State<Arc<App>>, Id(id): Id) -> Result<Response, Refusal> {
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
    // Whoever asks again writes nothing, and waits for nobody who does.
    if batch.status() == "cancelling" {
        return Ok(batch.shown.to_string());
    }
    let now = spool.now();
    let cancelling = spool.update(id, |batch| batch.cancel(now)).map_err(|why| spool.refusal(why))?;
    spool.news.notify_one();
    // It may have ended meanwhile, by itself or because of this: what is told is what was done.
    let batch = cancelling.or_else(|| spool.batch(id)).ok_or_else(|| refusal::nothing_of("batch", id))?;
    Ok(batch.shown.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::super::store::Spool;
    use super::super::store::tests::batch;
    use super::super::{delete, get_file};
    use super::*;
    use crate::clock::Clock;
    use crate::config::Config;

    /// Asks while a batch is on its way to the disk, on a runtime of one thread: whether that thread did anything else
    /// meanwhile.
    async fn others_go_on<F: Future<Output = Result<Response, Refusal>> + Send + 'static>(
        app: &Arc<App>,
        answer: F,
    ) -> bool {
        let (shared, (held, holds), (go, gone)) = (Arc::clone(app), mpsc::channel(), mpsc::channel());
        let (done, mut was_done) = tokio::sync::oneshot::channel();
        let disk = std::thread::spawn(move || {
            let written = shared.spool().unwrap().update("batch_1", |_| {
                held.send(()).unwrap();
                let went_on = gone.recv_timeout(Duration::from_secs(20)).is_ok();
                done.send(went_on).unwrap();
            });
            written.unwrap();
        });
        holds.recv().unwrap();
        let answer = tokio::spawn(answer);
        // It has begun by the time that this is polled again.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        // The disk may have given up waiting for it.
        let _ = go.send(());
        assert!(answer.await.unwrap().is_ok());
        disk.join().unwrap();
        was_done.try_recv().unwrap()
    }

    #[test]
    fn a_batch_that_is_cancelled_again_keeps_the_time_at_which_it_was() {
        let (folder, asked) = (tempfile::tempdir().unwrap(), AtomicU64::new(5000));
        // Another time whenever it is asked.
        let clock = Clock::new(move || asked.fetch_add(1, SeqCst));
        let config = Config { clock, ..Config::new(([127, 0, 0, 1], 0).into()) };
        let spool = Spool::open(folder.path(), &config).unwrap();
        spool.put(batch(1, 1000)).unwrap().unwrap();
        let app = App::new(config, Some(spool));
        let first = end(&app, "batch_1").unwrap();
        assert!(first.contains("\"cancelling_at\":5"), "{first}");
        assert_eq!(end(&app, "batch_1").unwrap(), first);
    }

    #[tokio::test]
    async fn nobody_else_waits_for_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::new(([127, 0, 0, 1], 0).into());
        let spool = Spool::open(folder.path(), &config).unwrap();
        spool.put(batch(1, 1000)).unwrap().unwrap();
        for id in ["file-7", "file-8"] {
            std::fs::write(spool.path(id), "x").unwrap();
            spool.describe(id, "x", "batch", None).unwrap();
        }
        let app = Arc::new(App::new(config, Some(spool)));
        let state = || State(Arc::clone(&app));
        let id = |id: &str| Id(id.to_string());
        assert!(others_go_on(&app, list(state(), Query(HashMap::new()))).await);
        assert!(others_go_on(&app, get(state(), id("batch_1"))).await);
        assert!(others_go_on(&app, delete(state(), id("file-7"))).await);
        assert!(others_go_on(&app, get_file(state(), id("file-8"))).await);
    }
}
