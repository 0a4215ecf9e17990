//! From a checkpoint to a device: rows are read, converted and packed a few panels at a time, by all threads.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use half::{bf16, f16};
use kernels::arena::{Buf, Full};
use kernels::device::{Device, Matrix, NormWeights};
use kernels::linear::quant::{dequantize_row, pack_blocks, pack_floats};
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

/// Panels that are read and packed at a time: a few hundred kilobytes of rows.
const PANELS_AT_ONCE: usize = 8;
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
        let loading = Loading { from: self, spec, done: AtomicU64::new(0) };
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
            if let Some(shape) = tensor.shape(self.spec) {
                let rows = self.rows(tensor, 0..shape.rows())?;
                to_f32(self.info(tensor).stored, &rows, &mut values);
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
        let pieces: Vec<Mutex<&mut [u8]>> = out.chunks_mut(bytes * PANELS_AT_ONCE).map(Mutex::new).collect();
        self.from.team.run(|w| {
            for piece in w.share(pieces.len()) {
                let first = piece * PANELS_AT_ONCE;
                let range = first..(first + PANELS_AT_ONCE).min(count);
                let mut out = pieces[piece].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                if let Err(error) = self.pack(plan, range, &mut out) {
                    failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(error);
                    return;
                }
                let done = self.done.fetch_add(out.len() as u64, Ordering::Relaxed) + out.len() as u64;
                (self.from.progress)(done);
            }
        });
    }

    /// Reads and packs some panels: their source rows become a small matrix of their own.
    fn pack(&self, plan: &MatrixPlan, range: Range<usize>, out: &mut [u8]) -> Result<(), Error> {
        let mut rows = Rows::default();
        for (tensor, part) in sources(plan, range.clone(), self.spec) {
            rows.add(self.info(tensor).stored, part.len(), self.rows(tensor, part)?);
        }
        rows.pack(plan, 0..range.len(), out);
        Ok(())
    }

    fn info(&self, tensor: Tensor) -> Info {
        let info = self.from.checkpoint.info(tensor);
        info.unwrap_or_else(|| panic!("an open checkpoint has every tensor of its model, but not {tensor:?}"))
    }

    fn rows(&self, tensor: Tensor, rows: Range<usize>) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; rows.len() * self.info(tensor).row_bytes];
        self.from.checkpoint.read_rows(tensor, rows, &mut bytes)?;
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

/// Rows as they were read, of one or several formats.
#[derive(Default)]
struct Rows {
    parts: Vec<(Stored, Vec<u8>)>,
    rows: usize,
}

impl Rows {
    fn add(&mut self, stored: Stored, rows: usize, bytes: Vec<u8>) {
        self.rows += rows;
        self.parts.push((stored, bytes));
    }

    fn pack(&self, plan: &MatrixPlan, panels: Range<usize>, out: &mut [u8]) {
        let (n, k, order) = (self.rows, plan.k, plan.order);
        match plan.format {
            Format::F32 => pack_f32(Mat::new(&self.floats(), n, k), order, panels, out),
            Format::Bf16 => pack_bf16(Mat::new(&self.halves(), n, k), order, panels, out),
            Format::Narrow(narrow)
                if self.parts.iter().all(|(s, _)| super::blueprint::narrow(*s) == Some(narrow)) =>
            {
                let bytes: Vec<u8> = self.parts.iter().flat_map(|(_, bytes)| bytes).copied().collect();
                let cols = bytes.len() / n.max(1);
                pack_blocks(narrow, Mat::new(&bytes, n, cols), k, order, panels, out);
            }
            Format::Narrow(narrow) => pack_floats(narrow, Mat::new(&self.floats(), n, k), order, panels, out),
        }
    }

    fn floats(&self) -> Vec<f32> {
        let mut values = Vec::new();
        self.parts.iter().for_each(|(stored, bytes)| to_f32(*stored, bytes, &mut values));
        values
    }

    fn halves(&self) -> Vec<bf16> {
        let mut values = Vec::new();
        for (stored, bytes) in &self.parts {
            match stored {
                Stored::Bf16 => {
                    values.extend(bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]])))
                }
                _ => {
                    let mut wide = Vec::new();
                    to_f32(*stored, bytes, &mut wide);
                    values.extend(wide.into_iter().map(bf16::from_f32));
                }
            }
        }
        values
    }
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
