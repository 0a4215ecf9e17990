//! `bench kernels`: each timed case beside what the machine can do in the same minute.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use engine::{counted, default_threads};
use kernels::calibrate::{ReadRegion, product_rate};
use kernels::table::{Case, Floor, timed};
use kernels::{CpuDevice, Isa, Team};
use serde::Serialize;

use super::kernels_cuda::kernels_on_gpu;
use crate::args::{CasesArgs, Hardware};
use crate::console::{Misuse, show};
use crate::output_file::JsonReport;
use crate::timed::{Timed, wanted};

/// Runs of each case; the median counts.
const RUNS: usize = 7;
/// The machine's speed drifts: measure it again after so many cases.
const CASES_PER_CALIBRATION: usize = 8;

/// What the machine can do at best.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Ceilings {
    /// Plain reads, bytes per second.
    pub(crate) read_bytes_per_s: f64,
    /// bf16 products from registers, operations per second; absent where the kernels use none.
    pub(crate) flops: Option<f64>,
}

impl Ceilings {
    pub(crate) fn measure(region: &ReadRegion, team: &Team, isa: Isa) -> Ceilings {
        Ceilings { read_bytes_per_s: region.bandwidth(team), flops: product_rate(team, isa) }
    }

    /// The least time that a case can take.
    pub(crate) fn seconds(&self, floor: &Floor) -> f64 {
        let reading = floor.bytes / self.read_bytes_per_s;
        self.flops.map_or(reading, |flops| reading.max(floor.flops / flops))
    }
}

#[derive(Serialize)]
struct Report {
    isa: String,
    threads: usize,
    cases: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    timed: Timed,
    ceiling_fraction: f64,
    ceilings: Ceilings,
}

impl Row {
    fn new(case: &Case, seconds: f64, ceilings: Ceilings) -> Row {
        let ceiling_fraction = ceilings.seconds(&case.floor) / seconds;
        Row { timed: Timed::new(case, seconds), ceiling_fraction, ceilings }
    }
}

pub(crate) fn kernels(args: CasesArgs) -> Result<ExitCode> {
    if args.device == Hardware::Cuda {
        return kernels_on_gpu(&args);
    }
    let json = JsonReport::open(args.json.as_deref())?;
    let isa = Isa::from_env().map_err(Misuse)?;
    let threads = args.threads.unwrap_or_else(default_threads);
    let team = Arc::new(Team::fixed(threads)?);
    let cases = wanted(timed(), args.only.as_deref())?;
    show!("{isa}, {}\n{} {:>8}", counted(threads, "thread"), Timed::heading(), "ceiling")?;
    let mut report = Report { isa: isa.to_string(), threads, cases: Vec::new() };
    let region = ReadRegion::default();
    let mut ceilings = Ceilings::measure(&region, &team, isa);
    for (i, case) in cases.iter().enumerate() {
        if i % CASES_PER_CALIBRATION == 0 && i > 0 {
            ceilings = Ceilings::measure(&region, &team, isa);
        }
        let mut device = CpuDevice::new(case.bytes, Arc::clone(&team), isa)?;
        let seconds = case.time(&mut device, RUNS, || region.sweep(&team))?;
        let row = Row::new(case, seconds, ceilings);
        show!("{} {:7.0}%", row.timed, 100.0 * row.ceiling_fraction)?;
        report.cases.push(row);
    }
    json.write(&report)?;
    Ok(ExitCode::SUCCESS)
}
