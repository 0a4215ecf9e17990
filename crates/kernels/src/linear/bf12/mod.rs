//! bf16 weights in 12 bits each, bit for bit: what a drive and a memory have to carry is a quarter less.
//!
//! Weights of a row are of few magnitudes. So a panel keeps a base for each of its rows, somewhat above its most frequent
//! exponent, and a table of the sixteen most frequent distances of exponents from those bases. They cover all weights but some
//! in ten thousand. A weight is its sign and 7 bits of fraction, as they are, and the number of its distance in that table;
//! weights of other exponents are listed one by one. (Huffman codes of the exponents come to 11 bits, as DFloat11 has them
//! (Zhang et al. 2025), and are read one after the other; these are read 64 at a time.)
//!
//! ```text
//! panel = distances [16] u8 · number of exceptions u32 · zeros [12] · bases [32] u8
//!       · groups, one for each 32 k
//!       · exceptions u32, in order: group << 18 | place << 8 | exponent, room for 4 in each group
//! group = sign and fraction [1024] u8 · numbers of distances [512] u8
//! ```
//!
//! An exponent is its base less its distance, zero at the least: that of numbers that are zero has the distance 255.
//! The 1024 weights of a group are in the order in which the two tiles of a bf16 panel hold them, and a place counts in that
//! order. Of 64 of them (two lines of a tile) byte `i` of the numbers has that of weight `i` in its low half, and that of
//! weight `32 + i` in its high one.

mod fold;
// Loops over rows and panels run over registers: their indices are clearer than zipped iterators. So in `x86`.
#[allow(clippy::needless_range_loop)]
#[cfg(target_arch = "x86_64")]
pub(super) mod one_row;
#[cfg(test)]
mod tests;
#[allow(clippy::needless_range_loop)]
#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::Range;

pub use fold::{TooVaried, pack_bf12};
use half::bf16;

use super::pack::{GROUP, PANEL_ROWS};
use super::source::{PAIR_BYTES, PanelSource};
use crate::Isa;
#[cfg(target_arch = "x86_64")]
pub(super) use x86::Unfolded;

/// Weights of a group: 32 outputs by 32 k.
const WEIGHTS: usize = PANEL_ROWS * GROUP;
/// Bytes before the first group.
const HEAD_BYTES: usize = 64;
/// Distances of a table.
const TABLE: usize = 16;
/// Where a panel's bases begin.
const BASES_AT: usize = HEAD_BYTES - PANEL_ROWS;
/// Weights of a line of a tile: two of each of its 16 rows.
const LINE: usize = 32;
/// Lines of a tile.
const LINES: usize = 16;
/// Weights whose numbers share bytes.
const TWO_LINES: usize = 2 * LINE;
/// Bytes of a group: signs and fractions, then numbers.
const GROUP_BYTES: usize = WEIGHTS + WEIGHTS / 2;
/// Exceptions that a panel has room for, for each of its groups: one weight in 256.
const EXCEPTIONS: usize = 4;
/// Bits below the group of an exception.
const GROUP_SHIFT: u32 = 18;
/// Groups of a panel at most: what an exception can name.
const GROUPS_MAX: usize = 1 << (32 - GROUP_SHIFT);

/// Bytes of one panel of `k` input columns.
pub(super) fn panel_bytes(k: usize) -> usize {
    let groups = k.div_ceil(GROUP);
    HEAD_BYTES + groups * GROUP_BYTES + (groups * EXCEPTIONS * size_of::<u32>()).next_multiple_of(64)
}

/// Where a group of a panel begins.
fn group_at(group: usize) -> usize {
    HEAD_BYTES + group * GROUP_BYTES
}

/// Of a panel's 32.
fn row_of(place: usize) -> usize {
    place / (LINE * LINES) * (PANEL_ROWS / 2) + place % LINE / 2
}

fn exponent(bits: u16) -> u8 {
    (bits >> 7) as u8
}

fn sign_and_fraction(bits: u16) -> u8 {
    (bits >> 8 & 0x80) as u8 | (bits & 0x7f) as u8
}

fn joined(sign_and_fraction: u8, exponent: u8) -> u16 {
    let bits = u16::from(sign_and_fraction);
    (bits & 0x80) << 8 | u16::from(exponent) << 7 | bits & 0x7f
}

/// Of a group's numbers that of the weight at `place`.
fn number_at(codes: &[u8], place: usize) -> u8 {
    codes[place / TWO_LINES * LINE + place % LINE] >> (place % TWO_LINES / LINE * 4) & 15
}

fn place_of(entry: &[u8; 4]) -> usize {
    (u32::from_le_bytes(*entry) >> 8) as usize % WEIGHTS
}

fn group_of(entry: &[u8; 4]) -> usize {
    (u32::from_le_bytes(*entry) >> GROUP_SHIFT) as usize
}

/// A stored panel, taken apart.
#[derive(Clone, Copy)]
struct Panel<'a> {
    table: &'a [u8; TABLE],
    bases: &'a [u8; PANEL_ROWS],
    groups: &'a [[u8; GROUP_BYTES]],
    /// Exceptions of all groups, in order.
    list: &'a [[u8; 4]],
}

