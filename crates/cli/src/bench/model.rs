//! `bench throughput` and `bench latency`: a whole model, end to end.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use engine::{Counts, Engine, Event, Request, Streamed, Ticket, counted, memory, queue_bytes};
use model::sampling::SamplingParams;
use policy::sched::BlockConfig;
use serde::Serialize;
use spec::Op;

use super::report::median;
use crate::args::{BenchArgs, LatencyArgs, ScheduleName, ThroughputArgs, typed};
use crate::console::{note, show};
use crate::display::Voice;
use crate::lanes::LanesFile;
use crate::loaded;
use crate::output_file::{JsonReport, apart};
use crate::plan::Work;
use crate::resolve::{Needs, engine_config};
use crate::wanted::{Loaded, Wanted};

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
    fn of(engine: &Engine, before: Streamed, seconds: f64) -> Option<Streaming> {
        let (hold, now) = (engine.hold(), engine.streamed());
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
    fn of(engine: &Engine, before: Streamed, seconds: f64) -> Option<Copying> {
        let (hold, now) = (engine.hold(), engine.copied());
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
}

/// What each kind of op took in a run, on average.
fn op_seconds(before: &Counts, after: &Counts, runs: usize) -> BTreeMap<&'static str, f64> {
    let spent = after.op_busy_ns.iter().zip(before.op_busy_ns).map(|(after, before)| after - before);
    Op::KINDS.into_iter().zip(spent.map(|ns| ns as f64 / 1e9 / runs.max(1) as f64)).collect()
}

/// One run: how long until every request had its first token, and until all were done.
struct Timed {
    first: f64,
    whole: f64,
    gap: f64,
}

pub(crate) fn throughput(args: ThroughputArgs) -> Result<ExitCode> {
    let ThroughputArgs { model, num_prompts, input_len, output_len, common } = args;
    let json = JsonReport::open(common.json.as_deref())?;
    let mut bench = Bench::start(&model, &common, num_prompts, input_len, output_len)?;
    let (read, copied, before) = (bench.engine.streamed(), bench.engine.copied(), bench.engine.counts());
    let runs: Vec<Timed> =
        (0..common.reps).map(|_| bench.run(num_prompts, input_len, output_len)).collect::<Result<_>>()?;
    let of = |f: fn(&Timed) -> f64| median(&runs.iter().map(f).collect::<Vec<_>>());
    let (seconds, first) = (of(|r| r.whole), of(|r| r.first));
    let all = runs.iter().map(|r| r.whole).sum();
    let (prompts, generated) = ((num_prompts * input_len) as f64, (num_prompts * output_len) as f64);
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
        requests_per_s: num_prompts as f64 / seconds,
        prefill_tokens_per_s: prompts / first,
        generated_tokens_per_s: generated / seconds,
        total_tokens_per_s: (prompts + generated) / seconds,
        gap_fraction: of(|r| r.gap),
        op_seconds: op_seconds(&before, &bench.engine.counts(), common.reps),
        peak_rss_bytes: memory::peak_resident_bytes(),
        planned_bytes: bench.engine.hold().total_bytes(),
        streamed: Streaming::of(&bench.engine, read, all),
        remarks: bench.remarks(),
        copied: Copying::of(&bench.engine, copied, all),
    };
    bench.end()?;
    json.write(&report)?;
    show!(
        "{}, {input_len} in, {output_len} out: {seconds:.2} s, {:.1} generated tokens/s, \
         {:.1} total tokens/s, prefill {:.0} tokens/s, {:.1} % between steps, peak {}",
        counted(num_prompts, "request"),
        report.generated_tokens_per_s,
        report.total_tokens_per_s,
        report.prefill_tokens_per_s,
        100.0 * report.gap_fraction,
        engine::size(&report.peak_rss_bytes)
    )?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn latency(args: LatencyArgs) -> Result<ExitCode> {
    let LatencyArgs { model, batch, input_len, output_len, common } = args;
    let json = JsonReport::open(common.json.as_deref())?;
    let mut bench = Bench::start(&model, &common, batch, input_len, output_len)?;
    let (mut prefills, mut wholes, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..common.reps {
        let prefill = bench.run(batch, input_len, 1)?.whole;
        prefills.push(prefill);
        if output_len > 1 {
            let Timed { first, whole, .. } = bench.run(batch, input_len, output_len)?;
            wholes.push(whole);
            // What follows the last first token is the least that decoding can have taken, however slow the run without
            // it was.
            steps.push((whole - prefill).max(whole - first));
        }
    }
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
        decode_tokens_per_s: (output_len > 1).then(|| (batch * (output_len - 1)) as f64 / median(&steps)),
        prefill_tokens_per_s: (batch * input_len) as f64 / prefill,
        prefill_seconds_all: prefills,
        seconds_all: wholes,
        peak_rss_bytes: memory::peak_resident_bytes(),
        planned_bytes: bench.engine.hold().total_bytes(),
        remarks: bench.remarks(),
    };
    bench.end()?;
    json.write(&report)?;
    let no_decode = || ", no decode (--output-len 1 is the first token alone)".to_string();
    let decode =
        report.decode_tokens_per_s.map_or_else(no_decode, |rate| format!(", decode {rate:.1} tokens/s"));
    show!(
        "batch {batch}, {input_len} in, {output_len} out: first token after {:.1} ms ({:.0} tokens/s){decode}, peak {}",
        report.ttft_ms,
        report.prefill_tokens_per_s,
        engine::size(&report.peak_rss_bytes)
    )?;
    Ok(ExitCode::SUCCESS)
}

