//! FlexGen's loop as programs (section 4.2, figure 4: the slides' algorithm 1).
//!
//! A layer is two sub-layers, attention and MLP, and each is run for every batch of the block. While batch `k` computes,
//! the next sub-layer's weights come (all of them at the first batch, as in the code; the paper spreads them), batch
//! `k + 1`'s KV and activation come, and batch `k - 1`'s go:
//!
//! ```text
//!            round (j, 0)            round (j, 1)            round (j+1, 0)
//! Device    |compute j, 0      |    |compute j, 1      |    |compute j+1, 0 ...
//! Up        |w j+1 |kv j,1|    |    |kv j+1,0|         |    |w j+2  |
//! Down      |kv of j-1, last|  |    |kv j,0  |         |    |kv j,1 |
//!                              sync                    sync              with barriers: one program a round
//! ```
//!
//! Without overlap the same nodes are one program. This is a model of FlexGen's code and is run for its mechanism alone; ours
//! is lowered by `policy`, as the runtime that serves does it.

use super::case::Case;
use spec::Access::{Read, Write};
use spec::{Access, Buffer, Lane, Layout, Op, Part, Program, Ranks, Shape, Split, Tensor, Tier};

/// A sub-layer and a batch.
#[derive(Clone, Copy)]
struct Turn {
    /// Counts attention and MLP of every layer: `2 * layer` and `2 * layer + 1`.
    half: u16,
    batch: u16,
}

/// Lowers the steps of one case.
pub struct Loop<'a> {
    case: &'a Case,
    shape: &'a Shape,
    layers: u16,
}

type Touches<'a> = &'a [(Buffer, Access)];

impl<'a> Loop<'a> {
    /// The loop over so many layers of a step of this shape.
    pub fn new(case: &'a Case, shape: &'a Shape, layers: u16) -> Self {
        Self { case, shape, layers }
    }

    /// One program for each round of algorithm 1.
    pub fn rounds(&self) -> Vec<Program> {
        self.turns().map(|turn| self.program([turn].into_iter())).collect()
    }

    /// All rounds as one program.
    pub fn whole(&self) -> Program {
        self.program(self.turns())
    }

    /// The head of every batch.
    pub fn head(&self) -> Program {
        let mut program = Program::new(Layout::SINGLE);
        for batch in 0..self.batches() {
            let touches = [(hidden(batch, Tier::Device), Read), (Buffer::Logits { batch }, Write)];
            program.push(Op::Head { batch }, Lane::Device, Ranks::FIRST, touches);
        }
        program
    }

    fn batches(&self) -> u16 {
        self.shape.loads.len() as u16
    }

    fn turns(&self) -> impl Iterator<Item = Turn> + use<> {
        let batches = self.batches();
        (0..2 * self.layers).flat_map(move |half| (0..batches).map(move |batch| Turn { half, batch }))
    }

    fn program(&self, turns: impl Iterator<Item = Turn>) -> Program {
        let mut program = Program::new(Layout::SINGLE);
        for turn in turns {
            if turn.batch == 0 {
                self.load_weights(&mut program, (turn.half + 1) % (2 * self.layers));
            }
            self.load_cache(&mut program, self.after(turn));
            self.store_hidden(&mut program, self.before(turn));
            self.load_hidden(&mut program, self.after(turn));
            self.compute(&mut program, turn);
            self.store_cache(&mut program, self.before(turn));
        }
        program
    }

    /// The turn that follows, in this step or the next.
    fn after(&self, turn: Turn) -> Turn {
        match turn.batch + 1 == self.batches() {
            true => Turn { half: (turn.half + 1) % (2 * self.layers), batch: 0 },
            false => Turn { batch: turn.batch + 1, ..turn },
        }
    }

    /// The turn before, in this step or the last.
    fn before(&self, turn: Turn) -> Turn {
        match turn.batch {
            0 => Turn {
                half: (turn.half + 2 * self.layers - 1) % (2 * self.layers),
                batch: self.batches() - 1,
            },
            batch => Turn { batch: batch - 1, ..turn },
        }
    }

    fn load_weights(&self, program: &mut Program, half: u16) {
        let (part, slot, placement) = (part(half), half % 2, self.case.policy.placement.weights);
        let (device, host) =
            (Buffer::Weights { slot, tier: Tier::Device }, Buffer::Weights { slot, tier: Tier::Host });
        let load = |from, to| Op::LoadWeights { part, from, to };
        if placement.part(Tier::Host) > 0 {
            push(program, load(Tier::Host, Tier::Device), Lane::Up, &[(device, Write)]);
        }
        if placement.part(Tier::Disk) > 0 {
            push(program, load(Tier::Disk, Tier::Host), Lane::DiskRead, &[(host, Write)]);
            push(program, load(Tier::Disk, Tier::Device), Lane::Up, &[(host, Read), (device, Write)]);
        }
    }

    fn load_cache(&self, program: &mut Program, turn: Turn) {
        let Part::Attention(layer) = part(turn.half) else { return };
        let (batch, load) = (turn.batch, &self.shape.loads[usize::from(turn.batch)]);
        let (device, host) = (self.kv_slot(turn, 0, Tier::Device), self.kv_slot(turn, 0, Tier::Host));
        let copy = |from, to| Op::CopyKv { layer, batch, from, to };
        if load.kv_in.disk > 0 {
            push(program, copy(Tier::Disk, Tier::Host), Lane::DiskRead, &[(host, Write)]);
            if load.context.host == 0 {
                push(program, copy(Tier::Disk, Tier::Device), Lane::Up, &[(host, Read), (device, Write)]);
            }
        }
        if load.kv_in.host > 0 {
            push(program, copy(Tier::Host, Tier::Device), Lane::Up, &[(device, Write)]);
        }
    }

