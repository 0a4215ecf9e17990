//! A job at work.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use model::api::{ApiError, Choice, Context, Generate, Meta, batch_output, counts, response};
use model::sampling::TokenLogprobs;
use model::tokenizer::Tokenizer;

use super::files::{Outlook, Verdict, Writer};
use super::flight::{Flight, Landed, Most, Outcome};
use super::hear::{Deaf, Hears};
use super::order::Waiting;
use super::{Input, JobError};
use crate::engine::Engine;
use crate::front::answer::seed_of;
use crate::front::request::Failure;

/// How long nothing may happen before the watcher is asked again.
const TICK: Duration = Duration::from_millis(50);
/// Lines that are read and handed in between two looks at what came back.
const LINES_A_TURN: usize = 32;

/// Everything that turns lines into answers.
pub struct Job<'a> {
    /// Runs the model.
    pub engine: &'a Engine,
    /// Of the model.
    pub tokenizer: &'a Arc<Tokenizer>,
    /// What lines are read against; its time should be that of the record.
    pub context: Context<'a>,
    /// The lines.
    pub input: &'a Input,
    /// How much at once.
    pub limits: Limits,
}

/// How much is done at once.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Lines in the engine.
    pub in_flight: usize,
    /// Tokens of their prompts, but for the last one's: see [`Limits::prompt_tokens`].
    pub prompt_tokens: usize,
    /// Bytes of their sequences beside those tokens ([`queue_bytes`](crate::queue_bytes)), and of the grammars that these are held to,
    /// before no other is begun.
    pub queue_bytes: usize,
    /// Lines begun and not written: those in the engine, and those that wait for an earlier one.
    pub window: usize,
    /// Bytes of answers that wait for an earlier one, of what they are made of, and of the log-probabilities of those to come, before
    /// no other line is begun.
    pub waiting_bytes: usize,
    /// Sequences of a line, its choices for all of its prompts; one that wants more is an error.
    pub line_sequences: usize,
}

impl Limits {
    /// Tokens of prompts that an engine may be handed in any case.
    const PROMPT_TOKENS: usize = 1 << 20;
    /// What each kind of thing that waits may take, where there is enough memory.
    const WAITING_BYTES: usize = 64 << 20;
    /// The part of the process's memory for that, where there is not.
    const WAITING_SHARE: u64 = 16;

    /// Bytes of each kind of thing that waits, in so much memory: answers that are not written, sequences in the engine, grammars that
    /// are kept for the next request.
    pub fn waiting_bytes(memory: u64) -> usize {
        Limits::WAITING_BYTES.min((memory / Limits::WAITING_SHARE) as usize)
    }

    /// What a line's answer is made of while it comes, and the text that it becomes: of so many choices, beside their tokens.
    pub fn answer_bytes(choices: usize) -> usize {
        /// As measured: 710 bytes.
        const CHOICE: usize = 768;
        choices.saturating_mul(CHOICE)
    }

    /// Bytes of a token of a prompt that an engine was handed: it is there twice.
    pub const PROMPT_TOKEN_BYTES: usize = 8;

    /// Tokens of prompts that an engine may be handed before it has an answer for the first. In any case 8 MiB of them, as prompts
    /// that begin alike share their KV; else twice what KV has room for, which is next to nothing beside the KV itself.
    pub fn prompt_tokens(engine: &Engine) -> usize {
        Limits::PROMPT_TOKENS.max(2 * engine.hold().kv_tokens)
    }

    /// Bytes of so many tokens of prompts, or of as many as an engine is handed in any case.
    pub fn prompt_bytes(tokens: usize) -> usize {
        tokens.min(Limits::PROMPT_TOKENS) * Limits::PROMPT_TOKEN_BYTES
    }
}

/// Where answers are written.
pub enum Output {
    /// Into files that can be gone on from.
    Files(Box<Writer>),
    /// Into a pipe or device.
    Stream(Box<dyn Write>),
}

