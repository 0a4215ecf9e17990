//! Requests of HTTP by method, route and class of status (`2xx`): counts and durations, under the names and labels that
//! FastAPI's instrumentator gives them, as vLLM uses it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use super::Histogram;

/// The instrumentator's bounds of `http_request_duration_seconds`, and minutes beyond them: generating takes long.
const DURATION: &[f64] = &[0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// By method, route and hundreds of the status. Routes are few: whatever leads nowhere is one.
type Counts = BTreeMap<(&'static str, String, u16), u64>;

/// Requests that are over.
#[derive(Default)]
pub(crate) struct Http {
    counts: Mutex<Counts>,
    durations: Mutex<BTreeMap<(&'static str, String), Histogram>>,
}

impl Http {
    /// A request is over, its body sent.
    pub(crate) fn observe(&self, method: &'static str, route: &str, status: u16, took: Duration) {
        let mut counts = self.counts.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *counts.entry((method, route.to_string(), status / 100)).or_default() += 1;
        drop(counts);
        let mut durations = self.durations.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let histogram = durations.entry((method, route.to_string()));
        histogram.or_insert_with(|| Histogram::new(DURATION)).observe(took);
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// Writes each histogram with its labels.
    pub(super) fn write(&self, name: &str, out: &mut String) {
        let durations = self.durations.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for ((method, route), histogram) in durations.iter() {
            histogram.write(name, &format!("method=\"{method}\",handler=\"{route}\""), out);
        }
    }
}
