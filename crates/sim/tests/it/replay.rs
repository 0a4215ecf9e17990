//! A recorded run replays to identical steps; any difference is found, where it begins.

use crate::common::{random_config, random_world, run};
use policy::log::{Entry, Recorded};
use policy::sched::{Fcfs, Next};
use sim::{FirstDifference, Rng, replay};
use spec::{Outcome, Produced, StepId};

/// The log of a random run.
fn recorded(seed: u64) -> Vec<Entry> {
    let mut rng = Rng::new(seed);
    let config = random_config(&mut rng);
    let mut entries = Vec::new();
    let sink = |entry: &Entry| entries.push(entry.clone());
    run(
        &mut random_world(config.groups, &mut rng),
        &mut Recorded::new(Fcfs::new(config.clone()), &config, sink),
    );
    entries
}

fn lines(entries: &[Entry]) -> Vec<u8> {
    let line = |entry| serde_json::to_string(entry).expect("entries are plain data") + "\n";
    entries.iter().map(line).collect::<String>().into_bytes()
}

fn steps(entries: &[Entry]) -> usize {
    entries.iter().filter(|entry| matches!(entry, Entry::Next { answer: Next::Run(_), .. })).count()
}

#[test]
fn a_recorded_run_replays_to_identical_steps() {
    for seed in 0..50 {
        let entries = recorded(seed);
        let found = replay(&lines(&entries)[..]).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!((found.lines, found.steps), (entries.len(), steps(&entries)), "seed {seed}");
    }
}

#[test]
fn a_changed_step_is_found_where_it_is() {
    let mut entries = recorded(3);
    let (at, step) = entries
        .iter_mut()
        .enumerate()
        .filter_map(|(at, entry)| match entry {
            Entry::Next { answer: Next::Run(step), .. } => Some((at, step)),
            _ => None,
        })
        .nth(5)
        .expect("the run has more steps");
    step.id = StepId(step.id.0 + 1);
    match replay(&lines(&entries)[..]) {
        Err(FirstDifference::Answer { line, .. }) => assert_eq!(line, at + 1),
        other => panic!("the change was not found: {other:?}"),
    }
}

#[test]
fn an_event_left_out_is_found() {
    let mut entries = recorded(3);
    let done = entries.iter().position(|entry| matches!(entry, Entry::Done { .. })).expect("a step was done");
    entries.remove(done);
    assert!(matches!(replay(&lines(&entries)[..]), Err(FirstDifference::Answer { line, .. }) if line > done));
}

#[test]
fn outcomes_that_do_not_fit_their_chunks_are_errors() {
    let entries = recorded(3);
    let found = entries.iter().enumerate().find_map(|(at, entry)| match entry {
        Entry::Done { done, .. } => {
            done.outcomes.iter().position(|outcome| outcome.produced == Produced::Token).map(|i| (at, i))
        }
        _ => None,
    });
    let (at, i) = found.expect("tokens were drawn");
    let why = |change: fn(&mut Vec<Outcome>, usize)| {
        let mut entries = entries.clone();
        let Entry::Done { done, .. } = &mut entries[at] else { unreachable!("it was one") };
        change(&mut done.outcomes, i);
        match replay(&lines(&entries)[..]) {
            Err(FirstDifference::Log { line, why }) => (line, why),
            other => panic!("expected an error in the log, found {other:?}"),
        }
    };
    let (line, nothing) = why(|outcomes, i| outcomes[i].produced = Produced::Nothing);
    assert!(line == at + 1 && nothing.contains("has Nothing for sequence"), "{line}: {nothing}");
    let (line, twice) = why(|outcomes, i| outcomes.push(outcomes[i].clone()));
    assert!(line == at + 1 && twice.contains("or had one"), "{line}: {twice}");
}

/// Nothing is in flight after the last step, and who was sampled there would wait for ever.
#[test]
fn a_step_that_says_nothing_of_a_sequence_that_waits_is_an_error() {
    let mut entries = recorded(3);
    let last = entries.iter_mut().rev().find_map(|entry| match entry {
        Entry::Done { done, .. } if !done.outcomes.is_empty() => Some(&mut done.outcomes),
        _ => None,
    });
    last.expect("a step was done").clear();
    match replay(&lines(&entries)[..]) {
        Err(FirstDifference::Log { why, .. }) => assert!(why.contains("without an outcome"), "{why}"),
        other => panic!("expected an error in the log, found {other:?}"),
    }
}

#[test]
fn what_is_not_a_log_is_an_error_with_its_line() {
    let whole = lines(&recorded(3));
    let log = |bytes: &[u8]| match replay(bytes) {
        Err(FirstDifference::Log { line, why }) => format!("{line}: {why}"),
        other => panic!("expected an error in the log, found {other:?}"),
    };
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("JSON is text");
    assert_eq!(log(b""), "1: the log is empty: expected a Begin line");
    assert!(log(&whole[..100]).starts_with("1: EOF"));
    assert!(
        log(text(&whole).replacen("\"version\":1", "\"version\":9", 1).as_bytes())
            .starts_with("1: written in version 9")
    );
    assert!(
        log(text(&whole).replacen("\"depth\":", "\"depth\":0,\"was\":", 1).as_bytes())
            .contains("depth must be at least one")
    );
    let first = text(&whole).lines().next().expect("a line").to_string();
    assert_eq!(log(format!("{first}\n{first}\n").as_bytes()), "2: only the first line may be Begin");
    let arrive =
        text(&whole).lines().find(|line| line.contains("Arrive")).expect("a request came").to_string();
    assert!(log(format!("{first}\n{arrive}\n{arrive}\n").as_bytes()).contains("arrived before"));
}
