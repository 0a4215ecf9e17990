//! Plays programs as the timeline says, and follows what every buffer holds: a node must find there what it needs, from
//! its beginning to its end. Buffers are only where a node says that they are, so this knows nothing of waits.

use policy::cost::Cost;
use policy::pipeline::{DiskPath, Plan, Share, Timeline, Values, Weights};
use spec::{Access, Buffer, Lane, Load, Nanos, Node, Op, Part, Program, Shape, Tensor, Tier};
use std::collections::{BTreeMap, BTreeSet};

/// What a buffer holds: whose, of which step.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Held {
    Part(Part),
    /// The residual stream of a batch before this half of a layer (two halves each).
    Hidden(u64, u16, u16),
    Qkv(u64, u16, u16),
    /// Attention's output, and on which tiers some of it was computed.
    Attended(u64, u16, u16, BTreeSet<Tier>),
    /// KV on its way: the context, then with the new positions.
    Context(u64, u16, u16),
    Complete(u64, u16, u16),
    /// Keys alone of decodes: they chose among their values, on these tiers.
    Chosen(u64, u16, u16, BTreeSet<Tier>),
    /// With the values that were chosen, from these tiers.
    Valued(u64, u16, u16, BTreeSet<Tier>),
    Logits(u64, u16),
}

/// Everything that was written, and what is still to be.
pub(crate) struct Dataflow<'a> {
    plan: &'a Plan,
    memory: BTreeMap<Buffer, Held>,
    /// KV that came home: step, layer, batch, tier.
    home: BTreeSet<(u64, u16, u16, Tier)>,
    drawn: BTreeSet<(u64, u16)>,
}

struct Played<'a> {
    step: u64,
    program: &'a Program,
    shape: &'a Shape,
    node: &'a Node,
}

/// Plays steps one after the other, all in flight at once.
pub(crate) fn play(plan: &Plan, steps: &[(Shape, Program)], cost: &dyn Cost) {
    let mut timeline = Timeline::new(Nanos::ZERO);
    let mut events = Vec::new();
    for (step, (shape, program)) in (0..).zip(steps) {
        let timing = timeline.commit(Nanos::ZERO, program, shape, cost);
        for (node, (begin, end)) in program.nodes().iter().zip(timing.nodes) {
            assert!(
                begin < end,
                "nodes take time, so that ends come before the beginnings that wait for them"
            );
            // At one time, ends come first.
            events.push((end, 0, step, node));
            events.push((begin, 1, step, node));
        }
    }
    events.sort_by_key(|event| (event.0, event.1));
    let mut flow = Dataflow { plan, memory: BTreeMap::new(), home: BTreeSet::new(), drawn: BTreeSet::new() };
    for (_, begins, step, node) in events {
        let (shape, program) = &steps[step as usize];
        let played = Played { step, program, shape, node };
        flow.needs(&played);
        if begins == 0 {
            flow.writes(&played);
        }
    }
    flow.complete(steps);
}

impl Played<'_> {
    fn buffer(&self, is: impl Fn(Buffer) -> bool, access: Option<Access>) -> Option<Buffer> {
        let touches = self.program.touches(self.node).iter();
        touches
            .filter(|touch| access.is_none_or(|a| a == touch.access))
            .map(|touch| touch.buffer)
            .find(|&b| is(b))
    }

    fn slot(&self, tier: Tier) -> Option<Buffer> {
        self.buffer(|b| matches!(b, Buffer::KvSlot { tier: at, .. } if at == tier), None)
    }

    fn hidden(&self, tier: Tier) -> Buffer {
        self.buffer(|b| matches!(b, Buffer::Hidden { tier: at, .. } if at == tier), None)
            .expect("a residual stream")
    }

    fn qkv(&self, tier: Tier) -> Buffer {
        self.buffer(|b| matches!(b, Buffer::Qkv { tier: at, .. } if at == tier), None).expect("queries")
    }

    fn attended(&self, tier: Tier) -> Buffer {
        self.buffer(|b| matches!(b, Buffer::Attended { tier: at, .. } if at == tier), None)
            .expect("attention's output")
    }

    fn load(&self, batch: u16) -> &Load {
        &self.shape.loads[usize::from(batch)]
    }
}

