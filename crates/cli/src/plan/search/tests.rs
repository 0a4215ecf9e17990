use super::super::candidate::Lengths;
use super::*;
use crate::args::{BenchCommand, Cli, Command};
use crate::display::Voice;
use crate::loaded;
use crate::resolve::{Needs, engine_config};
use clap::Parser;
use kernels::Isa;
use policy::cost::{Curve, Decode, Linear};

/// A machine that computes at once, and moves bytes at some rate.
fn tables() -> Tables {
    let linear = || Linear { seconds: Curve::rate(1e6), bytes: 20e3, ..Linear::default() };
    Tables {
        qkv: linear(),
        out: linear(),
        mlp: linear(),
        head: linear(),
        embed: Curve::rate(1e9),
        sample: Curve::rate(1e6),
        decode: vec![Decode { seqs: 1, seconds: Curve::rate(1e8) }],
        prefill: Curve::rate(1e9),
        disk_read: Curve::rate(1e10),
        disk_write_bytes_per_s: 1e10,
        copy_bytes_per_s: 1e10,
        step_gap_s: 1e-2,
        ..Tables::default()
    }
}

/// A tiny model of many layers, whose KV takes many times the room of its weights.
fn engine_args(folder: &std::path::Path, memory: u64) -> EngineArgs {
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../model/tests/golden/llama-gqa-tied/config.json");
    let config = std::fs::read_to_string(golden).unwrap();
    let config = config.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 24");
    std::fs::write(folder.join("config.json"), config).unwrap();
    let folder = folder.display();
    let words = format!(
        "ballast bench throughput {folder} --load-format dummy --memory {memory} --offload-dir {folder} --threads 2"
    );
    match Cli::try_parse_from(words.split_whitespace()).unwrap().command {
        Command::Bench(BenchCommand::Throughput(args)) => args.common.engine,
        _ => unreachable!("it was asked for"),
    }
}

const MEMORY: u64 = 16 << 20;

/// Plans so many requests of 200 in and 24 out on that machine.
fn planning(requests: usize, of: impl FnOnce(&Planner<'_>)) {
    let folder = tempfile::tempdir().unwrap();
    let args = engine_args(folder.path(), MEMORY);
    let model = folder.path().display().to_string();
    let opened = loaded::open(Some(&model), &args, Voice::Quiet).unwrap();
    let job = Job { requests, input: 200, output: 24, lengths: Lengths::Exact };
    // What threads keep of their own is the same on every machine.
    let base = EngineConfig {
        isa: Isa::Avx2,
        ..engine_config(&args, Needs::of_requests(&args, requests, 200, 24)).unwrap()
    };
    of(&Planner {
        checkpoint: &opened.checkpoint,
        base,
        job,
        tables: &tables(),
        fixed: Fixed::of(&args),
        resident_bytes: 1 << 20,
    });
}

/// What the programme likes for a machine with room for one sequence and no more.
fn liked(planner: &Planner<'_>) -> Vec<Placed> {
    let (homes, least) = planner.least().expect("one sequence has room");
    assert!(homes.stay() && matches!(least.hold().budget, Budget::Common(_)), "{homes:?}");
    search_up_to(&planner.question(&least), 64, RESCORED)
}

#[test]
fn kv_that_one_memory_has_no_room_for_goes_to_the_drive() {
    planning(64, |planner| {
        let placed = liked(planner);
        let on_drive = |split: Split| split.part(Tier::Disk) > 0 && split.part(Tier::Host) == 0;
        assert!(placed.iter().any(|placed| on_drive(placed.placement.kv)), "{placed:?}");
        // What is chosen in the end fits, KV on the drive or not.
        let found = planner.search(RESCORED).unwrap().expect("a plan");
        assert!(found.scored.iter().any(|scored| on_drive(scored.candidate.homes.kv)));
        // No tier has a part of a sequence.
        for Candidate { homes, batch_size, num_batches, .. } in planner.candidates(&placed, None) {
            let sequences = (batch_size * num_batches) as f64;
            let on_device = f64::from(homes.kv.part(Tier::Device)) / f64::from(Split::WHOLE) * sequences;
            let off = (on_device - on_device.round()).abs();
            assert!(off < 1e-3, "{on_device} of {sequences} sequences are on the device");
        }
        assert!(found.scored.iter().all(|scored| scored.outline.peak_bytes.device <= MEMORY));
    });
}

#[test]
fn a_part_of_a_long_job_tells_what_all_of_it_comes_to() {
    planning(300, |planner| {
        let off = |candidate: Candidate| {
            let part = planner.score_in(candidate, screen::FIRST_GENERATIONS).unwrap()?.run;
            let whole = planner.score_in(candidate, [planner.job.requests; 2]).unwrap()?.run;
            assert_eq!(whole.rehearsed, planner.job.requests);
            let is_part = part.rehearsed < whole.rehearsed;
            is_part.then(|| (part.tokens_per_s() / whole.tokens_per_s() - 1.0).abs())
        };
        let every = planner.candidates(&liked(planner), None).into_iter().step_by(6);
        let mut off: Vec<f64> = every.filter_map(off).collect();
        off.sort_by(f64::total_cmp);
        assert!(off.len() > 5 && off[off.len() / 2] < 0.01 && off[off.len() - 1] < 0.2, "{off:?}");
    });
}

/// Those that may all be at once are not: KV has no room for them.
#[test]
fn of_a_job_many_times_what_kv_has_room_for_a_part_is_run() {
    planning(20_000, |planner| {
        let every = planner.candidates(&liked(planner), None).into_iter();
        let at_once: Vec<_> = every.filter(|candidate| candidate.seqs(planner.job) > 1000).collect();
        assert!(!at_once.is_empty());
        let score = |candidate| planner.score_in(candidate, screen::FIRST_GENERATIONS).unwrap();
        let rehearsed: Vec<usize> =
            at_once.into_iter().filter_map(score).map(|scored| scored.run.rehearsed).collect();
        assert!(!rehearsed.is_empty() && rehearsed.iter().all(|part| *part < 5000), "{rehearsed:?}");
    });
}

#[test]
fn whoever_was_not_run_whole_is_there_where_the_others_do_not_fit_any_more() {
    planning(300, |planner| {
        let found = planner.search(2).unwrap().expect("a plan");
        let apart = |candidate: &Candidate| found.scored.iter().all(|scored| scored.candidate != *candidate);
        assert!(found.others.len() > 1 && found.others.iter().all(apart), "{:?}", found.others);
        let room = |candidate: &Candidate| match *candidate == found.others[0] {
            true => Err(TooSmall::Disk { need: 7, limit: 0 }),
            false => Ok(*candidate),
        };
        let (planned, scored) = planner.next_best(&found.others, room).unwrap().expect("one fits");
        assert_eq!((planned, scored.candidate), (found.others[1], found.others[1]));
        let none = |_: &Candidate| Err::<(), _>(TooSmall::Disk { need: 7, limit: 0 });
        assert!(planner.next_best(&found.others, none).unwrap().is_none());
    });
}

#[test]
fn of_plans_that_are_as_fast_the_one_that_answers_sooner() {
    assert_eq!(preferred([(93.0, 11.0), (92.9, 6.0), (92.5, 3.3), (92.4, 3.3), (80.0, 1.0)]), Some(2));
    assert_eq!(preferred([(93.0, 3.0), (92.9, 3.0)]), Some(0));
    assert_eq!(preferred([]), None);
}
