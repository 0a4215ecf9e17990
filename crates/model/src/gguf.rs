//! GGUF files (versions 2 and 3, little-endian): metadata, a table of tensors, then the bytes.
//!
//! A file is hostile until it is read: every length is held against what is left of the file before
//! anything of that length is allocated, and every product is checked.

pub mod metadata;
mod reader;
mod rope;
pub mod split;
pub mod texts;
pub mod to_spec;
mod variants;
pub mod vocab;

pub use metadata::{Metadata, Numbers, Value};
pub use split::{Gguf, siblings};
pub use texts::Texts;
pub use vocab::GgufVocab;

use crate::error::{Error, Result};
use crate::stored::Stored;
use reader::Reader;
use std::collections::BTreeSet;
use std::io::Read;

#[cfg(test)]
mod tests;

/// Metadata and tensor table together may not be longer: the longest vocabularies take 20 MB.
const HEADER_BYTES_MAX: u64 = 1 << 28;
const DIMS_MAX: u32 = 4;
const NAME_BYTES_MAX: u64 = 256;
const ALIGNMENT_DEFAULT: u64 = 32;
const ALIGNMENT_MAX: u64 = 1 << 20;

/// A tensor that a file announces.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its name in the file.
    pub name: String,
    /// Its format.
    pub stored: Stored,
    /// Its dimensions, outermost first (the file lists them innermost first).
    pub dims: Vec<u64>,
    /// Where its bytes begin in the file.
    pub offset: u64,
    /// How many there are.
    pub bytes: u64,
}

/// The header of one file.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// Keys and values.
    pub metadata: Metadata,
    /// The tensors, by offset.
    pub entries: Vec<Entry>,
}

/// Reads the header of a file of `file_len` bytes, named `file` in messages.
///
/// # Errors
/// [`Error::Malformed`] if a rule of the format is broken, [`Error::Unsupported`] for another version,
/// byte order or tensor format.
pub fn parse_header(from: impl Read, file_len: u64, file: &str) -> Result<Header> {
    let mut reader = Reader::new(from, file_len.min(HEADER_BYTES_MAX), file);
    check_magic(&mut reader)?;
    let tensors = reader.u64()?;
    let pairs = reader.u64()?;
    reader.check_count(tensors, 24, "tensors")?;
    reader.check_count(pairs, 13, "metadata entries")?;
    let metadata = Metadata::read(&mut reader, pairs)?;
    let alignment = alignment(&metadata, file)?;
    let mut entries = Vec::new();
    for _ in 0..tensors {
        entries.push(read_entry(&mut reader)?);
    }
    let data_at = reader.position().next_multiple_of(alignment);
    place(&mut entries, data_at, alignment, file_len, file)?;
    Ok(Header { metadata, entries })
}

fn check_magic<R: Read>(reader: &mut Reader<R>) -> Result<()> {
    let magic = reader.array::<4>()?;
    if &magic != b"GGUF" {
        return Err(reader.malformed(format!("it begins with {magic:?}"), "`GGUF`"));
    }
    match reader.u32()? {
        2 | 3 => Ok(()),
        swapped if matches!(swapped.swap_bytes(), 1..=3) => {
            Err(Error::unsupported(reader.file(), "a big-endian GGUF file", "little-endian"))
        }
        other => {
            Err(Error::unsupported(reader.file(), format!("version {other} of GGUF"), "versions 2 and 3"))
        }
    }
}

fn alignment(metadata: &Metadata, file: &str) -> Result<u64> {
    let alignment = metadata.uint("general.alignment")?.unwrap_or(ALIGNMENT_DEFAULT);
    if alignment.is_power_of_two() && alignment <= ALIGNMENT_MAX {
        return Ok(alignment);
    }
    let expected = format!("a power of two up to {ALIGNMENT_MAX}");
    Err(Error::malformed(file, format!("general.alignment is {alignment}"), expected))
}

