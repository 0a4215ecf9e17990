//! A program: nodes in the order in which they are submitted, each with the buffers that it touches.
//!
//! Nothing says which node waits for which: `policy::pipeline::waits` derives that from the buffers, for the executor and
//! for the timeline alike.

use crate::{Lane, Layout, Op, RankId, Tier};

/// A name for memory that nodes share. Names are per rank: two nodes conflict only where their ranks overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// The residual stream of a batch; where batches share the memory of one tier in turn, `batch` names the turn.
    Hidden {
        /// Which batch, or which turn.
        batch: u16,
        /// Where.
        tier: Tier,
    },
    /// Queries, new keys and values of a batch.
    Qkv {
        /// Which batch.
        batch: u16,
        /// Where.
        tier: Tier,
    },
    /// Attention's output of a batch.
    Attended {
        /// Which batch.
        batch: u16,
        /// Where.
        tier: Tier,
    },
    /// The head's output of a batch.
    Logits {
        /// Which batch.
        batch: u16,
    },
    /// The newest token of every sequence: written by `Sample`, read by the next step's `Embed`.
    Sampled,
    /// A slot that weights are streamed through.
    Weights {
        /// Which slot.
        slot: u16,
        /// Where.
        tier: Tier,
    },
    /// One layer of all KV blocks of a tier. Batches of one step touch different blocks: use the `past` accesses.
    Kv {
        /// Which layer.
        layer: u16,
        /// Where.
        tier: Tier,
    },
    /// A slot that one layer of a batch's KV passes through on its way to attention and to its home: the context that was
    /// copied there, then the new positions; where values are chosen, keys, then which values count, then these.
    KvSlot {
        /// Which slot.
        slot: u16,
        /// Where.
        tier: Tier,
    },
    /// One layer of what this step's moves bring to a tier.
    Moved {
        /// Which layer.
        layer: u16,
        /// Where.
        tier: Tier,
    },
    /// No memory: the turn that nodes take where one thing is done at a time (see [`Program::in_turn`]).
    Turn,
}

impl Buffer {
    /// Kinds of [`Buffer::key`].
    pub const KINDS: usize = 10;

    /// A dense name: (kind, index within the kind).
    pub fn key(self) -> (usize, usize) {
        let at = |index: u16, tier: Tier| usize::from(index) * 3 + tier as usize;
        match self {
            Buffer::Hidden { batch, tier } => (0, at(batch, tier)),
            Buffer::Qkv { batch, tier } => (1, at(batch, tier)),
            Buffer::Attended { batch, tier } => (2, at(batch, tier)),
            Buffer::Logits { batch } => (3, usize::from(batch)),
            Buffer::Sampled => (4, 0),
            Buffer::Weights { slot, tier } => (5, at(slot, tier)),
            Buffer::Kv { layer, tier } => (6, at(layer, tier)),
            Buffer::KvSlot { slot, tier } => (7, at(slot, tier)),
            Buffer::Moved { layer, tier } => (8, at(layer, tier)),
            Buffer::Turn => (9, 0),
        }
    }
}

/// How a node touches a buffer. Two touches conflict when one of them writes; a `past` touch conflicts with those of
/// earlier programs only, never with those of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Access {
    /// Reads.
    Read,
    /// Writes, or reads and writes.
    Write,
    /// Reads what earlier programs wrote.
    ReadPast,
    /// Writes where no other node of its own program reads or writes.
    WritePast,
}

impl Access {
    /// Whether it writes.
    pub fn writes(self) -> bool {
        matches!(self, Access::Write | Access::WritePast)
    }

    /// Whether it is ordered against earlier programs only.
    pub fn past(self) -> bool {
        matches!(self, Access::ReadPast | Access::WritePast)
    }
}

/// One buffer of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Touch {
    /// Which.
    pub buffer: Buffer,
    /// How.
    pub access: Access,
}

/// A run of ranks, `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ranks {
    /// The first.
    pub start: RankId,
    /// The one after the last.
    pub end: RankId,
}

impl Ranks {
    /// Rank 0 alone.
    pub const FIRST: Ranks = Ranks { start: RankId(0), end: RankId(1) };

    /// The ranks of pipeline stage `stage`.
    pub fn of_stage(layout: Layout, stage: u16) -> Self {
        Self { start: RankId(stage * layout.tp), end: RankId((stage + 1) * layout.tp) }
    }

    /// Whether a rank is in both.
    pub fn overlap(self, other: Ranks) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = RankId> {
        (self.start.0..self.end.0).map(RankId)
    }
}

