//! The same numbers by vectors of AVX2: eight of 32 values each.

use std::arch::x86_64::*;

use half::bf16;

use super::super::super::plan::GROUP;
use super::{Bytes, Group, Numbers, Order, Rounding, UPPER, Words, scale, sums_of};
use crate::mat::Mat;

/// As [`round`](super::round).
#[target_feature(enable = "avx2,fma")]
pub(in super::super) fn round<N: Numbers>(
    x: Mat<'_, bf16>,
    group: usize,
    how: Rounding,
    out: &mut [Group<N>],
) {
    let k = group * GROUP..x.cols().min((group + 1) * GROUP);
    for (row, out) in out.iter_mut().enumerate().take(x.rows()) {
        let values = &x.row(row)[k.clone()];
        *out = match values.first_chunk() {
            Some(values) => round_group(values, how),
            None => {
                let mut all = [bf16::ZERO; GROUP];
                all[..values.len()].copy_from_slice(values);
                round_group(&all, how)
            }
        };
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn round_group<N: Numbers>(values: &[bf16; GROUP], Rounding { bits, order, parts }: Rounding) -> Group<N> {
    // SAFETY: four times eight values.
    let x: [__m256; 4] = std::array::from_fn(|i| unsafe {
        let words = _mm_loadu_si128(values.as_ptr().add(8 * i).cast());
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(words)))
    });
    let (size, inverse) = scale(bits, f32::from_bits(largest_bits(x)));
    let numbers = x.map(|x| nearest(_mm256_mul_ps(x, _mm256_set1_ps(inverse))));
    let halves =
        [sum(_mm256_add_epi32(numbers[0], numbers[1])), sum(_mm256_add_epi32(numbers[2], numbers[3]))];
    let (sum, sums) = sums_of(size, halves, parts);
    // SAFETY: this machine has AVX2.
    let numbers = unsafe { N::of_vectors(numbers, order) };
    Group { numbers, size, sums, sum }
}

/// The numbers byte by byte.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn bytes<const BYTES: usize>(mut left: [__m256i; 4], order: Order) -> Bytes<BYTES> {
    let mut bytes = Bytes::ZERO;
    for (byte, above) in bytes.iter_mut().zip((0..BYTES as u32).rev()) {
        let one = UPPER.pow(above);
        let shift = _mm_cvtsi32_si128(one.ilog2() as i32);
        let upper = left.map(|n| _mm256_sra_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(one / 2)), shift));
        left = std::array::from_fn(|i| _mm256_sub_epi32(left[i], _mm256_sll_epi32(upper[i], shift)));
        // SAFETY: 32 bytes.
        unsafe { _mm256_storeu_si256(byte.as_mut_ptr().cast(), lowest_bytes(upper, order)) };
    }
    bytes
}

/// The numbers word by word, in order of k.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn words(numbers: [__m256i; 4]) -> Words {
    let mut words = Words::ZERO;
    for (words, two) in words.chunks_exact_mut(16).zip(numbers.chunks_exact(2)) {
        // Packing goes by halves: fours lie as 0 2, 1 3.
        let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(two[0], two[1]));
        // SAFETY: 16 words.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), packed) };
    }
    words
}

/// The largest without its sign, as bits, among which NaN is the largest.
#[inline]
#[target_feature(enable = "avx2")]
fn largest_bits(x: [__m256; 4]) -> u32 {
    let bits = x.map(|x| _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fff_ffff)));
    let most = _mm256_max_epi32(_mm256_max_epi32(bits[0], bits[1]), _mm256_max_epi32(bits[2], bits[3]));
    let most = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256::<1>(most));
    let most = _mm_max_epi32(most, _mm_shuffle_epi32::<0b01_00_11_10>(most));
    _mm_cvtsi128_si32(_mm_max_epi32(most, _mm_shuffle_epi32::<0b00_00_00_01>(most))) as u32
}

/// As the scalar one.
#[inline]
#[target_feature(enable = "avx2")]
fn nearest(x: __m256) -> __m256i {
    let shift = _mm256_set1_ps(super::SHIFT);
    _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(x, shift)), _mm256_castps_si256(shift))
}

#[inline]
#[target_feature(enable = "avx2")]
fn sum(x: __m256i) -> i32 {
    let x = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
    let x = _mm_add_epi32(x, _mm_shuffle_epi32::<0b01_00_11_10>(x));
    _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32::<0b00_00_00_01>(x)))
}

/// The lowest byte of each number, in the order that is asked for.
#[inline]
#[target_feature(enable = "avx2")]
fn lowest_bytes(numbers: [__m256i; 4], order: Order) -> __m256i {
    let low = numbers.map(|n| _mm256_and_si256(n, _mm256_set1_epi32(0xff)));
    let bytes = _mm256_packus_epi16(_mm256_packus_epi32(low[0], low[1]), _mm256_packus_epi32(low[2], low[3]));
    // Packing goes by halves: words of four numbers lie as 0 2 4 6, 1 3 5 7.
    let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    match order {
        Order::Natural => bytes,
        Order::EvensFirst => {
            let eights = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
            _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(eights))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::super::Bits;
    use super::*;
    use crate::Isa;

    #[test]
    fn the_numbers_of_the_plain_loops() {
        if !Isa::Avx2.available() {
            return;
        }
        let odd = [f32::NAN, f32::INFINITY, -1e-37, 1e-36, 3e38, -0.0];
        for seed in 0..40usize {
            let mut values: Vec<bf16> = (0..3 * 40)
                .map(|i| bf16::from_f32(((i * 7919 + seed * 104_729) % 2003) as f32 / 77.0 - 13.0))
                .collect();
            if let Some(odd) = odd.get(seed) {
                values[seed * 11] = bf16::from_f32(*odd);
            }
            for bits in [Bits::Eight, Bits::Fifteen] {
                for (order, parts) in [(Order::Natural, 1), (Order::Natural, 2), (Order::EvensFirst, 1)] {
                    let (x, how) = (Mat::new(&values, 3, 40), Rounding { bits, order, parts });
                    match bits {
                        Bits::Eight => same::<Bytes<1>>(x, how),
                        Bits::Fifteen => same::<Bytes<2>>(x, how),
                    }
                    if order == Order::Natural {
                        same::<Words>(x, how);
                    }
                }
            }
        }
    }

    fn same<N: Numbers + PartialEq + Debug>(x: Mat<'_, bf16>, how: Rounding) {
        for group in 0..2 {
            let (mut ours, mut right) = ([Group::<N>::ZERO; 3], [Group::<N>::ZERO; 3]);
            super::super::round(x, group, how, &mut right);
            // SAFETY: the machine has AVX2, and all that have it have FMA.
            unsafe { round(x, group, how, &mut ours) };
            for (ours, right) in ours.iter().zip(&right) {
                assert_eq!(ours.numbers, right.numbers, "{group} {how:?}");
                let bits = |g: &Group<N>| (g.size.to_bits(), g.sums.map(f32::is_finite));
                assert_eq!(bits(ours), bits(right), "{group} {how:?}");
                if right.size.is_finite() {
                    assert_eq!((ours.sum, ours.sums), (right.sum, right.sums), "{group} {how:?}");
                }
            }
        }
    }
}
