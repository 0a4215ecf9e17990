//! From the flags as typed to settings with every choice made.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use engine::{
    Blocks, DeviceChoice, EngineConfig, Expected, HostLinears, KvFormat, KvMemory, KvRoom, NoSuchKv, Offload,
    PrefixCaching, WeightShare, default_threads_beside, memory, size,
};
use kernels::Isa;
use model::decoder::WeightsAs;
use model::source::Places;
use policy::pipeline::Overlap;
use policy::sched::Delegate;
use spec::{ByTier, Split};

use crate::args::{DeviceName, EngineArgs, HostWeights, Kv, Percent, ScheduleArgs, Weights};
use crate::console::Misuse;

/// Tokens in a step, unless a flag says otherwise: enough that weights are read rarely, few enough that
/// activations stay small and decodes do not wait long behind a prompt.
const TOKENS_A_STEP: usize = 2048;
/// Sequences at once, unless a flag says otherwise, where more are known to come.
const SEQS: usize = 256;
/// Tokens of a batch where a step has several, unless a flag says otherwise: eight of these need as much memory as a batch of
/// a whole step, and take twice its prompts through one pass over streamed weights.
const TOKENS_A_BATCH: usize = 512;
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
    /// The requests, if known.
    pub(crate) expected: Option<Expected>,
}

impl Needs {
    /// Of so many requests at once, all of these lengths.
    pub(crate) fn of_requests(args: &EngineArgs, requests: usize, input: usize, output: usize) -> Needs {
        let seqs = args.max_num_seqs.unwrap_or(SEQS).min(requests);
        Needs {
            seqs,
            longest: Some(input + output),
            kv_tokens: Some(kv_tokens(seqs, input + output)),
            step_tokens: Some(requests * input),
            expected: Some(Expected { requests, prompt: input, output: Some(output) }),
        }
    }
}

/// KV, in tokens, of so many sequences of this length: blocks are whole.
pub(crate) fn kv_tokens(seqs: usize, length: usize) -> usize {
    seqs * length.next_multiple_of(kernels::attention::BLOCK_TOKENS)
}

/// Settles every setting of an engine.
///
/// # Errors
/// More memory asked for than there is, steps too small, or an instruction set that is not here.
pub(crate) fn engine_config(args: &EngineArgs, needs: Needs) -> Result<EngineConfig> {
    let isa = Isa::from_env().map_err(Misuse)?;
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
    let device = device_choice(args.device);
    let Limits { host: memory, device: device_memory } = limits(args)?;
    Ok(EngineConfig {
        weights: weights_as(args.weights),
        activations: args.activations.into(),
        kv: kv_format(args)?,
        sparse: args.sparse_attention,
        memory,
        threads: args.threads.unwrap_or_else(|| default_threads_beside(device)),
        isa,
        device,
        // Of sequences that are known nobody needs room for longer ones, which flags may allow.
        max_model_len: [args.max_model_len, needs.longest].into_iter().flatten().min(),
        max_num_seqs,
        max_num_batched_tokens,
        max_num_queued_reqs: QUEUE,
        scores_prompts: false,
        prefix_caching: if args.no_enable_prefix_caching { PrefixCaching::Off } else { PrefixCaching::On },
        steps_in_flight: args.steps_in_flight.map(usize::from),
        kv_tokens: needs.kv_tokens,
        kv_room: KvRoom::Needed,
        // What is known to be used is taken at once; a generous limit only as it fills.
        kv_memory: if needs.kv_tokens.is_some() { KvMemory::AtStart } else { KvMemory::AsUsed },
        host_kv_tokens: args.swap_tokens.unwrap_or(0),
        drive_kv_tokens: disk_cache_tokens(args)?,
        offload: offload(args, device_memory)?,
        blocks: blocks(args, needs.expected)?,
        record: args.record.clone(),
        beside_bytes: 0,
        lane_spans: 0,
    })
}

/// # Errors
/// Room for beginnings that nobody would look for.
fn disk_cache_tokens(args: &EngineArgs) -> Result<usize> {
    let tokens = args.disk_cache_tokens.unwrap_or(0);
    if tokens > 0 && args.no_enable_prefix_caching {
        bail!(
            "--disk-cache-tokens keeps beginnings for --enable-prefix-caching: leave out --no-enable-prefix-caching"
        );
    }
    Ok(tokens)
}

