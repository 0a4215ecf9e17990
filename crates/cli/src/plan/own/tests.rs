use super::super::emit::toml;
use super::*;
use crate::args::{BenchCommand, Cli, Command, PlanArgs, typed};
use crate::display::Voice;
use crate::layers::layered;
use crate::loaded;
use crate::resolve::{Needs, engine_config};
use clap::{CommandFactory, Parser};
use model::decoder::WeightsAs;
use policy::cost::{Correction, Curve, Decode, Linear, OpSort, Pace};
use std::ffi::OsString;
use std::path::Path;

/// A tiny model with so many layers that something is won by placing them; its weights are made up.
fn model(folder: &Path) -> String {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden/llama-gqa-tied");
    let config = std::fs::read_to_string(golden.join("config.json")).unwrap();
    let config = config.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 24");
    std::fs::write(folder.join("config.json"), config).unwrap();
    folder.display().to_string()
}

/// A machine with these seconds for a position that is attended on the device and on the host, and for a byte copied.
fn machine(device: f64, host: f64, copied: f64) -> Tables {
    let linear = |row: f64| Linear {
        seconds: Curve::new(vec![(1.0, 16.0 * row), (16.0, 17.0 * row), (256.0, 256.0 * row)]),
        bytes: 20e3,
        matrices: vec![(96, 64)],
        ..Linear::default()
    };
    let decode = |position: f64| vec![Decode { seqs: 1, seconds: Curve::rate(1.0 / position) }];
    Tables {
        qkv: linear(1e-6),
        out: linear(1e-6),
        mlp: linear(3e-6),
        head: linear(1e-6),
        embed: Curve::rate(1e9),
        sample: Curve::rate(1e6),
        decode: decode(device),
        host_decode: decode(host),
        prefill: Curve::rate(1e9),
        disk_read: Curve::rate(1e8),
        disk_write_bytes_per_s: 1e8,
        copy_bytes_per_s: 1.0 / copied,
        step_gap_s: 1e-5,
        node_s: 1e-6,
        ..Tables::default()
    }
}

fn parsed(words: &[String]) -> Cli {
    let typed = words.iter().map(OsString::from).collect();
    Cli::try_parse_from(layered(&Cli::command(), typed, &|_| None).unwrap().argv).unwrap()
}

fn words(command: &[&str], more: &[String]) -> Vec<String> {
    ["ballast"].iter().chain(command).map(ToString::to_string).chain(more.iter().cloned()).collect()
}

fn bench(model: &str, more: &[String]) -> EngineArgs {
    let words = words(&["bench", "throughput", model, "--load-format", "dummy"], more);
    match parsed(&words).command {
        Command::Bench(BenchCommand::Throughput(args)) => args.common.engine,
        _ => unreachable!("it was asked for"),
    }
}

fn plan(model: &str, more: &[String]) -> PlanArgs {
    match parsed(&words(&["plan", model, "--load-format", "dummy"], more)).command {
        Command::Plan(args) => args,
        _ => unreachable!("it was asked for"),
    }
}

fn settings(args: &EngineArgs, (requests, input, output): (usize, usize, usize)) -> EngineConfig {
    engine_config(args, Needs::of_requests(args, requests, input, output)).unwrap()
}

/// Room for one sequence, a share of the weights and a little more: with more KV yet fewer of them fit.
fn budgets(folder: &Path, opened: &Opened, (job, share): ((usize, usize, usize), f64)) -> Vec<String> {
    let model = folder.display().to_string();
    let roomy = Planned::new(&opened.checkpoint, settings(&bench(&model, &[]), (1, job.1, job.2))).unwrap();
    let away = (1.0 - share) * roomy.outline().layer_bytes as f64;
    let device = roomy.hold().arena_bytes() - away as u64 + (384 << 10);
    flags(&format!("--memory 1GiB --offload-dir {model} --device-memory {device}"))
}

/// What `plan --emit-config` writes, read again.
fn emitted(
    folder: &Path,
    model: &str,
    opened: &Opened,
    (budgets, job): (&[String], (usize, usize, usize)),
    tables: &Tables,
) -> EngineArgs {
    let planning = plan(model, budgets);
    let (base, fixed) = (settings(&planning.engine, job), Fixed::of(&planning.engine));
    let work = Work::exactly(job.0, job.1, job.2);
    let rehearsals = Rehearsals::by(tables);
    let planner = planner(opened, (base, fixed), work.job, &rehearsals);
    let found = planner.search(rescored()).unwrap().unwrap_or_else(|| panic!("{job:?}: nothing fits"));
    let file = folder.join("plan.toml");
    std::fs::write(&file, toml(&planning, &planner.base, &found.scored[0], work.job)).unwrap();
    bench(model, &flags(&format!("--config {}", file.display())))
}

