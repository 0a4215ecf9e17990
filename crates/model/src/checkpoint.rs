//! One view over all checkpoints: canonical tensors, whose rows are read on demand.
//!
//! Opening reads headers only. Whatever is missing, superfluous or misshapen is reported at once,
//! before anything heavy happens; weights that are not finite are found when they are read.

mod catalogue;

pub(crate) use catalogue::Announced;

use crate::config;
use crate::dummy::Dummy;
use crate::error::{Error, Result};
use crate::file::RegularFile;
use crate::gguf::{Gguf, GgufVocab};
use crate::quantized::{self, Matrix};
use crate::safetensors::Folder;
use crate::stored::Stored;
use crate::tensor::{Shape, Tensor, of_text};
use catalogue::{Catalogue, HEAD, untie};
use spec::ModelSpec;
use spec::model::DType;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// An open checkpoint. Reading takes `&self`: several threads may read at once.
#[derive(Debug)]
pub struct Checkpoint {
    spec: ModelSpec,
    name: String,
    source: Source,
    tensors: BTreeMap<Tensor, Info>,
    vocab: Option<GgufVocab>,
}

#[derive(Debug)]
enum Source {
    Files { files: Vec<RegularFile>, places: BTreeMap<Tensor, Place> },
    Dummy(Dummy),
}

/// Where a tensor lies.
#[derive(Clone, Debug)]
struct Place {
    name: String,
    file: usize,
    offset: u64,
    order: HeadOrder,
    /// What it is a part of, if that is quantised: bytes before it are those of its rows as they are read.
    quantized: Option<Arc<Matrix>>,
}

/// How the rows of a head lie in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeadOrder {
    /// As Hugging Face stores them: the first half of a head, then the second.
    Halves,
    /// The same, those of the next head after other rows: of `every` rows the first `head` (GPT-NeoX).
    Apart { head: usize, every: usize },
    /// As GGUF stores queries and keys of Llama, and Hugging Face those of GLM: of `head` rows the first `turned` are a row of each
    /// half in turn.
    Pairs { head: usize, turned: usize },
}

/// What is known of a tensor before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its size.
    pub shape: Shape,
    /// Its format.
    pub stored: Stored,
    /// Bytes of a row (of all of a vector).
    pub row_bytes: usize,
}

impl Checkpoint {
    /// Opens a Hugging Face folder, or a GGUF file by any of its parts.
    ///
    /// # Errors
    /// If a file is malformed, the architecture is not supported, or the tensors are not those of
    /// the model.
    pub fn open(path: &Path) -> Result<Checkpoint> {
        if path.is_dir() { Checkpoint::open_folder(path) } else { Checkpoint::open_gguf(path) }
    }

    /// Random weights for what is described at `path`: a folder with config.json, or a GGUF file. Weights there are
    /// not read, and a folder need not have any.
    ///
    /// # Errors
    /// If the description is unreadable or asks for what is not built.
    pub fn open_dummy(path: &Path, seed: u64) -> Result<Checkpoint> {
        if path.is_dir() {
            let config = config::read_config(path)?;
            return match config.quantized {
                None => Ok(Checkpoint::dummy(config.spec, seed)),
                Some(_) => Err(Error::unsupported(
                    &path.display().to_string(),
                    "a quantised checkpoint's configuration with random weights",
                    "random weights in F32, F16 and BF16 (without `quantization_config`; --weights int4 makes them narrower)",
                )),
            };
        }
        let mut gguf = Gguf::open(path)?;
        let dummy = Checkpoint::dummy(gguf.spec()?, seed);
        Ok(Checkpoint { vocab: gguf.take_vocab()?, ..dummy })
    }

    fn open_folder(folder: &Path) -> Result<Checkpoint> {
        let mut config = config::read_config(folder)?;
        let checkpoint = Folder::open(folder)?;
        let entries = checkpoint.entries.into_iter().map(|(file, e)| Announced {
            name: e.name,
            stored: e.stored,
            dims: e.dims,
            file,
            offset: e.offset,
            quantized: None,
        });
        let naming = config.family.naming();
        let mut announced = BTreeMap::new();
        for entry in entries {
            let own = if config.whole.is_some() { of_text(&entry.name) } else { Some(entry.name.clone()) };
            let Some(name) = own else { continue };
            if let Some(same) = announced.insert(name, entry) {
                let found = format!("`{}` by another name too", same.name);
                return Err(Error::malformed(&folder.display().to_string(), found, "each tensor once"));
            }
        }
        let name = folder.display().to_string();
        if let Some(scheme) = config.quantized {
            quantized::fold(scheme, &name, &mut announced, &checkpoint.files)?;
        }
        let says_nothing = config.whole.is_some_and(|whole| whole.ties.is_none());
        config.spec.tied_head |= says_nothing && !announced.contains_key(HEAD);
        untie(&mut config.spec, naming, &announced, &checkpoint.files)?;
        let pairs = config.family.pairs_rows();
        let catalogue = Catalogue { spec: &config.spec, naming, pairs, files: &checkpoint.files };
        let (tensors, places) = catalogue.match_up(&name, &announced)?;
        if !config.states_dtype {
            config.publish_in(float_type(tensors[&Tensor::Embed].stored));
        }
        let source = Source::Files { files: checkpoint.files, places };
        Ok(Checkpoint { spec: config.spec, name, source, tensors, vocab: None })
    }

