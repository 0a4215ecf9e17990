//! `ballast check --device cuda`: the acceptance run of a GPU.
//!
//! Every kernel of the conformance table against the scalar reference on the CPU; every one of them twice, bit for bit;
//! what copies reach, on the device and over the link; and the large shapes, against the CPU's fastest kernels, and beside
//! those ceilings.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use cuda::module::Module;
use cuda::{CudaDevice, Driver};
use engine::lanes::panic_words;
use kernels::device::Device as _;
use kernels::table::{Case, Reach, large};
use kernels::{CpuDevice, Isa, Team};
use serde::Serialize;

use crate::args::{CasesArgs, CheckArgs};
use crate::console::{even_unread, note, show};
use crate::cuda_timing::{self, Row};
use crate::display::{Progress, Unit, Voice};
use crate::output_file::JsonReport;
use crate::timed::is_wanted;

/// What the run found.
#[derive(Serialize)]
struct Report {
    device: String,
    architecture: String,
    /// Which NVRTC compiled the kernels.
    compiler: String,
    /// What computes large products.
    large_products: String,
    /// What the device did otherwise than is fastest: products that the library failed at, above all.
    remarks: Vec<String>,
    /// Which kernel attended of many rows: what `BALLAST_CUDA_PREFILL` asked for, or what came of its trials.
    prefill: String,
    /// What drew the shapes of some cases.
    seed: u64,
    /// Those of the table, those that were drawn, and large ones.
    cases: usize,
    /// Cases of what only the CPU has so far: activations in whole numbers.
    not_built: usize,
    failed: usize,
    /// The largest difference from the reference, over the largest number of a case's result.
    max_error: f32,
    failures: Vec<Failure>,
    /// Cases whose second run gave other bits than the first.
    unsteady: Vec<String>,
    copy_bytes_per_s: f64,
    up_bytes_per_s: f64,
    down_bytes_per_s: f64,
    /// What the link can do, up and down: those above are to be 95 % of it.
    link_bytes_per_s: [f64; 2],
    /// Of large bf16 matrices by cuBLASLt; absent without it.
    product_flops: Option<f64>,
    timed: Vec<Row>,
    /// The case at which the run ended, as the device was lost or had no memory for it; none if it went to its end.
    ended_at: Option<Ended>,
}

#[derive(Serialize)]
struct Failure {
    case: String,
    error: f32,
}

#[derive(Serialize)]
struct Ended {
    case: String,
    why: String,
}

