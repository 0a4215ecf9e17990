//! Packing rows into panels, and reading single values of a panel back.

use std::ops::Range;

use half::bf16;

use super::Narrow;
use super::block::{self, Block};
use super::encode;
use super::plan::{CodeOrder, GROUP, PANEL, Plan, TILE};
use crate::linear::{RowOrder, panel_rows};
use crate::mat::Mat;

/// Packs `panels` of a matrix of blocks, GGUF's or of floats of 8 bits.
///
/// `w`: `n` rows of `k / block` blocks each, as a file holds them, gate rows before up rows for
/// [`RowOrder::Gated`]. `out`: the panels' bytes, all of them written.
///
/// # Panics
/// If `format` has no blocks in files, `k` is not whole blocks, or a length does not fit.
pub fn pack_blocks(
    format: Narrow,
    w: Mat<'_, u8>,
    k: usize,
    order: RowOrder,
    panels: Range<usize>,
    out: &mut [u8],
) {
    let plan = Plan::of(format);
    let bytes = block::block_bytes(format).expect("a format of blocks");
    assert_eq!(k % plan.unit_k, 0, "{format:?}: rows are whole blocks of {}", plan.unit_k);
    assert_eq!(w.cols(), k / plan.unit_k * bytes, "{format:?}: bytes of a row of {k}");
    each_tile(&plan, w.rows(), k, order, panels, out, |row, unit, block| {
        block::parse(format, &w.row(row)[unit * bytes..][..bytes], block);
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
    let k = w.cols();
    each_tile(&plan, w.rows(), k, order, panels, out, |row, unit, block| {
        let first = unit * plan.unit_k;
        encode::group(format, &w.row(row)[first..k.min(first + plan.unit_k)], block);
    });
}

/// Asks `read(row, unit, block)` for the blocks of every tile of every unit, 16 rows at a time, and writes them all.
fn each_tile(
    plan: &Plan,
    n: usize,
    k: usize,
    order: RowOrder,
    panels: Range<usize>,
    out: &mut [u8],
    mut read: impl FnMut(usize, usize, &mut Block),
) {
    let bytes = plan.panel_bytes(k);
    assert_eq!(out.len(), panels.len() * bytes, "bytes of panels {panels:?} of k = {k}");
    let mut blocks = [const { Block::ZERO }; TILE];
    for (panel, out) in panels.zip(out.chunks_exact_mut(bytes.max(1))) {
        let rows = panel_rows(order, n, panel);
        for (unit, out) in out.chunks_mut(plan.unit_bytes()).enumerate() {
            for tile in 0..2 {
                for (block, row) in blocks.iter_mut().zip(&rows[tile * TILE..]) {
                    match row {
                        Some(row) => read(*row, unit, block),
                        None => *block = Block::ZERO,
                    }
                }
                plan.put(out, tile, &blocks);
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
    /// Writes a tile's part of a unit (which may be cut to whole groups): scales and codes of 16 rows.
    fn put(&self, unit: &mut [u8], tile: usize, blocks: &[Block; TILE]) {
        let groups = (unit.len() - self.head_bytes()) / self.group_bytes();
        for (row, block) in blocks.iter().enumerate() {
            put_word(unit, tile * TILE + row, block.d);
            if self.has_second_word() {
                put_word(unit, PANEL + tile * TILE + row, block.m);
            }
        }
        for group in 0..groups {
            let at = self.locate(group).group;
            let bytes = &mut unit[at..at + self.group_bytes()];
            if self.sub_bytes() > 0 {
                for (row, block) in blocks.iter().enumerate() {
                    bytes[tile * TILE + row] = block.sub[group][0];
                    bytes[PANEL + tile * TILE + row] = block.sub[group][1];
                }
            }
            let codes = std::array::from_fn(|row| &blocks[row].codes.as_chunks().0[group]);
            self.put_codes(bytes, tile, &codes);
        }
    }

    /// Writes a tile's codes in the order that [`code_at`](Plan::code_at) tells of, whole planes at once.
    fn put_codes(&self, group: &mut [u8], tile: usize, codes: &[&[u8; GROUP]; TILE]) {
        let (low, high) = self.planes(tile);
        if self.order() == CodeOrder::ByRow {
            return put_by_row(&mut group[low..][..self.low_bytes()], codes);
        }
        let lines = by_line(codes);
        if self.low_bits == 8 {
            group[low..][..self.low_bytes()].copy_from_slice(lines.as_flattened());
        } else {
            put_plane(&mut group[low..][..self.low_bytes()], &lines, self.low_bits, 0);
        }
        if self.high_bits > 0 {
            put_plane(&mut group[high..][..self.high_bytes()], &lines, self.high_bits, self.low_bits);
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
        let m = if self.has_second_word() { get_word(&panel[place.unit..], PANEL + row) } else { 0 };
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
        flushed(self.unrounded(panel, group, row, k, affine))
    }

    /// One weight: its f32 value.
    pub(super) fn unrounded(
        &self,
        panel: &[u8],
        group: usize,
        row: usize,
        k: usize,
        affine: [(f32, f32); 2],
    ) -> f32 {
        let (scale, min) = affine[k / 16];
        scale.mul_add(self.code_value(self.code(panel, group, row, k)), min)
    }

    /// The code of one weight.
    pub(super) fn code(&self, panel: &[u8], group: usize, row: usize, k: usize) -> u8 {
        let at = self.locate(group).group;
        let (low, high) = self.planes(row / TILE);
        let bits = |plane: usize, bits: usize| {
            let (byte, shift) = self.code_at(bits, row % TILE, k);
            panel[at + plane + byte] >> shift & ((1u16 << bits) - 1) as u8
        };
        let code = bits(low, self.low_bits);
        if self.high_bits > 0 { code | bits(high, self.high_bits) << self.low_bits } else { code }
    }
}

/// Four rows' nibbles to each word, one word for each k.
fn put_by_row(out: &mut [u8], codes: &[&[u8; GROUP]; TILE]) {
    for (out, rows) in out.chunks_exact_mut(2 * GROUP).zip(codes.as_chunks::<4>().0) {
        for k in 0..GROUP {
            out[2 * k] = rows[0][k] | rows[1][k] << 4;
            out[2 * k + 1] = rows[2][k] | rows[3][k] << 4;
        }
    }
}

/// A tile's codes as half-vectors: 16 lanes are the pairs of k of eight rows.
fn by_line(codes: &[&[u8; GROUP]; TILE]) -> [[u8; TILE]; GROUP] {
    let mut lines = [[0; TILE]; GROUP];
    for (pair, line) in lines.as_flattened_mut().as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
        for (out, codes) in line.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
            *out = codes.as_chunks::<2>().0[pair];
        }
    }
    lines
}

/// A plane of `bits` bits of each code, those above the lowest `skip`.
fn put_plane(out: &mut [u8], lines: &[[u8; TILE]; GROUP], bits: usize, skip: usize) {
    let mask = ((1u16 << bits) - 1) as u8;
    for (out, lines) in out.chunks_exact_mut(4 * TILE).zip(lines.chunks_exact(32 / bits)) {
        let mut words = [0u32; TILE];
        for (i, line) in lines.iter().enumerate() {
            for (word, code) in words.iter_mut().zip(line) {
                *word |= u32::from(*code >> skip & mask) << (bits * i);
            }
        }
        for (out, word) in out.chunks_exact_mut(4).zip(words) {
            out.copy_from_slice(&word.to_le_bytes());
        }
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
