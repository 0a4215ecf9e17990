//! What `ballast plan` and `ballast simulate` are told.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use sim::flexgen::{Mechanism, TERMS};

use super::{EngineArgs, Percent, at_least_one, parse_bytes, percent, positive};

#[derive(Args)]
pub(crate) struct ProfileArgs {
    /// A folder, a .gguf file, a hub id (org/name, org/name:Q4_K_M), or `smollm2`, the default.
    pub(crate) model: Option<String>,
    /// Measure again what drifts of a profile that there is, in some seconds, and say by how much it did.
    #[arg(long)]
    pub(crate) refresh: bool,
    /// Write the profile here too.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// What is planned or simulated, by published names.
#[derive(Args)]
pub(crate) struct ScenarioArgs {
    /// The machine of a published model: t4, that of FlexGen, is the only one so far [default: t4].
    #[arg(long)]
    pub(crate) hardware: Option<String>,
    /// Tokens of each prompt [default: 512].
    #[arg(long, visible_alias = "input-len", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) prompt_len: Option<u32>,
    /// Tokens generated for each [default: 32].
    #[arg(long, visible_alias = "output-len", value_parser = clap::value_parser!(u32).range(2..=1 << 20))]
    pub(crate) gen_len: Option<u32>,
    /// Machines in a pipeline [default: 1].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) devices: Option<u32>,
    /// Weights in 4-bit groups of 64.
    #[arg(long)]
    pub(crate) compress_weight: bool,
    /// KV cache in 4-bit groups of 64.
    #[arg(long)]
    pub(crate) compress_cache: bool,
    /// Attend on the device only.
    #[arg(long)]
    pub(crate) no_host_attention: bool,
    /// Write the figures here (-: standard output).
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl ScenarioArgs {
    /// The machine's name.
    pub(crate) fn hardware(&self) -> &str {
        self.hardware.as_deref().unwrap_or("t4")
    }

    /// Tokens of each prompt; 512 as in the papers' tables.
    pub(crate) fn prompt_len(&self) -> u32 {
        self.prompt_len.unwrap_or(512)
    }

    /// Tokens generated for each; 32 as in the papers' tables.
    pub(crate) fn gen_len(&self) -> u32 {
        self.gen_len.unwrap_or(32)
    }

    /// Machines in a pipeline.
    pub(crate) fn devices(&self) -> u32 {
        self.devices.unwrap_or(1)
    }
}

/// Sequences of a batch, and batches of a block, that published models are simulated with.
pub(crate) const MOST_SEQUENCES: u32 = 4096;
pub(crate) const MOST_BATCHES: u32 = 256;

#[derive(Args)]
pub(crate) struct FlexgenArgs {
    /// A published model such as opt-30b [default: the paper's tables].
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// Sequences of a batch; with --num-batches [default: planned].
    #[arg(long, requires = "num_batches", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_SEQUENCES)))]
    pub(crate) batch_size: Option<u32>,
    /// Batches of a block.
    #[arg(long, requires = "batch_size", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_BATCHES)))]
    pub(crate) num_batches: Option<u32>,
    /// Percent of weights, KV and activations on device and host, the rest on the drive [default: planned].
    #[arg(long, num_args = 6, value_names = ["WG", "WC", "CG", "CC", "HG", "HC"], requires = "batch_size", requires = "model", value_parser = percent)]
    pub(crate) percent: Option<Vec<Percent>>,
    /// One thing at a time.
    #[arg(long)]
    pub(crate) no_overlap: bool,
    /// Whose runtime: FlexGen's as released, by a model of its loop; or Ballast's, whose real scheduler and programs run in
    /// virtual time.
    #[arg(long, value_enum, default_value_t = Runtime::Flexgen)]
    pub(crate) mechanism: Runtime,
    /// Switch one term of that runtime to another side, as in `--term order=buffers`; may be given several times.
    #[arg(long, value_name = "NAME=SIDE", long_help = terms(), value_parser = term)]
    pub(crate) term: Vec<(String, String)>,
    /// Whether the host's weights are pinned; auto: where they take at most a third of its memory.
    #[arg(long, value_enum)]
    pub(crate) pin_weight: Option<PinWeight>,
    /// Draw throughput against latency (figure 1) here.
    #[arg(long, value_name = "FILE.svg", conflicts_with = "model")]
    pub(crate) curves: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) scenario: ScenarioArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Runtime {
    /// Whole tensors, barriers, pageable copies, passes of dequantisation.
    Flexgen,
    /// Slices, dependencies, pinned pools, fused kernels, the diagonal schedule.
    Ballast,
}

/// Whether weights on the host are pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PinWeight {
    /// Where they take at most a third of its memory.
    Auto,
    /// They are.
    On,
    /// They are not.
    Off,
}

/// `--term`, checked against the terms that there are.
fn term(text: &str) -> Result<(String, String), String> {
    let (name, side) = text.split_once('=').ok_or("write it as NAME=SIDE, such as order=buffers")?;
    Mechanism::FLEXGEN.with(name, side).map_err(|unknown| unknown.to_string())?;
    Ok((name.into(), side.into()))
}

/// What `--term` can switch, for its help.
fn terms() -> String {
    let mut told =
        String::from("Switch one term of that runtime to another side; may be given several times:");
    for term in &TERMS {
        for side in term.sides {
            told += &format!("\n  {}={}: {}", term.name, side.name, side.about);
        }
    }
    told
}

#[derive(Args)]
pub(crate) struct PlanArgs {
    /// A folder, a .gguf file or `smollm2`, planned for this machine; or a published model such as opt-30b, planned
    /// for --hardware.
    pub(crate) model: String,
    /// Requests that are worked through, of a model that is here [default: 64].
    #[arg(long, value_parser = at_least_one)]
    pub(crate) num_prompts: Option<usize>,
    /// The longest that any request may take from its first step to its last token, seconds.
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub(crate) max_latency: Option<f64>,
    /// What the machine draws, for tokens per dollar.
    #[arg(long, requires = "kwh_price", value_parser = positive)]
    pub(crate) watts: Option<f64>,
    /// Price of a kilowatt-hour.
    #[arg(long, requires = "watts", value_parser = positive)]
    pub(crate) kwh_price: Option<f64>,
    /// Price of an hour of the machine.
    #[arg(long, value_parser = positive)]
    pub(crate) price_per_hour: Option<f64>,
    /// Draw throughput against latency here.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) curve: Option<PathBuf>,
    /// Write the plan here as flags in TOML, for `--config` of the commands that it is --for.
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) emit_config: Option<PathBuf>,
    /// What will run a model that is here: its process is part of --memory.
    #[arg(long = "for", value_enum, value_name = "COMMAND", default_value_t = PlannedFor::Batch)]
    pub(crate) planned_for: PlannedFor,
    #[command(flatten)]
    pub(crate) scenario: ScenarioArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// Commands whose processes are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlannedFor {
    /// Batch, run and bench: the engine and the model's tokenizer.
    Batch,
    /// The server: its connections too, as many as it takes unless a flag says otherwise.
    Serve,
}

#[derive(Args)]
pub(crate) struct SimulateBlockArgs {
    /// A published model, for its sizes.
    #[arg(long, default_value = "opt-30b")]
    pub(crate) model: String,
    /// A preset machine.
    #[arg(long, default_value = "t4")]
    pub(crate) hardware: String,
    /// Tokens of each prompt.
    #[arg(long, default_value_t = 32, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..65536))]
    pub(crate) prompt_len: u32,
    /// Tokens that each request generates.
    #[arg(long, default_value_t = 256, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..65536))]
    pub(crate) gen_len: u32,
    /// Memory for KV, the same for both.
    #[arg(long, default_value = "32GiB", value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) kv_memory: u64,
    /// Sequences in a batch; a step has as many batches as it needs.
    #[arg(long, default_value_t = 32, value_parser = at_least_one)]
    pub(crate) batch_size: usize,
    /// Write the figures here (-: standard output).
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write what each lane does in one step here: .svg, .json or .trace.json (Chrome's trace events).
    #[arg(long, value_name = "FILE")]
    pub(crate) lanes: Option<PathBuf>,
}
