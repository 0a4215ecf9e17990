//! The attention half of a layer for one batch, wherever its KV lives and wherever it is attended.
//!
//! ```text
//! home       attended    context                 queries        new KV
//! device     device      in its blocks           -              QKV projection writes it to the blocks
//! host       host        in its blocks           Down, then Up  attention writes it to the blocks
//! host       device      Up to a KV slot         -              to the slot, then Down to the blocks
//! disk       host        DiskRead to a KV slot   Down, then Up  to the slot, then DiskWrite
//! disk       device      DiskRead (, Up)         -              to the slot, then (Down,) DiskWrite
//! ```
//!
//! Where attention is to a share of the keys alone (FlexGen, section 5), decodes over KV that is brought to them have theirs in
//! two halves, with one op more: `Choose` scores the keys, which came first, and then only values that it chose are copied.
//! Each half of the slot's content waits for the one before, since all of these write the slot:
//!
//! ```text
//! DiskRead |keys 0 |keys 1 |values 0 |keys 2 |values 1 |
//! compute          |choose 0|choose 1 |attend 0|choose 2|attend 1 ..
//! ```
//!
//! Prompts have all of theirs with the keys: of many rows some row chooses nearly every page.
//!
//! FlexGen, section 4.2 (computation delegation): attending where the KV is moves b h numbers instead of b s h.

use super::pieces::{Pieces, Slots, TURNS};
use super::plan::{DiskPath, Values};
use spec::Access::{Read, ReadPast, Write, WritePast};
use spec::{Buffer, Lane, Op, Tensor, Tier};

/// The hops of KV on its way to attention.
const INWARD: [(Tier, Tier); 3] =
    [(Tier::Disk, Tier::Host), (Tier::Disk, Tier::Device), (Tier::Host, Tier::Device)];

/// What a batch copies through its KV slots.
#[derive(Clone, Copy)]
struct Away {
    slot: u16,
    /// Whether some is attended on the device.
    device: bool,
    /// Whether some of the drive's is attended on the host.
    host: bool,
    /// Whether some of the drive's passes through the host on its way to the device.
    staged: bool,
}

impl Away {
    fn device(&self) -> Buffer {
        Buffer::KvSlot { slot: self.slot, tier: Tier::Device }
    }

    fn host(&self) -> Buffer {
        Buffer::KvSlot { slot: self.slot, tier: Tier::Host }
    }
}

