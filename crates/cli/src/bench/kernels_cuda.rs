//! `bench kernels --device cuda`: each timed case by the GPU's own clock, beside what its copies and its library of products
//! reach.

use std::process::ExitCode;

use anyhow::{Result, bail};
use kernels::table::{Case, Floor, Reach, large, timed};
use serde::Serialize;

use crate::args::BenchKernelsArgs;
use crate::console::{note, show};
use crate::cuda_timing;
use crate::output_file::JsonReport;

#[derive(Serialize)]
struct Report {
    device: String,
    architecture: String,
    large_products: String,
    /// Read and written.
    copy_bytes_per_s: f64,
    /// Of large bf16 matrices; absent without cuBLASLt.
    product_flops: Option<f64>,
    /// What the library failed at, so that own kernels computed it.
    refused_products: Vec<String>,
    cases: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    case: String,
    seconds: f64,
    bytes_per_s: f64,
    flops: f64,
    /// Of the device's own copies, both directions counted.
    copy_fraction: f64,
    /// Of the library's product.
    product_fraction: Option<f64>,
}

impl Row {
    fn new(
        case: String,
        floor: &Floor,
        seconds: f64,
        copy_bytes_per_s: f64,
        product_flops: Option<f64>,
    ) -> Row {
        let (bytes_per_s, flops) = (floor.bytes / seconds, floor.flops / seconds);
        let copy_fraction = bytes_per_s / copy_bytes_per_s;
        Row {
            case,
            seconds,
            bytes_per_s,
            flops,
            copy_fraction,
            product_fraction: product_flops.map(|most| flops / most),
        }
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let product = self.product_fraction.map_or("-".to_string(), |share| format!("{:.0}%", 100.0 * share));
        write!(
            f,
            "{:56} {:10.4} {:8.1} {:9.2} {:6.0}% {product:>8}",
            self.case,
            self.seconds * 1e3,
            self.bytes_per_s / 1e9,
            self.flops / 1e12,
            100.0 * self.copy_fraction
        )
    }
}

/// The shapes of real models, those that a GPU needs some time for last.
fn cases(only: Option<&str>) -> Result<Vec<Case>> {
    let wanted =
        |case: &Case| case.reach == Reach::Everywhere && only.is_none_or(|only| case.name.contains(only));
    let cases: Vec<Case> = timed().into_iter().chain(large()).filter(wanted).collect();
    if cases.is_empty() {
        bail!("no kernel that a GPU has is called `{}`", only.unwrap_or_default());
    }
    Ok(cases)
}

pub(crate) fn kernels_on_gpu(args: &BenchKernelsArgs) -> Result<ExitCode> {
    let json = JsonReport::open(args.json.as_deref())?;
    let cases = cases(args.only.as_deref())?;
    let gpu = cuda::Gpu::open(0)?;
    let (copy_bytes_per_s, product_flops) = (gpu.speeds()?.device_bytes_per_s, gpu.product_rate()?);
    let mut report = Report {
        device: gpu.name().to_string(),
        architecture: gpu.architecture().to_string(),
        large_products: gpu.computes_products_by(),
        copy_bytes_per_s,
        product_flops,
        refused_products: Vec::new(),
        cases: Vec::new(),
    };
    drop(gpu);
    show!(
        "{} ({}; large products by {}): copies {:.0} GB/s, products {}\n{:56} {:>10} {:>8} {:>9} {:>7} {:>8}",
        report.device,
        report.architecture,
        report.large_products,
        copy_bytes_per_s / 1e9,
        product_flops.map_or("not measured".to_string(), |flops| format!("{:.0} TFLOP/s", flops / 1e12)),
        "case",
        "ms",
        "GB/s",
        "TFLOP/s",
        "copies",
        "products"
    )?;
    let most = cases.iter().map(|case| case.bytes).max().unwrap_or(0);
    let mut device = cuda::open(most + cuda_timing::BYTES)?;
    for case in &cases {
        device.reset();
        let seconds = cuda_timing::seconds(case, &mut device)?;
        let row = Row::new(case.name.clone(), &case.floor, seconds, copy_bytes_per_s, product_flops);
        show!("{row}")?;
        report.cases.push(row);
    }
    report.refused_products = device.driver().refused_products();
    report.refused_products.iter().for_each(|why| note!("cuBLASLt refused {why}"));
    json.write(&report)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_of_what_was_measured() {
        let floor = Floor { bytes: 2e9, flops: 3e12 };
        let row = Row::new("x".into(), &floor, 0.01, 4e11, Some(6e14));
        assert_eq!((row.copy_fraction, row.product_fraction), (0.5, Some(0.5)));
        assert!(Row::new("x".into(), &floor, 0.01, 4e11, None).to_string().ends_with('-'));
    }

    #[test]
    fn a_name_that_nothing_has_is_told() {
        assert!(cases(Some("attend/int4")).unwrap().iter().all(|case| case.name.contains("attend/int4")));
        assert!(cases(None).unwrap().iter().all(|case| case.reach == Reach::Everywhere));
        assert!(cases(Some("fish")).err().unwrap().to_string().contains("fish"));
    }
}
