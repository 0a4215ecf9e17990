//! AVX-512 with VNNI: a vector is four k of all rows of a tile, and one instruction multiplies and adds them.
//!
//! It takes codes without a sign: those of 8 bits are counted from -128, and 128 times the sum of the numbers goes off.

use std::arch::x86_64::*;

use super::super::super::plan::{GROUP, Layout, TILE};
use super::super::codes::{STEP, TILE_CODES};
use super::super::rounded::{Group, UPPER};
use super::{CHUNK, Chunk};
use crate::linear::epilogue::Sums;

/// As that of [`avx2`](super::avx2).
///
/// # Safety
/// The machine has these features; the rest as there.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) unsafe fn add<L: Layout, const BYTES: usize>(
    chunk: &Chunk,
    groups: usize,
    (x, stride): (*const Group<BYTES>, usize),
    mut sums: &mut [Sums],
) {
    let mut x = x;
    while !sums.is_empty() {
        let (now, rest) = sums.split_at_mut(match sums.len() {
            8.. => 8,
            4.. => 4,
            2.. => 2,
            _ => 1,
        });
        // SAFETY: the caller's.
        unsafe {
            match now.len() {
                8 => add_rows::<L, BYTES, 8>(chunk, groups, (x, stride), now),
                4 => add_rows::<L, BYTES, 4>(chunk, groups, (x, stride), now),
                2 => add_rows::<L, BYTES, 2>(chunk, groups, (x, stride), now),
                _ => add_rows::<L, BYTES, 1>(chunk, groups, (x, stride), now),
            }
            x = x.add(now.len());
        }
        sums = rest;
    }
}

/// With `R` rows.
///
/// # Safety
/// As [`add`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn add_rows<L: Layout, const BYTES: usize, const R: usize>(
    chunk: &Chunk,
    groups: usize,
    (x, stride): (*const Group<BYTES>, usize),
    sums: &mut [Sums],
) {
    assert!(groups <= CHUNK);
    let sums: &mut [Sums; R] = sums.try_into().expect("rows that were counted");
    for tile in 0..2 {
        // SAFETY: the caller's; a tile's 16 rows, of a panel's 32.
        unsafe {
            let mut total: [__m512; R] =
                std::array::from_fn(|r| _mm512_loadu_ps(sums[r].as_ptr().add(TILE * tile)));
            for i in 0..groups {
                let x: [&Group<BYTES>; R] = std::array::from_fn(|r| &*x.add(i * stride + r));
                let affine = &chunk.affine[i][tile];
                for part in 0..L::PLAN.parts() {
                    let products = whole::<L, BYTES, R>(&chunk.codes[i][tile], part, x);
                    let scale = _mm512_loadu_ps(affine.scale[part].as_ptr());
                    let min = _mm512_loadu_ps(affine.min[part].as_ptr());
                    for r in 0..R {
                        let product =
                            _mm512_mul_ps(_mm512_cvtepi32_ps(products[r]), _mm512_set1_ps(x[r].size));
                        total[r] = _mm512_fmadd_ps(scale, product, total[r]);
                        if L::PLAN.shifted() {
                            total[r] = _mm512_fmadd_ps(min, _mm512_set1_ps(x[r].sums[part]), total[r]);
                        }
                    }
                }
            }
            for r in 0..R {
                _mm512_storeu_ps(sums[r].as_mut_ptr().add(TILE * tile), total[r]);
            }
        }
    }
}

/// The sums of products of whole numbers of a part of k, of all their bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn whole<L: Layout, const BYTES: usize, const R: usize>(
    codes: &[u8; TILE_CODES],
    part: usize,
    x: [&Group<BYTES>; R],
) -> [__m512i; R] {
    let mut products = multiply::<L, R>(codes, part, x.map(|x| &x.numbers[0]));
    for byte in 1..BYTES {
        let lower = multiply::<L, R>(codes, part, x.map(|x| &x.numbers[byte]));
        for r in 0..R {
            let upper = _mm512_slli_epi32::<{ UPPER.ilog2() }>(products[r]);
            products[r] = _mm512_add_epi32(upper, lower[r]);
        }
    }
    if L::PLAN.low_bits == 8 {
        assert!(L::PLAN.parts() == 1, "the sum is that of all 32 k");
        for r in 0..R {
            let more = _mm512_slli_epi32::<7>(_mm512_set1_epi32(x[r].sum));
            products[r] = _mm512_sub_epi32(products[r], more);
        }
    }
    products
}

/// The whole sums of a part of k, for a tile's 16 rows of weights and `R` of x.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn multiply<L: Layout, const R: usize>(
    codes: &[u8; TILE_CODES],
    part: usize,
    x: [&[i8; GROUP]; R],
) -> [__m512i; R] {
    let steps = GROUP / 4 / L::PLAN.parts();
    let mut sums = [_mm512_setzero_si512(); R];
    for step in part * steps..(part + 1) * steps {
        // SAFETY: eight steps of codes, and of four numbers.
        unsafe {
            let mut codes = _mm512_loadu_si512(codes.as_ptr().add(STEP * step).cast());
            if L::PLAN.low_bits == 8 {
                codes = _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
            }
            for r in 0..R {
                let numbers = x[r].as_ptr().add(4 * step).cast::<i32>().read_unaligned();
                sums[r] = _mm512_dpbusd_epi32(sums[r], codes, _mm512_set1_epi32(numbers));
            }
        }
    }
    sums
}
