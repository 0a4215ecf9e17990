//! The GGUF block formats as a file holds them, and that of floats of 8 bits, each parsed by a textbook function into codes
//! and scales.
//!
//! A row of a tensor is a run of blocks along K. Every format has the same meaning,
//! `value = scale * code + min`, with an unsigned code (signed in `Q8_0`), and differs in how many bits a
//! code has, how many codes share a scale, and where the bits are. Source: the layouts that the GGUF
//! specification and the Python package `gguf` describe.

use half::f16;

use super::Narrow;
use super::plan::{Plan, Sub};

/// One block of a row, parsed: everything that its bytes say.
pub(super) struct Block {
    /// The scale of the block.
    pub(super) d: u16,
    /// `m` of the `_1` formats, `dmin` of the K formats, as f16 bits; the lower half of a scale of 32 bits, whose upper one is `d`; zero
    /// where there is none.
    pub(super) m: u16,
    /// Codes in order of k, the first [`Plan::unit_k`] of them used. Two's complement in `Q8_0`.
    pub(super) codes: [u8; 256],
    /// Scales inside the block, as the packed layout stores them: for each group of 32 k two bytes
    /// (see [`Sub`]); unused by the formats of 32.
    pub(super) sub: [[u8; 2]; 8],
}

/// Bytes of one block of a format of blocks in a file, for [`Plan::unit_k`] elements of a row.
pub fn block_bytes(format: Narrow) -> Option<usize> {
    Some(match format {
        Narrow::Q4_0 => 18,
        Narrow::Q4_1 => 20,
        Narrow::Q5_0 => 22,
        Narrow::Q5_1 => 24,
        Narrow::Q8_0 => 34,
        Narrow::Fp8 => 68,
        Narrow::Q2K => 84,
        Narrow::Q3K => 110,
        Narrow::Q4K => 144,
        Narrow::Q5K => 176,
        Narrow::Q6K => 210,
        Narrow::Int8 | Narrow::Int4 => return None,
    })
}

/// Parses the block that `bytes` (exactly [`block_bytes`] of them) holds: every field that the format uses.
pub(super) fn parse(format: Narrow, bytes: &[u8], block: &mut Block) {
    match format {
        Narrow::Q4_0 | Narrow::Q4_1 | Narrow::Q5_0 | Narrow::Q5_1 => block.legacy(format, bytes),
        Narrow::Q8_0 => {
            block.d = word(bytes, 0);
            block.codes[..32].copy_from_slice(&bytes[2..34]);
        }
        Narrow::Fp8 => block.fp8(bytes),
        Narrow::Q2K => block.q2_k(bytes),
        Narrow::Q3K => block.q3_k(bytes),
        Narrow::Q4K | Narrow::Q5K => block.q45_k(format, bytes),
        Narrow::Q6K => block.q6_k(bytes),
        Narrow::Int8 | Narrow::Int4 => unreachable!("{format:?} has no blocks in files"),
    }
}

/// The values of a row of blocks, in f32 as the file's format defines them (not rounded to bf16).
///
/// `row`: whole blocks of `format`; `out`: as many values as they hold.
///
/// # Panics
/// If `format` has no blocks in files, or the lengths do not fit each other.
pub fn dequantize_row(format: Narrow, row: &[u8], out: &mut [f32]) {
    let plan = Plan::of(format);
    let bytes = block_bytes(format).expect("a format of blocks");
    assert_eq!(row.len() % bytes, 0, "{format:?}: a row is whole blocks of {bytes} bytes");
    assert_eq!(row.len() / bytes * plan.unit_k, out.len(), "{format:?}: {} bytes of row", row.len());
    let mut block = Block::ZERO;
    for (bytes, out) in row.chunks_exact(bytes).zip(out.chunks_exact_mut(plan.unit_k)) {
        parse(format, bytes, &mut block);
        for (k, out) in out.iter_mut().enumerate() {
            *out = block.value(&plan, k);
        }
    }
}

impl Block {
    /// A block of zeros in every format.
    pub(super) const ZERO: Block = Block { d: 0, m: 0, codes: [0; 256], sub: [[0; 2]; 8] };