/// The tiers on which decodes choose by what is in the slot of `tier`, or passes through it; and those that its values come
/// from.
fn values_of(plan: &Plan, load: &Load, tier: Tier) -> (BTreeSet<Tier>, BTreeSet<Tier>) {
    if plan.values == Values::All {
        return Default::default();
    }
    let through = plan.disk_path == DiskPath::ThroughHost && load.decode_up > 0;
    let (choose, from) = match tier {
        Tier::Device => (
            [(Tier::Device, load.decode_in.host + load.decode_up > 0); 2],
            [(Tier::Host, load.decode_in.host > 0 || through), (Tier::Disk, load.decode_up > 0 && !through)],
        ),
        _ => {
            let here = load.decode_in.disk > load.decode_up;
            ([(Tier::Host, here), (Tier::Device, through)], [(Tier::Disk, here || through); 2])
        }
    };
    let which = |list: [(Tier, bool); 2]| list.into_iter().filter(|on| on.1).map(|on| on.0).collect();
    (which(choose), which(from))
}

impl Dataflow<'_> {
    #[track_caller]
    fn holds(&self, at: Buffer, wanted: &Held, played: &Played<'_>) {
        let (found, step, op) = (self.memory.get(&at), played.step, played.node.op);
        assert_eq!(found, Some(wanted), "step {step}: {op:?} reads {at:?}");
    }

    fn weights(&self, part: Part, played: &Played<'_>) {
        let sources = match self.plan.weights {
            Weights::Resident => 0,
            Weights::Streamed { host, disk } => {
                let up = host == Share::Some || disk == Some(DiskPath::ThroughHost);
                usize::from(up) + usize::from(disk == Some(DiskPath::Direct))
            }
        };
        assert_eq!(played.program.weight_slots(played.node).count(), sources, "{:?}", played.node.op);
        for (slot, tier, _) in played.program.weight_slots(played.node) {
            self.holds(Buffer::Weights { slot, tier }, &Held::Part(part), played);
        }
    }

    /// Checks everything that a node reads.
    fn needs(&self, played: &Played<'_>) {
        let step = played.step;
        match played.node.op {
            Op::Embed { .. } | Op::MoveKv { .. } | Op::SendRecv { .. } | Op::AllReduce { .. } => {}
            Op::Qkv { layer, batch } => {
                self.holds(played.hidden(Tier::Device), &Held::Hidden(step, batch, 2 * layer), played);
                self.weights(Part::Attention(layer), played);
                let streams = played.load(batch).kv_in.host + played.load(batch).disk_up > 0;
                if let Some(slot) = played.slot(Tier::Device).filter(|_| streams) {
                    self.holds(slot, &Held::Context(step, layer, batch), played);
                }
            }
            Op::Attend { layer, batch, on } => self.attends(layer, batch, on, played),
            Op::OutProj { layer, batch } => {
                self.holds(played.hidden(Tier::Device), &Held::Hidden(step, batch, 2 * layer), played);
                let load = played.load(batch);
                let on = [(Tier::Device, load.context.device > 0), (Tier::Host, load.context.host > 0)];
                let on = on.into_iter().filter(|tier| tier.1).map(|tier| tier.0).collect();
                let wanted = Held::Attended(step, layer, batch, on);
                self.holds(played.attended(Tier::Device), &wanted, played);
                self.weights(Part::Attention(layer), played);
            }
            Op::Mlp { layer, batch } => {
                self.holds(played.hidden(Tier::Device), &Held::Hidden(step, batch, 2 * layer + 1), played);
                self.weights(Part::Mlp(layer), played);
            }
            Op::Head { batch } => {
                let wanted = Held::Hidden(step, batch, 2 * self.plan.layers);
                self.holds(played.hidden(Tier::Device), &wanted, played);
                self.weights(Part::Head, played);
            }
            Op::Sample { batch } => {
                let logits = played.buffer(|b| matches!(b, Buffer::Logits { .. }), None).expect("logits");
                self.holds(logits, &Held::Logits(step, batch), played);
            }
            Op::LoadWeights { part, from: Tier::Host, .. } => {
                let staged = played.buffer(|b| matches!(b, Buffer::Weights { tier: Tier::Host, .. }), None);
                staged.iter().for_each(|&at| self.holds(at, &Held::Part(part), played));
            }
            Op::LoadWeights { .. } => {}
            Op::CopyKv { layer, batch, from, to } => self.copies(layer, batch, from, to, played),
            Op::Choose { layer, batch, on } => self.chooses(layer, batch, on, played),
            Op::CopyChosen { layer, batch, from, to } => self.copies_chosen(layer, batch, (from, to), played),
            Op::MoveHidden { what, batch, from, .. } => self.moves(what, batch, from, played),
        }
    }

    fn attends(&self, layer: u16, batch: u16, on: Tier, played: &Played<'_>) {
        self.holds(played.qkv(on), &Held::Qkv(played.step, layer, batch), played);
        let load = played.load(batch);
        let slot = played.slot(on);
        let (_, values) = values_of(self.plan, load, on);
        match on {
            _ if !values.is_empty() && slot.is_some() => {
                let valued = Held::Valued(played.step, layer, batch, values);
                slot.iter().for_each(|&at| self.holds(at, &valued, played));
            }
            Tier::Device => slot.iter().for_each(|&at| {
                self.holds(at, &Held::Complete(played.step, layer, batch), played);
            }),
            _ => slot.iter().filter(|_| load.kv_in.disk > load.disk_up).for_each(|&at| {
                self.holds(at, &Held::Context(played.step, layer, batch), played);
            }),
        }
    }

    /// Keys are there, those that came and the new ones.
    fn chooses(&self, layer: u16, batch: u16, on: Tier, played: &Played<'_>) {
        let step = played.step;
        self.holds(played.qkv(on), &Held::Qkv(step, layer, batch), played);
        let slots: Vec<_> =
            Tier::ALL.into_iter().filter_map(|tier| Some((tier, played.slot(tier)?))).collect();
        assert!(slots.iter().any(|(tier, _)| *tier == on), "who chooses has keys");
        for (tier, slot) in slots {
            let by_others = match self.memory.get(&slot) {
                Some(Held::Chosen(s, l, b, _)) => (*s, *l, *b) == (step, layer, batch) && tier == Tier::Host,
                _ => false,
            };
            let keys = match tier {
                Tier::Device => Held::Complete(step, layer, batch),
                _ => Held::Context(step, layer, batch),
            };
            if !by_others {
                self.holds(slot, &keys, played);
            }
        }
    }

    /// All that choose have chosen before the first value comes, and a slot that is passed through has them.
    fn copies_chosen(&self, layer: u16, batch: u16, (from, to): (Tier, Tier), played: &Played<'_>) {
        self.is_home(layer, from, played);
        let (step, load) = (played.step, played.load(batch));
        let slot = played.slot(to).expect("values come to a slot");
        let (chosen, sources) = values_of(self.plan, load, to);
        match self.memory.get(&slot) {
            Some(Held::Valued(s, l, b, already)) if (*s, *l, *b) == (step, layer, batch) => {
                assert!(!already.contains(&from) && already.is_subset(&sources));
            }
            _ => self.holds(slot, &Held::Chosen(step, layer, batch, chosen), played),
        }
        let staged =
            played.buffer(|b| matches!(b, Buffer::KvSlot { tier, .. } if tier == from), Some(Access::Read));
        let (_, there) = values_of(self.plan, load, from);
        staged
            .iter()
            .for_each(|&at| self.holds(at, &Held::Valued(step, layer, batch, there.clone()), played));
    }

    /// A copy reads a home that all earlier steps have written, or a slot that is complete.
    fn copies(&self, layer: u16, batch: u16, from: Tier, to: Tier, played: &Played<'_>) {
        self.is_home(layer, from, played);
        let read =
            played.buffer(|b| matches!(b, Buffer::KvSlot { tier, .. } if tier == from), Some(Access::Read));
        let inward = to == Tier::Device || (from, to) == (Tier::Disk, Tier::Host);
        let (_, values) = values_of(self.plan, played.load(batch), from);
        let wanted = match inward {
            true => Held::Context(played.step, layer, batch),
            false if from == Tier::Device && !values.is_empty() => {
                Held::Valued(played.step, layer, batch, values)
            }
            false => Held::Complete(played.step, layer, batch),
        };
        read.iter().for_each(|&at| self.holds(at, &wanted, played));
    }

    fn is_home(&self, layer: u16, from: Tier, played: &Played<'_>) {
        let kv = played.buffer(|b| matches!(b, Buffer::Kv { .. }), Some(Access::ReadPast));
        if kv.is_some() {
            let writers = (0..).zip(&played.shape.loads).filter(|(_, load)| load.kv_out[from] > 0);
            let earlier = writers
                .map(|(b, _)| b)
                .all(|b| (0..played.step).all(|step| self.home.contains(&(step, layer, b, from))));
            assert!(earlier, "step {}: layer {layer} is read before it is home on the {from:?}", played.step);
        }
    }

    fn moves(&self, what: Tensor, batch: u16, from: Tier, played: &Played<'_>) {
        let of = |held: Option<&Held>| match (what, held) {
            (Tensor::Hidden, Some(&Held::Hidden(step, of, half))) => {
                half % 2 == 0 && (step, of) == (played.step, batch)
            }
            (Tensor::Qkv, Some(&Held::Qkv(step, _, of))) => (step, of) == (played.step, batch),
            (Tensor::Attended, Some(&Held::Attended(step, _, of, _))) => (step, of) == (played.step, batch),
            _ => false,
        };
        let at = match what {
            Tensor::Hidden => played.hidden(from),
            Tensor::Qkv => played.qkv(from),
            _ => played.attended(from),
        };
        let found = self.memory.get(&at);
        assert!(of(found), "step {}: {:?} finds {found:?} in {at:?}", played.step, played.node.op);
    }

    /// What a node leaves behind.
    fn writes(&mut self, played: &Played<'_>) {
        let step = played.step;
        match played.node.op {
            Op::Embed { batch } => self.put(played.hidden(Tier::Device), Held::Hidden(step, batch, 0)),
            Op::Qkv { layer, batch } => {
                self.put(played.qkv(Tier::Device), Held::Qkv(step, layer, batch));
                let slot = played.slot(Tier::Device);
                slot.into_iter().for_each(|at| self.put(at, Held::Complete(step, layer, batch)));
            }
            Op::Attend { layer, batch, on } => {
                if let Some(slot) = played.slot(on).filter(|_| on == Tier::Host) {
                    self.put(slot, Held::Complete(step, layer, batch));
                }
                self.attend(played.attended(on), (layer, batch), on, played);
            }
            Op::OutProj { layer, batch } => {
                self.put(played.hidden(Tier::Device), Held::Hidden(step, batch, 2 * layer + 1));
            }
            Op::Mlp { layer, batch } => {
                self.put(played.hidden(Tier::Device), Held::Hidden(step, batch, 2 * layer + 2));
            }
            Op::Head { batch } => {
                let logits = played.buffer(|b| matches!(b, Buffer::Logits { .. }), None).expect("logits");
                self.put(logits, Held::Logits(step, batch));
            }
            Op::Sample { batch } => assert!(self.drawn.insert((step, batch)), "drawn once"),
            Op::LoadWeights { part, .. } => {
                let slot = played.program.weight_slots(played.node).find(|slot| slot.2.writes());
                let (slot, tier, _) = slot.expect("loads write a slot");
                self.put(Buffer::Weights { slot, tier }, Held::Part(part));
            }
            Op::CopyKv { layer, batch, from, to } => self.copied(layer, batch, from, to, played),
            Op::Choose { layer, batch, on } => {
                for slot in Tier::ALL.into_iter().filter_map(|tier| played.slot(tier)) {
                    let mut tiers = match self.memory.get(&slot) {
                        Some(Held::Chosen(_, _, _, tiers)) => tiers.clone(),
                        _ => BTreeSet::new(),
                    };
                    tiers.insert(on);
                    self.put(slot, Held::Chosen(step, layer, batch, tiers));
                }
            }
            Op::CopyChosen { layer, batch, from, to } => {
                let slot = played.slot(to).expect("values come to a slot");
                let mut tiers = match self.memory.get(&slot) {
                    Some(Held::Valued(_, _, _, tiers)) => tiers.clone(),
                    _ => BTreeSet::new(),
                };
                tiers.insert(from);
                self.put(slot, Held::Valued(step, layer, batch, tiers));
            }
            Op::MoveHidden { what, from, to, batch } => self.moved(what, batch, from, to, played),
            Op::MoveKv { .. } | Op::SendRecv { .. } | Op::AllReduce { .. } => {}
        }
    }

    fn put(&mut self, at: Buffer, held: Held) {
        self.memory.insert(at, held);
    }

    /// Attention of several tiers meets in one buffer.
    fn attend(&mut self, at: Buffer, (layer, batch): (u16, u16), on: Tier, played: &Played<'_>) {
        let mut tiers = match self.memory.get(&at) {
            Some(Held::Attended(step, l, b, tiers)) if (*step, *l, *b) == (played.step, layer, batch) => {
                tiers.clone()
            }
            _ => BTreeSet::new(),
        };
        tiers.insert(on);
        self.put(at, Held::Attended(played.step, layer, batch, tiers));
    }

    fn copied(&mut self, layer: u16, batch: u16, from: Tier, to: Tier, played: &Played<'_>) {
        let inward = to == Tier::Device || (from, to) == (Tier::Disk, Tier::Host);
        let step = played.step;
        let held =
            if inward { Held::Context(step, layer, batch) } else { Held::Complete(step, layer, batch) };
        let slot =
            played.buffer(|b| matches!(b, Buffer::KvSlot { tier, .. } if tier == to), Some(Access::Write));
        slot.into_iter().for_each(|at| self.put(at, held.clone()));
        let home = played.buffer(|b| matches!(b, Buffer::Kv { .. }), Some(Access::WritePast));
        if home.is_some() {
            self.home.insert((step, layer, batch, to));
        }
    }

    fn moved(&mut self, what: Tensor, batch: u16, from: Tier, to: Tier, played: &Played<'_>) {
        match what {
            Tensor::Hidden => {
                let held = self.memory[&played.hidden(from)].clone();
                self.put(played.hidden(to), held);
            }
            Tensor::Qkv => {
                let held = self.memory[&played.qkv(from)].clone();
                self.put(played.qkv(to), held);
            }
            _ => {
                let Held::Attended(_, layer, ..) = self.memory[&played.attended(from)] else {
                    panic!("nothing was attended")
                };
                self.attend(played.attended(to), (layer, batch), Tier::Host, played);
            }
        }
    }

    /// Everything was drawn, and all KV is home.
    fn complete(&self, steps: &[(Shape, Program)]) {
        for (step, (shape, program)) in (0..).zip(steps) {
            for (batch, load) in (0..).zip(&shape.loads) {
                assert_eq!(
                    self.drawn.contains(&(step, batch)),
                    load.samples > 0,
                    "step {step}: batch {batch} draws"
                );
                for layer in 0..self.plan.layers {
                    for tier in [Tier::Host, Tier::Disk] {
                        let home = self.home.contains(&(step, layer, batch, tier));
                        assert_eq!(
                            home,
                            load.kv_out[tier] > 0,
                            "step {step}, {layer}.{batch}: KV on the {tier:?}"
                        );
                    }
                }
            }
            assert!(program.nodes().iter().all(|node| node.lane != Lane::PeerIn));
        }
    }
}
