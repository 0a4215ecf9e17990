//! From a checkpoint to a device: rows are read, converted and packed a few panels at a time, by all threads.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use half::{bf16, f16};
use kernels::arena::{Buf, Full};
use kernels::device::{Device, Matrix, NormWeights};
use kernels::linear::quant::{dequantize_row, pack_blocks, pack_floats, round_to_grid};
use kernels::linear::{Format, PANEL_ROWS, RowOrder, pack_bf16, pack_f32, panel_bytes, panels};
use kernels::{Mat, Team};
use spec::ModelSpec;
use spec::model::Mlp as MlpShape;

use super::blueprint::{Blueprint, LayerPlan, MatrixPlan};
use super::rope::Rotary;
use super::{LayerWeights, Mlp, Weights};
use crate::checkpoint::{Checkpoint, Info};
use crate::error::Error;
use crate::stored::Stored;
use crate::tensor::{LayerTensor, Tensor};

/// Panels that are read and packed at a time are about this many bytes: rows and panels fit in a core's cache.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces that each thread has of a matrix at least, where there are so many panels.
const PIECES_PER_THREAD: usize = 4;
/// Rows of a gated panel that come from the gate (as many come from up).
const GATED_HALF: usize = 16;

/// Why weights could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The checkpoint could not be read, or holds no sensible weights.
    #[error(transparent)]
    File(#[from] Error),
    /// The device's budget is too small.
    #[error("the weights do not fit: {0}; raise --memory, or choose narrower weights with --weights")]
    Full(#[from] Full),
}

/// Reads a model's weights onto a device.
pub struct Loader<'a> {
    /// Where they come from.
    pub checkpoint: &'a Checkpoint,
    /// Threads that read and pack.
    pub team: &'a Team,
    /// Positions that rotary tables must reach.
    pub positions: usize,
    /// Told the bytes that are packed so far, from any thread.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

impl Loader<'_> {
    /// Loads everything that `blueprint` plans.
    ///
    /// # Errors
    /// [`LoadError`]: unreadable or senseless weights, or too little memory.
    pub fn load(&self, blueprint: &Blueprint, device: &mut dyn Device) -> Result<Weights, LoadError> {
        let spec = self.checkpoint.spec();
        let rows = (0..self.team.threads()).map(|_| Mutex::default()).collect();
        let loading = Loading { from: self, spec, rows, done: AtomicU64::new(0) };
        let layers = blueprint.layers.iter().enumerate();
        Ok(Weights {
            embed: loading.matrix(&blueprint.embed, device)?,
            positions: loading.vector(Tensor::Positions, device)?,
            project_in: loading.maybe(blueprint.projections.as_ref().map(|p| &p.0), device)?,
            project_out: loading.maybe(blueprint.projections.as_ref().map(|p| &p.1), device)?,
            final_norm: loading.final_norm(device)?,
            untied_head: loading.maybe(blueprint.head.as_ref(), device)?,
            rotary: Rotary::load(spec, self.positions, device)?,
            activation: spec.activation,
            layers: layers.map(|(i, plan)| loading.layer(i, plan, device)).collect::<Result<_, _>>()?,
        })
    }
}

struct Loading<'a> {
    from: &'a Loader<'a>,
    spec: &'a ModelSpec,
    /// Each worker's.
    rows: Vec<Mutex<Rows>>,
    done: AtomicU64,
}

