//! A quantised matrix: codes, scales and zero points of groups, read as blocks where those hold it exactly.
//!
//! ```text
//! weight[o, i] = scale[o, group of i] * (code[o, i] - zero[o, group of i])
//!
//! code - zero                  scale is of                 becomes
//! -8 to 7                      a multiple of 32 inputs     Q4_0: 4.5 bits a weight
//! -16 to 15                    the same                    Q5_0: 5.5
//! -128 to 127                  the same                    Q8_0: 8.5
//! floats of 8 bits             a multiple of 64 inputs     Fp8: 8.5
//! names of numbers, which are
//! halves from -8 to 7.5        a multiple of 32 inputs     Q5_0, of twice those and half the scale
//! anything else, or in any order of groups                 F32, which the packer makes bf16
//! ```
//!
//! Scales of those blocks are f16 (of Fp8 f32), as those of GPTQ and AWQ are. Others are rounded to that: to 11 bits, where bf16 weights
//! have 8, or to a multiple of 2^-24, of which scales have fewer bits that are less than 2^-17.

use std::ops::Range;

use half::f16;

use super::packed::Packed;
use super::part::{self, Part};
use crate::error::{Error, Result};
use crate::file::RegularFile;
use crate::stored::Stored;

/// A matrix of a file, quantised.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    pub(super) name: String,
    pub(super) codes: Codes,
    pub(super) scales: Scales,
    pub(super) zeros: Zeros,
    /// The group of each input, where they are not in order.
    pub(super) groups: Option<Vec<u32>>,
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    pub(super) stored: Stored,
}

/// Where codes are.
#[derive(Clone, Debug)]
pub(super) enum Codes {
    Packed(Packed),
    /// Whole numbers of 8 bits with a sign: `[outputs, inputs]`.
    Bytes(Part),
    /// Floats of 8 bits.
    Fp8(Part),
    /// Two codes a byte, and the number that each is.
    Named {
        part: Part,
        values: Box<[f32; 16]>,
        is_low_first: bool,
    },
}

impl Codes {
    /// The numbers that codes are, where these are in a table.
    pub(super) fn table(&self) -> Option<&[f32]> {
        match self {
            Codes::Fp8(_) => Some(&part::FP8),
            Codes::Named { values, .. } => Some(&values[..]),
            Codes::Packed(_) | Codes::Bytes(_) => None,
        }
    }
}

/// Where scales are, and whose.
#[derive(Clone, Debug)]
pub(super) struct Scales {
    pub(super) part: Part,
    pub(super) held: Held,
    /// How many outputs share one.
    pub(super) outputs: usize,
    /// How many inputs share one.
    pub(super) inputs: usize,
    /// What each is multiplied by.
    pub(super) times: f32,
}

/// What a row of scales is of.
#[derive(Clone, Debug)]
pub(super) enum Held {
    /// An output, or several.
    ByOutput,
    /// A group of inputs.
    ByGroup,
    /// So many numbers one behind another, output by output. `inputs` is then what the blocks and the rows have in common.
    OneByOne { block: usize, nested: Option<Nested> },
}

/// Scales that are codes, and have scales themselves.
#[derive(Clone, Debug)]
pub(super) struct Nested {
    pub(super) part: Part,
    /// How many share one.
    pub(super) block: usize,
    /// What each code is, before it is scaled.
    pub(super) values: Box<[f32; 256]>,
    /// What is added to a scaled one.
    pub(super) offset: f32,
}

/// What a code is less.
#[derive(Clone, Debug)]
pub(super) enum Zeros {
    /// The same for all.
    All(i16),
    /// One for each output and group, and what is added to those of the file, within their bits.
    Packed { packed: Packed, more: u8 },
    /// Whole numbers of 8 bits for each output and group, and what is added to them.
    Bytes { part: Part, more: i16 },
}

/// Outputs that are read together at least and at most, where files hold them as columns: a few bytes of each row.
const COLUMNS_AT_ONCE: [usize; 2] = [32, 256];
/// What their codes may take meanwhile, of each worker.
const CODES_BYTES: usize = 2 << 20;

