//! Batches are worked through one after another, on the engine that serves everybody.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::job::{
    Ask, Ended, Existing, Files, Hears, Input, Job, JobError, Limits, Output, Paths, Record, Retry, Tally,
    Watch,
};
use model::api::{Generate, Streaming};
use model::template::WallClock;
use serde_json::{Value, json};

use super::batch::{Batch, error};
use super::counted::Counted;
use super::failed::Failed;
use super::lines::{self, Most, Names, Unread};
use super::store::Spool;
use super::whole::naming;
use crate::app::{App, Phase};
use crate::config::Config;
use crate::generate::aside;
use crate::served::Served;

/// Lines of a batch in the engine; few, so that those who wait for an answer are not behind a whole file.
const IN_FLIGHT: usize = 32;
/// Lines begun and not written.
const WINDOW: usize = 512;
/// How long an answer may wait for the disk.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// How often it is looked whether something has expired.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Lines that are checked between two looks at what is asked of their batch.
const LINES_A_LOOK: usize = 64;
/// Most sequences of one line: they are before everybody who comes after them.
const LINE_SEQUENCES: usize = 128;
/// Wrong lines that are told.
const ERRORS_TOLD: usize = 100;

/// What a batch that is worked on takes of memory at most: where its lines are; one of them and its values; prompts; sequences;
/// answers.
pub(crate) fn bytes(config: &Config) -> u64 {
    (lines::KEPT_BYTES + Most::of(config).memory() + 3 * config.spool.memory) as u64
}

/// Works on batches until the server ends; those that have not ended go on with the next one.
pub(crate) async fn work(app: Arc<App>) {
    let Some(spool) = app.spool.as_ref() else { return };
    let mut phase = app.phase.subscribe();
    // The sender lives in the state that is held here.
    let _ = phase.wait_for(|phase| *phase >= Phase::Ready).await;
    while app.accepting().is_ok() {
        let shared = Arc::clone(&app);
        // A panic was told by its thread; what was not swept is swept another time.
        let _ = aside(move || sweep(&shared, None)).await;
        match spool.next() {
            Some(batch) => {
                let (shared, worked) = (Arc::clone(&app), batch.clone());
                // A panic was told by its thread. The batch is not tried again and again; others are.
                if aside(move || one(&shared, worked)).await.is_err() {
                    let shared = Arc::clone(&app);
                    let ended = aside(move || panicked(&shared, &batch)).await;
                    if ended.is_err() {
                        return;
                    }
                }
            }
            None => tokio::select! {
                () = spool.news.notified() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
                _ = phase.wait_for(|phase| *phase > Phase::Ready) => {}
            },
        }
    }
}

/// Ends and removes what has expired, but for the batch that is `busy`.
fn sweep(app: &App, busy: Option<&str>) {
    let Some(spool) = app.spool.as_ref() else { return };
    if let Err(error) = spool.sweep(busy) {
        spool.say(&error);
    }
}

/// Works on one batch, and writes down what came of it.
fn one(app: &Arc<App>, batch: Batch) {
    let (Some(spool), Ok(served)) = (app.spool.as_ref(), app.served()) else { return };
    let id = batch.id();
    let written = match answer(app, spool, served, &batch) {
        Ok(Came::Answers(ended, tally)) => spool.close(id, |batch| {
            let now = spool.now();
            batch.count(&tally);
            batch.advance("finalizing", now);
            batch.advance(if ended == Ended::Finished { "completed" } else { "cancelled" }, now);
        }),
        // What is told of lines that nobody came to may not fit.
        Ok(Came::Overdue) => spool.expire(&batch).or_else(|why| spool.fail(&batch, &Failed::Disk(why))),
        // The server ends: the next one goes on.
        Ok(Came::Later) => Ok(()),
        // The engine is dead, and perhaps nobody else asks it anything: this ends the server, and the next one goes on.
        Err(Failed::Job(JobError::Engine(why))) => {
            app.failed(why);
            Ok(())
        }
        Err(failed) => spool.fail(&batch, &failed),
    };
    // Others are still served.
    spool.settle(id, written);
}

/// Ends a batch that this program has a bug with.
fn panicked(app: &App, batch: &Batch) {
    let Some(spool) = app.spool.as_ref() else { return };
    let told = error("internal_error", "the server has a bug that this batch met", None, Value::Null);
    spool.settle(batch.id(), spool.fail(batch, &Failed::Told(vec![told])));
}

/// What came of a batch.
enum Came {
    Answers(Ended, Tally),
    /// It took longer than it may.
    Overdue,
    /// It is to be gone on with later.
    Later,
}

