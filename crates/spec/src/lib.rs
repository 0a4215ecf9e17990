//! Plain data that every side agrees on: who computes what, where, and in which order.
//!
//! `policy` decides and answers with a [`Step`]; a step in counts is a [`Shape`]; a shape lowered is a [`Program`]; the
//! engine or the simulator runs it and answers with a [`Done`]. Nothing here computes, waits or owns memory.
#![forbid(unsafe_code)]

mod done;
mod groups;
mod hardware;
mod heads;
mod id;
mod lanes;
pub mod model;
mod op;
mod place;
mod program;
mod request;
pub mod rope;
mod shape;
mod step;
mod unit;

pub use done::{Done, Full, Outcome, Produced};
pub use groups::KvGroups;
pub use hardware::{DeviceSpec, DiskSpec, HardwareSpec, HostSpec, LinkSpec};
pub use heads::head_dim_supported;
pub use id::{BlockHash, BlockId, RankId, ReplicaId, SeqId, StepId};
pub use lanes::LaneSpan;
pub use model::ModelSpec;
pub use op::{Lane, Op, Part, Tensor};
pub use place::{ByTier, Layout, Placement, Split, SplitError, Tier};
pub use program::{Access, Buffer, Node, Program, Ranks, Touch};
pub use request::{PrefixUse, Request};
pub use rope::{Rope, RopeScaling, rope_frequencies};
pub use shape::{Load, MoveLoad, Shape};
pub use step::{Chunk, Kept, Move, Piece, Pipeline, Sampling, Span, Step};
pub use unit::{BLOCK_TOKENS, Bytes, Nanos, Tokens};
