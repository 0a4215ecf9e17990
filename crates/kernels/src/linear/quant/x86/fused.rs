//! AMX for the formats whose codes lie by row, at most 32 rows of x: weights are expanded to rows of k, which the
//! tile unit takes as its left operand while the next ones are expanded, so that nothing but the stored bytes
//! comes from memory.
//!
//! ```text
//! vectors   group g       g + 1     g + 2     ...     rows of both tiles into a ring in L1
//! tiles             g - 2     g - 1     g     ...     sums[output][row of x] += rows * x
//! ```
//!
//! An instruction sums even and odd k in order whichever operand is which, so the bits are the canonical ones.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::super::plan::{GROUP, Layout, PANEL, TILE};
use super::rows::{Affine, Rows, transpose, write_rows};
use crate::linear::epilogue::{Epilogue, Sums};
use crate::linear::types::Weight;
use crate::mat::{Mat, MatMut, SharedRows};
use crate::scratch::with_scratch;
use crate::team::{Stretches, Team, Worker};
use crate::tiles::{ROW_BYTES, Tiles};

/// Rows of x at most.
pub(super) const ROWS_MAX: usize = 2 * TILE;
/// How many groups of a panel after it was expanded a group is multiplied: its stores have left the store buffer by
/// then.
const LAG: usize = 4;
/// Tiles that the ring holds: twice the lag.
const RING_TILES: usize = 16;
/// How far ahead the stored bytes are fetched.
const AHEAD_BYTES: usize = 2048;

/// `x: [1..=32, k]` by a weight whose codes lie by row, on a machine with AMX.
pub(super) fn run<L: Layout>(team: &Team, x: Mat<'_, bf16>, w: &Weight<'_>, epilogue: &Epilogue<'_>) {
    let groups = w.k().div_ceil(GROUP);
    let columns = x.rows() * TILE;
    with_scratch(groups * columns * 4, |pairs| {
        let mut pairs = MatMut::new(bytemuck::cast_slice_mut(pairs), groups, columns);
        let pairs = &pairs.shared();
        let threads = team.threads();
        let panels = Stretches::several(w.held_panels(), 2, threads);
        team.run_on(threads, |worker| {
            let job = Job { x, w, groups, epilogue };
            job.pack(&worker, pairs);
            worker.barrier();
            // SAFETY: nobody writes the pairs behind the barrier; the caller has AMX, which implies the rest.
            unsafe { job.work::<L>(panels.of(worker.index), pairs.read(0, 0..0).as_ptr()) };
        });
    });
}

struct Job<'a> {
    x: Mat<'a, bf16>,
    w: &'a Weight<'a>,
    groups: usize,
    epilogue: &'a Epilogue<'a>,
}