fn planner<'a>(
    opened: &'a Opened,
    (base, fixed): (EngineConfig, Fixed),
    job: Job,
    rehearsals: &'a Rehearsals<'a>,
) -> Planner<'a> {
    let resident_bytes = memory::resident_bytes();
    Planner { checkpoint: &opened.checkpoint, base, job, rehearsals, fixed, resident_bytes }
}

fn placed(planned: &Planned<'_>) -> [u64; 5] {
    let hold = planned.hold();
    [hold.weight_bytes, hold.host_weight_bytes, hold.streamed_bytes, hold.kv_bytes, hold.host_kv_bytes]
}

fn flags(text: &str) -> Vec<String> {
    text.split_whitespace().map(String::from).collect()
}

#[test]
fn what_is_chosen_is_what_plan_emits() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let tables = machine(1e-8, 1e-8, 1e-9);
    let mut schedules = Vec::new();
    for (job, share) in [((8, 12, 4), 0.5), ((48, 24, 12), 0.3), ((64, 8, 24), 0.2), ((1, 40, 8), 0.6)] {
        let args = bench(&model, &[]);
        let opened = loaded::open(Some(&model), &args, Voice::Quiet).unwrap();
        let budgets = budgets(folder.path(), &opened, (job, share));
        let emitted = emitted(folder.path(), &model, &opened, (&budgets, job), &tables);
        let (requests, input, output) = job;
        let work = Work::exactly(requests, input, output);
        let told_all = choose_by(&opened, settings(&emitted, job), &emitted, work, &|_| panic!("it is told"));
        // As a command finds it by itself.
        let args = bench(&model, &budgets);
        let costs = |_: &EngineConfig| Ok(Some(Costs::Profile(tables.clone().into())));
        let chosen = choose_by(&opened, settings(&args, job), &args, work, &costs).unwrap();
        let (emitted, told) =
            (told_all.unwrap().planned, chosen.told.unwrap_or_else(|| panic!("{job:?}: silence")));
        assert_eq!(chosen.planned.blocks(), emitted.blocks(), "{job:?}");
        assert_eq!(placed(&chosen.planned), placed(&emitted), "{job:?}");
        assert!(told.contains("binds") && told.contains("tokens/s predicted"), "{told}");
        schedules.push(chosen.planned.blocks().schedule);
    }
    assert!(
        schedules.contains(&Schedule::Continuous) && schedules.iter().any(|s| *s != Schedule::Continuous)
    );
}

#[test]
fn candidates_are_compared_beside_one_process_and_the_best_that_still_fits_is_carried_out() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let tables = machine(1e-8, 1e-8, 1e-9);
    let job = (48, 24, 12);
    let opened = loaded::open(Some(&model), &bench(&model, &[]), Voice::Quiet).unwrap();
    let args = bench(&model, &budgets(folder.path(), &opened, (job, 0.3)));
    let base = (settings(&args, job), Fixed::of(&args));
    let rehearsals = Rehearsals::by(&tables);
    let found = |resident_bytes| {
        let here = planner(&opened, base.clone(), Work::exactly(48, 24, 12).job, &rehearsals);
        Planner { resident_bytes, ..here }.search(rescored()).unwrap()
    };
    assert!(found(1 << 30).is_none(), "nothing fits beside a process that fills the memory");
    let scored = found(1 << 20).expect("a plan").scored;
    assert!(scored.len() > 2);
    let too_small = || TooSmall::Disk { need: 7, limit: 0 };
    let best = scored[0].candidate;
    let grown = |candidate: &Candidate| match *candidate == best {
        true => Err(too_small()),
        false => Ok(*candidate),
    };
    let (carried, told) = carried_out(&scored, grown).unwrap();
    assert_eq!((carried, told.candidate), (scored[1].candidate, scored[1].candidate));
    let refused = carried_out(&scored, |_| Err::<(), _>(too_small())).map(drop).unwrap_err();
    assert!(matches!(refused, TooSmall::Disk { need: 7, .. }), "{refused}");
}

