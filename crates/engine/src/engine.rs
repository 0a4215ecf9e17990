//! The handle of a running engine: requests in, events out.

use std::fs::File;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};

use model::store::Access;
use policy::cost::Cost;
use policy::drive::{Lowering, drive};
use policy::log::{Entry, Recorded};
use policy::pipeline::{Delegation, Plan};
use policy::sched::{Fcfs, FcfsConfig, Scheduler};
use spec::{ModelSpec, Nanos, Op, SeqId, Shape};

use crate::front::request::{Event, Failure, Request, Sink};
use crate::plan::hold::Hold;
use crate::step::run::Machine;
use crate::step::world::{Message, Real};
use crate::tiers::stowed::{Stowed, Streamed};
use crate::watch::corrupted::counted;
use crate::watch::stats::{Counts, Stats};
use crate::watch::timeline::{LaneWatch, Ranges, Timeline};
use crate::watch::watched::Watched;
use kernels::lock::lock;

/// A model that is loaded and serves requests, on a thread of its own.
pub struct Engine {
    inbox: Sender<Message>,
    thread: Option<JoinHandle<()>>,
    next: AtomicU64,
    stats: Arc<Stats>,
    dead: Arc<Mutex<Option<String>>>,
    hold: Hold,
    spec: ModelSpec,
    seen: Seen,
}

/// Parts of the machine that can be looked at while it runs.
pub(crate) struct Seen {
    /// It goes when the lanes are done with it.
    pub(crate) machine: Weak<Machine>,
    pub(crate) stowed: Option<Arc<Stowed>>,
    pub(crate) timeline: Arc<Timeline>,
    pub(crate) delegation: Delegation,
    pub(crate) kv_not_pinned: Option<String>,
    pub(crate) kv_access: Option<Access>,
}

/// A request under way whose events go elsewhere. Dropping it cancels the request.
pub struct Claim {
    id: SeqId,
    inbox: Sender<Message>,
}

/// A request under way. Dropping it cancels the request.
pub struct Ticket {
    _claim: Claim,
    /// What comes of it, in order.
    pub events: Receiver<Event>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // An engine that has ended needs no cancelling; a sequence that has ended is tolerated.
        let _ = self.inbox.send(Message::Cancel(self.id));
    }
}

/// An engine that was planned without measured costs has none at hand (see `Foreseen::cost`): every op counts alike. Where one
/// lane computes and one reads ahead of it, the data alone orders both; where several copy beside each other, another order hides
/// more.
fn any_cost(_: &Op, _: &Shape) -> Nanos {
    Nanos(1)
}

/// Everything that the engine's thread needs.
pub(crate) struct Run {
    pub(crate) world: Real,
    pub(crate) stats: Arc<Stats>,
    pub(crate) config: FcfsConfig,
    pub(crate) plan: Plan,
    pub(crate) record: Option<File>,
}

impl Run {
    /// Drives until the handle is dropped. A failure or panic is told to everybody who waits.
    fn drive(mut self, dead: &Mutex<Option<String>>, cost: &dyn Cost) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            let why = self.drive_recorded(cost);
            self.world.keep_learned();
            why
        }));
        let why = match result {
            Ok(None) => return,
            Ok(Some(why)) => why,
            Err(payload) => match payload.downcast::<cuda::Lost>() {
                Ok(lost) => lost.0,
                Err(_) => "its thread panicked; please report this, with the message above".to_string(),
            },
        };
        *lock(dead) = Some(why.clone());
        self.world.fail_all(&why);
    }

    fn drive_recorded(&mut self, cost: &dyn Cost) -> Option<String> {
        let scheduler = Watched { scheduler: Fcfs::new(self.config.clone()), stats: Arc::clone(&self.stats) };
        let Some(mut file) = self.record.take() else { return self.drive_with(scheduler, cost) };
        let mut broken: Option<String> = None;
        let result = {
            let sink = |entry: &Entry| {
                if broken.is_none() {
                    broken = write_entry(&mut file, entry).err().map(|e| e.to_string());
                }
            };
            self.drive_with(Recorded::new(scheduler, &self.config.clone(), sink), cost)
        };
        result.or_else(|| broken.map(|why| format!("the record could not be written: {why}")))
    }

    fn drive_with(&mut self, mut scheduler: impl Scheduler, cost: &dyn Cost) -> Option<String> {
        let lowering = Lowering { plan: &self.plan, cost };
        drive(&mut self.world, &mut scheduler, &lowering).err().map(|failure| failure.to_string())
    }
}

/// A whole line at once: a process that ends by itself leaves whole lines.
fn write_entry(file: &mut impl Write, entry: &Entry) -> io::Result<()> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    file.write_all(&line)
}

impl Engine {
    /// Starts its thread.
    pub(crate) fn begin(
        run: Run,
        inbox: Sender<Message>,
        (hold, spec): (Hold, ModelSpec),
        seen: Seen,
    ) -> io::Result<Engine> {
        let (stats, dead) = (Arc::clone(&run.stats), Arc::new(Mutex::new(None)));
        let told = Arc::clone(&dead);
        let thread =
            thread::Builder::new().name("engine".into()).spawn(move || run.drive(&told, &any_cost))?;
        Ok(Engine { inbox, thread: Some(thread), next: AtomicU64::new(0), stats, dead, hold, spec, seen })
    }

