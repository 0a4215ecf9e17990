//! Keys and values in 8 bits: numbers with a sign, four bits of exponent and three of mantissa, without scales.
//!
//! ```text
//! S EEEE MMM    E > 0: 2^(E - 7) (1 + M / 8)    E = 0: 2^-6 (M / 8)    S 1111 111: NaN    there is no infinity
//! ```
//!
//! Planes lie as those of bf16 do, a byte a number. Each number is one of bf16's, so that all that attention does with pages of
//! bf16 it does with these once they are widened. What is larger than 448 becomes 448, as infinities do: so does vLLM's
//! `--kv-cache-dtype fp8` where a checkpoint brings no scales.

#[cfg(target_arch = "x86_64")]
pub(super) mod wide;

use super::minifloat::Minifloat;
use crate::elementwise::Element;

/// A number as a page has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub(crate) struct E4m3(pub(crate) u8);

const FORMAT: Minifloat = Minifloat { bits: 8, mantissa: 3, largest: 0x7e, nan: 0x7f };

impl Element for E4m3 {
    /// To the nearest, ties to even, up to 448; a NaN stays one.
    #[inline(always)]
    fn from_f32(value: f32) -> E4m3 {
        E4m3(FORMAT.nearest(value) as u8)
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        let (exponent, mantissa) = (u32::from(self.0 >> 3 & 15), u32::from(self.0 & 7));
        let magnitude = match (exponent, mantissa) {
            (15, 7) => f32::NAN,
            (0, _) => mantissa as f32 / 512.0,
            _ => f32::from_bits((exponent + FORMAT.bias()) << 23 | mantissa << FORMAT.dropped()),
        };
        if self.0 & 0x80 == 0 { magnitude } else { -magnitude }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = E4m3> {
        (0..=255).map(E4m3)
    }

    /// The nearest of all codes to what is no larger than the largest, by looking at each of them.
    fn nearest(x: f32) -> E4m3 {
        let positive: Vec<E4m3> = (0..=FORMAT.largest as u8).map(E4m3).collect();
        let apart = |code: &E4m3| (f64::from(code.to_f32()) - f64::from(x.abs())).abs();
        let least = positive.iter().map(apart).fold(f64::MAX, f64::min);
        let tied = || positive.iter().filter(|code| apart(code) == least);
        let code = tied().find(|code| code.0.is_multiple_of(2)).or_else(|| tied().next()).expect("a nearest");
        E4m3(code.0 | if x.is_sign_negative() { 0x80 } else { 0 })
    }

    #[test]
    fn codes_mean_what_the_format_says() {
        let read = |code| E4m3(code).to_f32();
        assert_eq!(
            [0, 1, 7, 8, 0x38, 0x39, 0x7e].map(read),
            [0.0, 2f32.powi(-9), 7.0 * 2f32.powi(-9), 2f32.powi(-6), 1.0, 1.125, 448.0]
        );
        assert!(read(0x7f).is_nan() && read(0xff).is_nan() && read(0xb8) == -1.0);
    }

    #[test]
    fn what_was_read_is_written_as_it_was() {
        assert!(all().all(|code| E4m3::from_f32(code.to_f32()) == code));
    }

    #[test]
    fn the_nearest_is_chosen_and_the_even_one_of_two() {
        for (i, pair) in
            (0..FORMAT.largest as u8).map(|code| [E4m3(code).to_f32(), E4m3(code + 1).to_f32()]).enumerate()
        {
            let middle = (pair[0] + pair[1]) / 2.0;
            for x in [middle, middle.next_down(), middle.next_up(), pair[0].next_up(), -middle] {
                assert_eq!(E4m3::from_f32(x), nearest(x), "{x} above code {i}");
            }
        }
        for i in 0..1 << 16 {
            let x = f32::from_bits(i << 16 | 0x8001);
            assert!(x.is_nan() || E4m3::from_f32(x) == nearest(x.clamp(-448.0, 448.0)), "{x}");
        }
    }

    #[test]
    fn what_is_too_large_is_the_largest_and_nan_stays_nan() {
        for x in [448.1, 464.0, 1e5, f32::MAX, f32::INFINITY] {
            assert_eq!((E4m3::from_f32(x).to_f32(), E4m3::from_f32(-x).to_f32()), (448.0, -448.0), "{x}");
        }
        assert!(E4m3::from_f32(f32::NAN).to_f32().is_nan() && E4m3::from_f32(-f32::NAN).to_f32().is_nan());
    }
}
