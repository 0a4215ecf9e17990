//! What a case takes of each tier, and whether a machine has it.
//!
//! That of the runtime that serves is counted in `pools`; with FlexGen's loop, as FlexGen's code allocates: KV of the whole
//! block at its full length before the first token; embedding and head on the device; the weights of one layer on the
//! device where any are away (attention and MLP, each fetched while the other computes); KV on its way, twice a batch; what
//! the largest piece of a prefill or a decode works in. On the host pinned tensors take a power of two each (the allocator
//! of pinned memory rounds up), copy threads keep their relays, and
//! attention on the CPU works in single precision.

use super::case::{Case, Format};
use super::cost::Prices;
use super::machine::Rates;
use super::mechanism::{Block, Compute, Copies, Expand, Mechanism, Order};
use super::placement::tensors;
use super::pools;
use spec::{ByTier, Part, Split, Tier};

/// Bytes of an element in half precision.
const HALF: f64 = 2.0;
/// Bytes of an element in single precision.
const SINGLE: f64 = 4.0;
/// Pinned relays of FlexGen's four copy threads, 2^30 elements each.
const RELAYS: f64 = 4.0 * HALF * (1u64 << 30) as f64;
const PARTS: [Part; 2] = [Part::Attention(0), Part::Mlp(0)];

/// A tier that a case does not fit on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Excess {
    /// Which.
    pub tier: Tier,
    /// Bytes that it would have to hold.
    pub needs: f64,
    /// Bytes that it can.
    pub has: f64,
}

/// Tiers on which the case does not fit; none where it can run.
pub fn excess(case: &Case, rates: Rates, mechanism: Mechanism) -> Vec<Excess> {
    let (needs, has) =
        (peak(case, rates, mechanism), [rates.device_bytes, rates.host_bytes, rates.disk_bytes]);
    let tiers = Tier::ALL.into_iter().zip(has);
    let tiers = tiers.map(|(tier, has)| Excess { tier, needs: needs[tier], has });
    tiers.filter(|excess| excess.needs > excess.has).collect()
}

/// Bytes that each tier of one machine holds at the most.
pub fn peak(case: &Case, rates: Rates, mechanism: Mechanism) -> ByTier<f64> {
    if mechanism.order == Order::Buffers {
        return pools::peak(case, rates, mechanism);
    }
    let count = Count { case, mechanism, prices: Prices::new(case, rates, mechanism) };
    let mut bytes = ByTier::default();
    Tier::ALL.into_iter().for_each(|tier| bytes[tier] = count.at_home(tier));
    bytes.device += count.beside_on_device();
    bytes.host += count.beside_on_host();
    bytes
}

struct Count<'a> {
    case: &'a Case,
    mechanism: Mechanism,
    prices: Prices<'a>,
}

