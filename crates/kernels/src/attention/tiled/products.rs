//! The products of a group of positions, by tile registers or by pairs of bf16.

use super::adds::{Adds, InGroups, InPairs};
use super::few;
use super::lean;
use super::tiles;
use crate::attention::layout::BLOCK_TOKENS;
use crate::tiles::Tiles;
use std::arch::x86_64::*;

/// What multiplies. Left operands are rows of a page, right ones tiles of `[16 pairs][16 queries]`.
///
/// # Safety
/// Every method needs the machine to have the instruction set, and the registers that `enter` gave to live.
pub(in crate::attention) unsafe trait Products: Send + Sync {
    /// What a worker holds while it multiplies.
    type Registers;
    /// The order in which they are added.
    type Adds: Adds;
    /// Blocks of up to so many queries, over any pages but those of f32 and f16, are done with tokens in the lanes.
    const FEW: usize;

    /// Makes this thread's registers ready; it has no others.
    unsafe fn enter() -> Self::Registers;
    /// Scores of one page's 32 tokens against 16 queries: `s: [32][16] = k q`.
    ///
    /// `k: [32]` rows of `64 * steps` bytes, `stride` bytes apart, `q: [steps]` tiles, of whose queries the first
    /// `lanes` count.
    unsafe fn scores(k: *const u8, stride: usize, steps: usize, q: *const u8, s: *mut f32, lanes: usize);
    /// The same against two tiles of queries.
    unsafe fn scores_two(k: *const u8, stride: usize, steps: usize, q: [*const u8; 2], s: [*mut f32; 2]);
    /// Adds a group's values, weighted, to 16 queries' sums of 32 dims: `sums: [32 dims][16] += v p`.
    ///
    /// `v` holds each page's values of these dims at `offset`, `[32 dims][32 tokens]` bf16; `p` a tile for each page.
    unsafe fn weigh(v: &[*const u8], offset: usize, p: *const u8, sums: *mut f32, lanes: usize);
    /// The same for 64 dims.
    unsafe fn weigh_64(v: &[*const u8], p: *const u8, sums: *mut f32, lanes: usize);
    /// [`weigh`](Products::weigh) for two tiles of queries.
    unsafe fn weigh_two(v: &[*const u8], offset: usize, p: [*const u8; 2], sums: [*mut f32; 2]);
    /// [`weigh`](Products::weigh) for 16 dims, the last of a head whose dims are an odd multiple of 16.
    unsafe fn weigh_half(v: &[*const u8], offset: usize, p: *const u8, sums: *mut f32);
    /// Brings a page of so many bytes nearer, which will be read a group of positions later.
    unsafe fn fetch(page: *const u8, bytes: usize);
}

/// The tile registers of AMX.
pub(in crate::attention) struct Amx;

// SAFETY: by the trait's contract, for all methods.
unsafe impl Products for Amx {
    type Registers = Tiles;
    type Adds = InGroups;
    /// Eight take vectors longer than reading the pages, and tiles do not.
    const FEW: usize = 4;

    unsafe fn enter() -> Tiles {
        // SAFETY: as above; likewise below.
        unsafe { Tiles::full() }
    }

    unsafe fn scores(k: *const u8, stride: usize, steps: usize, q: *const u8, s: *mut f32, _: usize) {
        // SAFETY: as above.
        unsafe { tiles::scores(k, stride, steps, q, s) }
    }

    unsafe fn scores_two(k: *const u8, stride: usize, steps: usize, q: [*const u8; 2], s: [*mut f32; 2]) {
        // SAFETY: as above.
        unsafe { tiles::scores_two(k, stride, steps, q, s) }
    }

    unsafe fn weigh(v: &[*const u8], offset: usize, p: *const u8, sums: *mut f32, _: usize) {
        // SAFETY: as above.
        unsafe { tiles::weigh(v, offset, p, sums) }
    }

    unsafe fn weigh_64(v: &[*const u8], p: *const u8, sums: *mut f32, _: usize) {
        // SAFETY: as above.
        unsafe { tiles::weigh_64(v, p, sums) }
    }

    unsafe fn weigh_two(v: &[*const u8], offset: usize, p: [*const u8; 2], sums: [*mut f32; 2]) {
        // SAFETY: as above.
        unsafe { tiles::weigh_two(v, offset, p, sums) }
    }

    unsafe fn weigh_half(v: &[*const u8], offset: usize, p: *const u8, sums: *mut f32) {
        // SAFETY: as above.
        unsafe { tiles::weigh_half(v, offset, p, sums) }
    }

    /// The processor's own prefetching does as well.
    unsafe fn fetch(_: *const u8, _: usize) {}
}

/// AVX-512 with products of bf16 pairs: each result one sum in order of the pairs, however many are in registers.
pub(in crate::attention) struct Pairs;

// SAFETY: by the trait's contract, for all methods.
unsafe impl Products for Pairs {
    type Registers = ();
    type Adds = InPairs;
    const FEW: usize = lean::FEW;

    unsafe fn enter() {}

    unsafe fn scores(k: *const u8, stride: usize, steps: usize, q: *const u8, s: *mut f32, lanes: usize) {
        // SAFETY: as above.
        unsafe {
            match lanes {
                1 => few::scores::<1>(k, stride, steps, q, s),
                2 => few::scores::<2>(k, stride, steps, q, s),
                3 | 4 => few::scores::<4>(k, stride, steps, q, s),
                5..=8 => few::scores::<8>(k, stride, steps, q, s),
                _ => scores::<1, 16>(k, stride, steps, [q], [s]),
            }
        }
    }

