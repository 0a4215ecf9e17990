//! The table that a person reads, and the JSON that programs do, with vLLM's keys.

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::arrivals::Pace;
use super::client::Answer;
use super::figures::{Figures, Spread};
use super::saved::date;
use crate::args::{BenchServeArgs, Pair, Time, typed};
use crate::console::{note, show};

/// Errors that are shown.
const SHOWN: usize = 10;

/// A run to tell of.
pub(super) struct Report<'a> {
    pub(super) args: &'a BenchServeArgs,
    pub(super) model: &'a str,
    pub(super) figures: Figures,
    pub(super) answers: &'a [Answer],
    pub(super) input_lens: &'a [usize],
    /// How requests came; nothing at the times of a trace.
    pub(super) pace: Option<Pace>,
    /// Whether more requests were to come, or to end.
    pub(super) stopped: bool,
}

/// `99`, `99.9`
fn percent(p: f64) -> String {
    format!("{p}")
}

fn name(time: Time) -> (&'static str, &'static str, &'static str) {
    match time {
        Time::Ttft => ("ttft", "TTFT", "Time to First Token"),
        Time::Tpot => ("tpot", "TPOT", "Time per Output Token (excl. 1st token)"),
        Time::Itl => ("itl", "ITL", "Inter-token Latency"),
        Time::E2el => ("e2el", "E2EL", "End-to-end Latency"),
    }
}

