//! The tile registers of a thread, configured in one place.
//!
//! The compiler uses no tile register itself: between configuration and release they keep their values from
//! one assembly block to the next, so the kernels' blocks do not declare them.

use std::arch::asm;

/// Rows of a full tile.
pub(crate) const TILE_ROWS: usize = 16;
/// Bytes of a full row.
pub(crate) const ROW_BYTES: usize = 64;

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// The tile registers of this thread, configured until dropped (so that a context switch need not save them).
pub(crate) struct Tiles(());

impl Tiles {
    /// Eight full tiles: 16 rows of 64 bytes.
    ///
    /// # Safety
    /// The machine has AMX and the process may use it; this thread has no other `Tiles`.
    pub(crate) unsafe fn full() -> Tiles {
        // SAFETY: passed on from the caller.
        unsafe { Tiles::new([ROW_BYTES; 8], [TILE_ROWS; 8]) }
    }

    /// Eight tiles of so many bytes a row and so many rows.
    ///
    /// # Safety
    /// As for [`full`](Tiles::full).
    ///
    /// # Panics
    /// If one is larger than a tile.
    pub(crate) unsafe fn new(row_bytes: [usize; 8], rows: [usize; 8]) -> Tiles {
        assert!(
            row_bytes.iter().all(|bytes| *bytes <= ROW_BYTES) && rows.iter().all(|rows| *rows <= TILE_ROWS)
        );
        let mut config =
            Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for i in 0..8 {
            (config.row_bytes[i], config.rows[i]) = (row_bytes[i] as u16, rows[i] as u8);
        }
        // SAFETY: the caller has AMX; the operand is a valid configuration of 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly)) };
        Tiles(())
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: this thread configured its tiles in `new`.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