    /// Hands in a request; events begin to come at once.
    ///
    /// # Errors
    /// [`Failure`], if it could not be served whatever else goes on.
    pub fn submit(&self, request: Request) -> Result<Ticket, Failure> {
        let (events, told) = channel();
        // A client that hung up has sent a cancel, or will.
        let sink = Box::new(move |event| drop(events.send(event)));
        Ok(Ticket { _claim: self.submit_to(request, sink)?, events: told })
    }

    /// Hands in a request whose events are told to `events`; it is dropped when nothing more can come.
    ///
    /// # Errors
    /// [`Failure`], if it could not be served whatever else goes on.
    pub fn submit_to(&self, request: Request, events: Sink) -> Result<Claim, Failure> {
        self.alive()?;
        let max_new = self.room(&request)?;
        let id = SeqId(self.next.fetch_add(1, Ordering::Relaxed));
        let events = counted(Arc::clone(&self.stats), events);
        let message = Message::Submit { id, request: Box::new(request), max_new, events };
        self.inbox
            .send(message)
            .map_err(|_| self.alive().err().unwrap_or(Failure::Engine("it has ended".into())))?;
        Ok(Claim { id, inbox: self.inbox.clone() })
    }

    /// Ends the engine as a failed step would: whoever waits is told `why`, and later requests are refused.
    pub fn fail(&self, why: &str) {
        // An engine that has ended cannot end again.
        let _ = self.inbox.send(Message::Failed(why.to_string()));
    }

    /// Ends the engine, and tells what went wrong by the end: a record that could not be written, for one.
    ///
    /// # Errors
    /// Why it died, or could not end well.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.stop();
        self.alive()
    }

    fn stop(&mut self) {
        let _ = self.inbox.send(Message::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic of the engine's thread was caught and told where it happened.
            let _ = thread.join();
        }
    }

    /// An error once the engine is dead.
    ///
    /// # Errors
    /// Why it died.
    pub fn alive(&self) -> Result<(), Failure> {
        match &*lock(&self.dead) {
            Some(why) => Err(Failure::Engine(why.clone())),
            None => Ok(()),
        }
    }

    /// How many tokens the request may generate.
    fn room(&self, request: &Request) -> Result<usize, Failure> {
        let (prompt, max, vocab) = (request.prompt.len(), self.hold.max_model_len, self.spec.vocab);
        if let Some(&token) = request.prompt.iter().find(|&&token| token as usize >= vocab) {
            return Err(Failure::UnknownToken { token, vocab });
        }
        if prompt >= max {
            return Err(Failure::TooLong { prompt, max, positions: self.spec.max_positions });
        }
        let wanted = request.params.max_tokens.map_or(usize::MAX, |n| n as usize);
        Ok(wanted.min(max - prompt))
    }

    /// What lives where.
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// What kind of model it serves.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Weights that were read from the drive since it started.
    pub fn streamed(&self) -> Streamed {
        self.seen.stowed.as_ref().map_or_else(Streamed::default, |stowed| stowed.streamed())
    }

    /// Weights that were copied from the host to the device since it started.
    pub fn copied(&self) -> Streamed {
        self.seen.stowed.as_ref().map_or_else(Streamed::default, |stowed| stowed.copied())
    }

    /// Why weights or KV on the host are copied by a thread's work to a device that could copy them by itself; none if it does,
    /// or nothing lives there.
    pub fn not_pinned(&self) -> Option<&str> {
        let weights = self.seen.stowed.as_ref().and_then(|stowed| stowed.not_pinned());
        weights.or(self.seen.kv_not_pinned.as_deref())
    }

    /// What its device did otherwise than is fastest so far and why, in words, each once.
    pub fn remarks(&self) -> Vec<String> {
        self.seen.machine.upgrade().map_or_else(Vec::new, |machine| machine.device.remarks())
    }

    /// In which steps the host computes with weights that live there; for all others they are copied.
    pub fn delegation(&self) -> Delegation {
        self.seen.delegation
    }

    /// What ran on which lane: the newest nodes, as many as `EngineConfig::lane_spans`.
    pub fn ranges(&self) -> Ranges {
        self.seen.timeline.ranges()
    }

    /// The same for whoever looks when somebody else has ended it.
    pub fn lane_watch(&self) -> LaneWatch {
        LaneWatch(Arc::clone(&self.seen.timeline))
    }

    /// How the drive is reached that weights are streamed from; none where none are.
    pub fn drive_access(&self) -> Option<Access> {
        self.seen.stowed.as_ref()?.access()
    }

    /// How the drive is reached where KV and activations live; none where none do.
    pub fn kv_drive_access(&self) -> Option<Access> {
        self.seen.kv_access
    }

    /// Its counters.
    pub fn counts(&self) -> Counts {
        self.stats.counts()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}