pub(crate) fn check(args: &CheckArgs) -> Result<ExitCode> {
    let built = |case: &Case| case.reach == Reach::Everywhere;
    let (cases, left_out): (Vec<Case>, Vec<Case>) = args.chosen().partition(built);
    let CasesArgs { only, threads, json, .. } = &args.cases;
    let json = JsonReport::open(json.as_deref())?;
    let wanted = |case: &Case| is_wanted(case, only.as_deref());
    let timed: Vec<Case> = large().into_iter().filter(wanted).collect();
    if cases.is_empty() && timed.is_empty() {
        bail!("no case that a GPU has contains `{}`", only.as_deref().unwrap_or_default());
    }
    let team = Arc::new(Team::fixed(threads.unwrap_or_else(engine::default_threads))?);
    let mut report = Report { not_built: left_out.len(), ..conform(args, &cases, &team)? };
    if report.ended_at.is_none()
        && let Err(error) = report.measure(&timed, &team)
    {
        report.ends("the large cases", format!("{error:#}"));
    }
    json.write(&report)?;
    even_unread(report.show())?;
    let sound = report.failed == 0 && report.unsteady.is_empty() && report.ended_at.is_none();
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn compiler() -> Result<String> {
    let (major, minor) = cuda::compiler_version()?;
    Ok(format!("NVRTC {major}.{minor}"))
}

/// Memory of the largest of these cases.
fn most_bytes(cases: &[Case]) -> usize {
    cases.iter().map(|case| case.bytes).max().unwrap_or(0)
}

fn conform(args: &CheckArgs, cases: &[Case], team: &Arc<Team>) -> Result<Report> {
    // Each of them twice.
    let mut device = cuda::open(2 * most_bytes(cases))?;
    if args.cases.only.is_none() {
        // Side by side, where the table would have them compiled one after the other.
        device.prepare_modules(&Module::all(device.driver().prefill()))?;
    }
    let speeds = device.driver().speeds()?;
    let mut report = Report {
        device: device.driver().name().to_string(),
        architecture: device.driver().architecture().to_string(),
        compiler: compiler()?,
        large_products: device.driver().computes_products_by(),
        prefill: device.driver().attends_many_by(),
        remarks: Vec::new(),
        seed: args.seed,
        cases: 0,
        not_built: 0,
        failed: 0,
        max_error: 0.0,
        failures: Vec::new(),
        unsteady: Vec::new(),
        copy_bytes_per_s: speeds.device_bytes_per_s,
        up_bytes_per_s: speeds.up_bytes_per_s,
        down_bytes_per_s: speeds.down_bytes_per_s,
        link_bytes_per_s: speeds.link_bytes_per_s,
        product_flops: None,
        timed: Vec::new(),
        ended_at: None,
    };
    let progress = Progress::new("cases", cases.len() as u64, Unit::Items, Voice::Normal);
    for (done, case) in (1..).zip(cases) {
        if !report.goes_on(case, |report| report.case(case, &mut device, team)) {
            break;
        }
        progress.set(done);
    }
    progress.end();
    Ok(report)
}

impl Report {
    /// Whether a case came to its end, whatever its result. A device that fails at work panics, and is lost to all others.
    fn goes_on(&mut self, case: &Case, run: impl FnOnce(&mut Report) -> Result<()>) -> bool {
        let ended = catch_unwind(AssertUnwindSafe(|| run(self)));
        let why = match ended {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => format!("{error:#}"),
            Err(panic) => panic_words(&*panic),
        };
        self.ends(&case.name, why);
        false
    }

    fn ends(&mut self, case: &str, why: String) {
        note!("ENDED at {case}: {why}");
        self.ended_at = Some(Ended { case: case.to_string(), why });
    }

    fn case(&mut self, case: &Case, device: &mut CudaDevice, team: &Arc<Team>) -> Result<()> {
        device.reset();
        self.compare(case, device, CpuDevice::new(case.bytes, Arc::clone(team), Isa::Scalar)?)?;
        self.repeat(case, device)
    }

    fn repeat(&mut self, case: &Case, device: &mut CudaDevice) -> Result<()> {
        device.reset();
        if !case.repeats(device)? {
            note!("UNSTEADY {}: two runs gave different bits", case.name);
            self.unsteady.push(case.name.clone());
        }
        Ok(())
    }

    fn compare(&mut self, case: &Case, device: &mut CudaDevice, mut reference: CpuDevice) -> Result<()> {
        let verdict = case.check_in_own_order(device, &mut reference)?;
        self.cases += 1;
        self.max_error = self.max_error.max(verdict.error);
        if !verdict.passed {
            note!("FAILED {}: error {:.1e}", case.name, verdict.error);
            self.failed += 1;
            self.failures.push(Failure { case: case.name.clone(), error: verdict.error });
        }
        Ok(())
    }

    /// Large shapes run kernels in ways that small ones do not: several parts of the library's memory, many waves of blocks.
    /// The CPU's fastest kernels are held against its reference by a check of their own.
    fn measure(&mut self, cases: &[Case], team: &Arc<Team>) -> Result<()> {
        let mut device = cuda::open(most_bytes(cases) + most_bytes(cases).max(cuda_timing::BYTES))?;
        if !cases.is_empty() {
            self.product_flops = device.driver().product_rate()?;
        }
        show!("{}", Row::heading())?;
        for case in cases {
            if !self.goes_on(case, |report| report.measure_one(case, &mut device, team)) {
                break;
            }
        }
        self.prefill = device.driver().attends_many_by();
        self.remarks = device.remarks();
        self.remarks.iter().for_each(|remark| note!("{remark}"));
        Ok(())
    }

    fn measure_one(&mut self, case: &Case, device: &mut CudaDevice, team: &Arc<Team>) -> Result<()> {
        device.reset();
        self.compare(case, device, CpuDevice::in_groups(case.bytes, Arc::clone(team))?)?;
        self.repeat(case, device)?;
        device.reset();
        let seconds = cuda_timing::seconds(case, device)?;
        let row = Row::new(case, seconds, self.copy_bytes_per_s, self.product_flops);
        show!("{row}")?;
        self.timed.push(row);
        Ok(())
    }

    fn show(&self) -> Result<()> {
        show!(
            "{} ({}, {}; large products by {}; many rows attended by {}): {} cases ({} more are not built for CUDA), {} failed, {} unsteady, largest error {:.1e}; copies {:.0} GB/s on the device, {:.1} up, \
             {:.1} down (the link {:.1} and {:.1}), products {}",
            self.device,
            self.architecture,
            self.compiler,
            self.large_products,
            self.prefill,
            self.cases,
            self.not_built,
            self.failed,
            self.unsteady.len(),
            self.max_error,
            self.copy_bytes_per_s / 1e9,
            self.up_bytes_per_s / 1e9,
            self.down_bytes_per_s / 1e9,
            self.link_bytes_per_s[0] / 1e9,
            self.link_bytes_per_s[1] / 1e9,
            cuda_timing::product_rate(self.product_flops)
        )?;
        match &self.ended_at {
            Some(Ended { case, .. }) => show!("ended at {case}: what follows was not run"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Report {
        let (device, architecture, compiler, large_products, prefill) = Default::default();
        Report {
            device,
            architecture,
            compiler,
            large_products,
            prefill,
            remarks: vec![],
            seed: 1,
            cases: 0,
            not_built: 0,
            failed: 0,
            max_error: 0.0,
            failures: vec![],
            unsteady: vec![],
            copy_bytes_per_s: 0.0,
            up_bytes_per_s: 0.0,
            down_bytes_per_s: 0.0,
            link_bytes_per_s: [0.0; 2],
            product_flops: None,
            timed: vec![],
            ended_at: None,
        }
    }

    #[test]
    fn a_case_that_does_not_end_is_told_with_what_was_found_before() {
        let case = &large()[0];
        let why = |run: fn() -> Result<()>| {
            let mut report = empty();
            let goes_on = report.goes_on(case, |report| {
                report.max_error = 0.5;
                run()
            });
            assert_eq!((goes_on, report.max_error), (report.ended_at.is_none(), 0.5));
            report.ended_at.map(|ended| (ended.case == case.name, ended.why))
        };
        assert_eq!(why(|| Ok(())), None);
        assert_eq!(why(|| anyhow::bail!("no memory")), Some((true, "no memory".into())));
        assert_eq!(why(|| panic!("the device {} is lost", 3)), Some((true, "the device 3 is lost".into())));
    }
}
