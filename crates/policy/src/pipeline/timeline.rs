//! When a program would run: one short pass over its nodes, with costs instead of work.

use super::waits::{Ledger, Mark};
use crate::cost::Cost;
use spec::{Lane, Nanos, Program, Shape};

impl Mark for Nanos {
    fn join(&mut self, other: &Self) {
        *self = (*self).max(*other);
    }
}

/// When a program and its nodes run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// When the first node begins.
    pub begin: Nanos,
    /// When the last node ends: the step is done.
    pub end: Nanos,
    /// When each node begins and ends, in the program's order.
    pub nodes: Vec<(Nanos, Nanos)>,
}

/// Times in which no lane works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pauses {
    /// Between the start of a step and its first node.
    pub gap: Nanos,
    /// Until a lane works again that fell asleep, since what it waited for took longer than that.
    pub wake: Nanos,
}

impl From<Nanos> for Pauses {
    /// Lanes that never sleep.
    fn from(gap: Nanos) -> Self {
        Pauses { gap, wake: Nanos::ZERO }
    }
}

/// Lanes in virtual time. A lane runs its nodes in order; a node begins when its lanes are free, all that it waits for is
/// done and its stage has prepared the step. Preparing is a gap before the program, not an op: it goes on beside whatever
/// runs on the lanes, and every pipeline stage pays it, one after the other.
#[derive(Clone)]
pub struct Timeline {
    ledger: Ledger<Nanos>,
    /// When each lane of each rank is free.
    free: Vec<[Nanos; Lane::COUNT]>,
    /// When each stage is ready to prepare another step.
    prepared: Vec<Nanos>,
    pauses: Pauses,
}

impl Timeline {
    /// Nothing has run yet.
    pub fn new(pauses: impl Into<Pauses>) -> Self {
        Self { ledger: Ledger::new(), free: Vec::new(), prepared: Vec::new(), pauses: pauses.into() }
    }

    /// Runs a program that is started at `now`, after all that were committed before it.
    pub fn commit(&mut self, now: Nanos, program: &Program, shape: &Shape, cost: &dyn Cost) -> Timing {
        let layout = program.layout;
        self.ledger.begin(layout.ranks());
        self.prepare(now, usize::from(layout.pp));
        self.free.resize(self.free.len().max(usize::from(layout.ranks())), Default::default());
        let mut cost = cost.over(shape);
        let nodes: Vec<_> = (0..program.nodes().len())
            .map(|index| self.run(index, program, usize::from(layout.tp), &mut *cost))
            .collect();
        let begin = nodes.iter().map(|node| node.0).min().unwrap_or(now);
        Timing { begin, end: nodes.iter().map(|node| node.1).max().unwrap_or(now), nodes }
    }

    /// What [`Timeline::commit`] would answer, leaving no trace.
    pub fn peek(&self, now: Nanos, program: &Program, shape: &Shape, cost: &dyn Cost) -> Timing {
        self.clone().commit(now, program, shape, cost)
    }

    fn prepare(&mut self, now: Nanos, stages: usize) {
        self.prepared.resize(self.prepared.len().max(stages), Nanos::ZERO);
        let mut told = now;
        for prepared in &mut self.prepared[..stages] {
            *prepared = told.max(*prepared) + self.pauses.gap;
            told = *prepared;
        }
    }

    fn run(
        &mut self,
        index: usize,
        program: &Program,
        tp: usize,
        cost: &mut dyn FnMut(&spec::Op) -> Nanos,
    ) -> (Nanos, Nanos) {
        let node = &program.nodes()[index];
        let touches = program.touches(node);
        let (mut free, mut waits) = (Nanos::ZERO, Nanos::ZERO);
        for (rank, lane) in node.places() {
            free = free.max(self.free[rank.index()][lane.index()]).max(self.prepared[rank.index() / tp]);
            touches.iter().for_each(|&touch| self.ledger.wait(rank, touch, &mut waits));
        }
        let woken = if waits > free + self.pauses.wake { waits + self.pauses.wake } else { waits };
        let begin = free.max(woken);
        let end = begin + cost(&node.op);
        for (rank, lane) in node.places() {
            self.free[rank.index()][lane.index()] = end;
            touches.iter().for_each(|&touch| self.ledger.mark(rank, touch, &end));
        }
        (begin, end)
    }
}
