//! A plan told to people and to programs.

use anyhow::Result;
use engine::{Budget, counted};
use policy::cost::{Correction, OpSort};
use policy::plan::GAIN;
use serde_json::{Value, json};
use spec::{ByTier, Lane, Op, Placement, Split, Tier};

use super::candidate::{Job, Scored};
use super::search::Found;
use crate::args::{AttendOn, ScheduleName, typed};
use crate::console::show;
use crate::scenario::{percent, shares};

/// A tier that is this full holds the plan back, unless more of it would bring less than [`GAIN`].
pub(super) const FULL: f64 = 0.97;

fn by_tier<T: serde::Serialize + Copy>(values: ByTier<T>) -> Value {
    json!({ "device": values.device, "host": values.host, "disk": values.disk })
}

/// What holds a plan back: its longest lane, and the tiers that are full. `more`: what one more GiB of each would bring, where
/// that was looked for.
pub(super) fn binds(best: &Scored, more: Option<ByTier<f64>>) -> Vec<&'static str> {
    let peak = best.outline.peak_bytes;
    let full = |held: u64, limit: u64| held as f64 > FULL * limit as f64;
    let (device, host) = match best.outline.budget {
        Budget::Common(memory) => (full(peak.device, memory), false),
        Budget::Carved { device, memory } => (full(peak.device, device), full(peak.host, memory - device)),
        Budget::Apart { device, memory } => (full(peak.device, device), full(peak.host, memory)),
    };
    let gains = |tier| more.is_none_or(|more: ByTier<f64>| more[tier] > GAIN * best.run.tokens_per_s());
    let drive = best.outline.drive.is_some_and(|limit| full(peak.disk, limit));
    let full = ByTier { device, host, disk: drive };
    in_words(best.run.busiest(), |tier| full[tier] && gains(tier))
}

/// A lane, and the tiers that are short.
pub(super) fn in_words(lane: Lane, is_short: impl Fn(Tier) -> bool) -> Vec<&'static str> {
    let lane = match lane {
        Lane::Host => "attention on the host",
        Lane::Up => "copies from host to device",
        Lane::Down => "copies from device to host",
        Lane::DiskRead => "reading the drive",
        Lane::DiskWrite => "writing the drive",
        _ => "compute on the device",
    };
    let tiers = [
        (Tier::Device, "memory of the device"),
        (Tier::Host, "memory of the host"),
        (Tier::Disk, "room on the drive"),
    ];
    let short = tiers.into_iter().filter(|(tier, _)| is_short(*tier)).map(|(_, name)| name);
    std::iter::once(lane).chain(short).collect()
}

/// For `--json`.
pub(super) fn report(found: &Found, job: Job, more: ByTier<f64>) -> Value {
    let best = &found.scored[0];
    let (run, outline, candidate) = (&best.run, &best.outline, &best.candidate);
    let lanes: serde_json::Map<String, Value> =
        Lane::ALL.into_iter().map(|lane| (format!("{lane:?}"), json!(run.busy[lane.index()]))).collect();
    let ops: serde_json::Map<String, Value> =
        Op::KINDS.iter().zip(run.ops).map(|(kind, seconds)| (kind.to_string(), json!(seconds))).collect();
    let others = found.scored.iter().map(|scored| {
        let Scored { candidate, run, .. } = scored;
        json!({
            "schedule": ScheduleName::of(candidate.schedule),
            "batch_size": candidate.batch_size,
            "num_batches": candidate.num_batches,
            "max_num_batched_tokens": candidate.step_tokens,
            "placement": placement(scored),
            "attend": attend(scored),
            "generated_tokens_per_s": run.tokens_per_s(),
            "latency_s": run.latency_s,
            "latency_max_s": run.latency_max_s,
        })
    });
    json!({
        "generated_tokens_per_s": run.tokens_per_s(),
        "seconds": run.seconds,
        "last_first_token_s": run.first_token_s,
        "latency_s": run.latency_s,
        "latency_max_s": run.latency_max_s,
        "steps": run.steps,
        "num_prompts": job.requests,
        "rehearsed_prompts": run.rehearsed,
        "prompt_len": job.input,
        "gen_len": job.output,
        "schedule": ScheduleName::of(candidate.schedule),
        "batch_size": candidate.batch_size,
        "num_batches": candidate.num_batches,
        "max_num_seqs": candidate.seqs(job),
        "max_num_batched_tokens": candidate.step_tokens,
        "placement": placement(best),
        "attend": attend(best),
        "peak_bytes": by_tier(outline.peak_bytes),
        "layer_weight_bytes": outline.layer_bytes,
        "binds": binds(best, Some(more)),
        "one_more_gib_tokens_per_s": by_tier(more),
        "lane_seconds": lanes,
        "op_seconds": ops,
        "programme_tokens_per_s": found.programme,
        "candidates": others.collect::<Vec<_>>(),
    })
}

