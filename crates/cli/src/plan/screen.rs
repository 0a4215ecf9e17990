//! Which of many plans are worth a run of the whole job. Requests are of one length, so that the middle of a long job is the same
//! again and again: what a few generations of sequences take tells the rest.

use anyhow::Result;
use engine::Planned;
use policy::cost::Tables;

use super::candidate::{Candidate, Job, Scored};

/// Jobs of no more requests are run whole at once.
pub(super) const SHORT: usize = 256;
/// Generations that are run, of as many requests as there are sequences at once: the beginning and the end of a job, and these with
/// some of its middle between them.
const GENERATIONS: [usize; 2] = [2, 4];
/// Of the fastest by what is guessed as many are run whole.
const FASTEST: usize = 8;

/// What the whole job would come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Guess {
    pub(super) tokens_per_s: f64,
    pub(super) latency_max_s: f64,
}

/// What came of trying a candidate.
pub(super) enum Tried {
    /// It was run whole: that takes no longer than its parts.
    Whole(Box<Scored>),
    Guessed(Guess),
}

impl Tried {
    pub(super) fn guess(&self) -> Guess {
        match self {
            Tried::Guessed(guess) => *guess,
            Tried::Whole(scored) => {
                Guess { tokens_per_s: scored.run.tokens_per_s(), latency_max_s: scored.run.latency_max_s }
            }
        }
    }
}

/// Runs as much of a job as tells the rest; nothing if it has no room there.
pub(super) fn tried(
    candidate: Candidate,
    planned: &Planned<'_>,
    job: Job,
    tables: &Tables,
) -> Result<Option<Tried>> {
    let run = |requests: usize| candidate.score(planned, Job { requests, ..job }, tables);
    let [few, some] = GENERATIONS.map(|generations| generations * candidate.seqs(job));
    if few + some >= job.requests {
        return Ok(run(job.requests)?.map(|whole| Tried::Whole(Box::new(whole))));
    }
    let (Some(short), Some(long)) = (run(few)?, run(some)?) else { return Ok(None) };
    let (short, long) = (short.run, long.run);
    let more = (job.requests - some) as f64 / (some - few) as f64;
    let tokens = long.generated as f64 + more * (long.generated - short.generated) as f64;
    let seconds = long.seconds + more * (long.seconds - short.seconds);
    let guess = Guess { tokens_per_s: tokens / seconds, latency_max_s: long.latency_max_s };
    Ok(Some(Tried::Guessed(guess)))
}

/// Whom to have run whole, in their order: the fastest, and at each latency the fastest that is as soon done.
pub(super) fn contenders(guesses: &[Option<Guess>], max_latency_s: Option<f64>) -> Vec<usize> {
    let is_soon = |guess: &Guess| max_latency_s.is_none_or(|most| guess.latency_max_s <= most);
    let known = guesses.iter().enumerate().filter_map(|(at, guess)| guess.filter(is_soon).map(|it| (at, it)));
    let mut by_rate: Vec<(usize, Guess)> = known.collect();
    by_rate.sort_by(|(_, a), (_, b)| b.tokens_per_s.total_cmp(&a.tokens_per_s));
    let mut soonest = f64::INFINITY;
    let mut chosen: Vec<usize> = Vec::new();
    for (rank, (at, guess)) in by_rate.into_iter().enumerate() {
        if rank < FASTEST || guess.latency_max_s < soonest {
            chosen.push(at);
        }
        soonest = soonest.min(guess.latency_max_s);
    }
    chosen.sort_unstable();
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_are_run_and_whoever_is_done_sooner() {
        let of = |(tokens_per_s, latency_max_s)| Some(Guess { tokens_per_s, latency_max_s });
        let slow = (0..FASTEST).map(|i| of((100.0 - i as f64, 50.0)));
        let guesses: Vec<_> =
            slow.chain([of((80.0, 60.0)), of((70.0, 10.0)), None, of((60.0, 20.0))]).collect();
        let fastest: Vec<usize> = (0..FASTEST).collect();
        assert_eq!(contenders(&guesses, None), [&fastest[..], &[FASTEST + 1]].concat());
        assert_eq!(contenders(&guesses, Some(20.0)), [FASTEST + 1, FASTEST + 3]);
        assert!(contenders(&[None], None).is_empty());
    }
}
