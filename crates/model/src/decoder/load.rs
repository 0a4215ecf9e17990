//! From a checkpoint, or from a packed store of it, to a device.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use kernels::AlignedBytes;
use kernels::Team;
use kernels::arena::{Buf, Full};
use kernels::device::{Device, Matrix, NormWeights};
use kernels::linear::{panel_bytes, panels};
use spec::ModelSpec;
use spec::model::{Mlp as MlpShape, NormKind, NormPlacement, QkNorm};

use super::blueprint::{Blueprint, LayerPlan, MatrixPlan};
use super::linear::Linear;
use super::pack::{Packer, to_f32};
use super::rope::Rotaries;
use super::{LayerWeights, Mlp, Norms, Weights};
use crate::checkpoint::Checkpoint;
use crate::error::Error;
use crate::store::{Cut, Half, Layout, Run, Store, Stowed};
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
    /// Packed panels; without, the checkpoint is packed.
    pub store: Option<&'a Store>,
    /// Which panels go to the device; without, all of them.
    pub cut: Option<&'a Cut>,
}

impl Loader<'_> {
    /// Loads everything that `blueprint` plans.
    ///
    /// # Errors
    /// [`LoadError`]: unreadable or senseless weights, or too little memory.
    pub fn load(&self, blueprint: &Blueprint, device: &mut dyn Device) -> Result<Weights, LoadError> {
        let spec = self.checkpoint.spec();
        let loading = self.loading(blueprint, 0);
        let layers = blueprint.layers.iter().enumerate();
        Ok(Weights {
            embed: loading.matrix(&blueprint.embed, device)?,
            positions: loading.vector(Tensor::Positions, device)?,
            project_in: loading.maybe(blueprint.projections.as_ref().map(|p| &p.0), device)?,
            project_out: loading.maybe(blueprint.projections.as_ref().map(|p| &p.1), device)?,
            final_norm: loading.final_norm(device)?,
            untied_head: loading.maybe(blueprint.head.as_ref(), device)?,
            head_bias: loading.vector(Tensor::HeadBias, device)?,
            rotary: Rotaries::load(spec, self.positions, device)?,
            activation: spec.activation,
            layers: layers.map(|(i, plan)| loading.layer(i, plan, device)).collect::<Result<_, _>>()?,
        })
    }

    /// Loads what lives on the host there, after [`load`](Loader::load): attention and MLP of each layer, as the cut
    /// lays them out.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn stow(
        &self,
        blueprint: &Blueprint,
        host: &mut dyn Device,
    ) -> Result<Vec<[Option<Buf>; 2]>, LoadError> {
        let Some(cut) = self.cut else { return Ok(Vec::new()) };
        let loading = self.loading(blueprint, cut.resident_bytes());
        let plans: Vec<&MatrixPlan> = blueprint.matrices().collect();
        let mut half = |half: &Half| loading.stowed(&half.host, &plans, host);
        let layers = cut.layers().iter();
        layers.map(|[attention, mlp]| Ok([half(attention)?, half(mlp)?])).collect()
    }

    fn loading(&self, blueprint: &Blueprint, done: u64) -> Loading<'_> {
        Loading {
            from: self,
            spec: self.checkpoint.spec(),
            packer: Packer::new(self.checkpoint, self.team),
            layout: Layout::of(blueprint),
            done: AtomicU64::new(done),
        }
    }
}

/// What lies on the host on its way to a device that is far or from there, unless one row or panel takes more.
pub const STAGED_BYTES: usize = 16 << 20;

