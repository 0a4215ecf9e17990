//! A plan as flags in TOML.

use std::fmt::Write;

use engine::EngineConfig;
use spec::{Placement, Split, Tier};

use super::candidate::{Job, Scored};
use crate::args::{ActivationsAs, AttendOn, LoadFormat, Percent, PlanArgs, ScheduleName, typed};

/// What was given of budgets and formats, and what was chosen.
pub(super) fn toml(args: &PlanArgs, base: &EngineConfig, best: &Scored, job: Job) -> String {
    let (engine, candidate) = (&args.engine, &best.candidate);
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{name} = {value}");
    };
    line("# predicted generated tokens per second", format!("{:.3}", best.run.tokens_per_s()));
    line("# room is left for the process of", quoted(typed(args.planned_for)));
    line("device", quoted(typed(engine.device)));
    line("weights", quoted(typed(engine.weights.as_kept(base.weights))));
    line("kv", quoted(typed(engine.kv)));
    let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes.to_string());
    let tokens = |tokens: Option<usize>| tokens.map(|tokens| tokens.to_string());
    let rounded = engine.activations != ActivationsAs::Exact;
    let dummy = engine.load_format != LoadFormat::Auto;
    let given = [
        ("activations", rounded.then(|| quoted(typed(engine.activations)))),
        ("sparse-attention", engine.sparse_attention.map(|share| share.to_string())),
        ("load-format", dummy.then(|| quoted(typed(engine.load_format)))),
        ("memory", bytes(engine.memory)),
        ("device-memory", bytes(engine.device_memory)),
        ("disk", bytes(engine.disk)),
        ("offload-dir", engine.offload_dir.as_ref().map(|folder| quoted(folder.display().to_string()))),
        ("threads", tokens(engine.threads)),
        ("link-gbps", engine.link_gbps.map(|rate| (rate as f64 / 1e9).to_string())),
        ("swap-tokens", tokens(engine.swap_tokens)),
        ("disk-cache-tokens", tokens(engine.disk_cache_tokens)),
        ("steps-in-flight", engine.steps_in_flight.map(|steps| steps.to_string())),
        ("no-enable-prefix-caching", engine.no_enable_prefix_caching.then(|| "true".into())),
        ("no-overlap", engine.schedule.no_overlap.then(|| "true".into())),
    ];
    for (name, value) in given.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        line(name, value);
    }
    // Always: left to the engine's own rule, a process of slightly different size would place weights otherwise.
    let Placement { kv, hidden, .. } = best.outline.placement;
    let shares = [best.outline.weight_share, kv, hidden].map(|split| {
        [Tier::Device, Tier::Host].map(|tier| Percent::of_parts(split.part(tier)).to_string()).join(", ")
    });
    line("percent", format!("[{}]", shares.join(", ")));
    line("host-weights", quoted(typed(engine.host_weights)));
    if kv != Split::RESIDENT {
        line("attend", quoted(typed(AttendOn::of(candidate.delegate))));
    }
    line("schedule", quoted(ScheduleName::of(candidate.schedule)));
    line("batch-size", candidate.batch_size.to_string());
    line("num-batches", candidate.num_batches.to_string());
    line("max-num-seqs", candidate.seqs(job).to_string());
    line("max-num-batched-tokens", candidate.step_tokens.to_string());
    out.push_str("# as --prompt-len and --gen-len have it: no request can be longer\n");
    let _ = writeln!(out, "max-model-len = {}", job.input + job.output);
    out
}

/// Text in JSON is text in TOML.
fn quoted(text: String) -> String {
    serde_json::Value::from(text).to_string()
}