impl Job<'_> {
    /// This worker's share of x as right operands: for each group 16 lines of a pair of k for each of the first 16
    /// rows of x, then 16 lines for the others.
    fn pack(&self, worker: &Worker<'_>, pairs: &SharedRows<'_, u32>) {
        for group in worker.share(self.groups) {
            // SAFETY: this group is this worker's to write.
            let out = unsafe { pairs.span(group, 0..pairs.cols()) };
            for row in 0..self.x.rows() {
                let (block, width) = self.block_of(row);
                let x = &self.x.row(row)[group * GROUP..];
                let out = out[block * TILE * TILE + row % TILE..].iter_mut().step_by(width);
                put_pairs(&x[..x.len().min(GROUP)], out);
            }
        }
    }

    /// Which block of 16 a row of x is in, and how many rows that block has.
    fn block_of(&self, row: usize) -> (usize, usize) {
        let block = row / TILE;
        (block, (self.x.rows() - block * TILE).min(TILE))
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi,avx2,fma")]
    unsafe fn work<L: Layout>(&self, taken: impl Iterator<Item = Range<usize>>, x: *const u32) {
        let registers = Registers::new(self.x.rows());
        let mut ring = [const { Rows::new() }; RING_TILES];
        for panels in taken {
            // Two stretches of panels at once keep more reads on the way, and share the tiles of x.
            let pairs = if self.x.rows() <= TILE { panels.len() / 2 } else { 0 };
            // SAFETY: the caller's; this worker alone has these panels.
            unsafe {
                for held in panels.start..panels.start + pairs {
                    match L::PLAN.offset {
                        0 => self.panels::<L, 2, 1, false>(&registers, [held, held + pairs], x, &mut ring),
                        _ => self.panels::<L, 2, 1, true>(&registers, [held, held + pairs], x, &mut ring),
                    }
                }
                for held in panels.start + 2 * pairs..panels.end {
                    match (self.x.rows() <= TILE, L::PLAN.offset) {
                        (true, 0) => self.panels::<L, 1, 1, false>(&registers, [held], x, &mut ring),
                        (true, _) => self.panels::<L, 1, 1, true>(&registers, [held], x, &mut ring),
                        (false, 0) => self.panels::<L, 1, 2, false>(&registers, [held], x, &mut ring),
                        (false, _) => self.panels::<L, 1, 2, true>(&registers, [held], x, &mut ring),
                    }
                }
            }
        }
    }

    /// One or two panels by one or two blocks of 16 rows of x (not two of both).
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi,avx2,fma")]
    unsafe fn panels<L: Layout, const PANELS: usize, const BLOCKS: usize, const SYMMETRIC: bool>(
        &self,
        registers: &Registers,
        held: [usize; PANELS],
        x: *const u32,
        ring: &mut [Rows; RING_TILES],
    ) {
        let held = held.map(|i| self.w.held_panel(i));
        let (rows, lag, slots) = (self.x.rows(), LAG / PANELS, RING_TILES / (2 * PANELS));
        let mut affine = [const { [Affine::new(), Affine::new()] }; PANELS];
        registers.clear();
        // SAFETY: the panels hold all groups, x a block of pairs for each; a slot of the ring holds a group of all
        // panels, and the one that is multiplied was written `lag` groups before and is not the one written.
        unsafe {
            for (affine, (_, stored)) in affine.iter_mut().zip(held) {
                affine[0].read::<L>(stored.as_ptr(), 0);
            }
            for group in 0..self.groups + lag {
                if group < self.groups {
                    let out = ring.as_mut_ptr().add(group % slots * 2 * PANELS);
                    for (i, (_, stored)) in held.iter().enumerate() {
                        let out = out.add(2 * i).cast();
                        self.expand::<L, SYMMETRIC>(stored.as_ptr(), group, &mut affine[i], out);
                    }
                }
                if let Some(group) = group.checked_sub(lag) {
                    let weights = ring.as_ptr().add(group % slots * 2 * PANELS).cast();
                    registers.multiply::<PANELS, BLOCKS>(weights, x.add(group * rows * TILE), rows);
                }
            }
        }
        let mut sums = [[0.0; PANEL]; ROWS_MAX];
        registers.sums(&mut sums);
        for (i, (panel, _)) in held.iter().enumerate() {
            // SAFETY: the caller's.
            unsafe { self.epilogue.finish_512(*panel, 0, &mut sums[i * TILE..][..rows]) };
        }
    }

    /// Expands both tiles of a group, with the scales that were read before, and reads those of the next group.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi,avx2,fma")]
    unsafe fn expand<L: Layout, const SYMMETRIC: bool>(
        &self,
        stored: *const u8,
        group: usize,
        affine: &mut [Affine; 2],
        out: *mut __m512i,
    ) {
        // SAFETY: the panel holds the group, and `out` has room for two tiles.
        unsafe {
            affine[(group + 1) % 2].read::<L>(stored, (group + 1).min(self.groups - 1));
            let codes = stored.add(L::PLAN.locate(group).group + L::PLAN.planes(0).0);
            fetch(codes, L::PLAN.group_bytes());
            for tile in 0..2 {
                write_rows::<SYMMETRIC>(&affine[group % 2], codes, tile, out.add(tile * TILE));
            }
        }
    }
}

