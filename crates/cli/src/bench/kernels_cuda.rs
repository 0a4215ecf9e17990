//! `bench kernels --device cuda`: each timed case by the GPU's own clock, beside what its copies and its library of products
//! reach.

use std::process::ExitCode;

use anyhow::Result;
use kernels::device::Device as _;
use kernels::table::{Case, Reach, large, timed};
use serde::Serialize;

use crate::args::CasesArgs;
use crate::console::{note, show};
use crate::cuda_timing::{self, Row};
use crate::output_file::JsonReport;
use crate::timed::wanted;

#[derive(Serialize)]
struct Report {
    device: String,
    architecture: String,
    large_products: String,
    /// Read and written.
    copy_bytes_per_s: f64,
    /// Of large bf16 matrices; absent without cuBLASLt.
    product_flops: Option<f64>,
    /// Which kernel attended of many rows.
    prefill: String,
    /// What the device did otherwise than is fastest: products that the library failed at, above all.
    remarks: Vec<String>,
    cases: Vec<Row>,
}

/// The shapes of real models, those that a GPU needs some time for last.
fn cases() -> Vec<Case> {
    timed().into_iter().chain(large()).filter(|case| case.reach == Reach::Everywhere).collect()
}

pub(crate) fn kernels_on_gpu(args: &CasesArgs) -> Result<ExitCode> {
    if args.threads.is_some() {
        note!("--threads changes nothing here: what is timed runs on the GPU");
    }
    let json = JsonReport::open(args.json.as_deref())?;
    let cases = wanted(cases(), args.only.as_deref())?;
    let gpu = cuda::Gpu::open(0)?;
    let (copy_bytes_per_s, product_flops) = (gpu.speeds()?.device_bytes_per_s, gpu.product_rate()?);
    let mut report = Report {
        device: gpu.name().to_string(),
        architecture: gpu.architecture().to_string(),
        large_products: gpu.computes_products_by(),
        copy_bytes_per_s,
        product_flops,
        prefill: String::new(),
        remarks: Vec::new(),
        cases: Vec::new(),
    };
    drop(gpu);
    show!(
        "{} ({}; large products by {}): copies {:.0} GB/s, products {}\n{}",
        report.device,
        report.architecture,
        report.large_products,
        copy_bytes_per_s / 1e9,
        cuda_timing::product_rate(product_flops),
        Row::heading()
    )?;
    let most = cases.iter().map(|case| case.bytes).max().unwrap_or(0);
    let mut device = cuda::open(most + cuda_timing::BYTES)?;
    for case in &cases {
        device.reset();
        let seconds = cuda_timing::seconds(case, &mut device)?;
        let row = Row::new(case, seconds, copy_bytes_per_s, product_flops);
        show!("{row}")?;
        report.cases.push(row);
    }
    report.prefill = device.driver().attends_many_by();
    note!("many rows attended by {}", report.prefill);
    report.remarks = device.remarks();
    report.remarks.iter().for_each(|remark| note!("{remark}"));
    json.write(&report)?;
    Ok(ExitCode::SUCCESS)
}
