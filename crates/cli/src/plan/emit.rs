//! A plan as flags in TOML.

use std::fmt::Write;

use clap::ValueEnum;
use policy::sched::{Delegate, Schedule};
use spec::{Placement, Tier};

use super::candidate::{Job, Scored};
use crate::args::{ActivationsAs, LoadFormat, Percent, PlanArgs};

/// Names of schedules as `--schedule` has them.
pub(super) fn schedule(schedule: Schedule) -> &'static str {
    match schedule {
        Schedule::Continuous => "plain",
        Schedule::Row => "row",
        Schedule::Zigzag => "zigzag",
        Schedule::Diagonal => "diagonal",
    }
}

/// Names of places to attend as `--attend` has them.
fn attend(delegate: Delegate) -> &'static str {
    match delegate {
        Delegate::Host => "host",
        Delegate::Streamed => "device",
    }
}

/// What was given of budgets and formats, and what was chosen.
pub(super) fn toml(args: &PlanArgs, best: &Scored, job: Job) -> String {
    let (engine, candidate) = (&args.engine, &best.candidate);
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{name} = {value}");
    };
    let name = |value: Option<clap::builder::PossibleValue>| {
        format!("{:?}", value.map_or(String::new(), |value| value.get_name().to_string()))
    };
    line("# predicted generated tokens per second", format!("{:.3}", best.run.tokens_per_s()));
    line("device", name(engine.device.to_possible_value()));
    line("weights", name(engine.weights.to_possible_value()));
    line("kv", name(engine.kv.to_possible_value()));
    if engine.activations != ActivationsAs::Exact {
        line("activations", name(engine.activations.to_possible_value()));
    }
    if let Some(share) = engine.sparse_attention {
        line("sparse-attention", share.to_string());
    }
    if engine.load_format != LoadFormat::Auto {
        line("load-format", name(engine.load_format.to_possible_value()));
    }
    let bytes = [("memory", engine.memory), ("device-memory", engine.device_memory), ("disk", engine.disk)];
    for (name, value) in bytes.into_iter().filter_map(|(name, bytes)| Some((name, bytes?))) {
        line(name, value.to_string());
    }
    if let Some(folder) = &engine.offload_dir {
        // Text in JSON is text in TOML.
        line("offload-dir", serde_json::Value::from(folder.display().to_string()).to_string());
    }
    if let Some(threads) = engine.threads {
        line("threads", threads.to_string());
    }
    // Always: left to the engine's own rule, a process of slightly different size would place weights otherwise.
    let Placement { kv, hidden, .. } = best.outline.placement;
    let shares = [best.outline.weight_share, kv, hidden].map(|split| {
        [Tier::Device, Tier::Host].map(|tier| Percent::of_parts(split.part(tier)).to_string()).join(", ")
    });
    line("percent", format!("[{}]", shares.join(", ")));
    line("host-weights", name(engine.host_weights.to_possible_value()));
    line("attend", format!("{:?}", attend(candidate.delegate)));
    if let Some(rate) = engine.link_gbps {
        line("link-gbps", (rate as f64 / 1e9).to_string());
    }
    if let Some(tokens) = engine.swap_tokens {
        line("swap-tokens", tokens.to_string());
    }
    if let Some(tokens) = engine.disk_cache_tokens {
        line("disk-cache-tokens", tokens.to_string());
    }
    if let Some(steps) = engine.steps_in_flight {
        line("steps-in-flight", steps.to_string());
    }
    let switches = [
        ("no-enable-prefix-caching", engine.no_enable_prefix_caching),
        ("no-overlap", engine.schedule.no_overlap),
    ];
    for (name, _) in switches.into_iter().filter(|(_, on)| *on) {
        line(name, "true".into());
    }
    line("schedule", format!("{:?}", schedule(candidate.schedule)));
    line("batch-size", candidate.batch_size.to_string());
    line("num-batches", candidate.num_batches.to_string());
    line("max-num-seqs", candidate.seqs(job).to_string());
    line("max-num-batched-tokens", candidate.step_tokens.to_string());
    line("max-model-len", (job.input + job.output).to_string());
    out
}
