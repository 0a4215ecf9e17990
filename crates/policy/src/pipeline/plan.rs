//! What a pipeline must know beside the shape: how many layers, and what is not on the device.

use spec::{Layout, Shape, Tier};

/// How weights on the drive reach the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskPath {
    /// Straight: the device is the CPU, or reads the drive itself.
    Direct,
    /// Into a slot on the host, and up from there together with what lives on the host.
    ThroughHost,
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

/// What pipelines lower by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Layers of the model.
    pub layers: u16,
    /// How it is cut.
    pub layout: Layout,
    /// Where its weights are.
    pub weights: Weights,
    /// Rows that activation buffers have room for, in each batch.
    pub max_tokens: u32,
    /// Batches that activation buffers have room for.
    pub max_batches: u16,
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
    #[error("the plain pipeline attends on the device over KV that lives there, found work for the {tier:?}")]
    Attention {
        /// Where the step wants it.
        tier: Tier,
    },
}

impl Plan {
    /// Everything on one device.
    pub fn resident(layers: u16, max_tokens: u32) -> Self {
        Self { layers, layout: Layout::SINGLE, weights: Weights::Resident, max_tokens, max_batches: 1 }
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
        let away = |tier: &Tier| {
            shape.loads.iter().any(|load| load.context[*tier] + load.kv_in[*tier] + load.kv_out[*tier] > 0)
        };
        [Tier::Host, Tier::Disk].into_iter().find(away).map_or(Ok(()), |tier| Err(Excess::Attention { tier }))
    }
}
