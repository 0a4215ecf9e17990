//! Packing rows into panels, and reading single values of a panel back.

use std::ops::Range;

use half::bf16;

use super::Narrow;
use super::block::{self, Block};
use super::encode;
use super::plan::{GROUP, PANEL, Plan, TILE};
use crate::linear::{RowOrder, panel_rows};
use crate::mat::Mat;

/// Packs `panels` of a matrix of GGUF blocks.
///
/// `w`: `n` rows of `k / block` blocks each, as a file holds them, gate rows before up rows for
/// [`RowOrder::Gated`]. `out`: the panels' bytes, all of them written.
///
/// # Panics
/// If `format` is not a GGUF block format, `k` is not whole blocks, or a length does not fit.
pub fn pack_blocks(
    format: Narrow,
    w: Mat<'_, u8>,
    k: usize,
    order: RowOrder,
    panels: Range<usize>,
    out: &mut [u8],
) {
    let plan = Plan::of(format);
    let bytes = block::block_bytes(format).expect("a GGUF block format");
    assert_eq!(k % plan.unit_k, 0, "{format:?}: rows are whole blocks of {}", plan.unit_k);
    assert_eq!(w.cols(), k / plan.unit_k * bytes, "{format:?}: bytes of a row of {k}");
    each_row(&plan, w.rows(), k, order, panels, out, |row, place, panel| {
        for (unit, bytes) in panel.chunks_exact_mut(plan.unit_bytes()).zip(w.row(row).chunks_exact(bytes)) {
            plan.put(unit, place, &block::parse(format, bytes), plan.unit_k);
        }
    });
}

/// Quantises `panels` of a float matrix to `Int8` or `Int4`.
///
/// `w`: `[n, k]` bf16 or f32, gate rows before up rows for [`RowOrder::Gated`]. `out`: the panels' bytes, all of
/// them written. NaN becomes zero and infinity is clamped: a loader refuses such weights before.
///
/// # Panics
/// If `format` is neither of the two, or a length does not fit.
pub fn pack_floats<T: Copy + Into<f32>>(
    format: Narrow,
    w: Mat<'_, T>,
    order: RowOrder,
    panels: Range<usize>,
    out: &mut [u8],
) {
    let plan = Plan::of(format);
    each_row(&plan, w.rows(), w.cols(), order, panels, out, |row, place, panel| {
        for (unit, values) in panel.chunks_mut(plan.unit_bytes()).zip(w.row(row).chunks(plan.unit_k)) {
            plan.put(unit, place, &encode::group(format, values), values.len());
        }
    });
}

/// Clears the panels and calls `put(row, place in its panel, panel)` for each row of the matrix that they hold.
fn each_row(
    plan: &Plan,
    n: usize,
    k: usize,
    order: RowOrder,
    panels: Range<usize>,
    out: &mut [u8],
    mut put: impl FnMut(usize, usize, &mut [u8]),
) {
    let bytes = plan.panel_bytes(k);
    assert_eq!(out.len(), panels.len() * bytes, "bytes of panels {panels:?} of k = {k}");
    out.fill(0);
    for (panel, out) in panels.zip(out.chunks_exact_mut(bytes.max(1))) {
        for (place, row) in panel_rows(order, n, panel).into_iter().enumerate() {
            if let Some(row) = row {
                put(row, place, out);
            }
        }
    }
}

/// The values of one row of a panel, as the kernels see them (rounded to bf16).
///
/// `panel`: a whole panel of rows of `out.len()` elements; `row`: 0 to 31.
pub fn unpack_panel_row(format: Narrow, panel: &[u8], row: usize, out: &mut [f32]) {
    let plan = Plan::of(format);
    assert_eq!(panel.len(), plan.panel_bytes(out.len()), "{format:?}: panel of k = {}", out.len());
    for (group, out) in out.chunks_mut(GROUP).enumerate() {
        let affine = plan.group_affine(panel, group, row);
        for (k, out) in out.iter_mut().enumerate() {
            *out = plan.value(panel, group, row, k, affine).to_f32();
        }
    }
}

