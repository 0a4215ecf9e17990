//! An engine that is wanted: planned, announced and loaded.

use anyhow::{Error, Result};
use engine::{
    Engine, EngineConfig, Offload, Planned, StartError, TooSmall, counted, drive_room, memory, size,
};
use kernels::drive::is_memory;
use model::Error::TooVaried;
use model::decoder::{LoadError, WeightsAs};
use model::store::Access;
use policy::pipeline::Delegation;
use policy::sched::BlockConfig;

use crate::args::EngineArgs;
use crate::beside_the_point;
use crate::console::note;
use crate::display::{Progress, Unit, Voice};
use crate::loaded::Opened;
use crate::plan::{self, Chosen, Work};

/// What an engine is wanted for.
pub(crate) struct Wanted<'a> {
    pub(crate) opened: &'a Opened,
    /// As flags say.
    pub(crate) config: EngineConfig,
    pub(crate) args: &'a EngineArgs,
    /// What is known of the requests: without room for all weights on the device, the planner decides what flags leave open.
    /// `None`: flags and the engine's own rule do.
    pub(crate) work: Option<Work>,
    pub(crate) voice: Voice,
}

/// An engine that runs.
pub(crate) struct Loaded {
    pub(crate) engine: Engine,
    /// What its weights are kept as.
    pub(crate) weights: WeightsAs,
    /// The formats of its matrices, in words.
    pub(crate) formats: String,
    pub(crate) blocks: BlockConfig,
}

impl<'a> Wanted<'a> {
    /// Plans it, and announces the plan.
    pub(crate) fn plan(&self) -> Result<Chosen<'a>> {
        self.or_in_16_bits(self.plan_of(self.config.clone()), |config| self.plan_of(config))
    }

    /// Loads what was planned.
    pub(crate) fn load(&self, planned: Planned<'a>) -> Result<Loaded> {
        let start = |planned| start(planned, self.voice);
        self.or_in_16_bits(start(planned), |config| start(self.plan_of(config)?.planned))
    }

    fn plan_of(&self, config: EngineConfig) -> Result<Chosen<'a>> {
        let Wanted { opened, args, .. } = *self;
        let config = for_this_model(opened, config)?;
        let chosen = match self.work {
            Some(work) => plan::choose(opened, config, args, work)?,
            None => Chosen { planned: Planned::new(&opened.checkpoint, config)?, told: None },
        };
        if self.voice == Voice::Normal {
            announce(opened, &chosen.planned)?;
            let before = chosen.told.as_ref().and_then(|_| before(&chosen.planned));
            chosen.told.iter().chain(&before).for_each(|told| note!("{told}"));
            beside_the_point::told(args, &chosen.planned).iter().for_each(|told| note!("{told}"));
        }
        Ok(chosen)
    }

    /// What was tried; once more where 12 bits a weight, which nobody asked for, cannot hold the model's.
    fn or_in_16_bits<T>(&self, tried: Result<T>, again: impl FnOnce(EngineConfig) -> Result<T>) -> Result<T> {
        let Err(error) = &tried else { return tried };
        let Some(StartError::Load(LoadError::File(TooVaried { tensors, found }))) = error.downcast_ref()
        else {
            return tried;
        };
        if self.config.weights != WeightsAs::Stored {
            return tried;
        }
        note!(
            "{tensors} cannot be kept in 12 bits a weight ({found}): all weights are kept in 16, as --weights bf16 does at once"
        );
        again(EngineConfig { weights: WeightsAs::Bf16, ..self.config.clone() })
    }
}

/// Why there is no plan, where more memory is also for more `beside` the engine (bytes there, of so many in all).
pub(crate) fn with_more_beside(error: Error, beside: &dyn Fn(u64) -> u64) -> Error {
    match error.downcast::<TooSmall>() {
        Ok(why) => why.with_more_beside(beside).into(),
        Err(error) => match error.downcast::<StartError>() {
            Ok(StartError::TooSmall(why)) => why.with_more_beside(beside).into(),
            Ok(other) => other.into(),
            Err(error) => error,
        },
    }
}

