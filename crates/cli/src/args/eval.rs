//! What `ballast eval` is told.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::EngineArgs;
use super::amounts::at_least_one;
use crate::lanes::LanesArgs;

#[derive(Subcommand)]
pub(crate) enum EvalCommand {
    /// How surprised the model is by a text: exp of the mean negative log-probability of its tokens.
    Perplexity(PerplexityArgs),
    /// How often the model knows the last word of a passage (LAMBADA's form).
    ///
    /// Passages are cut from any text: sentences, each up to a full stop, question or exclamation mark or the end of its paragraph,
    /// until there are 50 words of context, and one more, whose last word has four letters at the least.
    NextWord(NextWordArgs),
}

#[derive(Args)]
pub(crate) struct PerplexityArgs {
    /// Tokens of a window.
    #[arg(long, default_value_t = 1024, value_parser = at_least_one)]
    pub(crate) context: usize,
    /// Tokens from one window to the next; those before are context [default: 512, or --context if that is less].
    #[arg(long, value_parser = at_least_one)]
    pub(crate) stride: Option<usize>,
    #[command(flatten)]
    pub(crate) common: EvalArgs,
}

#[derive(Args)]
pub(crate) struct NextWordArgs {
    #[command(flatten)]
    pub(crate) common: EvalArgs,
}

#[derive(Args)]
pub(crate) struct EvalArgs {
    /// A folder, a .gguf file, a hub id (org/name, org/name:Q4_K_M), or `smollm2`.
    pub(crate) model: String,
    /// The text to read (-: standard input) [default: the beginning of Moby-Dick, which comes along].
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Round the layers' weights to so many bits in groups of 64 and compute in bf16: what such a format would cost.
    #[arg(long, value_name = "BITS", value_parser = clap::value_parser!(u8).range(1..=8), conflicts_with = "weights")]
    pub(crate) round_weights: Option<u8>,
    /// Which 64 weights of a matrix are a group of --round-weights.
    #[arg(long, value_name = "AXIS", value_enum, default_value_t = RoundAlong::Inputs, requires = "round_weights")]
    pub(crate) round_along: RoundAlong,
    /// Write the figures here (-: standard output).
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) lanes: LanesArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// The axis of `--round-weights`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoundAlong {
    /// Of one output, for 64 inputs: as --weights int4 has it.
    Inputs,
    /// Of one input, for 64 outputs: as FlexGen has it.
    Outputs,
}
