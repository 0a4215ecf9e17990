//! What `gpu.rs` does not show of the kernels' own text on a stand-in: products of halves, and rows that are the same whatever their number.

use std::sync::Arc;

use crate::emulator::{self, Emulator, Mma};
use cuda::GpuDevice;
use half::bf16;
use kernels::attention::{KvDtype, KvLayout};
use kernels::device::{Device, Dtype, Matrix, Needs, Rows, Sink};
use kernels::linear::{Activations, Format, RowOrder, pack_bf16, packed_bytes, panels};
use kernels::table::{Case, Reach, conformance};
use kernels::{CpuDevice, Mat, Team};

/// Runs every case of the conformance table that `wanted` chooses.
fn check(mma: Mma, wanted: impl Fn(&Case) -> bool) {
    check_on(&|| Emulator::new(mma), 0.0, wanted);
}

/// `beyond`: an error that is let pass where the table's own tolerance is less.
fn check_on(device: &dyn Fn() -> Emulator, beyond: f32, wanted: impl Fn(&Case) -> bool) {
    if emulator::compiler().is_none() {
        return;
    }
    let team = Arc::new(Team::new(1));
    let mut failures = Vec::new();
    let mut count = 0;
    for case in conformance().into_iter().filter(|case| case.reach == Reach::Everywhere).filter(&wanted) {
        let mut device = GpuDevice::new(device(), case.bytes).unwrap();
        let mut reference = CpuDevice::in_groups(case.bytes, Arc::clone(&team)).unwrap();
        let verdict = case.check_in_own_order(&mut device, &mut reference).unwrap();
        count += 1;
        if !verdict.passed && verdict.error >= beyond {
            failures.push(format!("{}: {:e}", case.name, verdict.error));
        }
    }
    assert!(count > 0, "no case was chosen");
    assert!(failures.is_empty(), "{} of {count} cases fail:\n  {}", failures.len(), failures.join("\n  "));
}

#[test]
fn weights_of_12_bits_are_refused_before_anything_is_compiled() {
    let device = GpuDevice::new(Emulator::new(Mma::Defined), 1 << 20).unwrap();
    let kv = KvLayout { kv_heads: 1, head_dim: 64, dtype: KvDtype::Bf16 };
    let refused = device.prepare(&Needs {
        formats: vec![Format::Bf16, Format::Bf12],
        kv,
        capped: false,
        sparse: None,
        rows: 64,
        samples: 4,
    });
    assert!(refused.unwrap_err().contains("--weights bf16"));
}

#[test]
fn products_of_halves_agree_too() {
    check(Mma::ByHalves, |case| {
        let few = ["linear/bf16", "attend/bf16/8:2x64", "attend/f16/8:2x64", "attend/f16/2:2x80"];
        few.iter().any(|name| case.name.starts_with(name))
    });
}

/// Narrow weights by own kernels of all numbers of rows, where there is no library; on a device without bf16 there never is.
#[test]
fn narrow_weights_agree_without_a_library() {
    let narrow = |case: &Case| case.name.starts_with("linear/narrow");
    let own = || Emulator::new(Mma::Defined).without_library();
    check_on(&own, 0.0, |case| narrow(case) && case.name.contains("/520x"));
    // Weights of the smallest scales are halves of fewer bits.
    let kinds = ["(int4)", "(q4_1)", "(q6k)"];
    let one_of_each_kind = |case: &Case| narrow(case) && kinds.iter().any(|kind| case.name.contains(kind));
    check_on(&|| Emulator::new(Mma::ByHalves), 3e-4, |case| {
        one_of_each_kind(case) && case.name.contains("/40x70")
    });
}

#[test]
fn products_of_warpgroups_agree_too() {
    let is_of_16_bits = |name: &str| name.starts_with("attend/bf16") || name.starts_with("attend/f16");
    let has_kernel = |name: &str| name.contains("x64/") || name.contains("x128/");
    for mma in [Mma::OfWarpgroups, Mma::ByTurns] {
        check(mma, |case| {
            is_of_16_bits(&case.name) && has_kernel(&case.name) && !case.name.contains("sparse")
        });
    }
}

/// A row's linear, whatever the number of rows: tokens do not depend on the batch. Weights of each kind of kernel.
#[test]
fn a_rows_linear_does_not_depend_on_the_others() {
    if emulator::compiler().is_none() {
        return;
    }
    // Runs shorter than what a warp has on its way, longer ones that end in its midst, and a k that is no multiple of 32.
    for k in [32 * 19, 32 * 45, 8 * 37] {
        let most = linear(520, 64, k, Mma::Defined, 1.0);
        // Up to 8, 32 and 64 rows, and several blocks of 64; the most are computed in tiles of 128.
        for rows in [1, 8, 9, 33, 130] {
            let few = linear(rows, 64, k, Mma::Defined, 1.0);
            assert!(few == most[..few.len()], "{rows} rows, k {k}");
        }
    }
}

/// Activations beyond the largest half, at it, and so small that only their sums tell of them.
#[test]
fn products_of_halves_have_the_range_of_bf16() {
    if emulator::compiler().is_none() {
        return;
    }
    let floats = |mma, scale| {
        let results = linear(9, 16, 64, mma, scale);
        results.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect::<Vec<f32>>()
    };
    for (scale, tolerance) in [(1e30, 1e-6), (131_000.0, 1e-6), (1.0, 1e-6), (1e-3, 1e-4)] {
        let (got, want) = (floats(Mma::ByHalves, scale), floats(Mma::Defined, scale));
        let largest = want.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        assert!(largest > 0.01 * scale && largest.is_finite());
        let error = got.iter().zip(&want).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max) / largest;
        assert!(error < tolerance, "times {scale}: {error:e}");
    }
}

/// The results of so many rows, of activations of this size.
fn linear(rows: usize, n: usize, k: usize, mma: Mma, scale: f32) -> Vec<u8> {
    let order = RowOrder::Plain;
    let mut device = GpuDevice::new(Emulator::new(mma).without_library(), 4 << 20).unwrap();
    let number = |i: usize| (i.wrapping_mul(2_654_435_761) >> 7 & 0xffff) as f32 / 65536.0 - 0.5;
    let weights: Vec<bf16> = (0..n * k).map(|i| bf16::from_f32(number(i))).collect();
    let w = device.take(packed_bytes(Format::Bf16, order, n, k)).unwrap();
    device.fill(&w, &mut |out| pack_bf16(Mat::new(&weights, n, k), order, 0..panels(order, n), out));
    let w =
        Matrix { format: Format::Bf16, n, k, order, activations: Activations::Exact, parts: vec![(0, w)] };
    let matrix = |device: &mut GpuDevice<Emulator>, dtype: Dtype, cols: usize| Rows {
        buf: device.take(rows * cols * dtype.bytes()).unwrap(),
        dtype,
        rows,
        cols,
    };
    let x = matrix(&mut device, Dtype::Bf16, k);
    let values: Vec<u8> =
        (0..rows * k).flat_map(|i| bf16::from_f32(scale * number(3 * i + 1)).to_le_bytes()).collect();
    device.upload(&x.buf, &values);
    let out = matrix(&mut device, Dtype::F32, n);
    device.linear(x, &w, None, Sink::Store(out));
    let mut results = Vec::new();
    device.view(&out.buf, &mut |bytes| results = bytes.to_vec());
    results
}
