//! A model that is here, on this machine: the plan is of the engine that would run it.

use std::process::ExitCode;

use anyhow::{Result, bail};
use engine::job::Limits;
use engine::{counted, memory, queue_bytes};
use policy::sched::{Delegate, Schedule};
use sim::Curve;

use super::candidate::{Candidate, Homes, Job, Lengths, Scored};
use super::rehearsals::Rehearsals;
use super::search::{Fixed, Planner, SEARCHING, rescored};
use super::{dollars_per_hour, emit, tell};
use crate::args::{PlanArgs, PlannedFor};
use crate::console::{Misuse, note, show};
use crate::display::Voice;
use crate::loaded;
use crate::output_file::{JsonReport, OutputFile, apart};
use crate::profile;
use crate::resolve::{Needs, engine_config};
use crate::scenario::chart;
use crate::serve;
use crate::slow::Slow;
use crate::wanted::for_this_model;

/// Requests that are worked through, unless a flag says otherwise.
const REQUESTS: usize = 64;

pub(super) fn plan(args: PlanArgs) -> Result<ExitCode> {
    let scenario = &args.scenario;
    refuse_what_is_of_published_models(&args)?;
    refuse_what_is_not_planned_by(&args)?;
    apart([scenario.json.as_deref(), args.emit_config.as_deref(), args.curve.as_deref()])?;
    let json = JsonReport::open(scenario.json.as_deref())?;
    let mut config_file = args.emit_config.as_deref().map(OutputFile::open).transpose()?;
    let curve_file = args.curve.as_deref().map(OutputFile::open).transpose()?;
    let job = Job {
        requests: args.num_prompts.unwrap_or(REQUESTS),
        input: scenario.prompt_len() as usize,
        output: scenario.gen_len() as usize,
        lengths: Lengths::Exact,
    };
    let mut base =
        engine_config(&args.engine, Needs::of_requests(&args.engine, job.requests, job.input, job.output))?;
    base.beside_bytes = beside_bytes(args.planned_for, job, base.memory);
    let mut opened = loaded::open(Some(&args.model), &args.engine, Voice::Normal)?;
    let room = args.engine.max_model_len.unwrap_or(opened.checkpoint.spec().max_positions);
    if job.input + job.output > room {
        bail!(
            "{} in and {} out are more than this model has room for, {room}: say --prompt-len and --gen-len",
            counted(job.input, "token"),
            job.output
        );
    }
    // Whoever runs the plan holds these too, beside what is planned. A folder without them can be benchmarked all the same.
    let _text = opened.text(None).ok();
    let base = for_this_model(&opened, base)?;
    let by = profile::kept_or_taken(&opened, &base, &args.engine)?;
    let tables = by.costs();
    let fixed = Fixed { max_latency_s: args.max_latency, ..Fixed::of(&args.engine) };
    let resident_bytes = memory::needed_bytes();
    let rehearsals = Rehearsals::by(&tables);
    let planner =
        Planner { checkpoint: &opened.checkpoint, base, job, rehearsals: &rehearsals, fixed, resident_bytes };
    let told = Slow::told(SEARCHING);
    let Some(found) = planner.search(rescored())? else {
        let beside = |memory| beside_bytes(args.planned_for, job, memory);
        return Err(nothing(&planner, args.max_latency, &beside));
    };
    let best = &found.scored[0];
    let more = planner.one_more_gib(&found)?;
    drop(told);
    let mut told = tell::report(&found, job, more);
    let corrected = tell::correction(&mut told, &by.correction);
    let hour = best.run.tokens_per_s() * 3600.0;
    let dollars = dollars_per_hour(&args).map(|dollars| tell::dollars(&mut told, hour / dollars));
    // Files first: what took minutes to find is not lost where nobody reads standard output to its end.
    json.write(&told)?;
    if let Some(file) = &mut config_file {
        file.replace(emit::toml(&args, &planner.base, best, job).as_bytes())?;
        note!("flags of this plan: {}", args.emit_config.as_deref().unwrap_or(".".as_ref()).display());
    }
    if let Some(mut file) = curve_file {
        let points = frontier(planner.curve()?);
        let curve = Curve { name: opened.name.clone(), points };
        file.replace(chart(format!("{}, planned", opened.name), vec![curve]).svg().as_bytes())?;
    }
    tell::table(&opened.name, &found, job, more)?;
    [corrected, dollars].iter().flatten().try_for_each(|line| show!("{line}"))?;
    Ok(ExitCode::SUCCESS)
}

