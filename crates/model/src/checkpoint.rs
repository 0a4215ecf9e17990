//! One view over all checkpoints: canonical tensors, whose rows are read on demand.
//!
//! Opening reads headers only. Whatever is missing, superfluous or misshapen is reported at once,
//! before anything heavy happens; weights that are not finite are found when they are read.

use crate::config;
use crate::dummy::Dummy;
use crate::error::{Error, Result};
use crate::file::RegularFile;
use crate::gguf::{Gguf, GgufVocab};
use crate::safetensors::Folder;
use crate::stored::Stored;
use crate::tensor::{LayerTensor, Naming, Shape, Tensor, of_text};
use spec::ModelSpec;
use spec::model::DType;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

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
}

/// How the rows of a head lie in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeadOrder {
    /// As Hugging Face stores them: the first half of a head, then the second.
    Halves,
    /// As GGUF stores queries and keys of Llama: a row of each half in turn, in heads of `dims` rows.
    Interleaved { dims: usize },
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

/// A tensor as a file announces it.
struct Announced {
    name: String,
    stored: std::result::Result<Stored, String>,
    dims: Vec<u64>,
    file: usize,
    offset: u64,
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
            return Ok(Checkpoint::dummy(config::read_config(path)?.spec, seed));
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
        let says_nothing = config.whole.is_some_and(|whole| whole.ties.is_none());
        config.spec.tied_head |= says_nothing && !announced.contains_key(HEAD);
        untie(&mut config.spec, &announced, &checkpoint.files)?;
        let catalogue = Catalogue { spec: &config.spec, naming, interleaved: false };
        let name = folder.display().to_string();
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
        let (naming, interleaved) = (gguf.naming(), gguf.interleaves_heads());
        let entries = gguf.entries.into_iter().map(|(file, e)| Announced {
            name: e.name,
            stored: Ok(e.stored),
            dims: e.dims,
            file,
            offset: e.offset,
        });
        let announced: BTreeMap<_, _> = entries.map(|e| (e.name.clone(), e)).collect();
        let catalogue = Catalogue { spec: &spec, naming, interleaved };
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

    /// Bytes of all tensors as they are stored.
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
                let file = &files[place.file];
                place.read(file, info, &rows, into)?;
                check_finite(file, &place.name, info, rows.start, into)
            }
        }
    }
}

impl Place {
    fn read(&self, file: &RegularFile, info: &Info, rows: &Range<usize>, into: &mut [u8]) -> Result<()> {
        let whole = rows.start == 0 && rows.end == info.shape.rows();
        match (self.order, info.shape) {
            (HeadOrder::Halves, _) => file.read_at(self.offset + (rows.start * info.row_bytes) as u64, into),
            (HeadOrder::Interleaved { dims }, Shape::Matrix(..)) => {
                self.read_heads(file, dims, info.row_bytes, rows, into)
            }
            (HeadOrder::Interleaved { dims }, Shape::Vector(n)) => {
                assert!(whole, "a vector is one row");
                self.read_heads(file, dims, info.row_bytes / n, &(0..n), into)
            }
        }
    }

    /// Reads head by head (one read each), and takes each row from where it lies.
    fn read_heads(
        &self,
        file: &RegularFile,
        dims: usize,
        row_bytes: usize,
        rows: &Range<usize>,
        into: &mut [u8],
    ) -> Result<()> {
        let mut head = vec![0; dims * row_bytes];
        let mut loaded = None;
        for (row, into) in rows.clone().zip(into.chunks_exact_mut(row_bytes)) {
            let number = row / dims;
            if loaded != Some(number) {
                file.read_at(self.offset + (number * head.len()) as u64, &mut head)?;
                loaded = Some(number);
            }
            let at = interleaved_row(row % dims, dims);
            into.copy_from_slice(&head[at * row_bytes..][..row_bytes]);
        }
        Ok(())
    }
}

/// Where row `row` of a head of `dims` lies when its halves are interleaved.
fn interleaved_row(row: usize, dims: usize) -> usize {
    let half = dims / 2;
    2 * (row % half) + row / half
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

/// What folders call the head.
const HEAD: &str = "lm_head.weight";

/// The tensors that a model must have, to be matched with those that files announce.
struct Catalogue<'a> {
    spec: &'a ModelSpec,
    naming: Naming,
    interleaved: bool,
}

type Matched = (BTreeMap<Tensor, Info>, BTreeMap<Tensor, Place>);

