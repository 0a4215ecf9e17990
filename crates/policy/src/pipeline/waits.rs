//! Which node waits for which: derived from buffers, in one place, for the executor and for the timeline.
//!
//! Inside a program two touches of a buffer conflict when neither is a `past` one and one of them writes. Touches of
//! different programs conflict when one of them writes. A node waits for every earlier node that it conflicts with on one
//! of its ranks; what an earlier writer already waited for need not be remembered.

use spec::{Access, Buffer, Lane, Program, RankId, Touch};

/// What is remembered of touches: when they end, or which nodes they were.
pub(super) trait Mark: Clone + Default {
    /// Both.
    fn join(&mut self, other: &Self);
}

/// One buffer of one rank.
#[derive(Clone, Default)]
struct Cell<M> {
    /// The program that `own` is about.
    program: u64,
    earlier: Seen<M>,
    own: Seen<M>,
    own_past: Seen<M>,
    /// Whether the program wrote.
    wrote: bool,
}

#[derive(Clone, Default)]
struct Seen<M> {
    reads: M,
    writes: M,
}

/// What every buffer was last touched by, carried from program to program.
#[derive(Clone)]
pub(super) struct Ledger<M> {
    program: u64,
    ranks: Vec<[Vec<Cell<M>>; Buffer::KINDS]>,
}

impl<M: Mark> Ledger<M> {
    pub(super) fn new() -> Self {
        Self { program: 0, ranks: Vec::new() }
    }

    /// Touches from now on belong to the next program, over this many ranks.
    pub(super) fn begin(&mut self, ranks: u16) {
        self.program += 1;
        let ranks = self.ranks.len().max(usize::from(ranks));
        self.ranks.resize_with(ranks, Default::default);
    }

    /// Adds to `waits` what this touch must wait for.
    pub(super) fn wait(&mut self, rank: RankId, touch: Touch, waits: &mut M) {
        let cell = self.cell(rank, touch.buffer);
        waits.join(&cell.earlier.writes);
        if touch.access.writes() {
            waits.join(&cell.earlier.reads);
        }
        if !touch.access.past() {
            waits.join(&cell.own.writes);
        }
        if touch.access == Access::Write {
            waits.join(&cell.own.reads);
        }
    }

    /// Remembers that the touch took place.
    pub(super) fn mark(&mut self, rank: RankId, touch: Touch, mark: &M) {
        let cell = self.cell(rank, touch.buffer);
        cell.wrote |= touch.access.writes();
        match touch.access {
            Access::Read => cell.own.reads.join(mark),
            Access::Write => cell.own = Seen { reads: M::default(), writes: mark.clone() },
            Access::ReadPast => cell.own_past.reads.join(mark),
            Access::WritePast => cell.own_past.writes.join(mark),
        }
    }

    fn cell(&mut self, rank: RankId, buffer: Buffer) -> &mut Cell<M> {
        let (kind, at) = buffer.key();
        let cells = &mut self.ranks[rank.index()][kind];
        if cells.len() <= at {
            cells.resize(at + 1, Cell::default());
        }
        let cell = &mut cells[at];
        if cell.program != self.program {
            cell.turn(self.program);
        }
        cell
    }
}

impl<M: Mark> Cell<M> {
    /// What the last program did becomes what earlier programs did. A program that wrote waited for all before it.
    fn turn(&mut self, program: u64) {
        self.program = program;
        if std::mem::take(&mut self.wrote) {
            self.earlier = Seen::default();
        }
        for seen in [std::mem::take(&mut self.own), std::mem::take(&mut self.own_past)] {
            self.earlier.reads.join(&seen.reads);
            self.earlier.writes.join(&seen.writes);
        }
    }
}

/// A node's place in the order of all nodes of all programs; the first is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A node that must be done. Lanes run in order, so it is done when its lane has finished this ticket or a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wait {
    /// Of which rank.
    pub rank: RankId,
    /// The lane that runs it there.
    pub lane: Lane,
    /// Which node.
    pub ticket: Ticket,
}

/// What each node of a program waits for.
#[derive(Clone, Debug)]
pub struct Edges {
    first: Ticket,
    ends: Vec<u32>,
    waits: Vec<Wait>,
}

impl Edges {
    /// The ticket of node `index`.
    pub fn ticket(&self, index: usize) -> Ticket {
        Ticket(self.first.0 + index as u64)
    }

    /// What node `index` waits for beside the nodes before it on its own lanes: nodes of this program or earlier ones.
    pub fn of(&self, index: usize) -> &[Wait] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.waits[start as usize..self.ends[index] as usize]
    }
}

/// The newest ticket of each lane: lanes run in order, so older ones are done by then.
#[derive(Clone, Copy, Default)]
struct ByLane([Ticket; Lane::COUNT]);

impl Mark for ByLane {
    fn join(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine = theirs.max(*mine));
    }
}

/// Derives waits for one program after the other, in the order in which they are submitted.
#[derive(Clone)]
pub struct Waits {
    ledger: Ledger<ByLane>,
    next: Ticket,
}

impl Default for Waits {
    fn default() -> Self {
        Self { ledger: Ledger::new(), next: Ticket(1) }
    }
}

impl Waits {
    /// What the nodes of the next program wait for.
    pub fn derive(&mut self, program: &Program) -> Edges {
        self.ledger.begin(program.layout.ranks());
        let mut edges =
            Edges { first: self.next, ends: Vec::with_capacity(program.nodes().len()), waits: Vec::new() };
        for node in program.nodes() {
            let touches = program.touches(node);
            for (rank, lane) in node.places() {
                let mut waits = ByLane::default();
                touches.iter().for_each(|&touch| self.ledger.wait(rank, touch, &mut waits));
                let others = Lane::ALL.into_iter().filter(|&other| other != lane);
                let waits = others.map(|lane| Wait { rank, lane, ticket: waits.0[lane.index()] });
                edges.waits.extend(waits.filter(|wait| wait.ticket > Ticket(0)));
            }
            for (rank, lane) in node.places() {
                let mut mark = ByLane::default();
                mark.0[lane.index()] = self.next;
                touches.iter().for_each(|&touch| self.ledger.mark(rank, touch, &mark));
            }
            edges.ends.push(edges.waits.len() as u32);
            self.next.0 += 1;
        }
        edges
    }
}
