//! A job whose engine dies before it has told of its requests.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::job::{Ask, Hears, Input, Job, JobError, Limits, Outlook, Output, Record, Tally, Watch};
use engine::{Event, Failure};
use model::api::{ApiError, Context, Generate, OwnTemplates, Streaming};
use model::output::FinishReason;
use model::sampling::GenerationConfig;
use model::template::{SpecialTexts, WallClock};
use model::tokenizer::Tokenizer;

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

#[test]
fn a_job_ends_with_its_engine_though_nobody_told_of_its_requests() {
    let model = "llama";
    let engine = common::start(model, common::config());
    let tokenizer = Arc::new(Tokenizer::from_dir(&common::folder(model)).unwrap().0);
    let body = r#"{"model":"m","prompt":[5,6,7],"max_tokens":1}"#;
    let line = format!(r#"{{"custom_id":"a","method":"POST","url":"/v1/completions","body":{body}}}"#);
    let input = Input::new(line.into_bytes());
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
    let limits = Limits { in_flight: 1, window: 1, line_sequences: 1 };
    let job = Job { engine: &engine, tokenizer: &tokenizer, context, input: &input, limits };
    let outlook = Outlook::fresh(Record::new(&input, 0, BTreeMap::new()), &input);
    let ended = job.run(&outlook, Output::Stream(Box::new(std::io::sink())), &mut Breaks);
    assert!(
        matches!(&ended, Err(JobError::Engine(Failure::Engine(why))) if why.contains("counts tokens")),
        "{ended:?}"
    );
}