impl Loading<'_> {
    fn layer(
        &self,
        layer: usize,
        plan: &LayerPlan,
        device: &mut dyn Device,
    ) -> Result<LayerWeights, LoadError> {
        use LayerTensor::{
            AttnNorm, AttnNormBias, DownBias, GateBias, KBias, KNorm, MlpNorm, MlpNormBias, OBias, QBias,
            QNorm, UpBias, VBias,
        };
        let name = |tensor| Tensor::Layer(layer, tensor);
        let qk_norms = match (self.vector(name(QNorm), device)?, self.vector(name(KNorm), device)?) {
            (Some(q), Some(k)) => Some((q, k, self.spec.norm.eps)),
            _ => None,
        };
        Ok(LayerWeights {
            attn_norm: self.norm(name(AttnNorm), name(AttnNormBias), device)?,
            qkv: plan.qkv.iter().map(|plan| self.matrix(plan, device)).collect::<Result<_, _>>()?,
            qkv_bias: self.vectors(&[name(QBias), name(KBias), name(VBias)], device)?,
            qk_norms,
            out: self.matrix(&plan.out, device)?,
            out_bias: self.vector(name(OBias), device)?,
            mlp_norm: self.norm(name(MlpNorm), name(MlpNormBias), device)?,
            mlp: if self.spec.mlp == MlpShape::Gated { Mlp::Gated } else { Mlp::Plain },
            up: self.matrix(&plan.up, device)?,
            up_bias: self.vectors(&[name(GateBias), name(UpBias)], device)?,
            down: self.matrix(&plan.down, device)?,
            down_bias: self.vector(name(DownBias), device)?,
        })
    }

    fn norm(&self, weight: Tensor, bias: Tensor, device: &mut dyn Device) -> Result<NormWeights, LoadError> {
        let norm = self.spec.norm;
        let (weight, bias) = (self.vector(weight, device)?, self.vector(bias, device)?);
        Ok(NormWeights { kind: norm.kind, eps: norm.eps, weight, bias })
    }

    fn final_norm(&self, device: &mut dyn Device) -> Result<Option<NormWeights>, LoadError> {
        if !self.spec.final_norm {
            return Ok(None);
        }
        self.norm(Tensor::FinalNorm, Tensor::FinalNormBias, device).map(Some)
    }

    fn vector(&self, tensor: Tensor, device: &mut dyn Device) -> Result<Option<Buf>, LoadError> {
        self.vectors(&[tensor], device)
    }

    /// Tensors end to end as f32; none if the model has none of them.
    fn vectors(&self, tensors: &[Tensor], device: &mut dyn Device) -> Result<Option<Buf>, LoadError> {
        let mut values = Vec::new();
        for &tensor in tensors {
            if tensor.shape(self.spec).is_some() {
                to_f32(self.info(tensor).stored, &self.whole(tensor)?, &mut values);
            }
        }
        if values.is_empty() {
            return Ok(None);
        }
        let buf = device.take(4 * values.len())?;
        device.fill(&buf, &mut |out| {
            for (out, value) in out.chunks_exact_mut(4).zip(&values) {
                out.copy_from_slice(&value.to_le_bytes());
            }
        });
        Ok(Some(buf))
    }

    fn maybe(&self, plan: Option<&MatrixPlan>, device: &mut dyn Device) -> Result<Option<Matrix>, LoadError> {
        plan.map(|plan| self.matrix(plan, device)).transpose()
    }

    fn matrix(&self, plan: &MatrixPlan, device: &mut dyn Device) -> Result<Matrix, LoadError> {
        let buf = device.take(plan.bytes())?;
        let failed = Mutex::new(None);
        device.fill(&buf, &mut |out| self.pack_all(plan, out, &failed));
        match failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            Some(error) => Err(LoadError::File(error)),
            None => {
                let MatrixPlan { format, n, k, order, .. } = *plan;
                Ok(Matrix { format, n, k, order, parts: vec![(0, buf)] })
            }
        }
    }

    /// Fills `out` with all panels, shared out over the team.
    fn pack_all(&self, plan: &MatrixPlan, out: &mut [u8], failed: &Mutex<Option<Error>>) {
        let bytes = panel_bytes(plan.format, plan.k);
        let count = panels(plan.order, plan.n);
        let fair = count / (PIECES_PER_THREAD * self.from.team.threads());
        let at_once = (PIECE_BYTES / bytes.max(1)).min(fair).max(1);
        let pieces: Vec<Mutex<&mut [u8]>> = out.chunks_mut(bytes * at_once).map(Mutex::new).collect();
        self.from.team.run(|w| {
            let mut rows = lock(&self.rows[w.index]);
            for piece in w.share(pieces.len()) {
                let first = piece * at_once;
                let range = first..(first + at_once).min(count);
                let mut out = lock(&pieces[piece]);
                if let Err(error) = self.pack(plan, range, &mut rows, &mut out) {
                    lock(failed).get_or_insert(error);
                    return;
                }
                let done = self.done.fetch_add(out.len() as u64, Ordering::Relaxed) + out.len() as u64;
                (self.from.progress)(done);
            }
        });
    }

    /// Reads and packs some panels: their source rows become a small matrix of their own.
    fn pack(
        &self,
        plan: &MatrixPlan,
        range: Range<usize>,
        rows: &mut Rows,
        out: &mut [u8],
    ) -> Result<(), Error> {
        rows.clear();
        for (tensor, part) in sources(plan, range.clone(), self.spec) {
            let info = self.info(tensor);
            let into = rows.add(info.stored, part.len(), part.len() * info.row_bytes);
            self.from.checkpoint.read_rows(tensor, part, into)?;
        }
        rows.pack(plan, 0..range.len(), out);
        Ok(())
    }

    fn info(&self, tensor: Tensor) -> Info {
        let info = self.from.checkpoint.info(tensor);
        info.unwrap_or_else(|| panic!("an open checkpoint has every tensor of its model, but not {tensor:?}"))
    }

    fn whole(&self, tensor: Tensor) -> Result<Vec<u8>, Error> {
        let info = self.info(tensor);
        let mut bytes = vec![0; info.shape.rows() * info.row_bytes];
        self.from.checkpoint.read_rows(tensor, 0..info.shape.rows(), &mut bytes)?;
        Ok(bytes)
    }
}

