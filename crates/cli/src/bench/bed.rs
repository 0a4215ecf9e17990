//! A model that is loaded to be measured, and runs of requests that nobody saw before.

use std::path::PathBuf;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use engine::{Engine, Event, Failure, Request, Ticket, counted, queue_bytes};
use model::sampling::SamplingParams;
use policy::sched::BlockConfig;

use crate::args::{BenchArgs, typed};
use crate::console::note;
use crate::display::Voice;
use crate::lanes::LanesFile;
use crate::loaded;
use crate::output_file::apart;
use crate::plan::Work;
use crate::resolve::{Needs, engine_config};
use crate::stop::Stop;
use crate::wanted::{Loaded, Wanted};

/// How often a wait for a token looks whether somebody wants the end.
const TICK: Duration = Duration::from_millis(100);
/// How often the wait for a step to be counted looks whether it was.
const MOMENT: Duration = Duration::from_micros(100);

/// One run, or as much of it as there was when somebody stopped it.
pub(super) struct Timed {
    /// Seconds until every request had its first token that had one.
    pub(super) first: f64,
    /// Seconds until all were done, or it was stopped.
    pub(super) whole: f64,
    pub(super) gap: f64,
    /// Requests with a first token, and those that were done.
    pub(super) began: usize,
    pub(super) ended: usize,
    /// That were generated.
    pub(super) tokens: usize,
    pub(super) extent: Extent,
}

/// How much of a run there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    Whole,
    Part,
}

/// What came of a request.
#[derive(Default)]
struct Followed {
    /// Seconds until its first token.
    first: Option<f64>,
    tokens: usize,
    /// Whether it was done.
    ended: bool,
}

/// A model that is loaded, and prompts that it has not seen.
pub(super) struct Bench {
    pub(super) engine: Engine,
    pub(super) prompts: Prompts,
    pub(super) name: String,
    pub(super) weights: String,
    pub(super) formats: String,
    pub(super) threads: usize,
    pub(super) isa: String,
    pub(super) blocks: BlockConfig,
    lanes: LanesFile,
    record: Option<PathBuf>,
}

impl Bench {
    /// Loads the model with room for the whole workload (or as much as memory allows), and warms up.
    pub(super) fn start(
        name: &str,
        args: &BenchArgs,
        requests: usize,
        input: usize,
        output: usize,
    ) -> Result<Bench> {
        let needs = Needs::of_requests(&args.engine, requests, input, output);
        apart([args.json.as_deref(), args.lanes.path(), args.engine.record.as_deref()])?;
        let lanes = args.lanes.open()?;
        let mut config = lanes.wanted(engine_config(&args.engine, needs)?);
        // All of them are handed in at once.
        config.beside_bytes = queue_bytes(requests, requests.saturating_mul(input));
        let (threads, isa) = (config.threads, config.isa.to_string());
        args.engine.note_conversations();
        let opened = loaded::open(Some(name), &args.engine, Voice::Normal)?;
        let work = Work::exactly(requests, input, output);
        let wanted =
            Wanted { opened: &opened, config, args: &args.engine, work: Some(work), voice: Voice::Normal };
        let planned = wanted.plan()?.planned;
        let max = planned.hold().max_model_len;
        if input + output > max {
            bail!(
                "{} in and {output} out are more than this model has room for, {max}: ask for fewer",
                counted(input, "token")
            );
        }
        let Loaded { engine, weights, formats, blocks } = wanted.load(planned)?;
        let weights = typed(args.engine.weights.as_kept(weights));
        let prompts = Prompts { state: 0x9e37_79b9_7f4a_7c15, vocab: engine.spec().vocab as u64 };
        let (name, record) = (name.to_string(), args.engine.record.clone());
        let mut bench =
            Bench { engine, prompts, name, weights, formats, threads, isa, blocks, lanes, record };
        bench.run(requests.min(4), input.min(64), output.min(4), &Stop::default())?;
        Ok(bench)
    }

    /// What the device did otherwise than is fastest, told and to be written down.
    pub(super) fn remarks(&self) -> Vec<String> {
        let remarks = self.engine.remarks();
        remarks.iter().for_each(|remark| note!("{remark}"));
        remarks
    }

    pub(super) fn end(self) -> Result<()> {
        self.lanes.end(self.engine)
    }

    /// The same where somebody stopped it, who waits for no long step.
    pub(super) fn end_soon(self) -> Result<()> {
        self.lanes.end_soon(self.engine, self.record.as_deref())
    }

