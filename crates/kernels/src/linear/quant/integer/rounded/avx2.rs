//! The same numbers by vectors of AVX2: eight of 32 values each.

use std::arch::x86_64::*;

use half::bf16;

use super::super::super::plan::GROUP;
use super::{Group, Order, UPPER, scale, sums_of};
use crate::mat::Mat;

/// As [`round`](super::round).
#[target_feature(enable = "avx2,fma")]
pub(in super::super) fn round<const BYTES: usize>(
    x: Mat<'_, bf16>,
    group: usize,
    order: Order,
    parts: usize,
    out: &mut [Group<BYTES>],
) {
    let k = group * GROUP..x.cols().min((group + 1) * GROUP);
    for (row, out) in out.iter_mut().enumerate().take(x.rows()) {
        let values = &x.row(row)[k.clone()];
        *out = match values.first_chunk() {
            Some(values) => round_group(values, order, parts),
            None => {
                let mut all = [bf16::ZERO; GROUP];
                all[..values.len()].copy_from_slice(values);
                round_group(&all, order, parts)
            }
        };
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn round_group<const BYTES: usize>(values: &[bf16; GROUP], order: Order, parts: usize) -> Group<BYTES> {
    // SAFETY: four times eight values.
    let x: [__m256; 4] = std::array::from_fn(|i| unsafe {
        let words = _mm_loadu_si128(values.as_ptr().add(8 * i).cast());
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(words)))
    });
    let (size, inverse) = scale::<BYTES>(f32::from_bits(largest_bits(x)));
    let numbers = x.map(|x| nearest(_mm256_mul_ps(x, _mm256_set1_ps(inverse))));
    let halves =
        [sum(_mm256_add_epi32(numbers[0], numbers[1])), sum(_mm256_add_epi32(numbers[2], numbers[3]))];
    let (sum, sums) = sums_of(size, halves, parts);
    let mut left = numbers;
    let mut bytes = [[0; GROUP]; BYTES];
    for (byte, above) in bytes.iter_mut().zip((0..BYTES as u32).rev()) {
        let one = UPPER.pow(above);
        let shift = _mm_cvtsi32_si128(one.ilog2() as i32);
        let upper = left.map(|n| _mm256_sra_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(one / 2)), shift));
        left = std::array::from_fn(|i| _mm256_sub_epi32(left[i], _mm256_sll_epi32(upper[i], shift)));
        // SAFETY: 32 bytes.
        unsafe { _mm256_storeu_si256(byte.as_mut_ptr().cast(), lowest_bytes(upper, order)) };
    }
    Group { numbers: bytes, size, sums, sum }
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
            for (order, parts) in [(Order::Natural, 1), (Order::Natural, 2), (Order::EvensFirst, 1)] {
                same::<1>(Mat::new(&values, 3, 40), order, parts);
                same::<2>(Mat::new(&values, 3, 40), order, parts);
            }
        }
    }

    fn same<const BYTES: usize>(x: Mat<'_, bf16>, order: Order, parts: usize) {
        for group in 0..2 {
            let (mut ours, mut right) = ([Group::<BYTES>::ZERO; 3], [Group::<BYTES>::ZERO; 3]);
            super::super::round(x, group, order, parts, &mut right);
            // SAFETY: the machine has AVX2, and all that have it have FMA.
            unsafe { round(x, group, order, parts, &mut ours) };
            for (ours, right) in ours.iter().zip(&right) {
                assert_eq!(ours.numbers, right.numbers, "{group} {parts}");
                let bits = |g: &Group<BYTES>| (g.size.to_bits(), g.sums.map(f32::is_finite));
                assert_eq!(bits(ours), bits(right), "{group} {parts}");
                if right.size.is_finite() {
                    assert_eq!((ours.sum, ours.sums), (right.sum, right.sums), "{group} {parts}");
                }
            }
        }
    }
}
