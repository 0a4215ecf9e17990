//! How numbers are stored in checkpoints: plain floats, the block formats of GGUF, and blocks of floats of 8 bits.

use half::f16;
use std::fmt;

/// A storage format. Block formats hold `block_elements` neighbours of a row in `block_bytes` bytes.
#[allow(non_camel_case_types, reason = "the names that everybody knows them by")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stored {
    /// IEEE single precision, little-endian.
    F32,
    /// IEEE half precision, little-endian.
    F16,
    /// bfloat16, little-endian.
    Bf16,
    /// 32 weights: scale, 4-bit numbers from -8.
    Q4_0,
    /// 32 weights: scale, minimum, 4-bit numbers.
    Q4_1,
    /// 32 weights: scale, 5-bit numbers from -16.
    Q5_0,
    /// 32 weights: scale, minimum, 5-bit numbers.
    Q5_1,
    /// 32 weights: scale, 8-bit numbers.
    Q8_0,
    /// 32 weights: scale, 4-bit places in a table; what rows become that are no whole blocks of Q2_K or Q3_K.
    IQ4_NL,
    /// 256 weights in groups of 16: 2-bit numbers, 4-bit scales and minima.
    Q2_K,
    /// 256 weights in groups of 16: 3-bit numbers, 6-bit scales.
    Q3_K,
    /// 256 weights in groups of 32: 4-bit numbers, 6-bit scales and minima.
    Q4_K,
    /// 256 weights in groups of 32: 5-bit numbers, 6-bit scales and minima.
    Q5_K,
    /// 256 weights in groups of 16: 6-bit numbers, 8-bit scales.
    Q6_K,
    /// 64 weights: scale in single precision, 8-bit floats (E4M3). No file has them as such.
    Fp8,
}

impl Stored {
    /// Every format.
    pub const ALL: [Stored; 15] = [
        Stored::F32,
        Stored::F16,
        Stored::Bf16,
        Stored::Q4_0,
        Stored::Q4_1,
        Stored::Q5_0,
        Stored::Q5_1,
        Stored::Q8_0,
        Stored::IQ4_NL,
        Stored::Q2_K,
        Stored::Q3_K,
        Stored::Q4_K,
        Stored::Q5_K,
        Stored::Q6_K,
        Stored::Fp8,
    ];

    /// Weights in a block; 1 for plain floats.
    pub fn block_elements(self) -> usize {
        match self {
            Stored::F32 | Stored::F16 | Stored::Bf16 => 1,
            Stored::Q4_0 | Stored::Q4_1 | Stored::Q5_0 | Stored::Q5_1 | Stored::Q8_0 | Stored::IQ4_NL => 32,
            Stored::Fp8 => 64,
            Stored::Q2_K | Stored::Q3_K | Stored::Q4_K | Stored::Q5_K | Stored::Q6_K => 256,
        }
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        match self {
            Stored::F32 => 4,
            Stored::F16 | Stored::Bf16 => 2,
            Stored::Q4_0 | Stored::IQ4_NL => 18,
            Stored::Q4_1 => 20,
            Stored::Q5_0 => 22,
            Stored::Q5_1 => 24,
            Stored::Q8_0 => 34,
            Stored::Fp8 => 68,
            Stored::Q2_K => 84,
            Stored::Q3_K => 110,
            Stored::Q4_K => 144,
            Stored::Q5_K => 176,
            Stored::Q6_K => 210,
        }
    }

    /// Whether it holds each number by itself.
    pub fn is_plain(self) -> bool {
        self.block_elements() == 1
    }

    /// Bytes of a row; `None` if the row is no whole number of blocks, or too long.
    pub fn row_bytes(self, columns: usize) -> Option<usize> {
        if !columns.is_multiple_of(self.block_elements()) {
            return None;
        }
        (columns / self.block_elements()).checked_mul(self.block_bytes())
    }

    /// Whether every number in `bytes` (whole blocks) is finite.
    pub fn all_finite(self, bytes: &[u8]) -> bool {
        match self {
            Stored::F32 => {
                no_exponent_full::<4>(bytes, |b| u32::from_le_bytes(b) & 0x7f80_0000 == 0x7f80_0000)
            }
            Stored::F16 => no_exponent_full::<2>(bytes, |b| u16::from_le_bytes(b) & 0x7c00 == 0x7c00),
            Stored::Bf16 => no_exponent_full::<2>(bytes, |b| u16::from_le_bytes(b) & 0x7f80 == 0x7f80),
            _ => bytes.chunks_exact(self.block_bytes()).all(|block| self.block_is_finite(block)),
        }
    }

    fn block_is_finite(self, block: &[u8]) -> bool {
        if self == Stored::Fp8 {
            let (scale, codes) = block.split_at(4);
            // All of them, so that the loop vectorises.
            let is_bad = codes.iter().fold(false, |bad, code| bad | (code & 0x7f == 0x7f));
            return Stored::F32.all_finite(scale) && !is_bad;
        }
        self.scales_at().iter().all(|&at| f16::from_le_bytes([block[at], block[at + 1]]).is_finite())
    }

