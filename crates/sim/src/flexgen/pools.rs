//! What a case takes of each tier under the runtime that serves, counted as its planner does (`engine`, `plan::homes`): pools
//! are cut before the first step, and all that a step touches lies in one of them.
//!
//! KV in whole pages; slots of two layers for weights that pass through, three of a batch's KV; a set of activation buffers
//! for each batch that stays on the device, and three that the others take turns in; embedding and head on the device.

use super::case::Case;
use super::cost::Prices;
use super::machine::Rates;
use super::mechanism::Mechanism;
use super::steps::{batch_tokens, batches, kv_blocks, kv_slot_tokens};
use policy::pipeline::{SLOTS, TURNS};
use spec::{BLOCK_TOKENS, ByTier, Part, Tier};

/// Bytes of an element in half precision.
const HALF: f64 = 2.0;
/// Bytes of an element in single precision.
const SINGLE: f64 = 4.0;

/// Bytes that each tier of one machine holds at the most.
pub(super) fn peak(case: &Case, rates: Rates, mechanism: Mechanism) -> ByTier<f64> {
    let pools = Pools { case, mechanism, prices: Prices::new(case, rates, mechanism) };
    let (mut bytes, slots) = (pools.homes(), pools.slots());
    bytes.device += slots.device + pools.work();
    bytes.host += slots.host + pools.host_work();
    bytes
}

struct Pools<'a> {
    case: &'a Case,
    mechanism: Mechanism,
    prices: Prices<'a>,
}

impl Pools<'_> {
    fn layer(&self) -> ByTier<f64> {
        let mut bytes = ByTier::default();
        for part in [Part::Attention(0), Part::Mlp(0)] {
            let of = self.prices.weights(part);
            Tier::ALL.into_iter().for_each(|tier| bytes[tier] += of[tier]);
        }
        bytes
    }

    /// Bytes of one layer's KV of one position.
    fn kv(&self) -> f64 {
        self.case.dims.kv() * self.case.policy.cache.bytes()
    }

    /// Weights and KV of all layers, and activations at rest.
    fn homes(&self) -> ByTier<f64> {
        let (blocks, weights) = (kv_blocks(self.case, self.mechanism), self.layer());
        let mut bytes = ByTier::default();
        for tier in Tier::ALL {
            // In a pipeline each device has a block of its own under way in every stage.
            let blocks = f64::from(blocks[tier]) * f64::from(self.case.devices);
            let positions = blocks * f64::from(BLOCK_TOKENS.0);
            bytes[tier] = self.case.layers() as f64 * (weights[tier] + positions * self.kv());
        }
        let resting =
            |tier| self.case.policy.placement.hidden.of(tier, self.batches()) as f64 * self.stream();
        bytes.host += resting(Tier::Host);
        bytes.disk += resting(Tier::Disk);
        bytes
    }

    fn batches(&self) -> u64 {
        batches(self.case, self.mechanism).into()
    }

    fn rows(&self) -> f64 {
        f64::from(batch_tokens(self.case).0)
    }

    /// Bytes of a batch's residual stream, which no runtime of ours rounds.
    fn stream(&self) -> f64 {
        self.rows() * self.case.dims.hidden as f64 * SINGLE
    }

    /// What passes through device and host on its way from below.
    fn slots(&self) -> ByTier<f64> {
        let (weights, placement) = (self.layer(), self.case.policy.placement);
        let turns = f64::from(TURNS);
        let kv = turns * kv_slot_tokens(self.case, self.mechanism) as f64 * self.kv();
        let some = |wanted, bytes| if wanted { bytes } else { 0.0 };
        let staged = placement.hidden.part(Tier::Disk) > 0;
        ByTier {
            device: f64::from(SLOTS) * (weights.host + weights.disk)
                + some(placement.kv.part(Tier::Device) < spec::Split::WHOLE, kv),
            host: f64::from(SLOTS) * weights.disk
                + some(placement.kv.part(Tier::Disk) > 0, kv)
                + some(staged, turns * self.stream()),
            disk: 0.0,
        }
    }

    fn attends_on_host(&self) -> bool {
        let away = self.case.policy.placement.kv.part(Tier::Device) < spec::Split::WHOLE;
        away && self.mechanism.attends_on_host(&self.case.policy)
    }

    /// Sets of activation buffers on the device.
    fn sets(&self) -> f64 {
        let first = self.case.policy.placement.hidden.of(Tier::Device, self.batches());
        (first + (self.batches() - first).min(TURNS.into())) as f64
    }

    /// Width of queries and of what is attended, and of queries, keys and values together.
    fn widths(&self) -> (f64, f64) {
        let attention = (self.case.dims.heads * self.case.dims.head_dim) as f64;
        (attention, attention + self.case.dims.kv())
    }

    /// Activations on the device, with embedding and head.
    fn work(&self) -> f64 {
        let (dims, (attention, projected)) = (&self.case.dims, self.widths());
        // What the projection gives has a place in each set where the host wants it, else one in all.
        let projections = if self.attends_on_host() { self.sets() } else { 1.0 };
        let set = self.stream() + self.rows() * 2.0 * attention * HALF;
        let shared = self.rows() * (dims.hidden + dims.ffn) as f64 * HALF;
        let logits = f64::from(self.case.policy.batch_size) * dims.vocab as f64 * SINGLE;
        let tables = if dims.tied_head { 1.0 } else { 2.0 } * dims.head() * HALF;
        self.sets() * set + projections * self.rows() * projected * SINGLE + shared + logits + tables
    }

    /// Queries and results of attention on the host.
    fn host_work(&self) -> f64 {
        let (attention, projected) = self.widths();
        let rows = self.sets() * f64::from(self.case.policy.batch_size);
        if self.attends_on_host() { rows * (2.0 * attention * HALF + projected * SINGLE) } else { 0.0 }
    }
}
