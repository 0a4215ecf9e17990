//! AMX for the formats whose codes lie by line, at most 32 rows of x: a group of a panel is expanded to tiles in a
//! ring in L1 while the tile unit multiplies the groups before it, so that nothing but the stored bytes comes from
//! memory. As [`fused`](super::fused), with weights as the right operand.

use std::arch::asm;
use std::ops::Range;

use half::bf16;

use super::super::plan::{GROUP, Layout, PANEL, TILE};
use super::avx512::{VALUES, expand_group};
use super::fused::{ROWS_MAX, fetch};
use crate::linear::epilogue::{Epilogue, Sums};
use crate::linear::rows::copy_tiles;
use crate::linear::types::Weight;
use crate::mat::Mat;
use crate::scratch::with_scratch;
use crate::team::{Stretches, Team};
use crate::tiles::{ROW_BYTES, Tiles};

/// How many groups of a panel after it was expanded a group is multiplied: its stores have left the store buffer by
/// then.
const LAG: usize = 4;
/// Tiles that the ring holds: twice the lag.
const RING_TILES: usize = 16;

#[repr(C, align(64))]
struct Ring([bf16; RING_TILES * VALUES]);

/// `x: [1..=32, k]` by a weight whose codes lie by line, on a machine with AMX.
pub(super) fn run<L: Layout>(team: &Team, x: Mat<'_, bf16>, w: &Weight<'_>, epilogue: &Epilogue<'_>) {
    let groups = w.k().div_ceil(GROUP);
    let threads = team.threads();
    let panels = Stretches::several(w.held_panels(), 2, threads);
    team.run_on(threads, |worker| {
        with_scratch(groups * x.rows() * 2 * GROUP, |tiles| {
            let first = x.rows().min(TILE);
            let (upper, lower) = tiles.split_at_mut(groups * first * 2 * GROUP);
            copy_tiles(x, 0, first, 0..groups, bytemuck::cast_slice_mut(upper));
            copy_tiles(x, TILE, x.rows() - first, 0..groups, bytemuck::cast_slice_mut(lower));
            let job = Job { x: [upper.as_ptr(), lower.as_ptr()], rows: x.rows(), groups, w, epilogue };
            // SAFETY: the caller has AMX, which implies the rest.
            unsafe { job.work::<L>(panels.of(worker.index)) };
        });
    });
}

struct Job<'a> {
    /// A tile of the first 16 rows of x for each group, and one of the others.
    x: [*const u8; 2],
    rows: usize,
    groups: usize,
    w: &'a Weight<'a>,
    epilogue: &'a Epilogue<'a>,
}

impl Job<'_> {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi,avx2,fma")]
    unsafe fn work<L: Layout>(&self, taken: impl Iterator<Item = Range<usize>>) {
        let registers = Registers::new(self.rows);
        let mut ring = Ring([bf16::ZERO; RING_TILES * VALUES]);
        for panels in taken {
            // Two stretches of panels at once keep more reads on the way, and share the tiles of x.
            let pairs = if self.rows <= TILE { panels.len() / 2 } else { 0 };
            // SAFETY: the caller's; this worker alone has these panels.
            unsafe {
                for held in panels.start..panels.start + pairs {
                    self.panels::<L, 2, 1>(&registers, [held, held + pairs], &mut ring);
                }
                for held in panels.start + 2 * pairs..panels.end {
                    if self.rows <= TILE {
                        self.panels::<L, 1, 1>(&registers, [held], &mut ring);
                    } else {
                        self.panels::<L, 1, 2>(&registers, [held], &mut ring);
                    }
                }
            }
        }
    }

    /// One or two panels by one or two blocks of 16 rows of x (not two of both).
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi,avx2,fma")]
    unsafe fn panels<L: Layout, const PANELS: usize, const BLOCKS: usize>(
        &self,
        registers: &Registers,
        held: [usize; PANELS],
        ring: &mut Ring,
    ) {
        let held = held.map(|i| self.w.held_panel(i));
        let (first, rest) = (self.rows.min(TILE), self.rows.saturating_sub(TILE));
        let (lag, slots) = (LAG / PANELS, RING_TILES / (2 * PANELS));
        let ring = ring.0.as_mut_ptr();
        registers.clear();
        // SAFETY: the panels hold all groups, x a tile of each block for each; a slot of the ring holds a group of
        // all panels, and the one that is multiplied was written `lag` groups before and is not the one written.
        unsafe {
            for group in 0..self.groups + lag {
                if group < self.groups {
                    for (i, (_, stored)) in held.iter().enumerate() {
                        let out = ring.add((group % slots * PANELS + i) * 2 * VALUES);
                        let codes = stored.as_ptr().add(L::PLAN.locate(group).group);
                        fetch(codes, L::PLAN.group_bytes());
                        expand_group::<L>(stored.as_ptr(), group, out);
                    }
                }
                if let Some(group) = group.checked_sub(lag) {
                    let weights = ring.add(group % slots * PANELS * 2 * VALUES).cast();
                    let x =
                        [self.x[0].add(group * first * 2 * GROUP), self.x[1].add(group * rest * 2 * GROUP)];
                    registers.multiply::<PANELS, BLOCKS>(weights, x);
                }
            }
        }
        let mut sums = [[0.0; PANEL]; ROWS_MAX];
        registers.sums(&mut sums);
        for (i, (panel, _)) in held.iter().enumerate() {
            // SAFETY: the caller's.
            unsafe { self.epilogue.finish_512(*panel, 0, &mut sums[i * TILE..][..self.rows]) };
        }
    }
}

