//! Parts to matrices: what a checkpoint announces, less the parts, and with the tensors that they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Scheme;
use super::matrix::{Codes, Held, Matrix, Scales, Zeros};
use super::packed::{Along, Order, Outputs, Packed};
use super::part::{Kind, Part};
use crate::checkpoint::Announced;
use crate::error::{Error, Result};
use crate::file::RegularFile;
use crate::stored::Stored;

/// Why parts are no matrix.
pub(super) enum Trouble {
    /// By themselves.
    Parts(String),
    /// Their file cannot be read.
    File(Error),
}

pub(super) type Found<T> = std::result::Result<T, Trouble>;

impl From<String> for Trouble {
    fn from(problem: String) -> Trouble {
        Trouble::Parts(problem)
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        Trouble::File(error)
    }
}

/// What files tell of activations and of KV, which are not rounded here.
const OF_ACTIVATIONS: [&str; 11] = [
    ".activation_scale",
    ".input_global_scale",
    ".input_scale",
    ".input_scale_ub",
    ".input_zero_point",
    ".output_scale",
    ".output_zero_point",
    ".q_scale",
    ".k_scale",
    ".kv_scale",
    ".v_scale",
];

/// Puts a matrix in the place of its parts, wherever there are some. `checkpoint`: its name, for messages.
///
/// # Errors
/// If parts are missing or do not fit each other, or a file cannot be read.
pub(crate) fn fold(
    scheme: Scheme,
    checkpoint: &str,
    announced: &mut BTreeMap<String, Announced>,
    files: &[RegularFile],
) -> Result<()> {
    announced.retain(|name, _| !OF_ACTIVATIONS.iter().any(|end| name.ends_with(end)));
    let mut problems = Vec::new();
    for (base, leaf) in bases(scheme, announced) {
        let mut parts = Parts { announced, base: &base, files };
        match parts.matrix(scheme, leaf) {
            Ok(matrix) => _ = announced.insert(format!("{base}.weight"), of(matrix)),
            Err(Trouble::Parts(problem)) => problems.push(problem),
            Err(Trouble::File(error)) => return Err(error),
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(Error::Tensors { file: checkpoint.into(), problems }) }
}

/// Whose codes there are, and what they are called.
fn bases(scheme: Scheme, announced: &BTreeMap<String, Announced>) -> Vec<(String, &'static str)> {
    let leaves: &[&str] = match scheme {
        Scheme::Gptq { .. } | Scheme::Awq => &["qweight"],
        Scheme::Beside { .. } => &["weight_packed", "weight"],
        Scheme::BitsAndBytes => &["weight"],
    };
    // Codes of bitsandbytes may lie in what looks like numbers: what they are multiplied by is beside them.
    let of_a_table = |name: &str| announced.contains_key(&format!("{name}.absmax"));
    let plain = |name: &str, found: &Announced| {
        let floats = matches!(Part::of(found).map(|part| part.kind()), Ok(Kind::Float(_)) | Err(_));
        floats && !(scheme == Scheme::BitsAndBytes && of_a_table(name))
    };
    let mut all = Vec::new();
    for (name, found) in announced {
        let leaf =
            leaves.iter().find(|leaf| name.strip_suffix(**leaf).is_some_and(|base| base.ends_with('.')));
        if let Some(leaf) = leaf.filter(|_| !plain(name, found)) {
            all.push((name[..name.len() - leaf.len() - 1].to_owned(), *leaf));
        }
    }
    all
}

fn of(matrix: Matrix) -> Announced {
    Announced {
        name: matrix.name.clone(),
        stored: Ok(matrix.stored()),
        dims: matrix.dims(),
        file: matrix.file(),
        offset: 0,
        quantized: Some(Arc::new(matrix)),
    }
}

/// The parts of one matrix.
pub(super) struct Parts<'a> {
    announced: &'a mut BTreeMap<String, Announced>,
    pub(super) base: &'a str,
    pub(super) files: &'a [RegularFile],
}

