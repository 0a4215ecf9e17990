//! `bench throughput` and `bench latency`: a whole model, end to end.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use engine::{Counts, Engine, Hold, Streamed, counted, memory};
use serde::Serialize;
use spec::Op;

use super::bed::{Bench, Extent, Timed};
use super::report::median;
use crate::args::{LatencyArgs, ScheduleName, ThroughputArgs};
use crate::console::{EXIT_CTRL_C, even_unread, note, show};
use crate::output_file::JsonReport;
use crate::stop::Stop;

/// Figures of `bench throughput`. Times are medians over the repetitions.
#[derive(Serialize)]
struct Throughput {
    model: String,
    weights: String,
    /// What its matrices are held as.
    formats: String,
    threads: usize,
    isa: String,
    num_prompts: usize,
    input_len: usize,
    output_len: usize,
    schedule: String,
    /// Most sequences of a batch.
    batch_size: usize,
    /// Most batches of a step.
    num_batches: usize,
    seconds: f64,
    seconds_all: Vec<f64>,
    requests_per_s: f64,
    /// Prompt tokens over the time until the last request had its first token.
    prefill_tokens_per_s: f64,
    generated_tokens_per_s: f64,
    total_tokens_per_s: f64,
    /// Share of the time in which no step was under way: scheduling, lowering, handing over.
    gap_fraction: f64,
    /// Time of each kind of op, the mean of the repetitions.
    op_seconds: BTreeMap<&'static str, f64>,
    peak_rss_bytes: u64,
    planned_bytes: u64,
    /// Weights that were streamed from the drive, all repetitions together; absent where all are resident.
    #[serde(skip_serializing_if = "Option::is_none")]
    streamed: Option<Streaming>,
    /// What the device did otherwise than is fastest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    remarks: Vec<String>,
    /// Weights that were copied from the host to the device; absent where none live there.
    #[serde(skip_serializing_if = "Option::is_none")]
    copied: Option<Copying>,
    /// Somebody stopped it: times are of the repetitions that had ended by then, or of a part of the first.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    interrupted: bool,
}

/// What an engine has counted.
struct Counted {
    counts: Counts,
    streamed: Streamed,
    copied: Streamed,
}

impl Counted {
    fn by(engine: &Engine) -> Counted {
        Counted { counts: engine.counts(), streamed: engine.streamed(), copied: engine.copied() }
    }
}

/// What streaming did.
#[derive(Serialize)]
struct Streaming {
    resident_weight_bytes: u64,
    bytes_per_pass: u64,
    bytes: u64,
    /// Over the time of the runs.
    bytes_per_s: f64,
    /// Over the time in which something was being read.
    bytes_per_s_while_reading: f64,
}

impl Streaming {
    fn of(hold: &Hold, before: Streamed, now: Streamed, seconds: f64) -> Option<Streaming> {
        let (bytes, busy_ns) = (now.bytes - before.bytes, now.busy_ns - before.busy_ns);
        (hold.disk_bytes > 0).then(|| Streaming {
            resident_weight_bytes: hold.weight_bytes,
            bytes_per_pass: hold.streamed_bytes,
            bytes,
            bytes_per_s: bytes as f64 / seconds,
            bytes_per_s_while_reading: bytes as f64 * 1e9 / busy_ns.max(1) as f64,
        })
    }
}

/// What copies up did.
#[derive(Serialize)]
struct Copying {
    host_weight_bytes: u64,
    bytes_per_pass: u64,
    bytes: u64,
    /// Over the time of the runs.
    bytes_per_s: f64,
    /// Over the time in which something was being copied.
    bytes_per_s_while_copying: f64,
}

impl Copying {
    fn of(hold: &Hold, before: Streamed, now: Streamed, seconds: f64) -> Option<Copying> {
        let (bytes, busy_ns) = (now.bytes - before.bytes, now.busy_ns - before.busy_ns);
        (hold.copied_bytes > 0).then(|| Copying {
            host_weight_bytes: hold.host_weight_bytes,
            bytes_per_pass: hold.copied_bytes,
            bytes,
            bytes_per_s: bytes as f64 / seconds,
            bytes_per_s_while_copying: bytes as f64 * 1e9 / busy_ns.max(1) as f64,
        })
    }
}