impl Matrix {
    /// What [`read`](Matrix::read) gives.
    pub(crate) fn stored(&self) -> Stored {
        self.stored
    }

    /// Outputs and inputs.
    pub(crate) fn dims(&self) -> Vec<u64> {
        vec![self.outputs as u64, self.inputs as u64]
    }

    /// The file with its codes.
    pub(crate) fn file(&self) -> usize {
        match &self.codes {
            Codes::Packed(packed) => packed.words.file(),
            Codes::Bytes(part) | Codes::Fp8(part) | Codes::Named { part, .. } => part.file(),
        }
    }

    /// How many outputs are best read together.
    pub(crate) fn rows_at_once(&self) -> usize {
        let [least, most] = COLUMNS_AT_ONCE;
        if matches!(self.scales.held, Held::ByGroup) {
            (CODES_BYTES / self.inputs).clamp(least, most)
        } else {
            1
        }
    }

    /// Some outputs, each a row of [`Matrix::stored`].
    ///
    /// # Errors
    /// If a file cannot be read, or says something that the configuration contradicts.
    pub(crate) fn read(&self, files: &[RegularFile], outputs: &Range<usize>, into: &mut [u8]) -> Result<()> {
        let groups = self.scales.groups(self.inputs);
        let scales = self.scales.read(files, outputs, self.inputs)?;
        let row_bytes = into.len() / outputs.len();
        let codes = self.codes(files, outputs)?;
        let rows = codes.chunks_exact(self.inputs).zip(into.chunks_exact_mut(row_bytes));
        let rows = rows.zip(scales.chunks_exact(groups));
        if let Some(table) = self.codes.table() {
            rows.for_each(|((codes, into), scales)| self.put_named(codes, table, scales, into));
            return Ok(());
        }
        let zeros = self.zeros(files, outputs, groups)?;
        let mut levels = vec![0; self.inputs];
        for (row, (((codes, into), scales), zeros)) in rows.zip(zeros.chunks_exact(groups)).enumerate() {
            self.levels(codes, zeros, &mut levels);
            if self.stored == Stored::F32 {
                self.put_scaled(&levels, |level| f32::from(*level), scales, into);
                continue;
            }
            for (levels, scale, block) in self.blocks::<_, 32>(&levels, scales, into) {
                put_block(self.stored, scale, levels, block)
                    .ok_or_else(|| self.beyond(files, outputs.start + row))?;
            }
        }
        Ok(())
    }

