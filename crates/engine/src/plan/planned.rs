//! An engine before it is one: planned from headers, then loaded.

use std::fs::File;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use kernels::arena::{Full, PAGE};
use kernels::attention::{BLOCK_TOKENS, KvDtype};
use kernels::device::{Device, KvPages, Needs};
use kernels::{CpuDevice, Team};
use model::checkpoint::Checkpoint;
use model::decoder::{Blueprint, Decoder, HostWork, LoadError, Loader, Work, WorkSize};
use model::store::{Cut, Maker, Store};
use policy::cost::Measured;
use policy::pipeline::{Delegation, Overlap, Plan, Share, Weights};
use policy::sched::{BlockConfig, FcfsConfig, Preempt};
use spec::{ByTier, Layout, ModelSpec, PrefixUse, ReplicaId, Tier, Tokens};

use crate::config::{DeviceChoice, EngineConfig, PrefixCaching};
use crate::engine::{Engine, Run, Seen};
use crate::memory;
use crate::plan::blocks::Passes;
use crate::plan::foresight::Foresight;
use crate::plan::groups::{Groups, Place};
use crate::plan::hold::{Hold, kv_layout};
use crate::plan::homes::Homes;
pub use crate::plan::start_error::StartError;
use crate::plan::too_small::TooSmall;
use crate::step::run::Machine;
use crate::step::sequence::Turns;
use crate::step::world::{Message, Real};
use crate::tiers::delegate::delegation;
use crate::tiers::kv::{HostAttention, Kv, LayerPages, Rests, TURNS};
use crate::tiers::kv_file::KvFile;
use crate::tiers::link::Link;
use crate::tiers::stowed::Stowed;
use crate::watch::foreseen::Foreseen;
use crate::watch::stats::Stats;
use crate::watch::timeline::Timeline;

/// What an engine will be made of, before it is made.
pub struct Planned<'a> {
    checkpoint: &'a Checkpoint,
    config: EngineConfig,
    blueprint: Blueprint,
    hold: Hold,
    blocks: BlockConfig,
    /// Where weights are streamed, how they are cut.
    cut: Option<Cut>,
    /// By which its steps are foreseen.
    foresight: Option<Foresight>,
}

impl<'a> Planned<'a> {
    /// Plans all memory of an engine, from headers alone.
    ///
    /// # Errors
    /// [`TooSmall`]: what is missing, and what to do.
    pub fn new(checkpoint: &'a Checkpoint, config: EngineConfig) -> Result<Planned<'a>, TooSmall> {
        Planned::by(checkpoint, config, |spec, blueprint, config| {
            Hold::plan(spec, blueprint, config, memory::needed_bytes())
        })
    }

    /// The same, given what the process has resident already: engines that are compared are planned beside the same.
    ///
    /// # Errors
    /// [`TooSmall`]: what is missing, without what would fit in its place.
    pub fn beside(
        checkpoint: &'a Checkpoint,
        config: EngineConfig,
        resident_bytes: u64,
    ) -> Result<Planned<'a>, TooSmall> {
        Planned::by(checkpoint, config, |spec, blueprint, config| {
            Hold::plan_only(spec, blueprint, config, resident_bytes)
        })
    }

