//! `ballast simulate block`: zig-zag beside diagonal at equal memory, and the closed form beside both.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use engine::{counted, size};
use policy::cost::Dims;
use sim::draw::Format;
use sim::flexgen::Rates;
use sim::{BlockComparison, BlockExperiment, ScheduleFigures};
use spec::{Bytes, HardwareSpec, Nanos, Tokens};

use crate::args::SimulateBlockArgs;
use crate::console::{note, show};
use crate::lanes;
use crate::output_file::{JsonReport, OutputFile, apart};
use crate::scenario::machine;

/// Sequences of a block that are simulated one by one.
const MOST_BLOCK_SEQUENCES: usize = 1 << 18;
/// Tokens that they make in all: some minutes' work.
const MOST_TOKENS: usize = 1 << 21;
/// Batches that a step has room for.
const MOST_BATCHES: usize = u16::MAX as usize;

pub(crate) fn simulate_block(args: &SimulateBlockArgs) -> Result<ExitCode> {
    apart([args.json.as_deref(), args.lanes.as_deref()])?;
    let report = JsonReport::open(args.json.as_deref())?;
    let open = |path: &PathBuf| Ok::<_, anyhow::Error>((format_of(path)?, OutputFile::open(path)?));
    let lanes = args.lanes.as_ref().map(open).transpose()?;
    let experiment = experiment(args)?;
    if experiment.zigzag_block() == 0 {
        let tokens = experiment.blocks() * spec::BLOCK_TOKENS.0;
        bail!(
            "--kv-memory holds {tokens} tokens of KV, which is less than one sequence of {} + {}: give it more",
            args.prompt_len,
            args.gen_len
        );
    }
    let most = MOST_BLOCK_SEQUENCES;
    if experiment.zigzag_block() > most {
        bail!(
            "--kv-memory holds blocks of {} sequences, and more than {most} are not simulated: give it less",
            experiment.zigzag_block()
        );
    }
    if experiment.zigzag_block().saturating_mul(experiment.output.0 as usize) > MOST_TOKENS {
        bail!(
            "blocks of {} that make {} each are more than are simulated: give them less --kv-memory, or make --gen-len shorter",
            counted(experiment.zigzag_block(), "sequence"),
            counted(experiment.output.0, "token")
        );
    }
    // A diagonal block has up to twice as many sequences, and begins and ends inside batches.
    if 2 * experiment.zigzag_block().div_ceil(experiment.batch_seqs) + 2 > MOST_BATCHES {
        bail!(
            "blocks of {} in batches of {} have more batches than a step has room for, {MOST_BATCHES}: make --batch-size larger",
            counted(experiment.zigzag_block(), "sequence"),
            experiment.batch_seqs
        );
    }
    if experiment.batch_seqs as u64 * u64::from(args.prompt_len) > u64::from(u32::MAX) {
        bail!(
            "--batch-size {} prompts of {} tokens are more than a step can count: make it smaller",
            experiment.batch_seqs,
            args.prompt_len
        );
    }
    let (weights, host) = (experiment.weight_bytes() as u64, experiment.hardware.host.memory.0);
    if weights + args.kv_memory > host {
        note!(
            "weights of {} and KV of {} are more than the {} of this machine's host: it is simulated as if there were room",
            size(&weights),
            size(&args.kv_memory),
            size(&host)
        );
    }
    note!(
        "simulating {} of blocks of {} and more, in batches of {}",
        counted(experiment.output.0, "step"),
        counted(experiment.zigzag_block(), "sequence"),
        experiment.batch_seqs
    );
    let found = experiment.compare()?;
    report.write(&found)?;
    if let Some((format, mut file)) = lanes {
        let text = format.draw(&experiment.lanes()?);
        file.replace(text.as_bytes())?;
    }
    tell(&format!("{} on {}", args.model, args.hardware), &found)?;
    Ok(ExitCode::SUCCESS)
}

fn format_of(path: &Path) -> Result<Format> {
    lanes::format_of(path).map_err(|why| anyhow!("--lanes {}: {why}", path.display()))
}

fn tell(model: &str, found: &BlockComparison) -> Result<()> {
    let BlockComparison { prompt_len, gen_len, kv_tokens, zigzag, diagonal, .. } = found;
    show!("{model}, weights and KV on the host: prompts of {prompt_len}, outputs of {gen_len},")?;
    show!(
        "room for {kv_tokens} tokens of KV; {} of each schedule's steady state\n",
        counted(*gen_len, "step")
    )?;
    show!("{:<38}{:>12}{:>12}", "", "zig-zag", "diagonal")?;
    let row = |name: &str, value: fn(&ScheduleFigures) -> f64| {
        show!("{name:<38}{:>12.2}{:>12.2}", value(zigzag), value(diagonal))
    };
    row("sequences in a block", |f| f.block)?;
    row("weight bytes per token, MB", |f| f.weight_bytes_per_token / 1e6)?;
    row("mean completion time, s", |f| f.mean_completion_s)?;
    row("tokens generated per second", |f| f.generated_tokens_per_s)?;
    row("time of a step, s", |f| f.step_s)?;
    row("KV memory in use, %", |f| f.kv_used * 100.0)?;
    show!("")?;
    show!(
        "The diagonal block is {:.2} times as large; (2s+2n)/(2s+n) is {:.2}.",
        found.block_ratio,
        found.block_ratio_closed_form
    )?;
    show!("It loads {:.2} times fewer weights for a token.", found.weight_bytes_ratio)?;
    show!(
        "The sequences of a block are complete after {:.2} of the time, on average.",
        found.completion_ratio
    )
}

fn experiment(args: &SimulateBlockArgs) -> Result<BlockExperiment> {
    let known = || Dims::names().collect::<Vec<_>>().join(", ");
    let dims = Dims::named(&args.model);
    let dims = dims.ok_or_else(|| anyhow!("no sizes are known of `{}`: one of {}", args.model, known()))?;
    let machine = machine(&args.hardware)?;
    Ok(BlockExperiment {
        prompt: Tokens(args.prompt_len),
        output: Tokens(args.gen_len),
        kv_memory: Bytes(args.kv_memory),
        batch_seqs: args.batch_size,
        hardware: hardware(&machine.name, machine.rates()?),
        dims,
    })
}

/// One device of a preset. Launches, latencies and what attention reaches of the products' rate are ours.
fn hardware(name: &str, rates: Rates) -> HardwareSpec {
    let mut hardware = rates.hardware(name);
    hardware.device.attention_flops = rates.gemm_flops / 2.0;
    hardware.device.launch = Nanos(10_000);
    hardware.host.launch = Nanos(20_000);
    hardware.disk.latency = Nanos(100_000);
    for link in [&mut hardware.up, &mut hardware.down, &mut hardware.peer] {
        link.latency = Nanos(10_000);
    }
    hardware.step_gap = Nanos(1_000_000);
    hardware
}