    /// The blocks of a row, with what is to be in each and its scale.
    fn blocks<'a, T, const N: usize>(
        &self,
        row: &'a [T],
        scales: &[f32],
        into: &'a mut [u8],
    ) -> impl Iterator<Item = (&'a [T; N], f32, &'a mut [u8])> {
        let blocks = row.as_chunks().0.iter().zip(into.chunks_exact_mut(self.stored.block_bytes()));
        let scale = |block: usize| scales[N * block / self.scales.inputs];
        blocks.enumerate().map(move |(number, (numbers, block))| (numbers, scale(number), block))
    }

    /// Writes a row of codes that name numbers.
    fn put_named(&self, codes: &[u8], table: &[f32], scales: &[f32], into: &mut [u8]) {
        match self.stored {
            Stored::F32 => self.put_scaled(codes, |code| table[usize::from(*code)], scales, into),
            Stored::Fp8 => {
                for (codes, scale, block) in self.blocks::<_, 64>(codes, scales, into) {
                    let (head, numbers) = block.split_at_mut(4);
                    head.copy_from_slice(&scale.to_le_bytes());
                    numbers.copy_from_slice(codes);
                }
            }
            stored => {
                for (codes, scale, block) in self.blocks::<_, 32>(codes, scales, into) {
                    let twice = codes.map(|code| (2.0 * table[usize::from(code)]) as i16);
                    put_block(stored, scale / 2.0, &twice, block).expect("halves within what it holds");
                }
            }
        }
    }

    /// Writes the values of a row as floats.
    fn put_scaled<T>(&self, row: &[T], value: impl Fn(&T) -> f32, scales: &[f32], into: &mut [u8]) {
        let put = |into: &mut [u8; 4], of: &T, scale: f32| *into = (value(of) * scale).to_le_bytes();
        let into = into.as_chunks_mut().0;
        if let Some(groups) = &self.groups {
            let each = into.iter_mut().zip(row).zip(groups);
            return each.for_each(|((into, of), group)| put(into, of, scales[*group as usize]));
        }
        let each = into.chunks_mut(self.scales.inputs).zip(row.chunks(self.scales.inputs)).zip(scales);
        for ((into, row), scale) in each {
            into.iter_mut().zip(row).for_each(|(into, of)| put(into, of, *scale));
        }
    }

    fn codes(&self, files: &[RegularFile], outputs: &Range<usize>) -> Result<Vec<u8>> {
        match &self.codes {
            Codes::Packed(packed) => packed.read(files, outputs, self.inputs),
            Codes::Bytes(part) | Codes::Fp8(part) => part.bytes(files, outputs.clone(), 0..self.inputs),
            Codes::Named { part, is_low_first, .. } => {
                let bytes = part.bytes(files, outputs.clone(), 0..self.inputs / 2)?;
                let turn = if *is_low_first { 4 } else { 0 };
                let mut codes = vec![0; 2 * bytes.len()];
                for (codes, two) in codes.as_chunks_mut().0.iter_mut().zip(bytes) {
                    let two = two.rotate_left(turn);
                    *codes = [two >> 4, two & 15];
                }
                Ok(codes)
            }
        }
    }

    fn zeros(&self, files: &[RegularFile], outputs: &Range<usize>, groups: usize) -> Result<Vec<i16>> {
        match &self.zeros {
            Zeros::All(zero) => Ok(vec![*zero; outputs.len() * groups]),
            Zeros::Packed { packed, more } => {
                let mask = u8::MAX >> (8 - packed.bits);
                let zeros = packed.read(files, outputs, groups)?;
                Ok(zeros.iter().map(|zero| i16::from(zero.wrapping_add(*more) & mask)).collect())
            }
            Zeros::Bytes { part, more } => {
                let zeros = part.bytes(files, outputs.clone(), 0..groups)?;
                Ok(zeros.iter().map(|zero| i16::from(*zero as i8) + more).collect())
            }
        }
    }

    /// Codes less their zero points.
    fn levels(&self, codes: &[u8], zeros: &[i16], levels: &mut [i16]) {
        let signed = matches!(self.codes, Codes::Bytes(_));
        let code = |code: u8| if signed { i16::from(code as i8) } else { i16::from(code) };
        match self.groups {
            None => {
                let each = codes.chunks(self.scales.inputs).zip(levels.chunks_mut(self.scales.inputs));
                for ((codes, levels), zero) in each.zip(zeros) {
                    levels.iter_mut().zip(codes).for_each(|(level, own)| *level = code(*own) - zero);
                }
            }
            Some(ref groups) => {
                let each = levels.iter_mut().zip(codes).zip(groups);
                each.for_each(|((level, own), group)| *level = code(*own) - zeros[*group as usize]);
            }
        }
    }

    /// The error for a code that is farther from its zero point than the configuration has it.
    fn beyond(&self, files: &[RegularFile], row: usize) -> Error {
        let found = format!("`{}` has a zero point of its own in column {row}", self.name);
        Error::malformed(&files[self.file()].name(), found, "none, as `sym` of quantization_config says")
    }
}