    unsafe fn scores_two(k: *const u8, stride: usize, steps: usize, q: [*const u8; 2], s: [*mut f32; 2]) {
        // SAFETY: as above.
        unsafe { scores::<2, 8>(k, stride, steps, q, s) }
    }

    unsafe fn weigh(v: &[*const u8], offset: usize, p: *const u8, sums: *mut f32, lanes: usize) {
        // SAFETY: as above.
        unsafe { weigh_some(v, offset, 32, p, sums, lanes) }
    }

    unsafe fn weigh_64(v: &[*const u8], p: *const u8, sums: *mut f32, lanes: usize) {
        // SAFETY: as above.
        unsafe { weigh_some(v, 0, 64, p, sums, lanes) }
    }

    unsafe fn weigh_two(v: &[*const u8], offset: usize, p: [*const u8; 2], sums: [*mut f32; 2]) {
        // SAFETY: as above.
        unsafe { weigh::<2, 8>(v, offset, 32, p, sums) }
    }

    unsafe fn weigh_half(v: &[*const u8], offset: usize, p: *const u8, sums: *mut f32) {
        // SAFETY: as above.
        unsafe { weigh::<1, 16>(v, offset, 16, [p], [sums]) }
    }

    unsafe fn fetch(page: *const u8, bytes: usize) {
        for line in (0..bytes).step_by(64) {
            // SAFETY: a prefetch may name any address.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(page.wrapping_add(line).cast()) };
        }
    }
}

/// One tile, of whose queries the first `lanes` count.
///
/// # Safety
/// As for [`Products::weigh`], for `dims` dims.
unsafe fn weigh_some(
    v: &[*const u8],
    offset: usize,
    dims: usize,
    p: *const u8,
    sums: *mut f32,
    lanes: usize,
) {
    // SAFETY: by this function's contract.
    unsafe {
        match lanes {
            1 => few::weigh::<1>(v, offset, dims, p, sums),
            2 => few::weigh::<2>(v, offset, dims, p, sums),
            3 | 4 => few::weigh::<4>(v, offset, dims, p, sums),
            5..=8 => few::weigh::<8>(v, offset, dims, p, sums),
            _ => weigh::<1, 16>(v, offset, dims, [p], [sums]),
        }
    }
}

/// Bytes of a row of a tile.
pub(super) const ROW: usize = 64;
/// Pairs of a row.
pub(super) const PAIRS: usize = 16;

/// `T` tiles of queries, `R` tokens at a time.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn scores<const T: usize, const R: usize>(
    k: *const u8,
    stride: usize,
    steps: usize,
    q: [*const u8; T],
    s: [*mut f32; T],
) {
    for first in (0..BLOCK_TOKENS).step_by(R) {
        let mut sums = [[_mm512_setzero_ps(); T]; R];
        // SAFETY: by the trait's contract.
        unsafe {
            for step in 0..steps {
                let k = k.add(first * stride + step * ROW);
                multiply(k, stride, q, step * PAIRS * ROW, &mut sums);
            }
            for r in 0..R {
                for t in 0..T {
                    _mm512_storeu_ps(s[t].add((first + r) * 16), sums[r][t]);
                }
            }
        }
    }
}

/// `T` tiles of queries, `R` of `dims` dims at a time.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn weigh<const T: usize, const R: usize>(
    v: &[*const u8],
    offset: usize,
    dims: usize,
    p: [*const u8; T],
    to: [*mut f32; T],
) {
    for first in (0..dims).step_by(R) {
        let mut sums = [[_mm512_setzero_ps(); T]; R];
        // SAFETY: by the trait's contract.
        unsafe {
            for r in 0..R {
                for t in 0..T {
                    sums[r][t] = _mm512_loadu_ps(to[t].add((first + r) * 16));
                }
            }
            for (i, v) in v.iter().enumerate() {
                multiply(v.add(offset + first * ROW), ROW, p, i * PAIRS * ROW, &mut sums);
            }
            for r in 0..R {
                for t in 0..T {
                    _mm512_storeu_ps(to[t].add((first + r) * 16), sums[r][t]);
                }
            }
        }
    }
}

/// Adds the products of `R` rows, `stride` bytes apart, with `T` tiles, `at` bytes behind their pointers.
///
/// # Safety
/// The machine has the instructions; rows have 64 bytes, tiles 1 KB.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn multiply<const T: usize, const R: usize>(
    rows: *const u8,
    stride: usize,
    tiles: [*const u8; T],
    at: usize,
    sums: &mut [[__m512; T]; R],
) {
    for j in 0..PAIRS {
        let mut lines = [_mm512_setzero_si512(); T];
        // SAFETY: by this function's contract; 512 bits of plain numbers either way.
        unsafe {
            for t in 0..T {
                lines[t] = _mm512_loadu_si512(tiles[t].add(at + j * ROW).cast());
            }
            for r in 0..R {
                let pair = rows.add(r * stride + 4 * j).cast::<i32>().read_unaligned();
                let pair: __m512bh = std::mem::transmute(_mm512_set1_epi32(pair));
                for t in 0..T {
                    let line: __m512bh = std::mem::transmute(lines[t]);
                    sums[r][t] = _mm512_dpbf16_ps(sums[r][t], pair, line);
                }
            }
        }
    }
}