/// One op, on one lane of each of its ranks. Its touches lie in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// What.
    pub op: Op,
    /// On which lane (see [`Node::places`]).
    pub lane: Lane,
    /// Of which ranks.
    pub ranks: Ranks,
    first_touch: u32,
    touches: u32,
}

impl Node {
    /// The lanes that it occupies, all at once: its own on each of its ranks, and for a send also those that receive.
    pub fn places(&self) -> impl Iterator<Item = (RankId, Lane)> {
        let first = match self.op {
            Op::SendRecv { to, .. } => to.0,
            _ => self.ranks.start.0,
        };
        let len =
            if matches!(self.op, Op::SendRecv { .. }) { self.ranks.end.0 - self.ranks.start.0 } else { 0 };
        let receive = (first..first + len).map(|rank| (RankId(rank), Lane::PeerIn));
        self.ranks.iter().map(|rank| (rank, self.lane)).chain(receive)
    }
}

/// Nodes in order of submission; each lane of each rank runs its own in that order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The cut that ranks refer to.
    pub layout: Layout,
    nodes: Vec<Node>,
    touches: Vec<Touch>,
}

impl Program {
    /// No nodes yet.
    pub fn new(layout: Layout) -> Self {
        Self { layout, nodes: Vec::new(), touches: Vec::new() }
    }

    /// No nodes yet, but room for `nodes`.
    pub fn with_capacity(layout: Layout, nodes: usize) -> Self {
        Self { layout, nodes: Vec::with_capacity(nodes), touches: Vec::with_capacity(nodes * 4) }
    }

    /// Appends a node.
    pub fn push(
        &mut self,
        op: Op,
        lane: Lane,
        ranks: Ranks,
        touches: impl IntoIterator<Item = (Buffer, Access)>,
    ) {
        let first_touch = self.touches.len() as u32;
        self.touches.extend(touches.into_iter().map(|(buffer, access)| Touch { buffer, access }));
        let touches = self.touches.len() as u32 - first_touch;
        self.nodes.push(Node { op, lane, ranks, first_touch, touches });
    }

    /// All nodes, in order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// What a node of this program touches.
    pub fn touches(&self, node: &Node) -> &[Touch] {
        &self.touches[node.first_touch as usize..][..node.touches as usize]
    }

    /// The same nodes in another order: `order[i]` is the old index of the new node `i`.
    ///
    /// # Panics
    /// When `order` is not a permutation.
    pub fn reordered(mut self, order: &[u32]) -> Self {
        let mut seen = vec![false; self.nodes.len()];
        let fresh = |&i: &u32| !std::mem::replace(&mut seen[i as usize], true);
        assert!(order.len() == self.nodes.len() && order.iter().all(fresh), "an order names each node once");
        self.nodes = order.iter().map(|&i| self.nodes[i as usize]).collect();
        self
    }

    /// The same with every node on the lane that `of` says for its own.
    #[must_use]
    pub fn on_lanes(mut self, of: impl Fn(Lane) -> Lane) -> Self {
        self.nodes.iter_mut().for_each(|node| node.lane = of(node.lane));
        self
    }

    /// The same nodes in the same order, each on its own lane, but one at a time: each waits for the one before it, of an
    /// earlier program too.
    #[must_use]
    pub fn in_turn(self) -> Self {
        let mut program = Program::with_capacity(self.layout, self.nodes.len());
        for node in &self.nodes {
            let touches = self.touches(node).iter().map(|touch| (touch.buffer, touch.access));
            let turn = [(Buffer::Turn, Access::Write)];
            program.push(node.op, node.lane, node.ranks, touches.chain(turn));
        }
        program
    }

    /// Which of the device's activation buffers a node works in: that of a batch, or one that batches take in turn.
    pub fn activations(&self, node: &Node) -> Option<u16> {
        self.touches(node).iter().find_map(|touch| match touch.buffer {
            Buffer::Hidden { batch, tier: Tier::Device }
            | Buffer::Qkv { batch, tier: Tier::Device }
            | Buffer::Attended { batch, tier: Tier::Device } => Some(batch),
            _ => None,
        })
    }

    /// The slots that a node reads streamed weights from or loads them into; none where its weights are resident.
    ///
    /// A slot holds what the newest `LoadWeights` before the node, in order of submission, put there.
    pub fn weight_slots(&self, node: &Node) -> impl Iterator<Item = (u16, Tier, Access)> {
        self.touches(node).iter().filter_map(|touch| match touch.buffer {
            Buffer::Weights { slot, tier } => Some((slot, tier, touch.access)),
            _ => None,
        })
    }
}
