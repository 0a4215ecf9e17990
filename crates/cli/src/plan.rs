//! `ballast plan`: what lives where, what that comes to, what binds, and what more memory would bring.

use std::process::ExitCode;

use anyhow::{Result, bail};
use policy::plan::{binds, one_more_gib};
use serde_json::{Value, json};
use sim::flexgen::{Mechanism, Planned, Rates, Wanted};
use spec::{ByTier, Tier};

use crate::args::PlanArgs;
use crate::console::show;
use crate::output_file::{JsonReport, OutputFile};
use crate::scenario::{chart, curve, percent, rates, report, wanted};

pub(crate) fn plan(args: PlanArgs) -> Result<ExitCode> {
    let json = JsonReport::open(args.scenario.json.as_deref())?;
    let rates = budgets(&args, rates(&args.scenario)?);
    let wanted = Wanted { max_latency_s: args.max_latency, ..wanted(&args.model, &args.scenario)? };
    let Some(planned) = sim::flexgen::plan(&wanted, rates, Mechanism::BALLAST) else {
        bail!(
            "nothing fits: {} needs more memory, more room on the drive or more time than it is given",
            args.model
        )
    };
    let more = one_more_gib(&planned.question);
    let mut told = report(&planned.case, &planned.prediction);
    let binds = binds(&planned.question, &planned.placed);
    told["binds"] = json!(binds);
    told["peak_bytes"] = by_tier(planned.placed.peak);
    told["one_more_gib_tokens_per_s"] = by_tier(more);
    table(&args.model, &planned, &binds, more)?;
    if let Some(cost) = dollars_per_hour(&args) {
        let tokens = planned.prediction.generated_tokens_per_s * 3600.0 / cost;
        told["tokens_per_dollar"] = json!(tokens);
        show!("tokens per dollar     {tokens:.0}")?;
    }
    if let Some(path) = &args.curve {
        let mut file = OutputFile::open(path)?;
        let points = curve(&args.model, &Wanted { max_latency_s: None, ..wanted }, rates, Mechanism::BALLAST);
        file.begin()?;
        file.write(chart(format!("{}, planned", args.model), vec![points]).svg().as_bytes())?;
    }
    json.write(&told)?;
    Ok(ExitCode::SUCCESS)
}

/// The machine's capacities, as far as flags do not say otherwise.
fn budgets(args: &PlanArgs, rates: Rates) -> Rates {
    let or = |flag: Option<u64>, machine: f64| flag.map_or(machine, |bytes| bytes as f64);
    Rates {
        device_bytes: or(args.device_memory, rates.device_bytes),
        host_bytes: or(args.memory, rates.host_bytes),
        disk_bytes: or(args.disk, rates.disk_bytes),
        ..rates
    }
}

/// Electricity and rent (FlexGen, section 6.3: 2484 tokens an hour at 250 W and 0.2 a kilowatt-hour are 49,680 a dollar).
fn dollars_per_hour(args: &PlanArgs) -> Option<f64> {
    let electricity = args.watts.zip(args.kwh_price).map(|(watts, price)| watts / 1000.0 * price);
    match (electricity, args.price_per_hour) {
        (None, None) => None,
        (electricity, rent) => Some(electricity.unwrap_or(0.0) + rent.unwrap_or(0.0)),
    }
}

fn by_tier(values: ByTier<f64>) -> Value {
    json!({ "device": values.device, "host": values.host, "disk": values.disk })
}

fn table(model: &str, planned: &Planned, binds: &[&str], more: ByTier<f64>) -> Result<()> {
    let policy = &planned.case.policy;
    show!("{model}: blocks of {} batches of {}", policy.num_batches, policy.batch_size)?;
    show!("{:22}{:>10}{:>10}{:>10}", "", "device", "host", "disk")?;
    let rows = [
        ("weights", policy.placement.weights),
        ("KV", policy.placement.kv),
        ("activations", policy.placement.hidden),
    ];
    for (name, split) in rows {
        let [a, b, c] = Tier::ALL.map(|tier| percent(split, tier));
        show!("{:22}{a:9.1}%{b:9.1}%{c:9.1}%", format!("{name}, percent"))?;
    }
    let peak = planned.placed.peak;
    let gib = |bytes: f64| bytes / f64::from(1 << 30);
    show!("{:22}{:10.1}{:10.1}{:10.1}", "peak, GiB", gib(peak.device), gib(peak.host), gib(peak.disk))?;
    show!("{:22}{:10.3}{:10.3}{:10.3}", "1 GiB more, tokens/s", more.device, more.host, more.disk)?;
    show!("generated tokens/s    {:.3}", planned.prediction.generated_tokens_per_s)?;
    show!("latency of a request  {:.0} s", planned.prediction.latency_s())?;
    show!("binds                 {}", binds.join(", "))
}
