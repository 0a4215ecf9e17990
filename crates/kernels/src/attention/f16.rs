//! Keys and values in half precision (IEEE binary16): a sign, five bits of exponent and ten of mantissa.
//!
//! ```text
//! S EEEEE M    0 < E < 31: 2^(E - 15) (1 + M / 1024)    E = 0: 2^-14 (M / 1024)    E = 31: infinity if M = 0, else NaN
//! ```
//!
//! Planes lie as those of bf16 do. A number has three more bits of mantissa than bf16's and a far smaller range: **what is larger
//! than 65504 becomes 65504**, as infinities do, so that no key or value turns infinite on its way to a page; what is smaller
//! than 2^-25 becomes 0. Few of these numbers are bf16's, which is all that AMX tiles and pairs of bf16 (AVX512_BF16) multiply:
//! processors that have them attend such pages by AVX-512 vectors.

use super::minifloat::Minifloat;
use crate::elementwise::Element;

/// A number as a page has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub(crate) struct F16(pub(crate) u16);

const FORMAT: Minifloat = Minifloat { bits: 16, mantissa: 10, largest: 0x7bff, nan: 0x7e00 };

impl Element for F16 {
    /// To the nearest, ties to even, up to 65504; a NaN stays one.
    #[inline(always)]
    fn from_f32(value: f32) -> F16 {
        F16(FORMAT.nearest(value) as u16)
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        half::f16::from_bits(self.0).to_f32()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_is_written_as_it_was() {
        for code in (0..=u16::MAX).map(F16).filter(|code| code.to_f32().is_finite()) {
            assert_eq!(F16::from_f32(code.to_f32()), code);
        }
    }

    #[test]
    fn the_nearest_is_chosen_and_the_even_one_of_two() {
        // Of every two that are neighbours: their middle, and what is beside it. The `half` crate rounds by a way of its own.
        for code in 0..FORMAT.largest as u16 {
            let [low, high] = [code, code + 1].map(|code| F16(code).to_f32());
            let middle = (low + high) / 2.0;
            for x in [middle, middle.next_down(), middle.next_up(), -middle] {
                assert_eq!(F16::from_f32(x).0, half::f16::from_f32_const(x).to_bits(), "{x}");
            }
            assert_eq!(F16::from_f32(middle).0, code + code % 2, "{middle}");
        }
    }

    #[test]
    fn what_is_too_large_is_the_largest_and_nan_stays_nan() {
        for x in [65504.1, 65519.9, 65520.0, 1e5, f32::MAX, f32::INFINITY] {
            assert_eq!([x, -x].map(|x| F16::from_f32(x).to_f32()), [65504.0, -65504.0], "{x}");
        }
        assert!([f32::NAN, -f32::NAN].iter().all(|x| F16::from_f32(*x).to_f32().is_nan()));
        assert_eq!([F16::from_f32(2f32.powi(-25)), F16::from_f32(-1e-30)], [F16(0), F16(0x8000)]);
    }
}
