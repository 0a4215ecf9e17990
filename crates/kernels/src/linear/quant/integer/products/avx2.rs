//! AVX2: vectors of eight sums. Products of [`bytes`]; of [`words`] for codes of 8 bits and numbers of 15.

mod bytes;
mod words;

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::super::super::plan::{Layout, TILE};
use super::super::super::x86::{Affine, affine, fetch};
use super::super::rounded::{Group, Numbers};
use super::{CHUNK, Family};
use crate::linear::epilogue::Sums;

/// The family for numbers that lie like this.
pub(super) struct Avx2<N>(PhantomData<N>);

/// What numbers that lie like this are multiplied with.
pub(super) trait Products: Numbers {
    /// Rows of x at once, which share the loads of codes.
    const ROWS: usize;
    /// The codes of a tile in one group.
    type Codes;

    /// # Safety
    /// The machine has AVX2; `low` and `high` point at a tile's planes.
    unsafe fn read<L: Layout>(low: *const u8, high: *const u8, codes: &mut Self::Codes);

    /// The sums of products of whole numbers of a part of k: of the tile's first eight rows of weights, and of the others.
    ///
    /// # Safety
    /// The machine has AVX2; `x` is the first of `R` groups that lie behind each other; `codes` were read.
    unsafe fn whole<L: Layout, const R: usize>(
        codes: &Self::Codes,
        part: usize,
        x: *const Group<Self>,
    ) -> [[__m256i; R]; 2];
}

/// What is made of a panel's chunk: codes, and scales and mins, of both tiles.
#[repr(C, align(64))]
pub(super) struct Chunk<N: Products> {
    codes: [[N::Codes; 2]; CHUNK],
    affine: [[Affine; 2]; CHUNK],
}

impl<N: Products> Family for Avx2<N> {
    type Numbers = N;
    type Chunk = Chunk<N>;
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn add<L: Layout>(
        panel: *const u8,
        groups: usize,
        x: (*const Group<N>, usize),
        sums: &mut [Sums],
        chunk: &mut Chunk<N>,
    ) {
        // SAFETY: passed on.
        unsafe { add::<L, N>(panel, groups, x, sums, chunk) }
    }
}

/// # Safety
/// As [`Family::add`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add<L: Layout, N: Products>(
    panel: *const u8,
    groups: usize,
    (x, stride): (*const Group<N>, usize),
    sums: &mut [Sums],
    chunk: &mut Chunk<N>,
) {
    for first in (0..groups).step_by(CHUNK) {
        let count = CHUNK.min(groups - first);
        // SAFETY: the caller's.
        unsafe {
            for i in 0..count {
                read::<L, N>(panel, first + i, &mut chunk.codes[i], &mut chunk.affine[i]);
            }
            add_chunk::<L::Alike, N>(chunk, count, (x.add(first * stride), stride), sums);
        }
    }
}

/// Codes and scales of a group of a panel.
///
/// # Safety
/// The machine has these features; the panel holds the group.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn read<L: Layout, N: Products>(
    panel: *const u8,
    group: usize,
    codes: &mut [N::Codes; 2],
    scales: &mut [Affine; 2],
) {
    let place = L::PLAN.locate(group);
    // SAFETY: planes and scales lie in the group and its unit; a fetch cannot fault.
    unsafe {
        fetch(panel.add(place.group), L::PLAN.group_bytes());
        for tile in 0..2 {
            let (low, high) = L::PLAN.planes(tile);
            let (low, high) = (panel.add(place.group + low), panel.add(place.group + high));
            N::read::<L>(low, high, &mut codes[tile]);
            scales[tile] = affine::<L>(panel.add(place.unit), panel.add(place.group), tile);
        }
    }
}

/// A chunk by all rows.
///
/// # Safety
/// As [`Family::add`].
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_chunk<L: Layout, N: Products>(
    chunk: &Chunk<N>,
    groups: usize,
    (x, stride): (*const Group<N>, usize),
    sums: &mut [Sums],
) {
    for (sums, row) in sums.chunks_mut(N::ROWS).zip((0..).step_by(N::ROWS)) {
        // SAFETY: the caller's.
        unsafe {
            let x = (x.add(row), stride);
            match sums.len() {
                1 => add_rows::<L, N, 1>(chunk, groups, x, sums),
                2 => add_rows::<L, N, 2>(chunk, groups, x, sums),
                _ if const { N::ROWS == 2 } => unreachable!("as many as there are at once"),
                3 => add_rows::<L, N, 3>(chunk, groups, x, sums),
                _ => add_rows::<L, N, 4>(chunk, groups, x, sums),
            }
        }
    }
}

/// With `R` rows.
///
/// # Safety
/// As [`Family::add`].
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_rows<L: Layout, N: Products, const R: usize>(
    chunk: &Chunk<N>,
    groups: usize,
    (x, stride): (*const Group<N>, usize),
    sums: &mut [Sums],
) {
    assert!(groups <= CHUNK);
    let sums: &mut [Sums; R] = sums.try_into().expect("rows that were counted");
    for tile in 0..2 {
        for i in 0..groups {
            // SAFETY: the caller's; eight of a tile's 16 rows, of a panel's 32.
            unsafe {
                let first = x.add(i * stride);
                let x: [&Group<N>; R] = std::array::from_fn(|r| &*first.add(r));
                let affine = &chunk.affine[i][tile];
                for part in 0..L::PLAN.runs() {
                    let products = N::whole::<L, R>(&chunk.codes[i][tile], part, first);
                    for (v, products) in products.into_iter().enumerate() {
                        let scale = _mm256_loadu_ps(affine.scale[part].as_ptr().add(8 * v));
                        let min = _mm256_loadu_ps(affine.min[part].as_ptr().add(8 * v));
                        for r in 0..R {
                            let at = sums[r].as_mut_ptr().add(TILE * tile + 8 * v);
                            let product = _mm256_cvtepi32_ps(products[r]);
                            let product = _mm256_mul_ps(product, _mm256_set1_ps(x[r].size));
                            let mut total = _mm256_fmadd_ps(scale, product, _mm256_loadu_ps(at));
                            if L::PLAN.shifted() {
                                total = _mm256_fmadd_ps(min, _mm256_set1_ps(x[r].sums[part]), total);
                            }
                            _mm256_storeu_ps(at, total);
                        }
                    }
                }
            }
        }
    }
}
