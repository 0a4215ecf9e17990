//! What is packed comes back, and what plain loops make of it is what the formats say.

use half::bf16;

use super::plan::Plan;
use super::{Narrow, block_bytes, dequantize_row, pack_blocks, pack_floats, scalar, unpack_panel_row};
use crate::linear::epilogue::Epilogue;
use crate::linear::scalar::run_f32;
use crate::linear::{Format, Output, Part, RowOrder, Weight, pack_f32, panel_rows, panels};
use crate::{Mat, MatMut, Team};
use fixtures::{FIXTURES, K, noise, packed};

#[path = "../../../tests/it/quant/fixtures.rs"]
mod fixtures;

/// Rows of the fixtures.
const ROWS: usize = 2;

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
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

/// What plain loops make of `x: [m, k]` and a weight.
fn product(w: &Weight<'_>, m: usize, run: impl FnOnce(&Team, &Epilogue<'_>)) -> Vec<f32> {
    let mut y = vec![f32::NAN; m * w.n()];
    let mut out = Output::StoreF32(MatMut::new(&mut y, m, w.n()));
    run(&Team::new(2), &Epilogue::new(w, None, &mut out));
    y
}

/// `[m, k]`.
fn rows(m: usize, k: usize) -> Vec<bf16> {
    noise(m * k, 9).into_iter().map(bf16::from_f32).collect()
}

fn weight(format: Format, n: usize, k: usize, bytes: &[u8]) -> Weight<'_> {
    Weight::new(format, n, k, RowOrder::Plain, vec![Part { first_panel: 0, bytes }])
}

#[test]
fn in_the_order_of_pairs_no_weight_is_rounded() {
    let (m, n) = (2, 40);
    for format in Narrow::ALL {
        let k = if block_bytes(format).is_some() { K } else { 215 };
        let (packed, x, plan) = (packed(format, RowOrder::Plain, n, k), rows(m, k), Plan::of(format));
        let w = weight(Format::Narrow(format), n, k, &packed);
        let y = product(&w, m, |team, out| scalar::multiply_codes(team, &plan, Mat::new(&x, m, k), &w, out));
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
        let (packed, x, plan) = (packed(format, RowOrder::Plain, n, k), rows(m, k), Plan::of(format));
        let value = |i: usize| {
            let (row, k, panel) = (i / k % 32, i % k, &packed[i / k / 32 * plan.panel_bytes(k)..]);
            plan.unrounded(panel, k / 32, row, k % 32, plan.group_affine(panel, k / 32, row))
        };
        let values: Vec<f32> = (0..n * k).map(value).collect();
        let mut floats = vec![0; panels(RowOrder::Plain, n) * 32 * 4 * k];
        pack_f32(Mat::new(&values, n, k), RowOrder::Plain, 0..panels(RowOrder::Plain, n), &mut floats);
        let narrow = weight(Format::Narrow(format), n, k, &packed);
        let y = product(&narrow, m, |team, out| {
            scalar::multiply_values(team, &plan, Mat::new(&x, m, k), &narrow, out);
        });
        let (wide, x) =
            (weight(Format::F32, n, k, &floats), x.into_iter().map(bf16::to_f32).collect::<Vec<_>>());
        let right = product(&wide, m, |team, out| run_f32(team, Mat::new(&x, m, k), &wide, out));
        assert_eq!(y, right, "{format:?}");
    }
}
