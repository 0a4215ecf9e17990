//! A published model on a machine of the papers.

use std::process::ExitCode;

use anyhow::{Result, bail};
use engine::counted;
use policy::plan::{BlockSize, GAIN};
use serde_json::{Value, json};
use sim::flexgen::{Mechanism, Overlap, Planned, Rates, Wanted, one_more_gib, peak};
use spec::{ByTier, Lane, Tier};

use super::tell;
use crate::args::{
    ActivationsAs, AttendOn, DeviceName, HostWeights, Kv, MOST_BATCHES, MOST_SEQUENCES, PlanArgs, PlannedFor,
    ScheduleName, Weights,
};
use crate::console::{Misuse, note, show};
use crate::output_file::{JsonReport, OutputFile, apart};
use crate::scenario::{chart, curve, nothing, percent, rates, report, wanted};
use crate::slow::Slow;

/// Flags of the engine that a published model is not planned by, with those to take instead.
fn refuse_what_is_not_heard(args: &PlanArgs) -> Result<()> {
    let engine = &args.engine;
    let for_the_engine = " of a model that is here";
    let unheard = [
        ("--weights", engine.weights != Weights::Auto, ": --compress-weight plans 4-bit weights"),
        ("--kv", engine.kv != Kv::Auto, ": --compress-cache plans a 4-bit cache"),
        (
            "--attend",
            engine.schedule.attend != AttendOn::Auto,
            ": --no-host-attention attends on the device only",
        ),
        ("--device", engine.device != DeviceName::Cpu, ": --hardware names the machine"),
        ("--link-gbps", engine.link_gbps.is_some(), ": --hardware has the links' rates"),
        ("--sparse-attention", engine.sparse_attention.is_some(), for_the_engine),
        ("--host-weights", engine.host_weights != HostWeights::Auto, for_the_engine),
        ("--schedule", engine.schedule.schedule != ScheduleName::Auto, for_the_engine),
        ("--offload-dir", engine.offload_dir.is_some(), for_the_engine),
        (
            "--max-model-len",
            engine.max_model_len.is_some(),
            ": --prompt-len and --gen-len say how long sequences are",
        ),
        (
            "--max-num-seqs",
            engine.max_num_seqs.is_some(),
            ": --batch-size with --num-batches says how many there are",
        ),
        ("--max-num-batched-tokens", engine.max_num_batched_tokens.is_some(), for_the_engine),
        ("--swap-tokens", engine.swap_tokens.is_some(), for_the_engine),
        ("--disk-cache-tokens", engine.disk_cache_tokens.is_some(), for_the_engine),
        ("--no-enable-prefix-caching", engine.no_enable_prefix_caching, for_the_engine),
        ("--num-prompts", args.num_prompts.is_some(), ": the rate is that of blocks, one after the other"),
        ("--steps-in-flight", engine.steps_in_flight.is_some(), for_the_engine),
        ("--activations", engine.activations != ActivationsAs::Exact, for_the_engine),
        ("--for serve", args.planned_for == PlannedFor::Serve, for_the_engine),
        ("--record", engine.record.is_some(), for_the_engine),
        ("--chat-template", engine.chat_template.is_some(), for_the_engine),
        ("--tool-call-parser", engine.tool_call_parser.is_some(), for_the_engine),
        ("--revision", engine.familiar.revision.is_some(), for_the_engine),
    ];
    if let Some((flag, _, instead)) = unheard.into_iter().find(|(_, given, _)| *given) {
        bail!(Misuse(format!("{} is a published model, and {flag} is a flag{instead}", args.model)));
    }
    if engine.threads.is_some() {
        // Often in the environment, for every command.
        note!(
            "--threads changes nothing here: --hardware names the machine that {} is planned for",
            args.model
        );
    }
    if engine.schedule.batch_size.is_some() != engine.schedule.num_batches.is_some() {
        bail!(Misuse("a block has both --batch-size and --num-batches; without them it is planned".into()));
    }
    let sizes = [
        ("--batch-size", engine.schedule.batch_size.unwrap_or(1), MOST_SEQUENCES as usize),
        ("--num-batches", engine.schedule.num_batches.map_or(1, usize::from), MOST_BATCHES as usize),
    ];
    if let Some((flag, given, most)) = sizes.into_iter().find(|(_, given, most)| given > most) {
        bail!(Misuse(format!(
            "{flag} {given} is more than blocks of published models are simulated with: {most} at the most"
        )));
    }
    Ok(())
}