#[test]
fn an_emitted_plan_means_the_same_where_there_is_more_memory() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let tables = machine(1e-8, 1e-8, 1e-9);
    let job = (48, 24, 12);
    let opened = loaded::open(Some(&model), &bench(&model, &[]), Voice::Quiet).unwrap();
    let budgets = budgets(folder.path(), &opened, (job, 0.3));
    let args = emitted(folder.path(), &model, &opened, (&budgets, job), &tables);
    let there = |more: u64| {
        let mut config = settings(&args, job);
        config.memory += more;
        config.offload.device_memory = config.offload.device_memory.map(|bytes| bytes + more);
        Planned::new(&opened.checkpoint, config).unwrap()
    };
    let here = there(0);
    assert!(here.hold().streamed_bytes > 0 || here.hold().host_weight_bytes > 0);
    // With so much more all weights would fit.
    assert_eq!(placed(&here)[..3], placed(&there(16 << 20))[..3]);
}

#[test]
fn numbers_are_emitted_as_they_were_planned() {
    let folder = tempfile::tempdir().unwrap();
    let (model, job) = (model(folder.path()), (8, 12, 4));
    let opened = loaded::open(Some(&model), &bench(&model, &[]), Voice::Quiet).unwrap();
    let given = format!("--memory 1GiB --offload-dir {model} --weights int8 --activations int16 --kv fp8");
    let tables = machine(1e-8, 1e-8, 1e-9);
    let args = emitted(folder.path(), &model, &opened, (&flags(&given), job), &tables);
    let names = [typed(args.weights), typed(args.activations), args.kv_name().into()];
    assert_eq!(names, ["int8", "int16", "fp8"]);
}

#[test]
fn weights_that_fit_make_way_for_kv_where_that_is_faster() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let (job, work) = ((48, 24, 12), Work::exactly(48, 24, 12));
    let opened = loaded::open(Some(&model), &bench(&model, &[]), Voice::Quiet).unwrap();
    // All weights, and KV for some sequences.
    let step = flags("--max-num-batched-tokens 48");
    let roomy = Planned::new(&opened.checkpoint, settings(&bench(&model, &step), job)).unwrap();
    let device = roomy.hold().arena_bytes() - roomy.hold().kv_bytes * 3 / 4;
    let budgets = flags(&format!("--memory 1GiB --offload-dir {model} --device-memory {device}"));
    let args = bench(&model, &[step, budgets].concat());
    let plain = Planned::new(&opened.checkpoint, settings(&args, job)).unwrap();
    assert!(plain.fits() && plain.hold().kv_tokens < kv_tokens(48, 36), "{}", plain.hold());
    let chosen = |tables: Tables| {
        let costs = |_: &EngineConfig| Ok(Some(Costs::Profile(tables.clone().into())));
        choose_by(&opened, settings(&args, job), &args, work, &costs).unwrap()
    };
    let fast = chosen(Tables { disk_read: Curve::rate(1e10), ..machine(1e-8, 1e-8, 1e-9) });
    assert!(fast.told.is_some() && !fast.planned.fits());
    assert!(fast.planned.hold().kv_tokens > plain.hold().kv_tokens, "{}", fast.planned.hold());
    let slow = chosen(Tables { disk_read: Curve::rate(1e4), ..machine(1e-8, 1e-8, 1e-3) });
    assert!(slow.planned.fits(), "{}", slow.planned.hold());
}

#[test]
fn what_fits_or_is_told_is_not_searched() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let job = (8, 12, 4);
    let never = |_: &EngineConfig| -> Result<Option<Costs>> { panic!("costs are not asked for") };
    for told in [
        "--memory 1GiB",
        "--memory 1GiB --device-memory 32MiB --percent 20 80 100 0 100 0",
        "--memory 1GiB --percent 20 80 0 100 100 0 --attend host",
        "--memory 1GiB --device-memory 1400KiB --schedule zigzag --num-batches 2 --batch-size 4",
    ] {
        let args = bench(&model, &flags(told));
        let opened = loaded::open(Some(&model), &args, Voice::Quiet).unwrap();
        let chosen = choose_by(&opened, settings(&args, job), &args, Work::exactly(8, 12, 4), &never);
        assert!(chosen.unwrap().told.is_none(), "{told}");
    }
}

