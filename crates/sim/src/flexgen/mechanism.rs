//! What a runtime does beside its schedule: terms, each with two sides, FlexGen's and ours.

use super::case::{HostAttention, Policy};

/// In what pieces weights are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// Whole tensors, by the middle of their cumulative size (FlexGen's `init_weight_list`).
    WholeTensors,
    /// Any share of each.
    Slices,
}

/// What orders copies and compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// All streams and copy threads are waited for after every (layer, batch): algorithm 1's `synchronize`.
    Barriers,
    /// A node waits for the buffers that it touches.
    Buffers,
}

/// What memory copies go to and from on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// KV is never pinned, weights where [`super::Pinning`] says so; what is not goes up through a pinned relay that the
    /// runtime fills (FlexGen's `general_copy`).
    Pageable,
    /// The same, but the driver is left to stage what is not pinned (`Tensor.to` of Accelerate's hooks).
    Staged,
    /// Pools that are pinned once.
    Pinned,
}

/// How 4-bit numbers are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expand {
    /// A pass of its own writes them in half precision, once for every batch.
    Pass,
    /// Inside the product or the attention that reads them.
    Fused,
}

/// Where a compressed cache can be attended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantised {
    /// Only on the device: CPU compute is off when the cache is compressed (the slides).
    DeviceOnly,
    /// On the CPU too.
    Anywhere,
}

/// How attention and the head are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compute {
    /// Eager: scores in memory, no causal saving, logits of every position; on the CPU over a copy in single precision.
    Eager,
    /// Scores stay on chip, logits of the last position only; on the CPU at the speed of memory.
    Fused,
}

/// The order in which sequences enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// All together: prefill of a whole block, then all its decodes, with KV reserved for the longest.
    ZigZag,
    /// Staggered: each step computes some prompts beside the decodes of all others (appendix A.2, figure 6).
    Diagonal,
}

/// What fetches weights that are not on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// The loop itself, a sub-layer at a time.
    Loop,
    /// A hook of the interpreter before each module that has weights, which gives them up after it (Accelerate's
    /// `AlignDevicesHook`, DeepSpeed's `fetch_sub_module`).
    Hooks,
}

/// All terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mechanism {
    /// In what pieces weights are placed.
    pub grain: Grain,
    /// What orders copies and compute.
    pub order: Order,
    /// What memory copies use.
    pub copies: Copies,
    /// How 4-bit numbers are used.
    pub expand: Expand,
    /// Where a compressed cache can be attended.
    pub quantised: Quantised,
    /// How attention and the head are computed.
    pub compute: Compute,
    /// The order in which sequences enter.
    pub block: Block,
    /// What fetches weights.
    pub fetch: Fetch,
}

/// A gain: what changes, and the mechanism once it has.
pub type Step = (&'static str, Mechanism);

impl Mechanism {
    /// FlexGen as released.
    pub const FLEXGEN: Mechanism = Mechanism {
        grain: Grain::WholeTensors,
        order: Order::Barriers,
        copies: Copies::Pageable,
        expand: Expand::Pass,
        quantised: Quantised::DeviceOnly,
        compute: Compute::Eager,
        block: Block::ZigZag,
        fetch: Fetch::Loop,
    };

    /// The runtimes that FlexGen is compared with: layers in eager PyTorch, weights fetched by hooks.
    pub const HOOKS: Mechanism =
        Mechanism { copies: Copies::Staged, fetch: Fetch::Hooks, ..Mechanism::FLEXGEN };

    /// Ballast.
    pub const BALLAST: Mechanism = Mechanism {
        grain: Grain::Slices,
        order: Order::Buffers,
        copies: Copies::Pinned,
        expand: Expand::Fused,
        quantised: Quantised::Anywhere,
        compute: Compute::Fused,
        block: Block::Diagonal,
        fetch: Fetch::Loop,
    };

    /// From FlexGen to Ballast, one change after the other, each kept.
    pub fn gains() -> [Step; 8] {
        let flexgen = Mechanism::FLEXGEN;
        let slices = Mechanism { grain: Grain::Slices, ..flexgen };
        let pinned = Mechanism { copies: Copies::Pinned, ..slices };
        let fused = Mechanism { expand: Expand::Fused, ..pinned };
        let attended = Mechanism { quantised: Quantised::Anywhere, ..fused };
        let compute = Mechanism { compute: Compute::Fused, ..attended };
        let buffers = Mechanism { order: Order::Buffers, ..compute };
        [
            ("FlexGen as released", flexgen),
            ("+ placement by slices", slices),
            ("+ pinned pools", pinned),
            ("+ dequantisation in the kernels", fused),
            ("+ 4-bit KV attended on the CPU", attended),
            ("+ attention at memory speed, logits of samples only", compute),
            ("+ overlap by dependencies, no barriers", buffers),
            ("+ diagonal schedule", Mechanism::BALLAST),
        ]
    }

    /// Whether KV off the device is attended where it is, or by the CPU above it.
    pub(super) fn attends_on_host(&self, policy: &Policy) -> bool {
        let can = policy.cache == super::Format::Half || self.quantised == Quantised::Anywhere;
        can && policy.host_attention == HostAttention::On
    }
}
