//! Every family of kernels against the scalar reference in its order, bit for bit, over formats, shapes and outputs.

use half::bf16;
use kernels::linear::{
    Activated, Activation, Format, Input, Output, Part, RowOrder, Weight, linear, pack_bf12, pack_bf16,
    pack_f32, packed_bytes, panel_bytes, panels, reference,
};
use kernels::{AlignedBytes, Isa, Mat, MatMut, Order, Team};

/// Values of many magnitudes and both signs, reproducible.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let unit = (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        let scale = [1.0, 0.1, 3.0, 1e-3][(self.0 >> 33) as usize % 4];
        unit * scale
    }

    fn bf16s(&mut self, n: usize) -> Vec<bf16> {
        (0..n).map(|_| bf16::from_f32(self.next())).collect()
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    StoreF32,
    StoreBf16,
    AddF32,
    ActBf16(Activation),
    ActF32(Activation),
    GatedBf16(Activation),
    GatedF32(Activation),
}

const KINDS: [Kind; 10] = [
    Kind::StoreF32,
    Kind::StoreBf16,
    Kind::AddF32,
    Kind::ActBf16(Activation::Gelu),
    Kind::ActBf16(Activation::Relu),
    Kind::ActF32(Activation::GeluTanh),
    Kind::ActF32(Activation::Silu),
    Kind::GatedBf16(Activation::Silu),
    Kind::GatedF32(Activation::GeluTanh),
    Kind::GatedF32(Activation::Silu),
];

impl Kind {
    fn gated(self) -> bool {
        matches!(self, Kind::GatedBf16(_) | Kind::GatedF32(_))
    }
}

struct Case {
    format: Format,
    m: usize,
    n: usize,
    k: usize,
    kind: Kind,
    x: Vec<bf16>,
    weights: AlignedBytes,
    bias: Option<Vec<f32>>,
}

impl Case {
    fn new(format: Format, (m, n, k): (usize, usize, usize), kind: Kind, with_bias: bool) -> Case {
        let mut random = Random((m * 7919 + n * 31 + k) as u64);
        let n = if kind.gated() { 2 * n } else { n };
        let order = if kind.gated() { RowOrder::Gated } else { RowOrder::Plain };
        let w = random.bf16s(n * k);
        let mut weights = AlignedBytes::zeroed(packed_bytes(format, order, n, k));
        let all = 0..panels(order, n);
        match format {
            Format::F32 => {
                let wide: Vec<f32> = w.iter().map(|v| v.to_f32() * 1.01).collect();
                pack_f32(Mat::new(&wide, n, k), order, all, &mut weights);
            }
            Format::Bf16 => pack_bf16(Mat::new(&w, n, k), order, all, &mut weights),
            Format::Bf12 => {
                // Nine exponents and zeros, and some weights of others.
                let alike = |(i, v): (usize, &bf16)| match v.to_f32().abs() < 1.0 / 128.0 && i % 700 != 3 {
                    true => bf16::ZERO,
                    false => *v,
                };
                let w: Vec<bf16> = w.iter().enumerate().map(alike).collect();
                pack_bf12(Mat::new(&w, n, k), order, all, &mut weights).expect("weights are alike");
            }
            Format::Narrow(_) => unreachable!("narrow formats have tests of their own"),
        }
        let bias = with_bias.then(|| (0..n).map(|_| random.next()).collect());
        Case { format, m, n, k, kind, x: random.bf16s(m * k), weights, bias }
    }

