//! From a checkpoint, or from a packed store of it, to a device.

use std::sync::atomic::{AtomicU64, Ordering};

use kernels::Team;
use kernels::arena::{Buf, Full};
use kernels::device::{Device, Matrix, NormWeights};
use kernels::linear::panels;
use spec::ModelSpec;
use spec::model::Mlp as MlpShape;

use super::blueprint::{Blueprint, LayerPlan, MatrixPlan};
use super::linear::Linear;
use super::pack::{Packer, to_f32};
use super::rope::Rotary;
use super::{LayerWeights, Mlp, Weights};
use crate::checkpoint::Checkpoint;
use crate::error::Error;
use crate::store::{Cut, Store};
use crate::tensor::{LayerTensor, Tensor};

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
    /// Told the bytes that are on the device so far, from any thread.
    pub progress: &'a (dyn Fn(u64) + Sync),
    /// Where packed panels are, and which of them stay there; without, the checkpoint is packed onto the device.
    pub packed: Option<Packed<'a>>,
}

/// A packed store, and what of it goes to the device.
#[derive(Clone, Copy)]
pub struct Packed<'a> {
    /// The panels.
    pub store: &'a Store,
    /// Which are resident.
    pub cut: &'a Cut,
}

impl Loader<'_> {
    /// Loads everything that `blueprint` plans.
    ///
    /// # Errors
    /// [`LoadError`]: unreadable or senseless weights, or too little memory.
    pub fn load(&self, blueprint: &Blueprint, device: &mut dyn Device) -> Result<Weights, LoadError> {
        let spec = self.checkpoint.spec();
        let packer = Packer::new(self.checkpoint, self.team);
        let loading = Loading { from: self, spec, packer, done: AtomicU64::new(0) };
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
    packer: Packer<'a>,
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
            qkv: plan.qkv.iter().map(|plan| self.linear(plan, device)).collect::<Result<_, _>>()?,
            qkv_bias: self.vectors(&[name(QBias), name(KBias), name(VBias)], device)?,
            qk_norms,
            out: self.linear(&plan.out, device)?,
            out_bias: self.vector(name(OBias), device)?,
            mlp_norm: self.norm(name(MlpNorm), name(MlpNormBias), device)?,
            mlp: if self.spec.mlp == MlpShape::Gated { Mlp::Gated } else { Mlp::Plain },
            up: self.linear(&plan.up, device)?,
            up_bias: self.vectors(&[name(GateBias), name(UpBias)], device)?,
            down: self.linear(&plan.down, device)?,
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
                to_f32(self.packer.info(tensor).stored, &self.whole(tensor)?, &mut values);
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
        match self.from.packed {
            Some(packed) => self.read(packed.store, plan, panels(plan.order, plan.n), device),
            None => self.pack(plan, device),
        }
    }

    /// A layer's matrix: of a packed store only what is to be resident.
    fn linear(&self, plan: &MatrixPlan, device: &mut dyn Device) -> Result<Linear, LoadError> {
        let Some(Packed { store, cut }) = self.from.packed else {
            return Ok(Linear { here: self.pack(plan, device)?, away: None });
        };
        let index = store.layout().index_of(plan);
        let here = self.read(store, plan, cut.resident_panels(index), device)?;
        Ok(Linear { here, away: cut.away(index) })
    }

    fn pack(&self, plan: &MatrixPlan, device: &mut dyn Device) -> Result<Matrix, LoadError> {
        let buf = device.take(plan.bytes())?;
        let mut result = Ok(());
        device.fill(&buf, &mut |out| {
            let all = 0..panels(plan.order, plan.n);
            result = self.packer.panels(plan, all, out, &|bytes| self.advance(bytes));
        });
        result?;
        Ok(plan.matrix(vec![(0, buf)]))
    }

    /// The first `count` panels of a matrix.
    fn read(
        &self,
        store: &Store,
        plan: &MatrixPlan,
        count: usize,
        device: &mut dyn Device,
    ) -> Result<Matrix, LoadError> {
        if count == 0 {
            return Ok(plan.matrix(vec![]));
        }
        let run = store.layout().run(store.layout().index_of(plan), 0..count, 0);
        let buf = device.take(run.bytes())?;
        let mut result = Ok(());
        device.fill(&buf, &mut |out| result = store.read(std::slice::from_ref(&run), out));
        result?;
        self.advance(run.bytes());
        Ok(plan.matrix(vec![(0, buf.slice(0, run.panel_bytes()))]))
    }

    fn advance(&self, bytes: usize) {
        let done = self.done.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        (self.from.progress)(done);
    }

    fn whole(&self, tensor: Tensor) -> Result<Vec<u8>, Error> {
        let info = self.packer.info(tensor);
        let mut bytes = vec![0; info.shape.rows() * info.row_bytes];
        self.from.checkpoint.read_rows(tensor, 0..info.shape.rows(), &mut bytes)?;
        Ok(bytes)
    }
}
