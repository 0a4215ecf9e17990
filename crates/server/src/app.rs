//! What all connections share.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use model::api::ApiError;
use model::grammar::WORKERS;
use tokio::sync::{Semaphore, watch};

use crate::bell::Bell;
use crate::clock::unix_now;
use crate::config::Config;
use crate::crowd::Crowd;
use crate::gate::Gate;
use crate::keys::Keys;
use crate::log::LogLevel;
use crate::metrics::Metrics;
use crate::minute::Minute;
use crate::refusal;
use crate::served::Served;
use crate::spool::Spool;
use engine::seed_of;

/// Where a server is in its life; it only goes forward.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// It listens; the model is not there yet.
    Loading,
    Ready,
    /// What is under way goes on; nothing new.
    Draining,
    /// What is under way ends now.
    Ending,
    /// The engine is dead, and why.
    Dead(String),
}

/// The server's state.
pub(crate) struct App {
    pub(crate) config: Config,
    pub(crate) keys: Keys,
    pub(crate) gate: Arc<Gate>,
    pub(crate) crowd: Arc<Crowd>,
    /// For those that found no place to compile their grammar: who came first is next.
    pub(crate) grammars: Semaphore,
    /// For whoever has a long text cut into tokens and nothing else: only one at a time is, and others would wait for it on
    /// threads that everybody needs.
    pub(crate) long_texts: Arc<Semaphore>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) minute: Minute,
    /// Rung by the engine's events.
    pub(crate) bell: Arc<Bell>,
    pub(crate) spool: Option<Spool>,
    pub(crate) phase: watch::Sender<Phase>,
    pub(crate) created: u64,
    served: OnceLock<Served>,
    /// Makes ids of different runs differ, and seeds of requests without one.
    nonce: u64,
    next: AtomicU64,
}

impl App {
    pub(crate) fn new(config: Config, spool: Option<Spool>) -> App {
        let limits = config.queue();
        App {
            keys: Keys::new(&config.keys),
            gate: Gate::new(limits),
            crowd: Crowd::new(config.max_connections, config.max_body_bytes),
            grammars: Semaphore::new(WORKERS),
            long_texts: Arc::new(Semaphore::new(1)),
            metrics: Arc::new(Metrics::default()),
            minute: Minute::default(),
            bell: Arc::default(),
            spool,
            phase: watch::Sender::new(Phase::Loading),
            created: unix_now(),
            served: OnceLock::new(),
            nonce: RandomState::new().hash_one(()),
            next: AtomicU64::new(0),
            config,
        }
    }

    /// The model is there. It is told once requests are answered: whoever waits for that line may ask at once.
    pub(crate) fn loaded(&self, served: Served) {
        let told = format!("ready: {}", served.names.join(", "));
        assert!(self.served.set(served).is_ok(), "a model is loaded once");
        self.advance(Phase::Ready);
        self.config.log.say(LogLevel::Info, "ready", &told);
    }

    /// Goes on to `phase`, never back.
    pub(crate) fn advance(&self, phase: Phase) {
        self.phase.send_if_modified(|now| {
            let forward = phase > *now;
            if forward {
                *now = phase;
            }
            forward
        });
    }

    /// Where clients' files are.
    pub(crate) fn spool(&self) -> Result<&Spool, ApiError> {
        self.spool.as_ref().ok_or_else(refusal::no_spool)
    }

    /// The model, at the end.
    pub(crate) fn into_served(self) -> Option<Served> {
        self.served.into_inner()
    }

    /// Reads the keys anew, if there is a place to read them from.
    pub(crate) fn reload_keys(&self) {
        if let Some(keys) = self.config.key_source.as_ref().and_then(|source| source.read()) {
            self.keys.replace(&keys);
        }
    }

    /// The model, for whatever does not need its engine.
    pub(crate) fn served(&self) -> Result<&Served, ApiError> {
        self.served.get().ok_or_else(refusal::loading)
    }

    /// The model, for new work.
    pub(crate) fn accepting(&self) -> Result<&Served, ApiError> {
        match &*self.phase.borrow() {
            Phase::Loading => Err(refusal::loading()),
            Phase::Ready => self.served(),
            Phase::Draining | Phase::Ending => Err(refusal::draining()),
            Phase::Dead(_) => Err(refusal::dead()),
        }
    }

    /// A number that no other request of this server has, and one that none of any server has.
    pub(crate) fn number(&self) -> (u64, String) {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        // As long as others for long, so that what is made in one second is sorted by its number.
        (seed_of(self.nonce, n), format!("{:016x}{n:08x}", self.nonce))
    }
}
