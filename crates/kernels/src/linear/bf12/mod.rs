//! bf16 weights in 12 bits each, bit for bit: what a drive and a memory have to carry is a quarter less.
//!
//! Weights of a trained matrix are of few magnitudes: sixteen exponents cover all but some in ten thousand. So a panel keeps a
//! table of its sixteen most frequent exponents. A weight is its sign and 7 bits of fraction, as they are, and the number of
//! its exponent in that table; those of other exponents are listed one by one. (Huffman codes of the exponents come to 11
//! bits, as DFloat11 has them: Zhang et al. 2025, section 2; they are read bit after bit, these 64 weights at a time.)
//!
//! ```text
//! panel = table [16] u8 · number of exceptions u32 · zeros up to 64 bytes
//!       · groups, one for each 32 k
//!       · exceptions u32, in order: group << 18 | place << 8 | exponent, room for 4 in each group
//! group = sign and fraction [1024] u8 · numbers of exponents [512] u8
//! ```
//!
//! The 1024 weights of a group are in the order in which the two tiles of a bf16 panel hold them, and a place counts in that
//! order. Of 64 of them (two lines of a tile) byte `i` of the numbers has that of weight `i` in its low half, and that of
//! weight `32 + i` in its high one.

#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;
use std::ops::Range;

use half::bf16;

use super::pack::{GROUP, PANEL_ROWS, pack_bf16};
use super::source::{PAIR_BYTES, PanelSource};
use super::types::{Format, RowOrder};
use crate::Isa;
use crate::mat::Mat;
#[cfg(target_arch = "x86_64")]
pub(super) use x86::Unfolded;

/// Weights of a group: 32 outputs by 32 k.
const WEIGHTS: usize = PANEL_ROWS * GROUP;
/// Bytes before the first group.
const HEAD_BYTES: usize = 64;
/// Exponents of a table.
const TABLE: usize = 16;
/// Weights whose exponent numbers share 32 bytes: two lines.
const TWO_LINES: usize = 64;
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

/// Weights that 12 bits cannot hold: more of a panel than it has room for are of exponents beside its sixteen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooVaried {
    /// The panel.
    pub panel: usize,
    /// Its weights of other exponents.
    pub exceptions: usize,
    /// How many it has room for.
    pub room: usize,
}

impl fmt::Display for TooVaried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooVaried { panel, exceptions, room } = self;
        write!(f, "panel {panel} has {exceptions} weights of rare exponents, and room for {room}")
    }
}

/// Packs `panels` of a bf16 matrix. `w: [n, k]`, gate rows before up rows for [`RowOrder::Gated`].
///
/// # Errors
/// [`TooVaried`], with `out` half done.
///
/// # Panics
/// If `out` is not as long as those panels.
pub fn pack_bf12(
    w: Mat<'_, bf16>,
    order: RowOrder,
    panels: Range<usize>,
    out: &mut [u8],
) -> Result<(), TooVaried> {
    let bytes = panel_bytes(w.cols());
    assert_eq!(out.len(), panels.len() * bytes, "bytes of panels {panels:?}");
    let mut tiles = vec![0; super::panel_bytes(Format::Bf16, w.cols())];
    for (panel, out) in panels.zip(out.chunks_exact_mut(bytes)) {
        pack_bf16(w, order, panel..panel + 1, &mut tiles);
        fold(&tiles, out).map_err(|[exceptions, room]| TooVaried { panel, exceptions, room })?;
    }
    Ok(())
}

/// One panel from its tiles; else how many exceptions it has, and has room for.
fn fold(tiles: &[u8], out: &mut [u8]) -> Result<(), [usize; 2]> {
    let (table, numbers) = exponents(tiles);
    let groups = tiles.len() / PAIR_BYTES;
    let room = if groups > GROUPS_MAX { 0 } else { (out.len() - HEAD_BYTES - groups * GROUP_BYTES) / 4 };
    let (head, rest) = out.split_at_mut(HEAD_BYTES);
    let (body, list) = rest.split_at_mut(groups * GROUP_BYTES);
    let mut exceptions = 0;
    for (group, (tiles, out)) in
        tiles.chunks_exact(PAIR_BYTES).zip(body.chunks_exact_mut(GROUP_BYTES)).enumerate()
    {
        let (fractions, codes) = out.split_at_mut(WEIGHTS);
        for (place, (weight, out)) in tiles.as_chunks::<2>().0.iter().zip(fractions).enumerate() {
            let bits = u16::from_le_bytes(*weight);
            *out = sign_and_fraction(bits);
            if numbers[usize::from(exponent(bits))].is_none() {
                if let Some(entry) = list.get_mut(4 * exceptions..4 * exceptions + 4) {
                    entry.copy_from_slice(&entry_of(group, place, exponent(bits)).to_le_bytes());
                }
                exceptions += 1;
            }
        }
        let number = |weight: &[u8; 2]| numbers[usize::from(exponent(u16::from_le_bytes(*weight)))].unwrap_or(0);
        for (lines, out) in
            tiles.chunks_exact(2 * TWO_LINES).zip(codes.chunks_exact_mut(TWO_LINES / 2))
        {
            let (low, high) = lines.as_chunks::<2>().0.split_at(TWO_LINES / 2);
            for ((low, high), out) in low.iter().zip(high).zip(out) {
                *out = number(low) | number(high) << 4;
            }
        }
    }
    if exceptions > room || groups > GROUPS_MAX {
        return Err([exceptions, room]);
    }
    head.fill(0);
    head[..TABLE].copy_from_slice(&table);
    head[TABLE..TABLE + 4].copy_from_slice(&(exceptions as u32).to_le_bytes());
    list[4 * exceptions..].fill(0);
    Ok(())
}