    fn value(&self, plan: &Plan, k: usize) -> f32 {
        let sub = self.sub[k / 32];
        let (scale, min) = plan.affine(self.d, self.m, sub, k % 32 / 16);
        scale.mul_add(plan.code_value(self.codes[k]), min)
    }

    /// 32 codes of 4 bits (the low nibbles are the first 16), in `Q5` a fifth bit each in a word before them.
    fn legacy(&mut self, format: Narrow, bytes: &[u8]) {
        let has_min = matches!(format, Narrow::Q4_1 | Narrow::Q5_1);
        let five_bits = matches!(format, Narrow::Q5_0 | Narrow::Q5_1);
        self.d = word(bytes, 0);
        self.m = if has_min { word(bytes, 2) } else { 0 };
        let qs = &bytes[bytes.len() - 16..];
        let (first, second) = self.codes[..32].split_at_mut(16);
        for ((byte, first), second) in qs.iter().zip(first).zip(second) {
            (*first, *second) = (byte & 15, byte >> 4);
        }
        if five_bits {
            let fifths = &bytes[bytes.len() - 20..bytes.len() - 16];
            for (eight, byte) in self.codes.as_chunks_mut::<8>().0.iter_mut().zip(fifths) {
                eight.iter_mut().enumerate().for_each(|(i, code)| *code |= (byte >> i & 1) << 4);
            }
        }
    }

    /// A scale in single precision, 64 codes. These count 2^-8 of what they are ([`half_bits`]).
    fn fp8(&mut self, bytes: &[u8]) {
        let scale = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) * 256.0;
        (self.d, self.m) = ((scale.to_bits() >> 16) as u16, scale.to_bits() as u16);
        self.codes[..64].copy_from_slice(&bytes[4..68]);
    }

    /// 16 bytes of (scale, min) nibbles, one for each 16 k; 64 bytes of 2-bit codes; d, dmin.
    fn q2_k(&mut self, bytes: &[u8]) {
        for (pair, scales) in self.sub.iter_mut().zip(bytes.chunks_exact(2)) {
            *pair = [scales[0], scales[1]];
        }
        self.two_bits(&bytes[16..80]);
        (self.d, self.m) = (word(bytes, 80), word(bytes, 82));
    }

    /// 32 bytes of third bits, 64 bytes of 2-bit codes, 16 scales of 6 bits in 12 bytes, d.
    fn q3_k(&mut self, bytes: &[u8]) {
        self.two_bits(&bytes[32..96]);
        self.add_bits(&bytes[..32], 2);
        let scales = &bytes[96..108];
        for i in 0..16 {
            let low = scales[i % 8] >> (4 * (i / 8)) & 15;
            let high = scales[8 + i % 4] >> (2 * (i / 4)) & 3;
            self.sub[i / 2][i % 2] = (low | high << 4).wrapping_sub(32);
        }
        self.d = word(bytes, 108);
    }

    /// Codes of 2 bits: byte `i` of each 32 holds k = i, i + 32, i + 64 and i + 96 of its 128.
    fn two_bits(&mut self, qs: &[u8]) {
        for (i, codes) in self.codes.chunks_exact_mut(32).enumerate() {
            for (code, byte) in codes.iter_mut().zip(&qs[i / 4 * 32..]) {
                *code = byte >> (2 * (i % 4)) & 3;
            }
        }
    }

    /// One more bit for each code, on top of `below` others: bit `i` of byte `j` is that of k = 32 i + j.
    fn add_bits(&mut self, bytes: &[u8], below: usize) {
        for (i, codes) in self.codes.chunks_exact_mut(32).enumerate() {
            for (code, byte) in codes.iter_mut().zip(bytes) {
                *code |= (byte >> i & 1) << below;
            }
        }
    }

    /// d, dmin, eight scales and mins of 6 bits in 12 bytes, in `Q5_K` 32 bytes of fifth bits, nibbles.
    fn q45_k(&mut self, format: Narrow, bytes: &[u8]) {
        (self.d, self.m) = (word(bytes, 0), word(bytes, 2));
        self.scales_and_mins(&bytes[4..16]);
        let qs = &bytes[bytes.len() - 128..];
        for (codes, qs) in self.codes.chunks_exact_mut(64).zip(qs.chunks_exact(32)) {
            let (first, second) = codes.split_at_mut(32);
            for ((byte, first), second) in qs.iter().zip(first).zip(second) {
                (*first, *second) = (byte & 15, byte >> 4);
            }
        }
        if format == Narrow::Q5K {
            self.add_bits(&bytes[16..48], 4);
        }
    }

    /// The first four pairs lie in the low 6 bits of bytes 0-3 and 4-7; the last four have their low nibbles in
    /// bytes 8-11 and their high two bits on top of bytes 0-7.
    fn scales_and_mins(&mut self, s: &[u8]) {
        for i in 0..4 {
            self.sub[i] = [s[i] & 63, s[i + 4] & 63];
            self.sub[i + 4] = [s[i + 8] & 15 | s[i] >> 6 << 4, s[i + 8] >> 4 | s[i + 4] >> 6 << 4];
        }
    }

    /// 128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales, d.
    fn q6_k(&mut self, bytes: &[u8]) {
        let (low, high) = (&bytes[..128], &bytes[128..192]);
        for (i, codes) in self.codes.chunks_exact_mut(32).enumerate() {
            let (half, quarter) = (i / 4, i % 4);
            let nibbles = &low[half * 64 + quarter % 2 * 32..][..32];
            let pairs = &high[half * 32..][..32];
            for ((code, nibble), pair) in codes.iter_mut().zip(nibbles).zip(pairs) {
                *code = nibble >> (4 * (quarter / 2)) & 15 | (pair >> (2 * quarter) & 3) << 4;
            }
        }
        for i in 0..16 {
            self.sub[i / 2][i % 2] = bytes[192 + i];
        }
        self.d = word(bytes, 208);
    }
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

