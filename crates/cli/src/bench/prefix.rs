//! `bench prefix`: long prompts that come back after others took their room, beside the same prompts computed.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use engine::{Counts, counted};
use model::sampling::SamplingParams;
use serde::Serialize;

use super::bed::{Bench, finish};
use super::report::median;
use crate::args::PrefixArgs;
use crate::console::{Misuse, show};
use crate::output_file::JsonReport;

/// Prompts that the device has room for: while one is computed, the one before is kept, and goes down.
const ROOM: usize = 2;
/// Fewer would still be on the device when they come back.
const LEAST: usize = ROOM + 1;

/// Figures of `bench prefix`. Times are medians over prompts and repetitions.
#[derive(Serialize)]
struct Report {
    model: String,
    weights: String,
    /// What its matrices are held as.
    formats: String,
    threads: usize,
    num_prompts: usize,
    input_len: usize,
    /// Of prompts that nobody saw before.
    computed_ttft_ms: f64,
    computed_ttft_ms_all: Vec<f64>,
    /// Of the same prompts, each after all others.
    returning_ttft_ms: f64,
    returning_ttft_ms_all: Vec<f64>,
    /// Tokens of those that came back, and by where they were found.
    returning_tokens: u64,
    device_tokens: u64,
    host_tokens: u64,
    drive_tokens: u64,
    /// What could not be read from the drive, or written to it.
    lost_blocks: u64,
    planned_drive_bytes: u64,
}

pub(crate) fn prefix(args: PrefixArgs) -> Result<ExitCode> {
    let PrefixArgs { model, num_prompts, input_len, mut common } = args;
    if num_prompts < LEAST {
        bail!(Misuse(format!("--num-prompts must be at least {LEAST}: fewer stay on the device")));
    }
    common.engine.disk_cache_tokens.get_or_insert((num_prompts + 1) * input_len.next_multiple_of(32));
    let json = JsonReport::open(common.json.as_deref())?;
    let mut bench = Bench::start(&model, &common, ROOM, input_len, 1)?;
    let prompts: Vec<Vec<u32>> = (0..num_prompts).map(|_| bench.prompts.next(input_len)).collect();
    let pass = || prompts.iter().map(|prompt| first_token(&bench, prompt)).collect::<Result<Vec<f64>>>();
    let computed = pass()?;
    let before = bench.engine.counts();
    let mut returning = Vec::new();
    for _ in 0..common.reps {
        returning.extend(pass()?);
    }
    let found = Found::between(&before, &bench.engine.counts());
    let report = Report {
        model: bench.name.clone(),
        weights: bench.weights.clone(),
        formats: bench.formats.clone(),
        threads: bench.threads,
        num_prompts,
        input_len,
        computed_ttft_ms: median(&computed),
        computed_ttft_ms_all: computed,
        returning_ttft_ms: median(&returning),
        returning_ttft_ms_all: returning,
        returning_tokens: (common.reps * num_prompts * input_len) as u64,
        device_tokens: found.device,
        host_tokens: found.host,
        drive_tokens: found.drive,
        lost_blocks: bench.engine.counts().prefix_blocks_lost,
        planned_drive_bytes: bench.engine.hold().drive_bytes,
    };
    bench.end()?;
    json.write(&report)?;
    show!(
        "{} of {}: first token after {:.1} ms computed, after {:.1} ms when they come back; \
         of {} tokens that came back the drive had {}, the host {}, the device {}",
        counted(num_prompts, "prompt"),
        counted(input_len, "token"),
        report.computed_ttft_ms,
        report.returning_ttft_ms,
        report.returning_tokens,
        found.drive,
        found.host,
        found.device
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Tokens of prompts by where their KV was.
struct Found {
    device: u64,
    host: u64,
    drive: u64,
}

impl Found {
    fn between(before: &Counts, after: &Counts) -> Found {
        let host = after.host_cached_tokens - before.host_cached_tokens;
        let drive = after.drive_cached_tokens - before.drive_cached_tokens;
        Found { device: after.cached_tokens - before.cached_tokens - host - drive, host, drive }
    }
}

/// Milliseconds until a prompt's first token.
fn first_token(bench: &Bench, prompt: &[u32]) -> Result<f64> {
    let params = SamplingParams { max_tokens: Some(1), ignore_eos: true, ..SamplingParams::greedy() };
    let begin = Instant::now();
    let request = engine::Request { prompt: prompt.to_vec(), params, seed: 0, salt: 0 };
    Ok(finish(&bench.engine.submit(request)?, begin, 1)? * 1e3)
}
