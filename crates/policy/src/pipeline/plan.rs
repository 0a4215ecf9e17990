//! What a pipeline must know beside the shape: how many layers, what is not on the device, and what slots have room for.

use super::delegation::Delegation;
use spec::{ByTier, Layout, Load, Pipeline, Shape, Split, Tier};

/// How what lives on the drive reaches the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskPath {
    /// Straight: the device is the CPU, or reads the drive itself.
    Direct,
    /// Into a slot on the host, and up from there together with what lives on the host.
    ThroughHost,
}

impl DiskPath {
    /// KV positions that a copy of a batch's KV carries between two tiers, for each layer.
    pub fn kv_copied(self, load: &Load, from: Tier, to: Tier) -> u64 {
        let (direct, through) = match self {
            DiskPath::Direct => (1, 0),
            DiskPath::ThroughHost => (0, 1),
        };
        match (from, to) {
            (Tier::Disk, Tier::Host) => load.kv_in.disk - direct * load.disk_up,
            (Tier::Disk, Tier::Device) => direct * load.disk_up,
            (Tier::Host, Tier::Device) => load.kv_in.host + through * load.disk_up,
            (Tier::Device, Tier::Host) => load.kv_out.host + through * load.disk_down,
            (Tier::Device, Tier::Disk) => direct * load.disk_down,
            (Tier::Host, Tier::Disk) => load.kv_out.disk - direct * load.disk_down,
            _ => 0,
        }
    }

    /// Those of them that decodes attend, which may choose among their values; on the way to attention alone.
    pub fn decode_copied(self, load: &Load, from: Tier, to: Tier) -> u64 {
        let decodes = Load {
            kv_in: load.decode_in,
            disk_up: load.decode_up,
            kv_out: ByTier::default(),
            disk_down: 0,
            ..*load
        };
        self.kv_copied(&decodes, from, to)
    }
}

/// What of the values that decodes attend away from their home is brought to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Values {
    /// All, with the keys.
    #[default]
    All,
    /// Those that some query chose, once its keys were scored (FlexGen, section 5).
    Chosen,
}

/// Where the panels are that a layer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// All on the device.
    Resident,
    /// Those of every layer (and of the head) that are not on the device go through two slots, layer by layer.
    Streamed {
        /// Whether some live on the host.
        host: Share,
        /// Whether some live on the drive, and how they come.
        disk: Option<DiskPath>,
    },
}

/// Whether there is any of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// None.
    None,
    /// Some.
    Some,
}

/// What of a rank can go on at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// Every lane beside every other.
    #[default]
    Lanes,
    /// As that, but the host attends with the cores that the device computes with: one of them at a time.
    SharedCores,
    /// Nothing: each node waits for the one before it, on whichever lane. What overlapping brings can be measured, and seen.
    Nothing,
}

/// What pipelines lower by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Layers of the model.
    pub layers: u16,
    /// How it is cut.
    pub layout: Layout,
    /// Where its weights are.
    pub weights: Weights,
    /// Which steps compute with the host's panels there, and copy none of them.
    pub delegation: Delegation,
    /// What can go on at the same time.
    pub overlap: Overlap,
    /// Rows that activation buffers have room for, in each batch.
    pub max_tokens: u32,
    /// Batches that a step may have; unless activations leave the device between layers, each has buffers of its own.
    pub max_batches: u16,
    /// Where activations are between layers, in shares of a step's batches (zig-zag only).
    pub hidden: Split,
    /// How KV and activations on the drive come to the device.
    pub disk_path: DiskPath,
    /// Which values are brought to decodes.
    pub values: Values,
    /// KV positions of one layer that a KV slot has room for: what one batch attends away from its home.
    pub kv_slot_tokens: u64,
}

