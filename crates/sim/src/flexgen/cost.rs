//! What each node costs on a machine of the papers, in FlexGen's loop and in the programs of the runtime that serves.
//!
//! The formulas are appendix A.3's with what they lack: reading weights from device memory, scores that pass through
//! memory, a pass of dequantisation, a KV term for copies up where the device attends KV that lives elsewhere, and logits
//! (errata: A.3 has no such terms, so that all-device runs come out twice too fast and "no CPU compute" cannot be said).

use super::case::{Case, Format, Pinning};
use super::machine::Rates;
use super::mechanism::{Compute, Copies, Expand, Fetch, Mechanism, Order};
use super::placement::elements;
use policy::cost::Cost;
use policy::pipeline::DiskPath;
use spec::{ByTier, Load, Nanos, Op, Part, Shape, Tensor, Tier};

/// Passes over half-precision scores in eager prefill: written by the product, masked, normalised, read again.
const SCORE_PASSES: f64 = 8.0;
/// Times that eager decode attention reads the cache: gathered, transposed, multiplied.
const CACHE_READS: f64 = 3.0;
/// The most of the host's memory that weights may take and still be pinned, by default.
const PINNED_SHARE: f64 = 1.0 / 3.0;

/// Prices the nodes of one case.
pub(super) struct Prices<'a> {
    case: &'a Case,
    rates: Rates,
    mechanism: Mechanism,
    weights_pinned: bool,
}

impl<'a> Prices<'a> {
    pub(super) fn new(case: &'a Case, rates: Rates, mechanism: Mechanism) -> Self {
        let mut prices = Self { case, rates, mechanism, weights_pinned: true };
        let of_layer: f64 =
            [Part::Attention(0), Part::Mlp(0)].map(|part| prices.weights(part).host).iter().sum();
        prices.weights_pinned = mechanism.copies == Copies::Pinned
            || match case.policy.pinning {
                Pinning::On => true,
                Pinning::Off => false,
                Pinning::Auto => of_layer * case.layers() as f64 <= rates.host_bytes * PINNED_SHARE,
            };
        prices
    }

    /// Whether the host's weights are pinned.
    pub(super) fn weights_are_pinned(&self) -> bool {
        self.weights_pinned
    }

    /// Bytes of a part's weights on each tier.
    pub(super) fn weights(&self, part: Part) -> ByTier<f64> {
        let policy = &self.case.policy;
        let mut bytes = elements(&self.case.dims, part, policy.placement.weights, self.mechanism.grain);
        Tier::ALL.into_iter().for_each(|tier| bytes[tier] *= policy.weights.bytes());
        bytes
    }

    /// Half-precision or fused: arithmetic or reading, whichever is longer; else a pass of expansion before it.
    fn linear(&self, rows: f64, elements: f64, format: Format) -> f64 {
        let fused = self.mechanism.expand == Expand::Fused;
        let read = elements * if fused { format.bytes() } else { Format::Half.bytes() };
        let product =
            (2.0 * rows * elements / self.rates.gemm_flops).max(read / self.rates.device_bytes_per_s);
        product + if fused { 0.0 } else { self.expansion(elements, format) }
    }

    fn expansion(&self, elements: f64, format: Format) -> f64 {
        match format {
            Format::Half => 0.0,
            Format::Int4 => elements * Format::Half.bytes() / self.rates.dequantise,
        }
    }

    fn attend(&self, load: &Load, on: Tier) -> f64 {
        let dims = &self.case.dims;
        let (pairs, context) = (load.prefill_pairs[on] as f64, load.context[on] as f64 * dims.kv());
        let operations = 4.0 * pairs * (dims.heads * dims.head_dim) as f64 / self.rates.gemm_flops;
        let (half, stored) = (context * Format::Half.bytes(), context * self.case.policy.cache.bytes());
        match (on, self.mechanism.compute) {
            (Tier::Device, Compute::Eager) => {
                let scores = SCORE_PASSES * 2.0 * (2.0 * pairs) * dims.heads as f64;
                let expansion = match self.mechanism.expand {
                    Expand::Pass => self.expansion(context, self.case.policy.cache),
                    Expand::Fused => 0.0,
                };
                // Without causal saving: all pairs of a square.
                2.0 * operations + (scores + CACHE_READS * half) / self.rates.device_bytes_per_s + expansion
            }
            (Tier::Device, Compute::Fused) => operations + stored / self.rates.device_bytes_per_s,
            (_, Compute::Eager) => half / self.rates.host_attention,
            (_, Compute::Fused) => stored / self.rates.host_memory,
        }
    }

    /// Positions of one layer's KV, as stored.
    fn kv(&self, positions: u64) -> f64 {
        positions as f64 * self.case.dims.kv() * self.case.policy.cache.bytes()
    }

    /// FlexGen's `load_weight`: from the host by the memory that it lies in, from the drive through a pinned relay. In our
    /// programs one copy brings up both.
    fn load_weights(&self, part: Part, from: Tier, to: Tier) -> f64 {
        let bytes = self.weights(part);
        match (from, to) {
            // They live on the device, whatever the layers do: see `memory`.
            _ if matches!(part, Part::Embed | Part::Head) => 0.0,
            (Tier::Disk, Tier::Host) => bytes.disk / self.rates.disk_read,
            (Tier::Host, _) if self.mechanism.order == Order::Buffers => {
                let host = if self.weights_pinned { self.rates.pinned } else { self.pageable_up() };
                bytes.host / host + bytes.disk / self.rates.pinned + self.hooks(part, bytes)
            }
            (Tier::Disk, _) if bytes.host > 0.0 => bytes.disk / self.rates.pinned,
            (Tier::Disk, _) => bytes.disk / self.rates.pinned + self.hooks(part, bytes),
            _ if self.weights_pinned => bytes.host / self.rates.pinned + self.hooks(part, bytes),
            _ => bytes.host / self.pageable_up() + self.hooks(part, bytes),
        }
    }

