//! Weights to keep in 12 bits. The crate's own tests have them too.

use half::bf16;

/// Weights like those of a trained matrix, rows of very different sizes among them and one of zeros; some in each sixteen hundred
/// are rare.
pub(super) fn weights(n: usize, k: usize) -> Vec<bf16> {
    let mut state = 7u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let weight = |i: usize, sum: f32| match i % 1600 {
        7 => bf16::from_bits(0x0003),
        8 => bf16::NEG_INFINITY,
        9 => bf16::from_f32(-3e30),
        10 => bf16::from_f32(1e-25),
        11 => bf16::NEG_ZERO,
        _ if i / k == 5 => bf16::ZERO,
        _ => bf16::from_f32(sum * [0.02, 3e-20, 5e8][i / k % 3]),
    };
    (0..n * k).map(|i| weight(i, next() + next() + next() + next())).collect()
}

/// The same without infinities: nothing is learnt of products that are none.
pub(super) fn finite(n: usize, k: usize) -> Vec<bf16> {
    weights(n, k).into_iter().map(|weight| if weight.is_finite() { weight } else { bf16::ONE }).collect()
}
