//! What `ballast bench` is told.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{EngineArgs, at_least_one, parse_bytes, threads};

#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// Each kernel's speed, beside the machine's own ceilings measured in the same minute.
    Kernels(BenchKernelsArgs),
    /// Many requests at once: tokens per second.
    Throughput(ThroughputArgs),
    /// One batch: time to first token and decode speed.
    Latency(LatencyArgs),
    /// The drive's rate, read as streamed weights are: the ceiling of a model larger than memory.
    Disk(DiskArgs),
}

#[derive(Args)]
pub(crate) struct DiskArgs {
    /// A folder on the drive to measure; a file is made there and removed [default: that of --offload-dir].
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dir: Option<PathBuf>,
    /// How much is read.
    #[arg(long, value_parser = parse_bytes, default_value = "2GiB")]
    pub(crate) size: u64,
    /// Repetitions; the median is reported.
    #[arg(long, default_value_t = 3, value_parser = at_least_one)]
    pub(crate) reps: usize,
    /// Write the figures here.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct BenchKernelsArgs {
    /// Only kernels whose name contains this.
    #[arg(long)]
    pub(crate) only: Option<String>,
    /// Threads to use [default: the cores that this process may use].
    #[arg(long, env = "BALLAST_THREADS", value_parser = threads)]
    pub(crate) threads: Option<usize>,
    /// Write the figures here.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct ThroughputArgs {
    /// A folder, a .gguf file, a hub id (org/name), or `smollm2`.
    pub(crate) model: String,
    /// Requests handed over at once.
    #[arg(long, default_value_t = 64, value_parser = at_least_one)]
    pub(crate) num_prompts: usize,
    /// Tokens of each prompt (random ones, different for every request).
    #[arg(long, default_value_t = 512, value_parser = at_least_one)]
    pub(crate) input_len: usize,
    /// Tokens that each request generates (end-of-text is ignored).
    #[arg(long, default_value_t = 32, value_parser = at_least_one)]
    pub(crate) output_len: usize,
    #[command(flatten)]
    pub(crate) common: BenchArgs,
}

#[derive(Args)]
pub(crate) struct LatencyArgs {
    /// A folder, a .gguf file, a hub id (org/name), or `smollm2`.
    pub(crate) model: String,
    /// Sequences decoded together.
    #[arg(long, default_value_t = 1, value_parser = at_least_one)]
    pub(crate) batch: usize,
    /// Tokens of each prompt.
    #[arg(long, default_value_t = 128, value_parser = at_least_one)]
    pub(crate) input_len: usize,
    /// Tokens that each sequence generates.
    #[arg(long, default_value_t = 65, value_parser = at_least_one)]
    pub(crate) output_len: usize,
    #[command(flatten)]
    pub(crate) common: BenchArgs,
}

#[derive(Args)]
pub(crate) struct BenchArgs {
    /// Timed repetitions; the median is reported.
    #[arg(long, default_value_t = 3, value_parser = at_least_one)]
    pub(crate) reps: usize,
    /// Write the figures here.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// Which device computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DeviceName {
    /// The processor, with a share of the host's memory.
    #[default]
    Cpu,
    /// The first NVIDIA GPU, through its driver.
    Cuda,
}
