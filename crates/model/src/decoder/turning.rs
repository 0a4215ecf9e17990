//! What norms and turns queries and keys, also on a tier that has no weights: attention delegated to the host begins there
//! with what was projected on the device.

use kernels::arena::{Buf, Full, PAGE};
use kernels::device::{Device, KvPages, QkTransform};
use spec::ModelSpec;

use super::rope::{ByRow, Rotaries, Rotary, rope_bytes};
use super::{Batch, Decoder, Work};

/// Norms and rotary tables of all layers, on another device than the weights.
pub struct Turning {
    /// Of each layer: queries' and keys' norms, `[head_dim] f32` each, and their eps.
    norms: Vec<Option<(Buf, Buf, f32)>>,
    rotary: Rotaries,
}

impl Turning {
    /// Bytes that [`Decoder::turning`] takes.
    pub fn bytes(spec: &ModelSpec, positions: usize) -> usize {
        let norms = 2 * spec.layers * (4 * spec.head_dim).next_multiple_of(kernels::arena::ALIGN);
        // A page more for each of the tables of two rotary embeddings, which begin on one.
        rope_bytes(spec, positions) + 4 * PAGE + norms
    }
}

impl Decoder {
    /// Copies to `target` what turns queries and keys at up to `positions` positions.
    ///
    /// # Errors
    /// [`Full`] when it has too little memory left.
    pub fn turning(
        &self,
        device: &dyn Device,
        target: &mut dyn Device,
        positions: usize,
    ) -> Result<Turning, Full> {
        let mut copy = |from: &Buf| {
            let to = target.take(from.bytes())?;
            device.view(from, &mut |bytes| target.upload(&to, bytes));
            Ok(to)
        };
        let norms = self.weights.layers.iter().map(|layer| {
            let copied = layer.qk_norms.map(|(q, k, eps)| Ok((copy(&q)?, copy(&k)?, eps)));
            copied.transpose()
        });
        let norms = norms.collect::<Result<_, Full>>()?;
        Ok(Turning { norms, rotary: Rotaries::load(&self.spec, positions, target)? })
    }

    /// As [`Decoder::store_kv`], on the device that `turning` is on.
    pub fn store_kv_there(
        &self,
        (device, turning): (&dyn Device, &Turning),
        layer: usize,
        batch: &Batch<'_>,
        kv: KvPages,
        work: &Work,
    ) {
        self.rotate(device, batch, work);
        self.store_turned(device, (turning.norms[layer], turning.rotary.of(layer)), batch, kv, work);
    }

    pub(super) fn store_turned(
        &self,
        device: &dyn Device,
        (norms, rotary): (Option<(Buf, Buf, f32)>, &Rotary),
        batch: &Batch<'_>,
        kv: KvPages,
        work: &Work,
    ) {
        let n = batch.ids.len();
        let (qkv, q) = (work.qkv.first(n), work.q.first(n));
        let rope = match rotary {
            Rotary::None => None,
            Rotary::Table(table) => Some(*table),
            Rotary::ByRow(_) => Some(ByRow::tables(n, work)),
        };
        let transform = QkTransform { heads: self.spec.heads, norms, rope };
        device.store_kv(qkv, &transform, batch.spans, kv, q);
    }
}
