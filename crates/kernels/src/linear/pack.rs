//! Weights in the order in which the kernels read them.
//!
//! A matrix is cut into panels of 32 output rows, each contiguous. A bf16 panel holds, for every 32 of k,
//! two tiles of 1 KB: tile t has 16 lines, line j holds `w[16t + i][2j], w[16t + i][2j + 1]` for i in
//! 0..16. That is what a tile register wants as its right operand, and what a vector unit can read a line
//! at a time. An f32 panel holds, for every k, the 32 outputs beside each other. Missing rows and the
//! rest of the last 32 of k are zero.

use std::ops::Range;

use half::bf16;
use half::slice::HalfFloatSliceExt;

use super::bf12;
use super::quant::unpack_panel_row;
use super::types::{Format, RowOrder, Weight};
use crate::mat::Mat;

/// Output rows of a panel.
pub const PANEL_ROWS: usize = 32;
/// Values of k in a tile.
pub const GROUP: usize = 32;
/// Bytes of one tile of bf16 weights: 16 outputs by 32 k.
pub const TILE_BYTES: usize = 1024;

/// How many panels a matrix of `n` output rows has.
pub fn panels(order: RowOrder, n: usize) -> usize {
    match order {
        RowOrder::Plain => n.div_ceil(PANEL_ROWS),
        RowOrder::Gated => (n / 2).div_ceil(PANEL_ROWS / 2),
    }
}

/// Bytes of one panel of `k` input columns.
pub fn panel_bytes(format: Format, k: usize) -> usize {
    match format {
        Format::F32 => k * PANEL_ROWS * size_of::<f32>(),
        Format::Bf16 => k.div_ceil(GROUP) * 2 * TILE_BYTES,
        Format::Bf12 => bf12::panel_bytes(k),
        Format::Narrow(narrow) => narrow.panel_bytes(k),
    }
}

/// Bytes of a whole matrix of `n` output rows by `k`.
pub fn packed_bytes(format: Format, order: RowOrder, n: usize, k: usize) -> usize {
    panels(order, n) * panel_bytes(format, k)
}

/// The source rows of panel `panel`, by their place in it; `None` where it is padding.
pub fn panel_rows(order: RowOrder, n: usize, panel: usize) -> [Option<usize>; PANEL_ROWS] {
    const HALF: usize = PANEL_ROWS / 2;
    std::array::from_fn(|place| match order {
        RowOrder::Plain => Some(panel * PANEL_ROWS + place).filter(|row| *row < n),
        RowOrder::Gated => {
            let row = panel * HALF + place % HALF;
            (row < n / 2).then_some(row + (place / HALF) * (n / 2))
        }
    })
}

/// Packs `panels` of a bf16 matrix. `w: [n, k]`, gate rows before up rows for [`RowOrder::Gated`].
///
/// # Panics
/// If `out` is not as long as those panels.
pub fn pack_bf16(w: Mat<'_, bf16>, order: RowOrder, panels: Range<usize>, out: &mut [u8]) {
    let bytes = panel_bytes(Format::Bf16, w.cols());
    assert_eq!(out.len(), panels.len() * bytes, "bytes of panels {panels:?}");
    for (panel, out) in panels.zip(out.chunks_exact_mut(bytes.max(1))) {
        let rows = panel_rows(order, w.rows(), panel);
        for (tile, rows) in rows.as_chunks::<16>().0.iter().enumerate() {
            let rows = rows.map(|row| row.map_or(&[][..], |row| w.row(row)));
            for (group, out) in out.chunks_exact_mut(2 * TILE_BYTES).enumerate() {
                put_tile(&rows, group, &mut out[tile * TILE_BYTES..][..TILE_BYTES]);
            }
        }
    }
}

/// One tile: 16 rows' pairs of k beside each other, zeros where a row has ended.
fn put_tile(rows: &[&[bf16]; 16], group: usize, tile: &mut [u8]) {
    let mut values = [[0u16; GROUP]; 16];
    for (values, row) in values.iter_mut().zip(rows) {
        let row = row.get(group * GROUP..).unwrap_or(&[]);
        let row = &row[..row.len().min(GROUP)];
        values[..row.len()].copy_from_slice(row.reinterpret_cast());
    }
    for (j, line) in tile.chunks_exact_mut(4 * 16).enumerate() {
        for (pair, values) in line.as_chunks_mut::<4>().0.iter_mut().zip(&values) {
            let [first, second] = values.as_chunks::<2>().0[j];
            *pair = (u32::from(first) | u32::from(second) << 16).to_le_bytes();
        }
    }
}

/// Packs `panels` of an f32 matrix. `w: [n, k]`, gate rows before up rows for [`RowOrder::Gated`].
///
/// # Panics
/// If `out` is not as long as those panels.
pub fn pack_f32(w: Mat<'_, f32>, order: RowOrder, panels: Range<usize>, out: &mut [u8]) {
    let bytes = panel_bytes(Format::F32, w.cols());
    assert_eq!(out.len(), panels.len() * bytes, "bytes of panels {panels:?}");
    for (panel, out) in panels.zip(out.chunks_exact_mut(bytes.max(1))) {
        let rows = panel_rows(order, w.rows(), panel);
        for (eight, rows) in rows.as_chunks::<8>().0.iter().enumerate() {
            let rows = rows.map(|row| row.map_or(&[][..], |row| w.row(row)));
            for (k, out) in out.chunks_exact_mut(4 * PANEL_ROWS).enumerate() {
                for (out, row) in out[32 * eight..].as_chunks_mut::<4>().0.iter_mut().zip(&rows) {
                    *out = row.get(k).unwrap_or(&0.0).to_le_bytes();
                }
            }
        }
    }
}

