//! How many connections there may be, and how many bytes of bodies: with them the memory that clients can take by
//! coming is bounded, and counted in the plan of all memory, as is what [a batch](crate::spool) takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use model::api::VALUE_BYTES;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::refusal;
use crate::unread::AHEAD_BYTES;

/// Bytes of a request's head, and of what a connection reads or writes at once.
pub(crate) const BUFFER_BYTES: usize = 16 << 10;
/// Bytes of an answer that wait to be written; the next are made once these are gone.
pub(crate) const FRAME_BYTES: usize = 8 << 10;
/// What a connection may take: its buffers, a frame, and the state of its request.
const CONNECTION_BYTES: usize = 2 * BUFFER_BYTES + AHEAD_BYTES + FRAME_BYTES + (8 << 10);
/// Bytes of bodies that may be here at a time, not yet made into sequences; or one body that may be larger.
const BODIES_BYTES: usize = 32 << 20;
/// The first bytes of every body have room of their own: those who send much, and slowly, are in each other's way alone.
const BEGINNING_BYTES: usize = 256 << 10;
/// Bytes of beginnings that may be here at a time.
const BEGINNINGS_BYTES: usize = 16 << 20;
/// So many bytes a body may have for each value in it, at the most that it may have: what bodies become when they are read
/// is at most twice as large as they are.
pub(crate) const BYTES_A_VALUE: usize = 64;
/// Connections that are being told that there is no room; more are closed without a word.
const PARTING: usize = 256;
/// How long a client may take to say what it wants, and to hear that.
const PARTING_TIME: Duration = Duration::from_millis(500);
/// Places beyond the most, each for one question of how the server is: whoever restarts those that do not answer is answered.
const LOOKERS: usize = 4;
/// How long such a place is anybody's: who takes it and does not ask keeps it from others no longer.
pub(crate) const LOOK_TIME: Duration = Duration::from_secs(2);
/// Connections that there may be beside the most, for moments.
pub const BESIDE: usize = PARTING + LOOKERS;
/// How such questions begin.
const LOOKS: [&[u8]; 3] = [b"GET /health", b"GET /ready", b"GET /metrics"];

/// Who is here.
pub(crate) struct Crowd {
    most: usize,
    here: AtomicUsize,
    turned_away: AtomicU64,
    beginnings: Arc<Semaphore>,
    bodies: Arc<Semaphore>,
    bodies_most: usize,
    /// Values in bodies that are being read.
    values: Arc<Semaphore>,
    values_most: usize,
    parting: Arc<Semaphore>,
    lookers: Arc<Semaphore>,
}

/// A connection's place, given back when dropped.
pub(crate) struct Place(Arc<Crowd>);

/// What connections may take at most.
pub(crate) fn bytes(max_connections: usize, max_body_bytes: usize) -> u64 {
    let bodies = bodies(max_body_bytes);
    ((max_connections + LOOKERS) * CONNECTION_BYTES
        + BEGINNINGS_BYTES
        + bodies
        + most_values(max_body_bytes) * VALUE_BYTES) as u64
}

fn bodies(max_body_bytes: usize) -> usize {
    max_body_bytes.max(BODIES_BYTES)
}

/// Values that bodies may have at a time, and one alone.
fn most_values(max_body_bytes: usize) -> usize {
    bodies(max_body_bytes) / BYTES_A_VALUE
}

impl Crowd {
    pub(crate) fn new(max_connections: usize, max_body_bytes: usize) -> Arc<Crowd> {
        Arc::new(Crowd {
            most: max_connections,
            here: AtomicUsize::new(0),
            turned_away: AtomicU64::new(0),
            beginnings: Arc::new(Semaphore::new(BEGINNINGS_BYTES)),
            bodies: Arc::new(Semaphore::new(bodies(max_body_bytes))),
            bodies_most: bodies(max_body_bytes),
            values: Arc::new(Semaphore::new(most_values(max_body_bytes))),
            values_most: most_values(max_body_bytes),
            parting: Arc::new(Semaphore::new(PARTING)),
            lookers: Arc::new(Semaphore::new(LOOKERS)),
        })
    }

