//! The inner loops: keys with queries, scores to weights, values with weights.

use super::simd::Simd;
use super::widened::Widened;
use crate::attention::element::Stored;
use crate::attention::f16::F16;
use crate::attention::fp8::E4m3;
use crate::attention::layout::{BLOCK_TOKENS, GROUP_TOKENS, KvDtype};
use half::bf16;

/// The maximum of a query that has seen nothing.
pub(in crate::attention) const EMPTY: f32 = -4_194_304.0;
/// Adding it leaves the nearest integer in a float's low bits.
pub(in crate::attention) const ROUND: f32 = 12_582_912.0;
/// `2^x` for `|x| <= 1/2`, within 2e-9 before rounding.
const EXP2: [f32; 7] = [
    1.0,
    std::f32::consts::LN_2,
    0.240_226_48,
    0.055_503_324,
    0.009_618_437,
    0.001_339_887_4,
    0.000_153_533_62,
];

/// Widens `n` numbers, a multiple of `W`: bf16 and fp8 in pairs of vectors (even, odd), f16 in order, f32 as they are.
///
/// # Safety
/// The instruction set is here; `from` and `to` have `n` elements.
#[inline(always)]
pub(super) unsafe fn widen<S: Simd<W>, E: Stored, const W: usize>(from: *const E, to: *mut f32, n: usize) {
    // SAFETY: by this function's contract.
    unsafe {
        match E::DTYPE {
            KvDtype::F32 => {
                for i in (0..n).step_by(W) {
                    S::store(to.add(i), S::load(from.cast::<f32>().add(i)));
                }
            }
            KvDtype::F16 => {
                for i in (0..n).step_by(W) {
                    S::store(to.add(i), S::load_f16(from.cast::<F16>().add(i)));
                }
            }
            // Numbers of 4 bits are no array: see `codes.rs`.
            KvDtype::Int4 => unreachable!("codes have scales"),
            KvDtype::Bf16 => {
                let from = from.cast::<bf16>();
                let pairs = n / (2 * W) * 2 * W;
                for i in (0..pairs).step_by(2 * W) {
                    let (even, odd) = S::load_pairs(from.add(i));
                    S::store(to.add(i), even);
                    S::store(to.add(i + W), odd);
                }
                if pairs < n {
                    S::store(to.add(pairs), S::load_bf16(from.add(pairs)));
                }
            }
            KvDtype::Fp8 => {
                let from = from.cast::<E4m3>();
                let pairs = n / (2 * W) * 2 * W;
                for i in (0..pairs).step_by(2 * W) {
                    let (even, odd) = S::load_fp8_pairs(from.add(i));
                    S::store(to.add(i), even);
                    S::store(to.add(i + W), odd);
                }
                if pairs < n {
                    S::store(to.add(pairs), S::load_fp8(from.add(pairs)));
                }
            }
        }
    }
}

/// Widens `n` numbers of a query, a multiple of `W`, in order.
///
/// # Safety
/// As for [`widen`].
#[inline(always)]
pub(super) unsafe fn widen_in_order<S: Simd<W>, const W: usize>(from: *const bf16, to: *mut f32, n: usize) {
    for i in (0..n).step_by(W) {
        // SAFETY: by this function's contract.
        unsafe { S::store(to.add(i), S::load_bf16(from.add(i))) };
    }
}

/// Dot products of `W` rows, `stride` apart, with `n` numbers at `with`.
///
/// # Safety
/// The instruction set is here; `with` and each row have `n` elements, a multiple of `W`.
#[inline(always)]
pub(super) unsafe fn dots<S: Simd<W>, const W: usize>(
    rows: *const f32,
    stride: usize,
    with: *const f32,
    n: usize,
) -> S::V {
    // SAFETY: by this function's contract.
    unsafe {
        let mut sums = [S::splat(0.0); W];
        for i in (0..n).step_by(W) {
            let x = S::load(with.add(i));
            for (j, sum) in sums.iter_mut().enumerate() {
                *sum = S::fma(S::load(rows.add(j * stride + i)), x, *sum);
            }
        }
        S::sum_rows(sums)
    }
}

/// Which of a group's tokens a query sees: from the first to before the second.
pub(super) type Seen = (usize, usize);

