//! `ballast simulate flexgen`: the paper's tables, or one cell of another.

use std::process::ExitCode;

use anyhow::{Result, bail};
use policy::plan::BlockSize;
use serde_json::{Value, json};
use sim::flexgen::{
    CELLS, Case, Cell, Format, Mechanism, Metric, Overlap, Pinning, Policy, Prediction, Published, Rates,
    Table, Wanted, plan, predict,
};
use spec::{Placement, Tier};

use crate::args::{self, FlexgenArgs, Percent};
use crate::console::show;
use crate::output_file::{JsonReport, OutputFile};
use crate::resolve::share;
use crate::scenario::{chart, curve, percent, rates, report, wanted};

pub(crate) fn flexgen(args: FlexgenArgs) -> Result<ExitCode> {
    let rates = rates(&args.scenario)?;
    let json = JsonReport::open(args.scenario.json.as_deref())?;
    let mechanism = match args.mechanism {
        args::Mechanism::Flexgen => Mechanism::FLEXGEN,
        args::Mechanism::Ballast => Mechanism::BALLAST,
    };
    let told = match (&args.model, args.mechanism) {
        (Some(model), _) => one(model, &args, rates, mechanism)?,
        (None, args::Mechanism::Flexgen) => tables(rates)?,
        (None, args::Mechanism::Ballast) => gains(&args, rates)?,
    };
    if let Some(path) = &args.curves {
        let mut file = OutputFile::open(path)?;
        let svg = figure_1(&args, rates)?;
        file.begin()?;
        file.write(svg.as_bytes())?;
    }
    json.write(&told)?;
    Ok(ExitCode::SUCCESS)
}

fn one(model: &str, args: &FlexgenArgs, rates: Rates, mechanism: Mechanism) -> Result<Value> {
    let block = args.batch_size.zip(args.num_batches);
    let block = block.map(|(batch_size, num_batches)| BlockSize { batch_size, num_batches });
    let overlap = if args.no_overlap { Overlap::Off } else { Overlap::On };
    let wanted = Wanted { block, overlap, ..wanted(model, &args.scenario)? };
    let (case, prediction) = match &args.percent {
        Some(percent) => {
            let case = given(&wanted, percent)?;
            (case, predict(&case, rates, mechanism))
        }
        None => match plan(&wanted, rates, mechanism) {
            Some(planned) => (planned.case, planned.prediction),
            None => {
                bail!("nothing fits: {model} needs more memory or room on the drive than this machine has")
            }
        },
    };
    say(model, &case, &prediction)?;
    Ok(report(&case, &prediction))
}

fn say(model: &str, case: &Case, prediction: &Prediction) -> Result<()> {
    let Policy { batch_size, num_batches, placement: Placement { weights, kv, hidden }, .. } = case.policy;
    let shares = [weights, kv, hidden].map(|split| {
        let of = |tier| percent(split, tier);
        format!("{:.0}/{:.0}/{:.0}", of(Tier::Device), of(Tier::Host), of(Tier::Disk))
    });
    show!(
        "{model}: {:.3} generated tokens/s, {:.3} decoding; prefill {:.0} s, decode {:.0} s a block",
        prediction.generated_tokens_per_s,
        prediction.decode_tokens_per_s,
        prediction.prefill.total,
        prediction.decode.total
    )?;
    show!(
        "block {batch_size}x{num_batches}; percent on device/host/disk: weights {}, KV {}, activations {}",
        shares[0],
        shares[1],
        shares[2]
    )
}

/// A policy as FlexGen's `--percent` writes it.
fn given(wanted: &Wanted, percent: &[Percent]) -> Result<Case> {
    let Some(block) = wanted.block else { bail!("--percent needs --batch-size and --num-batches") };
    Ok(Case {
        dims: wanted.dims,
        lengths: wanted.lengths,
        policy: Policy {
            batch_size: block.batch_size,
            num_batches: block.num_batches,
            placement: Placement {
                weights: share(percent, "weights", 0)?,
                kv: share(percent, "KV", 1)?,
                hidden: share(percent, "activations", 2)?,
            },
            weights: wanted.weights,
            cache: wanted.cache,
            overlap: wanted.overlap,
            host_attention: wanted.host_attention,
            pinning: Pinning::Auto,
        },
        devices: wanted.devices,
    })
}

