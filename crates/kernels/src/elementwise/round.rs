//! Between f32 and bf16, a slice at a time.

use half::bf16;

use super::{Element, per_isa};
use crate::Isa;

/// Rounds to nearest, ties to even.
pub fn round_to_bf16(isa: Isa, from: &[f32], to: &mut [bf16]) {
    assert_eq!(from.len(), to.len());
    per_isa!(isa, convert::<f32, bf16>(from: &[f32], to: &mut [bf16]))
}

/// Exact.
pub fn widen_to_f32(isa: Isa, from: &[bf16], to: &mut [f32]) {
    assert_eq!(from.len(), to.len());
    per_isa!(isa, convert::<bf16, f32>(from: &[bf16], to: &mut [f32]))
}

#[inline(always)]
fn convert<A: Element, B: Element>(from: &[A], to: &mut [B]) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = B::from_f32(from.to_f32());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_agrees_with_half_on_every_kind_of_number() {
        let odd =
            [0.0, -0.0, 1.0, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1.003_906_3, 1.011_718_8];
        let many = (0..100_000u32).map(|i| f32::from_bits(i.wrapping_mul(42_949)));
        let from: Vec<f32> = odd.into_iter().chain(many).collect();
        for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
            let mut to = vec![bf16::ZERO; from.len()];
            round_to_bf16(isa, &from, &mut to);
            for (f, t) in from.iter().zip(&to) {
                let want = bf16::from_f32(*f);
                assert!(want == *t || want.is_nan() && t.is_nan(), "{isa}: {f} became {t}");
            }
        }
    }
}