    fn weight(&self) -> Weight<'_> {
        let order = if self.kind.gated() { RowOrder::Gated } else { RowOrder::Plain };
        // Two parts, cut in the middle.
        let bytes = panel_bytes(self.format, self.k);
        let cut = panels(order, self.n) / 2;
        let parts = vec![
            Part { first_panel: 0, bytes: &self.weights[..cut * bytes] },
            Part { first_panel: cut, bytes: &self.weights[cut * bytes..] },
        ];
        Weight::new(self.format, self.n, self.k, order, parts)
    }

    /// The result of a family as bits, rows `m` of x.
    fn run(&self, team: &Team, isa: Isa, x: &[bf16]) -> Vec<u32> {
        self.result(x, |input, bias, out| linear(team, isa, input, &self.weight(), bias, out))
    }

    /// The same of the plain loops.
    fn reference(&self, team: &Team, order: Order, x: &[bf16]) -> Vec<u32> {
        self.result(x, |input, bias, out| reference(team, order, input, &self.weight(), bias, out))
    }

    fn result(&self, x: &[bf16], run: impl FnOnce(Input<'_>, Option<&[f32]>, Output<'_>)) -> Vec<u32> {
        let m = x.len() / self.k;
        let cols = if self.kind.gated() { self.n / 2 } else { self.n };
        let mut narrow = vec![bf16::ONE; m * cols];
        let mut wide: Vec<f32> = (0..m * cols).map(|i| (i % cols % 13) as f32).collect();
        let out = match self.kind {
            Kind::StoreF32 => Output::StoreF32(MatMut::new(&mut wide, m, cols)),
            Kind::StoreBf16 => Output::StoreBf16(MatMut::new(&mut narrow, m, cols)),
            Kind::AddF32 => Output::AddF32(MatMut::new(&mut wide, m, cols)),
            Kind::ActBf16(kind) => {
                Output::Act { kind, out: Activated::Bf16(MatMut::new(&mut narrow, m, cols)) }
            }
            Kind::ActF32(kind) => Output::Act { kind, out: Activated::F32(MatMut::new(&mut wide, m, cols)) },
            Kind::GatedBf16(kind) => {
                Output::Gated { kind, out: Activated::Bf16(MatMut::new(&mut narrow, m, cols)) }
            }
            Kind::GatedF32(kind) => {
                Output::Gated { kind, out: Activated::F32(MatMut::new(&mut wide, m, cols)) }
            }
        };
        let as_f32: Vec<f32> = x.iter().map(|v| v.to_f32()).collect();
        let input = match self.format {
            Format::F32 => Input::F32(Mat::new(&as_f32, m, self.k)),
            _ => Input::Bf16(Mat::new(x, m, self.k)),
        };
        run(input, self.bias.as_deref(), out);
        match self.kind {
            Kind::StoreBf16 | Kind::ActBf16(_) | Kind::GatedBf16(_) => {
                narrow.iter().map(|v| u32::from(v.to_bits())).collect()
            }
            _ => wide.iter().map(|v| v.to_bits()).collect(),
        }
    }

    fn describe(&self, isa: Isa) -> String {
        format!("{isa} {:?} m={} n={} k={} {:?}", self.format, self.m, self.n, self.k, self.kind)
    }
}

fn families() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| *isa != Isa::Scalar && isa.available())
}

/// What is right in each order that some family here adds in, at the order's own number.
fn expected(team: &Team, case: &Case) -> [Vec<u32>; 3] {
    [Order::Groups, Order::Pairs, Order::Vectors].map(|order| {
        let asked = families().any(|isa| isa.order() == order);
        if asked { case.reference(team, order, &case.x) } else { vec![] }
    })
}

fn check(team: &Team, case: &Case) {
    let expected = expected(team, case);
    for isa in families() {
        let expected = &expected[isa.order() as usize];
        let got = case.run(team, isa, &case.x);
        let wrong = got.iter().zip(expected).filter(|(a, b)| a != b).count();
        assert!(wrong == 0, "{}: {wrong} of {} differ", case.describe(isa), got.len());
    }
}

#[test]
fn every_family_gives_the_reference_bits() {
    let shapes = [
        (1, 1, 1),
        (1, 70, 45),
        (2, 224, 96),
        (5, 31, 64),
        (16, 300, 33),
        (17, 96, 200),
        (31, 33, 32),
        (40, 416, 448),
        (70, 50, 800),
        (100, 64, 31),
    ];
    let team = Team::new(2);
    for (i, shape) in shapes.into_iter().enumerate() {
        for (j, kind) in KINDS.into_iter().enumerate() {
            for format in [Format::Bf16, Format::Bf12, Format::F32] {
                check(&team, &Case::new(format, shape, kind, (i + j) % 2 == 0));
            }
        }
    }
}

#[test]
fn blocks_of_rows_and_panels_and_chunks_of_k() {
    let cases = [
        Case::new(Format::Bf16, (530, 450, 416), Kind::AddF32, true),
        Case::new(Format::Bf16, (800, 40, 70), Kind::GatedBf16(Activation::Silu), false),
        Case::new(Format::F32, (300, 70, 130), Kind::StoreF32, true),
        Case::new(Format::Bf12, (530, 450, 416), Kind::AddF32, true),
        Case::new(Format::Bf12, (420, 64, 8_000), Kind::StoreF32, true),
        Case::new(Format::Bf12, (2, 1_060, 300), Kind::AddF32, true),
        // One row, with panels for some of the threads only.
        Case::new(Format::Bf12, (1, 70, 300), Kind::AddF32, true),
        Case::new(Format::Bf12, (1, 520, 96), Kind::GatedBf16(Activation::Silu), true),
        Case::new(Format::Bf12, (12, 520, 96), Kind::GatedBf16(Activation::Silu), true),
        // Several blocks that all share, and several of each worker's own.
        Case::new(Format::Bf16, (100, 96, 10_000), Kind::StoreBf16, false),
        Case::new(Format::Bf16, (420, 64, 8_000), Kind::StoreF32, true),
        // So many panels that several are taken at a time, and one is left over: few rows, some, and many.
        Case::new(Format::Bf16, (2, 1_060, 70), Kind::AddF32, true),
        Case::new(Format::Bf16, (9, 1_060, 64), Kind::StoreF32, false),
        Case::new(Format::Bf16, (9, 520, 96), Kind::GatedBf16(Activation::Silu), true),
        Case::new(Format::Bf16, (30, 1_060, 300), Kind::StoreBf16, true),
    ];
    for case in cases {
        let expected = expected(&Team::new(2), &case);
        for (threads, isa) in [1, 2, 3, 7].into_iter().flat_map(|t| families().map(move |isa| (t, isa))) {
            let got = case.run(&Team::new(threads), isa, &case.x);
            assert!(got == expected[isa.order() as usize], "{} on {threads} threads", case.describe(isa));
        }
    }
}

