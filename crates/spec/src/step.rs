//! A step: what to compute next, complete in itself.

use crate::{BlockId, Layout, ReplicaId, SeqId, StepId, Tier, Tokens};
use serde::{Deserialize, Serialize};

/// Positions `start..start + len` of a sequence. A decode is a span of length one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Span {
    /// First position.
    pub start: Tokens,
    /// How many.
    pub len: Tokens,
}

impl Span {
    /// The position after the last.
    pub fn end(self) -> Tokens {
        self.start + self.len
    }
}

/// Whether the last position of a chunk yields the next token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Sampling {
    /// Its last row goes through the head, and one token is drawn.
    Sample,
    /// More of the known tokens follow in a later step.
    Skip,
}

/// A run of positions of one sequence to compute in this step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Whose.
    pub seq: SeqId,
    /// Which positions. The tokens there are known when the step runs, if need be from the step before it.
    pub span: Span,
    /// Where the sequence's KV lives.
    pub home: Tier,
    /// Where its attention is computed.
    pub attend: Tier,
    /// Blocks of `home` to append to the sequence's table before the chunk runs. In the first chunk after admission
    /// these begin with blocks that already hold the positions before `span.start` (a prefix hit). Layers in several groups have
    /// them number by number (see [`KvGroups::place`](crate::KvGroups::place)).
    pub new_blocks: Vec<BlockId>,
    /// Whether a token is drawn after the last position.
    pub sample: Sampling,
}

/// KV of a sequence changes its home. With the last piece the sequence's table becomes the `to` sides of all its pieces,
/// in order. Until then it stays as it is, and the sequence is in no chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Whose.
    pub seq: SeqId,
    /// Where it lives.
    pub from: Tier,
    /// Where it will live.
    pub to: Tier,
    /// Pairs (block of `from`, block of `to`) to copy.
    pub blocks: Vec<(BlockId, BlockId)>,
    /// Whether more pieces of the same sequence follow in later steps.
    pub piece: Piece,
}

/// Full blocks that are kept for others to begin with, and copied between tiers: down when the room above is needed, up
/// when somebody begins with them. They belong to no table yet. What comes from the drive or goes there may be lost (see
/// [`Done::lost`](crate::Done::lost)): nobody uses it before the step is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Where they are read.
    pub from: Tier,
    /// Where they are written.
    pub to: Tier,
    /// Pairs (block of `from`, block of `to`) to copy.
    pub blocks: Vec<(BlockId, BlockId)>,
}

/// Long moves go in pieces, so that they do not stretch one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Piece {
    /// More pieces follow: the sequence rests until the last.
    More,
    /// The table is complete in its new home after this piece.
    Last,
}

/// The order in which a step is lowered to nodes; one file of `policy::pipeline` each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Pipeline {
    /// Layer by layer, batch by batch, weights resident or streamed through two slots.
    Plain,
    /// Like plain, but each batch goes through a whole layer at once, and KV and activations may live on other tiers.
    Zigzag,
    /// One batch after the other through all layers, each with loads of its own that nothing overlaps: the baseline.
    Row,
}

/// What to do next. Releases come first, then moves, then chunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Its name, and its place in the order of all steps.
    pub id: StepId,
    /// Which copy of the model runs it.
    pub replica: ReplicaId,
    /// How that copy is cut. Another layout than that of the step before is a re-shard.
    pub layout: Layout,
    /// How it is lowered.
    pub pipeline: Pipeline,
    /// Chunks, in batches that are computed apart. A sequence is in at most one of them.
    pub batches: Vec<Vec<Chunk>>,
    /// KV that changes its tier.
    pub moves: Vec<Move>,
    /// Blocks kept for reuse that are copied between tiers, beside the moves.
    #[serde(default)]
    pub kept: Vec<Kept>,
    /// Sequences whose table is dropped: finished, cancelled, or preempted (a later chunk then begins anew). All since the
    /// step before: while nothing is left to run, nobody is told of the last ones.
    pub release: Vec<SeqId>,
}

impl Step {
    /// All chunks, in order.
    pub fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.batches.iter().flatten()
    }
}