    /// What the interpreter takes to fetch the weights of a part that are away, module by module.
    fn hooks(&self, part: Part, away: ByTier<f64>) -> f64 {
        let modules = match (self.mechanism.fetch, part) {
            _ if away.host + away.disk == 0.0 => 0.0,
            (Fetch::Loop, _) => 0.0,
            // Queries, keys, values, projection, norm.
            (Fetch::Hooks, Part::Attention(_)) => 5.0,
            (Fetch::Hooks, Part::Mlp(_)) => self.case.dims.mlp_matrices as f64 + 1.0,
            (Fetch::Hooks, Part::Embed | Part::Head) => 1.0,
        };
        modules * self.rates.hook_s
    }

    /// Copies of pageable memory up, bytes a second.
    pub(super) fn pageable_up(&self) -> f64 {
        match self.mechanism.copies {
            Copies::Staged => self.rates.staged_up,
            Copies::Pageable | Copies::Pinned => self.rates.pageable_up,
        }
    }

    fn copy_kv(&self, load: &Load, from: Tier, to: Tier) -> f64 {
        let pinned = self.mechanism.copies == Copies::Pinned;
        let choose = |pageable: f64| if pinned { self.rates.pinned } else { pageable };
        let rate = match (from, to) {
            (Tier::Disk, Tier::Host) => self.rates.disk_read,
            (Tier::Disk, _) => self.rates.pinned,
            (Tier::Host, Tier::Device) => choose(self.pageable_up()),
            (Tier::Host, _) => self.rates.disk_write,
            _ => choose(self.rates.pageable_down),
        };
        self.kv(self.copied(load, from, to)) / rate
    }

    /// KV positions of a copy between two tiers. FlexGen's loop stores what is bound for the drive through the host, and
    /// brings the drive's to the device in a copy of its own.
    fn copied(&self, load: &Load, from: Tier, to: Tier) -> u64 {
        match (self.mechanism.order, from, to) {
            (Order::Buffers, ..) => DiskPath::ThroughHost.kv_copied(load, from, to),
            (Order::Barriers, Tier::Disk, _) => load.kv_in.disk,
            (Order::Barriers, Tier::Host, Tier::Device) => load.kv_in.host,
            (Order::Barriers, Tier::Host, _) => load.kv_out.disk,
            (Order::Barriers, ..) => load.kv_out.host + load.kv_out.disk,
        }
    }

    fn move_hidden(&self, what: Tensor, load: &Load, from: Tier, to: Tier) -> f64 {
        let (dims, hidden) = (&self.case.dims, self.case.policy.placement.hidden);
        let on = |tier| f64::from(hidden.part(tier)) / f64::from(spec::Split::WHOLE);
        let (decodes, attention) = (f64::from(load.host_tokens), (dims.heads * dims.head_dim) as f64);
        let stream = f64::from(load.tokens) * dims.hidden as f64;
        // Our own rounds what is attended, and neither the stream nor what projections give.
        let whole = if self.mechanism.order == Order::Buffers { 4.0 } else { 2.0 };
        let bytes = match (what, from, to) {
            (Tensor::Qkv, ..) => decodes * (attention + dims.kv()) * whole,
            (Tensor::Attended, ..) => decodes * attention * 2.0,
            // A batch is where it is as a whole.
            _ if self.mechanism.order == Order::Buffers => stream * whole,
            (_, Tier::Disk, _) | (_, _, Tier::Disk) => stream * on(Tier::Disk) * whole,
            _ => stream * (1.0 - on(Tier::Device)) * whole,
        };
        match (from, to) {
            (Tier::Disk, _) => bytes / self.rates.disk_read,
            (_, Tier::Disk) => bytes / self.rates.disk_write,
            _ => bytes / self.rates.pinned,
        }
    }
}

impl Cost for Prices<'_> {
    fn of(&self, op: &Op, shape: &Shape) -> Nanos {
        let (dims, weights) = (&self.case.dims, self.case.policy.weights);
        let load = |batch: u16| &shape.loads[usize::from(batch)];
        let rows = |batch: u16| f64::from(load(batch).tokens);
        Nanos::from_secs(match *op {
            Op::Qkv { batch, .. } => self.linear(rows(batch), dims.qkv(), weights),
            Op::OutProj { batch, .. } => self.linear(rows(batch), dims.out(), weights),
            Op::Mlp { batch, .. } => self.linear(rows(batch), dims.mlp(), weights),
            Op::Head { batch } => {
                let rows = match self.mechanism.compute {
                    Compute::Eager => load(batch).tokens,
                    Compute::Fused => load(batch).samples,
                };
                // One machine of a pipeline has it, for which all others wait.
                self.linear(f64::from(rows), dims.head(), Format::Half)
            }
            Op::Attend { batch, on, .. } => self.attend(load(batch), on),
            Op::LoadWeights { part, from, to } => self.load_weights(part, from, to),
            Op::CopyKv { batch, from, to, .. } => self.copy_kv(load(batch), from, to),
            Op::MoveHidden { what, batch, from, to } => self.move_hidden(what, load(batch), from, to),
            // Embedding and sampling: a row of a table each.
            _ => 0.0,
        })
    }
}
