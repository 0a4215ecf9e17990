//! The conformance table over the kernels' own text, run by the emulation.

mod emulator;

use std::sync::Arc;

use cuda::GpuDevice;
use emulator::{Emulator, Mma};
use kernels::table::{Case, conformance};
use kernels::{CpuDevice, Isa, Team};

/// Runs every case that `wanted` chooses.
fn check(mma: Mma, wanted: impl Fn(&Case) -> bool) {
    if emulator::compiler().is_none() {
        return;
    }
    let team = Arc::new(Team::new(1));
    let mut failures = Vec::new();
    let mut count = 0;
    for case in conformance().into_iter().filter(wanted) {
        let mut device = GpuDevice::new(Emulator::new(mma), case.bytes).unwrap();
        let mut reference = CpuDevice::new(case.bytes, Arc::clone(&team), Isa::Scalar).unwrap();
        let verdict = case.check_in_own_order(&mut device, &mut reference).unwrap();
        count += 1;
        if !verdict.passed {
            failures.push(format!("{}: {:e}", case.name, verdict.error));
        }
    }
    assert!(count > 0, "no case was chosen");
    assert!(failures.is_empty(), "{} of {count} cases fail:\n  {}", failures.len(), failures.join("\n  "));
}

#[test]
fn rows_agree_with_the_reference() {
    check(Mma::Defined, |case| case.name.starts_with("norm") || case.name.starts_with("gather"));
}

#[test]
fn linears_agree_with_the_reference() {
    check(Mma::Defined, |case| case.name.starts_with("linear"));
}

#[test]
fn pages_are_written_like_the_references() {
    check(Mma::Defined, |case| case.name.starts_with("store_kv"));
}

#[test]
fn attention_agrees_with_the_reference() {
    check(Mma::Defined, |case| case.name.starts_with("attend"));
}

#[test]
fn products_without_tensor_cores_agree_too() {
    check(Mma::ByShuffles, |case| {
        case.name.starts_with("linear/bf16") || case.name.starts_with("attend/bf16/8:2x64")
    });
}
