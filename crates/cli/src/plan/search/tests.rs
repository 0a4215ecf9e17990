use super::super::candidate::Lengths;
use super::*;
use crate::args::{BenchCommand, Cli, Command};
use crate::display::Voice;
use crate::loaded;
use crate::resolve::{Needs, engine_config};
use clap::Parser;
use kernels::Isa;
use policy::cost::{Curve, Decode, Linear, Tables};

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
    let tables = tables();
    of(&Planner {
        checkpoint: &opened.checkpoint,
        base,
        job,
        rehearsals: &Rehearsals::by(&tables),
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

#[test]
fn what_was_run_is_not_run_again() {
    planning(48, |planner| {
        let made = || planner.rehearsals.made();
        let placed = liked(planner);
        let candidates = planner.candidates(&placed[..2], None);
        let outlines: Vec<_> = candidates.iter().map(|candidate| planner.outline(candidate)).collect();
        let runs = planner.runs(&outlines, GENERATIONS).unwrap();
        let first = made();
        assert!(first > 1 && runs.iter().flatten().count() > 1);
        // Those of a kind are one, in a search and in the next.
        let twice = [&outlines[..], &outlines[..]].concat();
        assert_eq!(planner.runs(&twice, GENERATIONS).unwrap(), [&runs[..], &runs[..]].concat());
        assert_eq!(made(), first);
        let (kinds, of) = kinds(&twice);
        assert!(
            kinds.len() <= outlines.iter().flatten().count() && of[..outlines.len()] == of[outlines.len()..]
        );
        planner.search(2).unwrap().expect("a plan");
        let searched = made();
        planner.search(2).unwrap().expect("a plan");
        assert_eq!(made(), searched, "what was left before its end is known to be too late");
    });
}

#[test]
fn a_longer_look_begins_with_what_was_run() {
    planning(300, |planner| {
        let candidate = planner.candidates(&liked(planner), None).into_iter().find(|candidate| {
            let run = planner.score_in(*candidate, screen::FIRST_GENERATIONS).unwrap();
            run.is_some_and(|scored| scored.run.rehearsed < 150)
        });
        let before = planner.rehearsals.made();
        planner.score(candidate.expect("a part tells the rest")).unwrap();
        assert_eq!(planner.rehearsals.made(), before + 1, "four generations were run");
    });
}

#[test]
fn nobody_is_left_out_who_would_be_chosen() {
    planning(48, |planner| {
        let candidates = planner.candidates(&liked(planner), None);
        let some = candidates.iter().step_by(4);
        let outlines: Vec<_> = some.map(|candidate| planner.outline(candidate)).collect();
        let raced = planner.race(&outlines).unwrap();
        let all = planner.runs(&outlines, GENERATIONS).unwrap();
        let rate = |run: &Option<Offline>| run.as_ref().map_or(0.0, Offline::tokens_per_s);
        let fastest = all.iter().map(rate).fold(0.0, f64::max);
        let mut left = 0;
        for (raced, run) in raced.iter().zip(&all).filter(|(_, run)| run.is_some()) {
            assert!(raced == run || raced.is_none() && rate(run) < AS_FAST * fastest, "{run:?}");
            left += usize::from(raced.is_none());
        }
        assert!(left > 0, "all were run to their ends");
        // Who draws a curve leaves none out.
        let fixed = Fixed { max_latency_s: Some(f64::MAX), ..planner.fixed };
        let curve = Planner { fixed, base: planner.base.clone(), ..*planner };
        assert!(
            planner.enough(all.iter().flatten()).is_some() && curve.enough(all.iter().flatten()).is_none()
        );
    });
}

/// No gain is told of memory that changes nothing, however few blocks were looked at.
#[test]
fn a_plan_that_nobody_had_looked_at_is_no_gain_of_memory() {
    planning(48, |planner| {
        let found = planner.search(1).unwrap().expect("a plan");
        let same = Planner { base: planner.base.clone(), ..*planner };
        assert_eq!(planner.gain(&found, &same).unwrap(), 0.0);
        // A plan that is not the best there is: what is better has room here, too.
        let slow = found.scored.last().expect("some were run").clone();
        let worse = Found { scored: vec![slow], others: vec![], keep: 1, programme: None };
        assert_eq!(planner.gain(&worse, &same).unwrap(), 0.0);
    });
}
