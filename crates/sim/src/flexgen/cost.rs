//! What each node of FlexGen's loop costs on a machine of the papers.
//!
//! The formulas are appendix A.3's with what they lack: reading weights from device memory, scores that pass through
//! memory, a pass of dequantisation, a KV term for copies up where the device attends KV that lives elsewhere, and logits
//! (errata: A.3 has no such terms, so that all-device runs come out twice too fast and "no CPU compute" cannot be said).

use super::case::{Case, Format, Pinning};
use super::machine::Rates;
use super::mechanism::{Compute, Copies, Expand, Fetch, Mechanism};
use super::placement::elements;
use policy::cost::Cost;
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

    /// FlexGen's `load_weight`: from the host by the memory that it lies in, from the drive through a pinned relay.
    fn load_weights(&self, part: Part, from: Tier, to: Tier) -> f64 {
        let bytes = self.weights(part);
        match (from, to) {
            (Tier::Disk, Tier::Host) => bytes.disk / self.rates.disk_read,
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
        match (from, to) {
            (Tier::Disk, Tier::Host) => self.kv(load.kv_in.disk) / self.rates.disk_read,
            (Tier::Disk, _) => self.kv(load.kv_in.disk) / self.rates.pinned,
            (Tier::Host, Tier::Device) => self.kv(load.kv_in.host) / choose(self.pageable_up()),
            (Tier::Host, _) => self.kv(load.kv_out.disk) / self.rates.disk_write,
            _ => self.kv(load.kv_out.host + load.kv_out.disk) / choose(self.rates.pageable_down),
        }
    }

    fn move_hidden(&self, what: Tensor, load: &Load, from: Tier, to: Tier) -> f64 {
        let (dims, hidden) = (&self.case.dims, self.case.policy.placement.hidden);
        let on = |tier| f64::from(hidden.part(tier)) / f64::from(spec::Split::WHOLE);
        let decodes = f64::from(load.seqs.min(load.tokens)) * (dims.heads * dims.head_dim) as f64;
        let bytes = 2.0
            * match (what, from, to) {
                (Tensor::Qkv, ..) => 3.0 * decodes,
                (Tensor::Attended, ..) => decodes,
                (_, Tier::Disk, _) | (_, _, Tier::Disk) => {
                    f64::from(load.tokens) * dims.hidden as f64 * on(Tier::Disk)
                }
                _ => f64::from(load.tokens) * dims.hidden as f64 * (1.0 - on(Tier::Device)),
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
            Op::Head { batch } => self.linear(f64::from(load(batch).samples), dims.head(), Format::Half),
            Op::Attend { batch, on, .. } => self.attend(load(batch), on),
            Op::LoadWeights { part, from, to } => self.load_weights(part, from, to),
            Op::CopyKv { batch, from, to, .. } => self.copy_kv(load(batch), from, to),
            Op::MoveHidden { what, batch, from, to } => self.move_hidden(what, load(batch), from, to),
            // Nothing else stands in the loop.
            _ => 0.0,
        })
    }
}
