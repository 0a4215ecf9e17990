use half::bf16;

use super::plan::Plan;
use super::{Narrow, block_bytes, dequantize_row, expand, pack_blocks, pack_floats, unpack_panel_row};
use crate::linear::{
    Activations, Format, Input, Output, Part, RowOrder, Weight, linear, pack_bf16, pack_f32, panel_rows,
    panels, reference, run, unpack_row,
};
use crate::{Isa, Mat, MatMut, Order, Team};

/// Rows and columns of the fixtures that `scripts/make_gguf_fixtures.py` writes.
const ROWS: usize = 2;
const K: usize = 512;

macro_rules! fixture {
    ($format:expr, $name:literal) => {
        (
            $format,
            include_bytes!(concat!("../../../tests/fixtures/gguf/", $name, ".blocks")),
            include_bytes!(concat!("../../../tests/fixtures/gguf/", $name, ".values")),
        )
    };
}

static FIXTURES: [(Narrow, &[u8], &[u8]); 10] = [
    fixture!(Narrow::Q4_0, "q4_0"),
    fixture!(Narrow::Q4_1, "q4_1"),
    fixture!(Narrow::Q5_0, "q5_0"),
    fixture!(Narrow::Q5_1, "q5_1"),
    fixture!(Narrow::Q8_0, "q8_0"),
    fixture!(Narrow::Q2K, "q2_k"),
    fixture!(Narrow::Q3K, "q3_k"),
    fixture!(Narrow::Q4K, "q4_k"),
    fixture!(Narrow::Q5K, "q5_k"),
    fixture!(Narrow::Q6K, "q6_k"),
];

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Numbers in -1..1 that look random.
fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// A packed matrix of `n` by `k` of any narrow format, from seeded noise.
fn packed(format: Narrow, order: RowOrder, n: usize, k: usize) -> Vec<u8> {
    let all = 0..panels(order, n);
    let mut out = vec![7; all.len() * format.panel_bytes(k)];
    match block_bytes(format) {
        None => pack_floats(format, Mat::new(&noise(n * k, 3), n, k), order, all, &mut out),
        Some(bytes) => {
            let (_, blocks, _) = FIXTURES.into_iter().find(|f| f.0 == format).expect("a fixture");
            // The fixture's blocks over and over, from another one in each row.
            let per_row = k / format.block();
            let have = blocks.len() / bytes;
            let source: Vec<u8> = (0..n * per_row)
                .flat_map(|i| &blocks[(i + i / per_row * 3) % have * bytes..][..bytes])
                .copied()
                .collect();
            pack_blocks(format, Mat::new(&source, n, per_row * bytes), k, order, all, &mut out);
        }
    }
    out
}

#[test]
fn gguf_rows_have_the_values_that_the_python_package_gives() {
    for (format, blocks, values) in FIXTURES {
        let values = floats(values);
        let mut ours = vec![0.0; ROWS * K];
        dequantize_row(format, blocks, &mut ours);
        for (k, (ours, theirs)) in ours.iter().zip(&values).enumerate() {
            assert_eq!(ours, theirs, "{format:?} value {k}");
        }
    }
}

#[test]
fn packed_gguf_rows_have_those_values_in_bf16() {
    for (format, blocks, values) in FIXTURES {
        let values = floats(values);
        let w = Mat::new(blocks, ROWS, blocks.len() / ROWS);
        for order in [RowOrder::Plain, RowOrder::Gated] {
            let mut panel = vec![7; format.panel_bytes(K)];
            pack_blocks(format, w, K, order, 0..1, &mut panel);
            let mut row = vec![0.0; K];
            for (place, source) in panel_rows(order, ROWS, 0).into_iter().enumerate() {
                unpack_panel_row(format, &panel, place, &mut row);
                for (k, ours) in row.iter().enumerate() {
                    let theirs = source.map_or(0.0, |r| bf16::from_f32(values[r * K + k]).to_f32());
                    assert_eq!(*ours, theirs, "{format:?} {order:?} place {place} k {k}");
                }
            }
        }
    }
}

#[test]
fn packed_gguf_is_at_most_a_twentieth_larger_than_the_file() {
    for (format, blocks, _) in FIXTURES {
        let file = blocks.len() / ROWS * 32;
        assert!(format.panel_bytes(K) * 20 <= file * 21, "{format:?}: {} of {file}", format.panel_bytes(K));
    }
}

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

/// What quantising and unpacking makes of one row.
fn round_trip(format: Narrow, row: &[f32]) -> Vec<f32> {
    let mut panel = vec![7; format.panel_bytes(row.len())];
    pack_floats(format, Mat::new(row, 1, row.len()), RowOrder::Plain, 0..1, &mut panel);
    let mut out = vec![f32::NAN; row.len()];
    unpack_panel_row(format, &panel, 0, &mut out);
    out
}