impl Count<'_> {
    fn share(&self, split: Split, tier: Tier) -> f64 {
        f64::from(split.part(tier)) / f64::from(Split::WHOLE)
    }

    /// Sequences whose KV is held: those of a block, and of as many blocks as a pipeline has stages.
    fn sequences(&self) -> f64 {
        f64::from(self.case.policy.block()) * f64::from(self.case.devices)
    }

    fn batch(&self) -> f64 {
        f64::from(self.case.policy.batch_size)
    }

    fn prompt(&self) -> f64 {
        f64::from(self.case.lengths.prompt)
    }

    /// Positions of the longest sequence: the last token is not attended.
    fn longest(&self) -> f64 {
        self.prompt() + f64::from(self.case.lengths.generated) - 1.0
    }

    /// Positions that a sequence's reservation has.
    fn reserved(&self) -> f64 {
        let (s, n) = (self.prompt(), f64::from(self.case.lengths.generated));
        match self.mechanism.block {
            Block::ZigZag => self.longest(),
            // Appendix A.2.1: sequences at all depths share the hold.
            Block::Diagonal => (2.0 * s + n) * (n - 1.0) / (2.0 * n) + s / n,
        }
    }

    /// Bytes of one layer's KV of one position, as stored.
    fn kv(&self) -> f64 {
        self.case.dims.kv() * self.case.policy.cache.bytes()
    }

    /// Weights, KV and activations that live on a tier.
    fn at_home(&self, tier: Tier) -> f64 {
        let (layers, placement) = (self.case.layers() as f64, self.case.policy.placement);
        let weights: f64 =
            PARTS.map(|part| self.prices.weights(part)[tier] * self.rounding(part, tier)).iter().sum();
        let kv = self.sequences() * self.reserved() * self.kv() * self.share(placement.kv, tier);
        let hidden = self.sequences() * self.hidden_of_prompt() * self.share(placement.hidden, tier);
        layers * (weights + kv) + hidden
    }

    fn hidden_of_prompt(&self) -> f64 {
        self.prompt() * self.case.dims.hidden as f64 * HALF
    }

    /// How much larger pinned tensors are than what is in them.
    fn rounding(&self, part: Part, tier: Tier) -> f64 {
        let rounds = self.mechanism.copies != Copies::Pinned && self.prices.weights_are_pinned();
        if tier != Tier::Host || !rounds {
            return 1.0;
        }
        let pieces: &[f64] = match self.case.policy.weights {
            Format::Half => &[HALF],
            // Numbers, then scales and minima.
            Format::Int4 => &[0.5, 0.0625],
        };
        let sizes = tensors(&self.case.dims, part);
        let sizes = sizes.iter().flat_map(|size| pieces.iter().map(move |bytes| size * bytes));
        let (exact, rounded) = sizes.fold((0.0, 0.0), |(exact, rounded), bytes| {
            (exact + bytes, rounded + (bytes.ceil() as u64).next_power_of_two() as f64)
        });
        rounded / exact
    }

    fn beside_on_device(&self) -> f64 {
        let (dims, placement) = (&self.case.dims, self.case.policy.placement);
        let away = |split: Split| 1.0 - self.share(split, Tier::Device);
        let parts = PARTS.map(|part| self.prices.weights(part));
        let of_layer: f64 = parts.iter().map(|bytes| bytes.device + bytes.host + bytes.disk).sum();
        let of_device: f64 = parts.iter().map(|bytes| bytes.device).sum();
        let weights = if of_device < of_layer { of_layer - of_device } else { 0.0 };
        let hidden = 2.0 * away(placement.hidden) * self.batch() * self.hidden_of_prompt();
        let ends = 2.0 * dims.head() * HALF;
        ends + weights + hidden + self.prefill().max(self.decode())
    }

    /// KV on its way out, and the largest piece of a batch's prefill.
    fn prefill(&self) -> f64 {
        let (dims, rows) = (&self.case.dims, self.batch() * self.prompt());
        let away = 1.0 - self.share(self.case.policy.placement.kv, Tier::Device);
        let inner = rows * (dims.hidden + dims.ffn) as f64 * HALF;
        let projected = rows * 4.0 * dims.hidden as f64 * HALF;
        let (scores, logits) = match self.mechanism.compute {
            Compute::Eager => {
                (rows * dims.heads as f64 * self.prompt() * HALF, rows * dims.vocab as f64 * HALF)
            }
            Compute::Fused => (0.0, self.batch() * dims.vocab as f64 * SINGLE),
        };
        2.0 * away * rows * self.kv() + inner.max(projected + scores).max(logits)
    }

    /// KV on its way in where the device attends it, and what it is written out to where it is compressed.
    fn decode(&self) -> f64 {
        let positions = self.batch() * self.longest();
        let away = match self.mechanism.attends_on_host(&self.case.policy) {
            true => 0.0,
            false => 1.0 - self.share(self.case.policy.placement.kv, Tier::Device),
        };
        let expands = self.case.policy.cache == Format::Int4 && self.mechanism.expand == Expand::Pass;
        let expanded = if expands { positions * self.case.dims.kv() * HALF } else { 0.0 };
        2.0 * away * positions * self.kv() + expanded
    }

    fn beside_on_host(&self) -> f64 {
        let placement = self.case.policy.placement;
        let from_disk = |split: Split| self.share(split, Tier::Disk);
        match self.mechanism.copies {
            // What comes from the drive passes through here: two layers' weights, two batches' KV.
            Copies::Pinned => {
                let of_layer: f64 = PARTS.map(|part| self.prices.weights(part).disk).iter().sum();
                2.0 * of_layer + 2.0 * self.batch() * self.longest() * self.kv() * from_disk(placement.kv)
            }
            Copies::Staged => 0.0,
            Copies::Pageable => RELAYS + self.single_precision(),
        }
    }

    /// FlexGen's workspace for attention on the CPU: keys and values of a batch.
    fn single_precision(&self) -> f64 {
        let on_host = self.mechanism.attends_on_host(&self.case.policy);
        let away = self.share(self.case.policy.placement.kv, Tier::Device) < 1.0;
        match (self.mechanism.compute, on_host && away) {
            (Compute::Eager, true) => self.batch() * self.longest() * self.case.dims.kv() * SINGLE,
            _ => 0.0,
        }
    }
}
