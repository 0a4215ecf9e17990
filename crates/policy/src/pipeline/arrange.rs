//! List scheduling: the nodes of a program in the order in which they would best begin.
//!
//! Lanes run in order, so a copy that is not ready holds up those behind it that are. Arranged once, with the costs that
//! are believed, the order is right from any start; costs wrong by a factor of two hardly matter. What comes out is never
//! slower, by those costs, than the order that went in, nor than the same work in lock-step (FlexGen, section 3.2, whose
//! loop runs one op of each lane at a time and then waits for all of them).
//!
//! ```text
//! in order    Up     |w1 (waits)      |kv2 |     kv2 could have run
//! lock-step   Up     |kv1 |....|w1  |..|kv2|     . = waits for the longest of its round
//! arranged    Up     |kv1 |kv2 |w1  |
//! ```

use super::waits::{Ledger, Mark};
use crate::cost::Cost;
use spec::{Lane, Nanos, Program, Shape};

/// Nodes that a touch waits for.
#[derive(Clone, Default)]
struct Nodes(Vec<u32>);

impl Mark for Nodes {
    fn join(&mut self, other: &Self) {
        for node in &other.0 {
            if !self.0.contains(node) {
                self.0.push(*node);
            }
        }
    }
}

/// A program as a graph: what each node costs, where it runs and what it waits for.
struct Graph {
    cost: Vec<Nanos>,
    /// Lanes of each node, as indices into a table over all ranks.
    lanes: Vec<Vec<usize>>,
    waits: Vec<Nodes>,
    lane_count: usize,
}

/// The same program in a better order; see the module.
pub fn arrange(program: Program, shape: &Shape, cost: &dyn Cost) -> Program {
    let lane = program.nodes().first().map(|node| (node.lane, node.ranks));
    if program.nodes().iter().all(|node| Some((node.lane, node.ranks)) == lane) {
        return program;
    }
    let graph = Graph::of(&program, shape, cost);
    let given: Vec<u32> = (0..program.nodes().len() as u32).collect();
    let listed = graph.list();
    let rounds = graph.rounds().0;
    let best = [listed, given, rounds].into_iter().min_by_key(|order| graph.makespan(order));
    program.reordered(&best.expect("there are three"))
}

/// How long a program takes in lock-step: rounds of one ready node for each lane, each round as long as its longest.
pub fn lock_step(program: &Program, shape: &Shape, cost: &dyn Cost) -> Nanos {
    Graph::of(program, shape, cost).rounds().1
}

impl Graph {
    fn of(program: &Program, shape: &Shape, cost: &dyn Cost) -> Self {
        let mut ledger = Ledger::<Nodes>::new();
        ledger.begin(program.layout.ranks());
        let waits = (0_u32..).zip(program.nodes()).map(|(index, node)| {
            let mut waits = Nodes::default();
            let touches = program.touches(node);
            for (rank, _) in node.places() {
                touches.iter().for_each(|&touch| ledger.wait(rank, touch, &mut waits));
            }
            let own = Nodes(vec![index]);
            for (rank, _) in node.places() {
                touches.iter().for_each(|&touch| ledger.mark(rank, touch, &own));
            }
            waits
        });
        let waits = waits.collect();
        let place = |(rank, lane): (spec::RankId, Lane)| rank.index() * Lane::COUNT + lane.index();
        Self {
            cost: program.nodes().iter().map(|node| cost.of(&node.op, shape)).collect(),
            lanes: program.nodes().iter().map(|node| node.places().map(place).collect()).collect(),
            waits,
            lane_count: usize::from(program.layout.ranks()) * Lane::COUNT,
        }
    }

    /// When the last node ends if lanes run in this order.
    fn makespan(&self, order: &[u32]) -> Nanos {
        let mut free = vec![Nanos::ZERO; self.lane_count];
        let mut ends = vec![Nanos::ZERO; self.cost.len()];
        for &node in order {
            let node = node as usize;
            let ready = self.waits[node].0.iter().map(|&before| ends[before as usize]).max();
            let begin = self.begin(node, ready.unwrap_or_default(), &free);
            ends[node] = begin + self.cost[node];
            self.lanes[node].iter().for_each(|&lane| free[lane] = ends[node]);
        }
        ends.into_iter().max().unwrap_or_default()
    }

