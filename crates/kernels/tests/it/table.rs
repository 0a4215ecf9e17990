//! The table of cases, asked of the CPU.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use kernels::arena::Full;
use kernels::table::{Verdict, conformance, random};
use kernels::{CpuDevice, Isa, Team};

fn cpu(isa: Isa, bytes: usize) -> CpuDevice {
    CpuDevice::new(bytes, Arc::new(Team::new(2)), isa).unwrap()
}

#[test]
fn every_instruction_set_passes_the_whole_table() {
    // The scalar family is its own reference.
    let isas = || Isa::ALL.into_iter().filter(|&isa| isa.available() && isa != Isa::Scalar);
    for isa in Isa::ALL.into_iter().filter(|isa| !isa.available()) {
        eprintln!("not tested: {isa}, which this machine lacks");
    }
    for case in conformance().into_iter().chain(random(1, 24)) {
        let mut expected = HashMap::new();
        for isa in isas() {
            let want = expected.entry(isa.order()).or_insert_with(|| {
                let reference = CpuDevice::reference(case.bytes, Arc::new(Team::new(2)), isa);
                case.expected(&mut reference.unwrap()).unwrap()
            });
            let verdict = case.check(&mut cpu(isa, case.bytes), want).unwrap();
            assert!(verdict.passed, "{} on {isa}: error {}", case.name, verdict.error);
        }
    }
}

#[test]
fn what_agrees_passes_and_what_does_not_fails() {
    let cases = conformance();
    let linear = |nth| cases.iter().filter(|case| case.name.starts_with("linear/bf16")).nth(nth).unwrap();
    let (one, other) = (linear(0), linear(1));
    let expected = one.expected(&mut cpu(Isa::Scalar, one.bytes)).unwrap();
    let verdict = one.check(&mut cpu(Isa::Scalar, one.bytes), &expected).unwrap();
    assert_eq!(verdict, Verdict { error: 0.0, passed: true });
    assert!(!other.check(&mut cpu(Isa::Scalar, other.bytes), &expected).unwrap().passed);
}

#[test]
fn a_devices_own_clock_tells_the_middle_of_all_runs() {
    let case = conformance().into_iter().find(|c| c.name.starts_with("norm")).unwrap();
    let asked = Cell::new(0.0);
    let clock = |_: &CpuDevice, run: &dyn Fn()| {
        run();
        asked.set(asked.get() + 8.0);
        Ok::<_, Full>(asked.get())
    };
    // 8 is not counted; of 16, 24 and 32 the middle one.
    let seconds = case.time_by(&mut cpu(Isa::Scalar, case.bytes), 3, clock).unwrap();
    assert_eq!(seconds, 24.0);
}