/// Who has which part of a matrix, before it is known what it becomes.
pub(super) struct Pieces {
    pub(super) codes: Codes,
    pub(super) scales: Scales,
    pub(super) zeros: Zeros,
    pub(super) groups: Option<Vec<u32>>,
    pub(super) shape: [usize; 2],
    /// The farthest that a code can be below and above its zero point.
    pub(super) levels: [i16; 2],
}

impl Parts<'_> {
    fn matrix(&mut self, scheme: Scheme, leaf: &str) -> Found<Matrix> {
        let codes = self.needed(leaf)?;
        let name = codes.name.clone();
        let pieces = match scheme {
            Scheme::Gptq { bits, symmetric, zeros_from } => self.gptq(codes, bits, symmetric, zeros_from)?,
            Scheme::Awq => self.awq(codes)?,
            Scheme::Beside { .. } if codes.kind() == Kind::Octets => self.fp4(codes)?,
            Scheme::Beside { .. } if leaf == "weight_packed" => self.packed(codes)?,
            Scheme::Beside { block } => self.bytes(codes, block)?,
            Scheme::BitsAndBytes => self.bitsandbytes(codes)?,
        };
        Ok(pieces.checked()?.matrix(name))
    }

    pub(super) fn optional(&mut self, leaf: &str) -> Found<Option<Part>> {
        let found = self.announced.remove(&format!("{}.{leaf}", self.base));
        Ok(found.map(|found| Part::of(&found)).transpose()?)
    }

    pub(super) fn needed(&mut self, leaf: &str) -> Found<Part> {
        self.optional(leaf)?.ok_or_else(|| format!("`{}.{leaf}` is missing", self.base).into())
    }

    /// `qweight [inputs packed, outputs]`, `qzeros [groups, outputs packed]`, `scales [groups, outputs]`, `g_idx [inputs]`.
    fn gptq(&mut self, codes: Part, bits: u32, symmetric: bool, zeros_from: u8) -> Found<Pieces> {
        let order = self.order("g_idx")?;
        let [words, outputs] = codes.words_of("inputs of 2, 3, 4 or 8 bits")?;
        let inputs = order.as_ref().map_or(words.saturating_mul(32) / bits as usize, Vec::len);
        let bits = bits_of(&codes, words, inputs, &[2, 3, 4, 8])?;
        let (zeros, scales) = (self.needed("qzeros")?, self.needed("scales")?);
        zeros.words_of("zero points")?;
        // One of each, and what is more than the bits of a zero point goes to the next: so they are made (but those of 3 bits).
        let more = match bits {
            _ if zeros_from == 0 => 0,
            2 => 0x5555_5555,
            4 => 0x1111_1111,
            8 => 0x0101_0101,
            _ => 0,
        };
        let pack = |words, along, more| Packed {
            words,
            outputs: Outputs::Columns,
            along,
            order: Order::Plain,
            bits,
            more,
        };
        let shape = [outputs, inputs];
        let (scales, groups) = by_group(scales, shape, order)?;
        let half = 1i16 << (bits - 1);
        Ok(Pieces {
            codes: Codes::Packed(pack(codes, Along::Inputs, 0)),
            scales,
            zeros: Zeros::Packed {
                packed: pack(zeros, Along::Outputs, more),
                more: if more == 0 { zeros_from } else { 0 },
            },
            groups,
            shape,
            levels: if symmetric { [-half, half - 1] } else { [-2 * half, 2 * half - 1] },
        })
    }

    /// `qweight [inputs, outputs packed]`, `qzeros [groups, outputs packed]`, `scales [groups, outputs]`.
    fn awq(&mut self, codes: Part) -> Found<Pieces> {
        let (zeros, scales) = (self.needed("qzeros")?, self.needed("scales")?);
        codes.words_of("outputs of 4 bits")?;
        zeros.words_of("zero points")?;
        let pack = |words| Packed {
            words,
            outputs: Outputs::Columns,
            along: Along::Outputs,
            order: Order::EvenFirst,
            bits: 4,
            more: 0,
        };
        let (codes, zeros) = (pack(codes), pack(zeros));
        let shape = codes.shape();
        let (scales, groups) = by_group(scales, shape, None)?;
        let zeros = Zeros::Packed { packed: zeros, more: 0 };
        Ok(Pieces { codes: Codes::Packed(codes), scales, zeros, groups, shape, levels: [-15, 15] })
    }

    /// `weight_packed [outputs, inputs packed]`, `weight_shape [2]`, `weight_scale [outputs, groups]`, `weight_zero_point [outputs
    /// packed, groups]`, `weight_g_idx [inputs]`.
    fn packed(&mut self, codes: Part) -> Found<Pieces> {
        let (order, shape) = (self.order("weight_g_idx")?, self.shape()?);
        let [rows, words] = codes.words_of("inputs of 2 to 8 bits")?;
        if rows != shape[0] {
            return Err(codes.does_not_fit(shape));
        }
        let bits = bits_of(&codes, words, shape[1], &[2, 3, 4, 5, 6, 7, 8])?;
        let pack = |words, along| Packed {
            words,
            outputs: Outputs::Rows,
            along,
            order: Order::Plain,
            bits,
            more: 0,
        };
        let scales = Scales::beside(self.needed("weight_scale")?, shape, None)?;
        let half = 1i16 << (bits - 1);
        let zeros = match self.optional("weight_zero_point")? {
            None => Zeros::All(half),
            Some(part) if part.kind() == Kind::Words => {
                Zeros::Packed { packed: pack(part, Along::Outputs), more: 0 }
            }
            Some(part) => Zeros::Bytes { part, more: half },
        };
        let levels = match zeros {
            Zeros::All(_) => [-half, half - 1],
            _ => [-2 * half, 2 * half - 1],
        };
        let groups = in_order(order, &scales, shape)?;
        Ok(Pieces { codes: Codes::Packed(pack(codes, Along::Inputs)), scales, zeros, groups, shape, levels })
    }

    /// `weight [outputs, inputs]` of bytes, `weight_scale` or `weight_scale_inv`, `weight_zero_point`.
    fn bytes(&mut self, codes: Part, block: Option<[usize; 2]>) -> Found<Pieces> {
        let shape = codes.matrix();
        if codes.dims.len() != 2 || !matches!(codes.kind(), Kind::Bytes | Kind::Fp8) {
            return Err(codes.expected("a matrix of whole numbers or floats of 8 bits"));
        }
        let scale = match self.optional("weight_scale_inv")? {
            Some(scale) => scale,
            None => self.needed("weight_scale")?,
        };
        let scales = Scales::beside(scale, shape, block)?;
        let zeros = self.optional("weight_zero_point")?;
        let (codes, zeros, levels) = match (codes.kind(), zeros) {
            (Kind::Fp8, Some(part)) if !part.is_zero(self.files)? => {
                return Err(part.expected("zeros beside floats"));
            }
            (Kind::Fp8, _) => (Codes::Fp8(codes), Zeros::All(0), [0, 0]),
            (_, None) => (Codes::Bytes(codes), Zeros::All(0), [-128, 127]),
            (_, Some(part)) => (Codes::Bytes(codes), Zeros::Bytes { part, more: 0 }, [-255, 255]),
        };
        Ok(Pieces { codes, scales, zeros, groups: None, shape, levels })
    }

    /// The group of each input, where a file says it; one that says less than 0 of all says nothing.
    fn order(&mut self, leaf: &str) -> Found<Option<Vec<u32>>> {
        let Some(part) = self.optional(leaf)? else { return Ok(None) };
        if part.kind() != Kind::Words || part.dims.len() != 1 {
            return Err(part.expected("a group for each input"));
        }
        let groups = part.integers(self.files)?;
        if groups.iter().all(|group| *group < 0) {
            return Ok(None);
        }
        let groups: Option<Vec<u32>> = groups.iter().map(|group| u32::try_from(*group).ok()).collect();
        groups.map(Some).ok_or_else(|| part.expected("groups from 0"))
    }

    /// Outputs and inputs, where the file says them.
    fn shape(&mut self) -> Found<[usize; 2]> {
        let part = self.needed("weight_shape")?;
        let right = matches!(part.kind(), Kind::Words | Kind::Longs) && part.dims == [2];
        let sides = if right { part.integers(self.files)? } else { vec![] };
        let side =
            |i: usize| usize::try_from(*sides.get(i)?).ok().filter(|side| (1..=SIDE_MAX).contains(side));
        let shape = side(0).zip(side(1)).map(|(outputs, inputs)| [outputs, inputs]);
        shape.ok_or_else(|| part.expected("how many outputs and inputs there are"))
    }
}

