//! What is simulated: a model, the lengths of its requests, and a policy (FlexGen, section 4.3).

use policy::cost::{Dims, ElementBytes};
use spec::{Placement, Tier};

/// Lengths that all requests of a run share, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// `s`: of every prompt.
    pub prompt: u32,
    /// `n`: generated for each.
    pub generated: u32,
}

/// How something is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Half precision.
    Half,
    /// 4 bits in groups of 64, each with a scale and a minimum in half precision (section 5).
    Int4,
}

impl Format {
    /// Bytes of an element, scales included.
    pub fn bytes(self) -> f64 {
        match self {
            Format::Half => 2.0,
            Format::Int4 => 0.5625,
        }
    }
}

/// Whether copies run beside compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// They do.
    On,
    /// One thing at a time.
    Off,
}

/// Where KV is attended that does not live on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostAttention {
    /// On the CPU.
    On,
    /// On the device, where it is copied each time.
    Off,
}

/// Whether the host's weights lie in pinned memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinning {
    /// Where they take at most a third of the host's memory. FlexGen's pinned tensors take up to twice their size, and its
    /// authors turned pinning off in every run with more than that.
    Auto,
    /// They do.
    On,
    /// They do not.
    Off,
}

/// What FlexGen's search chooses, and what its switches say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Sequences of a batch.
    pub batch_size: u32,
    /// Batches of a block.
    pub num_batches: u32,
    /// What lives where.
    pub placement: Placement,
    /// Format of the linears' weights.
    pub weights: Format,
    /// Format of the KV cache.
    pub cache: Format,
    /// Whether copies run beside compute.
    pub overlap: Overlap,
    /// Where KV that is not on the device is attended.
    pub host_attention: HostAttention,
    /// Whether the host's weights are pinned.
    pub pinning: Pinning,
}

impl Policy {
    /// Sequences of a block.
    pub fn block(&self) -> u32 {
        self.batch_size * self.num_batches
    }

    /// Bytes of an element of each kind.
    pub fn bytes(&self) -> ElementBytes {
        ElementBytes { weight: self.weights.bytes(), kv: self.cache.bytes(), ..ElementBytes::BF16 }
    }
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// The model.
    pub dims: Dims,
    /// The requests.
    pub lengths: Lengths,
    /// How it is run.
    pub policy: Policy,
    /// Machines of one device each, in a pipeline (section 4.4).
    pub devices: u32,
}

impl Case {
    /// Layers that one device has.
    pub fn layers(&self) -> u64 {
        self.dims.layers.div_ceil(u64::from(self.devices))
    }

    /// Sequences of a batch that live on `tier`, of those whose KV is cut by the placement.
    pub fn sequences(&self, tier: Tier) -> u64 {
        self.policy.placement.kv.of(tier, u64::from(self.policy.batch_size))
    }
}
