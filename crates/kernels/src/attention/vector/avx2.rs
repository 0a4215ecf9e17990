//! Eight lanes.

use super::simd::{Job, Simd};
use half::bf16;
use std::arch::x86_64::*;

/// AVX2 with FMA.
#[derive(Clone, Copy)]
pub(in crate::attention) struct Avx2;

// SAFETY: each method is one or a few instructions of the set, as its name says.
unsafe impl Simd<8> for Avx2 {
    type V = __m256;

    #[target_feature(enable = "avx2,fma")]
    unsafe fn run(job: impl Job) {
        job.run();
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        // SAFETY: by the trait's contract; likewise below.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, v: __m256) {
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(to, v) }
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn scale(y: __m256, shifted: __m256, s: __m256, lowest: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe {
            let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
            let scaled = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), exponent));
            _mm256_and_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(s, lowest), scaled)
        }
    }
    #[inline(always)]
    unsafe fn load_pairs(from: *const bf16) -> (__m256, __m256) {
        // SAFETY: as above; reads 16 bf16.
        unsafe {
            let both = _mm256_loadu_si256(from.cast());
            let even = _mm256_slli_epi32::<16>(both);
            let odd = _mm256_and_si256(both, _mm256_set1_epi32(0xffff_0000u32 as i32));
            (_mm256_castsi256_ps(even), _mm256_castsi256_ps(odd))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> __m256 {
        // SAFETY: as above; reads 8 bf16.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn split_pairs(a: __m256, b: __m256) -> (__m256, __m256) {
        // SAFETY: as above.
        unsafe {
            let (even, odd) = (_mm256_shuffle_ps::<0x88>(a, b), _mm256_shuffle_ps::<0xdd>(a, b));
            let (even, odd) = (_mm256_castps_pd(even), _mm256_castps_pd(odd));
            let (even, odd) = (_mm256_permute4x64_pd::<0xd8>(even), _mm256_permute4x64_pd::<0xd8>(odd));
            (_mm256_castpd_ps(even), _mm256_castpd_ps(odd))
        }
    }
    #[inline(always)]
    unsafe fn sum_rows(r: [__m256; 8]) -> __m256 {
        // SAFETY: as above.
        unsafe {
            let a = _mm256_hadd_ps(_mm256_hadd_ps(r[0], r[1]), _mm256_hadd_ps(r[2], r[3]));
            let b = _mm256_hadd_ps(_mm256_hadd_ps(r[4], r[5]), _mm256_hadd_ps(r[6], r[7]));
            let (low, high) = (_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
            _mm256_add_ps(low, high)
        }
    }
    #[inline(always)]
    unsafe fn largest(v: __m256) -> f32 {
        // SAFETY: as above.
        unsafe {
            let m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let m = _mm_max_ps(m, _mm_movehl_ps(m, m));
            _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)))
        }
    }
    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: a prefetch may name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
}