/// Figures of `bench latency`. Times are medians over the repetitions.
#[derive(Serialize)]
struct Latency {
    model: String,
    weights: String,
    /// What its matrices are held as.
    formats: String,
    threads: usize,
    isa: String,
    batch: usize,
    input_len: usize,
    output_len: usize,
    /// From handing over the batch to its last first token.
    ttft_ms: f64,
    /// Tokens after the first, over the time that they add to a run for the first token alone; null if there are none.
    decode_tokens_per_s: Option<f64>,
    prefill_tokens_per_s: f64,
    prefill_seconds_all: Vec<f64>,
    seconds_all: Vec<f64>,
    peak_rss_bytes: u64,
    planned_bytes: u64,
    /// What the device did otherwise than is fastest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    remarks: Vec<String>,
    /// Somebody stopped it: times are of what had ended by then, null where nothing had.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    interrupted: bool,
}

/// What each kind of op took in a run, on average.
fn op_seconds(before: &Counts, after: &Counts, runs: usize) -> BTreeMap<&'static str, f64> {
    let spent = after.op_busy_ns.iter().zip(before.op_busy_ns).map(|(after, before)| after - before);
    Op::KINDS.into_iter().zip(spent.map(|ns| ns as f64 / 1e9 / runs.max(1) as f64)).collect()
}

pub(crate) fn throughput(args: ThroughputArgs) -> Result<ExitCode> {
    let ThroughputArgs { model, num_prompts, input_len, output_len, common } = args;
    let json = JsonReport::open(common.json.as_deref())?;
    let mut bench = Bench::start(&model, &common, num_prompts, input_len, output_len)?;
    let (stop, before) = (Stop::heard()?, Counted::by(&bench.engine));
    let (mut runs, mut after) = (Vec::<Timed>::new(), Counted::by(&bench.engine));
    let mut interrupted = false;
    while runs.len() < common.reps && !interrupted {
        let run = bench.run(num_prompts, input_len, output_len, &stop)?;
        // A part of one says something where none is whole.
        if run.extent == Extent::Whole || runs.is_empty() {
            after = Counted::by(&bench.engine);
            runs.push(run);
        }
        interrupted = stop.is_wanted() && (runs.len() < common.reps || runs[0].extent == Extent::Part);
    }
    let of = |f: fn(&Timed) -> f64| median(&runs.iter().map(f).collect::<Vec<_>>());
    let (seconds, first) = (of(|r| r.whole), of(|r| r.first));
    let all = runs.iter().map(|r| r.whole).sum();
    let Timed { began, ended, tokens, .. } = runs[0];
    let (prompts, generated) = ((began * input_len) as f64, tokens as f64);
    let hold = *bench.engine.hold();
    let report = Throughput {
        model: bench.name.clone(),
        weights: bench.weights.clone(),
        formats: bench.formats.clone(),
        threads: bench.threads,
        isa: bench.isa.clone(),
        num_prompts,
        input_len,
        output_len,
        schedule: ScheduleName::of(bench.blocks.schedule),
        batch_size: bench.blocks.batch_seqs,
        num_batches: bench.blocks.batches,
        seconds,
        seconds_all: runs.iter().map(|r| r.whole).collect(),
        requests_per_s: ended as f64 / seconds,
        prefill_tokens_per_s: prompts / first,
        generated_tokens_per_s: generated / seconds,
        total_tokens_per_s: (prompts + generated) / seconds,
        gap_fraction: of(|r| r.gap),
        op_seconds: op_seconds(&before.counts, &after.counts, runs.len()),
        peak_rss_bytes: memory::peak_resident_bytes(),
        planned_bytes: hold.total_bytes(),
        streamed: Streaming::of(&hold, before.streamed, after.streamed, all),
        remarks: bench.remarks(),
        copied: Copying::of(&hold, before.copied, after.copied, all),
        interrupted,
    };
    let exit = end(bench, interrupted.then(|| told(&runs, common.reps, num_prompts)))?;
    json.write(&report)?;
    if tokens == 0 {
        return Ok(exit);
    }
    let shown = show!(
        "{}, {input_len} in, {output_len} out: {seconds:.2} s, {:.1} generated tokens/s, \
         {:.1} total tokens/s, prefill {:.0} tokens/s, {:.1} % between steps, peak {}",
        counted(num_prompts, "request"),
        report.generated_tokens_per_s,
        report.total_tokens_per_s,
        report.prefill_tokens_per_s,
        100.0 * report.gap_fraction,
        engine::size(&report.peak_rss_bytes)
    );
    even_unread(shown)?;
    Ok(exit)
}

