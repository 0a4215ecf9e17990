//! `ballast check`: the acceptance run of a device.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use engine::{counted, default_threads};
use kernels::calibrate::ReadRegion;
use kernels::table::{Case, timed};
use kernels::{CpuDevice, Isa, Team};
use serde::Serialize;

use crate::args::{CheckArgs, Hardware};
use crate::bench::{Ceilings, median};
use crate::console::{Misuse, even_unread, note, show};
use crate::display::{Progress, Unit, Voice};
use crate::output_file::JsonReport;
use crate::timed::is_wanted;

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
    /// What drew the shapes of some cases.
    seed: u64,
    cases: usize,
    failed: usize,
    /// The largest difference from the reference, over the largest number of a case's result.
    max_error: f32,
    /// The median share of the machine's own ceiling (bytes over read rate, or operations over peak).
    /// Absent if no timed case was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    ceiling_fraction: Option<f64>,
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
    if args.cases.device == Hardware::Cuda {
        return crate::check_cuda::check(&args);
    }
    let timed_by = Isa::from_env().map_err(Misuse)?;
    let (cases, seed) = (args.chosen().collect::<Vec<Case>>(), args.seed);
    let args = args.cases;
    let json = JsonReport::open(args.json.as_deref())?;
    let wanted = |case: &Case| is_wanted(case, args.only.as_deref());
    let timed: Vec<Case> = timed().into_iter().filter(reported).filter(wanted).collect();
    if cases.is_empty() && timed.is_empty() {
        bail!("no case's name contains `{}`", args.only.unwrap_or_default());
    }
    let team = Arc::new(Team::fixed(args.threads.unwrap_or_else(default_threads))?);
    let isas: Vec<Isa> = Isa::ALL.into_iter().filter(|isa| isa.available()).collect();
    let mut report = conform(&team, &isas, &cases, seed)?;
    report.time(&team, timed_by, timed)?;
    json.write(&report)?;
    even_unread(show!("{report}"))?;
    Ok(if report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether a timed case is one of the few whose share of the ceiling is reported.
fn reported(case: &Case) -> bool {
    TIMED.contains(&case.name.as_str())
}

/// Every case on every instruction set against the scalar reference in the set's order of additions.
fn conform(team: &Arc<Team>, isas: &[Isa], cases: &[Case], seed: u64) -> Result<Report> {
    let total = (cases.len() * isas.len()) as u64;
    let progress = Progress::new("cases", total, Unit::Items, Voice::Normal);
    let (mut failures, mut max_error, mut done) = (Vec::new(), 0f32, 0);
    for case in cases {
        let mut expected = HashMap::new();
        for &isa in isas {
            let want = match expected.entry(isa.order()) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(none) => {
                    let mut reference = CpuDevice::reference(case.bytes, Arc::clone(team), isa)?;
                    none.insert(case.expected(&mut reference)?)
                }
            };
            let verdict = case.check(&mut cpu(team, isa, case)?, want)?;
            max_error = max_error.max(verdict.error);
            if !verdict.passed {
                note!("FAILED {} on {isa}: error {:.1e}", case.name, verdict.error);
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
        seed,
        cases: done as usize,
        failed: failures.len(),
        max_error,
        ceiling_fraction: None,
        failures,
        timed: Vec::new(),
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { cases, isa, failed, max_error, .. } = self;
        let cases = counted(*cases, "case");
        write!(f, "{cases} on {}: {failed} failed, largest error {max_error:.1e}", isa.join(", "))?;
        let Some(fraction) = self.ceiling_fraction else { return Ok(()) };
        write!(f, "; {:.0} % of the ceiling (median of {} timed cases)", 100.0 * fraction, self.timed.len())
    }
}

impl Report {
    fn time(&mut self, team: &Arc<Team>, isa: Isa, cases: Vec<Case>) -> Result<()> {
        if cases.is_empty() {
            return Ok(());
        }
        let region = ReadRegion::default();
        for case in cases {
            let seconds = case.time(&mut cpu(team, isa, &case)?, 5, || region.sweep(team))?;
            let ceiling_fraction = Ceilings::measure(&region, team, isa).seconds(&case.floor) / seconds;
            self.timed.push(TimedCase { case: case.name, seconds, ceiling_fraction });
        }
        let fractions: Vec<f64> = self.timed.iter().map(|t| t.ceiling_fraction).collect();
        self.ceiling_fraction = Some(median(&fractions));
        Ok(())
    }
}

fn cpu(team: &Arc<Team>, isa: Isa, case: &Case) -> Result<CpuDevice> {
    Ok(CpuDevice::new(case.bytes, Arc::clone(team), isa)?)
}
