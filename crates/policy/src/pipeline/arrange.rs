//! List scheduling: the nodes of a program in the order in which they would best begin.
//!
//! Lanes run in order, so a copy that is not ready holds up those behind it that are. Arranged once, with the costs that
//! are believed, the order is right from any start; costs wrong by a factor of two hardly matter. What comes out is never
//! slower, by those costs, than the order that went in, nor than the same work in lock-step (FlexGen, section 4.2, figure 4, whose
//! loop runs one op of each lane at a time and then waits for all of them).
//!
//! ```text
//! in order    Up     |w1 (waits)      |kv2 |     kv2 could have run
//! lock-step   Up     |kv1 |....|w1  |..|kv2|     . = waits for the longest of its round
//! arranged    Up     |kv1 |kv2 |w1  |
//! ```

use super::graph::Graph;
use crate::cost::Cost;
use spec::{Nanos, Program, Shape};
use std::cmp::Reverse;

/// The same program in a better order; see the module.
pub fn arrange(program: Program, shape: &Shape, cost: &dyn Cost) -> Program {
    let lane = program.nodes().first().map(|node| (node.lane, node.ranks));
    if program.nodes().iter().all(|node| Some((node.lane, node.ranks)) == lane) {
        return program;
    }
    let graph = Graph::of(&program, shape, cost);
    let order = best(&graph);
    program.reordered(&order)
}

/// How long a program takes in lock-step: rounds of one ready node for each lane, each round as long as its longest.
pub fn lock_step(program: &Program, shape: &Shape, cost: &dyn Cost) -> Nanos {
    rounds(&Graph::of(program, shape, cost)).1
}

fn best(graph: &Graph) -> Vec<u32> {
    let tails = graph.tails();
    let (listed, took) = list(graph, &tails, Tie::LongestTail);
    if took == graph.least(&tails) {
        return listed;
    }
    let given: Vec<u32> = (0..graph.cost.len() as u32).collect();
    let orders = [listed, list(graph, &tails, Tie::FirstReady).0, given, rounds(graph).0];
    orders.into_iter().min_by_key(|order| graph.makespan(order)).expect("there are four")
}

/// Which of the nodes that can begin first goes first.
#[derive(Clone, Copy, PartialEq)]
enum Tie {
    /// The one with the longest chain behind it.
    LongestTail,
    /// The one that is ready for longest. Where two lanes feed each other in turn (host attention), those behind have the
    /// longer chains, and going by them alone lets the other lane run dry while they catch up.
    FirstReady,
}

/// Always next the node that can begin first. And how long it takes.
fn list(graph: &Graph, tails: &[Nanos], tie: Tie) -> (Vec<u32>, Nanos) {
    let count = graph.cost.len();
    let mut missing = graph.missing();
    let mut free = vec![Nanos::ZERO; graph.lane_count];
    let mut ends = vec![Nanos::ZERO; count];
    // With each ready node, when the last of those that it waited for ended.
    let mut ready: Vec<(u32, Nanos)> =
        (0..count as u32).filter(|&n| missing[n as usize] == 0).map(|n| (n, Nanos::ZERO)).collect();
    let mut order = Vec::with_capacity(count);
    while let Some((begin, at)) = first(graph, tails, &ready, &free, tie) {
        let node = ready.swap_remove(at).0 as usize;
        ends[node] = begin + graph.cost[node];
        graph.lanes.of(node).iter().for_each(|&lane| free[lane as usize] = ends[node]);
        order.push(node as u32);
        graph.release(node, &mut missing, |next| {
            let since = graph.waits.of(next as usize).iter().map(|&before| ends[before as usize]).max();
            ready.push((next, since.unwrap_or_default()));
        });
    }
    (order, ends.into_iter().max().unwrap_or_default())
}

/// Of the ready nodes, when the best begins and which it is.
fn first(
    graph: &Graph,
    tails: &[Nanos],
    ready: &[(u32, Nanos)],
    free: &[Nanos],
    tie: Tie,
) -> Option<(Nanos, usize)> {
    let keys = (0..).zip(ready).map(|(at, &(node, since))| {
        let begin = graph.begin(node as usize, since, free);
        let waiting = if tie == Tie::FirstReady { since } else { Nanos::ZERO };
        (begin, waiting, Reverse(tails[node as usize]), node, at)
    });
    keys.min().map(|(begin, .., at)| (begin, at))
}

/// Lock-step: the order of its rounds, and how long they take.
fn rounds(graph: &Graph) -> (Vec<u32>, Nanos) {
    let mut missing = graph.missing();
    let mut ready: Vec<u32> =
        (0..graph.cost.len() as u32).filter(|&node| missing[node as usize] == 0).collect();
    let (mut order, mut total) = (Vec::with_capacity(graph.cost.len()), Nanos::ZERO);
    let mut taken = vec![false; graph.lane_count];
    while !ready.is_empty() {
        let begin = order.len();
        taken.fill(false);
        ready.sort_unstable();
        ready.retain(|&node| {
            let lanes = graph.lanes.of(node as usize);
            let goes = lanes.iter().all(|&lane| !taken[lane as usize]);
            if goes {
                lanes.iter().for_each(|&lane| taken[lane as usize] = true);
                order.push(node);
            }
            !goes
        });
        let round = &order[begin..];
        total += round.iter().map(|&node| graph.cost[node as usize]).max().unwrap_or_default();
        round.iter().for_each(|&node| graph.release(node as usize, &mut missing, |next| ready.push(next)));
    }
    (order, total)
}
