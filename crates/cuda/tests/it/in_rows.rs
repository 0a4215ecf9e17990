//! Weights that were put into rows for a library of products, its kernels emulated: what reads them then.

use crate::emulator::{self, Emulator, Mma};
use cuda::GpuDevice;
use half::bf16;
use kernels::Mat;
use kernels::arena::Buf;
use kernels::device::{Device, Dtype, Matrix, Rows, Sink};
use kernels::linear::{Activations, Format, RowOrder, pack_bf16, packed_bytes, panels};

/// Output rows: three panels, the last of them not full.
const N: usize = 90;
/// The fewest rows that are a product for the library, as the emulator says.
const FEWEST: usize = 200;
/// As many are one, too; of more its result finds no room, and here none to be written straight to.
const FOR_LIBRARY: usize = 520;
const TOO_MANY: usize = 1300;

fn number(i: usize) -> f32 {
    (i.wrapping_mul(2_654_435_761) >> 7 & 0xffff) as f32 / 65536.0 - 0.5
}

/// Weights on a device, of `seed`.
struct Weights {
    device: GpuDevice<Emulator>,
    buf: Buf,
    k: usize,
}

impl Weights {
    fn new(driver: Emulator, k: usize, seed: usize) -> Weights {
        let mut device = GpuDevice::new(driver, 16 << 20).unwrap();
        let buf = device.take(packed_bytes(Format::Bf16, RowOrder::Plain, N, k)).unwrap();
        let weights = Weights { device, buf, k };
        weights.upload(seed);
        weights
    }

    fn upload(&self, seed: usize) {
        let (order, k) = (RowOrder::Plain, self.k);
        let weights: Vec<bf16> = (0..N * k).map(|i| bf16::from_f32(number(i + seed))).collect();
        let pack = &mut |out: &mut [u8]| pack_bf16(Mat::new(&weights, N, k), order, 0..panels(order, N), out);
        self.device.fill(&self.buf, pack);
    }

    fn matrix(&self) -> Matrix {
        let parts = vec![(0, self.buf)];
        let (format, order) = (Format::Bf16, RowOrder::Plain);
        Matrix { format, n: N, k: self.k, order, activations: Activations::Exact, parts }
    }

    fn rows(&mut self, rows: usize, dtype: Dtype, cols: usize) -> Rows {
        Rows { buf: self.device.take(rows * cols * dtype.bytes()).unwrap(), dtype, rows, cols }
    }

    fn floats(&self, rows: Rows) -> Vec<f32> {
        let mut all = Vec::new();
        self.device.view(&rows.buf, &mut |bytes| all = bytemuck::cast_slice(bytes).to_vec());
        all
    }

    fn linear(&mut self, rows: usize) -> Vec<f32> {
        self.linear_to(rows, Sink::Store)
    }

    /// Where there is a one in every place.
    fn linear_to(&mut self, rows: usize, sink: impl Fn(Rows) -> Sink) -> Vec<f32> {
        let (x, out) = (self.rows(rows, Dtype::Bf16, self.k), self.rows(rows, Dtype::F32, N));
        let values = (0..rows * self.k).map(|i| bf16::from_f32(number(3 * i + 1)).to_bits());
        self.device.upload(&x.buf, bytemuck::cast_slice(&values.collect::<Vec<u16>>()));
        self.device.upload(&out.buf, bytemuck::cast_slice(&vec![1f32; rows * N]));
        self.device.linear(x, &self.matrix(), None, sink(out));
        self.floats(out)
    }

    fn embed(&mut self) -> Vec<f32> {
        let out = self.rows(4, Dtype::F32, self.k);
        self.device.embed(&self.matrix(), &[0, 33, 89, 62], 1.0, out);
        self.floats(out)
    }
}

#[test]
fn weights_in_rows_give_the_same_bits() {
    if emulator::compiler().is_none() {
        return;
    }
    for k in [32 * 9, 8 * 37] {
        let mut lines = Weights::new(Emulator::new(Mma::Defined).without_library(), k, 0);
        let mut rows = Weights::new(Emulator::new(Mma::Defined), k, 0);
        let (own, librarys) = (lines.linear(FOR_LIBRARY), rows.linear(FOR_LIBRARY));
        assert!(own != librarys, "the library adds in another order: was it asked?");
        let worst = own.iter().zip(&librarys).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-3, "{worst} of sums of {k}");
        for count in [1, 9, 33, 130, TOO_MANY] {
            assert!(lines.linear(count) == rows.linear(count), "{count} rows, k {k}");
        }
        assert!(lines.embed() == rows.embed(), "embedding, k {k}");
        assert!(rows.linear(FOR_LIBRARY) == librarys, "the second time");
    }
}

#[test]
fn the_library_is_asked_from_its_fewest_rows_on() {
    if emulator::compiler().is_none() {
        return;
    }
    let mut own = Weights::new(Emulator::new(Mma::Defined).without_library(), 32 * 9, 0);
    let mut with_library = Weights::new(Emulator::new(Mma::Defined), 32 * 9, 0);
    for (rows, is_own) in [(FEWEST - 1, true), (FEWEST, false), (FEWEST - 1, true)] {
        assert_eq!(own.linear(rows) == with_library.linear(rows), is_own, "{rows} rows");
    }
}

/// Of so many rows results pass through a kernel, two panels at a time. The library computes the first two and refuses the third.
#[test]
fn what_the_library_refuses_is_computed_by_own_kernels_and_nothing_is_added_twice() {
    if emulator::compiler().is_none() {
        return;
    }
    let mut own = Weights::new(Emulator::new(Mma::Defined).without_library(), 32 * 9, 0);
    let mut refused = Weights::new(Emulator::new(Mma::Defined).refusing(32), 32 * 9, 0);
    let want = own.linear_to(FOR_LIBRARY, Sink::Add);
    let got = refused.linear_to(FOR_LIBRARY, Sink::Add);
    let worst = want.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst > 0.0 && worst < 1e-3, "{worst}: only the order of sums is another");
    let mut rows = want.chunks(N).zip(got.chunks(N));
    assert!(rows.all(|(want, got)| want[64..] == got[64..]), "the third panel is our own kernels'");
    assert!(refused.linear_to(FOR_LIBRARY, Sink::Add) == want, "the library is not asked again");
}

#[test]
fn what_is_uploaded_lies_in_lines_again() {
    if emulator::compiler().is_none() {
        return;
    }
    let mut others = Weights::new(Emulator::new(Mma::Defined), 64, 7);
    let mut rows = Weights::new(Emulator::new(Mma::Defined), 64, 0);
    rows.linear(FOR_LIBRARY);
    rows.upload(7);
    assert!(rows.linear(3) == others.linear(3));
    assert!(rows.linear(FOR_LIBRARY) == others.linear(FOR_LIBRARY));
    assert!(rows.linear(3) == others.linear(3));
}

#[test]
fn weights_in_rows_are_not_read_back_as_if_they_lay_in_lines() {
    if emulator::compiler().is_none() {
        return;
    }
    let mut rows = Weights::new(Emulator::new(Mma::Defined), 64, 0);
    rows.floats(Rows { buf: rows.buf, dtype: Dtype::Bf16, rows: 96, cols: 64 });
    rows.linear(FOR_LIBRARY);
    let read = std::panic::AssertUnwindSafe(|| rows.device.view(&rows.buf, &mut |_| ()));
    let why = std::panic::catch_unwind(read).unwrap_err();
    assert!(why.downcast_ref::<&str>().is_some_and(|why| why.contains("in rows")));
}
