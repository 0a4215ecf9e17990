//! `bench ablation`: FlexGen's table 5 with this engine, on this machine: what each of its means brings, beside what the
//! timeline says that it brings.
//!
//! A device, a host and a drive are made of this machine's memory so that the model fits none of the first two. What is
//! planned is run as it was emitted; then one thing after the other is taken away, all else as it was planned.

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use super::child::{Desk, number};
use super::foretold::{Foretold, Requests, percent, subject, summary, words, write};
use crate::args::AblationArgs;
use crate::console::{note, show};
use crate::output_file::OutputFile;

/// Shares of the layers' weights that device and host have room for; the rest is on the drive.
const ON_DEVICE: f64 = 0.35;
const ON_HOST: f64 = 0.4;
/// What the process itself takes of the host's memory.
const PROCESS_BYTES: f64 = 96e6;
/// Sequences of a batch where nothing is searched.
const UNSEARCHED: &str = "4";

#[derive(Serialize)]
struct Row {
    name: &'static str,
    flags: Vec<String>,
    /// Why it cannot be run.
    refused: Option<String>,
    #[serde(flatten)]
    foretold: Option<Foretold>,
}

struct Bench<'a> {
    args: &'a AblationArgs,
    desk: Desk,
    /// Model and budgets.
    base: Vec<String>,
}

pub(crate) fn ablation(args: AblationArgs) -> Result<ExitCode> {
    let mut file = OutputFile::open(&args.json)?;
    let base = subject(&args.model, args.load_format, args.offload_dir.as_deref());
    let mut bench = Bench { base, args: &args, desk: Desk::new()? };
    note!("measuring the machine");
    bench.desk.run(&words("profile", &bench.base))?;
    bench.base.extend(bench.budgets()?);
    let all = bench.planned("all", &[])?;
    if let Some(why) = &all.refused {
        anyhow::bail!("there is no plan to take anything away from: {why}");
    }
    let kept = all.foretold.as_ref().map(|all| kept(all.config())).unwrap_or_default();
    let with = |more: &[&str]| -> Vec<String> {
        kept.iter().cloned().chain(more.iter().map(ToString::to_string)).collect()
    };
    let own = |more: &[&str]| more.iter().map(ToString::to_string).collect::<Vec<_>>();
    let unsearched = own(&[
        "--batch-size",
        UNSEARCHED,
        "--num-batches",
        "1",
        "--max-num-seqs",
        UNSEARCHED,
        "--max-num-batched-tokens",
        "512",
        "--schedule",
        "plain",
    ]);
    let mut rows = vec![
        all,
        bench.planned("no policy search", &unsearched)?,
        bench.planned("no overlap", &with(&["--no-overlap"]))?,
        bench.planned("no CPU compute", &with(&["--attend", "device", "--host-weights", "copied"]))?,
        bench.planned("no disk", &own(&["--disk", "1KiB"]))?,
        bench.planned("row by row", &with(&["--schedule", "row"]))?,
    ];
    write(&mut file, "rows", &rows, "predicted")?;
    for i in 0..rows.len() {
        bench.measure(&mut rows[i])?;
        write(&mut file, "rows", &rows, "predicted")?;
    }
    write(&mut file, "rows", &rows, "measured")?;
    table(&rows)?;
    Ok(ExitCode::SUCCESS)
}

impl Bench<'_> {
    fn requests(&self) -> Requests {
        let AblationArgs { num_prompts, input_len, output_len, .. } = *self.args;
        Requests { num_prompts, input_len, output_len }
    }

    /// Device and host, unless flags say otherwise: each with room for a part of the layers.
    fn budgets(&self) -> Result<Vec<String>> {
        let roomy =
            self.desk.run(&words("plan", &[self.base.clone(), self.requests().planned()].concat()))?;
        let layers = number(&roomy, "/layer_weight_bytes")?;
        let all = number(&roomy, "/peak_bytes/device")? - PROCESS_BYTES;
        let device = self.args.device_memory.map_or(all - (1.0 - ON_DEVICE) * layers, |bytes| bytes as f64);
        let memory = self.args.memory.map_or(device + ON_HOST * layers + PROCESS_BYTES, |bytes| bytes as f64);
        let flags = [("--device-memory", device), ("--memory", memory)];
        Ok(flags.iter().flat_map(|(flag, bytes)| [flag.to_string(), (*bytes as u64).to_string()]).collect())
    }

    /// Plans with these flags beside the budgets. What does not fit says so in its row.
    fn planned(&self, name: &'static str, flags: &[String]) -> Result<Row> {
        let told = Foretold::plan(&self.desk, self.requests(), &[&self.base, flags].concat());
        let refused = told.as_ref().err().map(|why| format!("{why:#}"));
        Ok(Row { name, flags: flags.to_vec(), refused, foretold: told.ok() })
    }

    fn measure(&self, row: &mut Row) -> Result<()> {
        let Some(foretold) = &mut row.foretold else { return Ok(()) };
        foretold.measure(&self.desk, &self.args.model, self.requests(), self.args.reps)?;
        note!("{}: {}; furthest off: {}", row.name, percent(foretold.error()), foretold.ops());
        Ok(())
    }
}

/// The block and the placement of a plan, as flags.
fn kept(config: &str) -> Vec<String> {
    const KEPT: [&str; 6] =
        ["batch-size", "num-batches", "max-num-seqs", "max-num-batched-tokens", "schedule", "percent"];
    let lines = config.lines().filter_map(|line| line.split_once(" = "));
    let kept = lines.filter(|(name, _)| KEPT.contains(name));
    kept.flat_map(|(name, value)| {
        let values = value.trim_matches(['[', ']', '"']).split(", ").map(String::from);
        [format!("--{name}")].into_iter().chain(values.collect::<Vec<_>>())
    })
    .collect()
}

fn table(rows: &[Row]) -> Result<()> {
    show!("| | timeline, tokens/s | of all | measured | of all | error |")?;
    show!("|---|---|---|---|---|---|")?;
    let predicted = |row: &Row| row.foretold.as_ref().map(Foretold::predicted);
    let measured = |row: &Row| row.foretold.as_ref().and_then(Foretold::measured);
    let error = |row: &Row| row.foretold.as_ref().and_then(Foretold::error);
    for row in rows {
        let of = |value: Option<f64>, all: Option<f64>| {
            value.zip(all).map_or("-".into(), |(value, all)| format!("{:.0} %", 100.0 * value / all))
        };
        let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.1}"));
        let name =
            if row.refused.is_some() { format!("{} (does not fit)", row.name) } else { row.name.into() };
        show!(
            "| {name} | {} | {} | {} | {} | {} |",
            number(predicted(row)),
            of(predicted(row), predicted(&rows[0])),
            number(measured(row)),
            of(measured(row), measured(&rows[0])),
            percent(error(row))
        )?;
    }
    for (name, why) in rows.iter().filter_map(|row| Some((row.name, row.refused.as_ref()?))) {
        note!("{name}: {why}");
    }
    show!("\n{}", summary(rows.iter().filter_map(error), 0.2))
}

#[cfg(test)]
mod tests {
    use super::kept;

    #[test]
    fn a_plan_s_block_and_placement_are_kept() {
        let config = "device = \"cpu\"\npercent = [43.2581, 0, 100, 0, 100, 0]\nschedule = \"zigzag\"\nbatch-size = 4\n";
        let flags = "--percent 43.2581 0 100 0 100 0 --schedule zigzag --batch-size 4";
        assert_eq!(kept(config).join(" "), flags);
    }
}
