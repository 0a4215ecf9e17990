//! The conformance table on a GPU, where there is one; what is said where there is none.

use std::sync::Arc;

use cuda::CudaError;
use kernels::table::conformance;
use kernels::{CpuDevice, Isa, Team};

#[test]
fn every_case_agrees_with_the_reference() {
    let cases = conformance();
    let most = cases.iter().map(|case| case.bytes).max().unwrap_or(0);
    let mut device = match cuda::open(most) {
        Ok(device) => device,
        Err(missing @ (CudaError::Library { .. } | CudaError::NoDevice { .. })) => {
            eprintln!("skipped: {missing}");
            return;
        }
        Err(other) => panic!("{other}"),
    };
    let team = Arc::new(Team::new(2));
    for case in cases {
        device.reset();
        let mut reference = CpuDevice::new(case.bytes, Arc::clone(&team), Isa::detect()).unwrap();
        let verdict = case.check_in_own_order(&mut device, &mut reference).unwrap();
        assert!(verdict.passed, "{}: {:e}", case.name, verdict.error);
    }
}

#[test]
fn what_is_missing_is_named() {
    match cuda::open(1 << 20) {
        Ok(device) => assert!(device.driver().architecture() >= cuda::Architecture(75)),
        Err(error @ CudaError::Library { library, .. }) => {
            let text = error.to_string();
            assert!(text.contains(library) && text.contains("--device cpu"), "{text}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