/// A model that is loaded, and prompts that it has not seen.
pub(super) struct Bench {
    pub(super) engine: Engine,
    pub(super) prompts: Prompts,
    pub(super) name: String,
    pub(super) weights: String,
    pub(super) formats: String,
    pub(super) threads: usize,
    isa: String,
    blocks: BlockConfig,
    lanes: LanesFile,
}

impl Bench {
    /// Loads the model with room for the whole workload (or as much as memory allows), and warms up.
    pub(super) fn start(
        name: &str,
        args: &BenchArgs,
        requests: usize,
        input: usize,
        output: usize,
    ) -> Result<Bench> {
        let needs = Needs::of_requests(&args.engine, requests, input, output);
        apart([args.json.as_deref(), args.lanes.path(), args.engine.record.as_deref()])?;
        let lanes = args.lanes.open()?;
        let mut config = lanes.wanted(engine_config(&args.engine, needs)?);
        // All of them are handed in at once.
        config.beside_bytes = queue_bytes(requests, requests.saturating_mul(input));
        let (threads, isa) = (config.threads, config.isa.to_string());
        args.engine.note_conversations();
        let opened = loaded::open(Some(name), &args.engine, Voice::Normal)?;
        let work = Work::exactly(requests, input, output);
        let wanted =
            Wanted { opened: &opened, config, args: &args.engine, work: Some(work), voice: Voice::Normal };
        let planned = wanted.plan()?.planned;
        let max = planned.hold().max_model_len;
        if input + output > max {
            bail!(
                "{} in and {output} out are more than this model has room for, {max}: ask for fewer",
                counted(input, "token")
            );
        }
        let Loaded { engine, weights, formats, blocks } = wanted.load(planned)?;
        let weights = typed(args.engine.weights.as_kept(weights));
        let prompts = Prompts { state: 0x9e37_79b9_7f4a_7c15, vocab: engine.spec().vocab as u64 };
        let mut bench =
            Bench { engine, prompts, name: name.to_string(), weights, formats, threads, isa, blocks, lanes };
        bench.run(requests.min(4), input.min(64), output.min(4))?;
        Ok(bench)
    }

    /// What the device did otherwise than is fastest, told and to be written down.
    fn remarks(&self) -> Vec<String> {
        let remarks = self.engine.remarks();
        remarks.iter().for_each(|remark| note!("{remark}"));
        remarks
    }

    pub(super) fn end(self) -> Result<()> {
        self.lanes.end(self.engine)
    }

    fn run(&mut self, requests: usize, input: usize, output: usize) -> Result<Timed> {
        let params =
            SamplingParams { max_tokens: Some(output as u32), ignore_eos: true, ..SamplingParams::greedy() };
        let requests: Vec<Request> = (0..requests)
            .map(|_| Request { prompt: self.prompts.next(input), params: params.clone(), seed: 0, salt: 0 })
            .collect();
        let busy_before = self.engine.counts().busy_ns;
        let begin = Instant::now();
        let tickets: Vec<Ticket> =
            requests.into_iter().map(|request| self.engine.submit(request)).collect::<Result<_, _>>()?;
        let mut first = 0f64;
        for ticket in &tickets {
            first = first.max(finish(ticket, begin, output)?);
        }
        let whole = begin.elapsed().as_secs_f64();
        self.rest()?;
        let busy = (self.engine.counts().busy_ns - busy_before) as f64 / 1e9;
        Ok(Timed { first, whole, gap: (1.0 - busy / whole).max(0.0) })
    }

    /// Waits until the last step is counted: its tokens come a moment before.
    fn rest(&self) -> Result<()> {
        while self.engine.counts().running > 0 {
            self.engine.alive()?;
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// Waits for a request's end; says when its first token was seen.
pub(super) fn finish(ticket: &Ticket, begin: Instant, wanted: usize) -> Result<f64> {
    let (mut first, mut tokens) = (None, 0);
    for event in &ticket.events {
        match event {
            Event::Token(token) => {
                tokens += 1;
                first.get_or_insert((token.at - begin).as_secs_f64());
            }
            Event::Failed(why) => bail!(why),
            Event::Finished(_) => break,
            Event::Began(_) | Event::Prompt(..) => {}
        }
    }
    if tokens != wanted {
        bail!("a request gave {} instead of {wanted}: the engine ended early", counted(tokens, "token"));
    }
    Ok(first.unwrap_or_default())
}

/// Random prompts, none twice (so that no prefix is reused), the same in every run of the command.
pub(super) struct Prompts {
    state: u64,
    vocab: u64,
}

impl Prompts {
    pub(super) fn next(&mut self, len: usize) -> Vec<u32> {
        (0..len).map(|_| self.token()).collect()
    }

    /// SplitMix64 (Steele, Lea, Flood, 2014).
    fn token(&mut self) -> u32 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % self.vocab) as u32
    }
}
