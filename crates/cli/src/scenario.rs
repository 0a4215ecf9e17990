//! Published models on machines of the papers: what the flags ask for, in the simulator's words.

use anyhow::{Context, Error, Result, anyhow, bail};
use engine::{counted, size};
use policy::cost::Dims;
use serde_json::{Value, json};
use sim::flexgen::{
    Block, Case, Format, HostAttention, Lengths, MACHINES, Machine, Mechanism, Overlap, Pinning, Policy,
    Prediction, Rates, Wanted, countable, excess, frontier, least, nearest,
};
use sim::{Chart, Curve};
use spec::{Lane, Placement, Split, Tier};

use crate::args::{self, Percent};
use crate::console::Misuse;

pub(crate) fn machine(name: &str) -> Result<Machine> {
    let unknown = || Misuse(format!("no machine is called `{name}`: there is {}", MACHINES.join(", ")));
    Ok(Machine::named(name).ok_or_else(unknown)?)
}

pub(crate) fn rates(args: &args::ScenarioArgs) -> Result<Rates> {
    machine(args.hardware())?.rates().context("the machine's preset")
}

pub(crate) fn dims(model: &str) -> Result<Dims> {
    let names = || Dims::names().collect::<Vec<_>>().join(", ");
    let unknown = || Misuse(format!("no published model is called `{model}`: there are {}", names()));
    Ok(Dims::named(model).ok_or_else(unknown)?)
}

