//! Eight lanes.

use super::simd::{Job, Simd};
use crate::attention::f16::F16;
use crate::attention::fp8::{E4m3, wide::widened};
use half::bf16;
use std::arch::asm;
use std::arch::x86_64::*;

/// AVX2 with FMA and F16C.
#[derive(Clone, Copy)]
pub(in crate::attention) struct Avx2;

// SAFETY: each method is one or a few instructions of the set, as its name says.
unsafe impl Simd<8> for Avx2 {
    type V = __m256;
    type Words = __m256i;

    #[target_feature(enable = "avx2,fma,f16c")]
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
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_mul_ps(a, b) }
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
            _mm256_and_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(s, lowest), scaled)
        }
    }
    #[inline(always)]
    unsafe fn load_pairs(from: *const bf16) -> (__m256, __m256) {
        // SAFETY: as above; reads 16 bf16.
        unsafe { pairs(_mm256_loadu_si256(from.cast())) }
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
    unsafe fn load_fp8_pairs(from: *const E4m3) -> (__m256, __m256) {
        // SAFETY: as above; reads 16 bytes.
        unsafe { pairs(widened(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const F16) -> __m256 {
        // SAFETY: as above; reads 8 numbers.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_fp8(from: *const E4m3) -> __m256 {
        // SAFETY: as above; reads 8 bytes.
        unsafe {
            let words = _mm256_castsi256_si128(widened(_mm_loadl_epi64(from.cast())));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(words)))
        }
    }
    #[inline(always)]
    unsafe fn load_words(from: *const u16) -> __m256i {
        // SAFETY: as above; reads 16 words.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn splat_words(from: *const u32) -> __m256i {
        // SAFETY: as above; reads two words.
        unsafe { _mm256_set1_epi32(from.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn zero_words() -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    unsafe fn store_words(to: *mut i16, low: __m256, high: __m256) {
        // SAFETY: as above; writes 16 words.
        unsafe {
            // Packing goes by halves of a vector.
            let both = _mm256_packs_epi32(_mm256_cvtps_epi32(low), _mm256_cvtps_epi32(high));
            _mm256_storeu_si256(to.cast(), _mm256_permute4x64_epi64::<0xd8>(both));
        }
    }
    #[inline(always)]
    unsafe fn codes(words: __m256i, place: usize) -> __m256i {
        // SAFETY: as above.
        unsafe {
            let shifted = match place {
                0 => words,
                1 => _mm256_srli_epi16::<4>(words),
                2 => _mm256_srli_epi16::<8>(words),
                // Nothing is above it.
                _ => return _mm256_srli_epi16::<12>(words),
            };
            _mm256_and_si256(shifted, _mm256_set1_epi16(15))
        }
    }
    #[inline(always)]
    unsafe fn add_products(sums: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_add_epi32(sums, _mm256_madd_epi16(a, b)) }
    }
    #[inline(always)]
    unsafe fn floats(whole: __m256i) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_cvtepi32_ps(whole) }
    }
    #[inline(always)]
    unsafe fn turn_words(rows: *const u16, apart: usize) -> [__m256; 4] {
        // SAFETY: as above; reads 8 words of 8 rows.
        unsafe {
            let mut four = [_mm256_setzero_si256(); 4];
            for (i, four) in four.iter_mut().enumerate() {
                let low = _mm_loadu_si128(rows.add(i * apart).cast());
                let high = _mm_loadu_si128(rows.add((4 + i) * apart).cast());
                *four = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high);
            }
            let [a, b, c, d] = four;
            let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
            let (ef, gh) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
            [
                _mm256_castsi256_ps(_mm256_unpacklo_epi64(ab, cd)),
                _mm256_castsi256_ps(_mm256_unpackhi_epi64(ab, cd)),
                _mm256_castsi256_ps(_mm256_unpacklo_epi64(ef, gh)),
                _mm256_castsi256_ps(_mm256_unpackhi_epi64(ef, gh)),
            ]
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
            let [a, b, c, d, e, f, g, h] = r;
            let (a, b) = (lanes_of_four([a, b, c, d]), lanes_of_four([e, f, g, h]));
            let (low, high) = (_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
            _mm256_add_ps(low, high)
        }
    }
    #[inline(always)]
    unsafe fn sum_whole(r: [__m256i; 8]) -> __m256i {
        // SAFETY: as above.
        unsafe {
            let [a, b, c, d, e, f, g, h] = r;
            let (a, b) = (whole_lanes_of_four([a, b, c, d]), whole_lanes_of_four([e, f, g, h]));
            let (low, high) =
                (_mm256_permute2x128_si256::<0x20>(a, b), _mm256_permute2x128_si256::<0x31>(a, b));
            _mm256_add_epi32(low, high)
        }
    }
    #[inline(always)]
    unsafe fn add_to_two(
        rows: (*const bf16, usize),
        queries: (*const f32, usize),
        n: usize,
        sums: &mut [__m256; 8],
    ) {
        // SAFETY: as above.
        unsafe { add_to_two(rows, queries, n, sums) };
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

/// 16 numbers of bf16: those at even places, those at odd ones.
#[inline]
#[target_feature(enable = "avx2")]
fn pairs(both: __m256i) -> (__m256, __m256) {
    let even = _mm256_slli_epi32::<16>(both);
    let odd = _mm256_and_si256(both, _mm256_set1_epi32(0xffff_0000u32 as i32));
    (_mm256_castsi256_ps(even), _mm256_castsi256_ps(odd))
}

/// Place i of each lane of 128 bits: the sum over that lane of row i. Horizontal additions would take longer.
#[inline]
#[target_feature(enable = "avx2")]
fn lanes_of_four(r: [__m256; 4]) -> __m256 {
    let ab = _mm256_add_ps(_mm256_unpacklo_ps(r[0], r[1]), _mm256_unpackhi_ps(r[0], r[1]));
    let cd = _mm256_add_ps(_mm256_unpacklo_ps(r[2], r[3]), _mm256_unpackhi_ps(r[2], r[3]));
    let (ab, cd) = (_mm256_castps_pd(ab), _mm256_castps_pd(cd));
    let (low, high) = (_mm256_unpacklo_pd(ab, cd), _mm256_unpackhi_pd(ab, cd));
    _mm256_add_ps(_mm256_castpd_ps(low), _mm256_castpd_ps(high))
}

/// The same of whole numbers.
#[inline]
#[target_feature(enable = "avx2")]
fn whole_lanes_of_four(r: [__m256i; 4]) -> __m256i {
    let ab = _mm256_add_epi32(_mm256_unpacklo_epi32(r[0], r[1]), _mm256_unpackhi_epi32(r[0], r[1]));
    let cd = _mm256_add_epi32(_mm256_unpacklo_epi32(r[2], r[3]), _mm256_unpackhi_epi32(r[2], r[3]));
    _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd))
}

/// [`Simd::add_to_two`] in assembly: 15 of 16 registers are in use, and a compiler has some of the sums in memory.
///
/// # Safety
/// As there.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_to_two(
    (rows, stride): (*const bf16, usize),
    (first, apart): (*const f32, usize),
    n: usize,
    sums: &mut [__m256; 8],
) {
    let [a0, a1, a2, a3, b0, b1, b2, b3] = sums;
    // SAFETY: reads `n` numbers of four rows and of two queries, as the caller promises.
    unsafe {
        asm!(
            "2:",
            "vmovups {ae}, [{a}]",
            "vmovups {ao}, [{a} + 32]",
            "vmovups {be}, [{b}]",
            "vmovups {bo}, [{b} + 32]",
            "vmovdqu {odd}, [{row}]",
            "vpslld {even}, {odd}, 16",
            "vpand {odd}, {odd}, {upper}",
            "vfmadd231ps {a0}, {even}, {ae}",
            "vfmadd231ps {b0}, {even}, {be}",
            "vfmadd231ps {a0}, {odd}, {ao}",
            "vfmadd231ps {b0}, {odd}, {bo}",
            "vmovdqu {odd}, [{row} + {stride}]",
            "vpslld {even}, {odd}, 16",
            "vpand {odd}, {odd}, {upper}",
            "vfmadd231ps {a1}, {even}, {ae}",
            "vfmadd231ps {b1}, {even}, {be}",
            "vfmadd231ps {a1}, {odd}, {ao}",
            "vfmadd231ps {b1}, {odd}, {bo}",
            "vmovdqu {odd}, [{row} + 2*{stride}]",
            "vpslld {even}, {odd}, 16",
            "vpand {odd}, {odd}, {upper}",
            "vfmadd231ps {a2}, {even}, {ae}",
            "vfmadd231ps {b2}, {even}, {be}",
            "vfmadd231ps {a2}, {odd}, {ao}",
            "vfmadd231ps {b2}, {odd}, {bo}",
            "vmovdqu {odd}, [{row} + {stride3}]",
            "vpslld {even}, {odd}, 16",
            "vpand {odd}, {odd}, {upper}",
            "vfmadd231ps {a3}, {even}, {ae}",
            "vfmadd231ps {b3}, {even}, {be}",
            "vfmadd231ps {a3}, {odd}, {ao}",
            "vfmadd231ps {b3}, {odd}, {bo}",
            "add {row}, 32",
            "add {a}, 64",
            "add {b}, 64",
            "sub {left}, 16",
            "jne 2b",
            row = inout(reg) rows => _,
            stride = in(reg) 2 * stride,
            stride3 = in(reg) 6 * stride,
            a = inout(reg) first => _,
            b = inout(reg) first.add(apart) => _,
            left = inout(reg) n => _,
            upper = in(ymm_reg) _mm256_set1_epi32(0xffff_0000u32 as i32),
            even = out(ymm_reg) _, odd = out(ymm_reg) _,
            ae = out(ymm_reg) _, ao = out(ymm_reg) _, be = out(ymm_reg) _, bo = out(ymm_reg) _,
            a0 = inout(ymm_reg) *a0, a1 = inout(ymm_reg) *a1, a2 = inout(ymm_reg) *a2, a3 = inout(ymm_reg) *a3,
            b0 = inout(ymm_reg) *b0, b1 = inout(ymm_reg) *b1, b2 = inout(ymm_reg) *b2, b3 = inout(ymm_reg) *b3,
            options(nostack, readonly),
        );
    }
}
