//! The plain pipeline: layer by layer, and in each layer batch by batch.
//!
//! With streamed weights each half of a layer has two slots, so that the next layer's copy runs beside this layer's
//! compute, and a load is used by all batches before its slot is written again:
//!
//! ```text
//! Up/DiskRead |A0 M0 A1 M1|A2   |M2 |A3   |M3 |
//! Device      |  |A0 b0 b1|M0 b0 b1|A1 b0 b1|M1 ...      A = attention's weights, M = the MLP's
//! ```

use super::plan::{DiskPath, Plan, Share, Weights};
use spec::Access::{Read, ReadPast, Write, WritePast};
use spec::{Access, Buffer, Lane, Layout, Op, Part, Program, RankId, Ranks, Shape, Tensor, Tier};

/// Slots of each kind: while one is read the other is written.
const SLOTS: u16 = 2;

/// Where the slots begin that the drive is read into directly: after two for attention, two for the MLP, one for the head.
const DIRECT: u16 = 2 * SLOTS + 1;

/// Lowers a shape; see the module.
pub(super) fn lower(shape: &Shape, plan: &Plan) -> Program {
    let batches = shape.loads.len() as u16;
    let nodes = usize::from(plan.layers) * (usize::from(batches) * 6 + 4 + shape.moves.len()) + 64;
    let program = Program::with_capacity(plan.layout, nodes);
    let mut plain = Plain { program, plan, shape, batches, ranks: Ranks::of_stage(plan.layout, 0) };
    (0..plan.layout.pp).for_each(|stage| plain.stage(stage));
    plain.program
}

/// Slots that a part is read from: at most one for each tier that it comes from.
#[derive(Clone, Copy)]
struct Slots {
    list: [(Buffer, Access); 2],
    len: usize,
}

struct Plain<'a> {
    program: Program,
    plan: &'a Plan,
    shape: &'a Shape,
    batches: u16,
    ranks: Ranks,
}

