//! What `ballast serve` is told.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use model::sampling::MAX_LOGPROBS;

use super::amounts::{at_least_one, parse_bytes, parse_count, seconds, whole_seconds};
use super::{EngineArgs, ModelArg, ThoughtsArgs};
use crate::lanes::LanesArgs;

#[derive(Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    /// The address to listen on, or a name of it; 0.0.0.0 lets the whole network in.
    #[arg(long, default_value = "127.0.0.1", help_heading = "Server")]
    pub(crate) host: String,
    /// The port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 8000, help_heading = "Server")]
    pub(crate) port: u16,
    /// What requests call the model; several names are possible [default: MODEL, its whole name, and the last part of that].
    #[arg(long, num_args = 1.., value_name = "NAME", value_parser = model_name, help_heading = "Server")]
    pub(crate) served_model_name: Vec<String>,
    /// A key of which clients must show one (all routes but /health, /ready and the page); may be given several times.
    #[arg(long, value_name = "KEY", help_heading = "Server")]
    pub(crate) api_key: Vec<String>,
    /// A file of such keys, one a line (lines that begin with # are passed over); SIGHUP reads it anew.
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Answer /metrics to whoever has no key, too: for those that look at all servers of a cluster.
    #[arg(long, help_heading = "Server")]
    pub(crate) open_metrics: bool,
    /// Add `timings` to answers: how long they waited, and how long prompts and tokens took, as llama-server tells it.
    #[arg(long, help_heading = "Server")]
    pub(crate) timings: bool,
    /// Log-probabilities per token that a request may ask for; -1 for as many as there are tokens.
    #[arg(long, default_value_t = i64::from(MAX_LOGPROBS), value_parser = clap::value_parser!(i64).range(-1..=i64::from(u32::MAX)),
          allow_negative_numbers = true, help_heading = "Server")]
    pub(crate) max_logprobs: i64,
    /// Let conversations bring the chat template that they are rendered with, within the limits of all templates.
    #[arg(long, help_heading = "Server")]
    pub(crate) trust_request_chat_template: bool,
    /// Connections that there may be; more are answered 503 and closed (of hundreds at once, some just closed), unless they
    /// ask for /health, /ready or /metrics. Their buffers are part of --memory [default: 2048, or as many as an eighth of
    /// --memory has room for].
    #[arg(long, value_parser = parse_count, help_heading = "Server")]
    pub(crate) max_connections: Option<usize>,
    /// Sequences that may wait for the first of their tokens; more are answered 503.
    #[arg(long, default_value_t = 2048, value_parser = parse_count, help_heading = "Server")]
    pub(crate) max_num_queued_reqs: usize,
    /// Prompt tokens that those may have together; more are answered 503. They are part of --memory [default: 4194304, or
    /// fewer where --memory is small].
    #[arg(long, value_parser = parse_count, help_heading = "Server")]
    pub(crate) max_num_queued_tokens: Option<usize>,
    /// A directory for /v1/files and /v1/batches, which are not offered without it; batches go on after a restart.
    #[arg(long, value_name = "DIR", help_heading = "Server")]
    pub(crate) spool_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) spool: SpoolArgs,
    /// Seconds that a request may take; more are answered 408 [default: as many as it needs].
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = "Server")]
    pub(crate) request_timeout: Option<Duration>,
    /// Seconds that a request may wait for its first step; more are answered 503 [default: as many as it needs].
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = "Server")]
    pub(crate) queue_timeout: Option<Duration>,
    /// Memory for KV, such as 4GiB [default: 512 tokens for each of --max-num-seqs, or one longest sequence].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Server")]
    pub(crate) kv_cache_memory_bytes: Option<u64>,
    /// Seconds that requests under way may go on after SIGTERM or Ctrl-C.
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = whole_seconds, help_heading = "Server")]
    pub(crate) shutdown_timeout: u64,
    /// How the log on standard error looks; prompts, answers and keys are never in it.
    #[arg(long, value_enum, default_value_t = LogFormatName::Text, help_heading = "Server")]
    pub(crate) log_format: LogFormatName,
    /// What is told: every request from info on, those that only look from debug on.
    #[arg(long, value_enum, default_value_t = LogLevelName::Info, help_heading = "Server")]
    pub(crate) log_level: LogLevelName,
    #[command(flatten)]
    pub(crate) lanes: LanesArgs,
    #[command(flatten)]
    pub(crate) thoughts: ThoughtsArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// What a model may be called.
pub(super) fn model_name(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("a model's name must not be empty".into()) } else { Ok(text.into()) }
}

/// How much clients may leave in the spool directory, and for how long.
#[derive(Args)]
pub(crate) struct SpoolArgs {
    /// Bytes that a file of /v1/files may have.
    #[arg(long, default_value = "512MiB", value_name = "BYTES", value_parser = parse_bytes, help_heading = "Server")]
    pub(crate) max_file_size: u64,
    /// Bytes that all files may have together, answers of batches among them; more are answered 507.
    #[arg(long, default_value = "32GiB", value_name = "BYTES", value_parser = parse_bytes, help_heading = "Server")]
    pub(crate) spool_max_bytes: u64,
    /// Files that there may be; more are answered 507.
    #[arg(long, default_value_t = 10_000, value_parser = at_least_one, help_heading = "Server")]
    pub(crate) spool_max_files: usize,
    /// Batches that are known: of more, the one that ended first is forgotten; where none has ended, a new one is answered
    /// 507.
    #[arg(long, default_value_t = 1000, value_parser = at_least_one, help_heading = "Server")]
    pub(crate) spool_max_batches: usize,
    /// Seconds that files are kept, and what is known of a batch after its end [default: 30 days].
    #[arg(long, default_value = "2592000", value_name = "SECONDS", value_parser = seconds, hide_default_value = true,
          help_heading = "Server")]
    pub(crate) spool_keep: Duration,
    /// Seconds that a batch may take; lines without an answer by then are errors, and the batch is expired [default: a day].
    #[arg(long, default_value = "86400", value_name = "SECONDS", value_parser = seconds, hide_default_value = true,
          help_heading = "Server")]
    pub(crate) batch_window: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormatName {
    /// Time, level, event and fields; what is said to people stands alone.
    Text,
    /// An object a line.
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevelName {
    /// What is broken.
    Error,
    /// What may be.
    Warn,
    /// Requests, beginnings and ends.
    Info,
    /// Requests that only look, too.
    Debug,
}