impl Scales {
    /// Those of some outputs: `[outputs, groups]`.
    fn read(&self, files: &[RegularFile], outputs: &Range<usize>, inputs: usize) -> Result<Vec<f32>> {
        let [rows, columns] = self.part.matrix();
        let scales: Vec<f32> = match &self.held {
            Held::ByGroup => {
                let by_group = self.part.floats(files, 0..rows, outputs.clone())?;
                let of = |output| by_group.iter().skip(output).step_by(outputs.len()).copied();
                (0..outputs.len()).flat_map(of).collect()
            }
            Held::ByOutput => {
                let held = outputs.start / self.outputs..outputs.end.div_ceil(self.outputs);
                let numbers = self.part.floats(files, held.clone(), 0..columns)?;
                let of =
                    |output: usize| &numbers[(output / self.outputs - held.start) * columns..][..columns];
                outputs.clone().flat_map(|output| of(output).iter().copied()).collect()
            }
            Held::OneByOne { block, nested } => {
                let numbers = outputs.start * inputs..outputs.end * inputs;
                let held = numbers.start / block..numbers.end.div_ceil(*block);
                let scales = match nested {
                    None => self.part.floats(files, held.clone(), 0..1)?,
                    Some(nested) => nested.read(&self.part, files, &held)?,
                };
                numbers.step_by(self.inputs).map(|at| scales[at / block - held.start]).collect()
            }
        };
        Ok(scales.into_iter().map(|scale| scale * self.times).collect())
    }
}

impl Nested {
    /// What some of these codes are.
    fn read(&self, codes: &Part, files: &[RegularFile], which: &Range<usize>) -> Result<Vec<f32>> {
        let held = which.start / self.block..which.end.div_ceil(self.block);
        let scales = self.part.floats(files, held.clone(), 0..1)?;
        let codes = codes.bytes(files, which.clone(), 0..1)?;
        let value = |(at, code): (usize, &u8)| {
            self.values[usize::from(*code)] * scales[at / self.block - held.start] + self.offset
        };
        Ok(which.clone().zip(&codes).map(value).collect())
    }
}

/// Writes a block as GGUF has it; none where a level is beyond its codes.
fn put_block(stored: Stored, scale: f32, levels: &[i16; 32], block: &mut [u8]) -> Option<()> {
    let half = match stored {
        Stored::Q4_0 => 8,
        Stored::Q5_0 => 16,
        _ => 128,
    };
    if !levels.iter().all(|level| (-half..half).contains(level)) {
        return None;
    }
    let (head, codes) = block.split_at_mut(2);
    head.copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    if stored == Stored::Q8_0 {
        codes.iter_mut().zip(levels).for_each(|(byte, level)| *byte = *level as u8);
        return Some(());
    }
    let (fifths, nibbles) = codes.split_at_mut(codes.len() - 16);
    let code = |i: usize| (levels[i] + half) as u8;
    for (i, byte) in nibbles.iter_mut().enumerate() {
        *byte = code(i) & 15 | (code(i + 16) & 15) << 4;
    }
    for (i, byte) in fifths.iter_mut().enumerate() {
        *byte = (0..8).map(|bit| (code(8 * i + bit) >> 4) << bit).sum();
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use kernels::linear::quant::{Narrow, dequantize_row};

    use super::*;

    #[test]
    fn blocks_are_those_of_gguf() {
        let formats = [
            (Stored::Q4_0, Narrow::Q4_0, 8),
            (Stored::Q5_0, Narrow::Q5_0, 16),
            (Stored::Q8_0, Narrow::Q8_0, 128),
        ];
        for (stored, narrow, half) in formats {
            let levels: [i16; 32] = std::array::from_fn(|i| (i as i16 * 37 + 5) % (2 * half) - half);
            let mut block = vec![0; stored.block_bytes()];
            assert_eq!(put_block(stored, 0.5, &levels, &mut block), Some(()));
            let mut values = [0.0; 32];
            dequantize_row(narrow, &block, &mut values);
            assert_eq!(values, levels.map(|level| 0.5 * f32::from(level)), "{stored}");
            for beyond in [half, -half - 1] {
                let mut levels = levels;
                levels[31] = beyond;
                assert_eq!(put_block(stored, 0.5, &levels, &mut block), None, "{stored}");
            }
        }
    }
}