#[test]
fn round_trips_stay_within_half_a_step() {
    for (format, steps) in [(Narrow::Int8, 127.0), (Narrow::Int4, 7.5)] {
        for (len, size) in [(1, 1.0), (63, 1e-3), (64, 30.0), (65, 1.0), (200, 1e20)] {
            let row: Vec<f32> = noise(len, len as u64).iter().map(|v| v * size).collect();
            for (group, back) in row.chunks(64).zip(round_trip(format, &row).chunks(64)) {
                let largest = group.iter().fold(0.0f32, |max, v| max.max(v.abs()));
                // Half a step, the rounding of value and min to bf16, and of the scale (over all the steps).
                let bound = largest * (0.5 / steps + 3.0 / 256.0);
                for (value, back) in group.iter().zip(back) {
                    assert!(
                        (value - back).abs() <= bound,
                        "{format:?}: {value} became {back} (within {bound})"
                    );
                }
            }
        }
    }
}

#[test]
fn constant_groups_are_exact() {
    for value in [0.0, -0.0, 1.0, -0.1234, 3e38, 1e-37, -7.7e-20] {
        let value = bf16::from_f32(value).to_f32();
        assert_eq!(round_trip(Narrow::Int4, &[value; 100]), [value; 100], "{value}");
    }
    assert_eq!(round_trip(Narrow::Int8, &[0.0; 100]), [0.0; 100]);
}

#[test]
fn hostile_values_give_finite_weights() {
    let rows =
        [[f32::NAN, 1.0, -1.0], [f32::INFINITY, 1.0, 0.0], [f32::NEG_INFINITY, f32::INFINITY, f32::NAN]];
    for format in [Narrow::Int8, Narrow::Int4] {
        for row in rows {
            assert!(round_trip(format, &row).iter().all(|v| v.is_finite()), "{format:?} {row:?}");
        }
        assert_eq!(round_trip(format, &[1e-40, -1e-39, 0.0]), [0.0; 3], "{format:?}");
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
    run(&team, (isa, order), x, &narrow, None, ours);
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
fn in_the_order_of_pairs_no_weight_is_rounded() {
    let (m, n) = (2, 40);
    for format in Narrow::ALL {
        let k = if block_bytes(format).is_some() { K } else { 215 };
        let (packed, x, y) = by_plain_loops(Order::Pairs, format, m, n, k);
        let plan = Plan::of(format);
        let value = |row: usize, k_at: usize| {
            let (panel, row, group) = (&packed[row / 32 * plan.panel_bytes(k)..], row % 32, k_at / 32);
            let (scale, min) = plan.group_affine(panel, group, row)[k_at % 32 / 16];
            f64::from(scale) * f64::from(plan.code_value(plan.code(panel, group, row, k_at % 32)))
                + f64::from(min)
        };
        for (i, y) in y.iter().enumerate() {
            let products = (0..k).map(|j| x[i / n * k + j].to_f64() * value(i % n, j));
            let (right, size) =
                products.fold((0.0, 0.0), |(sum, size), product| (sum + product, size + product.abs()));
            assert!((f64::from(*y) - right).abs() <= 2e-6 * size, "{format:?} {i}: {y} is not {right}");
        }
    }
}

#[test]
fn in_the_order_of_vectors_a_narrow_weight_multiplies_as_its_values_in_f32() {
    let (m, n) = (2, 40);
    for format in Narrow::ALL {
        let k = if block_bytes(format).is_some() { K } else { 215 };
        let (packed, x, y) = by_plain_loops(Order::Vectors, format, m, n, k);
        let plan = Plan::of(format);
        let value = |i: usize| {
            let (row, k, panel) = (i / k % 32, i % k, &packed[i / k / 32 * plan.panel_bytes(k)..]);
            plan.unrounded(panel, k / 32, row, k % 32, plan.group_affine(panel, k / 32, row))
        };
        let values: Vec<f32> = (0..n * k).map(value).collect();
        let mut floats = vec![0; panels(RowOrder::Plain, n) * 32 * 4 * k];
        pack_f32(Mat::new(&values, n, k), RowOrder::Plain, 0..panels(RowOrder::Plain, n), &mut floats);
        let x: Vec<f32> = x.into_iter().map(bf16::to_f32).collect();
        let mut right = vec![f32::NAN; m * n];
        let (rows, out) = (Input::F32(Mat::new(&x, m, k)), Output::StoreF32(MatMut::new(&mut right, m, n)));
        linear(&Team::new(2), Isa::Scalar, rows, &weight(Format::F32, n, k, &floats), None, out);
        assert_eq!(y, right, "{format:?}");
    }
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
        for format in Narrow::ALL {
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
        for format in
            Narrow::ALL.into_iter().filter(|format| block_bytes(*format).is_none() || k % format.block() == 0)
        {
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