/// The same with what the weights are kept as, and what the drive has for this model, where flags do not say.
pub(crate) fn for_this_model(opened: &Opened, config: EngineConfig) -> Result<EngineConfig> {
    let config = config.with_weights_for(&opened.checkpoint);
    let disk = match config.offload.disk {
        None => drive_room(&opened.checkpoint, &config)?,
        told => told,
    };
    Ok(EngineConfig { offload: Offload { disk, ..config.offload }, ..config })
}

fn announce(opened: &Opened, planned: &Planned<'_>) -> Result<()> {
    let spec = opened.checkpoint.spec();
    let (parameters, formats) = (count(spec.parameters()), planned.formats());
    note!("{}: {}, {parameters} parameters, {formats}", opened.name, spec.architecture);
    note!("memory: {}", planned.hold());
    if let Some(folder) = planned.store()? {
        note!("packed weights: {} in {}", size(&planned.hold().disk_bytes), folder.display());
    }
    Ok(())
}

/// What the process took while costs were measured, where the engine takes less: whoever watches it has seen that.
fn before(planned: &Planned<'_>) -> Option<String> {
    let (peak, announced) = (memory::peak_resident_bytes(), planned.hold().total_bytes());
    (peak > announced)
        .then(|| format!("memory: {} while costs were measured, less from here on", size(&peak)))
}

fn start(planned: Planned<'_>, voice: Voice) -> Result<Loaded> {
    let (weights, formats, blocks) = (planned.config().weights, planned.formats(), *planned.blocks());
    // Before it is filled: that may be more than there is.
    let (folder, hold) = (planned.config().offload.folder.as_deref(), planned.hold());
    if let Some(folder) = folder.filter(|folder| hold.disk_bytes + hold.drive_bytes > 0 && is_memory(folder))
    {
        note!(
            "{} is in memory (tmpfs), not on a drive: what is there takes memory beside --memory; name a folder on a drive of \
             this machine with --offload-dir",
            folder.display()
        );
    }
    let progress = Progress::new("loading", planned.load_bytes(), Unit::Bytes, voice);
    let engine = planned.start(&|bytes| progress.set(bytes));
    progress.end();
    let engine = engine?;
    if voice == Voice::Normal && engine.hold().host_weight_bytes > 0 {
        note!("weights on the host{}", delegated(engine.delegation()));
    }
    let drives =
        [("the packed weights'", engine.drive_access()), ("the KV file's", engine.kv_drive_access())];
    if let Some((whose, _)) = drives.into_iter().find(|(_, access)| *access == Some(Access::Cached)) {
        note!(
            "{whose} file system has no direct access: reads pass through the system's page cache, which is slower and takes \
             memory beside --memory; name a folder on a drive of this machine with --offload-dir"
        );
    }
    if let Some(why) = engine.not_pinned() {
        note!("copies between host and device are slower than they could be: {why}");
    }
    engine.remarks().iter().for_each(|remark| note!("{remark}"));
    Ok(Loaded { engine, weights, formats, blocks })
}

/// What becomes of weights on the host.
fn delegated(delegation: Delegation) -> String {
    match (delegation, delegation.tokens()) {
        (_, 0) => " are copied to the device for every pass".into(),
        (Delegation::Cheaper(_), most) => format!(
            ": computed with there in steps whose batches have up to {} and take no longer so than with one copy \
             for all, copied for others",
            counted(most, "token")
        ),
        (_, most) => format!(
            ": computed with there in steps whose batches have up to {}, copied for others",
            counted(most, "token")
        ),
    }
}

/// `135 M`, `1.1 B`.
fn count(n: u64) -> String {
    let n = n as f64;
    match n {
        _ if n >= 1e9 => format!("{:.1} B", n / 1e9),
        _ if n >= 1e6 => format!("{:.0} M", n / 1e6),
        _ => format!("{:.0} k", n / 1e3),
    }
}