/// What was asked of schedules, of KV and of activations, and what is known of the requests.
fn blocks(args: &EngineArgs, expected: Option<Expected>) -> Result<Blocks> {
    let ScheduleArgs { schedule, num_batches, batch_size, attend, no_overlap } = args.schedule;
    let home = |what, pair| args.percent.as_deref().map_or(Ok(Split::RESIDENT), |p| share(p, what, pair));
    // What costs say of `auto` comes later (see `plan::own`).
    let delegate = attend.delegate().unwrap_or(Delegate::Host);
    let (kv, hidden) = (home("KV", 1)?, home("activations", 2)?);
    let num_batches = num_batches.map(usize::from);
    let batch_tokens = args.max_num_batched_tokens.is_none().then_some(TOKENS_A_BATCH);
    let overlap = if no_overlap { Overlap::Nothing } else { Overlap::Lanes };
    let schedule = schedule.schedule();
    Ok(Blocks { schedule, num_batches, batch_size, batch_tokens, expected, kv, hidden, delegate, overlap })
}

/// What the device has, and where weights go that do not fit.
fn offload(args: &EngineArgs, device_memory: Option<u64>) -> Result<Offload> {
    if args.link_gbps.is_some() && args.device == DeviceName::Cuda {
        bail!("--link-gbps rehearses a link on a processor, and --device cuda has a real one: leave it out");
    }
    if let Some(named) = &args.offload_dir {
        // What cannot be made has nothing free either, which would be told as a drive that is full.
        can_be_made(named)
            .with_context(|| format!("--offload-dir {} is no folder that can be made", named.display()))?;
    }
    let folder = args.offload_dir.clone().unwrap_or_else(packed_folder);
    let exactly = |percent: &[Percent]| share(percent, "weights", 0).map(WeightShare::Exactly);
    let share = args.percent.as_deref().map_or(Ok(WeightShare::Fitting), exactly)?;
    Ok(Offload {
        device_memory,
        link: args.link_gbps,
        folder: Some(folder),
        disk: args.disk,
        share,
        linears: match args.host_weights {
            HostWeights::Auto => HostLinears::Cheaper,
            HostWeights::Copied => HostLinears::Device,
            HostWeights::Computed => HostLinears::Host,
        },
    })
}

/// Tried with another folder beside it, which is gone at once: whoever has nothing to put there leaves nothing behind.
fn can_be_made(folder: &Path) -> std::io::Result<()> {
    let path = std::path::absolute(folder)?;
    let there = path.ancestors().find(|path| path.exists()).unwrap_or(&path);
    if there == path && there.is_dir() {
        return Ok(());
    }
    let trial = there.join(format!(".ballast-{}", std::process::id()));
    std::fs::create_dir(&trial)?;
    std::fs::remove_dir(&trial)
}

/// The folder of packed stores, unless a flag names another.
pub(crate) fn packed_folder() -> PathBuf {
    Places::from_env().cache.join("packed")
}

/// One of FlexGen's three pairs: percent on the device and on the host, the rest on the drive.
pub(crate) fn share(percent: &[Percent], what: &str, pair: usize) -> Result<Split> {
    let &[device, host] = &percent[2 * pair..2 * pair + 2] else {
        bail!("--percent takes six numbers: weights, KV and activations on the device and on the host");
    };
    let Some(disk) = Split::WHOLE.checked_sub(device.parts() + host.parts()) else {
        bail!(
            "--percent {}: {device} + {host} percent of the {what} are more than all of them",
            percent.iter().map(Percent::to_string).collect::<Vec<_>>().join(" ")
        );
    };
    Ok(Split::new(ByTier { device: device.parts(), host: host.parts(), disk })?)
}

/// What the process may take on the host: what is allowed, or else nine tenths of what is free; what this process holds
/// already counts as free.
pub(crate) fn memory_limit(args: &EngineArgs) -> Result<u64> {
    within(args.memory, memory::allowed_bytes(), "--memory", "this machine or cgroup")
}

/// Bytes that the process may take.
#[derive(Debug, PartialEq)]
struct Limits {
    host: u64,
    device: Option<u64>,
}

/// What the process may have of the host's memory.
pub(crate) fn host_memory(args: &EngineArgs) -> Result<u64> {
    Ok(limits(args)?.host)
}