    /// A place for a connection, if there is one.
    pub(crate) fn enter(self: &Arc<Crowd>) -> Option<Place> {
        let more = |here: usize| (here < self.most).then_some(here + 1);
        self.here.fetch_update(Relaxed, Relaxed, more).ok().map(|_| Place(Arc::clone(self)))
    }

    /// Nothing yet, for a body that comes.
    pub(crate) fn body(self: &Arc<Crowd>) -> Room {
        Room { crowd: Arc::clone(self), beginning: 0, rest: 0 }
    }

    /// Room for so many values, if there is any.
    pub(crate) fn values(&self, values: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.values).try_acquire_many_owned(u32::try_from(values).ok()?).ok()
    }

    /// Values that one body may have.
    pub(crate) fn values_most(&self) -> usize {
        self.values_most
    }

    /// Tells a client that there is no place for it, unless it only asks how the server is and may `look`.
    pub(crate) fn turn_away(
        self: &Arc<Crowd>,
        stream: TcpStream,
        look: impl FnOnce(TcpStream, OwnedSemaphorePermit) + Send + 'static,
    ) {
        let Ok(parting) = Arc::clone(&self.parting).try_acquire_owned() else {
            self.turned_away.fetch_add(1, Relaxed);
            return;
        };
        let crowd = Arc::clone(self);
        tokio::spawn(async move {
            let looks = timeout(PARTING_TIME, only_looks(&stream)).await.unwrap_or(false);
            match looks.then(|| Arc::clone(&crowd.lookers).try_acquire_owned().ok()).flatten() {
                Some(place) => look(stream, place),
                None => {
                    crowd.turned_away.fetch_add(1, Relaxed);
                    // Whether it hears is its affair.
                    let _ = timeout(PARTING_TIME, part(stream)).await;
                }
            }
            drop(parting);
        });
    }

    /// Bytes of bodies that are here.
    pub(crate) fn body_bytes(&self) -> usize {
        let beginnings = BEGINNINGS_BYTES - self.beginnings.available_permits();
        beginnings + self.bodies_most - self.bodies.available_permits()
    }

    /// Connections that there are.
    pub(crate) fn here(&self) -> usize {
        self.here.load(Relaxed)
    }

    /// Connections that had no place.
    pub(crate) fn turned_away(&self) -> u64 {
        self.turned_away.load(Relaxed)
    }
}

/// What a body takes, given back when dropped.
pub(crate) struct Room {
    crowd: Arc<Crowd>,
    beginning: usize,
    rest: usize,
}

impl Room {
    /// Takes room for so many bytes more, if there is any.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<()> {
        let first = bytes.min(BEGINNING_BYTES - self.beginning);
        let take = |of: &Semaphore, bytes: usize| {
            of.try_acquire_many(u32::try_from(bytes).ok()?).ok().map(SemaphorePermit::forget)
        };
        take(&self.crowd.beginnings, first)?;
        self.beginning += first;
        take(&self.crowd.bodies, bytes - first)?;
        self.rest += bytes - first;
        Some(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.crowd.beginnings.add_permits(self.beginning);
        self.crowd.bodies.add_permits(self.rest);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.here.fetch_sub(1, Relaxed);
    }
}

/// Whether a client's first bytes are a question of how the server is.
async fn only_looks(stream: &TcpStream) -> bool {
    let mut begun = [0; 16];
    let read = stream.peek(&mut begun).await.unwrap_or(0);
    LOOKS.iter().any(|look| begun[..read].starts_with(look))
}

async fn part(mut stream: TcpStream) -> std::io::Result<()> {
    let body = refusal::crowded().body().to_string();
    let head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close";
    stream.write_all(format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).await?;
    stream.shutdown().await?;
    // What is closed before all was read is reset, and the answer with it.
    let mut rest = [0; 4096];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
