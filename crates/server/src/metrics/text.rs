//! The exposition format.

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Histogram, Metrics};
use crate::gate::Gate;
use crate::served::Served;

/// A page in the making.
struct Page {
    text: String,
    /// Labels of every series.
    labels: String,
}

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// `more`: further labels, with a comma before each.
    fn sample(&mut self, name: &str, more: &str, value: impl Display) {
        let _ = writeln!(self.text, "{name}{{{}{more}}} {value}", self.labels);
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, "", value);
    }

    /// The same figure under our name and under vLLM's.
    fn both(&mut self, (ours, vllm): (&str, &str), kind: &str, help: &str, value: impl Display) {
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
    /// All series. Without a model there is nothing of an engine yet.
    pub(crate) fn text(&self, served: Option<&Served>, gate: &Gate) -> String {
        let name = served.and_then(|served| served.names.first()).map_or("", String::as_str);
        let labels = format!("model_name=\"{}\",engine=\"0\"", escaped(name));
        let mut page = Page { text: String::new(), labels };
        if let Some(served) = served {
            of_engine(&mut page, served);
        }
        self.of_requests(&mut page);
        self.of_server(&mut page, gate);
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

    fn of_server(&self, page: &mut Page, gate: &Gate) {
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
    }
}

fn of_engine(page: &mut Page, served: &Served) {
    let (counts, hold) = (served.engine.counts(), served.engine.hold());
    let gauge = "gauge";
    let help = "Sequences that hold KV on the device.";
    page.both(("requests_running", "num_requests_running"), gauge, help, counts.running);
    let help = "Sequences that wait: new, preempted or moved to the host.";
    page.both(("requests_waiting", "num_requests_waiting"), gauge, help, counts.waiting);
    let usage = counts.kv_blocks_used as f64 / hold.kv_blocks as f64;
    page.both(("kv_usage_ratio", "kv_cache_usage_perc"), gauge, "Share of KV blocks in use, 0 to 1.", usage);
    let counter = "counter";
    let help = "Prompt tokens of the sequences that began.";
    page.both(("prompt_tokens_total", "prompt_tokens_total"), counter, help, counts.prompt_tokens);
    let help = "Tokens generated.";
    page.both(("generation_tokens_total", "generation_tokens_total"), counter, help, counts.generated_tokens);
    let help = "Prompt tokens looked up in the prefix cache.";
    page.both(("prefix_queries_total", "prefix_cache_queries_total"), counter, help, counts.prompt_tokens);
    let help = "Prompt tokens found in the prefix cache.";
    page.both(("prefix_hits_total", "prefix_cache_hits_total"), counter, help, counts.cached_tokens);
    preemptions(page, &counts);
    page.one("ballast_steps_total", counter, "Steps done.", counts.steps);
    page.one("ballast_computed_tokens_total", counter, "Positions computed.", counts.computed_tokens);
    page.one("ballast_moved_blocks_total", counter, "KV blocks moved between tiers.", counts.moved_blocks);
    let block_bytes = hold.kv_bytes / (hold.kv_blocks as u64).max(1);
    page.family("ballast_kv_bytes", gauge, "KV in use, by tier.");
    page.sample("ballast_kv_bytes", ",tier=\"device\"", counts.kv_blocks_used * block_bytes);
    page.family("ballast_kv_capacity_bytes", gauge, "KV that fits, by tier.");
    page.sample("ballast_kv_capacity_bytes", ",tier=\"device\"", hold.kv_bytes);
    page.sample("ballast_kv_capacity_bytes", ",tier=\"host\"", hold.host_kv_bytes);
    let help = "KV moved between device and host, both directions.";
    page.one("ballast_moved_bytes_total", counter, help, counts.moved_blocks * block_bytes);
    let busy = counts.busy_ns as f64 / 1e9;
    page.one("ballast_busy_seconds_total", counter, "Time that steps took on the lanes.", busy);
    capacities(page, hold);
}

fn preemptions(page: &mut Page, counts: &engine::Counts) {
    let all = counts.swapped + counts.recomputed;
    page.one("vllm:num_preemptions_total", "counter", "Sequences that gave up their KV on the device.", all);
    let name = "ballast_preemptions_total";
    page.family(name, "counter", "The same, by what becomes of the KV.");
    page.sample(name, ",cause=\"device_full\",kv=\"swapped\"", counts.swapped);
    page.sample(name, ",cause=\"device_full\",kv=\"recomputed\"", counts.recomputed);
}

fn capacities(page: &mut Page, hold: &engine::Hold) {
    page.family("ballast_memory_bytes", "gauge", "What was planned to live where.");
    let parts = [
        ("weights", hold.weight_bytes),
        ("activations", hold.work_bytes),
        ("kv_device", hold.kv_bytes),
        ("kv_host", hold.host_kv_bytes),
        ("process", hold.process_bytes),
        ("limit", hold.limit_bytes),
    ];
    for (part, bytes) in parts {
        page.sample("ballast_memory_bytes", &format!(",part=\"{part}\""), bytes);
    }
    let more = format!(",block_size=\"32\",num_gpu_blocks=\"{}\"", hold.kv_blocks);
    page.family("vllm:cache_config_info", "gauge", "The KV pool.");
    page.sample("vllm:cache_config_info", &more, 1);
}

/// As label values are written.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
