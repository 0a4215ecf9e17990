//! Tokens taken on the device, its kernels emulated: those of the CPU's sampler, case by case.

use crate::emulator::{self, Emulator, Mma};
use crate::sampling;
use cuda::GpuDevice;
use kernels::device::Device;
use model::sampling::{Sampler, SamplingParams};

#[test]
fn tokens_are_those_of_the_cpus_sampler() {
    if emulator::compiler().is_some() {
        sampling::check(&mut GpuDevice::new(Emulator::new(Mma::Defined), sampling::BYTES).unwrap());
    }
}

#[test]
fn rows_that_nothing_can_be_taken_from_say_why_and_harm_no_other() {
    if emulator::compiler().is_some() {
        sampling::check_errors(&mut GpuDevice::new(Emulator::new(Mma::Defined), sampling::BYTES).unwrap());
    }
}

#[test]
fn tokens_of_many_calls_are_under_way_at_once() {
    if emulator::compiler().is_some() {
        let mut device = GpuDevice::new(Emulator::new(Mma::Defined), sampling::BYTES).unwrap();
        sampling::check_many_under_way(&mut device);
    }
}

#[test]
fn what_needs_the_logits_is_not_for_a_device() {
    let needs = [
        SamplingParams { logprobs: Some(0), ..SamplingParams::greedy() },
        SamplingParams { allowed_token_ids: Some([3].into()), ..SamplingParams::greedy() },
    ];
    for params in needs {
        assert_eq!(Sampler::new(params, &[], &[], 0).for_device(0), None);
    }
    assert!(!GpuDevice::new(Emulator::new(Mma::Defined), 64).unwrap().picks(1 << 20));
}
