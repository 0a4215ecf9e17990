//! Sixteen lanes.

use super::simd::{Job, Simd};
use crate::attention::f16::F16;
use crate::attention::fp8::{
    E4m3,
    wide::{widened, widened_512},
};
use half::bf16;
use std::arch::x86_64::*;

/// AVX-512 F, BW, DQ and VL.
#[derive(Clone, Copy)]
pub(in crate::attention) struct Avx512;

// SAFETY: each method is one or a few instructions of the set, as its name says.
unsafe impl Simd<16> for Avx512 {
    type V = __m512;
    type Words = __m512i;

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn run(job: impl Job) {
        job.run();
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: by the trait's contract; likewise below.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, v: __m512) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(to, v) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn scale(y: __m512, shifted: __m512, s: __m512, lowest: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
            let scaled = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y), exponent));
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(s, lowest), scaled)
        }
    }
    #[inline(always)]
    unsafe fn load_pairs(from: *const bf16) -> (__m512, __m512) {
        // SAFETY: as above; reads 32 bf16.
        unsafe { pairs(_mm512_loadu_si512(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> __m512 {
        // SAFETY: as above; reads 16 bf16.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_fp8_pairs(from: *const E4m3) -> (__m512, __m512) {
        // SAFETY: as above; reads 32 bytes.
        unsafe { pairs(widened_512(_mm256_loadu_si256(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const F16) -> __m512 {
        // SAFETY: as above; reads 16 numbers.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_fp8(from: *const E4m3) -> __m512 {
        // SAFETY: as above; reads 16 bytes.
        unsafe {
            let words = widened(_mm_loadu_si128(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(words)))
        }
    }
    #[inline(always)]
    unsafe fn load_words(from: *const u16) -> __m512i {
        // SAFETY: as above; reads 32 words.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn splat_words(from: *const u32) -> __m512i {
        // SAFETY: as above; reads two words.
        unsafe { _mm512_set1_epi32(from.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn zero_words() -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn store_words(to: *mut i16, low: __m512, high: __m512) {
        // SAFETY: as above; writes 32 words.
        unsafe {
            for (i, half) in [low, high].into_iter().enumerate() {
                let words = _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(half));
                _mm256_storeu_si256(to.add(16 * i).cast(), words);
            }
        }
    }
    #[inline(always)]
    unsafe fn codes(words: __m512i, place: usize) -> __m512i {
        // SAFETY: as above.
        unsafe {
            let shifted = match place {
                0 => words,
                1 => _mm512_srli_epi16::<4>(words),
                2 => _mm512_srli_epi16::<8>(words),
                // Nothing is above it.
                _ => return _mm512_srli_epi16::<12>(words),
            };
            _mm512_and_si512(shifted, _mm512_set1_epi16(15))
        }
    }
    #[inline(always)]
    unsafe fn add_products(sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_add_epi32(sums, _mm512_madd_epi16(a, b)) }
    }
    #[inline(always)]
    unsafe fn floats(whole: __m512i) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_cvtepi32_ps(whole) }
    }
    #[inline(always)]
    unsafe fn turn_words(rows: *const u16, apart: usize) -> [__m512; 4] {
        // SAFETY: as above; reads 8 words of 16 rows.
        unsafe {
            let mut four = [_mm512_setzero_si512(); 4];
            for (i, four) in four.iter_mut().enumerate() {
                let row = |j: usize| _mm_loadu_si128(rows.add((4 * j + i) * apart).cast());
                let low = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(row(0)), row(1));
                let high = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(row(2)), row(3));
                *four = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
            }
            let [a, b, c, d] = four;
            let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
            let (ef, gh) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
            [
                _mm512_castsi512_ps(_mm512_unpacklo_epi64(ab, cd)),
                _mm512_castsi512_ps(_mm512_unpackhi_epi64(ab, cd)),
                _mm512_castsi512_ps(_mm512_unpacklo_epi64(ef, gh)),
                _mm512_castsi512_ps(_mm512_unpackhi_epi64(ef, gh)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn split_pairs(a: __m512, b: __m512) -> (__m512, __m512) {
        // SAFETY: as above.
        unsafe {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
            (_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b))
        }
    }
    /// A tree: each level adds halves, quarters and so on of two vectors side by side.
    #[inline(always)]
    unsafe fn sum_rows(r: [__m512; 16]) -> __m512 {
        // SAFETY: as above.
        unsafe {
            let mut four = [_mm512_setzero_ps(); 4];
            for (four, r) in four.iter_mut().zip(r.as_chunks().0) {
                *four = lanes_of_four(*r);
            }
            add_halves(add_halves(four[0], four[1]), add_halves(four[2], four[3]))
        }
    }
    #[inline(always)]
    unsafe fn sum_whole(r: [__m512i; 16]) -> __m512i {
        // SAFETY: as above.
        unsafe {
            let mut four = [_mm512_setzero_si512(); 4];
            for (four, r) in four.iter_mut().zip(r.as_chunks().0) {
                *four = whole_lanes_of_four(*r);
            }
            let [a, b, c, d] = four;
            add_whole_halves(add_whole_halves(a, b), add_whole_halves(c, d))
        }
    }
    #[inline(always)]
    unsafe fn add_to_two(
        (rows, stride): (*const bf16, usize),
        (first, apart): (*const f32, usize),
        n: usize,
        sums: &mut [__m512; 16],
    ) {
        let (with_first, with_second) = sums.split_at_mut(8);
        for i in (0..n).step_by(32) {
            // SAFETY: as above; reads `n` numbers of eight rows and of two queries.
            unsafe {
                let at =
                    |query: usize, half: usize| _mm512_loadu_ps(first.add(query * apart + i + 16 * half));
                let (a, b) = ([at(0, 0), at(0, 1)], [at(1, 0), at(1, 1)]);
                for row in 0..8 {
                    let (even, odd) = Self::load_pairs(rows.add(row * stride + i));
                    with_first[row] = Self::fma(odd, a[1], Self::fma(even, a[0], with_first[row]));
                    with_second[row] = Self::fma(odd, b[1], Self::fma(even, b[0], with_second[row]));
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn largest(v: __m512) -> f32 {
        // SAFETY: as above.
        unsafe { _mm512_reduce_max_ps(v) }
    }
    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: a prefetch may name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
}

/// 32 numbers of bf16: those at even places, those at odd ones.
#[inline]
#[target_feature(enable = "avx512f")]
fn pairs(both: __m512i) -> (__m512, __m512) {
    let even = _mm512_slli_epi32::<16>(both);
    let odd = _mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000u32 as i32));
    (_mm512_castsi512_ps(even), _mm512_castsi512_ps(odd))
}

/// Place i of each lane of 128 bits: the sum over that lane of row i.
#[inline]
#[target_feature(enable = "avx512f")]
fn lanes_of_four(r: [__m512; 4]) -> __m512 {
    let ab = _mm512_add_ps(_mm512_unpacklo_ps(r[0], r[1]), _mm512_unpackhi_ps(r[0], r[1]));
    let cd = _mm512_add_ps(_mm512_unpacklo_ps(r[2], r[3]), _mm512_unpackhi_ps(r[2], r[3]));
    let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    let (low, high) = (_mm512_unpacklo_pd(ab, cd), _mm512_unpackhi_pd(ab, cd));
    _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
}

/// Of every two lanes of 128 bits side by side their sum: first those of `a`, then those of `b`.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_halves(a: __m512, b: __m512) -> __m512 {
    _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b))
}

/// [`lanes_of_four`] of whole numbers.
#[inline]
#[target_feature(enable = "avx512f")]
fn whole_lanes_of_four(r: [__m512i; 4]) -> __m512i {
    let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(r[0], r[1]), _mm512_unpackhi_epi32(r[0], r[1]));
    let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(r[2], r[3]), _mm512_unpackhi_epi32(r[2], r[3]));
    _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
}

/// [`add_halves`] of whole numbers.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_whole_halves(a: __m512i, b: __m512i) -> __m512i {
    _mm512_add_epi32(_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b))
}
