//! Numbers of 8 bits as bf16, sixteen or thirty-two at a time.

use super::E4m3;
use std::arch::x86_64::*;

/// The eight numbers below the least normal one as bf16, low byte first: 0, 1, ... 7 times 2^-9.
const SMALL: [i64; 2] = [0x3bc0_3b80_3b00_0000, 0x3c60_3c40_3c20_3c00];
/// What the exponent of a normal number grows by.
const BIAS: i16 = (127 - 7) << 7;
/// NaN, and the code of its magnitude.
const NAN: (i16, i16) = (0x7fc0, 0x7f);

/// Sixteen codes as bf16, in order.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::attention) fn widened(codes: __m128i) -> __m256i {
    let words = _mm256_cvtepu8_epi16(codes);
    let magnitude = _mm256_and_si256(words, _mm256_set1_epi16(0x7f));
    let normal = _mm256_add_epi16(_mm256_slli_epi16::<4>(magnitude), _mm256_set1_epi16(BIAS));
    // Of magnitude `m` bytes `2 m` and `2 m + 1`.
    let twice = _mm256_mullo_epi16(magnitude, _mm256_set1_epi16(0x0202));
    let table = _mm256_setr_epi64x(SMALL[0], SMALL[1], SMALL[0], SMALL[1]);
    let small = _mm256_shuffle_epi8(table, _mm256_add_epi16(twice, _mm256_set1_epi16(0x0100)));
    let is_small = _mm256_cmpgt_epi16(_mm256_set1_epi16(8), magnitude);
    let is_nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(NAN.1));
    let finite = _mm256_blendv_epi8(normal, small, is_small);
    let meant = _mm256_or_si256(finite, _mm256_and_si256(is_nan, _mm256_set1_epi16(NAN.0)));
    let sign = _mm256_slli_epi16::<8>(_mm256_andnot_si256(_mm256_set1_epi16(0x7f), words));
    _mm256_or_si256(meant, sign)
}

/// Thirty-two codes as bf16, in order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(in crate::attention) fn widened_512(codes: __m256i) -> __m512i {
    let words = _mm512_cvtepu8_epi16(codes);
    let magnitude = _mm512_and_si512(words, _mm512_set1_epi16(0x7f));
    let normal = _mm512_add_epi16(_mm512_slli_epi16::<4>(magnitude), _mm512_set1_epi16(BIAS));
    let is_small = _mm512_cmplt_epi16_mask(magnitude, _mm512_set1_epi16(8));
    let table = _mm512_broadcast_i32x4(_mm_set_epi64x(SMALL[1], SMALL[0]));
    let finite = _mm512_mask_permutexvar_epi16(normal, is_small, magnitude, table);
    let is_nan = _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(NAN.1));
    let meant = _mm512_mask_mov_epi16(finite, is_nan, _mm512_set1_epi16(NAN.0));
    // meant | (words << 8 & the sign)
    _mm512_ternarylogic_epi32::<0xf8>(meant, _mm512_slli_epi16::<8>(words), _mm512_set1_epi16(i16::MIN))
}

/// Widens `n` numbers, a multiple of 16.
///
/// # Safety
/// The machine has AVX-512 BW; `from` has `n` numbers, `to` room for them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
pub(in crate::attention) unsafe fn widen_line(from: *const E4m3, to: *mut u8, n: usize) {
    let whole = n / 32 * 32;
    // SAFETY: by this function's contract.
    unsafe {
        for i in (0..whole).step_by(32) {
            let codes = _mm256_loadu_si256(from.add(i).cast());
            _mm512_storeu_si512(to.add(2 * i).cast(), widened_512(codes));
        }
        if whole < n {
            let codes = _mm_loadu_si128(from.add(whole).cast());
            _mm256_storeu_si256(to.add(2 * whole).cast(), widened(codes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elementwise::Element;
    use half::bf16;

    #[test]
    fn every_code_is_the_number_that_it_means() {
        if crate::Isa::Avx2.available() {
            means_what_it_should(256, |from, to, n| {
                for i in (0..n).step_by(16) {
                    // SAFETY: the machine has AVX2, and there are as many of both; likewise below.
                    unsafe {
                        let wide = widened(_mm_loadu_si128(from.add(i).cast()));
                        _mm256_storeu_si256(to.add(2 * i).cast(), wide);
                    }
                }
            });
        }
        if crate::Isa::Avx512.available() {
            for n in [256, 48] {
                // SAFETY: as above.
                means_what_it_should(n, |from, to, n| unsafe { widen_line(from, to, n) });
            }
        }
    }

    /// Of the first `n` codes.
    fn means_what_it_should(n: usize, widen: impl Fn(*const E4m3, *mut u8, usize)) {
        let codes: Vec<E4m3> = (0..=255).map(E4m3).collect();
        let mut wide = [bf16::ZERO; 256];
        widen(codes.as_ptr(), wide.as_mut_ptr().cast(), n);
        for (code, wide) in codes.iter().zip(wide).take(n) {
            let (want, got) = (code.to_f32(), wide.to_f32());
            assert!(
                want.to_bits() == got.to_bits() || want.is_nan() && got.is_nan(),
                "{code:?}: {got} for {want}"
            );
        }
    }
}
