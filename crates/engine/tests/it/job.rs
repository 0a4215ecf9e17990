//! A job whose engine dies before it has told of its requests, one whose lines are more than the engine has room for, and one
//! whose formats wait for others to be compiled.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::yield_now;

use crate::common;
use engine::job::{Ask, Ended, Hears, Input, Job, JobError, Limits, Outlook, Output, Record, Tally, Watch};
use engine::{Engine, EngineConfig, Event, Failure};
use model::api::{ApiError, Context, Generate, OwnTemplates, Streaming};
use model::grammar::{GrammarError, OutputFormat, WORKERS};
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

/// Lets these lines end before the next is begun, which breaks the engine; the last waits until that is dead.
struct BreaksLater<'a> {
    engine: &'a Engine,
    lines: usize,
    begun: usize,
    ended: Arc<AtomicUsize>,
}

impl Watch for BreaksLater<'_> {
    fn ask(&mut self) -> Ask {
        Ask::GoOn
    }

    fn tell(&mut self, _: &Tally) {}

    fn begins(&mut self, _: &Generate) -> Box<dyn Hears> {
        self.begun += 1;
        if self.begun <= self.lines {
            return Box::new(Ends(Arc::clone(&self.ended)));
        }
        let is_next = self.begun == self.lines + 1;
        let goes_on =
            || if is_next { self.ended.load(SeqCst) < self.lines } else { self.engine.alive().is_ok() };
        while goes_on() {
            yield_now()
        }
        Box::new(Breaks)
    }
}

/// Counts the ends of sequences.
struct Ends(Arc<AtomicUsize>);

impl Hears for Ends {
    fn sequence(&mut self, _: usize) -> Box<dyn FnMut(&Event) + Send> {
        let ended = Arc::clone(&self.0);
        Box::new(move |event| _ = ended.fetch_add(usize::from(matches!(event, Event::Finished(_))), SeqCst))
    }

    fn finished(&mut self, _: FinishReason, _: usize) {}

    fn failed(&mut self, why: Failure) -> ApiError {
        why.into()
    }
}

/// Runs a job of these bodies.
fn run(
    (engine, bodies): (&Engine, &[String]),
    limits: Limits,
    watch: &mut dyn Watch,
) -> Result<(Ended, Tally), JobError> {
    run_with(&Arc::new(tokenizer()), (engine, bodies), limits, watch)
}

fn tokenizer() -> Tokenizer {
    Tokenizer::from_dir(&common::folder(MODEL)).unwrap().0
}

fn run_with(
    tokenizer: &Arc<Tokenizer>,
    job: (&Engine, &[String]),
    limits: Limits,
    watch: &mut dyn Watch,
) -> Result<(Ended, Tally), JobError> {
    run_into(Box::new(std::io::sink()), tokenizer, job, (limits, watch))
}

