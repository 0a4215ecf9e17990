//! Products of pairs for a few queries: lanes are tokens (or dims), so that no lane is idle. Rows of a page are turned
//! round for it. Each result is the same sum in the same order as with a query in each lane.
//!
//! What is `next` is where the same rows lie that will be read a group of positions later; whoever does not know names what
//! is read now. They are brought nearer one by one among the products: requests that are made together, while rows are read, wait
//! for each other, and products for them (14 GB/s of a thread where this makes 24).

use super::adds::{Adds, InPairs, Strides};
use super::lean::Few;
use super::pages::{Asked, Group, Tiled, fetch};
use super::products::{PAIRS, ROW};
use super::shape::Shape;
use super::tiles::LANES;
use crate::attention::layout::{BLOCK_TOKENS, GROUP_TOKENS, KV_GROUP};
use crate::attention::transpose::transpose_registers;
use half::bf16;
use std::arch::x86_64::*;
use std::ops::Range;

impl Few for bf16 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn scores<A: Adds, const L: usize>(
        group: &Group<'_, bf16>,
        q: *const u8,
        _: *const f32,
        s: *mut f32,
    ) {
        let (steps, stride) = (group.shape.steps(), group.shape.key_stride());
        for i in 0..group.pages.len() {
            // SAFETY: by the trait's contract.
            unsafe {
                let (k, s) = (<bf16 as Tiled>::keys(group, i, Asked::First), s.add(i * BLOCK_TOKENS));
                scores_by_query::<A, L>(k, stride, steps, q, s, group.next[i]);
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn means<A: Adds, const L: usize>(group: &Group<'_, bf16>, p: *const u8, means: *mut f32) {
        let n = group.pages.len();
        for first in (0..group.shape.head_dim).step_by(KV_GROUP) {
            let dims = group.shape.dims(first);
            // SAFETY: by the trait's contract; a dim's values in a page take 64 bytes.
            unsafe {
                let v = <bf16 as Tiled>::values(group, dims.clone(), Asked::First);
                let next = group.next.map(|k| k.wrapping_add(size_of_val(group.pages[0].k) + first * 64));
                weigh_dims::<A, L>(&v[..n], &next, group.shape, dims, p, means);
            }
        }
    }
}

/// Adds a group's values in `dims`, which lie at `v`, to `means: [L][head_dim]`, weighted by `p: [L][128]`.
///
/// # Safety
/// As for [`Few::means`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn weigh_dims<A: Adds, const L: usize>(
    v: &[*const u8],
    next: &[*const u8],
    shape: &Shape,
    dims: Range<usize>,
    p: *const u8,
    means: *mut f32,
) {
    let d = shape.head_dim;
    // SAFETY: by this function's contract.
    unsafe {
        let means = means.add(dims.start);
        for dim in (0..dims.len() / 32 * 32).step_by(32) {
            weigh_by_query::<A, 2, L>(v, next, dim * 64, p, means.add(dim), d);
        }
        if shape.is_padded() && dims.end == d {
            let dim = dims.len() - 16;
            weigh_by_query::<A, 1, L>(v, next, dim * 64, p, means.add(dim), d);
        }
    }
}

/// Scores of a page's 32 tokens against the first `L` queries of a tile: `s: [32][16]`, zeros for the others.
///
/// # Safety
/// As for [`Products::scores`](super::products::Products::scores); `L` is at most 16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn scores<const L: usize>(
    k: *const u8,
    stride: usize,
    steps: usize,
    q: *const u8,
    s: *mut f32,
) {
    // SAFETY: by this function's contract.
    unsafe {
        for (half, sums) in products_of_page::<InPairs, L>(k, stride, steps, q, k).into_iter().enumerate() {
            store_turned(sums, s.add(half * 16 * LANES));
        }
    }
}

/// The same, a query's scores side by side: `s: [L][128]`, of which it writes 32 each.
///
/// # Safety
/// As for [`scores`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn scores_by_query<A: Adds, const L: usize>(
    k: *const u8,
    stride: usize,
    steps: usize,
    q: *const u8,
    s: *mut f32,
    next: *const u8,
) {
    // SAFETY: by this function's contract.
    unsafe {
        for (half, sums) in products_of_page::<A, L>(k, stride, steps, q, next).into_iter().enumerate() {
            for l in 0..L {
                _mm512_storeu_ps(s.add(l * GROUP_TOKENS + half * 16), sums[l]);
            }
        }
    }
}

/// # Safety
/// As for [`scores`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn products_of_page<A: Adds, const L: usize>(
    k: *const u8,
    stride: usize,
    steps: usize,
    q: *const u8,
    next: *const u8,
) -> [[__m512; L]; 2] {
    let mut sums = [[_mm512_setzero_ps(); L]; 2];
    for step in 0..steps {
        // SAFETY: by this function's contract.
        unsafe {
            let k = k.add(step * ROW);
            let next = next.wrapping_add(step * ROW);
            let keys = [turned(k, stride), turned(k.add(16 * stride), stride)];
            let next = [next, next.wrapping_add(16 * stride)];
            multiply::<A, 2, L>(&keys, (next, stride), q.add(step * PAIRS * ROW), IN_TILE, &mut sums);
        }
    }
    sums
}

