//! The one decoder: every supported model is this sequence of operations with the switches of its
//! [`ModelSpec`].
//!
//! ```text
//! embed ─► [ norm ─► qkv ─► turn, store K and V ─► attend ─► out-projection ─► norm ─► MLP ] x layers ─► head
//! ```
//!
//! In models whose MLP stands beside attention, both norms read what came into the layer: attention's result waits until the
//! second has.
//!
//! Each function is one op of a program. They read and write the buffers of a [`Work`], so two batches
//! with a `Work` each can be under way at once.

mod blueprint;
mod host;
mod linear;
mod load;
mod norms;
mod pack;
mod rope;
mod tabled;
mod turning;
mod weights;
mod work;

pub use blueprint::{Along, Blueprint, LayerPlan, MatrixPlan, Rounding, WeightsAs};
pub use host::{Copying, Host, HostWork};
pub use linear::{Away, Linear, Slots};
pub use load::{LoadError, Loader, STAGED_BYTES};
pub use norms::Norms;
pub(crate) use pack::Packer;
pub use rope::rope_bytes;
pub use turning::Turning;
pub use weights::{LayerWeights, Mlp, Weights};
pub use work::{Projected, Work, WorkSize};

use kernels::arena::Buf;
use kernels::attention::{Chosen, Span};
use kernels::device::{AttendShape, Device, KvPages, Rows, Sink};
use rope::Rotary;
use spec::Tier;
use spec::model::{ModelSpec, Positions};

/// The rows of one batch: which tokens, where they stand, and which of them are followed by a choice.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    /// Token of each row.
    pub ids: &'a [u32],
    /// Absolute position of each row.
    pub positions: &'a [u32],
    /// How long a sequence each row is turned for (`Rope::turned_from`, or one more than its position if that is more). Only
    /// dynamic scaling and LongRoPE ask.
    pub lengths: &'a [u32],
    /// The sequences that the rows belong to.
    pub spans: &'a [Span<'a>],
    /// Rows whose logits are wanted.
    pub samples: &'a [u32],
    /// Where the layer's weights are that live away from the device, once they are loaded.
    pub slots: Slots,
    /// What computes with the panels that live on the host; without, they come through a slot.
    pub host: Option<Host<'a>>,
}

impl Batch<'_> {
    /// `y = x * W^T + bias` into the sink, by whoever has the panels.
    fn linear(&self, device: &dyn Device, x: Rows, linear: &Linear, bias: Option<Buf>, sink: Sink) {
        let Some(host) = &self.host else {
            return device.linear(x, &linear.with(&self.slots, None), bias, sink);
        };
        let begun = host.begin(device, x, linear, bias, sink);
        let matrix = linear.with(&self.slots, Some(Tier::Host));
        if !matrix.parts.is_empty() {
            device.linear(x, &matrix, bias, sink);
        }
        if let Some(begun) = begun {
            host.finish(device, &begun);
        }
    }
}

/// A model's weights on a device, and how to use them.
pub struct Decoder {
    spec: ModelSpec,
    weights: Weights,
    share: Option<f32>,
}

impl Decoder {
    /// A decoder of weights that were loaded for `spec`.
    pub fn new(spec: ModelSpec, weights: Weights) -> Decoder {
        assert_eq!(spec.layers, weights.layers.len(), "weights of another model");
        Decoder { spec, weights, share: None }
    }

    /// The same, attending to this share of the keys alone, those with the highest scores.
    pub fn sparse(self, share: Option<f32>) -> Decoder {
        Decoder { share, ..self }
    }

