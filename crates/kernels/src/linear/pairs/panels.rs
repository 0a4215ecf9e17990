//! What the driver multiplies: how a format wants x packed, and how its panels meet it.

use std::ops::Range;

use half::bf16;

use super::product::{Fetch, ROW_BYTES, ROWS, Start, multiply};
use crate::linear::epilogue::Sums;
use crate::linear::rows::copy_tiles;
use crate::linear::source::{Bf16Panels, PAIR_BYTES, PanelSource};
use crate::mat::Mat;

/// A stored format. All of this runs on a machine with AVX-512, bf16 products and permutations of bytes.
pub(crate) trait Panels {
    /// Whether panels are multiplied as they are stored.
    const AS_STORED: bool;
    /// Whether one band is multiplied by whole panels (see [`stream`](Panels::stream)).
    const STREAMED: bool;
    /// Rows of a band at most, 12 or fewer: what fits the registers.
    const BAND_ROWS: usize;
    /// Bytes of a row of x in a group of k.
    const ROW_BYTES: usize;
    /// Bytes of a group of a panel as it is multiplied.
    const GROUP_BYTES: usize;

    /// Where what is stored of the groups behind these lies, as [`PanelSource::behind`] has it.
    #[inline(always)]
    fn behind(_stored: &[u8], _groups: &Range<usize>) -> Range<*const u8> {
        std::ptr::null()..std::ptr::null()
    }

    /// Packs rows of x, for each of `groups` groups one after the other.
    ///
    /// `out`: [`ROW_BYTES`](Panels::ROW_BYTES) for each row of each group.
    fn pack(x: Mat<'_, bf16>, rows: Range<usize>, groups: usize, out: &mut [u8]);

    /// These groups of a stored panel as they are multiplied; where that is not as they are stored, in `scratch`.
    ///
    /// `scratch`: [`GROUP_BYTES`](Panels::GROUP_BYTES) for each group, aligned to 64.
    ///
    /// # Safety
    /// The machine has these features.
    unsafe fn chunk<'s>(stored: &'s [u8], groups: Range<usize>, scratch: &'s mut [u8]) -> &'s [u8];

    /// `sums += x * w` over `groups` groups.
    ///
    /// # Safety
    /// The machine has these features; `x` points at as many groups of `rows` packed rows (of one band), `w` at as many of a
    /// chunk, `sums` at one for each row.
    unsafe fn multiply(
        rows: usize,
        start: Start,
        x: *const u8,
        w: *const u8,
        groups: usize,
        sums: *mut Sums,
        fetch: Fetch,
    );

    /// `sums = x * w` of one band by a whole panel.
    ///
    /// # Safety
    /// The machine has these features; `x` points at `groups` groups of `rows` packed rows, `stored` is a panel of as many,
    /// `sums` points at one for each row.
    unsafe fn stream(_rows: usize, _x: *const u8, _stored: &[u8], _groups: usize, _sums: *mut Sums) {
        unreachable!("these panels are not streamed")
    }

    /// Puts the complete sums of rows into the order of outputs, where they are not.
    ///
    /// # Safety
    /// The machine has these features.
    #[inline(always)]
    unsafe fn put_in_order(_sums: &mut [Sums]) {}
}

/// Runs an expression with a constant that is the number of rows of a band, one of those that are listed.
macro_rules! with_rows {
    ($rows:expr, [$($number:literal),+], $constant:ident => $run:expr) => {
        match $rows {
            $($number => {
                const $constant: usize = $number;
                $run
            })+
            other => unreachable!("{other} rows in a band"),
        }
    };
}
pub(crate) use with_rows;

/// How far ahead of their use weights are fetched that are used once.
const AHEAD_BYTES: usize = 1024;

/// Panels of bf16.
pub(crate) struct Tiles;

impl Panels for Tiles {
    const AS_STORED: bool = true;
    const STREAMED: bool = true;
    const BAND_ROWS: usize = ROWS;
    const ROW_BYTES: usize = ROW_BYTES;
    const GROUP_BYTES: usize = PAIR_BYTES;

    #[inline(always)]
    fn behind(stored: &[u8], groups: &Range<usize>) -> Range<*const u8> {
        Bf16Panels.behind(stored, groups)
    }

    fn pack(x: Mat<'_, bf16>, rows: Range<usize>, groups: usize, out: &mut [u8]) {
        copy_tiles(x, rows.start, rows.len(), 0..groups, bytemuck::cast_slice_mut(out));
    }

    #[inline(always)]
    unsafe fn chunk<'s>(stored: &'s [u8], groups: Range<usize>, _scratch: &'s mut [u8]) -> &'s [u8] {
        &stored[groups.start * PAIR_BYTES..groups.end * PAIR_BYTES]
    }

    #[inline(always)]
    unsafe fn multiply(
        rows: usize,
        start: Start,
        x: *const u8,
        w: *const u8,
        groups: usize,
        sums: *mut Sums,
        fetch: Fetch,
    ) {
        // SAFETY: passed on from the caller.
        unsafe {
            with_rows!(rows, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], R => {
                multiply::<R, 1>(start, x, w, groups, sums, fetch);
            });
        }
    }

    #[inline(always)]
    unsafe fn stream(rows: usize, x: *const u8, stored: &[u8], groups: usize, sums: *mut Sums) {
        let w = stored.as_ptr();
        let fetch = Fetch { at: w.wrapping_add(AHEAD_BYTES), step: 128 };
        // SAFETY: passed on from the caller.
        unsafe {
            with_rows!(rows, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], R => {
                multiply::<R, 2>(Start::Zero, x, w, groups, sums, fetch);
            });
        }
    }
}
