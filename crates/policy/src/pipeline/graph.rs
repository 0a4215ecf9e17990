//! A program as a graph: what each node costs, where it runs, what it waits for and what waits for it.

use super::waits::{Ledger, Mark};
use crate::cost::Cost;
use spec::{Lane, Nanos, Program, Shape};

/// A list for each node, one after the other in one vector.
#[derive(Default)]
pub(super) struct Lists {
    ends: Vec<u32>,
    items: Vec<u32>,
}

impl Lists {
    fn with_capacity(lists: usize) -> Self {
        Self { ends: Vec::with_capacity(lists), items: Vec::with_capacity(lists * 2) }
    }

    fn push(&mut self, list: impl IntoIterator<Item = u32>) {
        self.items.extend(list);
        self.ends.push(self.items.len() as u32);
    }

    pub(super) fn of(&self, node: usize) -> &[u32] {
        let start = if node == 0 { 0 } else { self.ends[node - 1] };
        &self.items[start as usize..self.ends[node] as usize]
    }

    /// For each node, the lists that name it.
    fn inverted(&self) -> Self {
        let mut ends = vec![0_u32; self.ends.len()];
        self.items.iter().for_each(|&item| ends[item as usize] += 1);
        let mut sum = 0;
        for end in &mut ends {
            // Where the list begins, until it is filled up to its end.
            sum += std::mem::replace(end, sum);
        }
        let mut items = vec![0; self.items.len()];
        for list in 0..self.ends.len() {
            for &item in self.of(list) {
                items[ends[item as usize] as usize] = list as u32;
                ends[item as usize] += 1;
            }
        }
        Self { ends, items }
    }
}

/// Nodes that a touch waits for: mostly few.
#[derive(Clone, Default)]
struct Nodes {
    len: u32,
    few: [u32; 3],
    more: Vec<u32>,
}

impl Nodes {
    fn one(node: u32) -> Self {
        Self { len: 1, few: [node, 0, 0], more: Vec::new() }
    }

    fn iter(&self) -> impl Iterator<Item = u32> {
        self.few[..self.len as usize].iter().chain(&self.more).copied()
    }

    fn add(&mut self, node: u32) {
        if self.iter().any(|other| other == node) {
            return;
        }
        match self.few.get_mut(self.len as usize) {
            Some(place) => {
                *place = node;
                self.len += 1;
            }
            None => self.more.push(node),
        }
    }
}

impl Mark for Nodes {
    fn join(&mut self, other: &Self) {
        other.iter().for_each(|node| self.add(node));
    }
}

/// What of a graph follows from the program alone: steps that differ in counts have the same.
pub(super) struct Links {
    /// Lanes of each node, as indices into a table over all ranks.
    lanes: Lists,
    waits: Lists,
    followers: Lists,
    lane_count: usize,
}

impl Links {
    pub(super) fn of(program: &Program) -> Self {
        let nodes = program.nodes();
        let (waits, mut lanes) = (waits(program), Lists::with_capacity(nodes.len()));
        for node in nodes {
            lanes.push(node.places().map(|(rank, lane)| (rank.index() * Lane::COUNT + lane.index()) as u32));
        }
        let lane_count = usize::from(program.layout.ranks()) * Lane::COUNT;
        Self { lanes, followers: waits.inverted(), waits, lane_count }
    }
}

/// See the module.
pub(super) struct Graph<'a> {
    pub(super) cost: Vec<Nanos>,
    links: &'a Links,
}

impl<'a> Graph<'a> {
    /// `links`: those of the program.
    pub(super) fn new(links: &'a Links, program: &Program, shape: &Shape, cost: &dyn Cost) -> Self {
        let mut cost = cost.over(shape);
        Self { cost: program.nodes().iter().map(|node| cost(&node.op)).collect(), links }
    }

    /// The lanes of a node.
    pub(super) fn lanes(&self, node: usize) -> &[u32] {
        self.links.lanes.of(node)
    }

    /// A value for each lane of each rank.
    pub(super) fn by_lane<T: Clone>(&self, value: T) -> Vec<T> {
        vec![value; self.links.lane_count]
    }