/// What whoever runs the plan takes beside the engine, of so much memory.
fn beside_bytes(planned_for: PlannedFor, job: Job, memory: u64) -> u64 {
    let waiting = Limits::waiting_bytes(memory) as u64;
    match planned_for {
        PlannedFor::Batch => {
            let prompts = Limits::prompt_bytes(job.requests.saturating_mul(job.input)) as u64;
            waiting + queue_bytes(job.requests, 0).min(waiting) + prompts
        }
        PlannedFor::Serve => waiting + serve::client_bytes_by_default(memory),
    }
}

/// Flags of machines of the papers, with what to write instead.
fn refuse_what_is_of_published_models(args: &PlanArgs) -> Result<()> {
    let scenario = &args.scenario;
    let unheard = [
        (
            "--hardware",
            scenario.hardware.is_some(),
            "it is planned for this machine, as `ballast profile` measured it",
        ),
        ("--compress-weight", scenario.compress_weight, "write --weights int4"),
        ("--compress-cache", scenario.compress_cache, "write --kv int4"),
        ("--no-host-attention", scenario.no_host_attention, "write --attend device"),
        ("--devices", scenario.devices.is_some(), "it is planned for one device so far"),
    ];
    match unheard.into_iter().find(|(_, given, _)| *given) {
        Some((flag, _, instead)) => {
            bail!(Misuse(format!(
                "{} is a model that is here, and {flag} is of published models: {instead}",
                args.model
            )))
        }
        None => Ok(()),
    }
}

/// Flags of an engine that change no plan, with what to do about them.
fn refuse_what_is_not_planned_by(args: &PlanArgs) -> Result<()> {
    let engine = &args.engine;
    let of_the_run = "give it to the command that runs the plan";
    let unheard = [
        ("--record", engine.record.is_some(), "nothing runs here", of_the_run),
        ("--chat-template", engine.chat_template.is_some(), "prompts are only counted", of_the_run),
        ("--tool-call-parser", engine.tool_call_parser.is_some(), "answers are only counted", of_the_run),
        (
            "--max-model-len",
            engine.max_model_len.is_some(),
            "all sequences are of one length",
            "write --prompt-len and --gen-len",
        ),
    ];
    match unheard.into_iter().find(|(_, given, ..)| *given) {
        Some((flag, _, why, instead)) => bail!(Misuse(format!("{flag} changes no plan ({why}): {instead}"))),
        None => Ok(()),
    }
}

/// Why there is no plan: what the least engine says, or the limit of time. More memory is also for more `beside` the engine.
fn nothing(planner: &Planner<'_>, max_latency: Option<f64>, beside: &dyn Fn(u64) -> u64) -> anyhow::Error {
    let job = planner.job;
    let least = Candidate {
        schedule: if planner.base.blocks.stay() { Schedule::Continuous } else { Schedule::Zigzag },
        batch_size: 1,
        num_batches: 1,
        at_most: 1,
        step_tokens: planner.steps(1).into_iter().min().unwrap_or(1),
        delegate: Delegate::Host,
        homes: Homes::of(&planner.base),
    };
    let soonest = max_latency.and_then(|_| planner.soonest().ok().flatten());
    let fits = engine::Planned::new(planner.checkpoint, planner.config(&least)).map(drop);
    match (fits.or_else(|why| planner.least_plan(why).map(drop)), max_latency.zip(soonest)) {
        (Err(why), _) => anyhow::Error::new(why.with_more_beside(beside)).context("nothing fits"),
        (Ok(_), Some((limit, soonest))) => anyhow::anyhow!(
            "nothing is fast enough: a request of {} in and {} out takes {:.3} s at the least ({} at once, \
             {:.3} tokens/s), more than the {limit:?} s of --max-latency",
            counted(job.input, "token"),
            job.output,
            soonest.run.latency_max_s,
            soonest.candidate.seqs(job),
            soonest.run.tokens_per_s(),
        ),
        (Ok(_), None) => anyhow::anyhow!(
            "nothing fits with these flags: leave --batch-size, --num-batches, --max-num-seqs or \
             --max-num-batched-tokens to the planner"
        ),
    }
}

/// The most that can be had at each latency.
fn frontier(mut scored: Vec<Scored>) -> Vec<(f64, f64)> {
    scored.sort_by(|a, b| a.run.latency_max_s.total_cmp(&b.run.latency_max_s));
    let mut points: Vec<(f64, f64)> = Vec::new();
    for scored in scored {
        let (latency, rate) = (scored.run.latency_max_s, scored.run.tokens_per_s());
        if points.last().is_none_or(|last| rate > last.1) {
            points.push((latency, rate));
        }
    }
    points
}
