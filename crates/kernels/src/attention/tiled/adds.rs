//! Products of pairs of bf16 on vectors, added in either of the two orders that [`Order`](crate::isa::Order) names.

use super::products::PAIRS;
use std::arch::x86_64::*;

/// Bytes from a pair to the next, and from a query to the next.
pub(super) type Strides = (usize, usize);

/// In which order products are added.
pub(in crate::attention) trait Adds {
    /// Adds the products of a step, 16 lines of pairs with one pair each of `L` queries; `line(j)` are `H` vectors of the `j`th
    /// line, and what is fetched of a query meets all of them.
    ///
    /// # Safety
    /// The machine has AVX-512 with bf16; a query's pairs lie as far apart as the strides say.
    unsafe fn step<const H: usize, const L: usize>(
        line: impl FnMut(usize) -> [__m512i; H],
        pairs: *const u8,
        strides: Strides,
        sums: &mut [[__m512; L]; H],
    );
}

/// As instructions on pairs of bf16 add them.
pub(in crate::attention) struct InPairs;

impl Adds for InPairs {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn step<const H: usize, const L: usize>(
        mut line: impl FnMut(usize) -> [__m512i; H],
        pairs: *const u8,
        (by_pair, by_query): Strides,
        sums: &mut [[__m512; L]; H],
    ) {
        for j in 0..PAIRS {
            let line = line(j);
            for l in 0..L {
                // SAFETY: by the trait's contract; 512 bits of plain numbers either way.
                unsafe {
                    let pair: __m512bh = std::mem::transmute(pair_of(pairs, j * by_pair + l * by_query));
                    for h in 0..H {
                        let line: __m512bh = std::mem::transmute(line[h]);
                        sums[h][l] = _mm512_dpbf16_ps(sums[h][l], pair, line);
                    }
                }
            }
        }
    }
}

/// As a tile instruction adds them: a step is one group of it.
pub(in crate::attention) struct InGroups;

impl Adds for InGroups {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn step<const H: usize, const L: usize>(
        mut line: impl FnMut(usize) -> [__m512i; H],
        pairs: *const u8,
        (by_pair, by_query): Strides,
        sums: &mut [[__m512; L]; H],
    ) {
        let (mut even, mut odd) = ([[_mm512_setzero_ps(); L]; H], [[_mm512_setzero_ps(); L]; H]);
        for j in 0..PAIRS {
            let line = line(j).map(|line| halves(line));
            for l in 0..L {
                // SAFETY: by the trait's contract.
                let pair = halves(unsafe { pair_of(pairs, j * by_pair + l * by_query) });
                for h in 0..H {
                    even[h][l] = _mm512_fmadd_ps(pair.0, line[h].0, even[h][l]);
                    odd[h][l] = _mm512_fmadd_ps(pair.1, line[h].1, odd[h][l]);
                }
            }
        }
        for h in 0..H {
            for l in 0..L {
                sums[h][l] = _mm512_add_ps(sums[h][l], _mm512_add_ps(even[h][l], odd[h][l]));
            }
        }
    }
}

/// The pair that lies `at` bytes behind `pairs`, in every lane.
///
/// # Safety
/// It is there.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn pair_of(pairs: *const u8, at: usize) -> __m512i {
    // SAFETY: by this function's contract.
    _mm512_set1_epi32(unsafe { pairs.add(at).cast::<i32>().read_unaligned() })
}

/// The first number of every pair, and the second.
#[inline]
#[target_feature(enable = "avx512f")]
fn halves(pairs: __m512i) -> (__m512, __m512) {
    let second = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000u32 as i32));
    (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(second))
}