    fn by(
        checkpoint: &'a Checkpoint,
        config: EngineConfig,
        plan: impl Fn(&ModelSpec, &Blueprint, &EngineConfig) -> Result<(Hold, Option<Cut>), TooSmall>,
    ) -> Result<Planned<'a>, TooSmall> {
        let blueprint = blueprint(checkpoint, &config);
        let (hold, cut) = plan(checkpoint.spec(), &blueprint, &config)?;
        let passes = if cut.is_some() { Passes::Streamed } else { Passes::Resident };
        let config = config.settled(passes);
        let blocks = config.block_config(hold.kv_slot_tokens);
        Ok(Planned { checkpoint, config, blueprint, hold, blocks, cut, foresight: None })
    }

    /// The same, whose counters tell how well these costs foresee its steps, and which learns from the difference.
    pub fn foreseen(self, by: impl Into<Foresight>) -> Planned<'a> {
        Planned { foresight: Some(by.into()), ..self }
    }

    pub(crate) fn foresight(&self) -> Option<&Foresight> {
        self.foresight.as_ref()
    }

    pub(crate) fn spec(&self) -> &ModelSpec {
        self.checkpoint.spec()
    }

    pub(crate) fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    pub(crate) fn cut(&self) -> Option<&Cut> {
        self.cut.as_ref()
    }

    /// Whether all weights are where they are used, on the device.
    pub fn fits(&self) -> bool {
        self.cut.is_none()
    }

    /// Numbers in all weights.
    pub fn parameters(&self) -> u64 {
        self.checkpoint.spec().parameters()
    }

    /// All choices that were made.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// What will live where.
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// The schedule, and how steps are cut into batches.
    pub fn blocks(&self) -> &BlockConfig {
        &self.blocks
    }

    /// Bytes that [`start`](Planned::start) will tell of as progress.
    pub fn load_bytes(&self) -> u64 {
        match &self.cut {
            Some(cut) => self.hold.disk_bytes + cut.resident_bytes() + cut.host_bytes(),
            None => self.blueprint.matrices().map(|m| m.bytes() as u64).sum(),
        }
    }

    /// Where the packed store of these weights is or will be; none where none are read from it.
    ///
    /// # Errors
    /// If the checkpoint cannot be read.
    pub fn store(&self) -> Result<Option<PathBuf>, StartError> {
        let maker = self.maker();
        let place = maker.map(|maker| maker.place()).transpose().map_err(LoadError::File)?;
        Ok(place.map(|(folder, _)| folder))
    }

    fn maker(&self) -> Option<Maker<'_>> {
        let home = self.config.offload.folder.as_deref().filter(|_| self.hold.disk_bytes > 0)?;
        Some(Maker { checkpoint: self.checkpoint, blueprint: &self.blueprint, home })
    }

    fn made(&self, team: &Team, progress: &(dyn Fn(u64) + Sync)) -> Result<Option<Store>, StartError> {
        let store = self.maker().map(|maker| maker.make(team, progress)).transpose();
        Ok(store.map_err(LoadError::File)?)
    }

    /// The weights' formats in memory, the one with most bytes first: `q4_1 and q8_0`.
    pub fn formats(&self) -> String {
        let names: Vec<String> =
            self.blueprint.formats().iter().map(|(format, _)| format.to_string()).collect();
        names.join(" and ")
    }

    /// Loads the weights and starts the engine. `progress` is told the bytes loaded so far, from any thread.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(mut self, progress: &(dyn Fn(u64) + Sync)) -> Result<Engine, StartError> {
        let overlap = &mut self.config.blocks.overlap;
        // One team of threads computes for both, one kernel at a time.
        let computes_for_both = matches!(self.config.device, DeviceChoice::Cpu | DeviceChoice::Virtual);
        if computes_for_both && *overlap == Overlap::Lanes {
            *overlap = Overlap::SharedCores;
        }
        let config = self.config.clone();
        self.start_on(&|tier, bytes, team| open(&config, tier, bytes, team), progress)
    }

    /// The same on devices of the caller's making.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_on(
        self,
        devices: &Opening<'_>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Engine, StartError> {
        self.config.check_kv()?;
        self.config.check_activations(&self.blueprint)?;
        let record = self.config.record.as_ref().map(|path| create(path)).transpose()?;
        let (sender, inbox) = channel();
        let stats = Arc::new(Stats::default());
        let machine = Arc::new(self.machine(devices, sender.clone(), Arc::clone(&stats), progress)?);
        let foreseen = self.foresight.clone().map(|by| self.foreseen_by(by, machine.host_work.is_some()));
        let delegation = match &foreseen {
            _ if machine.host_work.is_none() => Delegation::Never,
            Some(foreseen) => foreseen.delegation(),
            None => delegation(&self.config, &machine),
        };
        let plan = Plan { delegation, ..self.plan() };
        let prefix = match self.config.prefix_caching {
            PrefixCaching::On => PrefixUse::Allowed,
            PrefixCaching::Off => PrefixUse::Forbidden,
        };
        let (stowed, timeline) = (machine.stowed.clone(), Arc::clone(&machine.timeline));
        let (kv_not_pinned, kv_access) =
            (machine.kv.not_pinned.clone(), machine.kv.drive.as_ref().map(KvFile::access));
        let seen = Seen {
            machine: Arc::downgrade(&machine),
            stowed,
            timeline,
            delegation,
            kv_not_pinned,
            kv_access,
        };
        let spec = self.checkpoint.spec();
        let turns = Turns { rope: spec.rope().cloned(), longest: self.config.longest(spec) };
        let world = Real::new(inbox, machine, turns, (prefix, plan), (Arc::clone(&stats), foreseen))?;
        let run = Run { world, stats, config: self.fcfs(), plan, record };
        Ok(Engine::begin(run, sender, (self.hold, spec.clone()), seen)?)
    }

    /// A host without room for activations computes with no weights, whatever that would cost.
    fn foreseen_by(&self, by: Foresight, may_delegate: bool) -> Foreseen {
        let outline = self.outline();
        let costs = move |tables| match outline.cost(tables) {
            cost if may_delegate => cost,
            cost => Measured { delegation: Delegation::Never, ..cost },
        };
        Foreseen::new(Box::new(costs), by)
    }

    fn machine(
        &self,
        devices: &Opening<'_>,
        inbox: Sender<Message>,
        stats: Arc<Stats>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Machine, StartError> {
        let (spec, config) = (self.checkpoint.spec(), &self.config);
        // The drive's room is taken before anything heavy is loaded.
        let drive = self.drive(&stats)?;
        let team = Arc::new(Team::start(config.threads)?);
        let store = self.made(&team, progress)?;
        let mut device = devices(Tier::Device, self.hold.arena_bytes() as usize, &team)?;
        let longest = config.sparse.map(|_| self.hold.max_model_len);
        let size = config.work_size(&self.blocks);
        prepare(&*device, &self.blueprint, (spec, config.kv_dtype()), size, longest)?;
        let mut host = devices(Tier::Host, self.host_bytes(), &team)?;
        let before = self.hold.disk_bytes;
        let loader = Loader {
            checkpoint: self.checkpoint,
            team: &team,
            positions: self.hold.max_model_len,
            progress: &|bytes| progress(before + bytes),
            store: store.as_ref(),
            cut: self.cut.as_ref(),
        };
        let weights = loader.load(&self.blueprint, &mut *device)?;
        let home = loader.stow(&self.blueprint, &mut *host)?;
        let link = Link { bytes_per_s: config.offload.link };
        let stowed = self.cut.clone().map(|cut| {
            let devices: (&mut dyn Device, &mut dyn Device) = (&mut *device, &mut *host);
            Stowed::new((cut, config.disk_path()), store, home, link, devices)
        });
        let stowed = stowed.transpose().map_err(LoadError::Full)?.map(Arc::new);
        let size = config.host_work().filter(|_| self.hold.host_linear_bytes > 0);
        let host_work = size.map(|size| HostWork::take(&mut *host, spec, size));
        let host_work = host_work.transpose().map_err(LoadError::Full)?;
        let buffers = self.buffers(&mut *device).map_err(LoadError::Full)?;
        let decoder = Decoder::new(spec.clone(), weights).sparse(config.sparse);
        let devices: (&mut dyn Device, &mut dyn Device) = (&mut *device, &mut *host);
        let mut kv = self.kv(&decoder, devices, drive).map_err(LoadError::Full)?;
        kv.prepare(config.kv_memory, link, (&*device, &*host));
        // Lanes need not wait for what was loaded.
        [&device, &host].into_iter().for_each(|memory| memory.wait());
        let inbox = Mutex::new(inbox);
        let timeline = Arc::new(Timeline::new(config.lane_spans));
        // One step more than is in flight: its places are given back when its tokens are told. Twice as many, as a batch's lie
        // side by side: those left between others may be too few for the next.
        let keeps_picked = device.keeps_picked() >= 2 * (config.depth() + 1) * config.max_num_seqs;
        Ok(Machine {
            keeps_picked,
            ends: Mutex::default(),
            device,
            host,
            team,
            decoder,
            kv,
            stowed,
            link,
            host_work,
            buffers,
            inbox,
            stats,
            timeline,
        })
    }

    fn groups(&self) -> Groups {
        Groups::by(self.checkpoint.spec(), self.hold.kv_groups)
    }

    fn homes(&self) -> Homes<'_> {
        let (spec, groups) = (self.checkpoint.spec(), self.groups());
        Homes::new(spec, &self.config, self.blocks, self.hold.max_model_len, groups)
    }

    fn drive(&self, stats: &Arc<Stats>) -> Result<Option<KvFile>, LoadError> {
        let sizes = self.homes().drive(self.hold.drive_kv_blocks);
        let folder = self.config.offload.folder.as_deref().filter(|_| sizes.bytes() > 0);
        folder
            .map(|folder| KvFile::new(folder, sizes, Arc::clone(stats)))
            .transpose()
            .map_err(LoadError::File)
    }

    /// Takes what KV and activations need of device and host.
    fn kv(
        &self,
        decoder: &Decoder,
        (device, host): (&mut dyn Device, &mut dyn Device),
        drive: Option<KvFile>,
    ) -> Result<Kv, Full> {
        let (hold, homes) = (&self.hold, self.homes());
        let layout = kv_layout(decoder.spec(), self.config.kv_dtype());
        let pages = |device: &mut dyn Device, blocks: usize| -> Result<KvPages, Full> {
            Ok(KvPages { layout, buf: device.take(blocks * layout.block_bytes())? })
        };
        let groups = self.groups();
        let mut shared = Vec::new();
        for _ in 0..groups.slots {
            shared.push((pages(device, hold.kv_blocks)?, pages(host, hold.host_kv_blocks)?));
        }
        let layer = |&place: &Place| {
            let ((device, host), touched) = (shared[place.slot], || Mutex::new(()));
            LayerPages { place, device, host, device_touched: touched(), host_touched: touched() }
        };
        let layers = groups.places.iter().map(layer).collect();
        let slot_blocks = hold.kv_slot_tokens as usize / BLOCK_TOKENS;
        let slots = |device: &mut dyn Device, bytes: u64| -> Result<Vec<KvPages>, Full> {
            let count = if bytes > 0 { TURNS } else { 0 };
            (0..count).map(|_| pages(device, slot_blocks)).collect()
        };
        let slots = ByTier {
            device: slots(device, hold.kv_slot_bytes)?,
            host: slots(host, hold.host_kv_slot_bytes)?,
            disk: Vec::new(),
        };
        let attention = homes.attends_on_host().then(|| self.host_attention(decoder, (device, host)));
        let attention = attention.transpose()?;
        let mut rest = || host.take(homes.hidden_bytes());
        let resting = homes.host_batches().into_iter().map(|batch| Ok((batch, rest()?)));
        let resting = resting.collect::<Result<_, Full>>()?;
        let staged = (0..homes.staged()).map(|_| rest()).collect::<Result<_, Full>>()?;
        let (path, values) = (self.config.disk_path(), self.config.values());
        let hidden = Rests { homes: resting, staged };
        Ok(Kv {
            groups: groups.kv,
            layers,
            slots,
            drive,
            path,
            values,
            host: attention,
            hidden,
            not_pinned: None,
        })
    }

    fn host_attention(
        &self,
        decoder: &Decoder,
        (device, host): (&dyn Device, &mut dyn Device),
    ) -> Result<HostAttention, Full> {
        let homes = self.homes();
        let turning = decoder.turning(device, host, self.hold.max_model_len)?;
        let size = homes.host_size();
        let buffers = (0..homes.buffers()).map(|_| Work::for_attention(host, decoder.spec(), size));
        Ok(HostAttention { turning, buffers: buffers.collect::<Result<_, Full>>()? })
    }

    fn buffers(&self, device: &mut dyn Device) -> Result<Vec<Work>, Full> {
        let spec = self.checkpoint.spec();
        let first = Work::take(device, spec, self.config.work_size(&self.blocks))?;
        let homes = self.homes();
        let others = (1..homes.buffers()).map(|_| first.beside(device, spec, homes.projected()));
        let others = others.collect::<Result<Vec<_>, _>>()?;
        Ok(std::iter::once(first).chain(others).collect())
    }

    /// Bytes of the host tier's memory, apart from the device's.
    fn host_bytes(&self) -> usize {
        // KV of a layer begins on a page.
        let rounding = (self.checkpoint.spec().layers + 1) * PAGE;
        self.hold.host_bytes() as usize + rounding
    }

    pub(crate) fn fcfs(&self) -> FcfsConfig {
        let config = &self.config;
        FcfsConfig {
            max_num_batched_tokens: Tokens(config.max_num_batched_tokens as u32),
            max_num_seqs: config.max_num_seqs,
            max_queue: config.max_num_queued_reqs,
            depth: config.depth(),
            blocks: ByTier {
                device: self.hold.kv_blocks as u32,
                host: self.hold.host_kv_blocks as u32,
                disk: self.hold.drive_kv_blocks as u32,
            },
            groups: self.hold.kv_groups,
            preempt: if self.config.host_kv_tokens > 0 { Preempt::Swap } else { Preempt::Recompute },
            replica: ReplicaId(0),
            layout: Layout::SINGLE,
            block: self.blocks,
            read_or_compute: self.read_or_compute(),
            gather: self.gather(),
            ..FcfsConfig::default()
        }
    }

    pub(crate) fn plan(&self) -> Plan {
        let resident = Plan {
            max_batches: self.blocks.batches as u16,
            hidden: self.config.blocks.hidden,
            overlap: self.config.blocks.overlap,
            disk_path: self.config.disk_path(),
            values: self.config.values(),
            kv_slot_tokens: self.hold.kv_slot_tokens,
            ..Plan::resident(self.spec().layers as u16, self.config.max_num_batched_tokens as u32)
        };
        let Some(cut) = &self.cut else { return resident };
        let host = if cut.host_bytes() > 0 { Share::Some } else { Share::None };
        let disk = (cut.streamed_bytes() > 0).then(|| self.config.disk_path());
        let weights = match (host, disk) {
            (Share::None, None) => Weights::Resident,
            _ => Weights::Streamed { host, disk },
        };
        Plan { weights, ..resident }
    }
}