/// Adds values, weighted, to the first `L` queries' sums of `dims` dims.
///
/// # Safety
/// As for [`Products::weigh`](super::products::Products::weigh), for so many dims, a multiple of 32.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn weigh<const L: usize>(
    v: &[*const u8],
    offset: usize,
    dims: usize,
    p: *const u8,
    sums: *mut f32,
) {
    for first in (0..dims).step_by(32) {
        // SAFETY: by this function's contract.
        unsafe {
            let at = [sums.add(first * LANES), sums.add((first + 16) * LANES)];
            let mut few = [[_mm512_setzero_ps(); L]; 2];
            for half in 0..2 {
                let lanes = turned(at[half].cast(), ROW);
                for l in 0..L {
                    few[half][l] = _mm512_castsi512_ps(lanes[l]);
                }
            }
            add_values::<InPairs, 2, L>(v, v, offset + first * ROW, p, (PAIRS * ROW, IN_TILE), &mut few);
            for half in 0..2 {
                store_turned(few[half], at[half]);
            }
        }
    }
}

/// The same for `16 H` dims, of queries whose weights and sums lie side by side: `p: [L][128]`, `sums: [L]`, `stride` apart.
///
/// # Safety
/// As for [`weigh`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn weigh_by_query<A: Adds, const H: usize, const L: usize>(
    v: &[*const u8],
    next: &[*const u8],
    offset: usize,
    p: *const u8,
    sums: *mut f32,
    stride: usize,
) {
    // SAFETY: by this function's contract.
    unsafe {
        let mut few = [[_mm512_setzero_ps(); L]; H];
        for (h, few) in few.iter_mut().enumerate() {
            for l in 0..L {
                few[l] = _mm512_loadu_ps(sums.add(l * stride + 16 * h));
            }
        }
        add_values::<A, H, L>(v, next, offset, p, (ROW, BY_QUERY), &mut few);
        for (h, few) in few.iter().enumerate() {
            for l in 0..L {
                _mm512_storeu_ps(sums.add(l * stride + 16 * h), few[l]);
            }
        }
    }
}

/// Adds a group's values of `16 H` dims, weighted. From page to page the weights move on by `page` bytes.
///
/// # Safety
/// As for [`weigh`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn add_values<A: Adds, const H: usize, const L: usize>(
    v: &[*const u8],
    next: &[*const u8],
    offset: usize,
    p: *const u8,
    (page, strides): (usize, Strides),
    sums: &mut [[__m512; L]; H],
) {
    for (i, (v, next)) in v.iter().zip(next).enumerate() {
        let (mut lines, mut ahead) = ([[_mm512_setzero_si512(); 16]; H], [*next; H]);
        // SAFETY: by this function's contract.
        unsafe {
            for h in 0..H {
                let at = offset + h * 16 * ROW;
                (lines[h], ahead[h]) = (turned(v.add(at), ROW), next.wrapping_add(at));
            }
            multiply::<A, H, L>(&lines, (ahead, ROW), p.add(i * page), strides, sums);
        }
    }
}

/// In a tile of `[16 pairs][16 queries]`.
pub(super) const IN_TILE: Strides = (ROW, 4);
/// In `[queries][128 tokens]` of bf16.
pub(super) const BY_QUERY: Strides = (4, GROUP_TOKENS * 2);

/// 16 rows of 64 bytes, `stride` bytes apart, as columns.
///
/// # Safety
/// The machine has AVX-512, and the rows can be read.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn turned(rows: *const u8, stride: usize) -> [__m512i; 16] {
    let mut r = [_mm512_setzero_si512(); 16];
    for (i, r) in r.iter_mut().enumerate() {
        // SAFETY: by this function's contract.
        *r = unsafe { _mm512_loadu_si512(rows.add(i * stride).cast()) };
    }
    transpose_registers(r)
}

/// Adds the products of `H` times 16 lines of pairs with `L` queries. Brings as many rows from `next` on nearer, `stride` apart.
///
/// # Safety
/// The machine has AVX-512 with bf16; `pairs` has 16 of each query.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn multiply<A: Adds, const H: usize, const L: usize>(
    lines: &[[__m512i; 16]; H],
    (next, stride): ([*const u8; H], usize),
    pairs: *const u8,
    strides: Strides,
    sums: &mut [[__m512; L]; H],
) {
    let line = |j: usize| {
        let mut line = [_mm512_setzero_si512(); H];
        for h in 0..H {
            line[h] = lines[h][j];
            fetch(next[h].wrapping_add(j * stride));
        }
        line
    };
    // SAFETY: by this function's contract.
    unsafe { A::step(line, pairs, strides, sums) };
}

/// Sums of 16 tokens or dims for each of `L` queries, as 16 rows with a query in each lane and zeros behind.
///
/// # Safety
/// The machine has AVX-512; `to` has 1 KB.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn store_turned<const L: usize>(sums: [__m512; L], to: *mut f32) {
    let mut lanes = [_mm512_setzero_si512(); 16];
    for l in 0..L {
        lanes[l] = _mm512_castps_si512(sums[l]);
    }
    for (i, row) in transpose_registers(lanes).into_iter().enumerate() {
        // SAFETY: by this function's contract.
        unsafe { _mm512_storeu_si512(to.add(LANES * i).cast(), row) };
    }
}
