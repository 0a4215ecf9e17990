//! The exponential function, with the same bits in every instruction set.
//!
//! `exp(x) = 2^n * exp(r)`, n the nearest integer to `x / ln 2`, `|r| <= ln 2 / 2`, and `exp(r)` a
//! polynomial of degree 6 fitted for the least relative error (3e-9 before rounding; with f32 rounding
//! the result is within 1e-7, about one unit in the last place). Results that would be subnormal are 0.

/// Below this (`ln 2^-126`) the result is 0.
const LOWEST: f32 = -87.336_54;
/// Above this (`ln` of the largest float) the result is infinite.
const HIGHEST: f32 = 88.722_83;
const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// Adding it leaves the nearest integer in the low bits of the mantissa.
const ROUND: f32 = 12_582_912.0;
/// `ln 2` in two parts, the first with so few bits that `n` times it is exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// `exp(r) = 1 + r + r^2 * (C[0] + C[1] r + ...)`.
const C: [f32; 5] = [0.499_999_94, 0.166_665_2, 0.041_668_393, 0.008_368_781, 0.001_381_446_7];

/// `e^x`; 0 at minus infinity (and for any result below the normal numbers), NaN for NaN.
///
/// Inlined into a function that has FMA, a loop of it becomes vector code with the same results.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let shifted = x.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let p = C[4].mul_add(r, C[3]).mul_add(r, C[2]).mul_add(r, C[1]).mul_add(r, C[0]);
    let y = (r * r).mul_add(p, r) + 1.0;
    // 2^n in two factors, since n may be 128 while the result is finite.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    let y = y * power_of_two(half) * power_of_two(n.wrapping_sub(half));
    let y = if x < LOWEST { 0.0 } else { y };
    if x > HIGHEST { f32::INFINITY } else { y }
}

#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

#[cfg(target_arch = "x86_64")]
pub use x86::exp_512;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{C, HIGHEST, LN_2_HIGH, LN_2_LOW, LOG2_E, LOWEST, ROUND};
    use std::arch::x86_64::*;

    /// [`exp`](super::exp) of 16 values.
    ///
    /// # Safety
    /// A caller without AVX-512 in its own features knows that the machine has it.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn exp_512(x: __m512) -> __m512 {
        let shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(LOG2_E), _mm512_set1_ps(ROUND));
        let n = _mm512_sub_ps(shifted, _mm512_set1_ps(ROUND));
        let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(LN_2_HIGH), x);
        let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(LN_2_LOW), r);
        let mut p = _mm512_set1_ps(C[4]);
        for c in [C[3], C[2], C[1], C[0]] {
            p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
        }
        let y = _mm512_fmadd_ps(_mm512_mul_ps(r, r), p, r);
        let y = _mm512_add_ps(y, _mm512_set1_ps(1.0));
        // One rounding-free scale does what the two factors do; results are normal or infinite.
        let y = _mm512_scalef_ps(y, n);
        let kept = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(LOWEST));
        let y = _mm512_maskz_mov_ps(kept, y);
        let over = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, _mm512_set1_ps(HIGHEST));
        _mm512_mask_mov_ps(y, over, _mm512_set1_ps(f32::INFINITY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<f32> {
        let special = [
            0.0,
            -0.0,
            1.0,
            f32::NEG_INFINITY,
            f32::INFINITY,
            f32::NAN,
            f32::MAX,
            f32::MIN,
            1e-20,
            LOWEST,
            HIGHEST,
            LOWEST.next_down(),
            HIGHEST.next_up(),
        ];
        let line = (0..200_000).map(|i| -90.0 + 180.0 * i as f32 / 200_000.0);
        special.into_iter().chain(line).chain([0.0; 3]).collect()
    }

    #[test]
    fn close_to_the_double() {
        for x in samples().into_iter().filter(|x| (LOWEST..=HIGHEST).contains(x)) {
            let right = f64::from(x).exp();
            let error = (f64::from(exp(x)) - right).abs() / right;
            assert!(error < 1.2e-7, "exp({x}) is off by {error:e}");
        }
    }

    #[test]
    fn the_ends_are_exact() {
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e30), 0.0);
        assert_eq!(exp(LOWEST.next_down()), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(HIGHEST).is_finite());
        assert!(exp(f32::NAN).is_nan());
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_width_gives_the_same_bits() {
        use crate::Isa;
        use std::arch::x86_64::*;
        for chunk in samples().chunks_exact(16) {
            let expected: Vec<u32> = chunk.iter().map(|x| exp(*x).to_bits()).collect();
            let mut got = [0.0f32; 16];
            if Isa::Avx512.available() {
                // SAFETY: the machine has AVX-512; chunk and `got` hold 16 values.
                unsafe { _mm512_storeu_ps(got.as_mut_ptr(), exp_512(_mm512_loadu_ps(chunk.as_ptr()))) };
                same(&got, &expected, chunk);
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn same(got: &[f32], expected: &[u32], x: &[f32]) {
        for ((got, expected), x) in got.iter().zip(expected).zip(x) {
            let both_nan = got.is_nan() && f32::from_bits(*expected).is_nan();
            assert!(both_nan || got.to_bits() == *expected, "exp({x}) = {got}");
        }
    }
}
