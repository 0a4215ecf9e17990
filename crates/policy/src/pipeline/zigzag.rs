//! The zig-zag block schedule (FlexGen, section 4.2, figures 3b and 4): layer by layer, and each batch of the block
//! through the whole layer before the next, so that a load of weights serves them all and an activation leaves and comes
//! back once a layer. Beside the compute of batch k: the next layer's weights, KV and activation of batch k+1 in, of batch
//! k-1 out.
//!
//! ```text
//! DiskRead  |w1.disk                |w2.disk
//! Up        |w1      kv1  h1 |kv2 h2|w2     ...      w = weights, kv = a batch's context, h = its activation
//! Device    |b0      |b1     |b2    |b0     ...
//! Down      |        |kv0 h0 |kv1 h1|kv2 h2 ...
//! Host      |        |att0   |att1  |att2   ...      or attention where the KV is
//! ```
//!
//! FlexGen codes these six and waits for all of them after every batch; here they follow from lanes and buffers, and what
//! waits only waits for what it needs. Batches whose activations leave the device take turns in three buffers: one comes in,
//! one is computed, one goes out.

use super::pieces::{Ahead, Names, Pieces, Slots, TURNS};
use super::plan::{DiskPath, Plan};
use spec::Access::{Read, Write};
use spec::{Buffer, Op, Program, Shape, Tensor, Tier};

/// Lowers a shape; see the module.
pub(super) fn lower(shape: &Shape, plan: &Plan) -> Program {
    let resident = plan.hidden.of(Tier::Device, shape.loads.len() as u64) as u16;
    let pieces = Pieces::new(shape, plan, Names::TurnsFrom(resident), Ahead::Free);
    let mut zigzag = Zigzag { pieces };
    (0..plan.layout.pp).for_each(|stage| zigzag.stage(stage));
    zigzag.pieces.program
}

struct Zigzag<'a> {
    pieces: Pieces<'a>,
}

/// What becomes of a batch before and after a layer.
#[derive(Clone, Copy)]
struct Ends {
    /// The first layer of the first stage begins with the embedding.
    embeds: bool,
    /// Any other begins with what the one before left, unless another stage did.
    fetches: bool,
    /// The last layer of a stage ends at the next stage.
    sends: bool,
    /// The last layer of all ends at the head, which lies in these slots.
    head: Option<Slots>,
    /// Any other leaves it for the next.
    stores: bool,
}

impl Zigzag<'_> {
    fn stage(&mut self, stage: u16) {
        let (layers, last) = (self.pieces.stage(stage), stage + 1 == self.pieces.plan.layout.pp);
        for layer in layers.clone() {
            self.pieces.moves(layer);
            if self.pieces.batches == 0 {
                continue;
            }
            let attention = self.pieces.load_attention(layer, 0);
            let mlp = self.pieces.load_mlp(layer, 0);
            let ends = self.ends(stage, layer == layers.start, layer + 1 == layers.end, last);
            for batch in 0..self.pieces.batches {
                self.begin(batch, ends);
                self.pieces.attention(layer, batch, attention);
                self.pieces.mlp(layer, batch, mlp);
                self.end(batch, ends);
            }
        }
    }

    fn ends(&mut self, stage: u16, first: bool, last: bool, last_stage: bool) -> Ends {
        let draws = last && last_stage && !self.pieces.sampling().is_empty();
        Ends {
            embeds: first && stage == 0,
            fetches: !first,
            sends: last && !last_stage,
            head: draws.then(|| self.pieces.load_head(0)),
            stores: !last,
        }
    }

    fn begin(&mut self, batch: u16, ends: Ends) {
        if ends.embeds {
            self.pieces.embed(batch);
        }
        if ends.fetches {
            self.travel(batch, Direction::In);
        }
    }

    fn end(&mut self, batch: u16, ends: Ends) {
        if let Some(slots) = ends.head.filter(|_| self.pieces.load_of(batch).samples > 0) {
            self.pieces.head(batch, slots);
        }
        if ends.sends {
            self.pieces.send(batch);
        }
        if ends.stores {
            self.travel(batch, Direction::Out);
        }
    }

    /// An activation goes to where it rests between layers, or comes from there.
    fn travel(&mut self, batch: u16, direction: Direction) {
        let on_device = self.pieces.hidden(batch);
        let staging = Buffer::Hidden { batch: self.pieces.batches + batch % TURNS, tier: Tier::Host };
        let rests = |tier| Buffer::Hidden { batch, tier };
        let stops = match (self.home(batch), self.pieces.plan.disk_path) {
            (Tier::Device, _) => return,
            (Tier::Disk, DiskPath::ThroughHost) => {
                vec![(on_device, Tier::Device), (staging, Tier::Host), (rests(Tier::Disk), Tier::Disk)]
            }
            (home, _) => vec![(on_device, Tier::Device), (rests(home), home)],
        };
        match direction {
            Direction::Out => stops.windows(2).for_each(|hop| self.hop(batch, hop[0], hop[1])),
            Direction::In => stops.windows(2).rev().for_each(|hop| self.hop(batch, hop[1], hop[0])),
        }
    }

    fn hop(&mut self, batch: u16, (source, from): (Buffer, Tier), (target, to): (Buffer, Tier)) {
        let op = Op::MoveHidden { what: Tensor::Hidden, batch, from, to };
        self.pieces.copy(op, from, to, [(source, Read), (target, Write)]);
    }

    /// Where a batch's activation rests: the first batches on the device, the next on the host, the rest on the drive.
    fn home(&self, batch: u16) -> Tier {
        let (hidden, batches) = (self.pieces.plan.hidden, u64::from(self.pieces.batches));
        let on = |tier| hidden.of(tier, batches);
        match u64::from(batch) {
            n if n < on(Tier::Device) => Tier::Device,
            n if n < on(Tier::Device) + on(Tier::Host) => Tier::Host,
            _ => Tier::Disk,
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    In,
    Out,
}
