//! Tensors of files that are part of a quantised matrix.

use std::fmt;
use std::ops::Range;

use half::{bf16, f16};

use crate::checkpoint::Announced;
use crate::error::{Error, Result};
use crate::file::RegularFile;
use crate::stored::Stored;

/// What is read and passed over, where a call of the system takes longer.
const GAP_BYTES: usize = 8 << 10;
/// Of rows with such gaps, at a time: within a core's cache.
const AT_ONCE_BYTES: usize = 256 << 10;

/// One of them.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) dims: Vec<usize>,
    kind: Kind,
    file: usize,
    offset: u64,
}

/// What its numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Float(Stored),
    /// Whole numbers of 32 bits, or words of codes.
    Words,
    /// Whole numbers of 64 bits.
    Longs,
    /// Whole numbers of 8 bits.
    Bytes,
    /// The same without a sign: codes, a text, or as scales exponents of two, from -127.
    Octets,
    /// Floats of 8 bits, four of the exponent and three of the fraction: `e4m3`, which knows no infinity.
    Fp8,
}

impl Kind {
    fn width(self) -> usize {
        match self {
            Kind::Float(stored) => stored.block_bytes(),
            Kind::Words => 4,
            Kind::Longs => 8,
            Kind::Bytes | Kind::Octets | Kind::Fp8 => 1,
        }
    }
}

/// As files name them.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Float(stored) => stored.fmt(f),
            Kind::Words => f.write_str("I32"),
            Kind::Longs => f.write_str("I64"),
            Kind::Bytes => f.write_str("I8"),
            Kind::Octets => f.write_str("U8"),
            Kind::Fp8 => f.write_str("F8_E4M3"),
        }
    }
}