impl Catalogue<'_> {
    fn match_up(&self, file: &str, announced: &BTreeMap<String, Announced>) -> Result<Matched> {
        let (mut tensors, mut places, mut problems) = (BTreeMap::new(), BTreeMap::new(), vec![]);
        let mut used = BTreeSet::new();
        let bare = !announced.keys().any(|name| name.starts_with("model."));
        for (tensor, shape) in Tensor::all(self.spec) {
            let found = self.find(tensor, shape, bare, announced).and_then(|(found, whole, before)| {
                used.insert(&found.name);
                let (info, before) = part(info(found, whole)?, shape, before);
                Ok((info, self.place(tensor, found, before)))
            });
            match found {
                Ok((info, place)) => {
                    places.insert(tensor, place);
                    tensors.insert(tensor, info);
                }
                Err(problem) => problems.push(problem),
            }
        }
        let extra =
            announced.iter().filter(|(name, found)| !used.contains(&found.name) && !is_harmless(name));
        problems.extend(extra.map(|(name, _)| format!("`{name}` is not part of {}", self.spec.architecture)));
        if problems.is_empty() {
            Ok((tensors, places))
        } else {
            Err(Error::Tensors { file: file.into(), problems })
        }
    }

    /// Where a tensor is: with its shape, or that of the whole of which it is a part, after so many rows (of a vector: numbers).
    fn find<'a>(
        &self,
        tensor: Tensor,
        shape: Shape,
        bare: bool,
        announced: &'a BTreeMap<String, Announced>,
    ) -> std::result::Result<(&'a Announced, Shape, usize), String> {
        // Checkpoints saved without the head around them lack the first part of the name.
        let full = |name: String| match name.strip_prefix("model.") {
            Some(rest) if bare => rest.to_owned(),
            _ => name,
        };
        if let Some((name, parts)) = self.naming.within(tensor) {
            let length = |shape| match shape {
                Shape::Matrix(rows, _) => rows,
                Shape::Vector(numbers) => numbers,
            };
            let rows = |parts: &[LayerTensor]| -> usize {
                parts.iter().filter_map(|part| part.shape(self.spec)).map(length).sum()
            };
            let before =
                parts.iter().position(|part| matches!(tensor, Tensor::Layer(_, own) if own == *part));
            let whole = match shape {
                Shape::Matrix(_, columns) => Shape::Matrix(rows(parts), columns),
                Shape::Vector(_) => Shape::Vector(rows(parts)),
            };
            if let Some(found) = announced.get(&full(name)).filter(|found| whole.is(&found.dims)) {
                return Ok((found, whole, rows(&parts[..before.unwrap_or(0)])));
            }
        }
        let name = self
            .naming
            .name(tensor)
            .ok_or_else(|| format!("{tensor:?} has no name in files of this kind"))?;
        let name = full(name);
        let found = announced.get(&name).or_else(|| self.shared(tensor, announced));
        found.map(|found| (found, shape, 0)).ok_or_else(|| format!("`{name}` is missing"))
    }

    /// A tied embedding may be stored under the head's name: who leaves out what is there twice keeps either.
    fn shared<'a>(
        &self,
        tensor: Tensor,
        announced: &'a BTreeMap<String, Announced>,
    ) -> Option<&'a Announced> {
        let tied = tensor == Tensor::Embed && self.spec.tied_head;
        tied.then(|| announced.get(HEAD)).flatten()
    }

    fn place(&self, tensor: Tensor, found: &Announced, skip: usize) -> Place {
        use LayerTensor::{K, KBias, Q, QBias};
        let turned = matches!(tensor, Tensor::Layer(_, Q | K | QBias | KBias));
        let order = match self.interleaved && turned {
            true => HeadOrder::Interleaved { dims: self.spec.head_dim },
            false => HeadOrder::Halves,
        };
        Place { name: found.name.clone(), file: found.file, offset: found.offset + skip as u64, order }
    }
}

/// A part of a whole, of this shape and after so many of its rows or numbers, and the bytes before it.
fn part(whole: Info, shape: Shape, before: usize) -> (Info, usize) {
    match (whole.shape, shape) {
        (Shape::Vector(numbers), Shape::Vector(own)) => {
            let each = whole.row_bytes / numbers;
            (Info { shape, row_bytes: own * each, ..whole }, before * each)
        }
        _ => (Info { shape, ..whole }, before * whole.row_bytes),
    }
}

fn info(found: &Announced, shape: Shape) -> std::result::Result<Info, String> {
    let name = &found.name;
    if !shape.is(&found.dims) {
        return Err(format!("`{name}` is {:?}, expected {shape}", found.dims));
    }
    let stored =
        found.stored.as_ref().map_err(|other| format!("`{name}` is {other}, expected F32, F16 or BF16"))?;
    if matches!(shape, Shape::Vector(_)) && !stored.is_plain() {
        return Err(format!("`{name}` is {stored}, expected F32, F16 or BF16 of a vector"));
    }
    match stored.row_bytes(shape.columns()) {
        Some(row_bytes) => Ok(Info { shape, stored: *stored, row_bytes }),
        None => Err(format!("`{name}` has rows of {} in the format {stored}", shape.columns())),
    }
}

/// Tensors that a spec accounts for in another way: rotary frequencies, and a tied head.
fn is_harmless(name: &str) -> bool {
    let rotary = ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];
    name.ends_with("rotary_emb.inv_freq") || rotary.contains(&name) || name == HEAD
}

/// A head that is stored beside a tied embedding is one of its own if it differs, as in transformers 5.
fn untie(spec: &mut ModelSpec, announced: &BTreeMap<String, Announced>, files: &[RegularFile]) -> Result<()> {
    let embedding = announced.iter().find(|(name, _)| name.ends_with("embed_tokens.weight"));
    if let (true, Some((_, table)), Some(head)) = (spec.tied_head, embedding, announced.get(HEAD)) {
        let comparable = table.dims == head.dims && table.stored == head.stored;
        spec.tied_head = comparable && same_bytes(table, head, files)?;
    }
    Ok(())
}

fn same_bytes(a: &Announced, b: &Announced, files: &[RegularFile]) -> Result<bool> {
    let width = a.stored.as_ref().map_or(1, |stored| stored.block_bytes() as u64);
    let bytes = a.dims.iter().product::<u64>() * width;
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for at in (0..bytes).step_by(1 << 20) {
        let count = (bytes - at).min(1 << 20) as usize;
        files[a.file].read_at(a.offset + at, &mut left[..count])?;
        files[b.file].read_at(b.offset + at, &mut right[..count])?;
        if left[..count] != right[..count] {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