    fn open_gguf(path: &Path) -> Result<Checkpoint> {
        let mut gguf = Gguf::open(path)?;
        let spec = gguf.spec()?;
        let vocab = gguf.take_vocab()?;
        let (naming, pairs) = (gguf.naming(), gguf.pairs_rows());
        let entries = gguf.entries.into_iter().map(|(file, e)| Announced {
            name: e.name,
            stored: Ok(e.stored),
            dims: e.dims,
            file,
            offset: e.offset,
            quantized: None,
        });
        let announced: BTreeMap<_, _> = entries.map(|e| (e.name.clone(), e)).collect();
        let catalogue = Catalogue { spec: &spec, naming, pairs, files: &gguf.files };
        let name = path.display().to_string();
        let (tensors, places) = catalogue.match_up(&name, &announced)?;
        let source = Source::Files { files: gguf.files, places };
        Ok(Checkpoint { spec, name, source, tensors, vocab })
    }

    /// Random weights for a model, the same for the same seed: matrices normal with deviation 0.02,
    /// norms one, biases zero, in the model's `dtype`.
    pub fn dummy(spec: ModelSpec, seed: u64) -> Checkpoint {
        let one = if spec.norm.from_one { 0.0 } else { 1.0 };
        let dummy = Dummy::new(seed, spec.dtype, one);
        let stored = dummy.stored();
        let info = |shape: Shape| Info { shape, stored, row_bytes: shape.columns() * stored.block_bytes() };
        let tensors = Tensor::all(&spec).into_iter().map(|(t, shape)| (t, info(shape))).collect();
        Checkpoint { spec, name: "random weights".into(), source: Source::Dummy(dummy), tensors, vocab: None }
    }

    /// Where it was opened, for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The model.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Another token that ends a text: the tokenizer's own, which configurations do not always name.
    pub fn ends_at(&mut self, token: u32) {
        if !self.spec.eos.contains(&token) {
            self.spec.eos.push(token);
        }
    }

    /// Vocabulary and chat templates, which a GGUF file carries with it. The first who asks gets them: a tokenizer holds them in
    /// a form of its own, and nothing of them should stay beside the weights.
    pub fn take_vocab(&mut self) -> Option<GgufVocab> {
        self.vocab.take()
    }

    /// Its files; none of random weights.
    pub(crate) fn files(&self) -> &[RegularFile] {
        match &self.source {
            Source::Files { files, .. } => files,
            Source::Dummy(_) => &[],
        }
    }

    /// The seed of random weights.
    pub(crate) fn seed(&self) -> Option<u64> {
        match &self.source {
            Source::Files { .. } => None,
            Source::Dummy(dummy) => Some(dummy.seed()),
        }
    }

    /// Every tensor of the model.
    pub fn tensors(&self) -> impl Iterator<Item = (Tensor, Info)> {
        self.tensors.iter().map(|(tensor, info)| (*tensor, *info))
    }

    /// Size and format of a tensor, if the model has it.
    pub fn info(&self, tensor: Tensor) -> Option<Info> {
        self.tensors.get(&tensor).copied()
    }

    /// What its file calls a tensor of the model.
    pub(crate) fn name_of(&self, tensor: Tensor) -> String {
        match &self.source {
            Source::Files { places, .. } => places[&tensor].name.clone(),
            Source::Dummy(_) => format!("{tensor:?}"),
        }
    }

    /// How many rows of a tensor are best read together.
    pub(crate) fn rows_at_once(&self, tensor: Tensor) -> usize {
        let place = match &self.source {
            Source::Files { places, .. } => places.get(&tensor),
            Source::Dummy(_) => None,
        };
        place.and_then(|place| place.quantized.as_ref()).map_or(1, |matrix| matrix.rows_at_once())
    }

    /// Bytes of all tensors as they are read.
    pub fn bytes(&self) -> u64 {
        self.tensors.values().map(|i| i.shape.rows() as u64 * i.row_bytes as u64).sum()
    }

