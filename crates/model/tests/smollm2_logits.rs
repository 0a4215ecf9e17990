//! SmolLM2-135M-Instruct against transformers, teacher-forced on its greedy continuations: 20 prompts, 64
//! positions each, with the same bf16 weights (`tests/golden/README.md`, smollm2.json).
//!
//! Its bf16 logits are rounded to steps of 1/16 to 1/8, and two of its own bf16 runs differ at 14 positions that the
//! first calls clear. So a position is judged where transformers is clear both in bf16 and in f32 arithmetic. Those that
//! differ from its bf16 run wherever that alone is clear are counted too, and may be few.
//!
//! The one test that fetches something: the model, once, into the cache. Where it cannot, it says so, and fails if
//! `BALLAST_REQUIRE_MODEL` is set.

mod runner;

use kernels::Isa;
use model::decoder::WeightsAs;
use model::source::{Places, Silent, locate};
use runner::Runner;
use serde::Deserialize;
use std::path::PathBuf;

/// Positions where transformers' two likeliest tokens are closer than this are counted, not judged.
const CLEAR: f32 = 0.05;
/// Most positions that may differ from transformers' bf16 run where that is clear: its own runs differ at more.
const DIFFER_MAX: usize = 12;

#[derive(Deserialize)]
struct Reference {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    continuation: Vec<u32>,
    bf16: Judged,
    f32: Judged,
}

#[derive(Deserialize)]
struct Judged {
    argmax: Vec<u32>,
    margin: Vec<f32>,
}

/// SmolLM2 and its reference; nothing where it cannot be fetched.
fn fetched() -> Option<(PathBuf, Reference)> {
    // The reference is of the weights in the Python package, not of those on the hub.
    let mut places = Places::from_env();
    (places.offline, places.hub_cache) = (true, places.cache.join("no-hub"));
    match locate(None, &places, &mut Silent) {
        Ok(path) => Some((path, serde_json::from_str(include_str!("golden/smollm2.json")).unwrap())),
        Err(why) => {
            assert!(
                std::env::var_os("BALLAST_REQUIRE_MODEL").is_none(),
                "SmolLM2 could not be fetched: {why}"
            );
            eprintln!("skipped: SmolLM2 could not be fetched: {why}");
            None
        }
    }
}

/// Our likeliest tokens where transformers chose those of a case's continuation.
fn likeliest<'a>(runner: &'a Runner, case: &'a Case) -> impl Iterator<Item = u32> + 'a {
    let ids = [&case.prompt[..], &case.continuation].concat();
    let logits = runner.logits(&ids, 0, case.prompt.len());
    (0..case.continuation.len()).map(move |i| argmax(&logits[case.prompt.len() + i - 1]))
}

#[test]
fn the_likeliest_token_is_that_of_transformers_wherever_it_is_clear() {
    let Some((path, reference)) = fetched() else { return };
    let runner = Runner::load(&path, WeightsAs::Bf16, Isa::detect());
    let (mut wrong, mut clear, mut unclear, mut torn, mut differ) = (Vec::new(), 0, 0, 0, 0);
    for (index, case) in reference.cases.iter().enumerate() {
        for (i, ours) in likeliest(&runner, case).enumerate() {
            let theirs = (case.bf16.argmax[i], case.f32.argmax[i]);
            differ += usize::from(ours != theirs.0 && case.bf16.margin[i] >= CLEAR);
            match () {
                () if ours == theirs.0 && case.bf16.margin[i] >= CLEAR => clear += 1,
                // transformers in bf16 and transformers in f32 choose differently: we side with either.
                () if theirs.0 != theirs.1 && (ours == theirs.0 || ours == theirs.1) => torn += 1,
                () if case.bf16.margin[i].min(case.f32.margin[i]) < CLEAR => unclear += 1,
                () => wrong.push(format!("case {index}, position {i}: {ours}, not {theirs:?}")),
            }
        }
    }
    eprintln!("{clear} clear positions agree; {unclear} unclear; {torn} where transformers' own runs differ");
    eprintln!("{differ} positions of {} differ that transformers' bf16 run calls clear", clear + differ);
    assert!(clear > 1000, "only {clear} clear positions: the reference is damaged");
    assert!(wrong.is_empty(), "{} clear positions differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(differ <= DIFFER_MAX, "{differ} positions differ, at most {DIFFER_MAX} may");
}

#[test]
fn in_f32_the_likeliest_token_is_that_of_transformers_at_every_clear_position() {
    let Some((path, reference)) = fetched() else { return };
    let runner = Runner::load(&path, WeightsAs::F32, Isa::detect());
    let (mut wrong, mut clear) = (Vec::new(), 0);
    for (index, case) in reference.cases.iter().enumerate() {
        for (i, ours) in likeliest(&runner, case).enumerate().filter(|(i, _)| case.f32.margin[*i] >= CLEAR) {
            match ours == case.f32.argmax[i] {
                true => clear += 1,
                false => wrong.push(format!(
                    "case {index}, position {i}: {ours}, not {} (by {})",
                    case.f32.argmax[i], case.f32.margin[i]
                )),
            }
        }
    }
    eprintln!("{clear} clear positions agree");
    assert!(clear > 1000, "only {clear} clear positions: the reference is damaged");
    assert!(wrong.is_empty(), "{} clear positions differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// The lowest of the ids with the largest logit.
fn argmax(row: &[f32]) -> u32 {
    (0..row.len()).rev().max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32
}
