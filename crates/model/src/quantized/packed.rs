//! Codes of a few bits in words of 32, as files hold them for a matrix of outputs by inputs (or by groups of inputs: zero points).
//!
//! ```text
//! outputs are    packed along    who
//! rows           inputs          compressed-tensors: codes
//! rows           outputs         compressed-tensors: zero points
//! columns        inputs          GPTQ: codes
//! columns        outputs         GPTQ: zero points; AWQ: both
//! ```
//!
//! The words along the packed side are one stream of bits, the lowest first: codes of 3 bits and the like lie across words.

use std::ops::Range;

use super::part::Part;
use crate::error::Result;
use crate::file::RegularFile;

/// Which side of the words in a file is that of outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outputs {
    Rows,
    Columns,
}

/// Which side of a matrix shares words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Along {
    Outputs,
    Inputs,
}

/// In which order a word holds its codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The first in the lowest bits.
    Plain,
    /// AWQ's eight: even ones, then odd ones.
    EvenFirst,
}

impl Order {
    /// Where in its stream the code of this number lies.
    fn place(self, number: usize) -> usize {
        match self {
            Order::Plain => number,
            Order::EvenFirst => number / 8 * 8 + number % 2 * 4 + number % 8 / 2,
        }
    }
}

/// A matrix of codes in a file.
#[derive(Clone, Debug)]
pub(super) struct Packed {
    pub(super) words: Part,
    pub(super) outputs: Outputs,
    pub(super) along: Along,
    pub(super) order: Order,
    /// Of a code: 2 to 8.
    pub(super) bits: u32,
    /// What is added to each word before it is taken apart, carries and all.
    pub(super) more: u32,
}

impl Packed {
    /// `[outputs, inputs]`, as far as the words reach.
    pub(super) fn shape(&self) -> [usize; 2] {
        let codes = |words: usize| words.saturating_mul(32) / self.bits as usize;
        let [outputs, inputs] = match self.outputs {
            Outputs::Rows => self.words.matrix(),
            Outputs::Columns => {
                let [rows, columns] = self.words.matrix();
                [columns, rows]
            }
        };
        match self.along {
            Along::Outputs => [codes(outputs), inputs],
            Along::Inputs => [outputs, codes(inputs)],
        }
    }

    /// The codes of some outputs: `[outputs, inputs]`, the first `inputs` that there are.
    pub(super) fn read(
        &self,
        files: &[RegularFile],
        outputs: &Range<usize>,
        inputs: usize,
    ) -> Result<Vec<u8>> {
        let of_outputs = match self.along {
            Along::Inputs => outputs.clone(),
            Along::Outputs => self.words_of(outputs),
        };
        let [rows, columns] = self.words.matrix();
        let (rows, columns) = match self.outputs {
            Outputs::Rows => (of_outputs.clone(), 0..columns),
            Outputs::Columns => (0..rows, of_outputs.clone()),
        };
        let mut words = self.words.words(files, rows, columns.clone())?;
        words.iter_mut().for_each(|word| *word = word.wrapping_add(self.more));
        // From an output's words (or those of several) to the next one's, and from an input's.
        let (to_output, to_input) = match self.outputs {
            Outputs::Rows => (columns.len(), 1),
            Outputs::Columns => (1, columns.len()),
        };
        let mut codes = vec![0; outputs.len() * inputs];
        match self.along {
            Along::Inputs => {
                for (at, row) in codes.chunks_exact_mut(inputs).enumerate() {
                    self.unpack(words[at * to_output..].iter().step_by(to_input), row);
                }
            }
            Along::Outputs => {
                let first = of_outputs.start * 32;
                let places =
                    outputs.clone().map(|output| self.order.place(output) * self.bits as usize - first);
                let places: Vec<_> = places.map(|bit| (bit / 32 * to_output, bit % 32)).collect();
                self.unpack_across(words, [to_output, to_input], &places, &mut codes);
            }
        }
        Ok(codes)
    }

