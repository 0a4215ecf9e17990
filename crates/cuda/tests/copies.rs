//! Scattered buffers between host and device, its kernels emulated.

mod emulator;
mod scattered;

use cuda::GpuDevice;
use emulator::{Emulator, Mma};

#[test]
fn what_is_spread_arrives_and_is_collected() {
    if emulator::compiler().is_some() {
        scattered::check(&mut GpuDevice::new(Emulator::new(Mma::Defined), scattered::BYTES).unwrap());
    }
}

#[test]
fn adopted_memory_is_copied_as_it_lies() {
    if emulator::compiler().is_some() {
        let device = &mut GpuDevice::new(Emulator::new(Mma::Defined), scattered::BYTES).unwrap();
        scattered::check_adopted(device);
    }
}
