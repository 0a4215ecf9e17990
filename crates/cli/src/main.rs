//! `ballast`: runs language models larger than the memory they are given.

mod args;
mod batch;
mod bench;
mod chat;
mod check;
mod check_cuda;
mod console;
mod display;
mod eval;
mod flexgen;
mod loaded;
mod output_file;
mod plan;
mod replay;
mod resolve;
mod run;
mod scenario;
mod serve;
mod simulate_block;

use std::process::ExitCode;

use clap::Parser;

use args::{BenchCommand, Cli, Command, EvalCommand, SimulateCommand};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Run(args) => run::run(args),
        Command::Serve(args) => serve::serve(args),
        Command::Batch(args) => batch::batch(args),
        Command::Check(args) => check::check(args),
        Command::Bench(BenchCommand::Kernels(args)) => bench::kernels(args),
        Command::Bench(BenchCommand::Throughput(args)) => bench::throughput(args),
        Command::Bench(BenchCommand::Latency(args)) => bench::latency(args),
        Command::Eval(EvalCommand::Perplexity(args)) => eval::perplexity(args),
        Command::Eval(EvalCommand::NextWord(args)) => eval::next_word(args),
        Command::Bench(BenchCommand::Disk(args)) => bench::disk(args),
        Command::Simulate(SimulateCommand::Flexgen(args)) => flexgen::flexgen(args),
        Command::Plan(args) => plan::plan(args),
        Command::Simulate(SimulateCommand::Replay { file }) => replay::replay(&file),
        Command::Simulate(SimulateCommand::Block(args)) => simulate_block::simulate_block(&args),
    };
    result.unwrap_or_else(|error| {
        let code = console::exit_code(&error);
        if code != ExitCode::SUCCESS {
            console::note!("ballast: {}", console::told(&error));
        }
        code
    })
}