    /// The words that hold the codes of some outputs, from where a code begins with a word.
    fn words_of(&self, outputs: &Range<usize>) -> Range<usize> {
        const WHOLE: usize = 32;
        let bits = self.bits as usize;
        let last = outputs.end.next_multiple_of(WHOLE) * bits / 32;
        let [rows, columns] = self.words.matrix();
        let all = if self.outputs == Outputs::Rows { rows } else { columns };
        outputs.start / WHOLE * bits..last.min(all)
    }

    fn mask(&self) -> u64 {
        (1 << self.bits) - 1
    }

    /// Fills a row for each of `places`: where its word is of those of an input, and from which bit on. Input by input, so that
    /// the words of one are at hand, and a cache line of each row.
    fn unpack_across(
        &self,
        mut words: Vec<u32>,
        [to_next, to_input]: [usize; 2],
        places: &[(usize, usize)],
        codes: &mut [u8],
    ) {
        // A code may go on in the next word, which the last one does not have.
        words.resize(words.len() + to_next, 0);
        let inputs = codes.len() / places.len();
        for input in 0..inputs {
            let words = &words[input * to_input..];
            for (row, (word, bit)) in places.iter().enumerate() {
                let both = u64::from(words[*word]) | u64::from(words[word + to_next]) << 32;
                codes[row * inputs + input] = (both >> bit & self.mask()) as u8;
            }
        }
    }

    /// Fills a row with the codes of its stream.
    fn unpack<'a>(&self, mut stream: impl Iterator<Item = &'a u32>, row: &mut [u8]) {
        let (mut held, mut bits) = (0u64, 0);
        for code in row {
            if bits < self.bits {
                held |= u64::from(*stream.next().unwrap_or(&0)) << bits;
                bits += 32;
            }
            *code = (held & self.mask()) as u8;
            held >>= self.bits;
            bits -= self.bits;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Announced;

    /// A matrix of words in a file of its own, and some of its outputs.
    fn read(
        words: &[u32],
        dims: [u64; 2],
        packed: impl Fn(Part) -> Packed,
        outputs: Range<usize>,
    ) -> Vec<u8> {
        let folder = tempfile::tempdir().expect("a folder");
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        std::fs::write(folder.path().join("words"), bytes).expect("written");
        let file = RegularFile::open(&folder.path().join("words")).expect("a file");
        let announced = Announced {
            name: "words".into(),
            stored: Err("I32".into()),
            dims: dims.into(),
            file: 0,
            offset: 0,
            quantized: None,
        };
        let packed = packed(Part::of(&announced).expect("a part"));
        packed.read(&[file], &outputs, 1).expect("readable")
    }

    /// What GPTQModel writes of zero points 8, 0, 5, 8: one less of each, which a 0 takes from the next one.
    #[test]
    fn a_zero_point_of_zero_takes_from_the_next() {
        let packed = |words| Packed {
            words,
            outputs: Outputs::Columns,
            along: Along::Outputs,
            order: Order::Plain,
            bits: 4,
            more: 0x1111_1111,
        };
        assert_eq!(read(&[0x7777_73f7], [1, 1], packed, 0..8), [8, 0, 5, 8, 8, 8, 8, 8]);
    }

    #[test]
    fn outputs_may_end_within_a_word() {
        let codes: Vec<u8> = (0..48).map(|i| i * 5 % 8).collect();
        let mut words = [0u32; 5];
        for (at, code) in codes.iter().enumerate() {
            let (word, bit) = (3 * at / 32, 3 * at % 32);
            words[word] |= u32::from(*code) << bit;
            if bit > 29 {
                words[word + 1] |= u32::from(*code) >> (32 - bit);
            }
        }
        let packed = |words| Packed {
            words,
            outputs: Outputs::Rows,
            along: Along::Outputs,
            order: Order::Plain,
            bits: 3,
            more: 0,
        };
        for outputs in [0..48, 32..48, 47..48, 5..9] {
            assert_eq!(read(&words, [5, 1], packed, outputs.clone()), codes[outputs]);
        }
    }

    #[test]
    fn awq_puts_even_outputs_first() {
        let places: Vec<_> = (8..16).map(|number| Order::EvenFirst.place(number)).collect();
        assert_eq!(places, [8, 12, 9, 13, 10, 14, 11, 15]);
    }
}