    /// When the last of those ends that a node waits for.
    pub(super) fn ready(&self, node: usize, ends: &[Nanos]) -> Nanos {
        let before = self.links.waits.of(node).iter();
        before.map(|&before| ends[before as usize]).max().unwrap_or_default()
    }

    /// When a node begins that is ready at `ready`.
    pub(super) fn begin(&self, node: usize, ready: Nanos, free: &[Nanos]) -> Nanos {
        self.lanes(node).iter().map(|&lane| free[lane as usize]).fold(ready, Nanos::max)
    }

    /// When the last node ends if lanes run in this order.
    pub(super) fn makespan(&self, order: &[u32]) -> Nanos {
        let mut free = self.by_lane(Nanos::ZERO);
        let mut ends = vec![Nanos::ZERO; self.cost.len()];
        for &node in order {
            let node = node as usize;
            let begin = self.begin(node, self.ready(node, &ends), &free);
            ends[node] = begin + self.cost[node];
            self.lanes(node).iter().for_each(|&lane| free[lane as usize] = ends[node]);
        }
        ends.into_iter().max().unwrap_or_default()
    }

    /// No order takes less: the longest chain; and of each lane its work, after the shortest chain to it and before the shortest
    /// from it.
    pub(super) fn least(&self, tails: &[Nanos]) -> Nanos {
        let mut lanes = self.by_lane(None);
        let mut heads = vec![Nanos::ZERO; self.cost.len()];
        for node in 0..self.cost.len() {
            // Nodes wait for those before them alone.
            let before = self.ready(node, &heads);
            heads[node] = before + self.cost[node];
            let own = Span { before, work: self.cost[node], after: tails[node] - self.cost[node] };
            for &lane in self.lanes(node) {
                let lane = &mut lanes[lane as usize];
                *lane = Some(lane.map_or(own, |lane: Span| lane.and(own)));
            }
        }
        let lanes = lanes.into_iter().flatten().map(|lane| lane.before + lane.work + lane.after);
        lanes.chain(tails.iter().copied()).max().unwrap_or_default()
    }

    /// The longest chain of costs from each node to the end.
    pub(super) fn tails(&self) -> Vec<Nanos> {
        let mut tails = self.cost.clone();
        for node in (0..tails.len()).rev() {
            let after = self.links.followers.of(node).iter().map(|&next| tails[next as usize]).max();
            tails[node] += after.unwrap_or_default();
        }
        tails
    }

    /// How many nodes each waits for.
    pub(super) fn missing(&self) -> Vec<u32> {
        (0..self.cost.len()).map(|node| self.links.waits.of(node).len() as u32).collect()
    }

    /// Nodes that wait for nothing more now that `node` is done.
    pub(super) fn release(&self, node: usize, missing: &mut [u32], mut ready: impl FnMut(u32)) {
        for &next in self.links.followers.of(node) {
            missing[next as usize] -= 1;
            if missing[next as usize] == 0 {
                ready(next);
            }
        }
    }
}

/// A lane's nodes: the shortest chain before one of them, all their work, the shortest chain after one.
#[derive(Clone, Copy)]
struct Span {
    before: Nanos,
    work: Nanos,
    after: Nanos,
}

impl Span {
    fn and(self, other: Span) -> Span {
        Span {
            before: self.before.min(other.before),
            work: self.work + other.work,
            after: self.after.min(other.after),
        }
    }
}

fn waits(program: &Program) -> Lists {
    let mut ledger = Ledger::<Nodes>::new();
    ledger.begin(program.layout.ranks());
    let mut lists = Lists::with_capacity(program.nodes().len());
    for (index, node) in (0..).zip(program.nodes()) {
        let mut waits = Nodes::default();
        let touches = program.touches(node);
        for (rank, _) in node.places() {
            touches.iter().for_each(|&touch| ledger.wait(rank, touch, &mut waits));
        }
        let own = Nodes::one(index);
        for (rank, _) in node.places() {
            touches.iter().for_each(|&touch| ledger.mark(rank, touch, &own));
        }
        lists.push(waits.iter());
    }
    lists
}
