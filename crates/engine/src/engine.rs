//! The handle of a running engine: requests in, events out.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use kernels::arena::Full;
use kernels::device::{Device, KvPages};
use kernels::linear::Format;
use kernels::{CpuDevice, Team};
use model::checkpoint::Checkpoint;
use model::decoder::{Blueprint, Decoder, LoadError, Loader, Packed, Work};
use model::store::{Cut, Maker, Store};
use policy::cost::Cost;
use policy::drive::{Lowering, drive};
use policy::log::{Entry, Recorded};
use policy::pipeline::{DiskPath, Plan, Share, Weights};
use policy::sched::{Fcfs, FcfsConfig, Preempt, Scheduler};
use spec::{ByTier, Layout, ModelSpec, Nanos, Op, PrefixUse, ReplicaId, SeqId, Shape, Tokens};

use crate::config::{DeviceChoice, EngineConfig, KvMemory, PrefixCaching};
use crate::disk::{Disk, Streamed};
use crate::hold::{Hold, TooSmall, kv_layout};
use crate::memory;
use crate::request::{Event, Failure, Request, Sink};
use crate::run::{LayerPages, Machine, lock};
use crate::stats::{Counts, Stats};
use crate::watched::Watched;
use crate::world::{Message, Real};

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The model does not fit the memory allowed.
    #[error(transparent)]
    TooSmall(#[from] TooSmall),
    /// The weights could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The GPU could not be opened.
    #[error(transparent)]
    Cuda(#[from] cuda::CudaError),
    /// The system gave no memory or threads.
    #[error("the system refused memory or threads: {0}")]
    System(#[from] io::Error),
    /// The record cannot be written.
    #[error("cannot write the record {path}: {source}")]
    Record {
        /// Where it should go.
        path: String,
        /// Why not.
        source: io::Error,
    },
}

/// A model that is loaded and serves requests, on a thread of its own.
pub struct Engine {
    inbox: Sender<Message>,
    thread: Option<JoinHandle<()>>,
    next: AtomicU64,
    stats: Arc<Stats>,
    dead: Arc<Mutex<Option<String>>>,
    hold: Hold,
    spec: ModelSpec,
    disk: Option<Arc<Disk>>,
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

/// What an engine will be made of, before it is made.
pub struct Planned<'a> {
    checkpoint: &'a Checkpoint,
    config: EngineConfig,
    blueprint: Blueprint,
    hold: Hold,
    /// Where weights are streamed, how they are cut.
    cut: Option<Cut>,
}

impl<'a> Planned<'a> {
    /// Plans all memory of an engine, from headers alone.
    ///
    /// # Errors
    /// [`TooSmall`]: what is missing, and what to do.
    pub fn new(checkpoint: &'a Checkpoint, config: EngineConfig) -> Result<Planned<'a>, TooSmall> {
        let stored = |tensor| checkpoint.info(tensor).map_or(model::stored::Stored::F32, |info| info.stored);
        let blueprint = Blueprint::new(checkpoint.spec(), config.weights, stored);
        let (hold, cut) = Hold::plan(checkpoint.spec(), &blueprint, &config, memory::resident_bytes())?;
        let mut config = config;
        if cut.is_some() {
            // The next step's first weights are read while this step ends.
            config.steps_in_flight = config.steps_in_flight.max(2);
        }
        Ok(Planned { checkpoint, config, blueprint, hold, cut })
    }

    /// What will live where.
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Bytes that [`start`](Planned::start) will tell of as progress.
    pub fn load_bytes(&self) -> u64 {
        match &self.cut {
            Some(cut) => self.hold.disk_bytes + cut.resident_bytes(),
            None => self.blueprint.matrices().map(|m| m.bytes() as u64).sum(),
        }
    }

    /// Where the packed store of these weights is or will be; none where all weights are resident.
    ///
    /// # Errors
    /// If the checkpoint cannot be read.
    pub fn store(&self) -> Result<Option<PathBuf>, StartError> {
        let maker = self.maker();
        let place = maker.map(|maker| maker.place()).transpose().map_err(LoadError::File)?;
        Ok(place.map(|(folder, _)| folder))
    }

    /// Makes the packed store (see [`store`](Planned::store)), unless it is there.
    ///
    /// # Errors
    /// If the checkpoint cannot be read, or the drive is full.
    pub fn make_store(&self, progress: &(dyn Fn(u64) + Sync)) -> Result<(), StartError> {
        let team = Team::start(self.config.threads)?;
        self.made(&team, progress).map(drop)
    }

    fn maker(&self) -> Option<Maker<'_>> {
        let home = self.cut.as_ref().and(self.config.offload.folder.as_deref())?;
        Some(Maker { checkpoint: self.checkpoint, blueprint: &self.blueprint, home })
    }

    fn made(&self, team: &Team, progress: &(dyn Fn(u64) + Sync)) -> Result<Option<Store>, StartError> {
        let store = self.maker().map(|maker| maker.make(team, progress)).transpose();
        Ok(store.map_err(LoadError::File)?)
    }

    /// The weights' formats in memory, the one with most bytes first: `q4_1 and q8_0`.
    pub fn formats(&self) -> String {
        let name = |format: &Format| match format {
            Format::Narrow(narrow) => format!("{narrow:?}").to_lowercase(),
            wide => format!("{wide:?}").to_lowercase(),
        };
        let names: Vec<String> = self.blueprint.formats().iter().map(|(format, _)| name(format)).collect();
        names.join(" and ")
    }

    /// Loads the weights and starts the engine. `progress` is told the bytes loaded so far, from any thread.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(self, progress: &(dyn Fn(u64) + Sync)) -> Result<Engine, StartError> {
        let record = self.config.record.as_ref().map(|path| create(path)).transpose()?;
        let (sender, inbox) = channel();
        let stats = Arc::new(Stats::default());
        let machine = Arc::new(self.machine(sender.clone(), Arc::clone(&stats), progress)?);
        let disk = machine.disk.clone();
        let dead = Arc::new(Mutex::new(None));
        let prefix = match self.config.prefix_caching {
            PrefixCaching::On if !self.rotates_by_length() => PrefixUse::Allowed,
            _ => PrefixUse::Forbidden,
        };
        let world = Real::new(inbox, machine, prefix, Arc::clone(&stats))?;
        let run = Run {
            world,
            dead: Arc::clone(&dead),
            stats: Arc::clone(&stats),
            config: self.fcfs(),
            plan: self.plan(),
            record,
        };
        let thread = thread::Builder::new().name("engine".into()).spawn(move || run.drive(&any_cost))?;
        let spec = self.checkpoint.spec().clone();
        Ok(Engine {
            inbox: sender,
            thread: Some(thread),
            next: AtomicU64::new(0),
            stats,
            dead,
            hold: self.hold,
            spec,
            disk,
        })
    }

    /// Keys of such a model depend on the length of their own prompt: nobody else can use them.
    fn rotates_by_length(&self) -> bool {
        self.checkpoint.spec().rope().is_some_and(spec::Rope::depends_on_length)
    }

    fn machine(
        &self,
        inbox: Sender<Message>,
        stats: Arc<Stats>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Machine, StartError> {
        let (spec, config) = (self.checkpoint.spec(), &self.config);
        let team = Arc::new(Team::start(config.threads)?);
        let store = self.made(&team, progress)?;
        // Buffers begin on pages: leave room for the rounding of the few hundred of them.
        let arena = self.hold.arena_bytes() as usize + (4 << 20);
        let mut device = open(config, arena, &team)?;
        let positions = self.hold.max_model_len;
        let packed = store.as_ref().zip(self.cut.as_ref()).map(|(store, cut)| Packed { store, cut });
        let before = self.hold.disk_bytes;
        let progress: &(dyn Fn(u64) + Sync) = &|bytes| progress(before + bytes);
        let loader = Loader { checkpoint: self.checkpoint, team: &team, positions, progress, packed };
        let weights = loader.load(&self.blueprint, &mut *device)?;
        let disk = store.zip(self.cut.clone()).map(|(store, cut)| Disk::new(store, cut, &mut *device));
        let disk = disk.transpose().map_err(LoadError::Full)?.map(Arc::new);
        let buffers = vec![Work::take(&mut *device, spec, config.work_size()).map_err(LoadError::Full)?];
        let layout = kv_layout(spec, config.kv_dtype());
        let mut host =
            CpuDevice::new(self.hold.host_kv_bytes as usize + (1 << 16), Arc::clone(&team), config.isa)?;
        let pages = |_| {
            let on = |device: &mut dyn Device, blocks: usize| -> Result<KvPages, Full> {
                Ok(KvPages { layout, buf: device.take(blocks * layout.block_bytes())? })
            };
            let (device, host) =
                (on(&mut *device, self.hold.kv_blocks)?, on(&mut host, self.hold.host_kv_blocks)?);
            Ok(LayerPages { device, host, touched: Mutex::new(()) })
        };
        let kv = (0..spec.layers).map(pages).collect::<Result<Vec<_>, _>>().map_err(LoadError::Full)?;
        if config.kv_memory == KvMemory::AtStart {
            kv.iter().for_each(|pages: &LayerPages| device.touch(&pages.device.buf));
        }
        let decoder = Decoder::new(spec.clone(), weights);
        let inbox = Mutex::new(inbox);
        Ok(Machine { device, host, team, decoder, kv, disk, buffers, inbox, stats })
    }

    fn fcfs(&self) -> FcfsConfig {
        let config = &self.config;
        FcfsConfig {
            max_num_batched_tokens: Tokens(config.max_num_batched_tokens as u32),
            max_num_seqs: config.max_num_seqs,
            max_queue: config.max_num_queued_reqs,
            depth: config.steps_in_flight,
            blocks: ByTier {
                device: self.hold.kv_blocks as u32,
                host: self.hold.host_kv_blocks as u32,
                disk: 0,
            },
            preempt: if self.hold.host_kv_blocks > 0 { Preempt::Swap } else { Preempt::Recompute },
            replica: ReplicaId(0),
            layout: Layout::SINGLE,
            ..FcfsConfig::default()
        }
    }

    fn plan(&self) -> Plan {
        let layers = self.checkpoint.spec().layers as u16;
        let resident = Plan::resident(layers, self.config.max_num_batched_tokens as u32);
        match self.cut {
            None => resident,
            Some(_) => {
                let weights = Weights::Streamed { host: Share::None, disk: Some(DiskPath::Direct) };
                Plan { weights, ..resident }
            }
        }
    }
}

/// The device that was chosen, with `bytes` of memory.
fn open(config: &EngineConfig, bytes: usize, team: &Arc<Team>) -> Result<Box<dyn Device>, StartError> {
    Ok(match config.device {
        DeviceChoice::Cpu => Box::new(CpuDevice::new(bytes, Arc::clone(team), config.isa)?),
        DeviceChoice::Cuda => Box::new(cuda::open(bytes)?),
    })
}

fn create(path: &std::path::Path) -> Result<BufWriter<File>, StartError> {
    let file = File::create(path);
    let file = file.map_err(|source| StartError::Record { path: path.display().to_string(), source })?;
    Ok(BufWriter::new(file))
}

/// There is one lane that computes, and one that reads ahead of it: the order of both follows from the data alone.
fn any_cost(_: &Op, _: &Shape) -> Nanos {
    Nanos(1)
}

/// Everything that the engine's thread needs.
struct Run {
    world: Real,
    dead: Arc<Mutex<Option<String>>>,
    stats: Arc<Stats>,
    config: FcfsConfig,
    plan: Plan,
    record: Option<BufWriter<File>>,
}

impl Run {
    /// Drives until the handle is dropped. A failure or panic is told to everybody who waits.
    fn drive(mut self, cost: &dyn Cost) {
        let result = catch_unwind(AssertUnwindSafe(|| self.drive_recorded(cost)));
        let why = match result {
            Ok(None) => return,
            Ok(Some(why)) => why,
            Err(_) => "its thread panicked; please report this, with the message above".to_string(),
        };
        *lock(&self.dead) = Some(why.clone());
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
        let broken = broken.or_else(|| file.flush().err().map(|e| e.to_string()));
        result.or_else(|| broken.map(|why| format!("the record could not be written: {why}")))
    }

    fn drive_with(&mut self, mut scheduler: impl Scheduler, cost: &dyn Cost) -> Option<String> {
        let lowering = Lowering { plan: &self.plan, cost };
        drive(&mut self.world, &mut scheduler, &lowering).err().map(|failure| failure.to_string())
    }
}

fn write_entry(file: &mut impl Write, entry: &Entry) -> io::Result<()> {
    serde_json::to_writer(&mut *file, entry)?;
    file.write_all(b"\n")
}

impl Engine {
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
            return Err(Failure::TooLong { prompt, max });
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
        self.disk.as_ref().map_or_else(Streamed::default, |disk| disk.streamed())
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
