//! From tiles of bf16 to 12 bits.

use std::fmt;
use std::ops::Range;

use half::bf16;

use super::{
    BASES_AT, GROUP_BYTES, GROUP_SHIFT, GROUPS_MAX, HEAD_BYTES, LINE, LINES, TABLE, TWO_LINES, WEIGHTS,
    exponent, panel_bytes, row_of, sign_and_fraction,
};
use crate::linear::pack::{PANEL_ROWS, pack_bf16};
use crate::linear::source::PAIR_BYTES;
use crate::linear::types::{Format, RowOrder};
use crate::mat::Mat;

/// Weights that 12 bits cannot hold: more of a panel than it has room for are of rare exponents.
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
    let mut tiles = vec![0; crate::linear::panel_bytes(Format::Bf16, w.cols())];
    for (panel, out) in panels.zip(out.chunks_exact_mut(bytes)) {
        pack_bf16(w, order, panel..panel + 1, &mut tiles);
        fold(&tiles, out).map_err(|[exceptions, room]| TooVaried { panel, exceptions, room })?;
    }
    Ok(())
}

/// One panel from its tiles; else how many exceptions it has, and has room for.
fn fold(tiles: &[u8], out: &mut [u8]) -> Result<(), [usize; 2]> {
    let groups = tiles.len() / PAIR_BYTES;
    let code = Code::of(tiles);
    let (head, rest) = out.split_at_mut(HEAD_BYTES);
    let (body, list) = rest.split_at_mut(groups * GROUP_BYTES);
    // Of more groups than an exception can name none has any.
    let room = if groups > GROUPS_MAX { 0 } else { list.len() / 4 };
    let mut exceptions = 0;
    for (group, (tiles, out)) in
        tiles.chunks_exact(PAIR_BYTES).zip(body.chunks_exact_mut(GROUP_BYTES)).enumerate()
    {
        let (fractions, codes) = out.split_at_mut(WEIGHTS);
        let weights = tiles.as_chunks::<2>().0;
        for (out, weight) in fractions.iter_mut().zip(weights) {
            *out = sign_and_fraction(u16::from_le_bytes(*weight));
        }
        if !code.fold(weights, codes) {
            continue;
        }
        for (place, weight) in weights.iter().enumerate() {
            let exponent = exponent(u16::from_le_bytes(*weight));
            if code.number(row_of(place), exponent) == RARE {
                if exceptions < room {
                    let entry = (group << GROUP_SHIFT | place << 8) as u32 | u32::from(exponent);
                    list[4 * exceptions..][..4].copy_from_slice(&entry.to_le_bytes());
                }
                exceptions += 1;
            }
        }
    }
    if exceptions > room {
        return Err([exceptions, room]);
    }
    head.fill(0);
    head[..TABLE].copy_from_slice(&code.table);
    head[TABLE..TABLE + 4].copy_from_slice(&(exceptions as u32).to_le_bytes());
    head[BASES_AT..].copy_from_slice(&code.bases);
    list[4 * exceptions..].fill(0);
    Ok(())
}

/// The number of an exponent that a table has not.
const RARE: u8 = 16;
/// The distance of zeros.
const OF_ZERO: u8 = 255;
/// How far a row's base is above its most frequent exponent: larger weights are exceptions.
const ABOVE: u8 = 6;

/// How a panel's exponents are numbered.
struct Code {
    table: [u8; TABLE],
    bases: [u8; PANEL_ROWS],
    /// Of each distance its number.
    numbers: [u8; 256],
}

impl Code {
    /// That of these tiles. Of what is as frequent the smaller exponent makes the base, the smaller distance the table.
    fn of(tiles: &[u8]) -> Code {
        let mut counts = [[0u32; 256]; PANEL_ROWS];
        for (line, weights) in tiles.as_chunks::<{ 2 * LINE }>().0.iter().enumerate() {
            let rows = &mut counts[line / LINES % 2 * (PANEL_ROWS / 2)..][..PANEL_ROWS / 2];
            for (counts, pair) in rows.iter_mut().zip(weights.as_chunks::<4>().0) {
                counts[usize::from(exponent(u16::from_le_bytes([pair[0], pair[1]])))] += 1;
                counts[usize::from(exponent(u16::from_le_bytes([pair[2], pair[3]])))] += 1;
            }
        }
        let bases = std::array::from_fn(|row| {
            // Of a row of zeros any will do.
            let frequent = (1..=254u8).rev().max_by_key(|exponent| counts[row][usize::from(*exponent)]);
            frequent.unwrap_or(1).saturating_add(ABOVE).min(254)
        });
        let mut code = Code { table: [0; TABLE], bases, numbers: [RARE; 256] };
        let mut distances = [0u32; 256];
        for (row, counts) in counts.iter().enumerate() {
            for exponent in 0..=bases[row] {
                distances[usize::from(code.distance(row, exponent))] += counts[usize::from(exponent)];
            }
        }
        let mut order: Vec<u8> = (0..=255).collect();
        order.sort_by_key(|distance| std::cmp::Reverse(distances[usize::from(*distance)]));
        for (number, distance) in order.into_iter().take(TABLE).enumerate() {
            code.table[number] = distance;
            code.numbers[usize::from(distance)] = number as u8;
        }
        code
    }

    /// Of an exponent that is not above its row's base.
    fn distance(&self, row: usize, exponent: u8) -> u8 {
        if exponent == 0 { OF_ZERO } else { self.bases[row] - exponent }
    }

    fn number(&self, row: usize, exponent: u8) -> u8 {
        match exponent {
            exponent if exponent > self.bases[row] => RARE,
            exponent => self.numbers[usize::from(self.distance(row, exponent))],
        }
    }

    /// Writes the numbers of a group's exponents; whether some of its weights are exceptions.
    fn fold(&self, weights: &[[u8; 2]], codes: &mut [u8]) -> bool {
        let mut all = 0;
        for (two, (lines, out)) in
            weights.chunks_exact(TWO_LINES).zip(codes.chunks_exact_mut(LINE)).enumerate()
        {
            let (low, high) = lines.split_at(LINE);
            for (i, ((low, high), out)) in low.iter().zip(high).zip(out).enumerate() {
                let row = row_of(two * TWO_LINES + i);
                let number = |weight: &[u8; 2]| self.number(row, exponent(u16::from_le_bytes(*weight)));
                let (low, high) = (number(low), number(high));
                all |= low | high;
                *out = low & 15 | high << 4;
            }
        }
        all & RARE != 0
    }
}
