//! The pieces that every pipeline is made of: embed, a layer's two halves, the head, loads of weights and moves. A pipeline
//! is an order of these. Attention with its copies between tiers is in `attention`.

use super::plan::{DiskPath, Plan, Share, Weights};
use spec::Access::{Read, ReadPast, Write, WritePast};
use spec::{Access, Buffer, Lane, Layout, Load, Op, Part, Program, RankId, Ranks, Shape, Tensor, Tier};
use std::ops::Range;

/// Slots of each kind of weights: while one is read the other is written.
pub const SLOTS: u16 = 2;

/// Turns that batches take where they share memory: one comes in, one is computed, one goes out.
pub const TURNS: u16 = 3;

/// Where the slots begin that the drive is read into directly: after two for attention, two for the MLP, one for the head.
const DIRECT: u16 = 2 * SLOTS + 1;

/// The slot that a part is read into straight from the drive.
pub fn direct_slot(part: Part) -> u16 {
    DIRECT + up_slot(part)
}

/// The slot that a part is copied into from the host, and that of the host that it is read into on its way there.
pub fn up_slot(part: Part) -> u16 {
    match part {
        Part::Attention(layer) => layer % SLOTS,
        Part::Mlp(layer) => SLOTS + layer % SLOTS,
        Part::Embed | Part::Head => 2 * SLOTS,
    }
}

/// Slots that a part is read from: at most one for each tier that it comes from.
#[derive(Clone, Copy)]
pub(super) struct Slots {
    list: [(Buffer, Access); 2],
    len: usize,
}

/// What batches call their activation buffers on the device.
#[derive(Clone, Copy)]
pub(super) enum Names {
    /// Each has its own.
    Own,
    /// All the same, one batch after the other.
    One,
    /// Those from this one on take turns in a few more.
    TurnsFrom(u16),
}

/// When loads and copies of KV may begin.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Ahead {
    /// As soon as their slot is free.
    Free,
    /// When all that was computed before them is done.
    LockStep,
}