/// More outputs or inputs than any matrix has.
pub(super) const SIDE_MAX: usize = 1 << 32;

/// How many bits codes have of which so many words hold those of `inputs`.
fn bits_of(codes: &Part, words: usize, inputs: usize, known: &[usize]) -> Found<u32> {
    let bits = words.saturating_mul(32).checked_div(inputs).unwrap_or(0);
    let fits = known.contains(&bits) && inputs.saturating_mul(bits).div_ceil(32) == words;
    fits.then_some(bits as u32)
        .ok_or_else(|| codes.expected(&format!("codes of {inputs} inputs, of {known:?} bits")))
}

/// Scales of `[groups, outputs]`, and the group of each input where they are not in order.
fn by_group(part: Part, shape: [usize; 2], order: Option<Vec<u32>>) -> Found<(Scales, Option<Vec<u32>>)> {
    let ([groups, columns], [outputs, inputs]) = (part.matrix(), shape);
    let floats = matches!(part.kind(), Kind::Float(_));
    if !floats || columns != outputs || !(1..=inputs).contains(&groups) {
        return Err(part.does_not_fit(shape));
    }
    let scales =
        Scales { part, held: Held::ByGroup, outputs: 1, inputs: inputs.div_ceil(groups), times: 1.0 };
    let order = in_order(order, &scales, shape)?;
    Ok((scales, order))
}

