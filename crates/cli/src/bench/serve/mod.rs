//! `bench serve`: load on any OpenAI-compatible server, measured as `vllm bench serve` does it. A token's time is that of
//! its arrival.

mod arrivals;
mod client;
mod cutter;
mod dataset;
mod figures;
mod http;
mod load;
mod report;
mod saved;
mod trace;
mod wire;
mod words;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use engine::counted;
use serde_json::{Map, Value, json};
use sim::Rng;

use self::arrivals::Pace;
use self::client::{Answer, Client};
use self::cutter::Cutter;
use self::dataset::{Dataset, Sample};
use self::figures::Figures;
use self::load::Traffic;
use self::report::Report;
use self::saved::Files;
use self::words::Filler;
use crate::args::{BenchServeArgs, DatasetName, TrafficArgs};
use crate::console::{EXIT_CTRL_C, Misuse, even_unread, note};
use crate::display::{Progress, Unit, Voice};
use crate::stop::Stop;

/// How often a server that is not ready is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(250);

pub(crate) fn serve(args: BenchServeArgs) -> Result<ExitCode> {
    let client = Client::new(&args.server)?;
    let mut rng = Rng::new(args.traffic.seed);
    let pace = pace(&args.traffic)?;
    let cutter = args.server.tokenizer.as_deref().map(Cutter::open).transpose()?;
    let dataset = Dataset::open(&args, cutter.as_ref(), &mut rng)?;
    let model = model(&client, &args)?;
    let filler = match (dataset.needs_filler(), &cutter) {
        (false, _) => None,
        (true, Some(cutter)) => Some(Filler::own(cutter, args.server.backend)?),
        (true, None) => Some(Filler::ask(&client, &model, args.server.backend)?),
    };
    let samples = dataset.fill(filler.as_ref(), &mut rng);
    let (pace, at) = times(&args, pace, &samples, &mut rng);
    let files = Files::open(&args, &model, pace)?;
    let more = fields(&args);
    let bodies: Vec<String> =
        samples.iter().map(|sample| sample.body(&model, args.server.backend, &more)).collect();
    let input_lens: Vec<usize> = samples.iter().map(|sample| sample.input_len).collect();
    let voice = if args.report.disable_tqdm { Voice::Quiet } else { Voice::Normal };
    warm_up(&client, &bodies, &args)?;
    if voice == Voice::Normal {
        note!("asking {} for {} of {model}", client.url(), counted(bodies.len(), "stream"));
    }
    let progress = Progress::new("requests", bodies.len() as u64, Unit::Items, voice);
    let most = args.traffic.max_concurrency.unwrap_or(usize::MAX);
    let stop = Stop::heard()?;
    let traffic = Traffic { bodies: &bodies, at: &at, most, stop: &stop };
    let run = load::run(&client, traffic, &|done| progress.set(done as u64));
    progress.end();
    let (answers, took) = run?;
    // Those that had no end when all was stopped are neither answered nor failed.
    let ended = answers.into_iter().zip(input_lens).filter_map(|(answer, len)| Some((answer?, len)));
    let (mut answers, input_lens): (Vec<Answer>, Vec<usize>) = ended.unzip();
    let stopped = answers.len() < bodies.len();
    if stopped {
        note!("interrupted: {} of {} had ended by then", answers.len(), counted(bodies.len(), "request"));
    }
    cutter.iter().for_each(|cutter| count(&mut answers, cutter));
    let figures = Figures::of(&answers, &input_lens, took.as_secs_f64(), &args.report.goodput);
    let report = Report {
        args: &args,
        model: &model,
        figures,
        answers: &answers,
        input_lens: &input_lens,
        pace,
        stopped,
    };
    // The files first: a run is not lost where nobody reads standard output to its end.
    files.write(&report.json()?)?;
    even_unread(report.show())?;
    if stopped {
        return Ok(ExitCode::from(EXIT_CTRL_C));
    }
    if report.figures.completed == 0 {
        bail!("of {} all failed", counted(answers.len(), "request"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The model's name, once the server knows it.
fn model(client: &Client, args: &BenchServeArgs) -> Result<String> {
    let patience = Duration::from_secs(args.server.ready_check_timeout_sec);
    let named = args.server.served_model_name.as_ref().or(args.server.model.as_ref());
    if let (Some(model), true) = (named, patience.is_zero()) {
        return Ok(model.clone());
    }
    let give_up = Instant::now() + patience;
    let models = loop {
        let said = match client.get("/v1/models") {
            Ok(Ok(models)) => break models,
            Ok(Err(said)) => anyhow::Error::msg(format!("the server does not name its models: {said}")),
            Err(error) => error,
        };
        if Instant::now() >= give_up {
            return Err(said.context("the server is not ready (--ready-check-timeout-sec waits for it)"));
        }
        thread::park_timeout(ASK_AGAIN);
    };
    let first = || models["data"][0]["id"].as_str().map(str::to_string);
    named.cloned().or_else(first).context("the server has no model")
}

/// How many requests come a second, if flags say.
fn pace(args: &TrafficArgs) -> Result<Option<Pace>> {
    let ramp = &args.ramp;
    match (ramp.ramp_up_strategy, ramp.ramp_up_start_rps, ramp.ramp_up_end_rps) {
        (Some(how), Some(start), Some(end)) if start <= end => Ok(Some(Pace::Ramp { how, start, end })),
        (Some(_), Some(start), Some(end)) => {
            bail!(Misuse(format!("--ramp-up-start-rps {start} is more than --ramp-up-end-rps {end}")))
        }
        _ => Ok(args.request_rate.map(Pace::Steady)),
    }
}

/// Requests a second, if that is what decides, and when each comes.
fn times(
    args: &BenchServeArgs,
    asked: Option<Pace>,
    samples: &[Sample],
    rng: &mut Rng,
) -> (Option<Pace>, Vec<Duration>) {
    let of_trace: Option<Vec<Duration>> = samples.iter().map(|sample| sample.at).collect();
    match of_trace.filter(|_| !args.dataset.no_self_timed && asked.is_none()) {
        Some(at) => (None, at),
        None => {
            let pace = asked.unwrap_or(Pace::Steady(f64::INFINITY));
            (Some(pace), arrivals::arrivals(samples.len(), pace, args.traffic.burstiness, rng))
        }
    }
}

/// Counts what was generated where the server did not.
fn count(answers: &mut [Answer], cutter: &Cutter) {
    for answer in answers.iter_mut().filter(|answer| answer.output_tokens.is_none()) {
        answer.output_tokens = cutter.count(&answer.text);
    }
}

/// Fields of every body beside its prompt and lengths.
fn fields(args: &BenchServeArgs) -> Map<String, Value> {
    let body = &args.body;
    let mut fields = Map::new();
    let ignore_eos = body.ignore_eos || args.dataset.dataset_name != DatasetName::Custom;
    let own = [
        ("ignore_eos", ignore_eos.then(|| json!(true))),
        ("temperature", body.temperature.map(|x| json!(x))),
        ("top_p", body.top_p.map(|x| json!(x))),
        ("top_k", body.top_k.map(|x| json!(x))),
        ("min_p", body.min_p.map(|x| json!(x))),
        ("frequency_penalty", body.frequency_penalty.map(|x| json!(x))),
        ("presence_penalty", body.presence_penalty.map(|x| json!(x))),
        ("repetition_penalty", body.repetition_penalty.map(|x| json!(x))),
    ];
    fields.extend(own.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?))));
    match body.logprobs {
        Some(n) if args.server.backend.is_chat() => {
            fields.extend([("logprobs".into(), json!(true)), ("top_logprobs".into(), json!(n))]);
        }
        Some(n) => fields.extend([("logprobs".into(), json!(n))]),
        None => {}
    }
    let more = body.extra_body.as_ref().and_then(Value::as_object);
    fields.extend(more.into_iter().flatten().map(|(name, value)| (name.clone(), value.clone())));
    fields
}

/// The first request, so many times, as fast as may be; a server that refuses it refuses all.
fn warm_up(client: &Client, bodies: &[String], args: &BenchServeArgs) -> Result<()> {
    let n = args.traffic.num_warmups;
    let (Some(first), 1..) = (bodies.first(), n) else { return Ok(()) };
    let most = args.traffic.max_concurrency.unwrap_or(usize::MAX);
    let (bodies, at, stop) = (vec![first.clone(); n], vec![Duration::ZERO; n], Stop::default());
    let traffic = Traffic { bodies: &bodies, at: &at, most, stop: &stop };
    let (answers, _) = load::run(client, traffic, &|_| ())?;
    match answers.into_iter().flatten().find_map(|answer| answer.error) {
        Some(error) => bail!("a request to warm up failed: {error}"),
        None => Ok(()),
    }
}
