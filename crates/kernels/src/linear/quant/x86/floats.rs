//! Floats of 8 bits become halves, whose exponent has one bit more: the sign stays, all else goes down by one.
//!
//! ```text
//! s eeee mmm 00000000      a code as the upper byte of a word
//! s 0eeee mmm 0000000      the half, which the machine makes a float of: exact, subnormal numbers too
//! ```

use std::arch::x86_64::*;

/// Eight codes, each the upper byte of a word whose lower one is zero.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn eight(words: __m128i) -> __m256 {
    _mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16::<1>(words), _mm_set1_epi16(HALF)))
}

/// Sixteen of them.
#[inline]
#[target_feature(enable = "avx2,avx512f")]
pub(super) fn sixteen(words: __m256i) -> __m512 {
    _mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16::<1>(words), _mm256_set1_epi16(HALF)))
}

/// Sixteen codes beside each other.
#[inline]
#[target_feature(enable = "avx2,avx512f")]
pub(super) fn of_bytes(codes: __m128i) -> __m512 {
    sixteen(_mm256_slli_epi16::<8>(_mm256_cvtepu8_epi16(codes)))
}

/// Thirty-two codes as bf16: exponents have four bits more there and stand for 112 more, and numbers without one are looked up.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn in_bf16(codes: __m256i) -> __m512i {
    let words = _mm512_cvtepu8_epi16(codes);
    let magnitude = _mm512_and_si512(words, _mm512_set1_epi16(0x7f));
    let normal = _mm512_add_epi16(_mm512_slli_epi16::<4>(magnitude), _mm512_set1_epi16(112 << 7));
    // SAFETY: 64 bytes.
    let small = unsafe { _mm512_loadu_si512(SMALL.as_ptr().cast()) };
    let is_small = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8));
    let sized = _mm512_mask_permutexvar_epi16(normal, is_small, magnitude, small);
    let sign = _mm512_set1_epi16(i16::MIN);
    _mm512_ternarylogic_epi32::<0xf8>(sized, _mm512_slli_epi16::<8>(words), sign)
}

/// The first eight codes, which count 2^-17, in bf16.
static SMALL: [u16; 32] = {
    let (mut small, mut code) = ([0; 32], 0);
    while code < 8 {
        let value = code as f32 / (1 << 17) as f32;
        small[code] = (value.to_bits() >> 16) as u16;
        code += 1;
    }
    small
};

/// All but the second copy of the sign that a shift makes.
const HALF: i16 = 0xbf80_u16.cast_signed();