struct Loading<'a> {
    from: &'a Loader<'a>,
    spec: &'a ModelSpec,
    packer: Packer<'a>,
    layout: Layout,
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
            AttnNorm, AttnNormBias, AttnOutNorm, DownBias, GateBias, KBias, MlpNorm, MlpNormBias, MlpOutNorm,
            OBias, QBias, UpBias, VBias,
        };
        let name = |tensor| Tensor::Layer(layer, tensor);
        let [qk_norms, qk_row_norms] = self.qk_norms(layer, device)?;
        let attn_norms = self.norms([AttnNorm, AttnNormBias, AttnOutNorm].map(name), device)?;
        Ok(LayerWeights {
            attn_norms,
            qkv: plan.qkv.iter().map(|plan| self.linear(plan, device)).collect::<Result<_, _>>()?,
            qkv_bias: self.vectors(&[name(QBias), name(KBias), name(VBias)], |value| value, device)?,
            qk_norms: qk_norms.and_then(|[q, k]| Some((q.weight?, k.weight?, q.eps))),
            qk_row_norms,
            out: self.linear(&plan.out, device)?,
            out_bias: self.vector(name(OBias), device)?,
            mlp_norms: match self.spec.placement {
                NormPlacement::Shared => attn_norms,
                _ => self.norms([MlpNorm, MlpNormBias, MlpOutNorm].map(name), device)?,
            },
            mlp: if self.spec.mlp == MlpShape::Gated { Mlp::Gated } else { Mlp::Plain },
            up: self.linear(&plan.up, device)?,
            up_bias: self.vectors(&[name(GateBias), name(UpBias)], |value| value, device)?,
            down: self.linear(&plan.down, device)?,
            down_bias: self.vector(name(DownBias), device)?,
        })
    }

    /// Those around a part of a layer, whose tensors these are: scale and shift of one, scale of the other.
    fn norms(&self, [weight, bias, added]: [Tensor; 3], device: &mut dyn Device) -> Result<Norms, LoadError> {
        let placement = self.spec.placement;
        let mut when =
            |has: bool, weight, bias| has.then(|| self.norm(weight, bias, 1.0, device)).transpose();
        Ok(Norms {
            input: when(placement.norms_input(), weight, Some(bias))?,
            added: when(placement.norms_added(), added, None)?,
            sum: when(placement == NormPlacement::Post, weight, Some(bias))?,
        })
    }

    /// Norms of queries and keys: of each head, and of a row of all heads, or of parts of it. A model has one of them at most.
    fn qk_norms(
        &self,
        layer: usize,
        device: &mut dyn Device,
    ) -> Result<[Option<[NormWeights; 2]>; 2], LoadError> {
        let kind = if self.spec.qk_norm == QkNorm::OwnHeads { NormKind::Layer } else { NormKind::Rms };
        let mut norm = |tensor| -> Result<NormWeights, LoadError> {
            let weight = self.scale(Tensor::Layer(layer, tensor), 1.0, device)?;
            Ok(NormWeights { kind, eps: self.spec.norm.eps, weight, bias: None })
        };
        let mut both =
            || -> Result<_, LoadError> { Ok([norm(LayerTensor::QNorm)?, norm(LayerTensor::KNorm)?]) };
        Ok(match self.spec.qk_norm {
            QkNorm::None => [None, None],
            QkNorm::Heads => [Some(both()?), None],
            QkNorm::Rows | QkNorm::OwnHeads => [None, Some(both()?)],
        })
    }

    fn norm(
        &self,
        weight: Tensor,
        bias: Option<Tensor>,
        factor: f32,
        device: &mut dyn Device,
    ) -> Result<NormWeights, LoadError> {
        let norm = self.spec.norm;
        let weight = self.scale(weight, factor, device)?;
        let bias = bias.map(|bias| self.vector(bias, device)).transpose()?.flatten();
        Ok(NormWeights { kind: norm.kind, eps: norm.eps, weight, bias })
    }

    fn final_norm(&self, device: &mut dyn Device) -> Result<Option<NormWeights>, LoadError> {
        if !self.spec.final_norm {
            return Ok(None);
        }
        self.norm(Tensor::FinalNorm, Some(Tensor::FinalNormBias), self.spec.logit_scale, device).map(Some)
    }

    /// A norm's scale, times a factor.
    fn scale(&self, tensor: Tensor, factor: f32, device: &mut dyn Device) -> Result<Option<Buf>, LoadError> {
        let from = if self.spec.norm.from_one { 1.0 } else { 0.0 };
        self.vectors(&[tensor], |value| (from + value) * factor, device)
    }

    fn vector(&self, tensor: Tensor, device: &mut dyn Device) -> Result<Option<Buf>, LoadError> {
        self.vectors(&[tensor], |value| value, device)
    }

    /// Tensors end to end as f32, each number made into another; none if the model has none of them.
    fn vectors(
        &self,
        tensors: &[Tensor],
        made: impl Fn(f32) -> f32,
        device: &mut dyn Device,
    ) -> Result<Option<Buf>, LoadError> {
        let there = || tensors.iter().filter_map(|tensor| Some((*tensor, tensor.shape(self.spec)?)));
        let numbers: usize = there().map(|(_, shape)| shape.rows() * shape.columns()).sum();
        if numbers == 0 {
            return Ok(None);
        }
        let buf = device.take(4 * numbers)?;
        let mut at = 0;
        for (tensor, shape) in there() {
            let row_bytes = 4 * shape.columns();
            // As they are stored, as numbers, and on their way.
            for rows in pieces(shape.rows(), 3 * row_bytes) {
                let (own, mut values) = (buf.slice(at, rows.len() * row_bytes), Vec::new());
                at += own.bytes();
                to_f32(self.packer.info(tensor).stored, &self.rows(tensor, rows)?, &mut values);
                device.fill(&own, &mut |out| {
                    for (out, value) in out.chunks_exact_mut(4).zip(&values) {
                        out.copy_from_slice(&made(*value).to_le_bytes());
                    }
                });
            }
        }
        Ok(Some(buf))
    }

    fn maybe(&self, plan: Option<&MatrixPlan>, device: &mut dyn Device) -> Result<Option<Matrix>, LoadError> {
        plan.map(|plan| self.matrix(plan, device)).transpose()
    }

    fn matrix(&self, plan: &MatrixPlan, device: &mut dyn Device) -> Result<Matrix, LoadError> {
        self.first(plan, panels(plan.order, plan.n), device)
    }

    /// A layer's matrix, with those of its panels that are to be on the device.
    fn linear(&self, plan: &MatrixPlan, device: &mut dyn Device) -> Result<Linear, LoadError> {
        let Some(cut) = self.from.cut else {
            return Ok(Linear { here: self.matrix(plan, device)?, away: Vec::new() });
        };
        let index = self.layout.index_of(plan);
        let here = self.first(plan, cut.resident_panels(index), device)?;
        Ok(Linear { here, away: cut.away(index).to_vec() })
    }

    /// The first `count` panels of a matrix.
    fn first(&self, plan: &MatrixPlan, count: usize, device: &mut dyn Device) -> Result<Matrix, LoadError> {
        if count == 0 {
            return Ok(plan.matrix(vec![]));
        }
        let each = panel_bytes(plan.format, plan.k);
        let Some(store) = self.from.store else {
            let buf = device.take(count * each)?;
            for panels in pieces(count, each) {
                let own = buf.slice(panels.start * each, panels.len() * each);
                self.filled(device, &own, |out| self.pack(plan, panels.clone(), out))?;
            }
            return Ok(plan.matrix(vec![(0, buf)]));
        };
        let run = |panels| self.layout.run(self.layout.index_of(plan), panels, 0);
        let whole = run(0..count);
        let buf = device.take(whole.bytes())?;
        let panels = buf.slice(0, whole.panel_bytes());
        if device.is_far() {
            for piece in pieces(count, each) {
                let own = panels.slice(piece.start * each, piece.len() * each);
                self.read_over(store, &run(piece), (device, &own))?;
            }
        } else {
            self.filled(device, &buf, |out| self.read(store, std::slice::from_ref(&whole), out))?;
        }
        Ok(plan.matrix(vec![(0, panels)]))
    }

    /// What of a part lives on the host.
    fn stowed(
        &self,
        stowed: &Stowed,
        plans: &[&MatrixPlan],
        host: &mut dyn Device,
    ) -> Result<Option<Buf>, LoadError> {
        if stowed.runs.is_empty() {
            return Ok(None);
        }
        let buf = host.take(stowed.bytes)?;
        self.filled(host, &buf, |out| match self.from.store {
            Some(store) => self.read(store, &stowed.runs, out),
            None => stowed.runs.iter().try_for_each(|run| {
                let own = &mut out[run.at + run.skip..][..run.panel_bytes()];
                self.pack(plans[run.matrix], run.panels.clone(), own)
            }),
        })?;
        Ok(Some(buf))
    }

    fn filled(
        &self,
        device: &dyn Device,
        buf: &Buf,
        fill: impl Fn(&mut [u8]) -> Result<(), Error>,
    ) -> Result<(), LoadError> {
        let mut result = Ok(());
        device.fill(buf, &mut |out| result = fill(out));
        Ok(result?)
    }

    fn pack(&self, plan: &MatrixPlan, panels: Range<usize>, out: &mut [u8]) -> Result<(), Error> {
        self.packer.panels(plan, panels, out, &|bytes| self.advance(bytes))
    }

    fn read(&self, store: &Store, runs: &[Run], out: &mut [u8]) -> Result<(), Error> {
        store.read(runs, out)?;
        self.advance(out.len());
        Ok(())
    }

    /// Reads panels for a device that is far: the sectors that they lie in have no room there.
    fn read_over(&self, store: &Store, run: &Run, (device, buf): (&dyn Device, &Buf)) -> Result<(), Error> {
        let mut sectors = AlignedBytes::zeroed(run.bytes());
        store.read(std::slice::from_ref(run), &mut sectors)?;
        device.upload(buf, &sectors[run.skip..][..run.panel_bytes()]);
        self.advance(run.panel_bytes());
        Ok(())
    }

    fn advance(&self, bytes: usize) {
        let done = self.done.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        (self.from.progress)(done);
    }

    fn rows(&self, tensor: Tensor, rows: Range<usize>) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; rows.len() * self.packer.info(tensor).row_bytes];
        self.from.checkpoint.read_rows(tensor, rows, &mut bytes)?;
        Ok(bytes)
    }
}

/// Rows (or panels) of `each` bytes that are made at a time: what a device that is far takes, a copy of it lies on the host.
pub(super) fn pieces(count: usize, each: usize) -> impl Iterator<Item = Range<usize>> {
    let step = (STAGED_BYTES / each.max(1)).max(1);
    (0..count).step_by(step).map(move |first| first..count.min(first + step))
}
