//! The keys and values of a GGUF file.

use super::Texts;
use super::reader::Reader;
use crate::error::{Error, Result, shorten};
use std::collections::BTreeMap;
use std::io::Read;

const KEY_BYTES_MAX: u64 = 1 << 16;
const DEPTH_MAX: usize = 64;

/// A value. Numbers of every width are widened.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// u8, u16, u32, u64.
    Uint(u64),
    /// i8, i16, i32, i64.
    Int(i64),
    /// f32, f64.
    Float(f64),
    /// bool.
    Bool(bool),
    /// string.
    Text(String),
    /// Array of strings.
    Texts(Texts),
    /// Array of numbers, as they stand in the file.
    Numbers(Numbers),
    /// Array of arrays: checked, and dropped, for no key that we read has one.
    Nested,
}

/// An array of numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbers {
    kind: Kind,
    bytes: Vec<u8>,
}

/// Types of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    U64,
    I64,
    F64,
}

impl Kind {
    fn from_number(number: u32) -> Option<Kind> {
        Some(match number {
            0 => Kind::U8,
            1 => Kind::I8,
            2 => Kind::U16,
            3 => Kind::I16,
            4 => Kind::U32,
            5 => Kind::I32,
            6 => Kind::F32,
            7 => Kind::Bool,
            10 => Kind::U64,
            11 => Kind::I64,
            12 => Kind::F64,
            _ => return None,
        })
    }

    fn bytes(self) -> usize {
        match self {
            Kind::U8 | Kind::I8 | Kind::Bool => 1,
            Kind::U16 | Kind::I16 => 2,
            Kind::U32 | Kind::I32 | Kind::F32 => 4,
            Kind::U64 | Kind::I64 | Kind::F64 => 8,
        }
    }

    /// The number in `bytes`, of which there are as many as it takes.
    fn value(self, bytes: &[u8]) -> Value {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let unsigned = u64::from_le_bytes(wide);
        match self {
            Kind::U8 | Kind::U16 | Kind::U32 | Kind::U64 => Value::Uint(unsigned),
            Kind::I8 => Value::Int(i64::from(unsigned as u8 as i8)),
            Kind::I16 => Value::Int(i64::from(unsigned as u16 as i16)),
            Kind::I32 => Value::Int(i64::from(unsigned as u32 as i32)),
            Kind::I64 => Value::Int(unsigned as i64),
            Kind::F32 => Value::Float(f64::from(f32::from_bits(unsigned as u32))),
            Kind::F64 => Value::Float(f64::from_bits(unsigned)),
            Kind::Bool => Value::Bool(unsigned != 0),
        }
    }
}

impl Numbers {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.kind.bytes()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The numbers one by one.
    pub fn iter(&self) -> impl Iterator<Item = Value> {
        self.bytes.chunks_exact(self.kind.bytes()).map(|bytes| self.kind.value(bytes))
    }
}

/// All keys and values of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    file: String,
    values: BTreeMap<String, Value>,
}

impl Metadata {
    pub(super) fn read<R: Read>(reader: &mut Reader<R>, pairs: u64) -> Result<Metadata> {
        let mut values = BTreeMap::new();
        for _ in 0..pairs {
            let key = reader.name(KEY_BYTES_MAX)?;
            let value = read_value(reader)?;
            if values.contains_key(&key) {
                return Err(reader.malformed(format!("the key `{key}` occurs twice"), "unique keys"));
            }
            values.insert(key, value);
        }
        Ok(Metadata { file: reader.file().to_owned(), values })
    }