impl Plan {
    /// Writes the first `len` codes of a block, and its scales, as row `row` of a unit of zeros.
    fn put(&self, unit: &mut [u8], row: usize, block: &Block, len: usize) {
        put_word(unit, row, block.d);
        if self.has_min {
            put_word(unit, PANEL + row, block.m);
        }
        for group in 0..len.div_ceil(GROUP) {
            let at = self.locate(group).group;
            let group_bytes = &mut unit[at..at + self.group_bytes()];
            if self.sub_bytes() > 0 {
                group_bytes[row] = block.sub[group][0];
                group_bytes[PANEL + row] = block.sub[group][1];
            }
            for k in 0..GROUP.min(len - group * GROUP) {
                self.put_code(group_bytes, row, k, block.codes[group * GROUP + k]);
            }
        }
    }

    fn put_code(&self, group: &mut [u8], row: usize, k: usize, code: u8) {
        let (low, high) = self.planes(row / TILE);
        let (byte, shift) = self.code_at(self.low_bits, row % TILE, k);
        // Eight bits fill their byte; fewer are cut to their plane.
        let low_mask = (1u16 << self.low_bits) - 1;
        group[low + byte] |= (code & low_mask as u8) << shift;
        if self.high_bits > 0 {
            let (byte, shift) = self.code_at(self.high_bits, row % TILE, k);
            group[high + byte] |= code >> self.low_bits << shift;
        }
    }

    /// Offsets in a group of the low and the high plane of a tile.
    pub(super) fn planes(&self, tile: usize) -> (usize, usize) {
        let low = self.sub_bytes();
        let high = low + 2 * self.low_bytes();
        (low + tile * self.low_bytes(), high + tile * self.high_bytes())
    }

    /// Scale and min of both 16 k of a group of one row of a panel.
    pub(super) fn group_affine(&self, panel: &[u8], group: usize, row: usize) -> [(f32, f32); 2] {
        let place = self.locate(group);
        let d = get_word(&panel[place.unit..], row);
        let m = if self.has_min { get_word(&panel[place.unit..], PANEL + row) } else { 0 };
        let sub = match self.sub_bytes() {
            0 => [0; 2],
            _ => [panel[place.group + row], panel[place.group + PANEL + row]],
        };
        [0, 1].map(|half| self.affine(d, m, sub, half))
    }

    /// One weight: its f32 value, rounded to bf16 once.
    pub(super) fn value(
        &self,
        panel: &[u8],
        group: usize,
        row: usize,
        k: usize,
        affine: [(f32, f32); 2],
    ) -> bf16 {
        let at = self.locate(group).group;
        let (low, high) = self.planes(row / TILE);
        let bits = |plane: usize, bits: usize| {
            let (byte, shift) = self.code_at(bits, row % TILE, k);
            panel[at + plane + byte] >> shift & ((1u16 << bits) - 1) as u8
        };
        let mut code = bits(low, self.low_bits);
        if self.high_bits > 0 {
            code |= bits(high, self.high_bits) << self.low_bits;
        }
        let (scale, min) = affine[k / 16];
        flushed(scale.mul_add(self.code_value(code), min))
    }
}

/// Rounds to bf16 as the hardware does: to nearest even, subnormals to zero.
fn flushed(value: f32) -> bf16 {
    if value.is_subnormal() { bf16::from_f32(0.0f32.copysign(value)) } else { bf16::from_f32(value) }
}

fn put_word(unit: &mut [u8], index: usize, word: u16) {
    unit[2 * index..2 * index + 2].copy_from_slice(&word.to_le_bytes());
}

fn get_word(unit: &[u8], index: usize) -> u16 {
    u16::from_le_bytes([unit[2 * index], unit[2 * index + 1]])
}