/// Writes the pairs of up to 32 values to every item of `out`, zeros where there are none.
#[inline(always)]
fn put_pairs<'a>(x: &[bf16], out: impl Iterator<Item = &'a mut u32>) {
    let at = |i: usize| x.get(i).map_or(0, |x| u32::from(x.to_bits()));
    match <&[bf16; GROUP]>::try_from(x) {
        Ok(x) => out.take(TILE).enumerate().for_each(|(i, out)| {
            *out = u32::from(x[2 * i].to_bits()) | u32::from(x[2 * i + 1].to_bits()) << 16;
        }),
        Err(_) => out.take(TILE).enumerate().for_each(|(i, out)| *out = at(2 * i) | at(2 * i + 1) << 16),
    }
}

/// Asks for the bytes that will be expanded some groups later.
#[inline(always)]
pub(in crate::linear::quant) fn fetch(codes: *const u8, bytes: usize) {
    fetch_at(codes.wrapping_add(AHEAD_BYTES), bytes);
}

/// Asks for these bytes.
#[inline(always)]
pub(in crate::linear::quant) fn fetch_at(from: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(64) {
        // SAFETY: a prefetch cannot fault, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at).cast()) };
    }
}

/// The tile registers of this thread: 0 and 1 the sums of a panel's tiles with the first 16 rows of x, 2 and 3 those
/// with the other rows, or those of a second panel; 4 and 5 the weights, 6 and 7 x.
struct Registers {
    _tiles: Tiles,
}

impl Registers {
    fn new(rows: usize) -> Registers {
        let (first, second) = (4 * rows.min(TILE), 4 * if rows > TILE { rows - TILE } else { rows });
        let row_bytes = [first, first, second, second, ROW_BYTES, ROW_BYTES, first, second];
        // SAFETY: the caller of `run` has AMX, and this thread has no other tiles.
        Registers { _tiles: unsafe { Tiles::new(row_bytes, [TILE; 8]) } }
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
    /// `weights` points at two tiles of 16 rows for each panel, `x` at the group's pairs of `rows` rows of x.
    #[inline(always)]
    unsafe fn multiply<const PANELS: usize, const BLOCKS: usize>(
        &self,
        weights: *const u8,
        x: *const u32,
        rows: usize,
    ) {
        let first = rows.min(TILE);
        // SAFETY: the loads stay inside what the caller promises; only this type's own registers change.
        unsafe {
            asm!(
                "tileloadd tmm6, [{x} + {xs}]",
                "tileloadd tmm4, [{w} + {ws}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{w} + {ws} + 1024]",
                "tdpbf16ps tmm1, tmm5, tmm6",
                x = in(reg) x, xs = in(reg) 4 * first, w = in(reg) weights, ws = in(reg) 64usize,
                options(nostack, readonly),
            );
            if PANELS == 2 {
                asm!(
                    "tileloadd tmm4, [{w} + {ws} + 2048]",
                    "tdpbf16ps tmm2, tmm4, tmm6",
                    "tileloadd tmm5, [{w} + {ws} + 3072]",
                    "tdpbf16ps tmm3, tmm5, tmm6",
                    w = in(reg) weights, ws = in(reg) 64usize,
                    options(nostack, readonly),
                );
            }
            if BLOCKS == 2 {
                asm!(
                    "tileloadd tmm7, [{x} + {xs}]",
                    "tdpbf16ps tmm2, tmm4, tmm7",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    x = in(reg) x.add(TILE * TILE), xs = in(reg) 4 * (rows - TILE),
                    options(nostack, readonly),
                );
            }
        }
    }

    /// The sums: of rows of x, of the second 16 or of the second panel from row 16 on.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn sums(&self, sums: &mut [Sums; ROWS_MAX]) {
        let mut tiles = [const { Rows::new() }; 4];
        // SAFETY: four tiles of 16 rows of 64 bytes; a line of a transposed tile is half a row of sums.
        unsafe {
            let at = tiles.as_mut_ptr();
            asm!(
                "tilestored [{t} + {s}], tmm0", "tilestored [{t} + {s} + 1024], tmm1",
                "tilestored [{t} + {s} + 2048], tmm2", "tilestored [{t} + {s} + 3072], tmm3",
                t = in(reg) at, s = in(reg) 64usize, options(nostack),
            );
            for (i, tile) in tiles.iter().enumerate() {
                let out = sums.as_mut_ptr().add(i / 2 * TILE).cast::<__m512i>();
                transpose(tile, out.add(i % 2), 2);
            }
        }
    }
}
