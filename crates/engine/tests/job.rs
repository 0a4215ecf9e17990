//! A job whose engine dies before it has told of its requests, and one whose lines are more than the engine has room for.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::job::{Ask, Ended, Hears, Input, Job, JobError, Limits, Outlook, Output, Record, Tally, Watch};
use engine::{Engine, Event, Failure};
use model::api::{ApiError, Context, Generate, OwnTemplates, Streaming};
use model::output::FinishReason;
use model::sampling::GenerationConfig;
use model::template::{SpecialTexts, WallClock};
use model::tokenizer::Tokenizer;

const MODEL: &str = "llama";

/// Goes on for ever, and breaks at the first token: on the lane that tells of it.
struct Breaks;

impl Watch for Breaks {
    fn ask(&mut self) -> Ask {
        Ask::GoOn
    }

    fn tell(&mut self, _: &Tally) {}

    fn begins(&mut self, _: &Generate) -> Box<dyn Hears> {
        Box::new(Breaks)
    }
}

impl Hears for Breaks {
    fn sequence(&mut self, _: usize) -> Box<dyn FnMut(&Event) + Send> {
        Box::new(|event| assert!(!matches!(event, Event::Token(_)), "who counts tokens is broken"))
    }

    fn finished(&mut self, _: FinishReason, _: usize) {}

    fn failed(&mut self, why: Failure) -> ApiError {
        why.into()
    }
}

/// Counts lines under way.
#[derive(Default)]
struct Counts {
    most: usize,
}

impl Watch for Counts {
    fn ask(&mut self) -> Ask {
        Ask::GoOn
    }

    fn tell(&mut self, tally: &Tally) {
        self.most = self.most.max(tally.under_way);
    }
}

/// Runs a job of these bodies.
fn run(
    (engine, bodies): (&Engine, &[String]),
    limits: Limits,
    watch: &mut dyn Watch,
) -> Result<(Ended, Tally), JobError> {
    let tokenizer = Arc::new(Tokenizer::from_dir(&common::folder(MODEL)).unwrap().0);
    let line = |(i, body): (usize, &String)| {
        format!(r#"{{"custom_id":"{i}","method":"POST","url":"/v1/completions","body":{body}}}"#)
    };
    let lines: Vec<String> = bodies.iter().enumerate().map(line).collect();
    let input = Input::new(lines.join("\n").into_bytes());
    let (generation, served) = (GenerationConfig::default(), ["m".to_string()]);
    let context = Context {
        tokenizer: &tokenizer,
        template: None,
        tool_template: None,
        special: SpecialTexts::default(),
        generation: &generation,
        served: &served,
        vocab_size: engine.spec().vocab,
        context_len: engine.hold().max_model_len,
        max_logprobs: 0,
        own_templates: OwnTemplates::Refused,
        streaming: Streaming::Refused,
        now: WallClock { unix_s: 0, utc_offset_s: 0 },
    };
    let job = Job { engine, tokenizer: &tokenizer, context, input: &input, limits };
    let outlook = Outlook::fresh(Record::new(&input, 0, BTreeMap::new()), &input);
    job.run(&outlook, Output::Stream(Box::new(std::io::sink())), watch)
}

#[test]
fn a_job_ends_with_its_engine_though_nobody_told_of_its_requests() {
    let engine = common::start(MODEL, common::config());
    let body = r#"{"model":"m","prompt":[5,6,7],"max_tokens":1}"#.to_string();
    let limits =
        Limits { in_flight: 1, prompt_tokens: Limits::prompt_tokens(&engine), window: 1, line_sequences: 1 };
    let ended = run((&engine, &[body]), limits, &mut Breaks);
    assert!(
        matches!(&ended, Err(JobError::Engine(Failure::Engine(why))) if why.contains("counts tokens")),
        "{ended:?}"
    );
}

/// Prompts of 60 tokens: a dozen of them are in the engine, not a hundred.
#[test]
fn prompts_that_are_handed_in_are_bounded_by_their_tokens() {
    let engine = common::start(MODEL, common::config());
    let body = |i: usize| {
        let prompt: Vec<usize> = (0..60).map(|at| 3 + (7 * i + at) % 90).collect();
        format!(r#"{{"model":"m","prompt":{prompt:?},"max_tokens":2,"ignore_eos":true}}"#)
    };
    let bodies: Vec<String> = (0..100).map(body).collect();
    let limits = Limits { in_flight: 100, prompt_tokens: 700, window: 200, line_sequences: 1 };
    let mut counts = Counts::default();
    let (ended, tally) = run((&engine, &bodies), limits, &mut counts).unwrap();
    assert_eq!((ended, tally.done, tally.failed), (Ended::Finished, 100, 0));
    assert!((6..=12).contains(&counts.most), "{} lines at once", counts.most);
}