impl Pieces<'_> {
    /// A batch attends in one layer: from its residual stream and back to it.
    pub(super) fn attention(&mut self, layer: u16, batch: u16, weights: Slots) {
        let load = self.load_of(batch);
        let away = self.away(batch);
        away.iter().for_each(|away| self.kv_in(layer, batch, away));
        self.project(layer, batch, weights, away.as_ref());
        if self.plan.values == Values::Chosen {
            away.iter().for_each(|away| self.choose(layer, batch, away));
        }
        if load.context.device > 0 || load.host_tokens == 0 {
            self.attend_on_device(layer, batch, away.as_ref());
        }
        if load.host_tokens > 0 {
            self.attend_on_host(layer, batch, away.as_ref());
        }
        away.iter().for_each(|away| self.kv_out(layer, batch, away));
        let out = [(self.attended(batch, Tier::Device), Read), (self.hidden(batch), Write)];
        self.push(Op::OutProj { layer, batch }, out.into_iter().chain(weights.reads()));
        self.all_reduce(batch);
    }

    /// The KV slots of a batch, in turn, if it needs them.
    fn away(&mut self, batch: u16) -> Option<Away> {
        let load = self.load_of(batch);
        if load.kv_out.host + load.kv_out.disk == 0 {
            return None;
        }
        self.kv_turns = (self.kv_turns + 1) % TURNS;
        Some(Away {
            slot: self.kv_turns,
            device: load.kv_out.host + load.disk_down > 0,
            host: load.kv_out.disk > load.disk_down,
            staged: self.plan.disk_path == DiskPath::ThroughHost && load.disk_down > 0,
        })
    }

    /// The context comes to where it is attended.
    fn kv_in(&mut self, layer: u16, batch: u16, away: &Away) {
        let load = self.load_of(batch);
        for (from, to) in INWARD {
            if self.plan.disk_path.kv_copied(load, from, to) == 0 {
                continue;
            }
            let slot = if to == Tier::Host { away.host() } else { away.device() };
            let staged = from == Tier::Host && away.staged;
            let touches = [
                Some((slot, Write)),
                (load.kv_in[from] > 0).then_some((Buffer::Kv { layer, tier: from }, ReadPast)),
                staged.then_some((away.host(), Read)),
                self.arrived(layer, from),
                self.after(batch),
            ];
            self.copy(Op::CopyKv { layer, batch, from, to }, from, to, touches.into_iter().flatten());
        }
    }

    /// Decodes choose among their values, which then come too.
    fn choose(&mut self, layer: u16, batch: u16, away: &Away) {
        for on in [Tier::Device, Tier::Host] {
            if self.chooses(batch, on) {
                self.choose_on(on, layer, batch, away);
            }
        }
        INWARD.into_iter().for_each(|hop| self.chosen_in(hop, layer, batch, away));
    }

    fn choose_on(&mut self, on: Tier, layer: u16, batch: u16, away: &Away) {
        if on == Tier::Host {
            self.queries_down(batch);
        }
        // Through the host's slot values come to it, or pass on to the device.
        let touches = [
            Some((self.qkv(batch, on), Read)),
            (on == Tier::Device).then(|| (away.device(), Write)),
            (on == Tier::Host || self.stages_values(batch, away)).then(|| (away.host(), Write)),
        ];
        let lane = if on == Tier::Host { Lane::Host } else { Lane::Device };
        self.program.push(Op::Choose { layer, batch, on }, lane, self.ranks, touches.into_iter().flatten());
    }

    fn chosen_in(&mut self, (from, to): (Tier, Tier), layer: u16, batch: u16, away: &Away) {
        let load = self.load_of(batch);
        if self.plan.disk_path.decode_copied(load, from, to) == 0 {
            return;
        }
        let slot = if to == Tier::Host { away.host() } else { away.device() };
        let touches = [
            Some((slot, Write)),
            (load.decode_in[from] > 0).then_some((Buffer::Kv { layer, tier: from }, ReadPast)),
            (from == Tier::Host && self.stages_values(batch, away)).then(|| (away.host(), Read)),
            self.arrived(layer, from),
        ];
        self.copy(Op::CopyChosen { layer, batch, from, to }, from, to, touches.into_iter().flatten());
    }

    /// Whether chosen values pass through the host on their way to the device.
    fn stages_values(&self, batch: u16, away: &Away) -> bool {
        away.staged && self.load_of(batch).decode_up > 0
    }

    /// Whether decodes of a batch choose among their values on a tier.
    fn chooses(&self, batch: u16, on: Tier) -> bool {
        let load = self.load_of(batch);
        let decodes = match on {
            Tier::Device => load.decode_in.host + load.decode_up,
            _ => load.decode_in.disk - load.decode_up,
        };
        self.plan.values == Values::Chosen && decodes > 0
    }

    /// The new positions go home.
    fn kv_out(&mut self, layer: u16, batch: u16, away: &Away) {
        let load = self.load_of(batch);
        for (from, to) in [(Tier::Device, Tier::Host), (Tier::Device, Tier::Disk), (Tier::Host, Tier::Disk)] {
            if self.plan.disk_path.kv_copied(load, from, to) == 0 {
                continue;
            }
            let slot = if from == Tier::Host { away.host() } else { away.device() };
            let staged = to == Tier::Host && away.staged;
            let touches = [
                Some((slot, Read)),
                (load.kv_out[to] > 0).then_some((Buffer::Kv { layer, tier: to }, WritePast)),
                staged.then_some((away.host(), Write)),
            ];
            self.copy(Op::CopyKv { layer, batch, from, to }, from, to, touches.into_iter().flatten());
        }
    }

    fn project(&mut self, layer: u16, batch: u16, weights: Slots, away: Option<&Away>) {
        let touches = [
            Some((self.hidden(batch), Read)),
            Some((self.qkv(batch, Tier::Device), Write)),
            Some((Buffer::Kv { layer, tier: Tier::Device }, WritePast)),
            away.filter(|away| away.device).map(|away| (away.device(), Write)),
            self.arrived(layer, Tier::Device),
        ];
        self.push(Op::Qkv { layer, batch }, touches.into_iter().flatten().chain(weights.reads()));
    }

    fn attend_on_device(&mut self, layer: u16, batch: u16, away: Option<&Away>) {
        let touches = [
            Some((self.qkv(batch, Tier::Device), Read)),
            Some((Buffer::Kv { layer, tier: Tier::Device }, ReadPast)),
            away.filter(|away| away.device).map(|away| (away.device(), Read)),
            Some((self.attended(batch, Tier::Device), Write)),
            self.arrived(layer, Tier::Device),
        ];
        self.push(Op::Attend { layer, batch, on: Tier::Device }, touches.into_iter().flatten());
    }

    /// Queries of what attends on the host go there.
    fn queries_down(&mut self, batch: u16) {
        let (device, host) = (Tier::Device, Tier::Host);
        let down = [(self.qkv(batch, device), Read), (self.qkv(batch, host), Write)];
        self.copy(Op::MoveHidden { what: Tensor::Qkv, batch, from: device, to: host }, device, host, down);
    }

    /// Queries go down, what was attended comes up: the device goes on with other batches meanwhile.
    fn attend_on_host(&mut self, layer: u16, batch: u16, away: Option<&Away>) {
        let (device, host) = (Tier::Device, Tier::Host);
        if !self.chooses(batch, host) {
            self.queries_down(batch);
        }
        let (queries, attended) = (self.qkv(batch, host), self.attended(batch, host));
        let touches = [
            Some((queries, Read)),
            Some((Buffer::Kv { layer, tier: host }, WritePast)),
            away.filter(|away| away.host).map(|away| (away.host(), Write)),
            Some((attended, Write)),
            self.arrived(layer, host),
        ];
        let op = Op::Attend { layer, batch, on: host };
        self.program.push(op, Lane::Host, self.ranks, touches.into_iter().flatten());
        let up = [(attended, Read), (self.attended(batch, device), Write)];
        self.copy(Op::MoveHidden { what: Tensor::Attended, batch, from: host, to: device }, host, device, up);
    }

    fn qkv(&self, batch: u16, tier: Tier) -> Buffer {
        Buffer::Qkv { batch: self.name(batch), tier }
    }

    fn attended(&self, batch: u16, tier: Tier) -> Buffer {
        Buffer::Attended { batch: self.name(batch), tier }
    }
}