/// Of a processor's memory, what is allowed, or else half of what the process may take where it stands for a device with memory of
/// its own.
fn limits(args: &EngineArgs) -> Result<Limits> {
    match args.device {
        DeviceName::Cpu => Ok(Limits { host: memory_limit(args)?, device: args.device_memory }),
        DeviceName::CpuApart => {
            let host = memory_limit(args)?;
            Ok(Limits { host, device: Some(args.device_memory.unwrap_or(host / 2)) })
        }
        DeviceName::Cuda => {
            beside_gpu(args.memory, args.device_memory, memory::allowed_bytes(), cuda::memory()?)
        }
    }
}

/// The device's: what is allowed, or else nine tenths of what is free there. Where that is the host's memory, too, the host has what is
/// left.
fn beside_gpu(host: Option<u64>, device: Option<u64>, allowed: u64, gpu: cuda::Memory) -> Result<Limits> {
    let free = gpu.free_bytes.saturating_sub(gpu.own_bytes) as u64;
    let device = within(device, free, "--device-memory", "this GPU")?;
    let host = if gpu.is_hosts {
        let left = allowed.saturating_sub(device + gpu.own_bytes as u64);
        within(host, left, "--memory", "this machine, whose memory is the GPU's too (see --device-memory),")?
    } else {
        within(host, allowed, "--memory", "this machine or cgroup")?
    };
    Ok(Limits { host, device: Some(device) })
}

fn within(asked: Option<u64>, free: u64, flag: &str, of: &str) -> Result<u64> {
    match asked {
        None => Ok(free / 10 * 9),
        Some(asked) if asked <= free => Ok(asked),
        Some(asked) => {
            bail!("{flag} {} is more than {of} has left, {}: ask for less", size(&asked), size(&free))
        }
    }
}

fn device_choice(name: DeviceName) -> DeviceChoice {
    match name {
        DeviceName::Cpu => DeviceChoice::Cpu,
        DeviceName::CpuApart => DeviceChoice::Virtual,
        DeviceName::Cuda => DeviceChoice::Cuda,
    }
}

/// How KV is stored, as activations are or in a format of its own.
fn kv_format(args: &EngineArgs) -> Result<KvFormat> {
    let wide = args.weights == Weights::F32;
    match args.kv {
        Kv::Auto => Ok(KvFormat::AsActivations),
        Kv::F16 | Kv::Fp8 | Kv::Int4 if wide => Err(NoSuchKv::WithF32.into()),
        Kv::F16 => Ok(KvFormat::F16),
        Kv::Fp8 => Ok(KvFormat::Fp8),
        Kv::Int4 => Ok(KvFormat::Int4),
        Kv::Bf16 if wide => {
            bail!("--kv bf16: f32 weights keep KV in f32; leave --kv out, or choose --weights bf16")
        }
        Kv::F32 if !wide => bail!("--kv f32: KV is kept in f32 only beside f32 weights; add --weights f32"),
        Kv::Bf16 | Kv::F32 => Ok(KvFormat::AsActivations),
    }
}

fn weights_as(weights: Weights) -> WeightsAs {
    match weights {
        Weights::Auto => WeightsAs::Stored,
        Weights::Bf16 => WeightsAs::Bf16,
        Weights::Bf12 => WeightsAs::Bf12,
        Weights::F32 => WeightsAs::F32,
        Weights::Int8 => WeightsAs::Int8,
        Weights::Int4 => WeightsAs::Int4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_a_gpu_shares_with_its_host_is_counted_once() {
        let gpu = |is_hosts| cuda::Memory { free_bytes: 1100, own_bytes: 100, is_hosts };
        let limits = |host, device, is_hosts| beside_gpu(host, device, 1200, gpu(is_hosts)).unwrap();
        assert_eq!(limits(None, None, false), Limits { host: 1080, device: Some(900) });
        // Of 1200 the GPU has 900 and 100 besides.
        assert_eq!(limits(None, None, true), Limits { host: 180, device: Some(900) });
        assert_eq!(limits(Some(800), Some(300), true), Limits { host: 800, device: Some(300) });
        let why = beside_gpu(Some(801), Some(300), 1200, gpu(true)).unwrap_err().to_string();
        assert!(why.contains("--memory") && why.contains("--device-memory"), "{why}");
        assert_eq!(limits(Some(801), Some(300), false).host, 801);
    }
}