/// One line of the tensor table; its offset is still relative to the data.
fn read_entry<R: Read>(reader: &mut Reader<R>) -> Result<Entry> {
    let name = reader.name(NAME_BYTES_MAX)?;
    let n_dims = reader.u32()?;
    if n_dims == 0 || n_dims > DIMS_MAX {
        return Err(reader.malformed(format!("`{name}` has {n_dims} dimensions"), format!("1 to {DIMS_MAX}")));
    }
    let mut dims = Vec::new();
    for _ in 0..n_dims {
        dims.push(reader.u64()?);
    }
    let kind = reader.u32()?;
    let stored = stored(kind).ok_or_else(|| {
        Error::unsupported(reader.file(), format!("`{name}` of type {}", type_name(kind)), supported_types())
    })?;
    let bytes = tensor_bytes(stored, &dims).ok_or_else(|| {
        reader.malformed(format!("`{name}` of {dims:?} {stored}"), "whole blocks that fit in a file")
    })?;
    dims.reverse();
    Ok(Entry { name, stored, dims, offset: reader.u64()?, bytes })
}

/// `None` for empty rows, rows that are no whole number of blocks, and sizes beyond 64 bits.
fn tensor_bytes(stored: Stored, dims: &[u64]) -> Option<u64> {
    let (columns, outer) = dims.split_first()?;
    let row = stored.row_bytes(usize::try_from(*columns).ok()?)? as u64;
    let bytes = outer.iter().try_fold(row, |n, d| n.checked_mul(*d))?;
    (bytes > 0).then_some(bytes)
}

/// Turns offsets into places in the file, and checks that they are aligned, apart and inside.
fn place(entries: &mut [Entry], data_at: u64, alignment: u64, file_len: u64, file: &str) -> Result<()> {
    let mut names = BTreeSet::new();
    for entry in entries.iter_mut() {
        let fault = |found: String, expected: String| Err(Error::malformed(file, found, expected));
        if !names.insert(entry.name.clone()) {
            return fault(format!("tensor `{}` occurs twice", entry.name), "unique names".into());
        }
        if !entry.offset.is_multiple_of(alignment) {
            let found = format!("`{}` begins at offset {}", entry.name, entry.offset);
            return fault(found, format!("a multiple of {alignment}"));
        }
        let end = data_at.checked_add(entry.offset).and_then(|at| at.checked_add(entry.bytes));
        match end {
            Some(end) if end <= file_len => entry.offset += data_at,
            _ => {
                let found = format!("`{}` of {} bytes at offset {}", entry.name, entry.bytes, entry.offset);
                return fault(found, format!("an end within the file's {file_len} bytes; is it complete?"));
            }
        }
    }
    entries.sort_by_key(|e| e.offset);
    match entries.windows(2).find(|pair| pair[0].offset + pair[0].bytes > pair[1].offset) {
        None => Ok(()),
        Some(pair) => {
            let found = format!("`{}` and `{}` overlap", pair[0].name, pair[1].name);
            Err(Error::malformed(file, found, "tensors beside each other"))
        }
    }
}

/// Numbers of the tensor types, as ggml assigned them.
const TYPES: [(u32, Stored); 14] = [
    (0, Stored::F32),
    (1, Stored::F16),
    (2, Stored::Q4_0),
    (3, Stored::Q4_1),
    (6, Stored::Q5_0),
    (7, Stored::Q5_1),
    (8, Stored::Q8_0),
    (10, Stored::Q2_K),
    (11, Stored::Q3_K),
    (12, Stored::Q4_K),
    (13, Stored::Q5_K),
    (14, Stored::Q6_K),
    (20, Stored::IQ4_NL),
    (30, Stored::Bf16),
];

fn stored(kind: u32) -> Option<Stored> {
    TYPES.iter().find(|(number, _)| *number == kind).map(|(_, stored)| *stored)
}

fn supported_types() -> String {
    TYPES.map(|(_, stored)| stored.to_string()).join(", ")
}

/// Names of types that exist but are not read, so that a message can say which it met.
fn type_name(kind: u32) -> String {
    let name = match kind {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        other => return format!("number {other}"),
    };
    name.to_owned()
}
