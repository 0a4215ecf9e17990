//! What an engine is made of, all choices made.

use std::path::PathBuf;

use kernels::Isa;
use model::decoder::WeightsAs;
use spec::Split;

/// Resolved settings of one engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// What weights become in memory.
    pub weights: WeightsAs,
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
    /// Tokens in one step.
    pub max_num_batched_tokens: usize,
    /// Requests that may wait.
    pub max_num_queued_reqs: usize,
    /// Whether prompts reuse the KV of others that begin alike.
    pub prefix_caching: PrefixCaching,
    /// Steps under way at once, at least one.
    pub steps_in_flight: usize,
    /// KV wanted in all, in tokens; what memory leaves if absent.
    pub kv_tokens: Option<usize>,
    /// When the memory of KV is really taken from the system.
    pub kv_memory: KvMemory,
    /// KV of preempted sequences that is kept on the host, in tokens; with none it is computed again.
    pub host_kv_tokens: usize,
    /// Where weights go that do not fit.
    pub offload: Offload,
    /// Where to write the events of the run.
    pub record: Option<PathBuf>,
}

/// Where weights go that do not fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The folder of packed stores; without one, what does not fit is refused.
    pub folder: Option<PathBuf>,
    /// Bytes that a store may take there; as many as there are if absent.
    pub disk: Option<u64>,
    /// How much of the weights stays on the device.
    pub share: WeightShare,
}

/// How much of the weights stays on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightShare {
    /// All if they fit, else as much as fits beside everything else.
    #[default]
    Fitting,
    /// These shares of all weights; streamed even if all would fit.
    Exactly(Split),
}

/// What runs the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The processor.
    #[default]
    Cpu,
    /// The first NVIDIA GPU.
    Cuda,
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

/// How many threads this process can run at once.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
