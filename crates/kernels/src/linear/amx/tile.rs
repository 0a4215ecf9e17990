//! The tile instructions: configuration, and the loops that must stay inside one assembly block because
//! the compiler knows nothing of tile registers.
//!
//! Left operands are tiles of x: up to 16 rows of 64 bytes (32 k). Right operands are weight tiles as
//! `pack_bf16` lays them out. Sums are rows of 32 floats.

use std::arch::asm;

use crate::linear::epilogue::Sums;
use crate::linear::pack::{PANEL_ROWS, TILE_BYTES};
use crate::linear::source::PAIR_BYTES;
pub(super) use crate::tiles::{ROW_BYTES, TILE_ROWS, Tiles};

/// Bytes from one row of sums to the next.
const SUMS_BYTES: usize = PANEL_ROWS * 4;
/// How far ahead of its use a weight is fetched when it is used once.
const AHEAD_BYTES: usize = 1024;

/// Whether a product starts at zero or adds to the sums that are there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    Zero,
    Sums,
}

/// One row of tiles by one panel: `sums += x * w` over `groups` groups of 32 k.
///
/// # Safety
/// `x` points at `groups` tiles `x_step` bytes apart, `w` at `groups` pairs of tiles, `sums` at as many
/// rows as the tiles were configured for.
pub(super) unsafe fn multiply_1(
    _: &Tiles,
    start: Start,
    x: *const u8,
    x_step: usize,
    w: *const u8,
    groups: usize,
    sums: *mut Sums,
) {
    // SAFETY: loads and stores stay inside what the caller promises; prefetches cannot fault; every tile
    // register is declared clobbered.
    unsafe {
        asm!(
            "tilezero tmm0", "tilezero tmm1",
            "test {start:e}, {start:e}", "jz 2f",
            "tileloadd tmm0, [{c} + {cs}]",
            "tileloadd tmm1, [{c} + {cs} + 64]",
            "2:",
            "tileloadd tmm6, [{x} + {s}]",
            "tileloadd tmm7, [{w} + {s}]",
            ".irp o,0,64,128,192,256,320,384,448,512,576,640,704,768,832,896,960",
            "prefetcht1 [{w} + {ahead} + \\o]",
            ".endr",
            "tdpbf16ps tmm0, tmm6, tmm7",
            "tileloadd tmm7, [{w} + {s} + 1024]",
            ".irp o,0,64,128,192,256,320,384,448,512,576,640,704,768,832,896,960",
            "prefetcht1 [{w} + {ahead} + 1024 + \\o]",
            ".endr",
            "tdpbf16ps tmm1, tmm6, tmm7",
            "add {x}, {xs}",
            "add {w}, {pair}",
            "dec {n}",
            "jnz 2b",
            "tilestored [{c} + {cs}], tmm0",
            "tilestored [{c} + {cs} + 64], tmm1",
            start = in(reg) (start == Start::Sums) as u32,
            x = inout(reg) x => _, xs = in(reg) x_step,
            w = inout(reg) w => _, n = inout(reg) groups => _,
            c = in(reg) sums, s = in(reg) ROW_BYTES, cs = in(reg) SUMS_BYTES,
            pair = const PAIR_BYTES, ahead = const AHEAD_BYTES,
            out("tmm0") _, out("tmm1") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// One row of tiles by three panels at once, all of k in registers: three streams of weights keep more
/// of them on the way than one does. `sums[i] = x * w[i]`.
///
/// # Safety
/// As [`multiply_1`], for each of the three.
pub(super) unsafe fn multiply_3(
    _: &Tiles,
    x: *const u8,
    x_step: usize,
    w: [*const u8; 3],
    groups: usize,
    sums: [*mut Sums; 3],
) {
    macro_rules! step {
        ($w:literal, $first:literal, $second:literal) => {
            concat!(
                "tileloadd tmm7, [{",
                $w,
                "} + {s}]\n",
                ".irp o,0,64,128,192,256,320,384,448,512,576,640,704,768,832,896,960\n",
                "prefetcht1 [{",
                $w,
                "} + {ahead} + \\o]\n",
                ".endr\n",
                "tdpbf16ps ",
                $first,
                ", tmm6, tmm7\n",
                "tileloadd tmm7, [{",
                $w,
                "} + {s} + 1024]\n",
                ".irp o,0,64,128,192,256,320,384,448,512,576,640,704,768,832,896,960\n",
                "prefetcht1 [{",
                $w,
                "} + {ahead} + 1024 + \\o]\n",
                ".endr\n",
                "tdpbf16ps ",
                $second,
                ", tmm6, tmm7\n",
                "add {",
                $w,
                "}, {pair}\n",
            )
        };
    }
    // SAFETY: as in `multiply_1`.
    unsafe {
        asm!(
            "tilezero tmm0", "tilezero tmm1", "tilezero tmm2",
            "tilezero tmm3", "tilezero tmm4", "tilezero tmm5",
            "2:",
            "tileloadd tmm6, [{x} + {s}]",
            step!("w0", "tmm0", "tmm1"),
            step!("w1", "tmm2", "tmm3"),
            step!("w2", "tmm4", "tmm5"),
            "add {x}, {xs}",
            "dec {n}",
            "jnz 2b",
            "mov {s:e}, {sums_bytes}",
            "tilestored [{c0} + {s}], tmm0",
            "tilestored [{c0} + {s} + 64], tmm1",
            "tilestored [{c1} + {s}], tmm2",
            "tilestored [{c1} + {s} + 64], tmm3",
            "tilestored [{c2} + {s}], tmm4",
            "tilestored [{c2} + {s} + 64], tmm5",
            x = inout(reg) x => _, xs = in(reg) x_step,
            w0 = inout(reg) w[0] => _, w1 = inout(reg) w[1] => _, w2 = inout(reg) w[2] => _,
            n = inout(reg) groups => _,
            c0 = in(reg) sums[0], c1 = in(reg) sums[1], c2 = in(reg) sums[2],
            s = inout(reg) ROW_BYTES => _, sums_bytes = const SUMS_BYTES,
            pair = const PAIR_BYTES, ahead = const AHEAD_BYTES,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// The registers of one panel's sums with `ROWS` rows of tiles (one or two) between `begin` and `end`: what
/// the processor has to do beside the products may stand between the steps, and runs while they do.
pub(super) struct Product<'a> {
    /// Full ones.
    pub(super) _tiles: &'a Tiles,
}

impl Product<'_> {
    /// Sums of zero, or those that are there.
    ///
    /// # Safety
    /// The tiles are full; `sums` points at 16 rows for each row of tiles.
    #[inline(always)]
    pub(super) unsafe fn begin<const ROWS: usize>(&self, start: Start, sums: *const Sums) {
        // SAFETY: the loads stay inside what the caller promises; the compiler uses no tile register.
        unsafe {
            match (start, ROWS) {
                (Start::Zero, 1) => asm!("tilezero tmm0", "tilezero tmm1", options(nostack, nomem)),
                (Start::Zero, _) => asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    options(nostack, nomem)
                ),
                (Start::Sums, 1) => asm!(
                    "tileloadd tmm0, [{c} + {cs}]",
                    "tileloadd tmm1, [{c} + {cs} + 64]",
                    c = in(reg) sums, cs = in(reg) SUMS_BYTES, options(nostack, readonly),
                ),
                (Start::Sums, _) => asm!(
                    "tileloadd tmm0, [{c} + {cs}]",
                    "tileloadd tmm1, [{c} + {cs} + 64]",
                    "tileloadd tmm2, [{c} + {cs} + 2048]",
                    "tileloadd tmm3, [{c} + {cs} + 2112]",
                    c = in(reg) sums, cs = in(reg) SUMS_BYTES, options(nostack, readonly),
                ),
            }
        }
    }

    /// Adds the products of one group of 32 k. Tiles of x are streamed, those of w stay in L1.
    ///
    /// # Safety
    /// Between `begin` and `end`; `x[i]` points at a tile for each row of tiles, `w` at a pair.
    #[inline(always)]
    pub(super) unsafe fn step<const ROWS: usize>(&self, x: [*const u8; 2], w: *const u8) {
        // SAFETY: the loads stay inside what the caller promises; the compiler uses no tile register.
        unsafe {
            if ROWS == 1 {
                asm!(
                    "tileloaddt1 tmm4, [{x} + {s}]",
                    "tileloadd tmm6, [{w} + {s}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{w} + {s} + 1024]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    x = in(reg) x[0], w = in(reg) w, s = in(reg) ROW_BYTES, options(nostack, readonly),
                );
            } else {
                asm!(
                    "tileloaddt1 tmm4, [{x0} + {s}]",
                    "tileloadd tmm6, [{w} + {s}]",
                    "tileloaddt1 tmm5, [{x1} + {s}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{w} + {s} + 1024]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    x0 = in(reg) x[0], x1 = in(reg) x[1], w = in(reg) w, s = in(reg) ROW_BYTES,
                    options(nostack, readonly),
                );
            }
        }
    }

    /// Stores the sums.
    ///
    /// # Safety
    /// As for `begin`.
    #[inline(always)]
    pub(super) unsafe fn end<const ROWS: usize>(&self, sums: *mut Sums) {
        // SAFETY: the stores stay inside what the caller promises.
        unsafe {
            asm!(
                "tilestored [{c} + {cs}], tmm0",
                "tilestored [{c} + {cs} + 64], tmm1",
                c = in(reg) sums, cs = in(reg) SUMS_BYTES, options(nostack),
            );
            if ROWS == 2 {
                asm!(
                    "tilestored [{c} + {cs} + 2048], tmm2",
                    "tilestored [{c} + {cs} + 2112], tmm3",
                    c = in(reg) sums, cs = in(reg) SUMS_BYTES, options(nostack),
                );
            }
        }
    }
}

/// Four products in registers, `steps` times: nothing can be faster.
pub(crate) fn multiply_registers(steps: usize) {
    // SAFETY: the caller measures a machine that has AMX.
    let _registers = unsafe { Tiles::full() };
    // SAFETY: no memory is touched.
    unsafe {
        asm!(
            ".irp i,0,1,2,3,4,5,6,7", "tilezero tmm\\i", ".endr",
            "2:",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "dec {n}",
            "jnz 2b",
            n = inout(reg) steps => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, nomem),
        );
    }
}

const _: () = assert!(TILE_BYTES == 1024 && PAIR_BYTES == 2048 && SUMS_BYTES == 128);