fn run_into(
    output: Box<dyn Write>,
    tokenizer: &Arc<Tokenizer>,
    (engine, bodies): (&Engine, &[String]),
    (limits, watch): (Limits, &mut dyn Watch),
) -> Result<(Ended, Tally), JobError> {
    let line = |(i, body): (usize, &String)| {
        format!(r#"{{"custom_id":"{i}","method":"POST","url":"/v1/completions","body":{body}}}"#)
    };
    let lines: Vec<String> = bodies.iter().enumerate().map(line).collect();
    let input = Input::new(lines.join("\n").into_bytes());
    let (generation, served) = (GenerationConfig::default(), ["m".to_string()]);
    let context = Context {
        tokenizer,
        template: None,
        tool_template: None,
        special: SpecialTexts::default(),
        generation: &generation,
        served: &served,
        vocab_size: engine.spec().vocab,
        context_len: engine.hold().max_model_len,
        max_logprobs: 0,
        own_templates: OwnTemplates::Refused,
        thoughts: model::thoughts::Manner::default(),
        streaming: Streaming::Refused,
        now: WallClock { unix_s: 0, utc_offset_s: 0 },
    };
    let job = Job { engine, tokenizer, context, input: &input, limits };
    let outlook = Outlook::fresh(Record::new(&input, 0, BTreeMap::new()), &input);
    job.run(&outlook, Output::Stream(output), watch)
}

/// So many lines at once.
fn limits(lines: usize) -> Limits {
    Limits {
        in_flight: lines,
        prompt_tokens: 1 << 20,
        window: lines,
        waiting_bytes: Limits::waiting_bytes(u64::MAX),
        queue_bytes: Limits::waiting_bytes(u64::MAX),
        line_sequences: usize::MAX,
    }
}

#[test]
fn a_job_ends_with_its_engine_though_nobody_told_of_its_requests() {
    let engine = common::start(MODEL, common::config());
    let body = r#"{"model":"m","prompt":[5,6,7],"max_tokens":1}"#.to_string();
    let limits = limits(1);
    let ended = run((&engine, &[body]), limits, &mut Breaks);
    assert!(
        matches!(&ended, Err(JobError::Engine(Failure::Engine(why))) if why.contains("counts tokens")),
        "{ended:?}"
    );
}

#[test]
fn what_was_answered_before_the_engine_died_is_written() {
    let engine = common::start(MODEL, common::config());
    // More tokens than are heard of at one go.
    let (lines, long) = (80, 100);
    let body = |tokens: usize| {
        format!(r#"{{"model":"m","prompt":[5,6,7],"max_tokens":{tokens},"ignore_eos":true}}"#)
    };
    let bodies = [vec![body(long); lines], vec![body(1); 2]].concat();
    let limits = limits(bodies.len());
    let mut watch = BreaksLater { engine: &engine, lines, begun: 0, ended: Arc::default() };
    let written = tempfile::NamedTempFile::new().unwrap();
    let output = Box::new(written.reopen().unwrap());
    let ended = run_into(output, &Arc::new(tokenizer()), (&engine, &bodies), (limits, &mut watch));
    assert!(matches!(ended, Err(JobError::Engine(Failure::Engine(_)))), "{ended:?}");
    let written = std::fs::read_to_string(written.path()).unwrap();
    assert!(written.lines().count() == lines && written.contains(r#""custom_id":"79""#), "{written}");
}

/// Follows how many sequences there are, from when they are handed in until the job hears of their ends: as many however fast the
/// engine is.
#[derive(Clone, Default)]
struct Crowd {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Watch for Crowd {
    fn ask(&mut self) -> Ask {
        Ask::GoOn
    }

    fn tell(&mut self, _: &Tally) {}

    fn begins(&mut self, _: &Generate) -> Box<dyn Hears> {
        Box::new(self.clone())
    }
}

impl Hears for Crowd {
    fn sequence(&mut self, _: usize) -> Box<dyn FnMut(&Event) + Send> {
        self.most.fetch_max(self.now.fetch_add(1, SeqCst) + 1, SeqCst);
        Box::new(|_| ())
    }

    fn finished(&mut self, _: FinishReason, _: usize) {
        self.now.fetch_sub(1, SeqCst);
    }

    fn failed(&mut self, why: Failure) -> ApiError {
        why.into()
    }
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
    let limits = Limits { prompt_tokens: 700, window: 200, ..limits(100) };
    let mut crowd = Crowd::default();
    let (ended, tally) = run((&engine, &bodies), limits, &mut crowd).unwrap();
    assert_eq!((ended, tally.done, tally.failed), (Ended::Finished, 100, 0));
    let most = crowd.most.load(SeqCst);
    assert!((6..=12).contains(&most), "{most} lines at once");
}

/// Forty sequences of a line, and one of the next: eight of them are in the engine, and all are answered.
#[test]
fn sequences_that_are_handed_in_are_bounded_by_their_bytes() {
    let engine = common::start(MODEL, common::config());
    let bodies = [(10, 4), (1, 1), (4, 2)].map(|(prompts, n)| {
        let prompts = vec![[5, 6, 7]; prompts];
        format!(r#"{{"model":"m","prompt":{prompts:?},"n":{n},"seed":1,"max_tokens":2,"ignore_eos":true}}"#)
    });
    let one = engine::queue_bytes(1, 0) as usize;
    let (limits, tokenizer) = (limits(3), Arc::new(tokenizer()));
    let answers = |queue_bytes: usize| {
        let (mut crowd, written) = (Crowd::default(), tempfile::NamedTempFile::new().unwrap());
        let output = Box::new(written.reopen().unwrap());
        let limits = Limits { queue_bytes, ..limits };
        let (ended, tally) = run_into(output, &tokenizer, (&engine, &bodies), (limits, &mut crowd)).unwrap();
        assert_eq!((ended, tally.done, tally.failed), (Ended::Finished, 3, 0));
        (crowd.most.load(SeqCst), std::fs::read_to_string(written.path()).unwrap())
    };
    let (all, at_once) = answers(1 << 20);
    let (few, in_turn) = answers(8 * one);
    assert_eq!((all, few), (49, 8));
    assert_eq!(in_turn, at_once);
}

#[test]
fn lines_that_are_held_to_grammars_are_bounded_by_their_bytes() {
    let engine = common::start(MODEL, common::config());
    let body = |i: usize| {
        let format = format!(r#"{{"regex":"(?s:.{{{i},90}})"}}"#);
        format!(r#"{{"model":"m","prompt":[5,6,7],"max_tokens":2,"structured_outputs":{format}}}"#)
    };
    let bodies: Vec<String> = (0..30).map(body).collect();
    let mut crowd = Crowd::default();
    let limits = Limits { queue_bytes: 300 << 10, ..limits(30) };
    let (ended, tally) = run((&engine, &bodies), limits, &mut crowd).unwrap();
    assert_eq!((ended, tally.done, tally.failed), (Ended::Finished, 30, 0));
    let most = crowd.most.load(SeqCst);
    assert!((2..=5).contains(&most), "{most} lines at once");
    // Those that are held to one have it once.
    let alike = vec![bodies[0].clone(); 30];
    let (mut crowd, slowly) = (Crowd::default(), Limits { queue_bytes: 200 << 10, ..limits });
    let (ended, tally) = run((&engine, &alike), slowly, &mut crowd).unwrap();
    assert_eq!((ended, tally.done, tally.failed), (Ended::Finished, 30, 0));
    assert_eq!(crowd.most.load(SeqCst), 30);
    // One that is larger than all may be runs alone.
    let (ended, tally) =
        run((&engine, &bodies[..3]), Limits { queue_bytes: 1, ..limits }, &mut crowd).unwrap();
    assert_eq!((ended, tally.done, tally.failed), (Ended::Finished, 3, 0));
}

#[test]
fn a_window_full_of_answers_is_not_the_end() {
    let engine = common::start(MODEL, common::config());
    let bodies = vec![r#"{"model":"m","prompt":[5,6,7],"max_tokens":2}"#.to_string(); 5];
    for window in [1, 2] {
        let limits = Limits { window, ..limits(2) };
        let (ended, tally) = run((&engine, &bodies), limits, &mut Crowd::default()).unwrap();
        assert_eq!((ended, tally.done), (Ended::Finished, 5), "a window of {window}");
    }
}

/// Says so often that it goes on, then that it drains.
struct Drains(usize);

impl Watch for Drains {
    fn ask(&mut self) -> Ask {
        self.0 = self.0.saturating_sub(1);
        if self.0 > 0 { Ask::GoOn } else { Ask::Drain }
    }

    fn tell(&mut self, _: &Tally) {}
}

/// Goes on until there is a token, then drains; nobody has a second token before that was said twice.
#[derive(Default)]
struct DrainsLater {
    drains: bool,
    said: usize,
    goes_on: Arc<AtomicBool>,
}

impl Watch for DrainsLater {
    fn ask(&mut self) -> Ask {
        if !self.drains {
            return Ask::GoOn;
        }
        self.said += 1;
        // What the first answer means has been done.
        self.goes_on.fetch_or(self.said == 2, SeqCst);
        Ask::Drain
    }

    fn tell(&mut self, tally: &Tally) {
        self.drains |= tally.tokens_under_way > 0;
    }

    fn begins(&mut self, _: &Generate) -> Box<dyn Hears> {
        Box::new(HeldUp(Arc::clone(&self.goes_on)))
    }
}

impl Drop for DrainsLater {
    fn drop(&mut self) {
        self.goes_on.store(true, SeqCst);
    }
}

/// Holds up the engine at a second token.
struct HeldUp(Arc<AtomicBool>);

impl Hears for HeldUp {
    fn sequence(&mut self, _: usize) -> Box<dyn FnMut(&Event) + Send> {
        let (goes_on, mut tokens) = (Arc::clone(&self.0), 0);
        Box::new(move |event| {
            tokens += usize::from(matches!(event, Event::Token(_)));
            while tokens == 2 && !goes_on.load(SeqCst) {
                yield_now()
            }
        })
    }

    fn finished(&mut self, _: FinishReason, _: usize) {}

    fn failed(&mut self, why: Failure) -> ApiError {
        why.into()
    }
}

/// What has been handed in and not begun is not begun any more.
#[test]
fn a_job_that_drains_finishes_what_has_begun() {
    let engine = common::start(MODEL, EngineConfig { max_num_seqs: 2, ..common::config() });
    let bodies = vec![r#"{"model":"m","prompt":[5,6,7],"max_tokens":100,"ignore_eos":true}"#.to_string(); 30];
    let limits = limits(30);
    let (ended, tally) = run((&engine, &bodies), limits, &mut DrainsLater::default()).unwrap();
    assert!(ended == Ended::Interrupted && (1..=2).contains(&tally.done), "{tally:?}");
}

/// A format that takes a second or so to compile; each number is another.
fn slow(n: usize) -> OutputFormat {
    let names: Vec<String> = (0..3000).map(|i| format!("{n}-{i}")).collect();
    OutputFormat::Schema(serde_json::json!({"type": "object", "required": names}))
}

#[test]
fn a_line_waits_until_its_format_can_be_compiled() {
    let engine = common::start(MODEL, common::config());
    let tokenizer = Arc::new(tokenizer());
    let body = r#"{"model":"m","prompt":[5,6,7],"max_tokens":3,"structured_outputs":{"regex":"(?s:.*)"}}"#;
    // The window has room for one: the line that is held must not wait for itself.
    let limits = limits(1);
    std::thread::scope(|scope| {
        let compile = |n: usize| while tokenizer.grammar(&slow(n)) == Err(GrammarError::Busy) {};
        let slow: Vec<_> = (0..WORKERS).map(|n| scope.spawn(move || compile(n))).collect();
        let mut others = (0..).map(|n| OutputFormat::Regex(format!("a{{{n}}}b")));
        let busy = |other| tokenizer.grammar(&other) == Err(GrammarError::Busy);
        while !others.next().is_some_and(busy) && !slow.iter().any(|slow| slow.is_finished()) {}
        let bodies = [body.to_string(), body.to_string()];
        let drained = run_with(&tokenizer, (&engine, &bodies), limits, &mut Drains(3));
        assert_eq!(drained.unwrap().1.failed, 0, "it ends without its lines");
        let (ended, tally) = run_with(&tokenizer, (&engine, &bodies), limits, &mut Crowd::default()).unwrap();
        assert_eq!((ended, tally.done, tally.failed), (Ended::Finished, 2, 0));
    });
}
