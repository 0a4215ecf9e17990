//! What happened in each second of the last minute, for those who look now and then.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use engine::Counts;
use spec::Lane;
use tokio::time::{MissedTickBehavior, interval};

use crate::app::App;
use crate::metrics::Metrics;

/// Seconds that are kept.
const SECONDS: usize = 60;

/// One sample a second, the newest last: one more than there are seconds between them.
#[derive(Default)]
pub(crate) struct Minute(Mutex<VecDeque<Sample>>);

/// Sums since the start, at one moment.
#[derive(Clone, Debug)]
struct Sample {
    at: Instant,
    counts: Counts,
    first_token: Vec<u64>,
    next_token: Vec<u64>,
}

/// Durations of the last minute, sorted into their histogram's buckets.
pub(crate) struct Latencies {
    pub(crate) first_token: Vec<u64>,
    pub(crate) next_token: Vec<u64>,
}

impl Minute {
    /// Takes a sample.
    pub(crate) fn note(&self, at: Instant, counts: Counts, metrics: &Metrics) {
        let (first_token, next_token) = (metrics.first_token.counts(), metrics.next_token.counts());
        let mut samples = self.lock();
        samples.push_back(Sample { at, counts, first_token, next_token });
        if samples.len() > SECONDS + 1 {
            samples.pop_front();
        }
    }

    /// The share of each second that a lane was busy. A node counts where it ends, so that a long one fills the
    /// second of its end; what does not fit there is cut.
    pub(crate) fn busy(&self, lane: Lane) -> Vec<f64> {
        let busy = |sample: &Sample| sample.counts.lane_busy_ns[lane.index()];
        self.rates(|sample| busy(sample) as f64 / 1e9).into_iter().map(|share| share.min(1.0)).collect()
    }

    /// Tokens generated in each second.
    pub(crate) fn tokens(&self) -> Vec<f64> {
        self.rates(|sample| sample.counts.generated_tokens as f64)
    }

    /// How long tokens took.
    pub(crate) fn latencies(&self) -> Latencies {
        let samples = self.lock();
        let grown = |of: fn(&Sample) -> &Vec<u64>| match (samples.front(), samples.back()) {
            (Some(old), Some(new)) => of(new).iter().zip(of(old)).map(|(new, old)| new - old).collect(),
            _ => Vec::new(),
        };
        Latencies {
            first_token: grown(|sample| &sample.first_token),
            next_token: grown(|sample| &sample.next_token),
        }
    }

    /// How much a sum grew, a second, from each sample to the next.
    fn rates(&self, sum: impl Fn(&Sample) -> f64) -> Vec<f64> {
        let samples = self.lock();
        let rate = |(old, new): (&Sample, &Sample)| {
            let seconds = new.at.duration_since(old.at).as_secs_f64();
            if seconds > 0.0 { (sum(new) - sum(old)) / seconds } else { 0.0 }
        };
        samples.iter().zip(samples.iter().skip(1)).map(rate).collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Sample>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Samples every second, as long as the server lives, and looks whether the engine does: where nobody asks it anything,
/// nobody else would notice.
pub(crate) async fn watch(app: Arc<App>) {
    let mut seconds = interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        seconds.tick().await;
        if let Ok(served) = app.served() {
            app.minute.note(Instant::now(), served.engine.counts(), &app.metrics);
            if let Err(why) = served.engine.alive() {
                app.failed(why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_is_sixty_seconds_of_differences() {
        let (minute, metrics, start) = (Minute::default(), Metrics::default(), Instant::now());
        assert!(minute.tokens().is_empty() && minute.latencies().first_token.is_empty());
        for second in 0..100u64 {
            let mut counts = Counts { generated_tokens: 7 * second, ..Counts::default() };
            counts.lane_busy_ns[Lane::Device.index()] = 500_000_000 * second;
            counts.lane_busy_ns[Lane::Up.index()] = 3_000_000_000 * second;
            metrics.first_token.observe(Duration::from_millis(second));
            minute.note(start + Duration::from_secs(second), counts, &metrics);
        }
        assert_eq!(minute.tokens(), vec![7.0; SECONDS]);
        assert_eq!(minute.busy(Lane::Device), vec![0.5; SECONDS]);
        assert_eq!(minute.busy(Lane::Up), vec![1.0; SECONDS], "no lane is busier than busy");
        assert_eq!(minute.busy(Lane::Host), vec![0.0; SECONDS]);
        assert_eq!(minute.latencies().first_token.iter().sum::<u64>(), SECONDS as u64);
        assert_eq!(minute.latencies().next_token.iter().sum::<u64>(), 0);
    }
}
