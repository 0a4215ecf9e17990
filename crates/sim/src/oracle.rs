//! Programs by definition rather than by speed: which nodes conflict, from the rule alone. And random programs to hold
//! the waits, the timeline, `arrange` and the executor against it.

use crate::rng::Rng;
use spec::{Access, Buffer, Lane, Layout, Node, Op, Program, RankId, Ranks, Tensor, Tier};

/// When two nodes were submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// In one program.
    Together,
    /// In two programs.
    Apart,
}

/// Whether of two nodes the later must wait for the earlier: on a rank of both they touch a buffer, and one writes.
pub fn conflict(a: (&Program, &Node), b: (&Program, &Node), submitted: Submitted) -> bool {
    let meet = a.1.places().any(|(rank, _)| b.1.places().any(|(other, _)| rank == other));
    let counts = |access: Access| submitted == Submitted::Apart || !access.past();
    let touches = |one: &spec::Touch, other: &spec::Touch| {
        one.buffer == other.buffer
            && (one.access.writes() || other.access.writes())
            && counts(one.access)
            && counts(other.access)
    };
    meet && a.0.touches(a.1).iter().any(|one| b.0.touches(b.1).iter().any(|other| touches(one, other)))
}

/// A program of `nodes` nodes on all lanes, over random runs of the layout's ranks, touching a few buffers each. Node `i`
/// is `Embed { batch: i }`, or a send, so that a test can give each its own cost.
pub fn random_program(rng: &mut Rng, layout: Layout, nodes: u16) -> Program {
    let mut program = Program::new(layout);
    for batch in 0..nodes {
        let touches: Vec<_> = (0..rng.below(4)).map(|_| (buffer(rng), access(rng))).collect();
        let ranks = u64::from(layout.ranks());
        if ranks > 1 && rng.one_in(8) {
            let from = rng.below(ranks) as u16;
            let to = RankId((from + 1 + rng.below(ranks - 1) as u16) % ranks as u16);
            let ranks = Ranks { start: RankId(from), end: RankId(from + 1) };
            program.push(Op::SendRecv { what: Tensor::Hidden, batch, to }, Lane::PeerOut, ranks, touches);
        } else {
            let start = rng.below(ranks);
            let end = rng.within(start + 1, ranks);
            let ranks = Ranks { start: RankId(start as u16), end: RankId(end as u16) };
            program.push(
                Op::Embed { batch },
                Lane::ALL[rng.below(Lane::COUNT as u64) as usize],
                ranks,
                touches,
            );
        }
    }
    program
}

fn buffer(rng: &mut Rng) -> Buffer {
    let (index, tier) = (rng.below(2) as u16, Tier::ALL[rng.below(2) as usize]);
    match rng.below(5) {
        0 => Buffer::Hidden { batch: index, tier },
        1 => Buffer::Weights { slot: index, tier },
        2 => Buffer::Kv { layer: index, tier },
        3 => Buffer::KvSlot { slot: index, tier },
        _ => Buffer::Sampled,
    }
}

fn access(rng: &mut Rng) -> Access {
    [Access::Read, Access::Write, Access::ReadPast, Access::WritePast][rng.below(4) as usize]
}