    fn store_cache(&self, program: &mut Program, turn: Turn) {
        let Part::Attention(layer) = part(turn.half) else { return };
        let (batch, load) = (turn.batch, &self.shape.loads[usize::from(turn.batch)]);
        let (device, host) = (self.kv_slot(turn, 2, Tier::Device), self.kv_slot(turn, 2, Tier::Host));
        let copy = |from, to| Op::CopyKv { layer, batch, from, to };
        if load.kv_out.host + load.kv_out.disk > 0 {
            push(program, copy(Tier::Device, Tier::Host), Lane::Down, &[(device, Read), (host, Write)]);
        }
        if load.kv_out.disk > 0 {
            push(program, copy(Tier::Host, Tier::Disk), Lane::DiskWrite, &[(host, Read)]);
        }
    }

    /// A batch alone keeps its activation on the device.
    fn moves_hidden(&self) -> bool {
        self.batches() > 1 && self.case.policy.placement.hidden.part(Tier::Device) < Split::WHOLE
    }

    fn load_hidden(&self, program: &mut Program, Turn { batch, .. }: Turn) {
        if !self.moves_hidden() {
            return;
        }
        let (disk, host) = (hidden(batch, Tier::Disk), hidden(batch, Tier::Host));
        if self.case.policy.placement.hidden.part(Tier::Disk) > 0 {
            let touches = [(disk, Read), (host, Write)];
            push(program, moved(Tensor::Hidden, batch, Tier::Disk, Tier::Host), Lane::DiskRead, &touches);
        }
        let touches = [(host, Read), (hidden(batch, Tier::Device), Write)];
        push(program, moved(Tensor::Hidden, batch, Tier::Host, Tier::Device), Lane::Up, &touches);
    }

    fn store_hidden(&self, program: &mut Program, Turn { batch, .. }: Turn) {
        if !self.moves_hidden() {
            return;
        }
        let host = hidden(batch, Tier::Host);
        let touches = [(hidden(batch, Tier::Device), Read), (host, Write)];
        push(program, moved(Tensor::Hidden, batch, Tier::Device, Tier::Host), Lane::Down, &touches);
        if self.case.policy.placement.hidden.part(Tier::Disk) > 0 {
            let touches = [(host, Read), (hidden(batch, Tier::Disk), Write)];
            push(program, moved(Tensor::Hidden, batch, Tier::Host, Tier::Disk), Lane::DiskWrite, &touches);
        }
    }

    fn compute(&self, program: &mut Program, turn: Turn) {
        let batch = turn.batch;
        let weights = (Buffer::Weights { slot: turn.half % 2, tier: Tier::Device }, Read);
        let stream = hidden(batch, Tier::Device);
        let Part::Attention(layer) = part(turn.half) else {
            let op = Op::Mlp { layer: turn.half / 2, batch };
            return push(program, op, Lane::Device, &[(stream, Write), weights]);
        };
        let (projected, attended) =
            (Buffer::Qkv { batch, tier: Tier::Device }, Buffer::Attended { batch, tier: Tier::Device });
        let new = self.kv_slot(turn, 2, Tier::Device);
        let touches = [(stream, Read), (projected, Write), (new, Write), weights];
        push(program, Op::Qkv { layer, batch }, Lane::Device, &touches);
        let load = &self.shape.loads[usize::from(batch)];
        if load.context.host > 0 {
            self.attend_on_host(program, turn, layer);
        }
        if load.context.device + load.prefill_pairs.device > 0 {
            let touches = [(projected, Read), (self.kv_slot(turn, 0, Tier::Device), Read), (attended, Write)];
            push(program, Op::Attend { layer, batch, on: Tier::Device }, Lane::Device, &touches);
        }
        push(
            program,
            Op::OutProj { layer, batch },
            Lane::Device,
            &[(attended, Read), (stream, Write), weights],
        );
    }

    /// Queries down, attention beside the KV, results up (section 4.2, computation delegation); FlexGen copies both on the
    /// stream that computes.
    fn attend_on_host(&self, program: &mut Program, turn: Turn, layer: u16) {
        let batch = turn.batch;
        let at = |tier| (Buffer::Qkv { batch, tier }, Buffer::Attended { batch, tier });
        let ((device_q, device_a), (host_q, host_a)) = (at(Tier::Device), at(Tier::Host));
        let down = moved(Tensor::Qkv, batch, Tier::Device, Tier::Host);
        push(program, down, Lane::Device, &[(device_q, Read), (host_q, Write)]);
        let touches = [(host_q, Read), (self.kv_slot(turn, 0, Tier::Host), Read), (host_a, Write)];
        push(program, Op::Attend { layer, batch, on: Tier::Host }, Lane::Host, &touches);
        let up = moved(Tensor::Attended, batch, Tier::Host, Tier::Device);
        push(program, up, Lane::Device, &[(host_a, Read), (device_a, Write)]);
    }

    /// Of the two slots from `first`, the one that KV of this turn goes through.
    fn kv_slot(&self, turn: Turn, first: u16, tier: Tier) -> Buffer {
        let order = turn.half / 2 * self.batches() + turn.batch;
        Buffer::KvSlot { slot: first + order % 2, tier }
    }
}

fn part(half: u16) -> Part {
    if half.is_multiple_of(2) { Part::Attention(half / 2) } else { Part::Mlp(half / 2) }
}

fn hidden(batch: u16, tier: Tier) -> Buffer {
    Buffer::Hidden { batch, tier }
}

fn moved(what: Tensor, batch: u16, from: Tier, to: Tier) -> Op {
    Op::MoveHidden { what, batch, from, to }
}

fn push(program: &mut Program, op: Op, lane: Lane, touches: Touches<'_>) {
    program.push(op, lane, Ranks::FIRST, touches.iter().copied());
}