    /// What kind of model it is.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Tokens to rows of the residual stream, learned positions added. Rows are turned as [`rotate`](Self::rotate) says, before or after.
    pub fn embed(&self, device: &dyn Device, batch: &Batch<'_>, work: &Work) {
        let n = batch.ids.len();
        let (x, scale) = (work.x.first(n), self.spec.embed_scale);
        match &self.weights.project_in {
            None => device.embed(&self.weights.embed, batch.ids, scale, x),
            Some(project) => {
                device.embed(&self.weights.embed, batch.ids, scale, work.embedded.first(n));
                device.convert(work.embedded.first(n), work.embedded_in.first(n));
                device.linear(work.embedded_in.first(n), project, None, Sink::Store(x));
            }
        }
        if let (Positions::Learned { offset }, Some(table)) = (&self.spec.positions, self.weights.positions) {
            let rows: Vec<u32> = batch.positions.iter().map(|p| p + *offset as u32).collect();
            device.add_rows(table, &rows, x);
        }
    }

    /// Queries, keys and values of a layer; keys and values go to their pages.
    pub fn qkv(&self, device: &dyn Device, layer: usize, batch: &Batch<'_>, kv: KvPages, work: &Work) {
        self.project(device, layer, batch, work);
        self.store_kv(device, layer, batch, kv, work);
    }

    /// Queries, keys and values of a layer as they are projected, in the work's `qkv`.
    pub fn project(&self, device: &dyn Device, layer: usize, batch: &Batch<'_>, work: &Work) {
        let n = batch.ids.len();
        let w = &self.weights.layers[layer];
        w.attn_norms.begin(device, work.x.first(n), work);
        let mut column = 0;
        for linear in &w.qkv {
            let rows = linear.here.n;
            let bias = w.qkv_bias.map(|bias| bias.slice(4 * column, 4 * rows));
            batch.linear(
                device,
                work.normed.first(n),
                linear,
                bias,
                Sink::StoreAt(work.qkv.first(n), column),
            );
            column += rows;
        }
        if let Some([q, k]) = &w.qk_row_norms {
            let [of_q, of_k] = self.spec.qk_norm_parts();
            device.norm_columns(work.qkv.first(n), 0, of_q, q);
            device.norm_columns(work.qkv.first(n), self.spec.q_rows(), of_k, k);
        }
    }

    /// Norms and turns what was projected: queries go to the work's `q`, keys and values of the batch's spans to their
    /// pages.
    pub fn store_kv(&self, device: &dyn Device, layer: usize, batch: &Batch<'_>, kv: KvPages, work: &Work) {
        let turns = (self.weights.layers[layer].qk_norms, self.weights.rotary.of(layer));
        self.store_turned(device, turns, batch, kv, work);
    }

    /// What the rotation of a batch's rows needs where it depends on lengths. It lies in the work, and is computed anew
    /// when another batch has had that meanwhile.
    pub fn rotate(&self, device: &dyn Device, batch: &Batch<'_>, work: &Work) {
        if let Rotary::ByRow(rope) = &self.weights.rotary.usual {
            rope.fill(device, batch.positions, batch.lengths, work);
        }
    }

    /// Attention of a layer over the pages.
    pub fn attend(&self, device: &dyn Device, layer: usize, batch: &Batch<'_>, kv: KvPages, work: &Work) {
        let n = batch.ids.len();
        let shape = self.attend_shape(layer);
        device.attend(work.q.first(n), kv, batch.spans, shape, work.attended.first(n));
    }

    /// Which values attention of a layer would read, of decodes whose keys are in their pages.
    pub fn choose(
        &self,
        device: &dyn Device,
        layer: usize,
        batch: &Batch<'_>,
        kv: KvPages,
        work: &Work,
    ) -> Chosen {
        device.choose(work.q.first(batch.ids.len()), kv, batch.spans, self.attend_shape(layer))
    }

    fn attend_shape(&self, layer: usize) -> AttendShape {
        AttendShape {
            heads: self.spec.heads,
            scale: self.spec.attention_scale,
            window: self.spec.window_of(layer),
            share: self.share,
            cap: self.spec.score_cap,
        }
    }

