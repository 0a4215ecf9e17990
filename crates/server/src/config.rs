//! What a server is told.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::crowd;
use crate::gate::Limits;
use crate::log::Log;
use crate::spool;

/// Settings, all choices made.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen; port 0 takes a free one.
    pub address: SocketAddr,
    /// Any of these lets a client in; with none, everybody is.
    pub keys: Vec<String>,
    /// Reads the keys anew on SIGHUP.
    pub key_source: Option<KeySource>,
    /// Whether `/metrics` answers without a key too.
    pub open_metrics: bool,
    /// Connections that there may be; more are answered 503 and closed.
    pub max_connections: usize,
    /// Sequences that may wait for the first of their tokens.
    pub max_num_queued_reqs: usize,
    /// Prompt tokens that those may have together; one alone may have more.
    pub max_num_queued_tokens: usize,
    /// Where files and batches of clients are kept; nothing is, without it.
    pub spool_dir: Option<PathBuf>,
    /// How much that may be, and for how long.
    pub spool: SpoolLimits,
    /// What batches and files expire by.
    pub clock: Clock,
    /// Bytes of a file that a client leaves.
    pub max_file_bytes: u64,
    /// Bytes of a body.
    pub max_body_bytes: usize,
    /// How long a client may take for its header, and between two requests.
    pub header_timeout: Duration,
    /// How long a client may take for its body.
    pub body_timeout: Duration,
    /// How long a client may take none of what is sent to it.
    pub send_timeout: Duration,
    /// How long a request waits until a place is free to compile its format.
    pub format_timeout: Duration,
    /// How long a request may take, if that is limited.
    pub request_timeout: Option<Duration>,
    /// How long a request may wait for its first step, if that is limited.
    pub queue_timeout: Option<Duration>,
    /// Whether answers tell how long they took.
    pub timings: bool,
    /// What series are labelled with until the model is there, and says its name.
    pub model_name: String,
    /// A stream that is silent for so long gets a comment.
    pub ping_every: Duration,
    /// How long requests under way may go on after the first signal.
    pub shutdown_timeout: Duration,
    /// Hears of every request; nobody does, without it.
    pub log: Log,
}

impl Config {
    /// The defaults: no keys, 2,048 connections, a queue of 2,048 sequences and four million tokens.
    pub fn new(address: SocketAddr) -> Config {
        Config {
            address,
            keys: Vec::new(),
            key_source: None,
            open_metrics: false,
            max_connections: 2048,
            max_num_queued_reqs: 2048,
            max_num_queued_tokens: 4 << 20,
            spool_dir: None,
            spool: SpoolLimits::default(),
            clock: Clock::default(),
            max_file_bytes: 512 << 20,
            max_body_bytes: 32 << 20,
            // Longer than the minute for which proxies keep connections (nginx, load balancers): who closes first must be the client.
            header_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(60),
            send_timeout: Duration::from_secs(120),
            format_timeout: Duration::from_secs(5),
            request_timeout: None,
            queue_timeout: None,
            timings: false,
            model_name: String::new(),
            ping_every: Duration::from_secs(10),
            shutdown_timeout: Duration::from_secs(30),
            log: Log::default(),
        }
    }
}

/// What clients may leave in the spool directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpoolLimits {
    /// Files, answers of batches among them.
    pub files: usize,
    /// Batches; of more, the one that ended first is forgotten, or the new one refused where none has ended.
    pub batches: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// How long a batch may take: what has no answer by then gets none.
    pub window: Duration,
    /// How long files are kept, and what is known of a batch after its end.
    pub keep: Duration,
    /// Bytes of memory that each kind of thing may take of the batch that is worked on: a line, what becomes of it, prompts,
    /// sequences, answers. See [`SpoolLimits::memory_of`].
    pub memory: usize,
}

impl SpoolLimits {
    /// What each kind of thing may take in a process of so much memory: little, as there are few lines of a batch at a time.
    pub fn memory_of(process: u64) -> usize {
        (process / 64).min(16 << 20) as usize
    }
}

impl Default for SpoolLimits {
    /// 10,000 files, 1,000 batches, 32 GiB; a day for a batch, 30 for files, as OpenAI has it; memory as of a large process.
    fn default() -> SpoolLimits {
        let day = Duration::from_secs(24 * 60 * 60);
        SpoolLimits {
            files: 10_000,
            batches: 1000,
            bytes: 32 << 30,
            window: day,
            keep: 30 * day,
            memory: SpoolLimits::memory_of(u64::MAX),
        }
    }
}

impl Config {
    /// What clients may take at most: buffers of connections, bodies that are being read, and what waits.
    pub fn client_bytes(&self) -> u64 {
        crowd::bytes(self.max_connections, self.max_body_bytes).saturating_add(self.queue().bytes())
    }

    /// What the batch that is worked on takes at most, where there is a spool directory.
    pub fn batch_bytes(&self) -> u64 {
        if self.spool_dir.is_some() { spool::bytes(self) } else { 0 }
    }

    /// What may wait.
    pub(crate) fn queue(&self) -> Limits {
        Limits { requests: self.max_num_queued_reqs, tokens: self.max_num_queued_tokens }
    }
}

/// Where keys come from when they are read anew.
#[derive(Clone)]
pub struct KeySource(Arc<dyn Fn() -> Option<Vec<String>> + Send + Sync>);

impl KeySource {
    /// `read`: all keys, or none if they cannot be read, of which it tells whoever should know.
    pub fn new(read: impl Fn() -> Option<Vec<String>> + Send + Sync + 'static) -> Self {
        KeySource(Arc::new(read))
    }

    pub(crate) fn read(&self) -> Option<Vec<String>> {
        (self.0)()
    }
}

impl std::fmt::Debug for KeySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeySource")
    }
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be had.
    #[error("cannot listen on {address}: {source}; {}", bind_advice(source))]
    Bind {
        /// Which.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// The spool directory cannot be used.
    #[error("cannot use the spool directory {}: {source}; choose another --spool-dir", path.display())]
    Spool {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The thread that loads the model panicked, which was said where it did.
    #[error("loading the model panicked; please report this, with the place that was told above")]
    LoadPanicked,
    /// The system gave no threads or sockets.
    #[error("the system refused threads or sockets: {0}")]
    System(#[from] std::io::Error),
}

fn bind_advice(why: &std::io::Error) -> &'static str {
    match why.kind() {
        ErrorKind::AddrNotAvailable => "this machine has no such address: choose another --host",
        _ => "choose another --port, or stop what holds it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_cannot_be_had_is_told_with_what_helps() {
        for (kind, helps) in [(ErrorKind::AddrNotAvailable, "--host"), (ErrorKind::AddrInUse, "--port")] {
            let told =
                ServeError::Bind { address: ([1, 2, 3, 4], 5).into(), source: kind.into() }.to_string();
            assert!(told.contains("1.2.3.4:5") && told.contains(helps), "{told}");
            assert_eq!(told.matches("--").count(), 1, "{told}");
        }
    }
}