    fn begin(&self, node: usize, ready: Nanos, free: &[Nanos]) -> Nanos {
        self.lanes[node].iter().map(|&lane| free[lane]).fold(ready, Nanos::max)
    }

    /// Nodes that wait for each node, and how many each waits for.
    fn followers(&self) -> (Vec<Vec<u32>>, Vec<usize>) {
        let mut followers = vec![Vec::new(); self.cost.len()];
        for (node, waits) in (0..).zip(&self.waits) {
            waits.0.iter().for_each(|&before| followers[before as usize].push(node));
        }
        (followers, self.waits.iter().map(|waits| waits.0.len()).collect())
    }

    /// The longest chain of costs from each node to the end.
    fn tails(&self, followers: &[Vec<u32>]) -> Vec<Nanos> {
        let mut tails = self.cost.clone();
        for node in (0..tails.len()).rev() {
            let after = followers[node].iter().map(|&next| tails[next as usize]).max();
            tails[node] += after.unwrap_or_default();
        }
        tails
    }

    /// Always next the node that can begin first; of several, the one with the longest chain behind it.
    fn list(&self) -> Vec<u32> {
        let (followers, mut missing) = self.followers();
        let tails = self.tails(&followers);
        let mut free = vec![Nanos::ZERO; self.lane_count];
        let mut ready_at = vec![Nanos::ZERO; self.cost.len()];
        let mut ready: Vec<u32> =
            (0..self.cost.len() as u32).filter(|&node| missing[node as usize] == 0).collect();
        let mut order = Vec::with_capacity(self.cost.len());
        while !ready.is_empty() {
            let key = |&node: &u32| {
                let begin = self.begin(node as usize, ready_at[node as usize], &free);
                (begin, std::cmp::Reverse(tails[node as usize]), node)
            };
            let (at, begin) = (0..ready.len())
                .map(|at| (at, key(&ready[at])))
                .min_by_key(|(_, key)| *key)
                .map(|(at, key)| (at, key.0))
                .expect("not empty");
            let node = ready.swap_remove(at) as usize;
            let end = begin + self.cost[node];
            self.lanes[node].iter().for_each(|&lane| free[lane] = end);
            order.push(node as u32);
            for &next in &followers[node] {
                ready_at[next as usize] = ready_at[next as usize].max(end);
                missing[next as usize] -= 1;
                if missing[next as usize] == 0 {
                    ready.push(next);
                }
            }
        }
        order
    }

    /// Lock-step: the order of its rounds, and how long they take.
    fn rounds(&self) -> (Vec<u32>, Nanos) {
        let mut done = vec![false; self.cost.len()];
        let mut left: Vec<u32> = (0..self.cost.len() as u32).collect();
        let (mut order, mut total) = (Vec::with_capacity(left.len()), Nanos::ZERO);
        while !left.is_empty() {
            let round = self.round(&left, &done);
            total += round.iter().map(|&node| self.cost[node as usize]).max().unwrap_or_default();
            round.iter().for_each(|&node| done[node as usize] = true);
            left.retain(|&node| !done[node as usize]);
            order.extend(round);
        }
        (order, total)
    }

    /// The first node of each lane that waits for nothing.
    fn round(&self, left: &[u32], done: &[bool]) -> Vec<u32> {
        let mut taken = vec![false; self.lane_count];
        let mut round = Vec::new();
        for &node in left {
            let lanes = &self.lanes[node as usize];
            let waits = self.waits[node as usize].0.iter().any(|&before| !done[before as usize]);
            if !waits && lanes.iter().all(|&lane| !taken[lane]) {
                lanes.iter().for_each(|&lane| taken[lane] = true);
                round.push(node);
            }
        }
        round
    }
}
