//! What a node does, and the lane that runs it.

use crate::{RankId, Tier};
use serde::Serialize;

/// Weights that are loaded together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// The embedding (and positions, where learned).
    Embed,
    /// Norm, QKV and output projection of a layer.
    Attention(u16),
    /// Norm and feed-forward of a layer.
    Mlp(u16),
    /// The final norm and the head.
    Head,
}

/// An activation that travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tensor {
    /// The residual stream: [tokens, hidden].
    Hidden,
    /// Queries, and the new keys and values: [tokens, (heads + 2 kv_heads) head_dim].
    Qkv,
    /// Attention's output: [tokens, heads head_dim].
    Attended,
    /// The head's output: [samples, vocab].
    Logits,
    /// The tokens drawn from it: [samples].
    Tokens,
}

/// A piece of the forward pass, or a copy. `batch` indexes the step's batches, `layer` the model's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Token ids to the residual stream.
    Embed {
        /// Of which batch.
        batch: u16,
    },
    /// Norm, QKV projection, rotary embedding, and the new K and V into their blocks (if homed where it runs) or into the
    /// KV slot (if attended there and homed elsewhere).
    Qkv {
        /// Of which layer.
        layer: u16,
        /// Of which batch.
        batch: u16,
    },
    /// Attention of the chunks that attend on this tier. On the host it first takes the new K and V from the projected
    /// activation into their blocks, or into the KV slot.
    Attend {
        /// Of which layer.
        layer: u16,
        /// Of which batch.
        batch: u16,
        /// Where.
        on: Tier,
    },
    /// Sparse attention of decodes whose values are away from this tier, first half: which values count, by the keys, which
    /// are here. On the host it first takes the new K and V into the KV slot.
    Choose {
        /// Of which layer.
        layer: u16,
        /// Of which batch.
        batch: u16,
        /// Where they attend.
        on: Tier,
    },
    /// Output projection, added to the residual stream.
    OutProj {
        /// Of which layer.
        layer: u16,
        /// Of which batch.
        batch: u16,
    },
    /// Norm and feed-forward, added to the residual stream; in the last layer of the rows that sample, unless others are scored.
    Mlp {
        /// Of which layer.
        layer: u16,
        /// Of which batch.
        batch: u16,
    },
    /// Final norm and head over the rows that sample.
    Head {
        /// Of which batch.
        batch: u16,
    },
    /// One token for each of those rows.
    Sample {
        /// Of which batch.
        batch: u16,
    },
    /// The panels of a part that live on `from`, into a slot of `to`. The slot is the node's `Weights` buffer.
    LoadWeights {
        /// Which weights.
        part: Part,
        /// Where they are.
        from: Tier,
        /// Where they are needed.
        to: Tier,
    },
    /// One layer of the KV of the step's moves between two tiers.
    MoveKv {
        /// Of which layer.
        layer: u16,
        /// Where it is.
        from: Tier,
        /// Where it goes.
        to: Tier,
    },
    /// One layer of a batch's KV to where it is attended (`from` its home), or of its new KV to its home (`to`). Where values
    /// are chosen, of decodes the keys alone go there.
    CopyKv {
        /// Of which layer.
        layer: u16,
        /// Of which batch.
        batch: u16,
        /// Where it is.
        from: Tier,
        /// Where it goes.
        to: Tier,
    },
    /// One layer of the values that were chosen, to where they are attended. How many that are is known when it runs: there
    /// is room for all.
    CopyChosen {
        /// Of which layer.
        layer: u16,
        /// Of which batch.
        batch: u16,
        /// Where they are.
        from: Tier,
        /// Where they go.
        to: Tier,
    },
    /// A batch's activation between two tiers.
    MoveHidden {
        /// Which.
        what: Tensor,
        /// Of which batch.
        batch: u16,
        /// Where it is.
        from: Tier,
        /// Where it goes.
        to: Tier,
    },
    /// Sum over the ranks that the node spans.
    AllReduce {
        /// Which.
        what: Tensor,
        /// Of which batch.
        batch: u16,
    },
    /// From the ranks of the node to as many others.
    SendRecv {
        /// Which.
        what: Tensor,
        /// Of which batch.
        batch: u16,
        /// The first of those that receive.
        to: RankId,
    },
}

impl Op {
    /// What each kind is called, by [`Op::kind`].
    pub const KINDS: [&'static str; 15] = [
        "embed",
        "qkv",
        "attend",
        "out",
        "mlp",
        "head",
        "sample",
        "load weights",
        "move kv",
        "copy kv",
        "move hidden",
        "all-reduce",
        "send",
        "choose",
        "copy chosen",
    ];

    /// Which kind of op it is, dense from 0.
    pub fn kind(&self) -> usize {
        match self {
            Op::Embed { .. } => 0,
            Op::Qkv { .. } => 1,
            Op::Attend { .. } => 2,
            Op::OutProj { .. } => 3,
            Op::Mlp { .. } => 4,
            Op::Head { .. } => 5,
            Op::Sample { .. } => 6,
            Op::LoadWeights { .. } => 7,
            Op::MoveKv { .. } => 8,
            Op::CopyKv { .. } => 9,
            Op::MoveHidden { .. } => 10,
            Op::AllReduce { .. } => 11,
            Op::SendRecv { .. } => 12,
            Op::Choose { .. } => 13,
            Op::CopyChosen { .. } => 14,
        }
    }
}

/// What runs nodes one after another. Every rank has one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Lane {
    /// The device's compute.
    Device,
    /// The host's compute.
    Host,
    /// Copies from host to device.
    Up,
    /// Copies from device to host.
    Down,
    /// Reads from the drive.
    DiskRead,
    /// Writes to the drive.
    DiskWrite,
    /// From other ranks.
    PeerIn,
    /// To other ranks.
    PeerOut,
}

impl Lane {
    /// How many there are.
    pub const COUNT: usize = 8;

    /// All of them; `ALL[i].index() == i`.
    pub const ALL: [Lane; Self::COUNT] = [
        Lane::Device,
        Lane::Host,
        Lane::Up,
        Lane::Down,
        Lane::DiskRead,
        Lane::DiskWrite,
        Lane::PeerIn,
        Lane::PeerOut,
    ];

    /// Dense from 0.
    pub fn index(self) -> usize {
        self as usize
    }

    /// What it is called in pictures and files.
    pub fn name(self) -> &'static str {
        match self {
            Lane::Device => "Device",
            Lane::Host => "Host",
            Lane::Up => "Up",
            Lane::Down => "Down",
            Lane::DiskRead => "DiskRead",
            Lane::DiskWrite => "DiskWrite",
            Lane::PeerIn => "PeerIn",
            Lane::PeerOut => "PeerOut",
        }
    }

    /// The lane of a copy between two tiers.
    pub fn of_copy(from: Tier, to: Tier) -> Lane {
        match (from, to) {
            (Tier::Disk, _) => Lane::DiskRead,
            (_, Tier::Disk) => Lane::DiskWrite,
            (Tier::Host, _) => Lane::Up,
            (Tier::Device, _) => Lane::Down,
        }
    }
}
