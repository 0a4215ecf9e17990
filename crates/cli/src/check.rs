//! `ballast check`: the acceptance run of a device.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use engine::default_threads;
use kernels::table::{Case, conformance, timed};
use kernels::{CpuDevice, Isa, Team};
use serde::Serialize;

use crate::args::CheckArgs;
use crate::bench::{Ceilings, median, write_json};
use crate::display::{Progress, Unit, Voice};

/// Timed cases whose share of the ceiling is reported: the shapes that decoding and prefill spend their time in.
const TIMED: [&str; 4] = [
    "linear/bf16/store(f32)/1x2048x5632",
    "linear/bf16/store(bf16)/2048x4096x4096",
    "attend/bf16/32:8x128/decode-8x1024",
    "attend/bf16/32:8x128/prefill-2048",
];

/// What the run found.
#[derive(Serialize)]
struct Report {
    device: String,
    isa: Vec<String>,
    cases: usize,
    failed: usize,
    /// The largest difference from the reference, over the largest number of a case's result.
    max_error: f32,
    /// The median share of the machine's own ceiling (bytes over read rate, or operations over peak).
    ceiling_fraction: f64,
    failures: Vec<Failure>,
    timed: Vec<TimedCase>,
}

#[derive(Serialize)]
struct Failure {
    case: String,
    isa: String,
    error: f32,
}

#[derive(Serialize)]
struct TimedCase {
    case: String,
    seconds: f64,
    ceiling_fraction: f64,
}

pub(crate) fn check(args: CheckArgs) -> Result<ExitCode> {
    if args.device != "cpu" {
        bail!("device `{}` is not built yet: this version has `cpu`", args.device);
    }
    let team = Arc::new(Team::new(default_threads()));
    let isas: Vec<Isa> = Isa::ALL.into_iter().filter(|isa| isa.available()).collect();
    let mut report = conform(&team, &isas)?;
    report.time(&team)?;
    println!(
        "{} cases on {}: {} failed, largest error {:.1e}; {:.0} % of the ceiling (median of {} timed cases)",
        report.cases,
        report.isa.join(", "),
        report.failed,
        report.max_error,
        100.0 * report.ceiling_fraction,
        report.timed.len()
    );
    write_json(args.json.as_deref(), &report)?;
    Ok(if report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every case of the table on every instruction set against the scalar reference.
fn conform(team: &Arc<Team>, isas: &[Isa]) -> Result<Report> {
    let cases = conformance();
    let total = (cases.len() * isas.len()) as u64;
    let progress = Progress::new("cases", total, Unit::Items, Voice::Normal);
    let (mut failures, mut max_error, mut done) = (Vec::new(), 0f32, 0);
    for case in &cases {
        for &isa in isas {
            let (mut device, mut reference) = (cpu(team, isa, case)?, cpu(team, Isa::Scalar, case)?);
            let verdict = case.check(&mut device, &mut reference)?;
            max_error = max_error.max(verdict.error);
            if !verdict.passed {
                eprintln!("FAILED {} on {isa}: error {:.1e}", case.name, verdict.error);
                failures.push(Failure {
                    case: case.name.clone(),
                    isa: isa.to_string(),
                    error: verdict.error,
                });
            }
            done += 1;
            progress.set(done);
        }
    }
    progress.end();
    Ok(Report {
        device: "cpu".into(),
        isa: isas.iter().map(ToString::to_string).collect(),
        cases: done as usize,
        failed: failures.len(),
        max_error,
        ceiling_fraction: 0.0,
        failures,
        timed: Vec::new(),
    })
}

impl Report {
    fn time(&mut self, team: &Arc<Team>) -> Result<()> {
        let isa = Isa::from_env().map_err(anyhow::Error::msg)?;
        for case in timed().into_iter().filter(|case| TIMED.contains(&case.name.as_str())) {
            let seconds = case.time(&mut cpu(team, isa, &case)?, 5)?;
            let ceiling_fraction = Ceilings::measure(team, isa).seconds(&case.floor) / seconds;
            self.timed.push(TimedCase { case: case.name, seconds, ceiling_fraction });
        }
        self.ceiling_fraction = median(&self.timed.iter().map(|t| t.ceiling_fraction).collect::<Vec<_>>());
        Ok(())
    }
}

fn cpu(team: &Arc<Team>, isa: Isa, case: &Case) -> Result<CpuDevice> {
    Ok(CpuDevice::new(case.bytes, Arc::clone(team), isa)?)
}