/// A program in the making.
pub(super) struct Pieces<'a> {
    pub(super) program: Program,
    pub(super) plan: &'a Plan,
    pub(super) shape: &'a Shape,
    pub(super) batches: u16,
    pub(super) ranks: Ranks,
    /// Layers of batches that had KV to copy: they take turns in the KV slots.
    pub(super) kv_turns: u16,
    names: Names,
    ahead: Ahead,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(shape: &'a Shape, plan: &'a Plan, names: Names, ahead: Ahead) -> Self {
        let batches = shape.loads.len() as u16;
        let nodes = usize::from(plan.layers) * (usize::from(batches) * 6 + 4 + shape.moves.len()) + 64;
        let program = Program::with_capacity(plan.layout, nodes);
        let ranks = Ranks::of_stage(plan.layout, 0);
        Self { program, plan, shape, batches, ranks, kv_turns: 0, names, ahead }
    }

    /// From now on, nodes run on this pipeline stage. Its layers.
    pub(super) fn stage(&mut self, stage: u16) -> Range<u16> {
        let Layout { pp, .. } = self.plan.layout;
        let layers = |stage: u16| (u32::from(self.plan.layers) * u32::from(stage) / u32::from(pp)) as u16;
        self.ranks = Ranks::of_stage(self.plan.layout, stage);
        layers(stage)..layers(stage + 1)
    }

    pub(super) fn load_of(&self, batch: u16) -> &'a Load {
        &self.shape.loads[usize::from(batch)]
    }

    pub(super) fn embed(&mut self, batch: u16) {
        self.push(Op::Embed { batch }, [(Buffer::Sampled, ReadPast), (self.hidden(batch), Write)]);
    }

    /// One layer of all KV that this step moves. What arrives is read by attention after it, unless it is from the drive: that
    /// is for later steps.
    pub(super) fn moves(&mut self, layer: u16) {
        for m in &self.shape.moves {
            let (from, to) = (m.from, m.to);
            let touches = [
                Some((Buffer::Kv { layer, tier: from }, ReadPast)),
                Some((Buffer::Kv { layer, tier: to }, WritePast)),
                (from != Tier::Disk).then_some((Buffer::Moved { layer, tier: to }, Write)),
            ];
            self.copy(Op::MoveKv { layer, from, to }, from, to, touches.into_iter().flatten());
        }
    }

    /// A read of what moves bring to a tier, if they do.
    pub(super) fn arrived(&self, layer: u16, tier: Tier) -> Option<(Buffer, Access)> {
        let arrives = self.shape.moves.iter().any(|m| m.to == tier && m.from != Tier::Disk);
        arrives.then_some((Buffer::Moved { layer, tier }, Read))
    }

    pub(super) fn mlp(&mut self, layer: u16, batch: u16, slots: Slots) {
        // After the last layer prompts are scored, through the logits.
        let scores = self.logits_are_shared() && layer + 1 == self.plan.layers;
        let touches = [Some((self.hidden(batch), Write)), scores.then(|| (self.logits(batch), Write))];
        self.push(Op::Mlp { layer, batch }, touches.into_iter().flatten().chain(slots.reads()));
        self.all_reduce(batch);
    }

    /// Batches that draw tokens in this step.
    pub(super) fn sampling(&self) -> Vec<u16> {
        (0..self.batches).filter(|&batch| self.load_of(batch).samples > 0).collect()
    }

    pub(super) fn load_head(&mut self, batch: u16) -> Slots {
        self.load(Part::Head, batch)
    }

    pub(super) fn head(&mut self, batch: u16, slots: Slots) {
        let logits = self.logits(batch);
        let head = [(self.hidden(batch), Read), (logits, Write)];
        self.push(Op::Head { batch }, head.into_iter().chain(slots.reads()));
        self.push(Op::Sample { batch }, [(logits, Write), (Buffer::Sampled, WritePast)]);
        self.return_tokens(batch, logits);
    }

    /// Head and sampling run on one lane, one after the other: batches share their logits, unless these travel.
    fn logits_are_shared(&self) -> bool {
        self.plan.layout.pp == 1
    }

    fn logits(&self, batch: u16) -> Buffer {
        Buffer::Logits { batch: if self.logits_are_shared() { 0 } else { self.name(batch) } }
    }

    /// The first stage embeds what the last one drew.
    fn return_tokens(&mut self, batch: u16, logits: Buffer) {
        if self.plan.layout.pp > 1 {
            let op = Op::SendRecv { what: Tensor::Tokens, batch, to: RankId(0) };
            let touches = [(logits, Read), (Buffer::Sampled, WritePast)];
            self.program.push(op, Lane::PeerOut, self.ranks, touches);
        }
    }

    pub(super) fn load_attention(&mut self, layer: u16, batch: u16) -> Slots {
        self.load(Part::Attention(layer), batch)
    }

    pub(super) fn load_mlp(&mut self, layer: u16, batch: u16) -> Slots {
        self.load(Part::Mlp(layer), batch)
    }

    /// Loads what of a part is not resident, and names the slots that hold it then. `batch` is the first that reads it.
    fn load(&mut self, part: Part, batch: u16) -> Slots {
        let slot = up_slot(part);
        let mut slots = Slots { list: [(Buffer::Sampled, Read); 2], len: 0 };
        let Weights::Streamed { host, disk } = self.plan.weights else { return slots };
        let after = self.after(batch);
        let staged =
            (disk == Some(DiskPath::ThroughHost)).then_some(Buffer::Weights { slot, tier: Tier::Host });
        let copied = host == Share::Some && !self.plan.delegates(self.shape);
        let mut load = |from, to, touches: [Option<(Buffer, Access)>; 3]| {
            self.copy(Op::LoadWeights { part, from, to }, from, to, touches.into_iter().flatten());
        };
        if let Some(staged) = staged {
            load(Tier::Disk, Tier::Host, [Some((staged, Write)), None, after]);
        }
        if copied || staged.is_some() {
            let up = slots.add(Buffer::Weights { slot, tier: Tier::Device });
            load(Tier::Host, Tier::Device, [Some((up, Write)), staged.map(|buffer| (buffer, Read)), after]);
        }
        if disk == Some(DiskPath::Direct) {
            let read = slots.add(Buffer::Weights { slot: direct_slot(part), tier: Tier::Device });
            load(Tier::Disk, Tier::Device, [Some((read, Write)), None, after]);
        }
        slots
    }

    /// What holds back a load for `batch`, where it must not run ahead of what is computed.
    pub(super) fn after(&self, batch: u16) -> Option<(Buffer, Access)> {
        (self.ahead == Ahead::LockStep).then_some((self.hidden(batch), Read))
    }

    pub(super) fn all_reduce(&mut self, batch: u16) {
        if self.plan.layout.tp > 1 {
            let op = Op::AllReduce { what: Tensor::Hidden, batch };
            self.push(op, [(self.hidden(batch), Write)]);
        }
    }

    pub(super) fn send(&mut self, batch: u16) {
        let op = Op::SendRecv { what: Tensor::Hidden, batch, to: self.ranks.end };
        self.program.push(op, Lane::PeerOut, self.ranks, [(self.hidden(batch), Write)]);
    }

    /// A node on the device.
    pub(super) fn push(&mut self, op: Op, touches: impl IntoIterator<Item = (Buffer, Access)>) {
        self.program.push(op, Lane::Device, self.ranks, touches);
    }

    /// A node on the lane between two tiers.
    pub(super) fn copy(
        &mut self,
        op: Op,
        from: Tier,
        to: Tier,
        touches: impl IntoIterator<Item = (Buffer, Access)>,
    ) {
        self.program.push(op, Lane::of_copy(from, to), self.ranks, touches);
    }

    /// What a batch's activation buffers are called.
    pub(super) fn name(&self, batch: u16) -> u16 {
        match self.names {
            Names::Own => batch,
            Names::One => 0,
            Names::TurnsFrom(first) if batch >= first => first + (batch - first) % TURNS,
            Names::TurnsFrom(_) => batch,
        }
    }

    pub(super) fn hidden(&self, batch: u16) -> Buffer {
        Buffer::Hidden { batch: self.name(batch), tier: Tier::Device }
    }
}

impl Slots {
    fn add(&mut self, buffer: Buffer) -> Buffer {
        self.list[self.len] = (buffer, Read);
        self.len += 1;
        buffer
    }

    pub(super) fn reads(self) -> impl Iterator<Item = (Buffer, Access)> {
        self.list.into_iter().take(self.len)
    }
}