/// Reads one row back, for embeddings that are the output matrix too. `out: [k]`.
///
/// # Panics
/// If no part of `w` holds the row, or `out` is not `k` long.
pub fn unpack_row(w: &Weight<'_>, row: usize, out: &mut [f32]) {
    assert_eq!(out.len(), w.k(), "length of the row");
    let (panel, place) = w.place(row);
    let bytes =
        panel_of(w, panel).unwrap_or_else(|| panic!("row {row} is in panel {panel}, which is absent"));
    match w.format() {
        Format::F32 => unpack_row_f32(bytes, place, out),
        Format::Bf16 => unpack_row_bf16(bytes, place, out),
        Format::Bf12 => bf12::unpack_row(bytes, place, out),
        Format::Narrow(narrow) => unpack_panel_row(narrow, bytes, place, out),
    }
}

fn panel_of<'a>(w: &Weight<'a>, panel: usize) -> Option<&'a [u8]> {
    let bytes = panel_bytes(w.format(), w.k());
    w.parts().iter().find_map(|part| {
        let start = panel.checked_sub(part.first_panel)? * bytes;
        part.bytes.get(start..start + bytes)
    })
}

fn unpack_row_f32(panel: &[u8], place: usize, out: &mut [f32]) {
    for (k, out) in out.iter_mut().enumerate() {
        let at = (k * PANEL_ROWS + place) * 4;
        *out = f32::from_le_bytes([panel[at], panel[at + 1], panel[at + 2], panel[at + 3]]);
    }
}

fn unpack_row_bf16(panel: &[u8], place: usize, out: &mut [f32]) {
    let (tile, lane) = (place / 16, place % 16 * 4);
    let pairs = panel.as_chunks::<{ 2 * TILE_BYTES }>().0;
    for (pair, out) in pairs.iter().zip(out.chunks_mut(GROUP)) {
        let lines = pair[tile * TILE_BYTES..][..TILE_BYTES].as_chunks::<64>().0;
        let mut group = [0.0; GROUP];
        for (line, two) in lines.iter().zip(group.as_chunks_mut::<2>().0) {
            let bits = u32::from_le_bytes([line[lane], line[lane + 1], line[lane + 2], line[lane + 3]]);
            *two = [f32::from_bits(bits << 16), f32::from_bits(bits & 0xffff_0000)];
        }
        let count = out.len();
        out.copy_from_slice(&group[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::pack_bf12;
    use crate::linear::types::Part;

    fn matrix(n: usize, k: usize) -> Vec<bf16> {
        (0..n * k).map(|i| bf16::from_f32(((i * 37) % 251) as f32 - 125.0)).collect()
    }

    #[test]
    fn rows_come_back() {
        for (order, n, k) in [(RowOrder::Plain, 70, 45), (RowOrder::Gated, 42, 64), (RowOrder::Plain, 1, 1)] {
            let data = matrix(n, k);
            let wide: Vec<f32> = data.iter().map(|v| v.to_f32()).collect();
            for format in [Format::Bf16, Format::Bf12, Format::F32] {
                let mut bytes = vec![7; packed_bytes(format, order, n, k)];
                match format {
                    Format::Bf16 => pack_bf16(Mat::new(&data, n, k), order, 0..panels(order, n), &mut bytes),
                    Format::Bf12 => {
                        pack_bf12(Mat::new(&data, n, k), order, 0..panels(order, n), &mut bytes)
                            .expect("alike");
                    }
                    Format::F32 => pack_f32(Mat::new(&wide, n, k), order, 0..panels(order, n), &mut bytes),
                    Format::Narrow(_) => unreachable!("narrow formats have tests of their own"),
                }
                let w = Weight::new(format, n, k, order, vec![Part { first_panel: 0, bytes: &bytes }]);
                let mut row = vec![0.0; k];
                for i in 0..n {
                    unpack_row(&w, i, &mut row);
                    assert_eq!(row, wide[i * k..][..k], "{format:?} {order:?} row {i}");
                }
            }
        }
    }

    #[test]
    fn padding_is_zero() {
        let data = vec![bf16::ONE; 33 * 33];
        let mut bytes = vec![7; packed_bytes(Format::Bf16, RowOrder::Plain, 33, 33)];
        pack_bf16(Mat::new(&data, 33, 33), RowOrder::Plain, 0..2, &mut bytes);
        let ones = bytes.chunks(2).filter(|b| **b == bf16::ONE.to_le_bytes()).count();
        let zeros = bytes.chunks(2).filter(|b| **b == [0, 0]).count();
        assert_eq!((ones, zeros), (33 * 33, bytes.len() / 2 - 33 * 33));
    }

    #[test]
    #[should_panic(expected = "absent")]
    fn an_absent_row_is_an_error() {
        let bytes = vec![0; panel_bytes(Format::Bf16, 32)];
        let part = Part { first_panel: 1, bytes: &bytes };
        let w = Weight::new(Format::Bf16, 64, 32, RowOrder::Plain, vec![part]);
        unpack_row(&w, 3, &mut [0.0; 32]);
    }
}
