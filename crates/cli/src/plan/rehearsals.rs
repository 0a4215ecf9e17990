//! Runs of a job in virtual time, each made once: engines that a rehearsal cannot tell apart have the same run, whoever asks
//! (a search, another beside it with more memory, a curve), and a longer look at one begins with what was run before.

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use engine::Outline;
use policy::cost::Tables;
use policy::sched::{FcfsConfig, Schedule};
use sim::{Job as Arrival, Limit, Offline};
use spec::{ByTier, Nanos, Tokens};

use super::candidate::Job;

/// Between two requests that are handed over together: the first step begins with those that are there.
const HANDED_OVER: Nanos = Nanos(5_000);

/// Generations of sequences that are run of a long job, as many requests as there are at once: the beginning and the end of it, and
/// these with some of its middle between them. As requests are of one length, the middle is the same again and again. The last
/// generation is run with as few as it has, which may take as long as a whole one.
pub(crate) const GENERATIONS: [usize; 2] = [4, 8];

/// See the module.
pub(crate) struct Rehearsals<'a> {
    /// What ops take.
    pub(crate) tables: &'a Tables,
    known: Mutex<Vec<Known>>,
}

/// The runs of an engine, each of a whole job.
struct Known {
    outline: Outline,
    runs: Vec<(Job, Ran)>,
}

/// What a run came to.
#[derive(Clone)]
enum Ran {
    Done(Box<Offline>),
    /// It was left when it could not be done in so many seconds any more.
    Late(f64),
}

impl<'a> Rehearsals<'a> {
    /// None was made yet.
    pub(crate) fn by(tables: &'a Tables) -> Self {
        Self { tables, known: Mutex::default() }
    }

    /// Works through as much of a job as tells the rest, so many generations of a long one, unless all of it takes no longer.
    pub(crate) fn parts(&self, outline: &Outline, job: Job, generations: [usize; 2]) -> Result<Offline> {
        let run = self.parts_within(None, outline, job, generations)?;
        Ok(run.expect("nothing ends a run without a limit"))
    }

    /// The same; nothing as soon as all of it cannot be done in so many seconds. Of a part nobody knows that before its end.
    pub(crate) fn parts_within(
        &self,
        seconds: Option<f64>,
        outline: &Outline,
        job: Job,
        generations: [usize; 2],
    ) -> Result<Option<Offline>> {
        let run = |requests: usize, within| self.whole(within, outline, Job { requests, ..job });
        let seqs = generation(&outline.scheduler, job);
        let left = job.requests % seqs;
        let [few, some] =
            generations.map(|generations| seqs.saturating_mul(generations).saturating_add(left));
        if few.saturating_add(some) >= job.requests {
            return run(job.requests, seconds);
        }
        let (short, long) = (run(few, None)?, run(some, None)?);
        Ok(short.zip(long).map(|(short, long)| Offline::stretched(&short, &long, job.requests)))
    }

    /// Works through all of a job, unless that was done before; nothing as soon as it cannot be done in so many seconds.
    fn whole(&self, within: Option<f64>, outline: &Outline, job: Job) -> Result<Option<Offline>> {
        let seen = |known: &Known| known.outline.runs_like(outline);
        let before = self.known().iter().find(|known| seen(known)).and_then(|known| known.of(job));
        match before {
            Some(Ran::Done(run)) => return Ok(Some(*run)),
            Some(Ran::Late(seconds)) if within.is_some_and(|within| within <= seconds) => return Ok(None),
            _ => {}
        }
        let run = rehearsed(within, outline, job, self.tables)?;
        let ran = run.clone().map_or(Ran::Late(within.unwrap_or_default()), |run| Ran::Done(Box::new(run)));
        let mut all = self.known();
        match all.iter_mut().find(|known| seen(known)) {
            Some(known) => known.runs.push((job, ran)),
            None => all.push(Known { outline: outline.clone(), runs: vec![(job, ran)] }),
        }
        Ok(run)
    }

    /// Runs that were made.
    #[cfg(test)]
    pub(super) fn made(&self) -> usize {
        self.known().iter().map(|known| known.runs.len()).sum()
    }

    /// Whoever panicked left no run half noted.
    fn known(&self) -> MutexGuard<'_, Vec<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// The newest run of a job: those before it were left sooner.
    fn of(&self, of: Job) -> Option<Ran> {
        self.runs.iter().rev().find(|(job, _)| *job == of).map(|(_, ran)| ran.clone())
    }
}

/// Of engines the first of each kind that a rehearsal can tell from the others; and for each engine, which of these it is like.
pub(super) fn kinds(outlines: &[Option<Outline>]) -> (Vec<&Outline>, Vec<Option<usize>>) {
    let mut kinds: Vec<&Outline> = Vec::new();
    let mut kind = |outline| {
        let known = kinds.iter().position(|kind| kind.runs_like(outline));
        known.unwrap_or_else(|| {
            kinds.push(outline);
            kinds.len() - 1
        })
    };
    let of = outlines.iter().map(|outline| outline.as_ref().map(&mut kind)).collect();
    (kinds, of)
}

/// Sequences that work at a time: as many as may, of whom no more than KV has room for when they end.
fn generation(limits: &FcfsConfig, job: Job) -> usize {
    let ByTier { device, host, disk } = limits.blocks.map(|blocks| blocks as usize);
    // Where all begin as they come, the drive keeps prefixes alone.
    let disk = if limits.block.schedule == Schedule::Continuous { 0 } else { disk };
    let each = Tokens((job.input + job.output) as u32).blocks();
    limits.max_num_seqs.min((device + host + disk) / each.max(1)).max(1)
}

fn rehearsed(within: Option<f64>, outline: &Outline, job: Job, tables: &Tables) -> Result<Option<Offline>> {
    let arrival = |i: usize| Arrival {
        arrival: Nanos(i as u64 * HANDED_OVER.0),
        prompt: Tokens(job.input as u32),
        output: Tokens(job.output as u32),
    };
    let arrivals: Vec<Arrival> = (0..job.requests).map(arrival).collect();
    let cost = outline.cost(tables.clone());
    let (scheduler, plan) = (outline.scheduler.clone(), outline.plan(tables));
    let limit = within.map(|seconds| Limit { seconds, position_s: cost.position_s(plan.max_tokens) });
    Ok(Offline::run_within(limit, &arrivals, scheduler, &plan, &cost, tables.pauses())?)
}