/// The tile registers of this thread: 0 and 1 the sums of the first 16 rows of x with a panel's tiles, 2 and 3 those
/// of the other rows, or those with a second panel; 4 and 5 the weights, 6 and 7 x.
struct Registers {
    _tiles: Tiles,
}

impl Registers {
    fn new(rows: usize) -> Registers {
        let first = rows.min(TILE);
        let second = if rows > TILE { rows - TILE } else { first };
        let rows = [first, first, second, second, TILE, TILE, first, second];
        // SAFETY: the caller of `run` has AMX, and this thread has no other tiles.
        Registers { _tiles: unsafe { Tiles::new([ROW_BYTES; 8], rows) } }
    }

    fn clear(&self) {
        // SAFETY: only this type's own registers change.
        unsafe {
            asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
        }
    }

    /// Adds the products of one group.
    ///
    /// # Safety
    /// `weights` points at two tiles for each panel, `x` at the group's tile of each block of rows.
    #[inline(always)]
    unsafe fn multiply<const PANELS: usize, const BLOCKS: usize>(
        &self,
        weights: *const u8,
        x: [*const u8; 2],
    ) {
        // SAFETY: the loads stay inside what the caller promises; only this type's own registers change.
        unsafe {
            asm!(
                "tileloadd tmm6, [{x} + {s}]",
                "tileloadd tmm4, [{w} + {s}]",
                "tdpbf16ps tmm0, tmm6, tmm4",
                "tileloadd tmm5, [{w} + {s} + 1024]",
                "tdpbf16ps tmm1, tmm6, tmm5",
                x = in(reg) x[0], w = in(reg) weights, s = in(reg) 64usize,
                options(nostack, readonly),
            );
            if PANELS == 2 {
                asm!(
                    "tileloadd tmm4, [{w} + {s} + 2048]",
                    "tdpbf16ps tmm2, tmm6, tmm4",
                    "tileloadd tmm5, [{w} + {s} + 3072]",
                    "tdpbf16ps tmm3, tmm6, tmm5",
                    w = in(reg) weights, s = in(reg) 64usize,
                    options(nostack, readonly),
                );
            }
            if BLOCKS == 2 {
                asm!(
                    "tileloadd tmm7, [{x} + {s}]",
                    "tdpbf16ps tmm2, tmm7, tmm4",
                    "tdpbf16ps tmm3, tmm7, tmm5",
                    x = in(reg) x[1], s = in(reg) 64usize,
                    options(nostack, readonly),
                );
            }
        }
    }

    /// The sums: of rows of x, of the second 16 or of the second panel from row 16 on.
    fn sums(&self, sums: &mut [Sums; ROWS_MAX]) {
        // SAFETY: 32 rows of 128 bytes, half a row for each tile's.
        unsafe {
            asm!(
                "tilestored [{c} + {s}], tmm0", "tilestored [{c} + {s} + 64], tmm1",
                "tilestored [{c} + {s} + 2048], tmm2", "tilestored [{c} + {s} + 2112], tmm3",
                c = in(reg) sums.as_mut_ptr(), s = in(reg) size_of::<Sums>(), options(nostack),
            );
        }
    }
}
