//! `ballast`: runs language models larger than the memory they are given.

mod answer;
mod args;
mod batch;
mod bench;
mod beside_the_point;
mod chat;
mod check;
mod check_cuda;
mod clock;
mod console;
mod cuda_timing;
mod display;
mod documents;
mod eval;
mod flexgen;
mod interrupts;
mod keyboard;
mod lanes;
mod layers;
mod loaded;
mod logprobs;
mod output_file;
mod paper_tables;
mod plan;
mod profile;
mod replay;
mod resolve;
mod run;
mod scenario;
mod serve;
mod simulate_block;
mod slow;
mod stop;
mod stores;
mod timed;
mod wanted;

use std::any::Any;
use std::panic::{catch_unwind, resume_unwind, set_hook, take_hook};
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::error::{ContextKind, ErrorKind};
use clap::{CommandFactory, Parser};

use args::{BenchCommand, Cli, Command, EvalCommand, SimulateCommand};
use console::Misuse;
use layers::{layered, leaf};

fn main() -> ExitCode {
    quiet_where_guarded();
    #[cfg(unix)]
    kernels::drive::outlive_limits();
    let result = catch_unwind(|| settled().and_then(|cli| dispatch(cli.command))).unwrap_or_else(lost_device);
    result.unwrap_or_else(|error| {
        let code = console::exit_code(&error);
        if code != ExitCode::SUCCESS {
            console::note!("ballast: {}", console::told(&error));
        }
        code
    })
}

/// Panics that become errors are told as errors alone.
fn quiet_where_guarded() {
    let usual = take_hook();
    set_hook(Box::new(move |info| {
        if !model::guard::is_guarded() {
            usual(info);
        }
    }));
}

/// What is told of a device that failed at work where no engine runs that would tell of it. Other panics have told of themselves.
fn lost_device(payload: Box<dyn Any + Send>) -> Result<ExitCode> {
    match payload.downcast::<cuda::Lost>() {
        Ok(lost) => Err(anyhow!(lost.0)),
        Err(panic) => resume_unwind(panic),
    }
}

/// The command line, with what the environment and a configuration file add to it.
fn settled() -> Result<Cli> {
    let typed: Vec<_> = std::env::args_os().collect();
    // Help is there even where a file or a variable is wrong.
    if let Err(asked) = Cli::try_parse_from(&typed)
        && matches!(asked.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
    {
        asked.exit();
    }
    let layered = layered(&Cli::command(), typed, &|name| std::env::var_os(name))?;
    Cli::try_parse_from(&layered.argv).map_err(|mut error| {
        let named = [ContextKind::InvalidArg, ContextKind::InvalidSubcommand].map(|kind| error.get(kind));
        let of = named.into_iter().flatten().next().map(ToString::to_string).unwrap_or_default();
        // What the person did not type needs to be found.
        let meant = || {
            let root = Cli::command();
            let (path, command, _) = leaf(&root, &layered.argv);
            // One command alone has commands and words of its own.
            let is_word = error.kind() == ErrorKind::ArgumentConflict
                && error.get(ContextKind::InvalidSubcommand).is_some();
            let why = if is_word {
                Some(args::BATCH_WORDS)
            } else {
                args::instead_of((&path.join(" "), command), &of)
            };
            why.map(|why| format!("{of}: {why}"))
        };
        let Some(more) = layered.source(&of).or_else(meant) else { error.exit() };
        // Guesses by spelling, where the meaning is known.
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::SuggestedSubcommand);
        error.remove(ContextKind::Suggested);
        let _ = error.print();
        Misuse(more).into()
    })
}

fn dispatch(command: Command) -> Result<ExitCode> {
    match command {
        Command::Run(args) => run::run(args),
        Command::Serve(args) => serve::serve(args),
        Command::Batch(args) => batch::batch(args),
        Command::Check(args) => check::check(args),
        Command::Bench(BenchCommand::Kernels(args)) => bench::kernels(args),
        Command::Bench(BenchCommand::Throughput(args)) => bench::throughput(args),
        Command::Bench(BenchCommand::Latency(args)) => bench::latency(args),
        Command::Bench(BenchCommand::Prefix(args)) => bench::prefix(args),
        Command::Bench(BenchCommand::Serve(args)) => bench::serve(*args),
        Command::Bench(BenchCommand::Plan(args)) => bench::plan(args),
        Command::Bench(BenchCommand::Ablation(args)) => bench::ablation(args),
        Command::Eval(EvalCommand::Perplexity(args)) => eval::perplexity(args),
        Command::Eval(EvalCommand::NextWord(args)) => eval::next_word(args),
        Command::Bench(BenchCommand::Disk(args)) => bench::disk(args),
        Command::Simulate(SimulateCommand::Flexgen(args)) => flexgen::flexgen(args),
        Command::Man(args) => documents::man(&args),
        Command::Completions(args) => documents::completions(&args),
        Command::Profile(args) => profile::profile(args),
        Command::Plan(args) => plan::plan(args),
        Command::Stores(args) => stores::stores(&args),
        Command::Simulate(SimulateCommand::Replay { file }) => replay::replay(&file),
        Command::Simulate(SimulateCommand::Block(args)) => simulate_block::simulate_block(&args),
    }
}
