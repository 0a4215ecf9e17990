//! Published models on machines of the papers: what the flags ask for, in the simulator's words.

use anyhow::{Context, Result, anyhow};
use policy::cost::Dims;
use serde_json::{Value, json};
use sim::flexgen::{
    Case, Format, HostAttention, Lengths, MACHINES, Machine, Mechanism, Overlap, Prediction, Rates, Wanted,
    plan,
};
use sim::{Chart, Curve};
use spec::{Lane, Split, Tier};

use crate::args;

/// Latencies that curves are drawn through, seconds.
const LIMITS: [f64; 12] = [10.0, 30.0, 60.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4];

pub(crate) fn machine(name: &str) -> Result<Machine> {
    Machine::named(name)
        .ok_or_else(|| anyhow!("no machine is called `{name}`: there is {}", MACHINES.join(", ")))
}

pub(crate) fn rates(args: &args::ScenarioArgs) -> Result<Rates> {
    machine(&args.hardware)?.rates().context("the machine's preset")
}

pub(crate) fn dims(model: &str) -> Result<Dims> {
    let names = || Dims::names().collect::<Vec<_>>().join(", ");
    Dims::named(model).ok_or_else(|| anyhow!("no published model is called `{model}`: there are {}", names()))
}

/// What the flags say, with no block chosen yet, and everything overlapping.
pub(crate) fn wanted(model: &str, args: &args::ScenarioArgs) -> Result<Wanted> {
    let format = |compressed| if compressed { Format::Int4 } else { Format::Half };
    Ok(Wanted {
        dims: dims(model)?,
        lengths: Lengths { prompt: args.prompt_len, generated: args.gen_len },
        weights: format(args.compress_weight),
        cache: format(args.compress_cache),
        overlap: Overlap::On,
        host_attention: if args.no_host_attention { HostAttention::Off } else { HostAttention::On },
        devices: args.devices,
        block: None,
        max_latency_s: None,
    })
}

/// Shares of a split in percent.
pub(crate) fn percent(split: Split, tier: Tier) -> f64 {
    f64::from(split.part(tier)) * 100.0 / f64::from(Split::WHOLE)
}

pub(crate) fn shares(split: Split) -> Value {
    json!({
        "device": percent(split, Tier::Device) / 100.0,
        "host": percent(split, Tier::Host) / 100.0,
        "disk": percent(split, Tier::Disk) / 100.0,
    })
}

/// The figures of a run, for `--json`.
pub(crate) fn report(case: &Case, prediction: &Prediction) -> Value {
    let policy = &case.policy;
    let lanes: serde_json::Map<String, Value> = Lane::ALL
        .into_iter()
        .map(|lane| {
            let both = [prediction.prefill.lanes, prediction.decode.lanes].map(|lanes| lanes[lane.index()]);
            (format!("{lane:?}"), json!(both[0] + both[1]))
        })
        .collect();
    json!({
        "generated_tokens_per_s": prediction.generated_tokens_per_s,
        "decode_tokens_per_s": prediction.decode_tokens_per_s,
        "prefill_s": prediction.prefill.total,
        "decode_s": prediction.decode.total,
        "latency_s": prediction.latency_s(),
        "batch_size": policy.batch_size,
        "num_batches": policy.num_batches,
        "placement": {
            "weights": shares(policy.placement.weights),
            "kv": shares(policy.placement.kv),
            "hidden": shares(policy.placement.hidden),
        },
        "lane_seconds": lanes,
    })
}

/// The most that can be had at each latency.
pub(crate) fn curve(name: &str, wanted: &Wanted, rates: Rates, mechanism: Mechanism) -> Curve {
    let point = |&limit: &f64| {
        let wanted = Wanted { max_latency_s: Some(limit), ..*wanted };
        let planned = plan(&wanted, rates, mechanism)?;
        Some((planned.prediction.latency_s(), planned.prediction.generated_tokens_per_s))
    };
    let mut points: Vec<(f64, f64)> = LIMITS.iter().filter_map(point).collect();
    points.dedup();
    Curve { name: name.into(), points }
}

/// Curves of throughput over latency.
pub(crate) fn chart(title: String, curves: Vec<Curve>) -> Chart {
    Chart { title, x: "latency of a request, seconds".into(), y: "generated tokens/s".into(), curves }
}
