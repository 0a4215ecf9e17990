//! When requests come.

use std::time::Duration;

use sim::Rng;

/// Arrival times of `count` requests at `rate` a second, stretched so that the last comes at `count / rate` whatever
/// the seed, as `vllm bench serve` has them. Gaps are gamma distributed with shape `burstiness`: at 1 a Poisson
/// process, at infinity a steady beat.
pub(super) fn arrivals(count: usize, rate: f64, burstiness: f64, rng: &mut Rng) -> Vec<Duration> {
    if rate.is_infinite() {
        return vec![Duration::ZERO; count];
    }
    let mut at = 0.0;
    let times: Vec<f64> = (0..count)
        .map(|_| {
            at += if burstiness.is_infinite() { 1.0 } else { gamma(burstiness, rng) };
            at
        })
        .collect();
    // Gaps of a very small shape may all be zero in floating point: then there is nothing to stretch.
    let stretch = if at > 0.0 { count as f64 / rate / at } else { 0.0 };
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
        let times = arrivals(20_000, rate, burstiness, &mut Rng::new(7));
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
        let at = |rate, burstiness| arrivals(50, rate, burstiness, &mut Rng::new(3));
        assert!(at(f64::INFINITY, 1.0).iter().all(Duration::is_zero));
        for burstiness in [0.01, 1.0] {
            let times = at(5.0, burstiness);
            assert!(times.is_sorted());
            assert!((times[49].as_secs_f64() - 10.0).abs() < 1e-6);
        }
        assert_eq!(at(5.0, 1.0), at(5.0, 1.0), "a seed repeats");
    }
}