fn answer(app: &Arc<App>, spool: &Spool, served: &Served, batch: &Batch) -> Result<Came, Failed> {
    let id = batch.id();
    // What could not be closed when it was to expire is closed now: its lines of errors are nobody's answers.
    if batch.is_overdue(spool.now()) && batch.status() != "cancelling" {
        return Ok(Came::Overdue);
    }
    let path = spool.path(batch.input());
    let input = lines::read(&path).map_err(|unread| match unread {
        Unread::File(why) => Failed::Disk(naming(&path)(why)),
        Unread::TooMany(lines) => Failed::Told(vec![Unread::too_many(lines)]),
    })?;
    let mut watch = Follower { app, spool, batch, full: false, swept: Instant::now() };
    check(&input, batch, spool.most, &mut watch)?;
    if batch.status() == "validating" && watch.ask() == Ask::GoOn {
        // If this cannot be written, the answers cannot either, and that is told.
        let now = spool.now();
        let _ = spool.update(id, |batch| begin(batch, now));
    }
    spool.reserve(batch).map_err(Failed::Disk)?;
    let paths = Paths { answers: spool.path(&batch.answers), errors: Some(spool.path(&batch.errors)) };
    let created = batch.shown["created_at"].as_u64().unwrap_or_default();
    let error_file = paths.error_name();
    let mut record = Record::new(&input, created, served.settings.clone());
    record.error_file = error_file;
    let mut files = Files::open(paths)?;
    let outlook = files.outlook(record, &input, Existing::Continue, Retry::Nothing)?;
    let writer = files.begin(&outlook, SYNC_EVERY)?;
    let now = WallClock { unix_s: outlook.record.created as i64, utc_offset_s: 0 };
    let job = Job {
        engine: &served.engine,
        tokenizer: &served.tokenizer,
        context: model::api::Context { now, streaming: Streaming::Refused, ..served.context() },
        input: &input,
        limits: Limits {
            in_flight: IN_FLIGHT,
            prompt_tokens: spool.limits.memory / Limits::PROMPT_TOKEN_BYTES,
            window: WINDOW,
            waiting_bytes: spool.limits.memory,
            queue_bytes: spool.limits.memory,
            line_sequences: LINE_SEQUENCES,
        },
    };
    let (ended, tally) = job.run(&outlook, Output::Files(Box::new(writer)), &mut watch)?;
    if watch.full {
        return Err(Failed::no_room(&spool.path(&batch.answers)));
    }
    let cancelled = spool.batch(id).is_some_and(|batch| batch.status() == "cancelling");
    Ok(match ended {
        Ended::Interrupted if !cancelled && batch.is_overdue(spool.now()) => Came::Overdue,
        Ended::Interrupted if !cancelled => Came::Later,
        _ => Came::Answers(ended, tally),
    })
}

/// All lines are requests. Who cancelled it meanwhile is obeyed.
fn begin(batch: &mut Batch, now: u64) {
    if batch.status() == "validating" {
        batch.advance("in_progress", now);
    }
}

/// Before anything runs, all lines are requests for the endpoint, each of its own name. Of a batch that is to end meanwhile
/// nobody asks what is wrong with it.
fn check(input: &Input, batch: &Batch, most: Most, watch: &mut dyn Watch) -> Result<(), Failed> {
    let mut errors = Vec::new();
    let mut names = Names::default();
    for position in 0..input.len() {
        if errors.len() == ERRORS_TOLD {
            break;
        }
        if position % LINES_A_LOOK == 0 && watch.ask() == Ask::End {
            return Ok(());
        }
        let number = json!(input.place(position).0);
        let Some(line) = most.line(input, position)? else {
            // It was small enough for the server that began with it.
            if batch.status() != "validating" {
                continue;
            }
            let message = format!("the line is larger than {most}");
            errors.push(error("line_too_large", &message, None, number));
            continue;
        };
        match line.parse() {
            Err(wrong) => {
                errors.push(error("invalid_request", &wrong.message, wrong.param.as_deref(), number));
            }
            Ok(request) if batch.shown["endpoint"] != request.endpoint.path() => {
                errors.push(error(
                    "mismatched_endpoint",
                    "the url is not the batch's endpoint",
                    Some("url"),
                    number,
                ));
            }
            Ok(request) if !names.insert(&request.custom_id) => {
                let why = "an earlier line has this custom_id";
                errors.push(error("duplicate_custom_id", why, Some("custom_id"), number));
            }
            Ok(_) => {}
        }
    }
    if input.is_empty() {
        errors.push(error(
            "empty_file",
            "there are no requests in the file",
            Some("input_file_id"),
            Value::Null,
        ));
    }
    if errors.is_empty() { Ok(()) } else { Err(Failed::Told(errors)) }
}

/// Tells clients how far a batch is, and the batch when to end.
struct Follower<'a> {
    app: &'a Arc<App>,
    spool: &'a Spool,
    batch: &'a Batch,
    /// Whether its answers are more than there is room for.
    full: bool,
    /// When it was looked whether something has expired.
    swept: Instant,
}

impl Follower<'_> {
    fn id(&self) -> &str {
        self.batch.id()
    }

    /// Others may expire while this one is worked on.
    fn sweep(&mut self) {
        if self.swept.elapsed() >= LOOK_EVERY {
            self.swept = Instant::now();
            sweep(self.app, Some(self.id()));
        }
    }
}

impl Watch for Follower<'_> {
    fn ask(&mut self) -> Ask {
        self.sweep();
        let cancelled = self.spool.batch(self.id()).is_none_or(|batch| batch.status() == "cancelling");
        if cancelled || self.full || self.batch.is_overdue(self.spool.now()) {
            return Ask::End;
        }
        match &*self.app.phase.borrow() {
            Phase::Loading | Phase::Ready => Ask::GoOn,
            // The next server goes on; the time that is left is for those who have no other.
            Phase::Draining | Phase::Ending | Phase::Dead(_) => Ask::End,
        }
    }

    fn tell(&mut self, tally: &Tally) {
        self.spool.tell(self.id(), |batch| batch.count(tally));
        let written = [&self.batch.answers, &self.batch.errors].map(|file| self.spool.path(file));
        let bytes = written.iter().map(|path| fs::metadata(path).map_or(0, |found| found.len())).sum();
        self.full = self.spool.room.grows(bytes);
    }

    fn begins(&mut self, request: &Generate) -> Box<dyn Hears> {
        Box::new(Counted::new(self.app, request))
    }
}
