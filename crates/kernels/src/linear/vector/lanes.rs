//! A vector of floats, as wide as the machine has them.

use std::arch::x86_64::*;

/// The few instructions that a matrix product needs. Inlined into a function with the features.
pub(super) trait Lanes: Copy {
    /// How many floats.
    const COUNT: usize;

    /// # Safety
    /// The machine has these vectors (so for every function here).
    unsafe fn zero() -> Self;
    /// # Safety
    /// `at` may be read.
    unsafe fn splat(at: *const f32) -> Self;
    /// # Safety
    /// `at` points at `COUNT` floats.
    unsafe fn load(at: *const f32) -> Self;
    /// # Safety
    /// `at` points at `COUNT` floats that may be written.
    unsafe fn store(self, at: *mut f32);
    /// The first of each of `COUNT` pairs of bf16, widened.
    ///
    /// # Safety
    /// `at` points at the pairs.
    unsafe fn load_first(at: *const u8) -> Self;
    /// The second of each of `COUNT` pairs of bf16, widened.
    ///
    /// # Safety
    /// `at` points at the pairs.
    unsafe fn load_second(at: *const u8) -> Self;
    /// # Safety
    /// None but the features.
    unsafe fn add(self, other: Self) -> Self;
    /// `self * factor + sum`, rounded once.
    ///
    /// # Safety
    /// None but the features.
    unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self;
}

/// The bits of the second bf16 of a pair: where they are, they are a float.
pub(in crate::linear) const SECOND: i32 = 0xffff_0000u32 as i32;

// The bodies below are safe to run because callers of the trait promise the features, and the pointers.
macro_rules! lanes {
    ($name:ident, $count:literal, $zero:ident, $splat:ident, $load:ident, $store:ident, $add:ident,
     $fma:ident, |$at:ident| $first:expr, $second:expr) => {
        impl Lanes for $name {
            const COUNT: usize = $count;

            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: the caller has the features.
                unsafe { $zero() }
            }

            #[inline(always)]
            unsafe fn splat(at: *const f32) -> Self {
                // SAFETY: the caller has the features, and promises the float.
                unsafe { $splat(*at) }
            }

            #[inline(always)]
            unsafe fn load(at: *const f32) -> Self {
                // SAFETY: the caller has the features, and promises the floats.
                unsafe { $load(at) }
            }

            #[inline(always)]
            unsafe fn store(self, at: *mut f32) {
                // SAFETY: the caller has the features, and promises the floats.
                unsafe { $store(at, self) }
            }

            #[inline(always)]
            unsafe fn load_first($at: *const u8) -> Self {
                // SAFETY: the caller has the features, and promises the pairs.
                unsafe { $first }
            }

            #[inline(always)]
            unsafe fn load_second($at: *const u8) -> Self {
                // SAFETY: the caller has the features, and promises the pairs.
                unsafe { $second }
            }

            #[inline(always)]
            unsafe fn add(self, other: Self) -> Self {
                // SAFETY: the caller has the features.
                unsafe { $add(self, other) }
            }

            #[inline(always)]
            unsafe fn multiply_add(self, factor: Self, sum: Self) -> Self {
                // SAFETY: the caller has the features.
                unsafe { $fma(self, factor, sum) }
            }
        }
    };
}

lanes!(
    __m256,
    8,
    _mm256_setzero_ps,
    _mm256_set1_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_add_ps,
    _mm256_fmadd_ps,
    |at| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_loadu_si256(at.cast()))),
    _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(at.cast()), _mm256_set1_epi32(SECOND)))
);

lanes!(
    __m512,
    16,
    _mm512_setzero_ps,
    _mm512_set1_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_add_ps,
    _mm512_fmadd_ps,
    |at| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_loadu_si512(at.cast()))),
    _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(at.cast()), _mm512_set1_epi32(SECOND)))
);