/// What a watcher wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Go on.
    GoOn,
    /// Finish answers that have a token, and nothing else.
    Drain,
    /// End now.
    End,
}

/// Who follows a job; asked and told many times a second.
pub trait Watch {
    /// What to do.
    fn ask(&mut self) -> Ask;
    /// How far it is.
    fn tell(&mut self, tally: &Tally);
    /// A line is answered with this error.
    fn failed(&mut self, _error: &ApiError) {}
    /// A request is about to be handed in: who is told what becomes of it.
    fn begins(&mut self, _request: &Generate) -> Box<dyn Hears> {
        Box::new(Deaf)
    }
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every line has its answer.
    Finished,
    /// It was asked to end before that.
    Interrupted,
}

/// Counts of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Lines of this job.
    pub lines: usize,
    /// Those that earlier runs answered.
    pub earlier: usize,
    /// Errors among them.
    pub earlier_failed: usize,
    /// Those written, errors and earlier ones included.
    pub done: usize,
    /// Errors among them.
    pub failed: usize,
    /// Lines with an answer of this run, written or waiting for that of an earlier line.
    pub answered: usize,
    /// Errors among them.
    pub answered_badly: usize,
    /// Tokens that this run generated for them.
    pub answered_tokens: u64,
    /// Tokens of the prompts of lines that this run answered.
    pub prompt_tokens: u64,
    /// Tokens that this run generated for lines that are written.
    pub generated_tokens: u64,
    /// Lines in the engine.
    pub under_way: usize,
    /// Tokens that those have so far.
    pub tokens_under_way: u64,
}

struct Run<'a> {
    job: &'a Job<'a>,
    created: u64,
    todo: std::slice::Iter<'a, usize>,
    /// A line that was taken and could not begin yet; no other begins before it.
    held: Option<usize>,
    flight: Flight,
    waiting: Waiting<Outcome>,
    tally: Tally,
}

impl Job<'_> {
    /// Answers what is to be done.
    ///
    /// # Errors
    /// [`JobError`]; answers that were written stay.
    pub fn run(
        &self,
        outlook: &Outlook,
        mut output: Output,
        watch: &mut dyn Watch,
    ) -> Result<(Ended, Tally), JobError> {
        let mut run = Run::new(self, outlook);
        loop {
            let ask = watch.ask();
            if ask == Ask::End {
                break;
            }
            run.go_on(watch).map_err(|why| run.salvage(why.into(), &mut output, watch))?;
            // Before others begin, which need the room of what is written.
            run.write_ready(&mut output)?;
            let begun = if ask == Ask::GoOn {
                run.begin_some(watch)
            } else {
                run.flight.give_up_unbegun();
                Ok(0)
            };
            // Whoever was to tell of a request's end may have died before it did.
            let alive = |begun| self.engine.alive().map(|()| begun).map_err(JobError::from);
            let begun = begun.and_then(alive).map_err(|why| run.salvage(why, &mut output, watch))?;
            watch.tell(&run.tally);
            let holds = run.held.is_some() && ask == Ask::GoOn;
            if run.flight.len() == 0 && begun == 0 && !holds {
                break;
            }
            let waited = run.wait(if begun > 0 { Duration::ZERO } else { TICK }, watch);
            waited.map_err(|why| run.salvage(why.into(), &mut output, watch))?;
        }
        let ended = if run.tally.done == run.tally.lines { Ended::Finished } else { Ended::Interrupted };
        output.finish(ended == Ended::Finished)?;
        Ok((ended, run.tally))
    }
}

