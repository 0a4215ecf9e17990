//! Narrow weights by every family against plain loops.

mod fixtures;

use fixtures::{K, noise, packed};
use half::bf16;
use kernels::linear::quant::{Narrow, block_bytes, expand, unpack_panel_row};
use kernels::linear::{
    Activations, Format, Input, Output, Part, RowOrder, Weight, linear, linear_in, pack_bf16, panels,
    reference, unpack_row,
};
use kernels::{Isa, Mat, MatMut, Order, Team};

#[test]
fn every_instruction_set_expands_the_same_bits() {
    let team = Team::new(1);
    for format in Narrow::ALL {
        let k = if block_bytes(format).is_some() { K } else { 5 * 32 - 7 };
        let groups = k.div_ceil(32);
        let panel = &packed(format, RowOrder::Plain, 32, k);
        for range in [0..groups, 1..groups, 3..4, 2..2] {
            let run = |isa| {
                let mut out = vec![bf16::ONE; range.len() * 1024];
                // In a team, so that subnormals are flushed as they are in use.
                let cell = std::sync::Mutex::new(&mut out);
                team.run(|_| expand(isa, format, panel, range.clone(), &mut cell.lock().unwrap()));
                out
            };
            let expected = run(Isa::Scalar);
            for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
                let bits = |v: &[bf16]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&run(isa)), bits(&expected), "{format:?} {isa} groups {range:?}");
            }
        }
    }
}

#[test]
fn expanded_tiles_hold_the_rows() {
    for format in Narrow::ALL {
        let panel = packed(format, RowOrder::Plain, 32, K);
        let mut tiles = vec![bf16::ONE; K / 32 * 1024];
        expand(Isa::Scalar, format, &panel, 0..K / 32, &mut tiles);
        let mut values = vec![0.0; K];
        for row in 0..32 {
            unpack_panel_row(format, &panel, row, &mut values);
            for (k, value) in values.iter().enumerate() {
                let at = k / 32 * 1024 + row / 16 * 512 + k % 32 / 2 * 32 + row % 16 * 2 + k % 2;
                assert_eq!(tiles[at].to_f32(), *value, "{format:?} row {row} k {k}");
            }
        }
    }
}

/// `x * W^T` of a packed narrow weight in an order, and of the same values as a bf16 weight by plain loops.
fn both_products((isa, order): (Isa, Order), format: Narrow, m: usize, n: usize, k: usize) -> [Vec<f32>; 2] {
    let team = Team::new(2);
    let narrow = packed(format, RowOrder::Plain, n, k);
    let narrow = weight(Format::Narrow(format), n, k, &narrow);
    let mut values = vec![0.0; n * k];
    values.chunks_exact_mut(k).enumerate().for_each(|(row, out)| unpack_row(&narrow, row, out));
    let values: Vec<bf16> = values.into_iter().map(bf16::from_f32).collect();
    let mut plain = vec![0; panels(RowOrder::Plain, n) * 64 * k.next_multiple_of(32)];
    pack_bf16(Mat::new(&values, n, k), RowOrder::Plain, 0..panels(RowOrder::Plain, n), &mut plain);
    let plain = weight(Format::Bf16, n, k, &plain);
    let x: Vec<bf16> = noise(m * k, 9).into_iter().map(bf16::from_f32).collect();
    let x = Input::Bf16(Mat::new(&x, m, k));
    let mut results = [vec![f32::NAN; m * n], vec![f32::NAN; m * n]];
    let [ours, right] = results.each_mut().map(|y| Output::StoreF32(MatMut::new(y, m, n)));
    linear_in(&team, (isa, order), x, &narrow, None, ours);
    reference(&team, order, x, &plain, None, right);
    results
}

fn weight(format: Format, n: usize, k: usize, bytes: &[u8]) -> Weight<'_> {
    Weight::new(format, n, k, RowOrder::Plain, vec![Part { first_panel: 0, bytes }])
}