impl Plan {
    /// Scale and min of 16 k of one row: `value = scale * code + min`, where the code is the unsigned one.
    ///
    /// `d`, `m`: the unit's words; `sub`: its two bytes for the group of 32; `half`: which 16 of the 32.
    /// The products of scales are exact in f32 (11 + 8 bits), so every path may compute them as it likes.
    pub(super) fn affine(&self, d: u16, m: u16, sub: [u8; 2], half: usize) -> (f32, f32) {
        if self.floats {
            return (f32::from_bits(u32::from(d) << 16 | u32::from(m)), 0.0);
        }
        let (d, m) = (self.float(d), self.float(m));
        let (scale, min) = match self.sub {
            Sub::None => (d, m),
            Sub::ScaleMin => (d * f32::from(sub[0]), -(m * f32::from(sub[1]))),
            Sub::Nibbles => (d * f32::from(sub[half] & 15), -(m * f32::from(sub[half] >> 4))),
            Sub::Signed => (d * f32::from(sub[half].cast_signed()), m),
        };
        if self.offset == 0 { (scale, min) } else { (scale, -(scale * f32::from(self.offset))) }
    }

    fn float(&self, bits: u16) -> f32 {
        if self.bf16_scales { f32::from_bits(u32::from(bits) << 16) } else { f16::from_bits(bits).to_f32() }
    }

    /// The number that a code stands for: signed at 8 bits, unsigned (the offset is in the min) below.
    pub(super) fn code_number(&self, code: u8) -> i32 {
        if self.low_bits == 8 { i32::from(code.cast_signed()) } else { i32::from(code) }
    }

    /// As a float.
    pub(super) fn code_value(&self, code: u8) -> f32 {
        if self.floats { f16::from_bits(half_bits(code)).to_f32() } else { self.code_number(code) as f32 }
    }
}

/// A code of E4M3 as f16, with 2^-8 of its value: the exponent stands for that much less there, and what has none is no
/// exception then. What is no number becomes 480 / 256: who reads it from a file refuses it.
pub(super) fn half_bits(code: u8) -> u16 {
    u16::from(code & 0x80) << 8 | u16::from(code & 0x7f) << 7
}