/// None where the groups of inputs are in order, as they are where nothing says otherwise.
fn in_order(order: Option<Vec<u32>>, scales: &Scales, shape: [usize; 2]) -> Found<Option<Vec<u32>>> {
    let [_, inputs] = shape;
    let groups = scales.groups(inputs);
    let equal = groups * scales.inputs == inputs;
    let known = order
        .as_ref()
        .map_or(equal, |order| order.len() == inputs && order.iter().all(|group| (*group as usize) < groups));
    if !known {
        return Err(scales.part.does_not_fit(shape));
    }
    let is_plain = |order: &Vec<u32>| {
        equal && order.iter().enumerate().all(|(input, group)| input / scales.inputs == *group as usize)
    };
    Ok(order.filter(|order| !is_plain(order)))
}

impl Part {
    pub(super) fn expected(&self, what: &str) -> Trouble {
        format!("`{}` is {} {:?}, expected {what}", self.name, self.kind(), self.dims).into()
    }

    pub(super) fn does_not_fit(&self, [outputs, inputs]: [usize; 2]) -> Trouble {
        let Part { name, dims, .. } = self;
        format!("`{name}` is {} {dims:?} of a matrix of {outputs} outputs by {inputs} inputs", self.kind())
            .into()
    }

    /// The sides of a matrix of words.
    fn words_of(&self, what: &str) -> Found<[usize; 2]> {
        let right = self.kind() == Kind::Words && self.dims.len() == 2;
        if right { Ok(self.matrix()) } else { Err(self.expected(&format!("words of {what}"))) }
    }
}

