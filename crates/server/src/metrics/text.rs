//! The exposition format.

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Histogram, Metrics, engine};
use crate::app::App;
use crate::crowd::Crowd;
use crate::gate::Gate;

/// A page in the making.
pub(super) struct Page {
    pub(super) text: String,
    /// Labels of every series.
    pub(super) labels: String,
}

impl Page {
    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// `more`: further labels, with a comma before each.
    pub(super) fn sample(&mut self, name: &str, more: &str, value: impl Display) {
        let _ = writeln!(self.text, "{name}{{{}{more}}} {value}", self.labels);
    }

    pub(super) fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, "", value);
    }

    /// The same figure under our name and under vLLM's.
    pub(super) fn both(&mut self, (ours, vllm): (&str, &str), kind: &str, help: &str, value: impl Display) {
        self.one(&format!("ballast_{ours}"), kind, help, &value);
        self.one(&format!("vllm:{vllm}"), kind, help, &value);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        for prefix in ["ballast_", "vllm:"] {
            let name = format!("{prefix}{name}");
            self.family(&name, "histogram", help);
            histogram.write(&name, &self.labels, &mut self.text);
        }
    }

    fn by(&mut self, name: &str, help: &str, label: &str, counts: &[(&str, &AtomicU64)]) {
        self.family(name, "counter", help);
        for (value, count) in counts {
            self.sample(name, &format!(",{label}=\"{value}\""), count.load(Relaxed));
        }
    }
}

impl Metrics {
    /// All series. Without a model there is little of an engine yet.
    pub(crate) fn text(&self, app: &App) -> String {
        let (served, expected) = (app.served().ok(), &app.config.model_name);
        let name = served.and_then(|served| served.names.first()).unwrap_or(expected);
        let labels = format!("model_name=\"{}\",engine=\"0\"", escaped(name));
        let mut page = Page { text: String::new(), labels };
        match served {
            Some(served) => engine::series(&mut page, served),
            None => engine::nothing_yet(&mut page),
        }
        self.of_requests(&mut page);
        self.of_server(&mut page, &app.gate, &app.crowd);
        page.text
    }

    fn of_requests(&self, page: &mut Page) {
        let reasons = [
            ("stop", &self.stopped),
            ("length", &self.at_length),
            ("abort", &self.aborted),
            ("error", &self.errors),
        ];
        for name in ["ballast_request_success_total", "vllm:request_success_total"] {
            page.by(name, "Sequences that ended, by reason.", "finished_reason", &reasons);
        }
        for (name, help, histogram) in self.histograms() {
            page.histogram(name, help, histogram);
        }
        let overdue = self.overdue.load(Relaxed);
        let help = "Requests that took longer than they may, or waited longer.";
        page.one("ballast_requests_overdue_total", "counter", help, overdue);
        // Nothing takes a sequence from the engine without telling its client: if that changes, it is counted here.
        let lost = self.errors.load(Relaxed);
        page.one("ballast_requests_lost_total", "counter", "Sequences that the engine failed.", lost);
    }

    fn of_server(&self, page: &mut Page, gate: &Gate, crowd: &Crowd) {
        page.one("ballast_connections", "gauge", "Connections that there are.", crowd.here());
        let help = "Connections that were refused because there were as many as may be.";
        page.one("ballast_connections_refused_total", "counter", help, crowd.turned_away());
        let help = "Bytes of requests' bodies that are being read, and not sequences yet.";
        page.one("ballast_body_bytes", "gauge", help, crowd.body_bytes());
        let reasons = [
            ("max_num_queued_reqs", &self.full_of_requests),
            ("max_num_queued_tokens", &self.full_of_tokens),
        ];
        for name in ["ballast_admission_rejections_total", "vllm:admission_rejections_total"] {
            page.by(name, "Requests refused because too much waits.", "reason", &reasons);
        }
        let queued = gate.queued();
        let help = "Sequences that have brought nothing yet, as admission counts them.";
        page.one("ballast_queued_requests", "gauge", help, queued.requests);
        page.one("ballast_queued_tokens", "gauge", "Prompt tokens of those.", queued.tokens);
        page.one(
            "ballast_requests_under_way",
            "gauge",
            "Requests with sequences in the engine.",
            self.under_way(),
        );
        let unknown = self.unknown_fields.load(Relaxed);
        page.one("ballast_unknown_fields_total", "counter", "Fields of requests that were ignored.", unknown);
        page.family("ballast_http_responses_total", "counter", "Responses by status.");
        let responses = self.responses.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        for (status, count) in responses {
            page.sample("ballast_http_responses_total", &format!(",status=\"{status}\""), count);
        }
        self.of_http(page);
    }

    fn of_http(&self, page: &mut Page) {
        page.family(
            "http_requests_total",
            "counter",
            "Requests whose answer was sent, or whose client left before there was one (4xx).",
        );
        for ((method, route, hundreds), count) in self.http.counts() {
            let labels = format!("method=\"{method}\",handler=\"{route}\",status=\"{hundreds}xx\"");
            let _ = writeln!(page.text, "http_requests_total{{{labels}}} {count}");
        }
        let name = "http_request_duration_seconds";
        page.family(name, "histogram", "From a request's head to the end of its answer.");
        self.http.write(name, &mut page.text);
    }
}

/// As label values are written.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
