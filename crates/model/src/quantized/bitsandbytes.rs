//! Matrices of bitsandbytes: codes of 4 bits that name numbers of a table, and whole numbers of 8 bits (LLM.int8).
//!
//! ```text
//! P.weight                  two codes in a byte, the first above; the matrix row by row. U8, or bytes that are called floats
//!                           (`bnb_4bit_quant_storage`)
//! P.weight.quant_map        what each of the 16 codes is
//! P.weight.absmax           what `blocksize` numbers one behind another are multiplied by, also across rows: F32, or
//!                           U8 with .nested_quant_map and, for `nested_blocksize` of them, .nested_absmax
//! P.weight.quant_state.bitsandbytes__nf4 (or __fp4)   JSON: shape, block sizes, nested_offset
//!
//! P.weight I8 · P.SCB       the largest of each output, which 127 stands for
//! ```

use super::fold::{Found, Parts, Pieces, SIDE_MAX};
use super::matrix::{Codes, Held, Nested, Scales, Zeros};
use super::part::{Kind, Part};
use crate::json::{Fields, parse};

/// How files call what they tell of a matrix of 4 bits.
const STATES: [&str; 2] = ["weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4"];
/// More than they tell.
const STATE_BYTES_MAX: usize = 4096;
/// What the largest number of an output is in whole numbers of 8 bits.
const MOST: f32 = 127.0;

/// What a file tells of a matrix.
struct State {
    shape: [usize; 2],
    block: usize,
    /// Of blocks' scales that have a scale themselves: how many, and what is added to all.
    nested: Option<(usize, f32)>,
}

impl Parts<'_> {
    pub(super) fn bitsandbytes(&mut self, codes: Part) -> Found<Pieces> {
        match codes.kind() {
            Kind::Octets => self.of_a_table(codes),
            Kind::Float(_) => self.of_a_table(codes.into_octets()),
            Kind::Bytes if codes.dims.len() == 2 => self.of_largest(codes),
            _ => Err(codes.expected("codes of 4 bits, or a matrix of whole numbers of 8")),
        }
    }

    fn of_largest(&mut self, codes: Part) -> Found<Pieces> {
        // Others are the orders of some GPUs, in which older versions saved what had been used.
        if let Some(order) = self.optional("weight_format")?
            && !order.is_zero(self.files)?
        {
            return Err(order.expected("0, which says that rows lie as they are"));
        }
        let shape = codes.matrix();
        let scales = Scales::beside(self.needed("SCB")?, shape, None)?;
        Ok(Pieces {
            codes: Codes::Bytes(codes),
            scales: Scales { times: 1.0 / MOST, ..scales },
            zeros: Zeros::All(0),
            groups: None,
            shape,
            levels: [-128, 127],
        })
    }

    fn of_a_table(&mut self, codes: Part) -> Found<Pieces> {
        let State { shape, block, nested } = self.state()?;
        let [outputs, inputs] = shape;
        let count = outputs.saturating_mul(inputs);
        // Rows of an odd number of inputs would begin within bytes.
        if !inputs.is_multiple_of(2) || codes.count() != count / 2 {
            return Err(codes.does_not_fit(shape));
        }
        let values = self.table("weight.quant_map")?;
        let part = self.needed("weight.absmax")?;
        if part.count() != count.div_ceil(block) {
            return Err(part.does_not_fit(shape));
        }
        let nested = nested.map(|nested| self.nested(part.count(), nested)).transpose()?;
        let right = if nested.is_some() {
            part.kind() == Kind::Octets
        } else {
            matches!(part.kind(), Kind::Float(_))
        };
        if !right {
            return Err(part.expected("a scale for each block"));
        }
        let scales = Scales {
            part: part.of_shape(vec![count.div_ceil(block)]),
            held: Held::OneByOne { block, nested },
            outputs: 1,
            inputs: common(inputs, block),
            times: 1.0,
        };
        let codes =
            Codes::Named { part: codes.of_shape(vec![outputs, inputs / 2]), values, is_low_first: false };
        Ok(Pieces { codes, scales, zeros: Zeros::All(0), groups: None, shape, levels: [0, 0] })
    }

    /// The scales of so many scales.
    fn nested(&mut self, count: usize, (block, offset): (usize, f32)) -> Found<Nested> {
        let values = self.table("weight.nested_quant_map")?;
        let part = self.needed("weight.nested_absmax")?;
        let right = part.count() == count.div_ceil(block) && matches!(part.kind(), Kind::Float(_));
        if !right {
            return Err(part.expected(&format!("a scale for each {block} of {count} scales")));
        }
        let part = part.of_shape(vec![count.div_ceil(block)]);
        Ok(Nested { part, block, values, offset })
    }

    /// What each of `N` codes is.
    fn table<const N: usize>(&mut self, leaf: &str) -> Found<Box<[f32; N]>> {
        let part = self.needed(leaf)?;
        if part.count() != N || !matches!(part.kind(), Kind::Float(_)) {
            return Err(part.expected(&format!("{N} numbers")));
        }
        let numbers = part.all_floats(self.files)?.into_boxed_slice();
        numbers.try_into().map_err(|_| part.expected(&format!("{N} numbers")))
    }

    fn state(&mut self) -> Found<State> {
        let [nf4, fp4] = STATES.map(|leaf| self.optional(leaf));
        let part = nf4?.or(fp4?).ok_or_else(|| format!("`{}.{}` is missing", self.base, STATES[0]))?;
        if part.kind() != Kind::Octets || part.count() > STATE_BYTES_MAX {
            return Err(part.expected("some JSON"));
        }
        let file = format!("{}: {}", self.files[part.file()].name(), part.name);
        let value = parse(&String::from_utf8_lossy(&part.all_bytes(self.files)?), &file)?;
        let told = Fields::of(&value, &file)?;
        let is_side = |side: &f64| side.fract() == 0.0 && (1.0..=SIDE_MAX as f64).contains(side);
        let shape = match told.numbers("shape")?.unwrap_or_default()[..] {
            [outputs, inputs] if is_side(&outputs) && is_side(&inputs) => [outputs as usize, inputs as usize],
            _ => return Err(told.wrong("shape", "two sides of a matrix").into()),
        };
        let block = |name| {
            let size = told.needed_size(name)?;
            if size > 0 { Ok(size) } else { Err(told.wrong(name, "at least 1")) }
        };
        let nested = match told.get("nested_blocksize") {
            None => None,
            Some(_) => Some((block("nested_blocksize")?, told.needed_number("nested_offset")? as f32)),
        };
        Ok(State { shape, block: block("blocksize")?, nested })
    }
}

/// The largest number that divides both.
fn common(mut one: usize, mut other: usize) -> usize {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}