/// How far a benchmark came that was stopped.
fn told(runs: &[Timed], reps: usize, requests: usize) -> String {
    let whole = runs.iter().filter(|run| run.extent == Extent::Whole).count();
    let told = format!("interrupted: {whole} of {} had ended by then", counted(reps, "repetition"));
    match runs {
        [run] if whole == 0 => {
            format!("{told}; of the first, {} of {} had", run.ended, counted(requests, "request"))
        }
        _ => told,
    }
}

/// Ends a benchmark; `stopped` is told where somebody stopped it.
fn end(bench: Bench, stopped: Option<String>) -> Result<ExitCode> {
    let Some(told) = stopped else { return bench.end().map(|()| ExitCode::SUCCESS) };
    note!("{told}");
    bench.end_soon()?;
    Ok(ExitCode::from(EXIT_CTRL_C))
}

pub(crate) fn latency(args: LatencyArgs) -> Result<ExitCode> {
    let LatencyArgs { model, batch, input_len, output_len, common } = args;
    let json = JsonReport::open(common.json.as_deref())?;
    let mut bench = Bench::start(&model, &common, batch, input_len, output_len)?;
    let stop = Stop::heard()?;
    let (mut prefills, mut wholes, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    let mut reps = 0;
    while reps < common.reps && !stop.is_wanted() {
        let prefill = bench.run(batch, input_len, 1, &stop)?;
        if prefill.extent == Extent::Part {
            break;
        }
        prefills.push(prefill.whole);
        if output_len > 1 {
            let run = bench.run(batch, input_len, output_len, &stop)?;
            if run.extent == Extent::Part {
                break;
            }
            wholes.push(run.whole);
            // What follows the last first token is the least that decoding can have taken, however slow the run without
            // it was.
            steps.push((run.whole - prefill.whole).max(run.whole - run.first));
        }
        reps += 1;
    }
    let interrupted = reps < common.reps;
    let prefill = median(&prefills);
    let report = Latency {
        model: bench.name.clone(),
        weights: bench.weights.clone(),
        formats: bench.formats.clone(),
        threads: bench.threads,
        isa: bench.isa.clone(),
        batch,
        input_len,
        output_len,
        ttft_ms: prefill * 1e3,
        decode_tokens_per_s: (!steps.is_empty()).then(|| (batch * (output_len - 1)) as f64 / median(&steps)),
        prefill_tokens_per_s: (batch * input_len) as f64 / prefill,
        prefill_seconds_all: prefills,
        seconds_all: wholes,
        peak_rss_bytes: memory::peak_resident_bytes(),
        planned_bytes: bench.engine.hold().total_bytes(),
        remarks: bench.remarks(),
        interrupted,
    };
    let told = || format!("interrupted: {reps} of {} had ended by then", counted(common.reps, "repetition"));
    let exit = end(bench, interrupted.then(told))?;
    json.write(&report)?;
    if report.prefill_seconds_all.is_empty() {
        return Ok(exit);
    }
    let no_decode = || match output_len {
        1 => ", no decode (--output-len 1 is the first token alone)".to_string(),
        _ => ", decode not measured by then".to_string(),
    };
    let decode =
        report.decode_tokens_per_s.map_or_else(no_decode, |rate| format!(", decode {rate:.1} tokens/s"));
    let shown = show!(
        "batch {batch}, {input_len} in, {output_len} out: first token after {:.1} ms ({:.0} tokens/s){decode}, peak {}",
        report.ttft_ms,
        report.prefill_tokens_per_s,
        engine::size(&report.peak_rss_bytes)
    );
    even_unread(shown)?;
    Ok(exit)
}