    /// Hands in new requests, all at once, and waits until they are done or somebody stops it.
    pub(super) fn run(&mut self, requests: usize, input: usize, output: usize, stop: &Stop) -> Result<Timed> {
        let params =
            SamplingParams { max_tokens: Some(output as u32), ignore_eos: true, ..SamplingParams::greedy() };
        let requests: Vec<Request> = (0..requests)
            .map(|_| Request { prompt: self.prompts.next(input), params: params.clone(), seed: 0, salt: 0 })
            .collect();
        let busy_before = self.engine.counts().busy_ns;
        let begin = Instant::now();
        let tickets: Vec<Ticket> =
            requests.into_iter().map(|request| self.engine.submit(request)).collect::<Result<_, _>>()?;
        let all: Vec<Followed> =
            tickets.iter().map(|ticket| follow(ticket, begin, stop)).collect::<Result<_>>()?;
        let whole = begin.elapsed().as_secs_f64();
        let ended = all.iter().filter(|one| one.ended).count();
        let mut extent = if stop.is_wanted() && ended < all.len() { Extent::Part } else { Extent::Whole };
        if extent == Extent::Whole {
            all.iter().try_for_each(|one| one.check(output))?;
            extent = rest(|| self.engine.alive().map(|()| self.engine.counts().running), stop)?;
        }
        let busy = (self.engine.counts().busy_ns - busy_before) as f64 / 1e9;
        let firsts = || all.iter().filter_map(|one| one.first);
        Ok(Timed {
            first: firsts().fold(0.0, f64::max),
            whole,
            gap: (1.0 - busy / whole).max(0.0),
            began: firsts().count(),
            ended,
            tokens: all.iter().map(|one| one.tokens).sum(),
            extent,
        })
    }
}

/// Waits until the last step is counted, whose tokens come a moment before, or until somebody wants the end: a step
/// that writes down what it did (`--record`) ends no sooner than its reader wants.
fn rest(running: impl Fn() -> Result<u64, Failure>, stop: &Stop) -> Result<Extent> {
    while running()? > 0 {
        if stop.is_wanted() {
            return Ok(Extent::Part);
        }
        std::thread::park_timeout(MOMENT);
    }
    Ok(Extent::Whole)
}

/// Waits for a request's end, or until somebody wants the end of all.
fn follow(ticket: &Ticket, begin: Instant, stop: &Stop) -> Result<Followed> {
    let mut seen = Followed::default();
    loop {
        let event = match stop.is_wanted() {
            // What has come by now.
            true => ticket.events.try_recv().ok(),
            false => match ticket.events.recv_timeout(TICK) {
                Err(RecvTimeoutError::Timeout) => continue,
                event => event.ok(),
            },
        };
        match event {
            Some(Event::Token(token)) => {
                seen.tokens += 1;
                seen.first.get_or_insert((token.at - begin).as_secs_f64());
            }
            Some(Event::Failed(why)) => bail!(why),
            Some(Event::Finished(_)) => return Ok(Followed { ended: true, ..seen }),
            Some(Event::Began(_) | Event::Prompt(..)) => {}
            None => return Ok(seen),
        }
    }
}

impl Followed {
    /// Whether it is all that was wanted.
    fn check(&self, wanted: usize) -> Result<()> {
        if self.tokens != wanted {
            let tokens = counted(self.tokens, "token");
            bail!("a request gave {tokens} instead of {wanted}: the engine ended early");
        }
        Ok(())
    }
}

/// Waits for a request's end; says when its first token was seen.
pub(super) fn finish(ticket: &Ticket, begin: Instant, wanted: usize) -> Result<f64> {
    let seen = follow(ticket, begin, &Stop::default())?;
    seen.check(wanted)?;
    Ok(seen.first.unwrap_or_default())
}

/// Random prompts, none twice (so that no prefix is reused), the same in every run of the command.
pub(super) struct Prompts {
    state: u64,
    vocab: u64,
}

impl Prompts {
    pub(super) fn next(&mut self, len: usize) -> Vec<u32> {
        (0..len).map(|_| self.token()).collect()
    }

    /// SplitMix64 (Steele, Lea, Flood, 2014).
    fn token(&mut self) -> u32 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % self.vocab) as u32
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_last_step_is_waited_for_until_it_is_counted_or_somebody_wants_the_end() {
        let left = Cell::new(3);
        let counting_down = || {
            left.set(left.get() - 1);
            Ok(left.get())
        };
        assert_eq!(rest(counting_down, &Stop::default()).unwrap(), Extent::Whole);
        assert_eq!(left.get(), 0);
        // As a record that nobody reads holds the engine.
        assert_eq!(rest(|| Ok(1), &Stop::asked()).unwrap(), Extent::Part);
        assert!(rest(|| Err(Failure::Engine("it died".into())), &Stop::default()).is_err());
    }
}
