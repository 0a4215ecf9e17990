//! Which of many plans are worth a longer run.

use sim::Offline;

/// Of jobs of no more requests all plans are run as long.
pub(super) const SHORT: usize = 64;
/// Generations of sequences that are run of every plan at first.
pub(super) const FIRST_GENERATIONS: [usize; 2] = [2, 4];
/// Of the fastest by that as many are run longer.
const FASTEST: usize = 8;

/// Whom to run longer, in their order: the fastest, and at each latency the fastest that is as soon done.
pub(super) fn contenders(runs: &[Option<Offline>], max_latency_s: Option<f64>) -> Vec<usize> {
    let is_soon = |run: &&Offline| max_latency_s.is_none_or(|most| run.latency_max_s <= most);
    let known =
        runs.iter().enumerate().filter_map(|(at, run)| run.as_ref().filter(is_soon).map(|it| (at, it)));
    let mut by_rate: Vec<(usize, &Offline)> = known.collect();
    by_rate.sort_by(|(_, a), (_, b)| b.tokens_per_s().total_cmp(&a.tokens_per_s()));
    let mut soonest = f64::INFINITY;
    let mut chosen: Vec<usize> = Vec::new();
    for (rank, (at, run)) in by_rate.into_iter().enumerate() {
        if rank < FASTEST || run.latency_max_s < soonest {
            chosen.push(at);
        }
        soonest = soonest.min(run.latency_max_s);
    }
    chosen.sort_unstable();
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of a second.
    fn run((tokens, latency_max_s): (u64, f64)) -> Option<Offline> {
        let (busy, ops) = Default::default();
        Some(Offline {
            seconds: 1.0,
            first_token_s: 0.5,
            latency_s: latency_max_s,
            latency_max_s,
            generated: tokens,
            steps: 1,
            busy,
            ops,
            refused: 0,
            rehearsed: 1,
        })
    }

    #[test]
    fn the_fastest_are_run_and_whoever_is_done_sooner() {
        let slow = (0..FASTEST).map(|i| run((100 - i as u64, 50.0)));
        let runs: Vec<_> = slow.chain([run((80, 60.0)), run((70, 10.0)), None, run((60, 20.0))]).collect();
        let fastest: Vec<usize> = (0..FASTEST).collect();
        assert_eq!(contenders(&runs, None), [&fastest[..], &[FASTEST + 1]].concat());
        assert_eq!(contenders(&runs, Some(20.0)), [FASTEST + 1, FASTEST + 3]);
        assert!(contenders(&[None], None).is_empty());
    }
}
