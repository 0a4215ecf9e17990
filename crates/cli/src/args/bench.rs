//! What `ballast bench` is told.

use std::path::PathBuf;

use crate::lanes::LanesArgs;
use crate::timed::is_wanted;
use clap::{Args, Subcommand};
use kernels::table::{Case, conformance, random};

use super::{BenchServeArgs, EngineArgs, LoadFormat, at_least_one, parse_bytes, threads};

/// Cases of shapes that `ballast check` draws.
const RANDOM: usize = 60;

#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// Each kernel's speed, beside the machine's own ceilings measured in the same minute.
    Kernels(CasesArgs),
    /// Many requests at once: tokens per second.
    Throughput(ThroughputArgs),
    /// Load on an OpenAI-compatible server, this one or another: throughput, latencies, goodput.
    Serve(Box<BenchServeArgs>),
    /// One batch: time to first token and decode speed.
    Latency(LatencyArgs),
    /// Long prompts that come back from the drive, beside the same prompts computed: time to first token.
    Prefix(PrefixArgs),
    /// Predicted against measured throughput over many budgets and batches: plans are written before they are run.
    Plan(BenchPlanArgs),
    /// What policy search, overlap, compute on the host, the drive and blocks bring, each beside what the timeline says.
    Ablation(AblationArgs),
    /// The drive's rate, read as streamed weights are: the ceiling of a model larger than memory.
    Disk(DiskArgs),
}

#[derive(Args)]
pub(crate) struct BenchPlanArgs {
    /// Models with their weights [default: smollm2, and a wider model whose weights are made up].
    pub(crate) models: Vec<String>,
    /// Folders with a config.json, whose weights are made up.
    #[arg(long, value_name = "FOLDER", num_args = 1..)]
    pub(crate) dummy: Vec<String>,
    /// Timed repetitions of each setting; the median is compared.
    #[arg(long, default_value_t = 3, value_parser = at_least_one)]
    pub(crate) reps: usize,
    /// Where weights that do not fit are kept, packed [default: a cache folder].
    #[arg(long, value_name = "FOLDER")]
    pub(crate) offload_dir: Option<PathBuf>,
    /// Threads to compute with [default: the cores that this process may use].
    #[arg(long, value_parser = threads)]
    pub(crate) threads: Option<usize>,
    /// Write predictions here, then what was measured beside them.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: PathBuf,
}

#[derive(Args)]
pub(crate) struct AblationArgs {
    /// A folder, a .gguf file, a hub id (org/name, org/name:Q4_K_M), or `smollm2`.
    pub(crate) model: String,
    /// Where weights come from; `dummy` makes random ones from the config alone.
    #[arg(long, value_enum, default_value_t = LoadFormat::Auto)]
    pub(crate) load_format: LoadFormat,
    /// Memory of the device [default: room for a third of the layers].
    #[arg(long, value_parser = parse_bytes)]
    pub(crate) device_memory: Option<u64>,
    /// Memory of the process, the device's included [default: room for two fifths more].
    #[arg(long, value_parser = parse_bytes)]
    pub(crate) memory: Option<u64>,
    /// Requests.
    #[arg(long, default_value_t = 64, value_parser = at_least_one)]
    pub(crate) num_prompts: usize,
    /// Tokens of each prompt.
    #[arg(long, default_value_t = 128, value_parser = at_least_one)]
    pub(crate) input_len: usize,
    /// Tokens that each generates.
    #[arg(long, default_value_t = 16, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(2..))]
    pub(crate) output_len: usize,
    /// Timed repetitions; the median is compared.
    #[arg(long, default_value_t = 3, value_parser = at_least_one)]
    pub(crate) reps: usize,
    /// Where weights that do not fit are kept, packed [default: a cache folder].
    #[arg(long, value_name = "FOLDER")]
    pub(crate) offload_dir: Option<PathBuf>,
    /// Write predictions here, then what was measured beside them.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: PathBuf,
}

#[derive(Args)]
pub(crate) struct DiskArgs {
    /// A folder on the drive to measure; a file is made there and removed [default: the cache folder, where commands
    /// without --offload-dir keep what does not fit].
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dir: Option<PathBuf>,
    /// How much is read.
    #[arg(long, value_parser = parse_bytes, default_value = "2GiB")]
    pub(crate) size: u64,
    /// Repetitions; the median is reported.
    #[arg(long, default_value_t = 3, value_parser = at_least_one)]
    pub(crate) reps: usize,
    /// Write the figures here (-: standard output).
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// What of the kernels' table is checked or timed.
#[derive(Args)]
pub(crate) struct CasesArgs {
    /// Whose kernels.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) device: Hardware,
    /// Only cases whose name contains this.
    #[arg(long)]
    pub(crate) only: Option<String>,
    /// Threads to use [default: the cores that this process may use].
    #[arg(long, value_parser = threads)]
    pub(crate) threads: Option<usize>,
    /// Write the figures here (-: standard output).
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) cases: CasesArgs,
    /// Draws the shapes of the cases that are not in the table.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

impl CheckArgs {
    /// The table's cases, and those that are drawn.
    pub(crate) fn chosen(&self) -> impl Iterator<Item = Case> {
        let all = conformance().into_iter().chain(random(self.seed, RANDOM));
        all.filter(|case| is_wanted(case, self.cases.only.as_deref()))
    }
}

#[derive(Args)]
pub(crate) struct ThroughputArgs {
    /// A folder, a .gguf file, a hub id (org/name, org/name:Q4_K_M), or `smollm2`.
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
    /// A folder, a .gguf file, a hub id (org/name, org/name:Q4_K_M), or `smollm2`.
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
pub(crate) struct PrefixArgs {
    /// A folder, a .gguf file, a hub id (org/name, org/name:Q4_K_M), or `smollm2`.
    pub(crate) model: String,
    /// Prompts that take turns; the device has room for two of them, and without --disk-cache-tokens the drive for all.
    #[arg(long, default_value_t = 4, value_parser = at_least_one)]
    pub(crate) num_prompts: usize,
    /// Tokens of each prompt.
    #[arg(long, default_value_t = 2048, value_parser = at_least_one)]
    pub(crate) input_len: usize,
    #[command(flatten)]
    pub(crate) common: BenchArgs,
}

#[derive(Args)]
pub(crate) struct BenchArgs {
    /// Timed repetitions; the median is reported.
    #[arg(long, default_value_t = 3, value_parser = at_least_one)]
    pub(crate) reps: usize,
    /// Write the figures here (-: standard output).
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) lanes: LanesArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// Whose kernels these are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Hardware {
    /// The processor.
    #[default]
    Cpu,
    /// The first NVIDIA GPU, through its driver.
    Cuda,
}

/// Which device computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DeviceName {
    /// The processor, with a share of the host's memory.
    #[default]
    Cpu,
    /// The processor in the place of a device whose memory is apart from the host's.
    #[value(name = "cpu*1")]
    CpuApart,
    /// The first NVIDIA GPU, through its driver.
    Cuda,
}
