//! FlexGen's tables and its first figure, paper beside predicted; and the same machine under Ballast's runtime.

use anyhow::Result;
use serde_json::{Value, json};
use sim::flexgen::{
    CELLS, Case, Cell, Format, Mechanism, Metric, Published, QUOTED, Quoted, Rates, Table, Wanted, excess,
    plan, predict,
};
use sim::{Chart, Curve};

use crate::args::ScenarioArgs;
use crate::console::show;
use crate::scenario::{chart, curve, policy, wanted};

/// All tables, cell by cell; `terms` switches what is asked for in the mechanism of each.
pub(crate) fn tables(rates: Rates, terms: &dyn Fn(Mechanism) -> Result<Mechanism>) -> Result<Value> {
    let mut cells = Vec::new();
    for table in Table::ALL {
        show!("\n{}", table.title())?;
        for cell in CELLS.iter().filter(|cell| cell.table == table) {
            cells.push(shown(cell, rates, terms(cell.mechanism)?)?);
        }
        for row in QUOTED.iter().filter(|row| row.table == table) {
            cells.push(quoted(row)?);
        }
    }
    Ok(json!({ "cells": cells }))
}

/// A cell; OOM where it does not fit by our count.
fn shown(cell: &Cell, rates: Rates, mechanism: Mechanism) -> Result<Value> {
    let case = cell.case();
    let predicted = excess(&case, rates, mechanism)
        .is_empty()
        .then(|| predict(&case, rates, mechanism).metric(cell.metric));
    let (published, number) = match cell.published {
        Published::Number(number) => (format!("{number:.2}"), Some(number)),
        Published::Hundredth => ("0.01".into(), None),
        Published::OutOfMemory => ("OOM".into(), None),
    };
    let ratio = predicted.zip(number).filter(|(_, number)| *number > 0.0).map(|(ours, theirs)| ours / theirs);
    let what = match cell.metric {
        Metric::Generation | Metric::Decoding => cell.row.to_string(),
        part => format!("{part:?}"),
    };
    let of = |value: Option<f64>, none: &str, digits| {
        value.map_or(none.into(), |value| format!("{value:.digits$}"))
    };
    line(&what, cell.model, cell.prompt, &published, &of(predicted, "OOM", 3), &of(ratio, "-", 2))?;
    let mut told = json!({
        "table": cell.table.title(), "row": what, "model": cell.model, "metric": format!("{:?}", cell.metric),
        "paper": number, "paper_says": published, "predicted": predicted, "fits": predicted.is_some(), "ratio": ratio,
    });
    policy(&mut told, &case, mechanism);
    Ok(told)
}

/// A row with nothing to set beside it.
fn quoted(row: &Quoted) -> Result<Value> {
    line(row.row, row.model, row.prompt, row.published, "-", "-")?;
    Ok(json!({
        "table": row.table.title(), "row": row.row, "model": row.model, "prompt_len": row.prompt,
        "paper": row.published.parse::<f64>().ok(), "paper_says": row.published, "predicted": null, "ratio": null,
    }))
}

fn line(what: &str, model: &str, prompt: u32, paper: &str, predicted: &str, ratio: &str) -> Result<()> {
    show!("  {what:24} {model:10} {prompt:5}   paper {paper:>9}   predicted {predicted:>10}   {ratio:>5}")
}

/// From FlexGen's mechanism to Ballast's: each planned anew, unless the plan before is better there too.
pub(crate) fn gains(args: &ScenarioArgs, rates: Rates) -> Result<Value> {
    let mut all = Vec::new();
    for (model, half, four) in [("opt-6.7b", 25.26, 29.12), ("opt-30b", 7.32, 8.38), ("opt-175b", 0.69, 1.12)]
    {
        show!("\n{model}: generated tokens/s, and times the published {half} (16 bits) and {four} (4 bits)")?;
        let in_half = wanted(model, args)?;
        let compressed = Wanted { weights: Format::Int4, cache: Format::Int4, ..in_half };
        let (mut halves, mut fours) = (Kept::default(), Kept::default());
        for (name, mechanism) in Mechanism::gains() {
            let (a, b) =
                (halves.under(&in_half, rates, mechanism), fours.under(&compressed, rates, mechanism));
            show!("  {name:54} {a:8.2} {:6.2}x   {b:8.2} {:6.2}x", a / half, b / four)?;
            all.push(json!({ "model": model, "mechanism": name, "half": a, "int4": b }));
        }
    }
    Ok(json!({ "gains": all }))
}

/// The best policy so far.
#[derive(Default)]
struct Kept(Option<Case>);

impl Kept {
    /// Generated tokens a second of the best under this mechanism.
    fn under(&mut self, wanted: &Wanted, rates: Rates, mechanism: Mechanism) -> f64 {
        let fits = |case: &Case| excess(case, rates, mechanism).is_empty();
        let anew = plan(wanted, rates, mechanism).map(|planned| planned.case);
        let both = self.0.into_iter().filter(fits).chain(anew);
        let rated = both.map(|case| (predict(&case, rates, mechanism).generated_tokens_per_s, case));
        match rated.max_by(|a, b| a.0.total_cmp(&b.0)) {
            Some((rate, case)) => {
                self.0 = Some(case);
                rate
            }
            None => 0.0,
        }
    }
}

/// Figure 1's four systems, FlexGen as it is given. The baselines hold one batch, and their KV on the device: a point for each batch that fits.
pub(crate) fn figure_1(args: &ScenarioArgs, rates: Rates, flexgen: Mechanism) -> Result<Chart> {
    let half = wanted("opt-175b", args)?;
    let compressed = Wanted { weights: Format::Int4, cache: Format::Int4, ..half };
    let baseline = |row: &str| {
        let cells = CELLS.iter().filter(|cell| cell.table == Table::TwoBaselines && cell.row == row);
        let points = cells.filter(|cell| cell.model == "opt-175b" && cell.prompt == half.lengths.prompt);
        let points = points.flat_map(|cell| (1..=cell.block.0).map(move |batch| (cell, batch))).map(
            |(cell, batch)| {
                let mut case = cell.case();
                case.policy.batch_size = batch;
                let prediction = predict(&case, rates, cell.mechanism);
                (prediction.latency_s(), prediction.generated_tokens_per_s)
            },
        );
        Curve { name: row.into(), points: points.collect() }
    };
    let curves = vec![
        baseline("Accelerate"),
        baseline("DeepSpeed"),
        curve("FlexGen", &half, rates, flexgen),
        curve("FlexGen (c)", &compressed, rates, flexgen),
    ];
    Ok(chart("OPT-175B on a T4, predicted (FlexGen, figure 1)".into(), curves))
}

/// The points of a chart, said and for `--json`.
pub(crate) fn curves(chart: &Chart) -> Result<Value> {
    show!("\n{}: seconds of latency, generated tokens/s", chart.title)?;
    for curve in &chart.curves {
        for (latency, rate) in &curve.points {
            show!("  {:24} {latency:12.1} {rate:10.4}", curve.name)?;
        }
    }
    let told = chart.curves.iter().map(|curve| {
        let points = curve.points.iter();
        let points =
            points.map(|(latency, rate)| json!({ "latency_s": latency, "generated_tokens_per_s": rate }));
        json!({ "system": curve.name, "points": points.collect::<Vec<_>>() })
    });
    Ok(told.collect())
}
