//! When requests come.

use std::time::Duration;

use sim::Rng;

use crate::args::RampUp;

/// How many requests come a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Pace {
    /// Always as many; infinity sends all at once.
    Steady(f64),
    /// More and more, from the first request to the last.
    Ramp { how: RampUp, start: f64, end: f64 },
}

impl Pace {
    /// Requests a second as request `index` of `count` comes.
    fn rate(self, index: usize, count: usize) -> f64 {
        let progress = index as f64 / (count - 1).max(1) as f64;
        match self {
            Pace::Steady(rate) => rate,
            Pace::Ramp { how: RampUp::Linear, start, end } => start + (end - start) * progress,
            Pace::Ramp { how: RampUp::Exponential, start, end } => start * (end / start).powf(progress),
        }
    }
}

/// Arrival times of `count` requests at a pace. At a steady one they are stretched so that the last comes at `count /
/// rate` whatever the seed, as `vllm bench serve` has them. Gaps are gamma distributed with shape `burstiness`: at 1 a
/// Poisson process, at infinity a steady beat.
pub(super) fn arrivals(count: usize, pace: Pace, burstiness: f64, rng: &mut Rng) -> Vec<Duration> {
    if pace == Pace::Steady(f64::INFINITY) {
        return vec![Duration::ZERO; count];
    }
    let mut at = 0.0;
    let times: Vec<f64> = (0..count)
        .map(|index| {
            let gap = if burstiness.is_infinite() { 1.0 } else { gamma(burstiness, rng) / burstiness };
            at += gap / pace.rate(index, count);
            at
        })
        .collect();
    let stretch = match pace {
        // Gaps of a very small shape may all be zero in floating point: then there is nothing to stretch.
        Pace::Steady(rate) if at > 0.0 => count as f64 / rate / at,
        Pace::Steady(_) => 0.0,
        Pace::Ramp { .. } => 1.0,
    };
    times.into_iter().map(|at| Duration::from_secs_f64((at * stretch).min(1e9))).collect()
}

/// Gamma distributed with this shape and scale 1 (Marsaglia and Tsang, 2000).
fn gamma(shape: f64, rng: &mut Rng) -> f64 {
    if shape < 1.0 {
        return gamma(shape + 1.0, rng) * (1.0 - rng.unit()).powf(1.0 / shape);
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = rng.normal();
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && (1.0 - rng.unit()).ln() < x * x / 2.0 + d * (1.0 - v + v.ln()) {
            return d * v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean and squared coefficient of variation of the gaps.
    fn gaps(rate: f64, burstiness: f64) -> (f64, f64) {
        let times = arrivals(20_000, Pace::Steady(rate), burstiness, &mut Rng::new(7));
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        (mean, variance / mean / mean)
    }

    #[test]
    fn gaps_have_the_mean_and_spread_of_their_distribution() {
        for burstiness in [0.25, 1.0, 4.0] {
            let (mean, spread) = gaps(10.0, burstiness);
            assert!((mean - 0.1).abs() < 1e-4, "{burstiness}: {mean}");
            assert!((spread * burstiness - 1.0).abs() < 0.1, "{burstiness}: {spread}");
        }
        assert!(gaps(10.0, f64::INFINITY).1 < 1e-9);
    }

    #[test]
    fn without_a_rate_all_come_at_once_and_with_one_the_last_comes_when_it_should() {
        let at = |rate, burstiness| arrivals(50, Pace::Steady(rate), burstiness, &mut Rng::new(3));
        assert!(at(f64::INFINITY, 1.0).iter().all(Duration::is_zero));
        for burstiness in [0.01, 1.0] {
            let times = at(5.0, burstiness);
            assert!(times.is_sorted());
            assert!((times[49].as_secs_f64() - 10.0).abs() < 1e-6);
        }
        assert_eq!(at(5.0, 1.0), at(5.0, 1.0), "a seed repeats");
    }
    #[test]
    fn a_rate_grows_from_its_start_to_its_end() {
        let gaps = |how| {
            let pace = Pace::Ramp { how, start: 2.0, end: 8.0 };
            let times = arrivals(3, pace, f64::INFINITY, &mut Rng::new(3));
            let mut last = 0.0;
            let gap = |at: &Duration| {
                let gap = at.as_secs_f64() - last;
                last = at.as_secs_f64();
                (gap * 1e6).round() / 1e6
            };
            times.iter().map(gap).collect::<Vec<_>>()
        };
        assert_eq!(gaps(RampUp::Linear), [0.5, 0.2, 0.125]);
        assert_eq!(gaps(RampUp::Exponential), [0.5, 0.25, 0.125]);
        let one =
            arrivals(1, Pace::Ramp { how: RampUp::Linear, start: 4.0, end: 9.0 }, 1e9, &mut Rng::new(3));
        assert!((one[0].as_secs_f64() - 0.25).abs() < 1e-3, "{one:?}");
    }
}