/// The sixteen most frequent exponents of tiles, the most frequent first, and of each exponent its number among them.
fn exponents(tiles: &[u8]) -> ([u8; TABLE], [Option<u8>; 256]) {
    let mut counts = [0u32; 256];
    for weight in tiles.as_chunks::<2>().0 {
        counts[usize::from(exponent(u16::from_le_bytes(*weight)))] += 1;
    }
    let mut order: Vec<u8> = (0..=255).collect();
    order.sort_by_key(|exponent| std::cmp::Reverse(counts[usize::from(*exponent)]));
    let (mut table, mut numbers) = ([0; TABLE], [None; 256]);
    for (number, exponent) in order.into_iter().take(TABLE).enumerate() {
        table[number] = exponent;
        numbers[usize::from(exponent)] = Some(number as u8);
    }
    (table, numbers)
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

fn entry_of(group: usize, place: usize, exponent: u8) -> u32 {
    (group << GROUP_SHIFT | place << 8) as u32 | u32::from(exponent)
}

/// A stored panel, taken apart.
#[derive(Clone, Copy)]
struct Panel<'a> {
    table: &'a [u8; TABLE],
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
        let count = u32::from_le_bytes([head[TABLE], head[TABLE + 1], head[TABLE + 2], head[TABLE + 3]]);
        let list = list.as_chunks().0;
        Panel { table, groups: body.as_chunks().0, list: &list[..(count as usize).min(list.len())] }
    }

    /// Puts the exponents of exceptions in `groups` where they belong. `tiles`: those of these groups.
    #[inline(always)]
    fn patch(&self, groups: &Range<usize>, tiles: &mut [u16]) {
        let group = |entry: &[u8; 4]| (u32::from_le_bytes(*entry) >> GROUP_SHIFT) as usize;
        let first = self.list.partition_point(|entry| group(entry) < groups.start);
        for entry in self.list[first..].iter().take_while(|entry| group(entry) < groups.end) {
            let place = (u32::from_le_bytes(*entry) >> 8) as usize % WEIGHTS;
            let weight = &mut tiles[(group(entry) - groups.start) * WEIGHTS + place];
            *weight = *weight & 0x807f | u16::from(entry[0]) << 7;
        }
    }

    /// Unfolds a group by plain loops, but for its exceptions.
    fn unfold(&self, group: usize, tiles: &mut [u16]) {
        let (fractions, codes) = self.groups[group].split_at(WEIGHTS);
        let lines = tiles.chunks_exact_mut(TWO_LINES).zip(fractions.chunks_exact(TWO_LINES));
        for ((out, fractions), codes) in lines.zip(codes.chunks_exact(TWO_LINES / 2)) {
            for (i, (out, fraction)) in out.iter_mut().zip(fractions).enumerate() {
                let code = codes[i % codes.len()] >> (4 * (i / codes.len())) & 15;
                *out = joined(*fraction, self.table[usize::from(code)]);
            }
        }
    }
}

/// Panels of bf16 in 12 bits for drivers of tiles, unfolded into their scratch by this family.
pub(super) struct Bf12Panels(pub(super) Isa);

impl PanelSource for Bf12Panels {
    const STORED_AS_TILES: bool = false;

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
    panel.patch(&groups, tiles);
}

/// The values of one row of a panel of `out.len()` columns. `row`: 0 to 31.
pub(super) fn unpack_row(panel: &[u8], row: usize, out: &mut [f32]) {
    let panel = Panel::new(panel);
    let mut tiles = [0; WEIGHTS];
    for (group, out) in out.chunks_mut(GROUP).enumerate() {
        panel.unfold(group, &mut tiles);
        panel.patch(&(group..group + 1), &mut tiles);
        for (k, out) in out.iter_mut().enumerate() {
            let at = row / 16 * (WEIGHTS / 2) + k / 2 * 32 + row % 16 * 2 + k % 2;
            *out = bf16::from_bits(tiles[at]).to_f32();
        }
    }
}