impl Scales {
    /// Those beside a matrix: one for all, one for each output, for each group of its inputs, or for each block.
    pub(super) fn beside(
        part: Part,
        [outputs, inputs]: [usize; 2],
        block: Option<[usize; 2]>,
    ) -> Found<Scales> {
        let [rows, columns] = part.matrix();
        let [outputs_each, inputs_each] = match (rows, columns, block) {
            (1, 1, _) => [outputs, inputs],
            (_, 1, _) if rows == outputs => [1, inputs],
            (_, _, Some([of, by])) if [outputs.div_ceil(of), inputs.div_ceil(by)] == [rows, columns] => {
                [of, by]
            }
            _ if rows == outputs && columns > 0 && inputs.is_multiple_of(columns) => [1, inputs / columns],
            _ => [0, 0],
        };
        let floats = matches!(part.kind(), Kind::Float(_) | Kind::Fp8 | Kind::Octets);
        if outputs_each == 0 || inputs_each == 0 || !floats {
            return Err(part.does_not_fit([outputs, inputs]));
        }
        let held = Held::ByOutput;
        Ok(Scales { part, held, outputs: outputs_each, inputs: inputs_each, times: 1.0 })
    }

    /// How many groups inputs have.
    pub(super) fn groups(&self, inputs: usize) -> usize {
        let [rows, columns] = self.part.matrix();
        match self.held {
            Held::ByGroup => rows.min(inputs),
            Held::ByOutput => columns.min(inputs),
            Held::OneByOne { .. } => inputs / self.inputs,
        }
    }
}

impl Pieces {
    /// That zero points are of the groups that scales are of, and scales of a type that such codes have.
    fn checked(self) -> Found<Pieces> {
        let [outputs, inputs] = self.shape;
        let groups = self.scales.groups(inputs);
        match &self.zeros {
            Zeros::Packed { packed, .. } if packed.shape()[0] < outputs || packed.shape()[1] != groups => {
                Err(packed.words.does_not_fit(self.shape))
            }
            Zeros::Bytes { part, .. } if part.kind() != Kind::Bytes || part.matrix() != [outputs, groups] => {
                Err(part.does_not_fit(self.shape))
            }
            // Exponents are scales of floats alone.
            _ if self.scales.part.kind() == Kind::Octets && self.codes.table().is_none() => {
                Err(self.scales.part.does_not_fit(self.shape))
            }
            _ => Ok(self),
        }
    }

    fn matrix(self, name: String) -> Matrix {
        let Pieces { codes, scales, zeros, groups, shape: [outputs, inputs], levels: [least, most] } = self;
        let blocks_of = |size: usize| {
            groups.is_none() && scales.inputs.is_multiple_of(size) && inputs.is_multiple_of(size)
        };
        let within = |half: i16| least >= -half && most < half;
        let is_half = |value: &f32| (2.0 * value).fract() == 0.0 && (-8.0..8.0).contains(value);
        let stored = match &codes {
            Codes::Fp8(_) if blocks_of(64) => Stored::Fp8,
            Codes::Fp8(_) => Stored::F32,
            _ if !blocks_of(32) => Stored::F32,
            Codes::Named { values, .. } if values.iter().all(is_half) => Stored::Q5_0,
            Codes::Named { .. } => Stored::F32,
            _ if within(8) => Stored::Q4_0,
            _ if within(16) => Stored::Q5_0,
            _ if within(128) => Stored::Q8_0,
            _ => Stored::F32,
        };
        Matrix { name, codes, scales, zeros, groups, outputs, inputs, stored }
    }
}

/// Whether this is a bias of zeros, which quantisers have put beside matrices that have none, and others beside norms: it changes
/// nothing.
///
/// # Errors
/// If its file cannot be read.
pub(crate) fn is_zero_bias(
    name: &str,
    announced: &BTreeMap<String, Announced>,
    files: &[RegularFile],
) -> Result<bool> {
    let weight = name.strip_suffix(".bias").and_then(|base| announced.get(&format!("{base}.weight")));
    let (Some(weight), found) = (weight, &announced[name]) else { return Ok(false) };
    let is_plain = found.stored.as_ref().is_ok_and(|stored| stored.is_plain());
    // Of another size it would be read whole, however large it is.
    if !is_plain || found.dims.len() != 1 || found.dims.first() != weight.dims.first() {
        return Ok(false);
    }
    let Ok(bias) = Part::of(found) else { return Ok(false) };
    bias.is_zero(files)
}
