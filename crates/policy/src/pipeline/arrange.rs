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

use super::graph::{Graph, Links};
use crate::cost::Cost;
use spec::{Nanos, Program, Shape};
use std::cmp::Reverse;

/// Arranges one program after the other. Most are as one of those just before them, with other counts: what their nodes wait for
/// is not derived again.
#[derive(Default)]
pub struct Arranger {
    /// The newest last.
    known: Vec<(Program, Links)>,
}

/// Programs that are remembered: steps with prompts and without take turns, and the last of a block are apart.
const KNOWN: usize = 4;

impl Arranger {
    /// The same program in a better order; see the module.
    pub fn arrange(&mut self, program: Program, shape: &Shape, cost: &dyn Cost) -> Program {
        let lane = program.nodes().first().map(|node| (node.lane, node.ranks));
        if program.nodes().iter().all(|node| Some((node.lane, node.ranks)) == lane) {
            return program;
        }
        let order = best(&Graph::new(self.links(&program), &program, shape, cost));
        program.reordered(&order)
    }

    fn links(&mut self, program: &Program) -> &Links {
        match self.known.iter().position(|(known, _)| known == program) {
            Some(at) => self.known[at..].rotate_left(1),
            None => {
                if self.known.len() == KNOWN {
                    self.known.remove(0);
                }
                self.known.push((program.clone(), Links::of(program)));
            }
        }
        &self.known[self.known.len() - 1].1
    }
}

/// One program alone, as an [`Arranger`] has it.
pub fn arrange(program: Program, shape: &Shape, cost: &dyn Cost) -> Program {
    Arranger::default().arrange(program, shape, cost)
}

/// How long a program takes in lock-step: rounds of one ready node for each lane, each round as long as its longest.
pub fn lock_step(program: &Program, shape: &Shape, cost: &dyn Cost) -> Nanos {
    rounds(&Graph::new(&Links::of(program), program, shape, cost)).1
}

/// Of four orders the first that is the shortest. Those after one that nothing can beat are not made.
fn best(graph: &Graph<'_>) -> Vec<u32> {
    let tails = graph.tails();
    let least = graph.least(&tails);
    let timed = |order: Vec<u32>| (graph.makespan(&order), order);
    let orders: [&dyn Fn() -> (Nanos, Vec<u32>); 4] = [
        &|| list(graph, &tails, Tie::LongestTail),
        &|| list(graph, &tails, Tie::FirstReady),
        &|| timed((0..graph.cost.len() as u32).collect()),
        &|| timed(rounds(graph).0),
    ];
    let mut shortest = orders[0]();
    for order in &orders[1..] {
        if shortest.0 == least {
            break;
        }
        let next = order();
        if next.0 < shortest.0 {
            shortest = next;
        }
    }
    shortest.1
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

/// Always next the node that can begin first; after how long it takes.
fn list(graph: &Graph<'_>, tails: &[Nanos], tie: Tie) -> (Nanos, Vec<u32>) {
    let count = graph.cost.len();
    let mut missing = graph.missing();
    let mut free = graph.by_lane(Nanos::ZERO);
    let mut ends = vec![Nanos::ZERO; count];
    // With each ready node, when the last of those that it waited for ended.
    let mut ready: Vec<(u32, Nanos)> =
        (0..count as u32).filter(|&n| missing[n as usize] == 0).map(|n| (n, Nanos::ZERO)).collect();
    let mut order = Vec::with_capacity(count);
    while let Some((begin, at)) = first(graph, tails, &ready, &free, tie) {
        let node = ready.swap_remove(at).0 as usize;
        ends[node] = begin + graph.cost[node];
        graph.lanes(node).iter().for_each(|&lane| free[lane as usize] = ends[node]);
        order.push(node as u32);
        graph.release(node, &mut missing, |next| ready.push((next, graph.ready(next as usize, &ends))));
    }
    (ends.into_iter().max().unwrap_or_default(), order)
}

/// Of the ready nodes, when the best begins and which it is.
fn first(
    graph: &Graph<'_>,
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
fn rounds(graph: &Graph<'_>) -> (Vec<u32>, Nanos) {
    let mut missing = graph.missing();
    let mut ready: Vec<u32> =
        (0..graph.cost.len() as u32).filter(|&node| missing[node as usize] == 0).collect();
    let (mut order, mut total) = (Vec::with_capacity(graph.cost.len()), Nanos::ZERO);
    let mut taken = graph.by_lane(false);
    while !ready.is_empty() {
        let begin = order.len();
        taken.fill(false);
        ready.sort_unstable();
        ready.retain(|&node| {
            let lanes = graph.lanes(node as usize);
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

#[cfg(test)]
mod tests {
    use super::*;
    use spec::{Access, Buffer, Lane, Layout, Op, Pipeline, Ranks, Tier};

    /// So many nodes over three lanes and a few buffers, and what they cost: some of it drawn by a seed.
    fn drawn(seed: u64, nodes: u16) -> (Program, impl Fn(&Op, &Shape) -> Nanos) {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut below = move |most: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % most
        };
        let mut program = Program::new(Layout::SINGLE);
        for batch in 0..nodes {
            let lane = [Lane::Device, Lane::Up, Lane::DiskRead][below(3) as usize];
            let mut touch = || {
                let slot = Buffer::Weights { slot: below(4) as u16, tier: Tier::Device };
                (slot, [Access::Read, Access::Write][below(2) as usize])
            };
            let touches = [touch(), touch()];
            program.push(Op::Embed { batch }, lane, Ranks::FIRST, touches);
        }
        let costs: Vec<Nanos> = (0..nodes).map(|_| Nanos(1 + below(30))).collect();
        let cost = move |op: &Op, _: &Shape| match op {
            Op::Embed { batch } => costs[usize::from(*batch)],
            _ => Nanos::ZERO,
        };
        (program, cost)
    }

    fn shape() -> Shape {
        Shape { pipeline: Pipeline::Plain, layout: Layout::SINGLE, loads: vec![], moves: vec![] }
    }

    #[test]
    fn an_order_that_is_not_made_would_not_have_been_shorter() {
        let mut ended_early = 0;
        for seed in 1..400 {
            let (program, cost) = drawn(seed, 3 + (seed % 30) as u16);
            let links = Links::of(&program);
            let graph = Graph::new(&links, &program, &shape(), &cost);
            let tails = graph.tails();
            let all = [
                list(&graph, &tails, Tie::LongestTail).1,
                list(&graph, &tails, Tie::FirstReady).1,
                (0..graph.cost.len() as u32).collect(),
                rounds(&graph).0,
            ];
            let shortest = all.iter().min_by_key(|order| graph.makespan(order)).unwrap();
            assert_eq!(&best(&graph), shortest, "seed {seed}");
            assert!(graph.least(&tails) <= graph.makespan(shortest), "seed {seed}");
            ended_early += u32::from(graph.least(&tails) == graph.makespan(&all[0]));
        }
        assert!(ended_early > 100, "{ended_early} of 400");
    }

    #[test]
    fn whoever_arranged_others_arranges_the_same() {
        let mut arranger = Arranger::default();
        for turn in 0..40 {
            // Of some programs there are more than are remembered; each comes again with other costs.
            let (program, _) = drawn(1 + turn % (KNOWN as u64 + 2), 20);
            let (_, cost) = drawn(100 + turn, 20);
            let alone = arrange(program.clone(), &shape(), &cost);
            assert_eq!(arranger.arrange(program, &shape(), &cost), alone, "turn {turn}");
            assert!(arranger.known.len() <= KNOWN);
        }
    }
}
