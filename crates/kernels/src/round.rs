//! Rounding to bf16.

use half::bf16;

/// The nearest bf16, ties to even; NaN stays NaN. The same as `bf16::from_f32`, but without a branch,
/// so that a loop of it becomes vector code.
#[inline(always)]
pub fn to_bf16(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x40;
    bf16::from_bits(if x.is_nan() { quiet } else { rounded } as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_half() {
        for i in 0..=u32::MAX / 4099 {
            let x = f32::from_bits(i * 4099);
            assert_eq!(to_bf16(x).to_bits(), bf16::from_f32(x).to_bits(), "{x}");
        }
    }
}
