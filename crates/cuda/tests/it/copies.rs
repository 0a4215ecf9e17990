//! Scattered buffers between host and device, its kernels emulated.

use crate::emulator::{self, Emulator, Mma};
use crate::scattered;
use cuda::GpuDevice;
use kernels::device::{Device, Dtype, Rows};

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

#[test]
fn a_table_that_is_there_is_not_sent_again() {
    if emulator::compiler().is_none() {
        return;
    }
    let mut device = GpuDevice::new(Emulator::new(Mma::Defined), 1 << 20).unwrap();
    let mut matrix = |rows: usize| {
        let cols = 8;
        Rows { buf: device.take(rows * cols * 4).unwrap(), dtype: Dtype::F32, rows, cols }
    };
    let (x, out) = (matrix(64), matrix(3));
    let numbers: Vec<u8> = (0..64 * 8).flat_map(|i| (i as f32).to_le_bytes()).collect();
    device.upload(&x.buf, &numbers);
    // More than a few batches' tables, of 12 bytes each, and each of them twice.
    for i in (0..40).chain(0..40) {
        let rows = [i, 63 - i, i + 1];
        device.gather(x, &rows, out);
        device.view(&out.buf, &mut |bytes| {
            let got: &[f32] = bytemuck::cast_slice(bytes);
            let want = rows.iter().flat_map(|row| (0..8).map(move |col| (8 * row + col) as f32));
            assert!(got.iter().copied().eq(want), "{rows:?}");
        });
    }
    assert_eq!(device.driver().puts(), 40);
}