/// Which matrices a checkpoint's weights become, from its headers alone.
pub fn blueprint(checkpoint: &Checkpoint, config: &EngineConfig) -> Blueprint {
    let stored = |tensor| checkpoint.info(tensor).map_or(model::stored::Stored::F32, |info| info.stored);
    Blueprint::new(checkpoint.spec(), config.weights, stored).with_activations(config.activations)
}

/// Makes the device, or what the host tier's memory belongs to, with so many bytes.
pub type Opening<'a> = dyn Fn(Tier, usize, &Arc<Team>) -> Result<Box<dyn Device>, StartError> + 'a;

/// What was chosen for a tier, with `bytes` of memory.
pub(crate) fn open(
    config: &EngineConfig,
    tier: Tier,
    bytes: usize,
    team: &Arc<Team>,
) -> Result<Box<dyn Device>, StartError> {
    let cpu = || CpuDevice::new(bytes, Arc::clone(team), config.isa);
    Ok(match (config.device, tier) {
        (DeviceChoice::Poisoned, _) => Box::new(cpu()?.poisoned()),
        (DeviceChoice::Cuda, Tier::Device) => Box::new(cuda::open(bytes)?),
        (DeviceChoice::Cuda | DeviceChoice::Cpu | DeviceChoice::Virtual, _) => Box::new(cpu()?),
    })
}

/// Kernels are compiled before anything heavy is loaded, and before a request waits for them.
/// `size`: of a batch. `sparse`: positions of the longest sequence, if attention is to a share of them.
pub(crate) fn prepare(
    device: &dyn Device,
    blueprint: &Blueprint,
    (spec, kv): (&ModelSpec, KvDtype),
    size: WorkSize,
    sparse: Option<usize>,
) -> Result<(), StartError> {
    let formats = blueprint.formats().into_iter().map(|(format, _)| format).collect();
    let (kv, capped) = (kv_layout(spec, kv), spec.score_cap.is_some());
    let needs = Needs { formats, kv, capped, sparse, rows: size.tokens, samples: size.samples };
    device.prepare(&needs).map_err(StartError::Device)
}

fn create(path: &std::path::Path) -> Result<File, StartError> {
    File::create(path).map_err(|source| StartError::Record { path: path.display().to_string(), source })
}