impl<'a> Run<'a> {
    fn new(job: &'a Job<'a>, outlook: &'a Outlook) -> Run<'a> {
        let earlier = outlook.answered;
        Run {
            job,
            created: outlook.record.created,
            todo: outlook.todo.iter(),
            held: None,
            flight: Flight::new(Most {
                prompt_tokens: job.limits.prompt_tokens,
                bytes: job.limits.queue_bytes,
            }),
            waiting: Waiting::new(outlook.record.order, job.limits.window, job.limits.waiting_bytes),
            tally: Tally {
                lines: outlook.todo.len() + earlier,
                earlier,
                earlier_failed: outlook.failed,
                done: earlier,
                failed: outlook.failed,
                ..Tally::default()
            },
        }
    }

    /// Hands in some lines, as there is room; how many.
    fn begin_some(&mut self, watch: &mut dyn Watch) -> Result<usize, JobError> {
        for begun in 0..LINES_A_TURN {
            let Some(position) = self.next() else { return Ok(begun) };
            match self.begin(position, watch)? {
                Ok(()) => {}
                // All places for compiling grammars are taken: others' work, which ends, is no answer to a line.
                Err(error) if error.is_overload() => {
                    self.held = Some(position);
                    return Ok(begun);
                }
                Err(error) => self.land((position, Err(error)), watch),
            }
        }
        Ok(LINES_A_TURN)
    }

    /// The line to begin next, if there is one and room for it.
    fn next(&mut self) -> Option<usize> {
        if self.flight.len() >= self.job.limits.in_flight || !self.flight.has_room() {
            return None;
        }
        if self.held.is_some() {
            return self.held.take();
        }
        let &position = self.waiting.has_room().then(|| self.todo.next())??;
        self.waiting.begin(position);
        Some(position)
    }

    /// The outer error is the engine's, the inner one the line's.
    fn begin(&mut self, position: usize, watch: &mut dyn Watch) -> Result<Result<(), ApiError>, JobError> {
        let line = self.job.input.line(position)?;
        let request = match line.parse().and_then(|parsed| parsed.generate(&self.job.context)) {
            Ok(request) => request,
            Err(error) => return Ok(Err(error)),
        };
        let (wants, most) = (request.sequences(), self.job.limits.line_sequences);
        if wants > most {
            let message = format!("{wants} sequences in one line; at most {most}: write several lines");
            return Ok(Err(ApiError::invalid("n", message)));
        }
        self.waiting.promise(position, scored_bytes(&request) + Limits::answer_bytes(wants - 1));
        let heard = watch.begins(&request);
        self.flight.begin(position, request, seed_of(0, line.number as u64), heard);
        self.go_on(watch)?;
        Ok(Ok(()))
    }

    /// Hands in what there is room for of a line that was begun.
    fn go_on(&mut self, watch: &mut dyn Watch) -> Result<(), Failure> {
        let refused = self.flight.go_on((self.job.engine, self.job.tokenizer))?;
        refused.into_iter().for_each(|landed| self.land(landed, watch));
        Ok(())
    }

    fn wait(&mut self, most: Duration, watch: &mut dyn Watch) -> Result<(), Failure> {
        let (landed, alive) = self.flight.wait(most);
        landed.into_iter().for_each(|landed| self.land(landed, watch));
        self.tally.under_way = self.flight.len();
        self.tally.tokens_under_way = self.flight.tokens();
        alive
    }

    /// The engine is dead: what it answered before that is written all the same.
    fn salvage(&mut self, why: JobError, output: &mut Output, watch: &mut dyn Watch) -> JobError {
        self.flight.drain().into_iter().for_each(|landed| self.land(landed, watch));
        self.write_ready(output).err().unwrap_or(why)
    }

    fn land(&mut self, (position, outcome): Landed, watch: &mut dyn Watch) {
        match &outcome {
            Ok((request, choices)) => {
                self.tally.answered_tokens += counts(request, choices)[1] as u64;
            }
            Err(error) => {
                self.tally.answered_badly += 1;
                watch.failed(error);
            }
        }
        self.tally.answered += 1;
        self.waiting.put(position, held_bytes(&outcome), outcome);
    }

    /// An answer becomes a text when it is its turn: with log-probabilities that is many times larger than what it is made of.
    fn write_ready(&mut self, output: &mut Output) -> Result<(), JobError> {
        while let Some((position, outcome)) = self.waiting.take() {
            let verdict = if outcome.is_ok() { Verdict::Good } else { Verdict::Error };
            if let Ok((request, choices)) = &outcome {
                let [prompt, generated] = counts(request, choices).map(|count| count as u64);
                self.tally.prompt_tokens += prompt;
                self.tally.generated_tokens += generated;
            }
            output.write(position, verdict, self.text(position, outcome)?.as_bytes())?;
            self.tally.done += 1;
            self.tally.failed += usize::from(verdict == Verdict::Error);
        }
        output.pause()
    }

    /// An answer's line.
    fn text(&self, position: usize, outcome: Outcome) -> Result<String, JobError> {
        let id = self.job.input.id(position);
        let body = outcome.map(|(request, choices)| {
            let meta = Meta { id: id.clone(), created: self.created, cached_tokens: None, timings: None };
            response(&request, &choices, &meta, self.job.tokenizer)
        });
        Ok(batch_output(&id, &self.job.input.line(position)?.custom_id(), &body) + "\n")
    }
}

/// Bytes that the log-probabilities of a request's answers may have, of which there may be a thousand times more than of its tokens.
/// Where nobody says how long an answer may be, as long as it is as a rule.
fn scored_bytes(request: &Generate) -> usize {
    const USUAL: usize = 256;
    let of_token = |rivals: u32| size_of::<TokenLogprobs>() + rivals as usize * size_of::<(u32, f32)>();
    let (answers, prompts) =
        (request.params.logprobs.map(of_token), request.params.prompt_logprobs.map(of_token));
    let of_choice = |prompt: &Vec<u32>| {
        let usual = request.params.max_tokens.map_or(USUAL, |_| usize::MAX);
        let length = request.answer_len(prompt.len()).min(usual);
        answers.unwrap_or(0) * length + prompts.unwrap_or(0) * prompt.len()
    };
    request.n as usize * request.prompts.iter().map(of_choice).sum::<usize>()
}

/// Bytes of what an answer is made of.
fn held_bytes(outcome: &Outcome) -> usize {
    let of_token = |one: &TokenLogprobs| size_of_val(one) + size_of_val(one.top.as_slice());
    let of_choice = |choice: &Choice| -> usize {
        let logprobs = choice.logprobs.iter().chain(choice.prompt_logprobs.iter().flatten());
        choice.text.len() + size_of_val(choice.tokens.as_slice()) + logprobs.map(of_token).sum::<usize>()
    };
    match outcome {
        Ok((request, choices)) => {
            let prompts = request.prompts.iter().map(|prompt| size_of_val(prompt.as_slice()));
            prompts.chain(choices.iter().map(of_choice)).sum()
        }
        Err(error) => error.message.len(),
    }
}

impl Output {
    /// Ends an output for which there was nothing to do.
    ///
    /// # Errors
    /// [`JobError::File`].
    pub fn nothing(self) -> Result<(), JobError> {
        self.finish(true)
    }

    /// A whole line at once: whatever ends the process leaves whole lines.
    fn write(&mut self, position: usize, verdict: Verdict, line: &[u8]) -> Result<(), JobError> {
        match self {
            Output::Files(writer) => writer.write(position, verdict, line),
            Output::Stream(stream) => {
                stream.write_all(line).and_then(|()| stream.flush()).map_err(JobError::Stream)
            }
        }
    }

    /// Nothing more is there to be written now.
    fn pause(&mut self) -> Result<(), JobError> {
        match self {
            Output::Files(writer) => writer.sync_if_due(),
            Output::Stream(_) => Ok(()),
        }
    }

    fn finish(self, whole: bool) -> Result<(), JobError> {
        match self {
            Output::Files(writer) => writer.finish(whole),
            Output::Stream(_) => Ok(()),
        }
    }
}