#[test]
fn whoever_goes_on_with_rows_of_others_changes_nothing() {
    // Each of several workers has several blocks of rows, and several groups of panels of each; of more workers than processors some
    // stand still meanwhile, in the middle of others' blocks.
    let (case, team) = (Case::new(Format::Bf16, (2_100, 1_600, 2_100), Kind::StoreF32, true), Team::new(8));
    for isa in families() {
        let alone = case.run(&Team::new(1), isa, &case.x);
        for turn in 0..20 {
            assert!(case.run(&team, isa, &case.x) == alone, "{}, turn {turn}", case.describe(isa));
        }
    }
}

#[test]
fn a_row_is_the_same_alone_and_beside_nan() {
    let team = Team::new(2);
    for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
        for format in [Format::Bf16, Format::Bf12, Format::F32] {
            for m in [3, 16, 37, 290] {
                let case = Case::new(format, (m, 50, 420), Kind::StoreF32, true);
                let together = case.run(&team, isa, &case.x);
                for row in [0, m / 2, m - 1] {
                    let alone = case.run(&team, isa, &case.x[row * case.k..][..case.k]);
                    assert_eq!(alone, together[row * case.n..][..case.n], "{} row {row}", case.describe(isa));
                    let mut beside = vec![bf16::NAN; case.x.len()];
                    beside[row * case.k..][..case.k].copy_from_slice(&case.x[row * case.k..][..case.k]);
                    let beside = case.run(&team, isa, &beside);
                    assert_eq!(beside[row * case.n..][..case.n], alone, "{} beside NaN", case.describe(isa));
                }
            }
        }
    }
}

#[test]
fn extremes_agree() {
    let team = Team::new(1);
    for m in [4, 64] {
        let mut case = Case::new(Format::Bf16, (m, 64, 96), Kind::StoreF32, false);
        // Subnormal inputs, products that vanish or overflow, infinities of one sign.
        for (i, x) in case.x.iter_mut().enumerate() {
            *x = match i % 7 {
                0 => bf16::from_bits(3),
                1 => bf16::from_f32(1e-38),
                2 => bf16::from_f32(-2e-37),
                3 if i % 5 == 0 => bf16::from_f32(3e38),
                _ => *x,
            };
        }
        check(&team, &case);
    }
}

#[test]
fn absent_panels_are_left_alone() {
    let (n, k) = (96, 64);
    let formats = [Format::Bf16, Format::Bf12, Format::F32];
    for (format, m) in formats.into_iter().flat_map(|format| [1, 3].map(|m| (format, m))) {
        let case = Case::new(format, (m, n, k), Kind::AddF32, false);
        let bytes = panel_bytes(format, k);
        let part = Part { first_panel: 1, bytes: &case.weights[bytes..2 * bytes] };
        let w = Weight::new(format, n, k, RowOrder::Plain, vec![part]);
        let team = Team::new(2);
        let untouched = case.result(&case.x, |_, _, _| {});
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            let whole = case.reference(&team, isa.order(), &case.x);
            let got = case.result(&case.x, |x, bias, out| linear(&team, isa, x, &w, bias, out));
            for (i, y) in got.into_iter().enumerate() {
                let held = (32..64).contains(&(i % n));
                assert_eq!(y, if held { whole[i] } else { untouched[i] }, "{isa} {format:?} m = {m} {i}");
            }
        }
    }
}

#[test]
fn the_reference_is_close_to_the_double() {
    let (m, n, k) = (4, 40, 500);
    let mut random = Random(5);
    let (x, w) = (random.bf16s(m * k), random.bf16s(n * k));
    let mut packed = vec![0; packed_bytes(Format::Bf16, RowOrder::Plain, n, k)];
    pack_bf16(Mat::new(&w, n, k), RowOrder::Plain, 0..2, &mut packed);
    let weight =
        Weight::new(Format::Bf16, n, k, RowOrder::Plain, vec![Part { first_panel: 0, bytes: &packed }]);
    let team = Team::new(1);
    for order in [Order::Groups, Order::Pairs] {
        let mut y = vec![0.0; m * n];
        let out = Output::StoreF32(MatMut::new(&mut y, m, n));
        reference(&team, order, Input::Bf16(Mat::new(&x, m, k)), &weight, None, out);
        for (i, y) in y.iter().enumerate() {
            let (row, col) = (&x[i / n * k..][..k], &w[i % n * k..][..k]);
            let right: f64 = row.iter().zip(col).map(|(x, w)| x.to_f64() * w.to_f64()).sum();
            assert!((f64::from(*y) - right).abs() < 1e-4, "{order:?}: {y} is not {right}");
        }
    }
}