    /// Where a block keeps its half-precision numbers.
    fn scales_at(self) -> &'static [usize] {
        match self {
            Stored::F32 | Stored::F16 | Stored::Bf16 | Stored::Fp8 => &[],
            Stored::Q4_0 | Stored::Q5_0 | Stored::Q8_0 | Stored::IQ4_NL => &[0],
            Stored::Q4_1 | Stored::Q5_1 | Stored::Q4_K | Stored::Q5_K => &[0, 2],
            Stored::Q2_K => &[80, 82],
            Stored::Q3_K => &[108],
            Stored::Q6_K => &[208],
        }
    }

    /// Decodes plain floats; `None` for block formats, which only the kernels unpack.
    ///
    /// # Panics
    /// If `bytes` is not as many numbers as `out`.
    pub fn decode_plain(self, bytes: &[u8], out: &mut [f32]) -> Option<()> {
        match self {
            Stored::F32 => decode::<4>(bytes, out, f32::from_le_bytes),
            Stored::F16 => decode::<2>(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
            Stored::Bf16 => decode::<2>(bytes, out, |b| half::bf16::from_le_bytes(b).to_f32()),
            _ => return None,
        }
        Some(())
    }
}

/// Whether no number is "full"; whole stretches at a time, so that the loop vectorises.
fn no_exponent_full<const N: usize>(bytes: &[u8], full: impl Fn([u8; N]) -> bool) -> bool {
    bytes.chunks(4096).all(|stretch| !stretch.as_chunks::<N>().0.iter().fold(false, |bad, x| bad | full(*x)))
}

fn decode<const N: usize>(bytes: &[u8], out: &mut [f32], one: impl Fn([u8; N]) -> f32) {
    assert_eq!(bytes.len(), N * out.len(), "bytes of {} numbers", out.len());
    for (to, from) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *to = one(*from);
    }
}

impl From<spec::model::DType> for Stored {
    fn from(dtype: spec::model::DType) -> Stored {
        match dtype {
            spec::model::DType::F32 => Stored::F32,
            spec::model::DType::F16 => Stored::F16,
            spec::model::DType::Bf16 => Stored::Bf16,
        }
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stored::Bf16 => f.write_str("BF16"),
            Stored::Fp8 => f.write_str("FP8"),
            other => fmt::Debug::fmt(other, f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(Stored::Q4_K.row_bytes(512), Some(288));
        assert_eq!(Stored::Q4_K.row_bytes(500), None);
        assert_eq!(Stored::F32.row_bytes(usize::MAX), None);
    }

    #[test]
    fn a_number_that_is_not_finite_is_found_wherever_it_stands() {
        for stored in Stored::ALL {
            let blocks = 3000 / stored.block_bytes() + 2;
            let sound = vec![0u8; blocks * stored.block_bytes()];
            assert!(stored.all_finite(&sound));
            let wide = [Stored::F32, Stored::Fp8].contains(&stored);
            let places = if stored.is_plain() || wide { &[0][..] } else { stored.scales_at() };
            for &place in places {
                let mut damaged = sound.clone();
                let at = (blocks - 1) * stored.block_bytes() + place;
                let width = if wide { 4 } else { 2 };
                damaged[at..at + width].fill(0xff);
                assert!(!stored.all_finite(&damaged), "{stored} at {place}");
            }
        }
    }

    #[test]
    fn a_float_of_8_bits_that_is_no_number_is_found() {
        let mut block = [0; 68];
        for (code, sound) in [(0x7e, true), (0xfe, true), (0x7f, false), (0xff, false)] {
            block[67] = code;
            assert_eq!(Stored::Fp8.all_finite(&block), sound, "{code:x}");
        }
        let infinite = [&f32::INFINITY.to_le_bytes()[..], &[0; 64]].concat();
        assert!(!Stored::Fp8.all_finite(&infinite));
    }

    #[test]
    fn plain_floats_decode() {
        let mut out = [0.0; 2];
        for (stored, bytes) in [
            (Stored::F32, [1.5f32.to_le_bytes(), (-2.0f32).to_le_bytes()].concat()),
            (Stored::F16, [f16::from_f32(1.5).to_le_bytes(), f16::from_f32(-2.0).to_le_bytes()].concat()),
            (Stored::Bf16, vec![0xc0, 0x3f, 0x00, 0xc0]),
        ] {
            assert_eq!(stored.decode_plain(&bytes, &mut out), Some(()));
            assert_eq!(out, [1.5, -2.0], "{stored}");
        }
        assert_eq!(Stored::Q8_0.decode_plain(&[], &mut []), None);
    }
}