#[test]
fn decodes_attend_where_costs_say_that_it_takes_less() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let job = (8, 200, 24);
    let attend = |more: &str, tables: &Tables| {
        let args = bench(&model, &flags(&format!("--memory 1GiB --percent 100 0 0 100 100 0 {more}")));
        let opened = loaded::open(Some(&model), &args, Voice::Quiet).unwrap();
        let costs = |_: &EngineConfig| Ok(Some(Costs::Profile(tables.clone().into())));
        let chosen = choose_by(&opened, settings(&args, job), &args, Work::exactly(8, 200, 24), &costs);
        chosen.unwrap().planned.blocks().delegate
    };
    // A host that attends slowly behind a fast link, and the other way round. A position is 128 bytes a layer.
    let (slow_host, slow_link) = (machine(1e-9, 1e-6, 1e-11), machine(1e-9, 1e-8, 1e-8));
    assert_eq!(attend("", &slow_host), Delegate::Streamed);
    assert_eq!(attend("", &slow_link), Delegate::Host);
    assert_eq!(attend("--attend host", &slow_host), Delegate::Host);
    assert_eq!(attend("--attend device", &slow_link), Delegate::Streamed);
}

#[test]
fn what_runs_have_found_out_changes_the_plan() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let job = (8, 200, 24);
    let args = bench(&model, &flags("--memory 1GiB --percent 100 0 0 100 100 0"));
    let opened = loaded::open(Some(&model), &args, Voice::Quiet).unwrap();
    // The link hides behind computing, until it turns out to be four times as slow.
    let tables = machine(1e-9, 1e-7, 5e-10);
    let attend = |correction| {
        let by = Foresight { correction, ..tables.clone().into() };
        let costs = |_: &EngineConfig| Ok(Some(Costs::Profile(by.clone())));
        let chosen = choose_by(&opened, settings(&args, job), &args, Work::exactly(8, 200, 24), &costs);
        chosen.unwrap().planned.blocks().delegate
    };
    let mut slow = Correction::default();
    assert_eq!(attend(slow), Delegate::Streamed);
    slow.hear(OpSort::Copies, 1e6, 4e6, &Pace::default());
    assert_eq!(attend(slow), Delegate::Host);
}

#[test]
fn a_sequence_whose_kv_the_device_has_no_room_for_has_it_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let (job, exactly) = ((1, 440, 8), Work::exactly(1, 440, 8));
    let tables = machine(1e-8, 1e-8, 1e-9);
    let step = flags("--max-num-batched-tokens 16");
    let opened = loaded::open(Some(&model), &bench(&model, &[]), Voice::Quiet).unwrap();
    let roomy = Planned::new(&opened.checkpoint, settings(&bench(&model, &step), job)).unwrap();
    // For what must be there, for weights on their way, and for a third of KV.
    let weights = roomy.outline().layer_bytes;
    let device = roomy.hold().arena_bytes() - weights - roomy.hold().kv_bytes * 2 / 3 + (384 << 10);
    let budgets = flags(&format!("--memory 1GiB --offload-dir {model} --device-memory {device}"));
    let args = bench(&model, &[step, budgets].concat());
    let alone = Planned::new(&opened.checkpoint, settings(&args, job)).map(|planned| *planned.hold());
    assert!(alone.is_err(), "{alone:?}");
    let guess = Work::likely(1, (440, 8), 448, Ends::Open);
    for work in [exactly, guess] {
        let costs = |_: &EngineConfig| Ok(Some(Costs::Profile(tables.clone().into())));
        let chosen = choose_by(&opened, settings(&args, job), &args, work, &costs).unwrap();
        let hold = chosen.planned.hold();
        assert!(hold.host_kv_bytes + hold.drive_kv_bytes > 0, "{hold}");
        assert!(hold.kv_tokens >= 448 && hold.max_model_len >= 448, "{hold}");
    }
}

