//! From the flags as typed to settings with every choice made.

use std::path::PathBuf;

use anyhow::{Result, bail};
use engine::{
    DeviceChoice, EngineConfig, KvMemory, Offload, PrefixCaching, WeightShare, default_threads, memory, size,
};
use kernels::Isa;
use model::decoder::WeightsAs;
use model::source::Places;
use spec::{ByTier, Split};

use crate::args::{DeviceName, EngineArgs, Weights};

/// Tokens in a step, unless a flag says otherwise: enough that weights are read rarely, few enough that
/// activations stay small and decodes do not wait long behind a prompt.
const TOKENS_A_STEP: usize = 2048;
/// Requests that may wait.
const QUEUE: usize = 1 << 20;

/// What a command knows of its own needs, where flags are silent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    /// Sequences at once.
    pub(crate) seqs: usize,
    /// The longest sequence, if known.
    pub(crate) longest: Option<usize>,
    /// KV in all, in tokens, if known.
    pub(crate) kv_tokens: Option<usize>,
    /// Tokens of the longest prompt, if known: a step need not be larger than all prompts.
    pub(crate) step_tokens: Option<usize>,
}

/// Settles every setting of an engine.
///
/// # Errors
/// More memory asked for than there is, steps too small, or an instruction set that is not here.
pub(crate) fn engine_config(args: &EngineArgs, needs: Needs) -> Result<EngineConfig> {
    let isa = Isa::from_env().map_err(anyhow::Error::msg)?;
    let max_num_seqs =
        args.max_num_seqs.unwrap_or(needs.seqs.min(args.max_num_batched_tokens.unwrap_or(usize::MAX)));
    let least = max_num_seqs.max(16);
    let step = needs.step_tokens.map_or(TOKENS_A_STEP, |n| n.min(TOKENS_A_STEP)).max(least);
    let max_num_batched_tokens = args.max_num_batched_tokens.unwrap_or(step);
    if max_num_batched_tokens < max_num_seqs {
        bail!(
            "--max-num-batched-tokens ({max_num_batched_tokens}) must be at least --max-num-seqs ({max_num_seqs}): \
             every sequence that runs needs a token of each step"
        );
    }
    Ok(EngineConfig {
        weights: weights_as(args.weights),
        memory: memory_limit(args)?,
        threads: args.threads.unwrap_or_else(default_threads),
        isa,
        device: device_choice(args.device),
        max_model_len: args.max_model_len.or(needs.longest),
        max_num_seqs,
        max_num_batched_tokens,
        max_num_queued_reqs: QUEUE,
        prefix_caching: if args.no_enable_prefix_caching { PrefixCaching::Off } else { PrefixCaching::On },
        steps_in_flight: args.steps_in_flight.into(),
        kv_tokens: needs.kv_tokens,
        // What is known to be used is taken at once; a generous limit only as it fills.
        kv_memory: if needs.kv_tokens.is_some() { KvMemory::AtStart } else { KvMemory::AsUsed },
        host_kv_tokens: args.swap_tokens.unwrap_or(0),
        offload: offload(args)?,
        record: args.record.clone(),
    })
}

/// Where weights go that do not fit.
fn offload(args: &EngineArgs) -> Result<Offload> {
    let folder = args.offload_dir.clone().unwrap_or_else(packed_folder);
    let share = args.percent.as_deref().map_or(Ok(WeightShare::Fitting), weight_share)?;
    Ok(Offload { folder: Some(folder), disk: args.disk, share })
}

/// The folder of packed stores, unless a flag names another.
pub(crate) fn packed_folder() -> PathBuf {
    Places::from_env().cache.join("packed")
}

/// What of FlexGen's six shares there is so far: weights on the device and on disk.
fn weight_share(percent: &[u8]) -> Result<WeightShare> {
    let &[device, host, kv, _, hidden, _] = percent else {
        bail!("--percent takes six numbers: weights, KV and activations on the device and on the host");
    };
    if (host, kv, hidden) != (0, 100, 100) {
        bail!(
            "--percent {}: KV and activations stay on the device, and weights on the device or on disk, so far: \
             write --percent {device} 0 100 0 100 0",
            percent.iter().map(u8::to_string).collect::<Vec<_>>().join(" ")
        );
    }
    let parts = u32::from(device) * (Split::WHOLE / 100);
    let split = Split::new(ByTier { device: parts, host: 0, disk: Split::WHOLE - parts })?;
    Ok(WeightShare::Exactly(split))
}

/// What is allowed, or else nine tenths of what is free; what this process holds already counts as free.
fn memory_limit(args: &EngineArgs) -> Result<u64> {
    let free = match args.device {
        DeviceName::Cpu => memory::available_bytes().saturating_add(memory::resident_bytes()),
        DeviceName::Cuda => cuda::Gpu::open(0)?.memory()?.0.saturating_sub(cuda::OWN_BYTES) as u64,
    };
    match args.memory {
        None => Ok(free / 10 * 9),
        Some(asked) if asked <= free => Ok(asked),
        Some(asked) => bail!(
            "--memory {} is more than this device, machine or cgroup has left, {}: ask for less",
            size(&asked),
            size(&free)
        ),
    }
}

fn device_choice(name: DeviceName) -> DeviceChoice {
    match name {
        DeviceName::Cpu => DeviceChoice::Cpu,
        DeviceName::Cuda => DeviceChoice::Cuda,
    }
}

fn weights_as(weights: Weights) -> WeightsAs {
    match weights {
        Weights::Auto => WeightsAs::Stored,
        Weights::Bf16 => WeightsAs::Bf16,
        Weights::F32 => WeightsAs::F32,
        Weights::Int8 => WeightsAs::Int8,
        Weights::Int4 => WeightsAs::Int4,
    }
}
