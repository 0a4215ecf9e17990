//! Durations and counts sorted into buckets, from any thread.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How many values were at most each bound.
pub(crate) struct Histogram {
    /// Upper bounds in seconds (or plain counts), rising.
    bounds: &'static [f64],
    /// One more than bounds: the last is for what is above all.
    buckets: Vec<AtomicU64>,
    /// Of seconds or counts, in millionths.
    sum_millionths: AtomicU64,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [f64]) -> Histogram {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { bounds, buckets, sum_millionths: AtomicU64::new(0) }
    }

    pub(crate) fn observe(&self, took: Duration) {
        self.add(took.as_secs_f64(), took.as_micros() as u64);
    }

    pub(crate) fn observe_count(&self, count: usize) {
        self.add(count as f64, count as u64 * 1_000_000);
    }

    fn add(&self, value: f64, millionths: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum_millionths.fetch_add(millionths, Relaxed);
    }

    /// How many durations are in each bucket now.
    pub(crate) fn counts(&self) -> Vec<u64> {
        self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect()
    }

    /// The duration in seconds that a share `q` of those counted in `counts` does not exceed, taken as evenly spread
    /// within its bucket; the last bound where they are above all; nothing where there are none.
    pub(crate) fn quantile(&self, counts: &[u64], q: f64) -> Option<f64> {
        let total: u64 = counts.iter().sum();
        let wanted = q * total as f64;
        let mut below = 0.0;
        for (i, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            if below + count as f64 >= wanted {
                let low = if i == 0 { 0.0 } else { self.bounds[i - 1] };
                let high = self.bounds.get(i).copied().unwrap_or(low);
                return Some(low + (high - low) * (wanted - below) / count as f64);
            }
            below += count as f64;
        }
        None
    }

    /// `labels`: without braces, `model_name="x"`.
    pub(super) fn write(&self, name: &str, labels: &str, out: &mut String) {
        let mut below = 0;
        let bounds = self.bounds.iter().map(f64::to_string).chain(["+Inf".to_string()]);
        for (bound, bucket) in bounds.zip(&self.buckets) {
            below += bucket.load(Relaxed);
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {below}");
        }
        let sum = self.sum_millionths.load(Relaxed) as f64 / 1e6;
        let _ = writeln!(out, "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {below}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_in_their_buckets() {
        let histogram = Histogram::new(&[1.0, 2.0, 4.0]);
        assert_eq!(histogram.quantile(&histogram.counts(), 0.5), None);
        for s in [0.5, 1.5, 1.5, 3.0] {
            histogram.observe(Duration::from_secs_f64(s));
        }
        let at = |q| histogram.quantile(&histogram.counts(), q).unwrap();
        assert_eq!((at(0.25), at(0.5), at(0.75), at(1.0)), (1.0, 1.5, 2.0, 4.0));
        assert_eq!(histogram.quantile(&[0, 0, 0, 7], 0.5), Some(4.0), "all of them above the last bound");
    }

    #[test]
    fn buckets_are_cumulative_and_bounds_belong_to_them() {
        let histogram = Histogram::new(&[0.5, 1.0]);
        for ms in [100, 500, 501, 3000] {
            histogram.observe(Duration::from_millis(ms));
        }
        let mut text = String::new();
        histogram.write("x", "m=\"a\"", &mut text);
        let want = "x_bucket{m=\"a\",le=\"0.5\"} 2\nx_bucket{m=\"a\",le=\"1\"} 3\nx_bucket{m=\"a\",le=\"+Inf\"} 4\n\
                    x_sum{m=\"a\"} 4.101\nx_count{m=\"a\"} 4\n";
        assert_eq!(text, want);
    }
}