impl<'a> Panel<'a> {
    fn new(stored: &'a [u8]) -> Panel<'a> {
        let (head, rest) = stored.split_at(HEAD_BYTES);
        // What rounds the list up is less than a group.
        let groups = rest.len() / (GROUP_BYTES + EXCEPTIONS * size_of::<u32>());
        let (body, list) = rest.split_at(groups * GROUP_BYTES);
        let table = head.first_chunk().expect("a head has a table");
        let bases = head.last_chunk().expect("and bases");
        let count = u32::from_le_bytes([head[TABLE], head[TABLE + 1], head[TABLE + 2], head[TABLE + 3]]);
        let list = list.as_chunks().0;
        Panel { table, bases, groups: body.as_chunks().0, list: &list[..(count as usize).min(list.len())] }
    }

    /// Puts the exponents of exceptions in `groups` where they belong. `tiles`: those of these groups.
    fn patch(mut self, groups: Range<usize>, tiles: &mut [u16]) {
        let first = self.list.partition_point(|entry| group_of(entry) < groups.start);
        self.list = &self.list[first..];
        for (group, tiles) in groups.zip(tiles.as_chunks_mut().0) {
            self.patch_next(group, tiles);
        }
    }

    /// The same in one group, exceptions of those before being taken off the list: these are too.
    #[inline(always)]
    fn patch_next(&mut self, group: usize, tiles: &mut [u16; WEIGHTS]) {
        while let Some((entry, rest)) = self.list.split_first().filter(|(entry, _)| group_of(entry) == group)
        {
            let weight = &mut tiles[place_of(entry)];
            *weight = *weight & 0x807f | u16::from(entry[0]) << 7;
            self.list = rest;
        }
    }

    /// Whether a group has exceptions, those of groups before being off the list.
    #[inline(always)]
    fn is_next(&self, group: usize) -> bool {
        self.list.first().is_some_and(|entry| group_of(entry) == group)
    }

    /// Unfolds a group by plain loops, but for its exceptions.
    fn unfold(&self, group: usize, tiles: &mut [u16]) {
        let (fractions, codes) = self.groups[group].split_at(WEIGHTS);
        for (place, (out, fraction)) in tiles.iter_mut().zip(fractions).enumerate() {
            let distance = self.table[usize::from(number_at(codes, place))];
            *out = joined(*fraction, self.bases[row_of(place)].saturating_sub(distance));
        }
    }
}

/// Panels of bf16 in 12 bits for drivers of tiles, unfolded into their scratch by this family.
pub(super) struct Bf12Panels(pub(super) Isa);

impl PanelSource for Bf12Panels {
    const STORED_AS_TILES: bool = false;

    #[inline(always)]
    fn behind(&self, panel: &[u8], groups: &Range<usize>) -> Range<*const u8> {
        let at = |group: usize| panel.as_ptr().wrapping_add(group_at(group));
        at(groups.end)..at(groups.end + groups.len())
    }

    fn tiles<'s>(&self, panel: &'s [u8], groups: Range<usize>, scratch: &'s mut [u8]) -> &'s [u8] {
        let tiles = &mut scratch[..groups.len() * PAIR_BYTES];
        unfold(self.0, &Panel::new(panel), groups, bytemuck::cast_slice_mut(tiles));
        tiles
    }
}

/// Groups of a panel as the tiles that a bf16 panel has there.
fn unfold(isa: Isa, panel: &Panel<'_>, groups: Range<usize>, tiles: &mut [u16]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has AVX2.
        Isa::Avx2 => unsafe { x86::unfold_256(panel, groups.clone(), tiles) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has AVX-512.
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => unsafe { x86::unfold_512(panel, groups.clone(), tiles) },
        _ => {
            for (group, tiles) in groups.clone().zip(tiles.chunks_exact_mut(WEIGHTS)) {
                panel.unfold(group, tiles);
            }
        }
    }
    panel.patch(groups, tiles);
}

/// The values of one row of a panel of `out.len()` columns. `row`: 0 to 31.
pub(super) fn unpack_row(panel: &[u8], row: usize, out: &mut [f32]) {
    let panel = Panel::new(panel);
    let exponents = panel.table.map(|distance| panel.bases[row].saturating_sub(distance));
    let first = row / (PANEL_ROWS / 2) * LINE * LINES + row % (PANEL_ROWS / 2) * 2;
    for (group, out) in panel.groups.iter().zip(out.chunks_mut(GROUP)) {
        for (k, out) in out.iter_mut().enumerate() {
            let place = first + k / 2 * LINE + k % 2;
            let exponent = exponents[usize::from(number_at(&group[WEIGHTS..], place))];
            *out = bf16::from_bits(joined(group[place], exponent)).to_f32();
        }
    }
    for entry in panel.list.iter().filter(|entry| row_of(place_of(entry)) == row) {
        let place = place_of(entry);
        let k = group_of(entry) * GROUP + place % (LINE * LINES) / LINE * 2 + place % 2;
        // Padding may be an exception too.
        if let Some(out) = out.get_mut(k) {
            let fraction = panel.groups[group_of(entry)][place];
            *out = bf16::from_bits(joined(fraction, entry[0])).to_f32();
        }
    }
}