fn placement(scored: &Scored) -> Value {
    let Placement { weights, kv, hidden } = scored.outline.placement;
    json!({ "weights": shares(weights), "kv": shares(kv), "hidden": shares(hidden) })
}

/// Where decodes attend, as `--attend` has it, if it matters: some KV lives away from the device.
fn attend(scored: &Scored) -> Option<String> {
    let leaves = scored.outline.placement.kv != Split::RESIDENT;
    leaves.then(|| typed(AttendOn::of(scored.candidate.delegate)))
}

/// For people.
pub(super) fn table(model: &str, found: &Found, job: Job, more: ByTier<f64>) -> Result<()> {
    let best = &found.scored[0];
    let (run, candidate, placement) = (&best.run, &best.candidate, best.outline.placement);
    show!(
        "{model}: {}, {} in, {} out: {} of {}, {}, up to {} of each a step",
        counted(job.requests, "request"),
        job.input,
        job.output,
        counted(candidate.num_batches, "batch"),
        candidate.batch_size,
        ScheduleName::of(candidate.schedule),
        counted(candidate.step_tokens, "position")
    )?;
    show!("{:22}{:>10}{:>10}{:>10}", "", "device", "host", "disk")?;
    for (name, split) in
        [("weights", placement.weights), ("KV", placement.kv), ("activations", placement.hidden)]
    {
        let [a, b, c] = Tier::ALL.map(|tier| percent(split, tier));
        show!("{:22}{a:9.1}%{b:9.1}%{c:9.1}%", format!("{name}, percent"))?;
    }
    if let Some(on) = attend(best) {
        show!("decodes attend        on the {on}, where KV is elsewhere than on the device")?;
    }
    let held = best.outline.peak_bytes;
    let in_gib = Tier::ALL.into_iter().any(|tier| held[tier] >= 1 << 30);
    let (unit, bytes) = if in_gib { ("GiB", 1 << 30) } else { ("MiB", 1 << 20) };
    let peak = held.map(|held| held as f64 / f64::from(bytes));
    show!("{:22}{:10.2}{:10.2}{:10.2}", format!("peak, {unit}"), peak.device, peak.host, peak.disk)?;
    show!("{:22}{:10.3}{:10.3}{:10.3}", "1 GiB more, tokens/s", more.device, more.host, more.disk)?;
    show!("generated tokens/s    {:.2}", run.tokens_per_s())?;
    show!(
        "the whole job         {:.1} s, the last first token after {:.1} s",
        run.seconds,
        run.first_token_s
    )?;
    show!("latency of a request  {:.1} s, the longest {:.1} s", run.latency_s, run.latency_max_s)?;
    if run.rehearsed < job.requests {
        show!("rehearsed             {} of them: in the middle all are alike", run.rehearsed)?;
    }
    show!("binds                 {}", binds(best, Some(more)).join(", "))
}

/// What runs have found out about the profile; as a line, where that is something.
pub(super) fn correction(told: &mut Value, correction: &Correction) -> Option<String> {
    let factors = OpSort::ALL.map(|sort| (sort.name().to_string(), json!(correction.factor(sort))));
    told["correction"] = factors.into_iter().collect::<serde_json::Map<_, _>>().into();
    correction.told().map(|line| format!("corrected by runs     {line}"))
}

/// Tokens for a dollar, as a line too.
pub(super) fn dollars(told: &mut Value, tokens: f64) -> String {
    told["tokens_per_dollar"] = json!(tokens);
    match tokens.is_finite() {
        true => format!("tokens per dollar     {tokens:.0}"),
        false => "tokens per dollar     beyond counting: power that costs nothing".into(),
    }
}