    /// Reads rows of a tensor as they are stored, queries and keys in Hugging Face's order.
    /// `into` is `rows.len() * row_bytes` long; a vector is row 0.
    ///
    /// # Errors
    /// If the file cannot be read, or a number is not finite.
    ///
    /// # Panics
    /// If the model has no such tensor or row, or `into` has another length.
    pub fn read_rows(&self, tensor: Tensor, rows: Range<usize>, into: &mut [u8]) -> Result<()> {
        let info = self.tensors.get(&tensor).unwrap_or_else(|| panic!("{} has no {tensor:?}", self.name));
        assert!(rows.start <= rows.end && rows.end <= info.shape.rows(), "{rows:?} of {tensor:?}");
        assert_eq!(into.len(), rows.len() * info.row_bytes, "bytes of {rows:?} of {tensor:?}");
        if into.is_empty() {
            return Ok(());
        }
        match &self.source {
            Source::Dummy(dummy) => {
                let matrix = matches!(info.shape, Shape::Matrix(..));
                let each = rows.zip(into.chunks_exact_mut(info.row_bytes));
                each.for_each(|(row, into)| dummy.fill_row(tensor, row, matrix, into));
                Ok(())
            }
            Source::Files { files, places } => {
                let place = &places[&tensor];
                place.read(files, info, &rows, into)?;
                check_finite(&files[place.file], &place.name, info, rows.start, into)
            }
        }
    }
}

impl Place {
    fn read(&self, files: &[RegularFile], info: &Info, rows: &Range<usize>, into: &mut [u8]) -> Result<()> {
        let as_stored = |rows: Range<usize>, into: &mut [u8]| match &self.quantized {
            Some(matrix) => {
                let before = self.offset as usize / info.row_bytes;
                matrix.read(files, &(before + rows.start..before + rows.end), into)
            }
            None => files[self.file].read_at(self.offset + (rows.start * info.row_bytes) as u64, into),
        };
        match (self.order, info.shape) {
            (HeadOrder::Halves, _) => as_stored(rows.clone(), into),
            (order, Shape::Matrix(..)) => order.read(as_stored, info.row_bytes, rows, into),
            (order, Shape::Vector(n)) => {
                assert_eq!(*rows, 0..1, "a vector is one row");
                let bytes = info.row_bytes / n;
                let numbers = |numbers: Range<usize>, into: &mut [u8]| {
                    files[self.file].read_at(self.offset + (numbers.start * bytes) as u64, into)
                };
                order.read(numbers, bytes, &(0..n), into)
            }
        }
    }
}

impl HeadOrder {
    /// Reads rows, each from where it lies. `read`: rows as they are stored.
    fn read(
        self,
        read: impl Fn(Range<usize>, &mut [u8]) -> Result<()>,
        row_bytes: usize,
        rows: &Range<usize>,
        into: &mut [u8],
    ) -> Result<()> {
        match self {
            HeadOrder::Halves => read(rows.clone(), into),
            HeadOrder::Apart { head, every } => read_apart(read, (head, every), row_bytes, rows, into),
            HeadOrder::Pairs { head, turned } => read_heads(read, (head, turned), row_bytes, rows, into),
        }
    }
}

/// Reads what is wanted of each head at once.
fn read_apart(
    read: impl Fn(Range<usize>, &mut [u8]) -> Result<()>,
    (head, every): (usize, usize),
    row_bytes: usize,
    rows: &Range<usize>,
    mut into: &mut [u8],
) -> Result<()> {
    let mut first = rows.start;
    while first < rows.end {
        let (number, skipped) = (first / head, first % head);
        let count = (head - skipped).min(rows.end - first);
        let (own, others) = into.split_at_mut(count * row_bytes);
        let at = number * every + skipped;
        read(at..at + count, own)?;
        (first, into) = (first + count, others);
    }
    Ok(())
}

/// Reads head by head (one read each), and takes each row from where it lies. `read`: rows as they are stored.
fn read_heads(
    read: impl Fn(Range<usize>, &mut [u8]) -> Result<()>,
    (head, turned): (usize, usize),
    row_bytes: usize,
    rows: &Range<usize>,
    into: &mut [u8],
) -> Result<()> {
    let mut stored = vec![0; head * row_bytes];
    let mut loaded = None;
    for (row, into) in rows.clone().zip(into.chunks_exact_mut(row_bytes)) {
        let number = row / head;
        if loaded != Some(number) {
            read(number * head..(number + 1) * head, &mut stored)?;
            loaded = Some(number);
        }
        let at = stored_row(row % head, turned);
        into.copy_from_slice(&stored[at * row_bytes..][..row_bytes]);
    }
    Ok(())
}

/// Where row `row` of a head lies whose first `turned` rows are those of two halves in turn.
fn stored_row(row: usize, turned: usize) -> usize {
    let half = turned / 2;
    if row < turned { 2 * (row % half) + row / half } else { row }
}

fn check_finite(file: &RegularFile, tensor: &str, info: &Info, first: usize, bytes: &[u8]) -> Result<()> {
    if info.stored.all_finite(bytes) {
        return Ok(());
    }
    let bad = bytes.chunks_exact(info.row_bytes).position(|row| !info.stored.all_finite(row));
    Err(Error::NotFinite { file: file.name(), tensor: tensor.into(), row: first + bad.unwrap_or(0) })
}

fn float_type(stored: Stored) -> DType {
    match stored {
        Stored::F32 => DType::F32,
        Stored::F16 => DType::F16,
        _ => DType::Bf16,
    }
}

#[cfg(test)]
mod tests;
