//! The tensors that a model must have, matched with those that files announce.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use spec::ModelSpec;

use super::{HeadOrder, Info, Place};
use crate::error::{Error, Result};
use crate::file::RegularFile;
use crate::quantized::{self, Matrix};
use crate::stored::Stored;
use crate::tensor::{LayerTensor, Naming, Shape, Tensor};

/// A tensor as a file announces it.
#[derive(Clone, Debug)]
pub(crate) struct Announced {
    /// Its name in the file.
    pub(crate) name: String,
    /// Its format; the name of one that no tensor of a model has otherwise.
    pub(crate) stored: std::result::Result<Stored, String>,
    /// Its dimensions, outermost first.
    pub(crate) dims: Vec<u64>,
    /// Which file.
    pub(crate) file: usize,
    /// Where it begins there.
    pub(crate) offset: u64,
    /// What it is made of, if it is quantised.
    pub(crate) quantized: Option<Arc<Matrix>>,
}

/// What folders call the head.
pub(super) const HEAD: &str = "lm_head.weight";

/// The tensors that a model must have, to be matched with those that files announce.
pub(super) struct Catalogue<'a> {
    pub(super) spec: &'a ModelSpec,
    pub(super) naming: Naming,
    /// Whether the rows of queries and keys that turn together lie beside each other.
    pub(super) pairs: bool,
    pub(super) files: &'a [RegularFile],
}

type Matched = (BTreeMap<Tensor, Info>, BTreeMap<Tensor, Place>);

impl Catalogue<'_> {
    pub(super) fn match_up(&self, file: &str, announced: &BTreeMap<String, Announced>) -> Result<Matched> {
        let (mut tensors, mut places, mut problems) = (BTreeMap::new(), BTreeMap::new(), vec![]);
        let mut used = BTreeSet::new();
        let bare = !announced.keys().any(|name| name.starts_with(self.naming.base()));
        for (tensor, shape) in Tensor::all(self.spec) {
            let found = self.find(tensor, shape, bare, announced).and_then(|(found, whole, before)| {
                used.insert(&found.name);
                let (info, before) = part(info(found, &self.dims(tensor, found), whole)?, shape, before);
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
        for (name, _) in announced.iter().filter(|(_, found)| !used.contains(&found.name)) {
            if !self.is_harmless(name) && !quantized::is_zero_bias(name, announced, self.files)? {
                problems.push(format!("`{name}` is not part of {}", self.spec.architecture));
            }
        }
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
        let full = |name: String| match name.strip_prefix(self.naming.base()) {
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
            let name = full(name);
            let found = announced.get(&name);
            if self.naming.by_heads() && !found.is_some_and(|found| whole.is(&found.dims)) {
                return Err(match found {
                    Some(found) => format!("`{name}` is {:?}, expected {whole}", found.dims),
                    None => format!("`{name}` is missing"),
                });
            }
            if let Some(found) = found.filter(|found| whole.is(&found.dims)) {
                let before = before.unwrap_or(0);
                // Of the first head's rows, where they lie head by head.
                let skipped =
                    if self.naming.by_heads() { before * self.spec.head_dim } else { rows(&parts[..before]) };
                return Ok((found, whole, skipped));
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

    /// A tied embedding may be stored under the head's name: who leaves out what is there twice keeps either. And a head may have
    /// the name that most have, of an architecture that calls it otherwise.
    fn shared<'a>(
        &self,
        tensor: Tensor,
        announced: &'a BTreeMap<String, Announced>,
    ) -> Option<&'a Announced> {
        let is_head = tensor == Tensor::Head || tensor == Tensor::Embed && self.spec.tied_head;
        is_head.then(|| head(self.naming, announced)).flatten()
    }

    /// Tensors that a spec accounts for in another way: masks, rotary frequencies, and a tied head.
    fn is_harmless(&self, name: &str) -> bool {
        let rotary = ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];
        let is_head = name == HEAD || self.naming.name(Tensor::Head).as_deref() == Some(name);
        is_head && self.spec.tied_head
            || name.ends_with("rotary_emb.inv_freq")
            || rotary.contains(&name)
            || self.naming.is_mask(name)
    }

    /// The dimensions of what a file announces; of scales that each head has of its own, as if they were in a row.
    fn dims(&self, tensor: Tensor, found: &Announced) -> Vec<u64> {
        let scales = matches!(tensor, Tensor::Layer(_, LayerTensor::QNorm | LayerTensor::KNorm));
        match found.dims[..] {
            [heads, of_head] if scales && of_head == self.spec.head_dim as u64 => {
                vec![heads.saturating_mul(of_head)]
            }
            _ => found.dims.clone(),
        }
    }

    fn place(&self, tensor: Tensor, found: &Announced, skip: usize) -> Place {
        use LayerTensor::{K, KBias, KNorm, Q, QBias, QNorm, V, VBias};
        let head = self.spec.head_dim;
        let order = match (tensor, self.spec.rope()) {
            (Tensor::Layer(_, Q | K | V | QBias | KBias | VBias), _) if self.naming.by_heads() => {
                HeadOrder::Apart { head, every: 3 * head }
            }
            (Tensor::Layer(_, Q | K | QBias | KBias | QNorm | KNorm), Some(rope)) if self.pairs => {
                HeadOrder::Pairs { head, turned: rope.rotary_dims(head) }
            }
            _ => HeadOrder::Halves,
        };
        Place {
            name: found.name.clone(),
            file: found.file,
            offset: found.offset + skip as u64,
            order,
            quantized: found.quantized.clone(),
        }
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

fn info(found: &Announced, dims: &[u64], shape: Shape) -> std::result::Result<Info, String> {
    let name = &found.name;
    if !shape.is(dims) {
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

/// The head, by its architecture's name or by the one that most have.
fn head(naming: Naming, announced: &BTreeMap<String, Announced>) -> Option<&Announced> {
    let own = naming.name(Tensor::Head).and_then(|name| announced.get(&name));
    own.or_else(|| announced.get(HEAD))
}

/// A head that is stored beside a tied embedding is one of its own if it differs, as in transformers 5.
pub(super) fn untie(
    spec: &mut ModelSpec,
    naming: Naming,
    announced: &BTreeMap<String, Announced>,
    files: &[RegularFile],
) -> Result<()> {
    let table = naming.name(Tensor::Embed).unwrap_or_default();
    let own = table.strip_prefix(naming.base()).unwrap_or(&table);
    let embedding = announced.iter().find(|(name, _)| name.ends_with(own));
    if let (true, Some((_, table)), Some(head)) = (spec.tied_head, embedding, head(naming, announced)) {
        let plain = table.quantized.is_none() && head.quantized.is_none();
        let comparable = plain && table.dims == head.dims && table.stored == head.stored;
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