    /// Name of the file, for messages.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// All keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// An unsigned number, whatever its width.
    ///
    /// # Errors
    /// If the value is something else.
    pub fn uint(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "an unsigned number", |value| match value {
            Value::Uint(n) => Some(*n),
            Value::Int(n) => u64::try_from(*n).ok(),
            _ => None,
        })
    }

    /// A size: an unsigned number that fits the machine.
    ///
    /// # Errors
    /// If the value is something else.
    pub fn size(&self, key: &str) -> Result<Option<usize>> {
        let value = self.uint(key)?;
        Ok(value.map(|n| usize::try_from(n).unwrap_or(usize::MAX)))
    }

    /// The number of a token; none for one that no token can have, such as -1.
    ///
    /// # Errors
    /// If the value is something else.
    pub fn token(&self, key: &str) -> Result<Option<u32>> {
        let token = self.typed(key, "a token's number", |value| match value {
            Value::Uint(n) => Some(u32::try_from(*n).ok()),
            Value::Int(n) => Some(u32::try_from(*n).ok()),
            _ => None,
        })?;
        Ok(token.flatten())
    }

    /// A floating-point number.
    ///
    /// # Errors
    /// If the value is something else.
    pub fn float(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a floating-point number", |value| match value {
            Value::Float(x) => Some(*x),
            _ => None,
        })
    }

    /// A truth value.
    ///
    /// # Errors
    /// If the value is something else.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", |value| match value {
            Value::Bool(b) => Some(*b),
            _ => None,
        })
    }

    /// A string.
    ///
    /// # Errors
    /// If the value is something else.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// An array of strings.
    ///
    /// # Errors
    /// If the value is something else.
    pub fn texts(&self, key: &str) -> Result<Option<&Texts>> {
        self.typed(key, "an array of strings", |value| match value {
            Value::Texts(texts) => Some(texts),
            _ => None,
        })
    }

    /// Takes an array of strings away: vocabularies are large, and one copy is enough.
    ///
    /// # Errors
    /// If the value is something else.
    pub fn take_texts(&mut self, key: &str) -> Result<Option<Texts>> {
        if self.texts(key)?.is_none() {
            return Ok(None);
        }
        match self.values.remove(key) {
            Some(Value::Texts(texts)) => Ok(Some(texts)),
            _ => Ok(None),
        }
    }

    /// An array of numbers.
    ///
    /// # Errors
    /// If the value is something else.
    pub fn numbers(&self, key: &str) -> Result<Option<&Numbers>> {
        self.typed(key, "an array of numbers", |value| match value {
            Value::Numbers(numbers) => Some(numbers),
            _ => None,
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        want: &str,
        as_: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        as_(value).map(Some).ok_or_else(|| {
            let found = shorten(&format!("`{key}` is {value:?}"));
            Error::malformed(&self.file, found, want)
        })
    }
}

const STRING: u32 = 8;
const ARRAY: u32 = 9;

fn read_value<R: Read>(reader: &mut Reader<R>) -> Result<Value> {
    match reader.u32()? {
        STRING => Ok(Value::Text(reader.text()?)),
        ARRAY => read_array(reader, 1),
        number => {
            let kind = kind(reader, number)?;
            let bytes = reader.bytes(kind.bytes() as u64)?;
            Ok(kind.value(&bytes))
        }
    }
}

fn kind<R: Read>(reader: &Reader<R>, number: u32) -> Result<Kind> {
    let fault =
        || reader.malformed(format!("a value of type {number} before byte {}", reader.position()), "0 to 12");
    Kind::from_number(number).ok_or_else(fault)
}

fn read_array<R: Read>(reader: &mut Reader<R>, depth: usize) -> Result<Value> {
    let number = reader.u32()?;
    let count = reader.u64()?;
    match number {
        STRING => {
            reader.check_count(count, 8, "strings")?;
            (0..count).map(|_| reader.text()).collect::<Result<_>>().map(Value::Texts)
        }
        ARRAY if depth >= DEPTH_MAX => {
            Err(reader.malformed(format!("arrays {depth} deep"), format!("at most {DEPTH_MAX}")))
        }
        ARRAY => {
            reader.check_count(count, 12, "arrays")?;
            (0..count).try_for_each(|_| read_array(reader, depth + 1).map(drop))?;
            Ok(Value::Nested)
        }
        number => {
            let kind = kind(reader, number)?;
            reader.check_count(count, kind.bytes() as u64, "numbers")?;
            Ok(Value::Numbers(Numbers { kind, bytes: reader.bytes(count * kind.bytes() as u64)? }))
        }
    }
}