#[test]
fn in_the_order_of_groups_a_narrow_weight_multiplies_as_its_values_in_bf16() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.available() && isa.order() != Order::Pairs) {
        for format in Narrow::ALL {
            let k = if block_bytes(format).is_some() { K } else { 215 };
            for m in [1, 2, 3, 5, 8, 9, 16, 17, 33] {
                let [narrow, plain] = both_products((isa, Order::Groups), format, m, 75, k);
                let bits = |y: Vec<f32>| y.into_iter().map(f32::to_bits).collect::<Vec<_>>();
                assert_eq!(bits(narrow), bits(plain), "{isa} {format:?} m = {m}");
            }
        }
    }
}

/// A narrow weight's bytes, x, and `x * W^T` by the plain loops in an order.
fn by_plain_loops(
    order: Order,
    format: Narrow,
    m: usize,
    n: usize,
    k: usize,
) -> (Vec<u8>, Vec<bf16>, Vec<f32>) {
    let packed = packed(format, RowOrder::Plain, n, k);
    let x: Vec<bf16> = noise(m * k, 9).into_iter().map(bf16::from_f32).collect();
    let mut y = vec![f32::NAN; m * n];
    let (rows, out) = (Input::Bf16(Mat::new(&x, m, k)), Output::StoreF32(MatMut::new(&mut y, m, n)));
    reference(&Team::new(2), order, rows, &weight(Format::Narrow(format), n, k, &packed), None, out);
    (packed, x, y)
}

#[test]
fn unrounded_weights_have_the_bits_of_the_plain_loops() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.available() && isa.order() != Order::Groups) {
        for format in Narrow::ALL {
            let k = if block_bytes(format).is_some() { K } else { 215 };
            for m in [1, 2, 3, 5, 8, 9, 12, 13, 24, 37, 130] {
                let n = 75;
                let (packed, x, right) = by_plain_loops(isa.order(), format, m, n, k);
                let mut y = vec![f32::NAN; m * n];
                let out = Output::StoreF32(MatMut::new(&mut y, m, n));
                let w = weight(Format::Narrow(format), n, k, &packed);
                linear(&Team::new(2), isa, Input::Bf16(Mat::new(&x, m, k)), &w, None, out);
                let wrong = y.iter().zip(&right).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
                assert!(wrong == 0, "{isa} {format:?} m = {m}: {wrong} of {} differ", y.len());
            }
        }
    }
}

/// How x is rounded, and how far results may be from the exact ones.
const ROUNDED: [(Activations, f64); 2] = [(Activations::Int8, 0.01), (Activations::Int16, 0.003)];

/// `x * W^T` with x rounded.
fn rounded_products(isa: Isa, activations: Activations, w: &Weight<'_>, x: &[bf16]) -> Vec<f32> {
    let m = x.len() / w.k();
    let mut y = vec![f32::NAN; m * w.n()];
    let w = w.clone().with_activations(activations);
    let x = Input::Bf16(Mat::new(x, m, w.k()));
    linear(&Team::new(2), isa, x, &w, None, Output::StoreF32(MatMut::new(&mut y, m, w.n())));
    y
}

#[test]
fn rounded_rows_are_near_the_exact_ones_whatever_their_neighbours() {
    let (m, n) = (37, 75);
    for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
        for format in Narrow::ALL.into_iter().filter(|format| format.is_whole()) {
            let k = if block_bytes(format).is_some() { K } else { 215 };
            let bytes = packed(format, RowOrder::Plain, n, k);
            let w = weight(Format::Narrow(format), n, k, &bytes);
            let x: Vec<bf16> = noise(m * k, 9).into_iter().map(bf16::from_f32).collect();
            let [exact, _] = both_products((isa, isa.order()), format, m, n, k);
            for (activations, most) in ROUNDED {
                let all = rounded_products(isa, activations, &w, &x);
                let one = rounded_products(isa, activations, &w, &x[20 * k..21 * k]);
                let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&one), bits(&all[20 * n..21 * n]), "{isa} {format:?} {activations:?}");
                let size =
                    |y: &mut dyn Iterator<Item = f32>| y.map(|y| f64::from(y).powi(2)).sum::<f64>().sqrt();
                let off = size(&mut all.iter().zip(&exact).map(|(a, b)| a - b));
                let share = off / size(&mut exact.iter().copied());
                assert!(share < most, "{isa} {format:?} {activations:?}: off by {share:.4} of the whole");
            }
        }
    }
}

