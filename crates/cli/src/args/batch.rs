//! What `ballast batch` is told.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use engine::job::{Existing, OutputOrder, Retry, Shard};

use crate::lanes::LanesArgs;

use super::amounts::whole_seconds;
use super::serve::model_name;
use super::{EngineArgs, ModelArg, ThoughtsArgs, at_least_one};

/// What is said of a word that is not the model.
pub(crate) const BATCH_WORDS: &str =
    "files are named by flags, `batch MODEL -i IN.jsonl -o OUT.jsonl`, and `batch merge` has none of them";

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct BatchArgs {
    #[command(subcommand)]
    pub(crate) command: Option<BatchCommand>,
    #[command(flatten)]
    pub(crate) job: BatchJobArgs,
}

#[derive(Subcommand)]
pub(crate) enum BatchCommand {
    /// Make one output of those of all shards, in the order of the input.
    Merge(MergeArgs),
}

#[derive(Args)]
pub(crate) struct MergeArgs {
    /// The outputs of the shards; their states lie beside them.
    #[arg(required = true, value_name = "SHARD")]
    pub(crate) shards: Vec<PathBuf>,
    /// Where all answers go.
    #[arg(long = "output-file", short = 'o', value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Where errors go, instead of among the answers.
    #[arg(long, value_name = "FILE")]
    pub(crate) error_file: Option<PathBuf>,
    /// Replace files that exist.
    #[arg(long)]
    pub(crate) overwrite: bool,
}

/// The flags of a job. What is optional here only so that `merge` need not have it is required.
#[derive(Args)]
pub(crate) struct BatchJobArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Requests, one JSON object a line; `-` is standard input.
    #[arg(long = "input-file", short = 'i', value_name = "FILE", required = true)]
    input: Option<PathBuf>,
    /// Where the answers go, one JSON object a line; `-` is standard output, which cannot be gone on from.
    #[arg(long = "output-file", short = 'o', value_name = "FILE", required = true)]
    output: Option<PathBuf>,
    #[command(flatten)]
    flags: BatchFlags,
}

#[derive(Args)]
pub(crate) struct BatchFlags {
    /// Where errors go, instead of among the answers.
    #[arg(long, value_name = "FILE")]
    pub(crate) error_file: Option<PathBuf>,
    /// Begin anew, and replace the output if it exists.
    #[arg(long)]
    overwrite: bool,
    /// The order of the answers.
    #[arg(long, value_enum, default_value_t = Order::Input)]
    pub(crate) output_order: Order,
    /// Lines that are no requests: answer them with errors, or end before anything is loaded.
    #[arg(long, value_enum, default_value_t = OnInvalid::Record)]
    pub(crate) on_invalid: OnInvalid,
    /// Ask again what an earlier run answered with a status of 500 or more.
    #[arg(long)]
    retry_errors: bool,
    /// Answer only every N-th line, from line i on (from 0): one part of a job for N machines.
    #[arg(long, value_name = "i/N", default_value_t = Shard::WHOLE)]
    pub(crate) shard: Shard,
    /// What requests may call the model; several names are possible [default: MODEL and its last part].
    #[arg(long, num_args = 1.., value_name = "NAME", value_parser = model_name)]
    pub(crate) served_model_name: Vec<String>,
    /// Requests handed to the engine at once.
    #[arg(long, default_value_t = 1024, value_parser = at_least_one)]
    pub(crate) max_inflight: usize,
    /// Seconds that an answer may wait for the disk (256 answers at most do).
    #[arg(long, default_value_t = 5, value_name = "SECONDS", value_parser = whole_seconds)]
    pub(crate) fsync_interval: u64,
    /// Seconds that answers which have begun may take after SIGTERM or Ctrl-C; a second one ends at once.
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = whole_seconds)]
    pub(crate) drain_timeout: u64,
    /// How progress is shown.
    #[arg(long, value_enum, default_value_t = ProgressKind::Auto)]
    pub(crate) progress: ProgressKind,
    /// The time that answers carry [default: that of the job's beginning].
    #[arg(long, value_name = "UNIX_SECONDS")]
    pub(crate) created: Option<u64>,
    #[command(flatten)]
    pub(crate) lanes: LanesArgs,
    #[command(flatten)]
    pub(crate) thoughts: ThoughtsArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// A job as asked for.
pub(crate) struct BatchJob {
    pub(crate) model: String,
    pub(crate) input: PathBuf,
    pub(crate) output: PathBuf,
    pub(crate) flags: BatchFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// That of the requests.
    Input,
    /// As they are done.
    Completion,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnInvalid {
    /// End, and name all of them.
    Fail,
    /// Answer them with errors.
    Record,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressKind {
    /// A bar on a terminal, lines otherwise.
    Auto,
    /// A bar.
    Bar,
    /// A line every few seconds.
    Lines,
    /// The same as JSON.
    Json,
    /// Nothing until the end.
    None,
}

impl BatchJobArgs {
    /// The flags, with what clap has made sure of.
    pub(crate) fn settled(self) -> Result<BatchJob> {
        Ok(BatchJob {
            model: self.model.name().context("MODEL is required")?.to_string(),
            input: self.input.context("--input-file is required")?,
            output: self.output.context("--output-file is required")?,
            flags: self.flags,
        })
    }
}

impl BatchFlags {
    pub(crate) fn existing(&self) -> Existing {
        if self.overwrite { Existing::Replace } else { Existing::Continue }
    }

    pub(crate) fn retry(&self) -> Retry {
        if self.retry_errors { Retry::ServerErrors } else { Retry::Nothing }
    }

    pub(crate) fn order(&self) -> OutputOrder {
        match self.output_order {
            Order::Input => OutputOrder::Input,
            Order::Completion => OutputOrder::Completion,
        }
    }
}
