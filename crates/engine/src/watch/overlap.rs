//! Attention on the host, and how much of it the device's own work hides: what NEO lives by (section 3).
//!
//! ```text
//! device  [== qkv ==]      [===== mlp =====]
//! host          [==== attention ====]
//!               ^^^^^      ^^^^^^^^^^ hidden
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use spec::{Lane, Op, Tier};

use kernels::lock::lock;

/// Sums since the start.
#[derive(Debug, Default)]
pub(crate) struct Overlap {
    device: Mutex<Busy>,
    host_ns: AtomicU64,
    hidden_ns: AtomicU64,
}

/// What a lane has done.
#[derive(Debug, Default)]
struct Busy {
    before: Duration,
    since: Option<Instant>,
}

impl Busy {
    fn at(&self, now: Instant) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

/// A node under way; it ends when this is dropped.
pub(crate) enum Timed<'a> {
    Device(&'a Overlap),
    /// When it began, and what the device had done by then.
    HostAttention(&'a Overlap, Instant, Duration),
    Other,
}

impl Overlap {
    /// A node begins now.
    pub(crate) fn begins(&self, op: Op, lane: Lane) -> Timed<'_> {
        match (op, lane) {
            // On the device's own lane, where both share cores, the device does nothing meanwhile.
            (Op::Attend { on: Tier::Host, .. } | Op::Choose { on: Tier::Host, .. }, _) => {
                let now = Instant::now();
                Timed::HostAttention(self, now, self.device().at(now))
            }
            (_, Lane::Device) => {
                self.device().since = Some(Instant::now());
                Timed::Device(self)
            }
            _ => Timed::Other,
        }
    }

    /// Attentions on the host, and what the device did meanwhile: from, to. The device's follow one another.
    pub(crate) fn add(&self, attentions: &[(Instant, Instant)], device: &[(Instant, Instant)]) {
        for &(began, ended) in attentions {
            let first = device.partition_point(|busy| busy.1 <= began);
            let beside = device[first..].iter().take_while(|busy| busy.0 < ended);
            let hidden: Duration = beside.map(|busy| busy.1.min(ended) - busy.0.max(began)).sum();
            self.host_ns.fetch_add((ended - began).as_nanos() as u64, Ordering::Relaxed);
            self.hidden_ns.fetch_add(hidden.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// Nanoseconds of attention on the host, and those of them in which the device worked too.
    pub(crate) fn sums(&self) -> (u64, u64) {
        (self.host_ns.load(Ordering::Relaxed), self.hidden_ns.load(Ordering::Relaxed))
    }

    fn device(&self) -> MutexGuard<'_, Busy> {
        lock(&self.device)
    }

    fn device_ends(&self, now: Instant) {
        let mut busy = self.device();
        *busy = Busy { before: busy.at(now), since: None };
    }

    fn attended(&self, began: Instant, device_before: Duration, now: Instant) {
        let hidden = self.device().at(now).saturating_sub(device_before);
        self.host_ns.fetch_add(now.saturating_duration_since(began).as_nanos() as u64, Ordering::Relaxed);
        self.hidden_ns.fetch_add(hidden.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        match *self {
            Timed::Device(overlap) => overlap.device_ends(Instant::now()),
            Timed::HostAttention(overlap, began, before) => overlap.attended(began, before, Instant::now()),
            Timed::Other => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_hides_what_the_device_s_own_lane_attends_on_the_host() {
        let overlap = Overlap::default();
        let op = Op::Attend { layer: 0, batch: 0, on: Tier::Host };
        let began = Instant::now();
        let timed = overlap.begins(op, Lane::Device);
        while began.elapsed().is_zero() {}
        drop(timed);
        let (host, hidden) = overlap.sums();
        assert!(host > 0 && hidden == 0, "{hidden} of {host} ns");
    }

    #[test]
    fn what_the_device_did_meanwhile_is_hidden() {
        let (overlap, zero) = (Overlap::default(), Instant::now());
        let at = |ms| zero + Duration::from_millis(ms);
        // The picture above: device 0 to 10 and 15 to 30, attention 6 to 25.
        overlap.device().since = Some(at(0));
        let before = overlap.device().at(at(6));
        overlap.device_ends(at(10));
        overlap.device().since = Some(at(15));
        overlap.attended(at(6), before, at(25));
        assert_eq!(overlap.sums(), (19_000_000, 14_000_000));
        overlap.device_ends(at(30));
        let before = overlap.device().at(at(40));
        overlap.attended(at(40), before, at(45));
        assert_eq!(overlap.sums(), (24_000_000, 14_000_000), "an idle device hides nothing");
    }

    #[test]
    fn what_was_noted_afterwards_is_added_up_alike() {
        let (overlap, zero) = (Overlap::default(), Instant::now());
        let span = |from, to| (zero + Duration::from_millis(from), zero + Duration::from_millis(to));
        overlap.add(&[span(6, 25), span(40, 45)], &[span(0, 10), span(15, 30)]);
        assert_eq!(overlap.sums(), (24_000_000, 14_000_000));
    }
}