#[test]
fn rounded_rows_have_the_bits_of_the_plain_loops() {
    // More rows than a block has, and every number of them that is left over.
    for (m, n, k) in [(271, 33, 64), (15, 64, 256), (14, 64, 256), (37, 75, 215)] {
        let has = |format: &Narrow| block_bytes(*format).is_none() || k % format.block() == 0;
        for format in Narrow::ALL.into_iter().filter(|format| format.is_whole() && has(format)) {
            let bytes = packed(format, RowOrder::Plain, n, k);
            let w = weight(Format::Narrow(format), n, k, &bytes);
            let x: Vec<bf16> = noise(m * k, 11).into_iter().map(bf16::from_f32).collect();
            for (activations, _) in ROUNDED {
                let right = rounded_products(Isa::Scalar, activations, &w, &x);
                for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
                    let ours = rounded_products(isa, activations, &w, &x);
                    let same = ours.iter().zip(&right).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{isa} {format:?} {activations:?} m = {m}");
                }
            }
        }
    }
}

#[test]
fn what_is_no_number_shows_in_its_row_alone() {
    let (n, k) = (40, 96);
    for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
        for format in [Narrow::Int4, Narrow::Int8, Narrow::Q6K] {
            let k = if format == Narrow::Q6K { K } else { k };
            let bytes = packed(format, RowOrder::Plain, n, k);
            let w = weight(Format::Narrow(format), n, k, &bytes);
            for bad in [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY] {
                let mut x = vec![bf16::ONE; 3 * k];
                x[k + 50] = bad;
                for (activations, _) in ROUNDED {
                    let y = rounded_products(isa, activations, &w, &x);
                    let others_are_finite = y[..n].iter().chain(&y[2 * n..]).all(|y| y.is_finite());
                    assert!(y[n..2 * n].iter().all(|y| y.is_nan()), "{isa} {format:?} {activations:?} {bad}");
                    assert!(others_are_finite, "{isa} {format:?} {activations:?} {bad}");
                }
            }
        }
    }
}

#[test]
fn absent_panels_are_left_alone() {
    let n = 96;
    for (isa, format) in Isa::ALL
        .into_iter()
        .filter(|isa| isa.available())
        .flat_map(|isa| [Narrow::Int8, Narrow::Int4, Narrow::Q5_0].map(|format| (isa, format)))
    {
        let bytes = packed(format, RowOrder::Plain, n, K);
        let panel = bytes.len() / 3;
        let part = Part { first_panel: 1, bytes: &bytes[panel..2 * panel] };
        let held = Weight::new(Format::Narrow(format), n, K, RowOrder::Plain, vec![part]);
        let all = weight(Format::Narrow(format), n, K, &bytes);
        for (m, threads) in [(1, 3), (2, 1), (5, 7)] {
            let x: Vec<bf16> = noise(m * K, 13).into_iter().map(bf16::from_f32).collect();
            for activations in [Activations::Exact, Activations::Int8, Activations::Int16] {
                let product = |w: &Weight<'_>| {
                    let mut y = vec![7.0; m * n];
                    let (x, out) = (Mat::new(&x, m, K), Output::StoreF32(MatMut::new(&mut y, m, n)));
                    let w = w.clone().with_activations(activations);
                    linear(&Team::new(threads), isa, Input::Bf16(x), &w, None, out);
                    y
                };
                let mut want = product(&all);
                let absent = want.iter_mut().enumerate().filter(|(i, _)| !(32..64).contains(&(i % n)));
                absent.for_each(|(_, y)| *y = 7.0);
                assert_eq!(product(&held), want, "{isa} {format:?} {activations:?} m = {m}");
            }
        }
    }
}