    /// Attention's result into the residual stream; where the MLP stands beside attention, into the work's `sum`.
    pub fn out_proj(&self, device: &dyn Device, layer: usize, batch: &Batch<'_>, work: &Work) {
        let n = batch.ids.len();
        let w = &self.weights.layers[layer];
        let (attended, x) = (work.attended.first(n), work.x.first(n));
        if self.spec.placement.is_parallel() {
            // The MLP is still to read the stream.
            return batch.linear(device, attended, &w.out, w.out_bias, Sink::Store(work.sum.first(n)));
        }
        batch.linear(device, attended, &w.out, w.out_bias, w.attn_norms.sink(x, work));
        w.attn_norms.finish(device, x, work);
    }

    /// The MLP of a layer, into the residual stream.
    pub fn mlp(&self, device: &dyn Device, layer: usize, batch: &Batch<'_>, work: &Work) {
        self.mlp_of(device, layer, batch, (batch.ids.len(), None), work);
    }

    /// The last layer's MLP for the rows that sample alone, which become the first: nobody looks at the others any more.
    pub fn last_mlp(&self, device: &dyn Device, batch: &Batch<'_>, work: &Work) {
        self.keep_sampling(device, batch, work);
        if !batch.samples.is_empty() {
            let rows = (batch.samples.len(), Some(batch.samples));
            self.mlp_of(device, self.spec.layers - 1, batch, rows, work);
        }
    }

    /// Makes the rows that sample the first of the residual stream, for the head.
    pub fn keep_sampling(&self, device: &dyn Device, batch: &Batch<'_>, work: &Work) {
        let first = 0..batch.samples.len() as u32;
        if !batch.samples.iter().copied().eq(first.clone()) {
            let picked = self.pick(device, batch.samples, work);
            device.gather(picked, &first.collect::<Vec<u32>>(), work.x.first(picked.rows));
        }
    }

    /// Adds to the first `n` rows of the residual stream the MLP of them. `rows`: which of the batch they are, if not the first.
    fn mlp_of(
        &self,
        device: &dyn Device,
        layer: usize,
        batch: &Batch<'_>,
        (n, rows): (usize, Option<&[u32]>),
        work: &Work,
    ) {
        let x = work.x.first(n);
        let w = &self.weights.layers[layer];
        w.mlp_norms.begin(device, x, work);
        if self.spec.placement.is_parallel() {
            let all = || (0..n as u32).collect();
            device.add_rows(work.sum.buf, &rows.map_or_else(all, <[u32]>::to_vec), x);
        }
        let inner = work.inner.first(n);
        let sink = match w.mlp {
            Mlp::Gated => Sink::Gated(self.weights.activation, inner),
            Mlp::Plain => Sink::Act(self.weights.activation, inner),
        };
        batch.linear(device, work.normed.first(n), &w.up, w.up_bias, sink);
        batch.linear(device, inner, &w.down, w.down_bias, w.mlp_norms.sink(x, work));
        w.mlp_norms.finish(device, x, work);
    }

    /// Copies rows (at most as many as the work holds) out of the residual stream.
    pub fn pick(&self, device: &dyn Device, rows: &[u32], work: &Work) -> Rows {
        let picked = work.picked.first(rows.len());
        device.gather(work.x, rows, picked);
        picked
    }

    /// Logits of rows of the residual stream (at most as many as the work holds): `[n, vocab] f32`.
    pub fn head(&self, device: &dyn Device, x: Rows, work: &Work) -> Rows {
        let n = x.rows;
        let normed = work.picked_normed.first(n);
        match &self.weights.final_norm {
            Some(norm) => device.norm(x, norm, normed),
            None => device.convert(x, normed),
        }
        let logits = work.logits.first(n);
        match &self.weights.project_out {
            None => device.linear(normed, self.weights.head(), self.weights.head_bias, Sink::Store(logits)),
            Some(project) => {
                let narrow = work.picked_out.first(n);
                device.linear(normed, project, None, Sink::Store(narrow));
                device.linear(narrow, self.weights.head(), self.weights.head_bias, Sink::Store(logits));
            }
        }
        if let Some(cap) = self.spec.logit_cap {
            device.cap(logits, cap);
        }
        logits
    }
}
