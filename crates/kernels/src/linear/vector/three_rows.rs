//! Three rows of x by 16 outputs with AVX2, in assembly: the sums of even and of odd products, two vectors of weights, the mask and
//! one x are all the 16 registers. A compiler loads the weights of a pair of k once instead of twice, and has sums in memory for it.

use std::arch::asm;
use std::arch::x86_64::*;

use super::lanes::SECOND;
use super::tiles::{AHEAD_BYTES, Ahead, CHUNK};
use crate::linear::epilogue::Sums;
use crate::linear::pack::{GROUP, TILE_BYTES};

/// `sums += x * w` over groups of k: rows of x [`CHUNK`] apart by pairs of tiles.
///
/// # Safety
/// The machine has AVX2 and FMA; `x` points at a group in each of three rows for each pair.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn add_products(x: *const f32, tiles: &[u8], ahead: &mut Ahead, sums: &mut [Sums]) {
    let sums: &mut [Sums; 3] = sums.try_into().expect("three rows");
    for (g, tile) in tiles.chunks_exact(TILE_BYTES).enumerate() {
        if g % 2 == 0 {
            ahead.fetch();
        }
        // SAFETY: a tile has 16 lines, x a group for every two tiles, a row of sums 16 for each of them.
        unsafe {
            let (even, odd) = multiply(x.add(g / 2 * GROUP), tile.as_ptr());
            for r in 0..3 {
                for c in 0..2 {
                    let sum = sums[r].as_mut_ptr().add(g % 2 * 16 + c * 8);
                    let products = _mm256_add_ps(even[r][c], odd[r][c]);
                    _mm256_storeu_ps(sum, _mm256_add_ps(_mm256_loadu_ps(sum), products));
                }
            }
        }
    }
}

/// The sums of the even and of the odd products of a group, by row and vector of outputs.
type Products = [[__m256; 2]; 3];

/// Of a group of three rows with the 16 outputs of a tile. A line a little ahead is fetched with each of its own: that is for
/// three rows alone, whose only pass this is, and costs the others one load in eleven.
///
/// # Safety
/// The machine has AVX2 and FMA; `x` points at a group in each of three rows, `w` at a tile.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn multiply(x: *const f32, w: *const u8) -> (Products, Products) {
    let mut even = [[_mm256_setzero_ps(); 2]; 3];
    let mut odd = even;
    let [[e00, e01], [e10, e11], [e20, e21]] = &mut even;
    let [[o00, o01], [o10, o11], [o20, o21]] = &mut odd;
    // SAFETY: it reads what the caller promises, from `at` (below zero) bytes before the ends on, and writes registers.
    unsafe {
        asm!(
            "2:",
            "prefetcht0 [{w} + 8*{at} + {ahead}]",
            "vmovdqu {w0}, [{w} + 8*{at}]",
            "vmovdqu {w1}, [{w} + 8*{at} + 32]",
            "vpslld {w0}, {w0}, 16",
            "vpslld {w1}, {w1}, 16",
            "vbroadcastss {v}, [{x} + {at}]",
            "vfmadd231ps {e00}, {v}, {w0}",
            "vfmadd231ps {e01}, {v}, {w1}",
            "vbroadcastss {v}, [{x} + {at} + {row}]",
            "vfmadd231ps {e10}, {v}, {w0}",
            "vfmadd231ps {e11}, {v}, {w1}",
            "vbroadcastss {v}, [{x} + {at} + 2*{row}]",
            "vfmadd231ps {e20}, {v}, {w0}",
            "vfmadd231ps {e21}, {v}, {w1}",
            "vandps {w0}, {second}, [{w} + 8*{at}]",
            "vandps {w1}, {second}, [{w} + 8*{at} + 32]",
            "vbroadcastss {v}, [{x} + {at} + 4]",
            "vfmadd231ps {o00}, {v}, {w0}",
            "vfmadd231ps {o01}, {v}, {w1}",
            "vbroadcastss {v}, [{x} + {at} + {row} + 4]",
            "vfmadd231ps {o10}, {v}, {w0}",
            "vfmadd231ps {o11}, {v}, {w1}",
            "vbroadcastss {v}, [{x} + {at} + 2*{row} + 4]",
            "vfmadd231ps {o20}, {v}, {w0}",
            "vfmadd231ps {o21}, {v}, {w1}",
            "add {at}, 8",
            "jne 2b",
            w = in(reg) w.add(TILE_BYTES),
            x = in(reg) x.add(GROUP),
            at = inout(reg) -4 * GROUP as isize => _,
            row = const CHUNK * 4,
            ahead = const AHEAD_BYTES,
            second = in(ymm_reg) _mm256_set1_epi32(SECOND),
            w0 = out(ymm_reg) _, w1 = out(ymm_reg) _, v = out(ymm_reg) _,
            e00 = inout(ymm_reg) *e00, e01 = inout(ymm_reg) *e01,
            e10 = inout(ymm_reg) *e10, e11 = inout(ymm_reg) *e11,
            e20 = inout(ymm_reg) *e20, e21 = inout(ymm_reg) *e21,
            o00 = inout(ymm_reg) *o00, o01 = inout(ymm_reg) *o01,
            o10 = inout(ymm_reg) *o10, o11 = inout(ymm_reg) *o11,
            o20 = inout(ymm_reg) *o20, o21 = inout(ymm_reg) *o21,
            options(nostack, readonly),
        );
    }
    (even, odd)
}