/// What the flags say, with no block chosen yet, and everything overlapping.
pub(crate) fn wanted(model: &str, args: &args::ScenarioArgs) -> Result<Wanted> {
    let format = |compressed| if compressed { Format::Int4 } else { Format::Half };
    let dims = dims(model)?;
    if u64::from(args.devices()) > dims.layers {
        bail!(Misuse(format!(
            "--devices {}: {model} has {} layers, and each device takes one at the least",
            args.devices(),
            dims.layers
        )));
    }
    Ok(Wanted {
        dims,
        lengths: Lengths { prompt: args.prompt_len(), generated: args.gen_len() },
        weights: format(args.compress_weight),
        cache: format(args.compress_cache),
        overlap: Overlap::On,
        host_attention: if args.no_host_attention { HostAttention::Off } else { HostAttention::On },
        pinning: Pinning::Auto,
        devices: args.devices(),
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

/// Whether prompts have steps of their own: where requests begin staggered they are among the others'.
pub(crate) fn apart(prediction: &Prediction) -> bool {
    prediction.prefill.total > 0.0
}

/// The figures of a run and what was run, for `--json`.
pub(crate) fn report(
    model: &str,
    args: &args::ScenarioArgs,
    case: &Case,
    prediction: &Prediction,
    mechanism: Mechanism,
) -> Value {
    let lanes: serde_json::Map<String, Value> = Lane::ALL
        .into_iter()
        .map(|lane| {
            let both = [prediction.prefill.lanes, prediction.decode.lanes].map(|lanes| lanes[lane.index()]);
            (format!("{lane:?}"), json!(both[0] + both[1]))
        })
        .collect();
    let mut told = json!({
        "model": model,
        "hardware": args.hardware(),
        "generated_tokens_per_s": prediction.generated_tokens_per_s,
        "decode_tokens_per_s": prediction.decode_tokens_per_s,
        "prefill_s": apart(prediction).then_some(prediction.prefill.total),
        "decode_s": prediction.decode.total,
        "latency_s": prediction.latency_s(),
        "lane_seconds": lanes,
    });
    policy(&mut told, case, mechanism);
    told
}

/// What was run: lengths, block, placement, formats and every term of the runtime.
pub(crate) fn policy(told: &mut Value, case: &Case, mechanism: Mechanism) {
    let policy = &case.policy;
    let format = |format| if format == Format::Int4 { "int4" } else { "half" };
    let terms: serde_json::Map<String, Value> =
        mechanism.sides().map(|(term, side)| (term.into(), json!(side))).collect();
    let said = json!({
        "prompt_len": case.lengths.prompt,
        "gen_len": case.lengths.generated,
        "devices": case.devices,
        "schedule": if mechanism.block == Block::Diagonal { "diagonal" } else { "zigzag" },
        "batch_size": policy.batch_size,
        "num_batches": policy.num_batches,
        "placement": {
            "weights": shares(policy.placement.weights),
            "kv": shares(policy.placement.kv),
            "hidden": shares(policy.placement.hidden),
        },
        "weights": format(policy.weights),
        "kv": format(policy.cache),
        "overlap": policy.overlap == Overlap::On,
        "host_attention": policy.host_attention == HostAttention::On,
        "pin_weight": match policy.pinning {
            Pinning::Auto => "auto",
            Pinning::On => "on",
            Pinning::Off => "off",
        },
        "mechanism": terms,
    });
    for (key, value) in said.as_object().into_iter().flatten() {
        told[key] = value.clone();
    }
}

/// The most that can be had at each latency.
pub(crate) fn curve(name: &str, wanted: &Wanted, rates: Rates, mechanism: Mechanism) -> Curve {
    let points = frontier(wanted, rates, mechanism)
        .into_iter()
        .map(|planned| (planned.prediction.latency_s(), planned.prediction.generated_tokens_per_s));
    Curve { name: name.into(), points: points.collect() }
}

/// Why there is no plan: a limit on latency that nothing keeps, or tiers that are too small.
pub(crate) fn nothing(model: &str, wanted: &Wanted, rates: Rates, mechanism: Mechanism) -> Error {
    let soonest = frontier(&Wanted { max_latency_s: None, ..*wanted }, rates, mechanism).into_iter().next();
    match (soonest, wanted.max_latency_s) {
        (Some(planned), Some(limit)) => anyhow!(
            "nothing is fast enough: {model} takes {:.1} s for a request at the least (a block of {}x{}, {:.3} generated \
             tokens/s), more than the {limit:?} s of --max-latency",
            planned.prediction.latency_s(),
            planned.case.policy.batch_size,
            planned.case.policy.num_batches,
            planned.prediction.generated_tokens_per_s
        ),
        _ => too_small(model, wanted, rates, mechanism),
    }
}

/// Which tier would have to be how large.
fn too_small(model: &str, wanted: &Wanted, rates: Rates, mechanism: Mechanism) -> Error {
    let asked = wanted.block.map(|block| wanted.case(block, Placement::RESIDENT));
    if asked.is_some_and(|case| !countable(&case, mechanism)) {
        return anyhow!(TOO_LARGE);
    }
    let tiers = [
        (Tier::Device, rates.device_bytes, "memory of the device"),
        (Tier::Host, rates.host_bytes, "memory of the host"),
        (Tier::Disk, rates.disk_bytes, "room on the drive"),
    ];
    let would = tiers.into_iter().filter_map(|(tier, has, name)| {
        let least = least(wanted, rates, mechanism, tier).filter(|least| *least > has)?;
        Some(format!("{} of {name} instead of {}", gib(least), of(has)))
    });
    match would.collect::<Vec<_>>() {
        none if none.is_empty() => {
            anyhow!("nothing fits: {model} needs more than one of device, host and drive to be larger")
        }
        would => {
            let what = wanted.block.map_or_else(String::new, |block| {
                format!(" in a block of {} of {}", counted(block.num_batches, "batch"), block.batch_size)
            });
            anyhow!("nothing fits: {model}{what} needs at least {}", would.join(", or "))
        }
    }
}

/// What cannot be run step by step.
const TOO_LARGE: &str = "such a block is too large to be simulated: it has more than 65535 batches in a step, or KV blocks by the \
                         hundred million";

/// Refuses a policy that takes more of a tier than there is, with the nearest that does not.
pub(crate) fn fits(case: &Case, rates: Rates, mechanism: Mechanism) -> Result<()> {
    let excess = excess(case, rates, mechanism);
    let countable = countable(case, mechanism);
    if excess.is_empty() && countable {
        return Ok(());
    }
    let name = |tier| match tier {
        Tier::Device => "the device",
        Tier::Host => "the host",
        Tier::Disk => "the drive",
    };
    let over =
        excess.iter().map(|e| format!("{} on {}, which has {}", gib(e.needs), name(e.tier), of(e.has)));
    let over = over.collect::<Vec<_>>().join(", and ");
    if !countable {
        let near = nearest(case, rates, mechanism)
            .map(|near| format!("; the nearest that can be is {}", flags(&near)));
        bail!("{TOO_LARGE}{}", near.unwrap_or_default());
    }
    match nearest(case, rates, mechanism) {
        Some(near) => {
            bail!("out of memory: this policy takes {over}; the nearest that fits is {}", flags(&near))
        }
        None => bail!("out of memory: this policy takes {over}, and no shares of any block fit"),
    }
}

/// A policy as it is typed.
fn flags(case: &Case) -> String {
    let Policy { batch_size, num_batches, placement: Placement { weights, kv, hidden }, .. } = case.policy;
    let shares = [weights, kv, hidden].map(|split| {
        let [device, host] = [Tier::Device, Tier::Host].map(|tier| Percent::of_parts(split.part(tier)));
        format!("{device} {host}")
    });
    format!("--batch-size {batch_size} --num-batches {num_batches} --percent {}", shares.join(" "))
}

/// What is needed: upwards, so that what is asked for is enough.
fn gib(bytes: f64) -> String {
    format!("{:.1} GiB", (bytes / f64::from(1 << 30) * 10.0).ceil() / 10.0)
}

/// What there is.
fn of(bytes: f64) -> String {
    size(&(bytes as u64))
}

/// Curves of throughput over latency.
pub(crate) fn chart(title: String, curves: Vec<Curve>) -> Chart {
    Chart { title, x: "latency of a request, seconds".into(), y: "generated tokens/s".into(), curves }
}