impl Plain<'_> {
    fn stage(&mut self, stage: u16) {
        let Layout { pp, .. } = self.plan.layout;
        let layers = |stage: u16| (u32::from(self.plan.layers) * u32::from(stage) / u32::from(pp)) as u16;
        let (first, end) = (layers(stage), layers(stage + 1));
        self.ranks = Ranks::of_stage(self.plan.layout, stage);
        (0..self.batches).filter(|_| stage == 0).for_each(|batch| self.embed(batch));
        (first..end).for_each(|layer| self.layer(layer));
        match stage + 1 == pp {
            true => self.head(),
            false => (0..self.batches).for_each(|batch| self.send(batch)),
        }
    }

    fn embed(&mut self, batch: u16) {
        self.push(Op::Embed { batch }, [(Buffer::Sampled, ReadPast), (hidden(batch), Write)]);
    }

    fn layer(&mut self, layer: u16) {
        self.moves(layer);
        if self.batches == 0 {
            return;
        }
        let slots = self.load(Part::Attention(layer), layer % SLOTS);
        (0..self.batches).for_each(|batch| self.attention(layer, batch, slots));
        let slots = self.load(Part::Mlp(layer), SLOTS + layer % SLOTS);
        (0..self.batches).for_each(|batch| self.mlp(layer, batch, slots));
    }

    /// One layer of all KV that this step moves. What arrives on the device is read by attention after it.
    fn moves(&mut self, layer: u16) {
        for m in &self.shape.moves {
            let (from, to) = (m.from, m.to);
            let touches = [
                (Buffer::Kv { layer, tier: from }, ReadPast),
                (Buffer::Kv { layer, tier: to }, WritePast),
                (Buffer::Moved { layer, tier: to }, Write),
            ];
            self.program.push(Op::MoveKv { layer, from, to }, Lane::of_copy(from, to), self.ranks, touches);
        }
    }

    fn attention(&mut self, layer: u16, batch: u16, slots: Slots) {
        let kv = Buffer::Kv { layer, tier: Tier::Device };
        let arrives = self.shape.moves.iter().any(|m| m.to == Tier::Device);
        let arrived = arrives.then_some((Buffer::Moved { layer, tier: Tier::Device }, Read));
        let project = [(hidden(batch), Read), (qkv(batch), Write), (kv, WritePast)];
        self.push(Op::Qkv { layer, batch }, project.into_iter().chain(arrived).chain(slots.reads()));
        let attend = [(qkv(batch), Read), (kv, ReadPast), (attended(batch), Write)];
        self.push(Op::Attend { layer, batch, on: Tier::Device }, attend.into_iter().chain(arrived));
        let out = [(attended(batch), Read), (hidden(batch), Write)];
        self.push(Op::OutProj { layer, batch }, out.into_iter().chain(slots.reads()));
        self.all_reduce(batch);
    }

    fn mlp(&mut self, layer: u16, batch: u16, slots: Slots) {
        self.push(Op::Mlp { layer, batch }, [(hidden(batch), Write)].into_iter().chain(slots.reads()));
        self.all_reduce(batch);
    }

    fn head(&mut self) {
        let sampling: Vec<u16> =
            (0..self.batches).filter(|&b| self.shape.loads[usize::from(b)].samples > 0).collect();
        if sampling.is_empty() {
            return;
        }
        let slots = self.load(Part::Head, 2 * SLOTS);
        for batch in sampling {
            let logits = Buffer::Logits { batch };
            let head = [(hidden(batch), Read), (logits, Write)];
            self.push(Op::Head { batch }, head.into_iter().chain(slots.reads()));
            self.push(Op::Sample { batch }, [(logits, Write), (Buffer::Sampled, WritePast)]);
            self.return_tokens(batch);
        }
    }

    /// The first stage embeds what the last one drew.
    fn return_tokens(&mut self, batch: u16) {
        if self.plan.layout.pp > 1 {
            let op = Op::SendRecv { what: Tensor::Tokens, batch, to: RankId(0) };
            let touches = [(Buffer::Logits { batch }, Read), (Buffer::Sampled, WritePast)];
            self.program.push(op, Lane::PeerOut, self.ranks, touches);
        }
    }

    /// Loads what of a part is not resident, and names the slots that hold it then.
    fn load(&mut self, part: Part, slot: u16) -> Slots {
        let mut slots = Slots { list: [(Buffer::Sampled, Read); 2], len: 0 };
        let Weights::Streamed { host, disk } = self.plan.weights else { return slots };
        let staged =
            (disk == Some(DiskPath::ThroughHost)).then_some(Buffer::Weights { slot, tier: Tier::Host });
        if let Some(staged) = staged {
            self.load_node(part, Tier::Disk, Tier::Host, [(staged, Write)]);
        }
        if host == Share::Some || staged.is_some() {
            let up = slots.add(Buffer::Weights { slot, tier: Tier::Device });
            let touches = [(up, Write)].into_iter().chain(staged.map(|buffer| (buffer, Read)));
            self.load_node(part, Tier::Host, Tier::Device, touches);
        }
        if disk == Some(DiskPath::Direct) {
            let read = slots.add(Buffer::Weights { slot: slot + DIRECT, tier: Tier::Device });
            self.load_node(part, Tier::Disk, Tier::Device, [(read, Write)]);
        }
        slots
    }

    fn load_node(
        &mut self,
        part: Part,
        from: Tier,
        to: Tier,
        touches: impl IntoIterator<Item = (Buffer, Access)>,
    ) {
        self.program.push(Op::LoadWeights { part, from, to }, Lane::of_copy(from, to), self.ranks, touches);
    }

    fn all_reduce(&mut self, batch: u16) {
        if self.plan.layout.tp > 1 {
            self.push(Op::AllReduce { what: Tensor::Hidden, batch }, [(hidden(batch), Write)]);
        }
    }

    fn send(&mut self, batch: u16) {
        let op = Op::SendRecv { what: Tensor::Hidden, batch, to: self.ranks.end };
        self.program.push(op, Lane::PeerOut, self.ranks, [(hidden(batch), Write)]);
    }

    fn push(&mut self, op: Op, touches: impl IntoIterator<Item = (Buffer, Access)>) {
        self.program.push(op, Lane::Device, self.ranks, touches);
    }
}

impl Slots {
    fn add(&mut self, buffer: Buffer) -> Buffer {
        self.list[self.len] = (buffer, Read);
        self.len += 1;
        buffer
    }

    fn reads(self) -> impl Iterator<Item = (Buffer, Access)> {
        self.list.into_iter().take(self.len)
    }
}

fn hidden(batch: u16) -> Buffer {
    Buffer::Hidden { batch, tier: Tier::Device }
}

fn qkv(batch: u16) -> Buffer {
    Buffer::Qkv { batch, tier: Tier::Device }
}

fn attended(batch: u16) -> Buffer {
    Buffer::Attended { batch, tier: Tier::Device }
}