/// From scores to weights `2^(c s - m)`, in place and in the order in which values are widened. Moves the
/// query's maximum `m` (an integer) and sum; returns the power of two that shrinks what it had before.
///
/// # Safety
/// The instruction set is here; `tokens` is a whole number of pages.
#[inline(always)]
pub(super) unsafe fn weights<S: Simd<W>, E: Widened, const W: usize>(
    s: &mut [f32],
    seen: Seen,
    c: f32,
    max: &mut f32,
    sum: &mut f32,
) -> f32 {
    let tokens = s.len();
    debug_assert!(tokens.is_multiple_of(BLOCK_TOKENS) && tokens <= GROUP_TOKENS);
    let (first, end) = (seen.0.min(tokens), seen.1.min(tokens));
    // What a query does not see may be NaN.
    s[..first].fill(f32::NEG_INFINITY);
    s[end..].fill(f32::NEG_INFINITY);
    let s = s.as_mut_ptr();
    // SAFETY: by this function's contract.
    unsafe {
        let mut largest = S::load(s);
        for i in (W..tokens).step_by(W) {
            largest = S::max(largest, S::load(s.add(i)));
        }
        let next = (S::largest(largest) * c).ceil().max(*max);
        let shrink = power_of_two(*max - next);
        let (bias, lowest) = (S::splat(ROUND - next), S::splat((next - 125.0) / c));
        let mut sums = S::splat(0.0);
        for i in (0..tokens).step_by(2 * W) {
            // No closures around vectors: they are compiled without the instruction set, and may stay so.
            let low = exp2::<S, W>(S::load(s.add(i)), c, bias, lowest);
            let high = exp2::<S, W>(S::load(s.add(i + W)), c, bias, lowest);
            sums = S::add(sums, S::add(low, high));
            let p = if E::PAIRS { S::split_pairs(low, high) } else { (low, high) };
            S::store(s.add(i), p.0);
            S::store(s.add(i + W), p.1);
        }
        let mut lanes = [0.0f32; W];
        S::store(lanes.as_mut_ptr(), sums);
        (*max, *sum) = (next, *sum * shrink + lanes.iter().sum::<f32>());
        shrink
    }
}

/// # Safety
/// The instruction set is here.
#[inline(always)]
unsafe fn exp2<S: Simd<W>, const W: usize>(s: S::V, c: f32, bias: S::V, lowest: S::V) -> S::V {
    // SAFETY: by this function's contract.
    unsafe {
        let c = S::splat(c);
        let shifted = S::fma(s, c, bias);
        let whole = S::sub(shifted, bias);
        let f = S::fma(s, c, S::sub(S::splat(0.0), whole));
        let mut y = S::splat(EXP2[6]);
        for i in (0..6).rev() {
            y = S::fma(y, f, S::splat(EXP2[i]));
        }
        S::scale(y, shifted, s, lowest)
    }
}

/// `2^n` for a whole `n <= 0`, 0 where that is no normal number.
pub(super) fn power_of_two(n: f32) -> f32 {
    if n < -126.0 { 0.0 } else { f32::from_bits(((n as i32 + 127) as u32) << 23) }
}

/// Multiplies weights `p` with their tokens' `scales`, into `to`; returns the sum of `p` times `mins`, and the
/// largest of what was made, whichever its sign.
///
/// # Safety
/// The instruction set is here; all have `n` numbers, a multiple of `W`.
#[inline(always)]
pub(super) unsafe fn scaled<S: Simd<W>, const W: usize>(
    p: *const f32,
    scales: *const f32,
    mins: *const f32,
    to: *mut f32,
    n: usize,
) -> (f32, f32) {
    // SAFETY: by this function's contract.
    unsafe {
        let zero = S::splat(0.0);
        let (mut sum, mut most) = (zero, zero);
        for i in (0..n).step_by(W) {
            let weights = S::load(p.add(i));
            let scaled = S::mul(weights, S::load(scales.add(i)));
            S::store(to.add(i), scaled);
            most = S::max(most, S::max(scaled, S::sub(zero, scaled)));
            sum = S::fma(weights, S::load(mins.add(i)), sum);
        }
        let mut lanes = [0.0f32; W];
        S::store(lanes.as_mut_ptr(), sum);
        (lanes.iter().sum(), S::largest(most))
    }
}