/// All tables, cell by cell.
fn tables(rates: Rates) -> Result<Value> {
    let mut cells = Vec::new();
    for table in Table::ALL {
        show!("\n{}", table.title())?;
        for cell in CELLS.iter().filter(|cell| cell.table == table) {
            cells.push(shown(cell, rates)?);
        }
    }
    Ok(json!({ "cells": cells }))
}

fn shown(cell: &Cell, rates: Rates) -> Result<Value> {
    let prediction = predict(&cell.case(), rates, Mechanism::FLEXGEN);
    let predicted = prediction.metric(cell.metric);
    let (published, ratio) = match cell.published {
        Published::Number(number) => (format!("{number:.2}"), format!("{:.2}", predicted / number)),
        Published::Hundredth => ("0.01".into(), "-".into()),
        Published::OutOfMemory => ("OOM".into(), "-".into()),
    };
    let what = match cell.metric {
        Metric::Generation | Metric::Decoding => cell.row.to_string(),
        part => format!("{part:?}"),
    };
    show!(
        "  {what:24} {:10} {:5}   paper {published:>9}   predicted {predicted:>10.3}   {ratio:>5}",
        cell.model,
        cell.prompt
    )?;
    Ok(json!({
        "table": cell.table.title(), "row": what, "model": cell.model, "prompt_len": cell.prompt,
        "devices": cell.devices, "metric": format!("{:?}", cell.metric), "paper": published, "predicted": predicted,
    }))
}

/// From FlexGen's mechanism to Ballast's, each planned anew.
fn gains(args: &FlexgenArgs, rates: Rates) -> Result<Value> {
    let mut all = Vec::new();
    for (model, half, four) in [("opt-6.7b", 25.26, 29.12), ("opt-30b", 7.32, 8.38), ("opt-175b", 0.69, 1.12)]
    {
        show!("\n{model}: generated tokens/s, and times the published {half} (16 bits) and {four} (4 bits)")?;
        for (name, mechanism) in Mechanism::gains() {
            let half_precision = wanted(model, &args.scenario)?;
            let compressed = Wanted { weights: Format::Int4, cache: Format::Int4, ..half_precision };
            let best = |wanted: &Wanted| {
                plan(wanted, rates, mechanism)
                    .map_or(0.0, |planned| planned.prediction.generated_tokens_per_s)
            };
            let (a, b) = (best(&half_precision), best(&compressed));
            show!("  {name:54} {a:8.2} {:6.2}x   {b:8.2} {:6.2}x", a / half, b / four)?;
            all.push(json!({ "model": model, "mechanism": name, "half": a, "int4": b }));
        }
    }
    Ok(json!({ "gains": all }))
}

/// Figure 1's four systems. The baselines hold one batch, and their KV on the device.
fn figure_1(args: &FlexgenArgs, rates: Rates) -> Result<String> {
    let half = wanted("opt-175b", &args.scenario)?;
    let compressed = Wanted { weights: Format::Int4, cache: Format::Int4, ..half };
    let baseline = |name: &str, row: &str| {
        let cells = CELLS.iter().filter(|cell| cell.table == Table::TwoBaselines && cell.row == row);
        let cell = cells.into_iter().find(|cell| cell.model == "opt-175b").expect("in the table");
        let points = (1..=cell.block.0).map(|batch| {
            let mut case = cell.case();
            case.policy.batch_size = batch;
            let prediction = predict(&case, rates, Mechanism::FLEXGEN);
            (prediction.latency_s(), prediction.generated_tokens_per_s)
        });
        sim::Curve { name: name.into(), points: points.collect() }
    };
    let curves = vec![
        baseline("Accelerate", "Accelerate"),
        baseline("DeepSpeed", "DeepSpeed"),
        curve("FlexGen", &half, rates, Mechanism::FLEXGEN),
        curve("FlexGen (c)", &compressed, rates, Mechanism::FLEXGEN),
    ];
    Ok(chart("OPT-175B on a T4, predicted (FlexGen, figure 1)".into(), curves).svg())
}