impl Report<'_> {
    /// vLLM's result, key for key where the meaning is the same.
    pub(super) fn json(&self) -> Result<Value> {
        let (args, f) = (self.args, &self.figures);
        let mut result = json!({
            "date": date()?,
            "endpoint_type": typed(args.server.backend),
            "backend": typed(args.server.backend),
            "label": args.report.label,
            "model_id": args.server.model.as_deref().unwrap_or(self.model),
            "tokenizer_id": args.server.tokenizer,
            "num_prompts": self.answers.len(),
            "request_rate": self.pace.map_or(json!("trace"), rate),
            "burstiness": number(args.traffic.burstiness),
            "max_concurrency": args.traffic.max_concurrency,
            "duration": f.duration,
            "completed": f.completed,
            "failed": f.failed,
            "total_input_tokens": f.input_tokens,
            "total_output_tokens": f.output_tokens,
            "request_throughput": f.per_s(f.completed),
            "request_goodput": (!args.report.goodput.is_empty()).then(|| f.per_s(f.good)),
            "output_throughput": f.per_s(f.output_tokens),
            "total_token_throughput": f.per_s(f.input_tokens + f.output_tokens),
            "max_output_tokens_per_s": f.peak_tokens_per_s,
            "max_concurrent_requests": f.peak_requests,
        });
        if let Some(Pace::Ramp { how, start, end }) = self.pace {
            result["ramp_up_strategy"] = json!(typed(how));
            result["ramp_up_start_rps"] = json!(start);
            result["ramp_up_end_rps"] = json!(end);
        }
        if self.stopped {
            result["interrupted"] = json!(true);
        }
        let fields = result.as_object_mut().into_iter();
        fields.for_each(|fields| {
            self.distributions(fields);
            if args.report.save_detailed {
                self.detailed(fields);
            }
            let figures: Vec<String> = fields.keys().cloned().collect();
            for Pair(name, value) in &args.report.metadata {
                if figures.contains(name) {
                    note!("--metadata {name} is left out: the result has a figure of that name");
                } else {
                    fields.insert(name.clone(), json!(value));
                }
            }
        });
        Ok(result)
    }

    fn distributions(&self, result: &mut Map<String, Value>) {
        for &time in &self.args.report.percentile_metrics {
            let (key, _, _) = name(time);
            let spread = Spread::of(self.figures.times(time));
            result.insert(format!("mean_{key}_ms"), json!(spread.mean()));
            result.insert(format!("median_{key}_ms"), json!(spread.percentile(50.0)));
            result.insert(format!("std_{key}_ms"), json!(spread.std()));
            for &p in &self.args.report.metric_percentiles {
                result.insert(format!("p{}_{key}_ms", percent(p)), json!(spread.percentile(p)));
            }
        }
    }

    fn detailed(&self, result: &mut Map<String, Value>) {
        let lens = self.answers.iter().zip(self.input_lens);
        let input: Vec<usize> = lens.map(|(answer, len)| answer.input_tokens.unwrap_or(*len)).collect();
        let all = |f: fn(&Answer) -> Value| self.answers.iter().map(f).collect::<Value>();
        result.insert("input_lens".into(), json!(input));
        result.insert("output_lens".into(), all(|answer| json!(answer.generated())));
        result.insert("ttfts".into(), all(|answer| json!(answer.ttft)));
        result.insert("itls".into(), all(|answer| json!(answer.itl)));
        result.insert("latencies".into(), all(|answer| json!(answer.latency)));
        result.insert("start_times".into(), all(|answer| json!(answer.start)));
        result.insert("queue_times".into(), all(|answer| json!(answer.queued)));
        result.insert("generated_texts".into(), all(|answer| json!(answer.text)));
        result.insert("errors".into(), all(|answer| json!(answer.error.as_deref().unwrap_or(""))));
    }

    /// The table.
    pub(super) fn show(&self) -> Result<()> {
        for (i, error) in
            self.answers.iter().filter_map(|answer| answer.error.as_ref()).take(SHOWN).enumerate()
        {
            show!("Error {i}: {error}")?;
        }
        show!("{:=^50}", " Serving Benchmark Result ")?;
        for (what, value) in self.rows() {
            show!("{what:<40} {value}")?;
        }
        for &time in &self.args.report.percentile_metrics {
            let (_, short, long) = name(time);
            let spread = Spread::of(self.figures.times(time));
            show!("{long:-^50}")?;
            let row = |what: &str, ms: f64| show!("{:<40} {ms:.2}", format!("{what} {short} (ms):"));
            row("Mean", spread.mean())?;
            row("Median", spread.percentile(50.0))?;
            for &p in &self.args.report.metric_percentiles {
                row(&format!("P{}", percent(p)), spread.percentile(p))?;
            }
        }
        show!("{:=^50}", "")
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let (args, f) = (self.args, &self.figures);
        let rate = |count| format!("{:.2}", f.per_s(count));
        let mut rows = vec![
            ("Successful requests:", f.completed.to_string()),
            ("Failed requests:", f.failed.to_string()),
        ];
        rows.extend(
            args.traffic.max_concurrency.map(|most| ("Maximum request concurrency:", most.to_string())),
        );
        let configured = match self.pace {
            Some(Pace::Steady(rate)) if rate.is_finite() => Some(format!("{rate:.2}")),
            Some(Pace::Ramp { how, start, end }) => Some(format!("{start:.2} to {end:.2}, {}", typed(how))),
            _ => None,
        };
        rows.extend(configured.map(|rate| ("Request rate configured (RPS):", rate)));
        rows.extend([
            ("Benchmark duration (s):", format!("{:.2}", f.duration)),
            ("Total input tokens:", f.input_tokens.to_string()),
            ("Total generated tokens:", f.output_tokens.to_string()),
            ("Request throughput (req/s):", rate(f.completed)),
        ]);
        rows.extend((!args.report.goodput.is_empty()).then(|| ("Request goodput (req/s):", rate(f.good))));
        rows.extend([
            ("Output token throughput (tok/s):", rate(f.output_tokens)),
            ("Peak output token throughput (tok/s):", f.peak_tokens_per_s.to_string()),
            ("Peak concurrent requests:", f.peak_requests.to_string()),
            ("Total token throughput (tok/s):", rate(f.input_tokens + f.output_tokens)),
        ]);
        rows
    }
}

/// A rate that grows has no other name among vLLM's keys.
fn rate(pace: Pace) -> Value {
    match pace {
        Pace::Steady(rate) => number(rate),
        Pace::Ramp { .. } => number(f64::INFINITY),
    }
}

/// JSON has no infinity: vLLM writes "inf".
fn number(x: f64) -> Value {
    if x.is_infinite() { json!("inf") } else { json!(x) }
}
