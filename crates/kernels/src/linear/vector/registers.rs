//! Products of floats in registers alone: nothing can be faster.

use std::arch::x86_64::{__m256, __m512};

use super::lanes::Lanes;
use crate::isa::Isa;

/// As many sums as hide the time that a product takes.
pub(crate) const SUMS: usize = 12;

/// `steps` times [`SUMS`] products of 8 numbers (of 16 for AVX-512). Gives a number that depends on all of them.
///
/// # Panics
/// If the machine lacks `isa`.
pub(crate) fn multiply_registers(isa: Isa, steps: usize) -> f32 {
    assert!(isa.available(), "this machine lacks {isa}");
    // SAFETY: it does not.
    unsafe { if isa == Isa::Avx2 { multiply_8(steps) } else { multiply_16(steps) } }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn multiply_8(steps: usize) -> f32 {
    // SAFETY: the caller has the features.
    unsafe { multiply::<__m256>(steps) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn multiply_16(steps: usize) -> f32 {
    // SAFETY: the caller has the features.
    unsafe { multiply::<__m512>(steps) }
}

/// # Safety
/// The machine has these vectors.
#[inline(always)]
unsafe fn multiply<V: Lanes>(steps: usize) -> f32 {
    let mut all = [0.0; 16];
    // SAFETY: the caller has the features; 16 numbers are as many as the widest vector has.
    unsafe {
        let mut sums = [V::zero(); SUMS];
        let w = V::splat(&0.5);
        for _ in 0..steps {
            let x = std::hint::black_box(w);
            for sum in &mut sums {
                *sum = x.multiply_add(w, *sum);
            }
        }
        let all_of = sums.into_iter().reduce(|a, b| a.add(b)).expect("sums");
        all_of.store(all.as_mut_ptr());
    }
    all.iter().sum()
}