pub(super) fn plan(args: PlanArgs) -> Result<ExitCode> {
    refuse_what_is_not_heard(&args)?;
    apart([args.scenario.json.as_deref(), args.curve.as_deref()])?;
    let json = JsonReport::open(args.scenario.json.as_deref())?;
    let curve_file = args.curve.as_deref().map(OutputFile::open).transpose()?;
    let rates = budgets(&args, rates(&args.scenario)?);
    let block = args.engine.schedule.batch_size.zip(args.engine.schedule.num_batches);
    let block =
        block.map(|(batch, batches)| BlockSize { batch_size: batch as u32, num_batches: batches.into() });
    let overlap = if args.engine.schedule.no_overlap { Overlap::Off } else { Overlap::On };
    let wanted =
        Wanted { max_latency_s: args.max_latency, block, overlap, ..wanted(&args.model, &args.scenario)? };
    let longest = args.scenario.prompt_len() + args.scenario.gen_len();
    if let Some(most) =
        policy::cost::Dims::positions_of(&args.model).filter(|most| u64::from(longest) > *most)
    {
        note!("{} reads {most} positions, {longest} are planned", args.model);
    }
    let _told = Slow::told("trying plans in virtual time: long answers take a while");
    let Some(planned) = sim::flexgen::plan(&wanted, rates, Mechanism::BALLAST) else {
        return Err(nothing(&args.model, &wanted, rates, Mechanism::BALLAST));
    };
    let more = one_more_gib(&planned, &wanted, rates, Mechanism::BALLAST);
    let mut told =
        report(&args.model, &args.scenario, &planned.case, &planned.prediction, Mechanism::BALLAST);
    let peak = peak(&planned.case, rates, Mechanism::BALLAST);
    let binds = binds(&planned, rates, peak, more);
    told["binds"] = json!(binds);
    told["peak_bytes"] = by_tier(peak.map(|bytes| bytes as u64));
    told["one_more_gib_tokens_per_s"] = by_tier(more);
    let hour = planned.prediction.generated_tokens_per_s * 3600.0;
    let dollars = super::dollars_per_hour(&args).map(|dollars| tell::dollars(&mut told, hour / dollars));
    json.write(&told)?;
    if let Some(mut file) = curve_file {
        let points = curve(&args.model, &Wanted { max_latency_s: None, ..wanted }, rates, Mechanism::BALLAST);
        file.replace(chart(format!("{}, planned", args.model), vec![points]).svg().as_bytes())?;
    }
    table(&args.model, &planned, peak, &binds, more)?;
    dollars.map_or(Ok(()), |line| show!("{line}"))?;
    Ok(ExitCode::SUCCESS)
}

/// The machine's capacities, as far as flags do not say otherwise.
fn budgets(args: &PlanArgs, rates: Rates) -> Rates {
    let or = |flag: Option<u64>, machine: f64| flag.map_or(machine, |bytes| bytes as f64);
    Rates {
        device_bytes: or(args.engine.device_memory, rates.device_bytes),
        host_bytes: or(args.engine.memory, rates.host_bytes),
        disk_bytes: or(args.engine.disk, rates.disk_bytes),
        ..rates
    }
}

/// What holds the plan back: its longest lane, and the tiers that are full and of which more would be of use.
fn binds(planned: &Planned, rates: Rates, peak: ByTier<f64>, more: ByTier<f64>) -> Vec<&'static str> {
    let prediction = &planned.prediction;
    let busy = |lane: &Lane| prediction.prefill.lanes[lane.index()] + prediction.decode.lanes[lane.index()];
    let longest = Lane::ALL.into_iter().max_by(|a, b| busy(a).total_cmp(&busy(b)));
    let has = ByTier { device: rates.device_bytes, host: rates.host_bytes, disk: rates.disk_bytes };
    let least = GAIN * prediction.generated_tokens_per_s;
    let is_short = |tier| peak[tier] > tell::FULL * has[tier] && more[tier] > least;
    tell::in_words(longest.unwrap_or(Lane::Device), is_short)
}

fn by_tier<T: serde::Serialize>(values: ByTier<T>) -> Value {
    json!({ "device": values.device, "host": values.host, "disk": values.disk })
}

fn table(model: &str, planned: &Planned, peak: ByTier<f64>, binds: &[&str], more: ByTier<f64>) -> Result<()> {
    let policy = &planned.case.policy;
    show!("{model}: blocks of {} of {}", counted(policy.num_batches, "batch"), policy.batch_size)?;
    show!("{:22}{:>10}{:>10}{:>10}", "", "device", "host", "disk")?;
    let rows = [
        ("weights", policy.placement.weights),
        ("KV", policy.placement.kv),
        ("activations", policy.placement.hidden),
    ];
    for (name, split) in rows {
        let [a, b, c] = Tier::ALL.map(|tier| percent(split, tier));
        show!("{:22}{a:9.1}%{b:9.1}%{c:9.1}%", format!("{name}, percent"))?;
    }
    let gib = |bytes: f64| bytes / f64::from(1 << 30);
    show!("{:22}{:10.1}{:10.1}{:10.1}", "peak, GiB", gib(peak.device), gib(peak.host), gib(peak.disk))?;
    show!("{:22}{:10.3}{:10.3}{:10.3}", "1 GiB more, tokens/s", more.device, more.host, more.disk)?;
    show!("generated tokens/s    {:.3}", planned.prediction.generated_tokens_per_s)?;
    let latency = planned.prediction.latency_s();
    let digits = if latency < 10.0 { 2 } else { 0 };
    show!("latency of a request  {latency:.digits$} s")?;
    show!("binds                 {}", binds.join(", "))
}