impl Part {
    /// What a file announces, if it is of a type that such parts have.
    pub(super) fn of(announced: &Announced) -> std::result::Result<Part, String> {
        let kind = match &announced.stored {
            Ok(stored) => Kind::Float(*stored),
            Err(name) => match name.as_str() {
                "I32" | "U32" => Kind::Words,
                "I64" => Kind::Longs,
                "I8" => Kind::Bytes,
                "U8" | "F8_E8M0" => Kind::Octets,
                "F8_E4M3" => Kind::Fp8,
                other => return Err(format!("`{}` is {other}, which is not read", announced.name)),
            },
        };
        let dims: Option<Vec<usize>> = announced.dims.iter().map(|n| usize::try_from(*n).ok()).collect();
        let dims = dims.ok_or_else(|| format!("`{}` is {:?}", announced.name, announced.dims))?;
        Ok(Part { name: announced.name.clone(), dims, kind, file: announced.file, offset: announced.offset })
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn file(&self) -> usize {
        self.file
    }

    /// How many numbers it has.
    pub(super) fn count(&self) -> usize {
        self.dims.iter().fold(1, |all: usize, side| all.saturating_mul(*side))
    }

    /// The same numbers, as many, as what they are.
    pub(super) fn of_shape(self, dims: Vec<usize>) -> Part {
        Part { dims, ..self }
    }

    /// Its bytes, whatever its numbers are.
    pub(super) fn into_octets(self) -> Part {
        let count = self.count().saturating_mul(self.kind.width());
        Part { kind: Kind::Octets, dims: vec![count], ..self }
    }

    /// Rows and columns; a vector is one number a row, a number alone a matrix of one.
    pub(super) fn matrix(&self) -> [usize; 2] {
        match self.dims[..] {
            [] => [1, 1],
            [rows] => [rows, 1],
            [rows, ref rest @ ..] => {
                [rows, rest.iter().fold(1, |all: usize, side| all.saturating_mul(*side))]
            }
        }
    }

    /// The bytes of a part of it, row by row.
    pub(super) fn bytes(
        &self,
        files: &[RegularFile],
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> Result<Vec<u8>> {
        let [_, all] = self.matrix();
        let width = self.kind.width();
        let row = columns.len() * width;
        let mut bytes = vec![0; rows.len() * row];
        let file = &files[self.file];
        if columns.len() == all {
            file.read_at(self.offset + (rows.start * row) as u64, &mut bytes)?;
            return Ok(bytes);
        }
        if row == 0 {
            return Ok(bytes);
        }
        let stride = all * width;
        let at_once = if stride - row > GAP_BYTES { 1 } else { (AT_ONCE_BYTES / stride).max(1) };
        let mut near = vec![0; (at_once - 1) * stride + row];
        for (first, into) in rows.step_by(at_once).zip(bytes.chunks_mut(at_once * row)) {
            let near = &mut near[..(into.len() / row - 1) * stride + row];
            file.read_at(self.offset + (first * stride + columns.start * width) as u64, near)?;
            let each = into.chunks_exact_mut(row).zip(near.chunks(stride));
            each.for_each(|(into, near)| into.copy_from_slice(&near[..row]));
        }
        Ok(bytes)
    }

    /// Words of a part of it, row by row.
    pub(super) fn words(
        &self,
        files: &[RegularFile],
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> Result<Vec<u32>> {
        let bytes = self.bytes(files, rows, columns)?;
        Ok(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }

    /// Numbers of a part of it, row by row.
    pub(super) fn floats(
        &self,
        files: &[RegularFile],
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> Result<Vec<f32>> {
        let first = rows.start;
        let bytes = self.bytes(files, rows, columns)?;
        let numbers: Vec<f32> = match self.kind {
            Kind::Float(Stored::F16) => {
                bytes.as_chunks().0.iter().map(|two| f16::from_le_bytes(*two).to_f32()).collect()
            }
            Kind::Float(Stored::Bf16) => {
                bytes.as_chunks().0.iter().map(|two| bf16::from_le_bytes(*two).to_f32()).collect()
            }
            Kind::Fp8 => bytes.iter().map(|code| FP8[usize::from(*code)]).collect(),
            Kind::Octets => bytes.iter().map(|code| power(*code)).collect(),
            _ => bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect(),
        };
        if numbers.iter().all(|number| number.is_finite()) {
            return Ok(numbers);
        }
        Err(Error::NotFinite { file: files[self.file].name(), tensor: self.name.clone(), row: first })
    }

    /// Whether it is zeros and nothing else.
    pub(super) fn is_zero(&self, files: &[RegularFile]) -> Result<bool> {
        Ok(self.all_bytes(files)?.iter().all(|byte| *byte == 0))
    }

    /// All bytes of a short one.
    pub(super) fn all_bytes(&self, files: &[RegularFile]) -> Result<Vec<u8>> {
        let [rows, columns] = self.matrix();
        self.bytes(files, 0..rows, 0..columns)
    }

    /// All numbers of a short one.
    pub(super) fn all_floats(&self, files: &[RegularFile]) -> Result<Vec<f32>> {
        let [rows, columns] = self.matrix();
        self.floats(files, 0..rows, 0..columns)
    }

    /// All whole numbers of a short one.
    pub(super) fn integers(&self, files: &[RegularFile]) -> Result<Vec<i64>> {
        let bytes = self.all_bytes(files)?;
        Ok(match self.kind {
            Kind::Longs => bytes.as_chunks().0.iter().map(|eight| i64::from_le_bytes(*eight)).collect(),
            _ => bytes.as_chunks().0.iter().map(|four| i64::from(i32::from_le_bytes(*four))).collect(),
        })
    }
}

/// The values of floats of 8 bits: a sign, four bits of the exponent, three of the fraction.
pub(super) const FP8: [f32; 256] = {
    let (mut values, mut code) = ([0.0; 256], 0);
    while code < 256 {
        let (sign, exponent, fraction) = ((code as u32 >> 7) << 31, code as u32 >> 3 & 15, code as u32 & 7);
        values[code] = match (exponent, fraction) {
            (15, 7) => f32::NAN,
            // Multiples of 2^-9: 8 of them less than the least of the others.
            (0, _) => f32::from_bits(sign | 121 << 23 | fraction << 20) - f32::from_bits(sign | 121 << 23),
            _ => f32::from_bits(sign | (exponent + 120) << 23 | fraction << 20),
        };
        code += 1;
    }
    values
};

/// Two to the power of a code less 127; the last is no number.
fn power(code: u8) -> f32 {
    match code {
        // Less than the least with a full fraction.
        0 => f32::from_bits(1 << 22),
        u8::MAX => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_of_eight_bits() {
        let values = [0x00, 0x01, 0x07, 0x08, 0x38, 0x39, 0x7e, 0xb8, 0x81].map(|code: usize| FP8[code]);
        let wanted = [0.0, 1.0 / 512.0, 7.0 / 512.0, 1.0 / 64.0, 1.0, 1.125, 448.0, -1.0, -1.0 / 512.0];
        assert_eq!(values, wanted);
        assert!(FP8[0x7f].is_nan() && FP8[0xff].is_nan());
    }

    #[test]
    fn powers_of_two() {
        let values = [0, 1, 126, 127, 130, 254].map(power);
        assert_eq!(values, [-127, -126, -1, 0, 3, 127].map(|exponent| 2f32.powi(exponent)));
        assert!(power(255).is_nan());
    }
}