/// Which rows of which tensors make up some panels, in the order in which the packer wants them.
fn sources(plan: &MatrixPlan, panels: Range<usize>, spec: &ModelSpec) -> Vec<(Tensor, Range<usize>)> {
    if plan.order == RowOrder::Gated {
        let rows = panels.start * GATED_HALF..(panels.end * GATED_HALF).min(plan.n / 2);
        return plan.tensors.iter().map(|t| (*t, rows.clone())).collect();
    }
    let wanted = panels.start * PANEL_ROWS..(panels.end * PANEL_ROWS).min(plan.n);
    let mut before = 0;
    let mut parts = Vec::new();
    for &tensor in &plan.tensors {
        let rows = tensor.shape(spec).map_or(0, |shape| shape.rows());
        let own = wanted.start.max(before)..wanted.end.min(before + rows);
        if !own.is_empty() {
            parts.push((tensor, own.start - before..own.end - before));
        }
        before += rows;
    }
    parts
}

/// Rows as they were read, of one or several formats. The memory is used again for the next ones.
#[derive(Default)]
struct Rows {
    /// In words, so that floats of any width are aligned in it.
    memory: Vec<u64>,
    used: usize,
    parts: Vec<(Stored, Range<usize>)>,
    rows: usize,
}

impl Rows {
    fn clear(&mut self) {
        self.parts.clear();
        (self.used, self.rows) = (0, 0);
    }

    /// Room for more rows.
    fn add(&mut self, stored: Stored, rows: usize, bytes: usize) -> &mut [u8] {
        let range = self.used..self.used + bytes;
        (self.used, self.rows) = (range.end, self.rows + rows);
        if self.memory.len() * 8 < range.end {
            self.memory.resize(range.end.div_ceil(8), 0);
        }
        self.parts.push((stored, range.clone()));
        &mut bytemuck::cast_slice_mut(&mut self.memory)[range]
    }

    fn pack(&self, plan: &MatrixPlan, panels: Range<usize>, out: &mut [u8]) {
        let (n, k, order) = (self.rows, plan.k, plan.order);
        match plan.format {
            Format::F32 => pack_f32(Mat::new(&self.floats(), n, k), order, panels, out),
            Format::Bf16 => match plan.rounded {
                None => pack_bf16(Mat::new(&self.halves(), n, k), order, panels, out),
                Some(bits) => pack_bf16(Mat::new(&self.rounded(bits, k), n, k), order, panels, out),
            },
            Format::Narrow(narrow) if self.all(|stored| super::blueprint::narrow(stored) == Some(narrow)) => {
                pack_blocks(narrow, Mat::new(self.bytes(), n, self.used / n.max(1)), k, order, panels, out);
            }
            Format::Narrow(narrow) if self.all(|stored| stored == Stored::Bf16) => {
                pack_floats(narrow, Mat::new(&self.halves(), n, k), order, panels, out);
            }
            Format::Narrow(narrow) => pack_floats(narrow, Mat::new(&self.floats(), n, k), order, panels, out),
        }
    }

    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.memory)[..self.used]
    }

    fn all(&self, is: impl Fn(Stored) -> bool) -> bool {
        self.parts.iter().all(|(stored, _)| is(*stored))
    }

    fn floats(&self) -> Cow<'_, [f32]> {
        if self.all(|stored| stored == Stored::F32) {
            return Cow::Borrowed(bytemuck::cast_slice(self.bytes()));
        }
        let mut values = Vec::new();
        for (stored, range) in &self.parts {
            to_f32(*stored, &self.bytes()[range.clone()], &mut values);
        }
        Cow::Owned(values)
    }

    fn rounded(&self, bits: u8, k: usize) -> Vec<bf16> {
        let mut values = self.floats().into_owned();
        values.chunks_mut(k).for_each(|row| round_to_grid(bits, row));
        values.into_iter().map(bf16::from_f32).collect()
    }

    fn halves(&self) -> Cow<'_, [bf16]> {
        if self.all(|stored| stored == Stored::Bf16) {
            return Cow::Borrowed(bytemuck::cast_slice(self.bytes()));
        }
        Cow::Owned(self.floats().iter().map(|value| bf16::from_f32(*value)).collect())
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Appends the values of rows in any stored format.
fn to_f32(stored: Stored, bytes: &[u8], out: &mut Vec<f32>) {
    match stored {
        Stored::F32 => {
            out.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
        }
        Stored::F16 => out.extend(bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32())),
        Stored::Bf16 => out.extend(bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32())),
        blocks => {
            let values = bytes.len() / blocks.block_bytes() * blocks.block_elements();
            let start = out.len();
            out.resize(start + values, 0.0);
            if let Some(narrow) = super::blueprint::narrow(blocks) {
                dequantize_row(narrow, bytes, &mut out[start..]);
            }
        }
    }
}
