//! What an engine is made of, all choices made.

use std::path::PathBuf;

use kernels::Isa;
use kernels::linear::Activations;
use model::decoder::WeightsAs;
use policy::pipeline::{DiskPath, Values};
use spec::{ModelSpec, Split};

use crate::plan::blocks::Blocks;

/// Resolved settings of one engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// What weights become in memory.
    pub weights: WeightsAs,
    /// How activations are multiplied by weights of 8 bits and fewer.
    pub activations: Activations,
    /// What keys and values are stored as.
    pub kv: KvFormat,
    /// Which share of the keys that a query sees counts, those with the highest scores; all, exactly, if absent.
    pub sparse: Option<f32>,
    /// Bytes that the whole process may take.
    pub memory: u64,
    /// Threads that compute.
    pub threads: usize,
    /// Which kernels they run.
    pub isa: Isa,
    /// What runs the model.
    pub device: DeviceChoice,
    /// The longest sequence; the model's own limit if absent.
    pub max_model_len: Option<usize>,
    /// Sequences that run at once.
    pub max_num_seqs: usize,
    /// Tokens of a batch, of which a step has one unless a schedule makes more.
    pub max_num_batched_tokens: usize,
    /// Requests that may wait, beside those that there are seats for.
    pub max_num_queued_reqs: usize,
    /// Whether prompts are scored: their positions then want logits too, and are looked at some at a time.
    pub scores_prompts: bool,
    /// Whether prompts reuse the KV of others that begin alike.
    pub prefix_caching: PrefixCaching,
    /// Steps under way at once, at least one. If absent one, and two on a GPU or where weights are streamed.
    pub steps_in_flight: Option<usize>,
    /// KV wanted in all, in tokens; what memory leaves if absent.
    pub kv_tokens: Option<usize>,
    /// What that asks for, where layers look back through a window.
    pub kv_room: KvRoom,
    /// When the memory of KV is really taken from the system.
    pub kv_memory: KvMemory,
    /// Bytes that others in the process may take beside the engine: a server's connections, for one.
    pub beside_bytes: u64,
    /// KV of preempted sequences and of prefixes that leave the device that is kept on the host, in tokens; with none it is
    /// computed again.
    pub host_kv_tokens: usize,
    /// KV of prefixes that leave device and host that is kept on the drive, in tokens.
    pub drive_kv_tokens: usize,
    /// Where weights go that do not fit.
    pub offload: Offload,
    /// How steps are scheduled and cut into batches.
    pub blocks: Blocks,
    /// Where to write the events of the run.
    pub record: Option<PathBuf>,
    /// Nodes of which the newest are kept with their times (see `Engine::ranges`).
    pub lane_spans: usize,
}

/// What the device has, and where weights go that do not fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Bytes of the device: of its own memory, or of the process's where the device is the processor. Without, that
    /// shares all memory with the host.
    pub device_memory: Option<u64>,
    /// The speed of the link between host and device, in bytes per second, where a slower one is rehearsed.
    pub link: Option<u64>,
    /// The folder of packed stores; without one, nothing lives on the drive.
    pub folder: Option<PathBuf>,
    /// Bytes that packed weights, KV and activations may take there; as many as they need if absent (see `drive_room`).
    pub disk: Option<u64>,
    /// How much of the weights stays on the device.
    pub share: WeightShare,
    /// Who computes with weights that live on the host.
    pub linears: HostLinears,
}

/// Who computes with weights that live on the host, while batches are small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostLinears {
    /// The host, up to the batch at which it takes longer than copying them: by the costs that the engine was planned with, or
    /// else measured at the start.
    #[default]
    Cheaper,
    /// The device: they are copied for every pass.
    Device,
    /// The host, whatever it takes.
    Host,
}

/// How much of the weights stays on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightShare {
    /// All if they fit, else as much as fits beside everything else.
    #[default]
    Fitting,
    /// All if they fit beside all KV that is wanted, else as much as does: without it a few weights more would leave KV for a
    /// few sequences less.
    AfterKv,
    /// These shares of all weights; what is not the device's share is streamed even if it would fit.
    Exactly(Split),
}

/// What keys and values are stored as, on every tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvFormat {
    /// As activations: in bf16, in f32 where weights are.
    #[default]
    AsActivations,
    /// In half precision, up to 65504; activations are bf16.
    F16,
    /// In 8 bits without scales (e4m3fn, up to 448); activations are bf16.
    Fp8,
    /// In 4 bits, groups of up to 64 dims of a token's head; activations are bf16.
    Int4,
}

/// What runs the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The processor.
    #[default]
    Cpu,
    /// The processor in the place of a device with memory of its own, `Offload::device_memory`, that cannot read the drive.
    Virtual,
    /// The processor, with memory full of NaNs where bytes are of no use any more: finds who reads them. Its host attends
    /// on a lane of its own, as beside a GPU.
    Poisoned,
    /// The first NVIDIA GPU.
    Cuda,
}

/// What KV of so many tokens is, where what lies behind windows makes room for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvRoom {
    /// What sequences that have so many together need at a time.
    #[default]
    Needed,
    /// As many bytes as all of it takes: more sequences have room there.
    Whole,
}

/// When the memory of KV is really taken from the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvMemory {
    /// All of it at the start: nothing waits for page faults later.
    AtStart,
    /// Page by page, as it is used: a generous limit costs nothing.
    AsUsed,
}

/// Whether prompts reuse the KV of others that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixCaching {
    /// They do.
    On,
    /// Every prompt is computed anew.
    Off,
}

impl EngineConfig {
    /// How long a sequence may become by what was asked for and by the model, before memory cuts it.
    pub(crate) fn longest(&self, spec: &ModelSpec) -> usize {
        self.max_model_len.unwrap_or(spec.max_positions).min(spec.max_positions)
    }

    /// Everything on the processor, in bf16 and exact, for one sequence after the other: what others are told apart from by
    /// the fields that they set.
    pub fn plain(memory: u64, threads: usize) -> EngineConfig {
        EngineConfig {
            weights: WeightsAs::Bf16,
            activations: Activations::Exact,
            kv: KvFormat::AsActivations,
            sparse: None,
            memory,
            threads,
            isa: Isa::detect(),
            device: DeviceChoice::Cpu,
            max_model_len: None,
            max_num_seqs: 1,
            max_num_batched_tokens: 256,
            max_num_queued_reqs: 1000,
            scores_prompts: false,
            prefix_caching: PrefixCaching::Off,
            steps_in_flight: None,
            kv_tokens: None,
            kv_room: KvRoom::default(),
            kv_memory: KvMemory::AsUsed,
            host_kv_tokens: 0,
            drive_kv_tokens: 0,
            offload: Offload::default(),
            blocks: Blocks::default(),
            record: None,
            beside_bytes: 0,
            lane_spans: 0,
        }
    }

    /// Which values come to decodes that attend away from their KV.
    pub(crate) fn values(&self) -> Values {
        if self.sparse.is_some() { Values::Chosen } else { Values::All }
    }

    /// How what lives on the drive comes to the device: straight, unless the device cannot read the drive, or stands for
    /// one that cannot.
    pub(crate) fn disk_path(&self) -> DiskPath {
        match (self.device, self.offload.link) {
            (DeviceChoice::Cuda | DeviceChoice::Virtual, _) | (_, Some(_)) => DiskPath::ThroughHost,
            (DeviceChoice::Cpu | DeviceChoice::Poisoned, None) => DiskPath::Direct,
        }
    }
}