/// Without costs, too: the shortest steps, and KV where the device needs least for it.
#[test]
fn what_a_device_is_told_to_need_is_enough_and_less_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let job = (4, 440, 8);
    let opened = loaded::open(Some(&model), &bench(&model, &[]), Voice::Quiet).unwrap();
    for (more, work) in [
        ("", Work::exactly(4, 440, 8)),
        ("--max-num-seqs 4", Work::likely(4, (440, 8), 448, Ends::Open)),
        ("--max-num-batched-tokens 24", Work::likely(4, (440, 8), 448, Ends::Known)),
    ] {
        let chosen_by = |device: u64, tables: Option<Tables>| {
            let told = format!("--memory 1GiB --offload-dir {model} --device-memory {device} {more}");
            let args = bench(&model, &flags(&told));
            let costs = |_: &EngineConfig| Ok(tables.clone().map(|tables| Costs::Profile(tables.into())));
            choose_by(&opened, settings(&args, job), &args, work, &costs)
        };
        let chosen = |device| chosen_by(device, None);
        let why = chosen(64 << 10).err().unwrap().downcast::<TooSmall>().unwrap();
        let &TooSmall::Device { need, kv, .. } = why.lacks() else { panic!("{why}") };
        let fits = chosen(need).unwrap_or_else(|why| panic!("{need}: {why}"));
        let (hold, told) = (fits.planned.hold(), fits.told.unwrap());
        assert!(hold.kv_blocks == 0 && hold.host_kv_bytes > kv, "{hold}");
        assert!(told.contains("the engine's own rule decides, KV 100 % host, by steps of "), "{told}");
        let searched = chosen_by(need, Some(machine(1e-8, 1e-8, 1e-9))).unwrap();
        assert!(searched.told.unwrap().starts_with("plan: weights "));
        assert!(chosen(need - 1).is_err(), "{need}");
    }
}

/// A model of which every pass reads a part again answers one person slowly.
#[test]
fn weights_make_room_for_a_crowd_that_somebody_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let args = bench(&model, &flags("--memory 1GiB"));
    let opened = loaded::open(Some(&model), &args, Voice::Quiet).unwrap();
    let config = settings(&args, (64, 440, 8));
    let planned = Planned::new(&opened.checkpoint, config.clone()).unwrap();
    let hold = Hold { kv_tokens: 10 * 448, ..*planned.hold() };
    let likely = Work::likely(64, (440, 8), 448, Ends::Open);
    assert!(starves(&hold, &config, likely));
    assert!(!starves(&hold, &config, likely.of_a_crowd_from(32)));
    assert!(starves(&Hold { kv_tokens: 5 * 448, ..hold }, &config, likely.of_a_crowd_from(32)));
}

/// Just too little is left beside weights: shorter steps leave enough, and where flags say how long steps are, weights in 12 bits do.
#[test]
fn weights_stay_by_shorter_steps_or_in_12_bits() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let (job, work) = ((64, 440, 8), Work::likely(64, (440, 8), 448, Ends::Open).of_a_crowd_from(32));
    let opened = loaded::open(Some(&model), &bench(&model, &[]), Voice::Quiet).unwrap();
    let step = |told: &str| flags(&format!("--max-num-seqs 64 {told}"));
    let roomy = Planned::new(&opened.checkpoint, settings(&bench(&model, &step("")), job)).unwrap();
    let token_bytes = roomy.hold().kv_bytes / roomy.hold().kv_tokens as u64;
    // For 4,096 tokens it would be enough.
    let device = roomy.hold().arena_bytes() - roomy.hold().kv_bytes + 4064 * token_bytes;
    let chosen = |told: &str| {
        let budgets = flags(&format!("--memory 1GiB --offload-dir {model} --device-memory {device}"));
        let args = bench(&model, &[step(told), budgets].concat());
        let never = |_: &EngineConfig| -> Result<Option<Costs>> { panic!("costs are not asked for") };
        let planned = choose_by(&opened, settings(&args, job), &args, work, &never).unwrap().planned;
        assert!(planned.fits() && planned.hold().kv_tokens >= 4096, "{}", planned.hold());
        (planned.config().max_num_batched_tokens, planned.config().weights)
    };
    assert_eq!(chosen(""), (512, WeightsAs::Stored));
    let steps = roomy.config().max_num_batched_tokens;
    assert_eq!(chosen(&format!("--max-num-batched-tokens {steps}")), (steps, WeightsAs::Bf12));
}

#[test]
fn as_many_are_planned_for_as_are_at_once() {
    let sampled = |work: Work, at_once| work.sample(at_once).job.requests;
    let likely = |requests| Work::likely(requests, (8, 8), 64, Ends::Open);
    assert_eq!([0, 100, 1024].map(|at_once| sampled(likely(10_000), at_once)), [512, 512, 1024]);
    assert_eq!((sampled(likely(700), 1024), sampled(Work::exactly(10_000, 8, 8), 1)), (700, 10_000));
    let at_once = |more: &str| Fixed::of(&bench("m", &flags(more))).at_once();
    assert_eq!(at_once(""), 0);
    assert_eq!(at_once("--max-num-seqs 1024"), 1024);
    assert_eq!(at_once("--batch-size 300 --num-batches 4"), 1200);
}