/// Why a shape does not fit a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Excess {
    /// More rows than a buffer has.
    #[error("a batch has {found} tokens, and there is room for {room}: lower max-num-batched-tokens")]
    Tokens {
        /// Rows of the largest batch.
        found: u32,
        /// Rows that fit.
        room: u32,
    },
    /// More batches than there are buffers for.
    #[error("a step has {found} batches, and there is room for {room}")]
    Batches {
        /// Batches of the step.
        found: usize,
        /// Batches that fit.
        room: u16,
    },
    /// Another layout than the weights are cut for.
    #[error("the step is laid out as {found:?}, and the weights as {plan:?}: re-sharding is not built yet")]
    Layout {
        /// Of the step.
        found: Layout,
        /// Of the plan.
        plan: Layout,
    },
    /// Attention where this pipeline cannot have it.
    #[error(
        "the {pipeline:?} pipeline cannot attend there or over KV that lives there: found work for the {tier:?}"
    )]
    Attention {
        /// How the step is lowered.
        pipeline: Pipeline,
        /// Where the step wants it.
        tier: Tier,
    },
    /// More KV on its way to attention than a slot holds.
    #[error("a batch attends {found} KV positions away from their home, and a slot has room for {room}")]
    KvSlot {
        /// Positions of the largest batch.
        found: u64,
        /// Positions that fit.
        room: u64,
    },
    /// Activations that leave the device would be overwritten before the next stage takes them.
    #[error("activations off the device go with one pipeline stage only, found {stages}")]
    Stages {
        /// How many there are.
        stages: u16,
    },
}

impl Plan {
    /// Everything on one device.
    pub fn resident(layers: u16, max_tokens: u32) -> Self {
        Self {
            layers,
            layout: Layout::SINGLE,
            weights: Weights::Resident,
            delegation: Delegation::Never,
            overlap: Overlap::Lanes,
            max_tokens,
            max_batches: 1,
            hidden: Split::RESIDENT,
            disk_path: DiskPath::Direct,
            values: Values::All,
            kv_slot_tokens: 0,
        }
    }

    /// Whether a step computes with the host's panels there.
    pub fn delegates(&self, shape: &Shape) -> bool {
        self.delegation.takes(shape)
    }

    /// Whether there is room for a step of this shape.
    ///
    /// # Errors
    /// The first thing that there is too little of.
    pub fn fits(&self, shape: &Shape) -> Result<(), Excess> {
        let found = shape.loads.iter().map(|load| load.tokens).max().unwrap_or(0);
        if found > self.max_tokens {
            return Err(Excess::Tokens { found, room: self.max_tokens });
        }
        if shape.loads.len() > usize::from(self.max_batches) {
            return Err(Excess::Batches { found: shape.loads.len(), room: self.max_batches });
        }
        if shape.layout != self.layout {
            return Err(Excess::Layout { found: shape.layout, plan: self.layout });
        }
        let stages = self.layout.pp;
        if shape.pipeline == Pipeline::Zigzag && self.hidden != Split::RESIDENT && stages > 1 {
            return Err(Excess::Stages { stages });
        }
        attention(shape)?;
        let found = shape.loads.iter().map(slot_tokens).max().unwrap_or(0);
        if found > self.kv_slot_tokens {
            return Err(Excess::KvSlot { found, room: self.kv_slot_tokens });
        }
        Ok(())
    }
}

/// Whether the pipeline can attend where the shape wants it.
fn attention(shape: &Shape) -> Result<(), Excess> {
    let pipeline = shape.pipeline;
    let away = |load: &Load, tier| load.kv_in[tier] + load.kv_out[tier] > 0;
    let wrong = |tier: &Tier| {
        shape.loads.iter().any(|load| match (pipeline, *tier) {
            (Pipeline::Plain, Tier::Host | Tier::Disk) => load.context[*tier] > 0 || away(load, *tier),
            (_, Tier::Device) => away(load, Tier::Device),
            (_, Tier::Host) => false,
            (_, Tier::Disk) => load.context.disk > 0,
        })
    };
    Tier::ALL.into_iter().find(wrong).map_or(Ok(()), |tier| Err(Excess::Attention { pipeline, tier }))
}

/// KV positions that a batch needs room for in a slot, on the device or on the host.
fn slot_tokens(load: &Load) -> u64 {
    let device = load.kv_in.host + load.kv_out.host + load.disk_up + load.disk_down;
    device.max(load.kv_in.disk + load.kv_out.disk)
}
