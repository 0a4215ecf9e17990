//! Waits, timeline and `arrange` against definitions: brute force over all pairs, and an event-driven simulation.

use policy::pipeline::{Ticket, Timeline, Waits, arrange, lock_step};
use sim::{Rng, Submitted, conflict, random_program};
use spec::{Lane, Layout, Nanos, Op, Pipeline, Program, RankId, Shape};
use std::collections::{BTreeMap, BTreeSet};

fn shape(layout: Layout) -> Shape {
    Shape { pipeline: Pipeline::Plain, layout, loads: Vec::new(), moves: Vec::new() }
}

fn layout(rng: &mut Rng) -> Layout {
    let cuts = [(1, 1), (1, 1), (2, 1), (1, 3), (2, 2)];
    let (tp, pp) = cuts[rng.below(5) as usize];
    Layout { tp, pp, dp: 1 }
}

/// A cost for each node of a random program.
fn costs(rng: &mut Rng, nodes: u16) -> impl Fn(&Op, &Shape) -> Nanos + use<> {
    let table: Vec<_> = (0..nodes).map(|_| Nanos(rng.within(1, 100))).collect();
    move |op, _| match *op {
        Op::Embed { batch } | Op::SendRecv { batch, .. } => table[usize::from(batch)],
        _ => unreachable!("random programs have no other ops"),
    }
}

/// All nodes of some programs in order: which program, and which node of it.
fn all(programs: &[Program]) -> Vec<(usize, usize)> {
    (0..programs.len()).flat_map(|p| (0..programs[p].nodes().len()).map(move |n| (p, n))).collect()
}

fn must_wait(programs: &[Program], a: (usize, usize), b: (usize, usize)) -> bool {
    let submitted = if a.0 == b.0 { Submitted::Together } else { Submitted::Apart };
    let node = |(p, n): (usize, usize)| (&programs[p], &programs[p].nodes()[n]);
    conflict(node(a), node(b), submitted)
}

/// What is done before each node begins, by its waits and by the order of lanes.
fn before_by_waits(programs: &[Program]) -> Vec<BTreeSet<usize>> {
    let mut waits = Waits::default();
    let mut lanes: BTreeMap<(RankId, Lane), Vec<usize>> = BTreeMap::new();
    let mut before: Vec<BTreeSet<usize>> = Vec::new();
    for program in programs {
        let edges = waits.derive(program);
        for (index, node) in program.nodes().iter().enumerate() {
            let me = before.len();
            assert_eq!(edges.ticket(index), Ticket(me as u64 + 1), "tickets count all nodes");
            let mut mine = BTreeSet::new();
            let waited = edges.of(index).iter().map(|wait| {
                let at = wait.ticket.0 as usize - 1;
                assert!(lanes[&(wait.rank, wait.lane)].contains(&at), "a wait names a node of that lane");
                at
            });
            let ahead = node.places().filter_map(|place| lanes.get(&place)?.last().copied());
            for other in waited.chain(ahead).collect::<Vec<_>>() {
                mine.insert(other);
                mine.extend(before[other].iter().copied());
            }
            before.push(mine);
            node.places().for_each(|place| lanes.entry(place).or_default().push(me));
        }
    }
    before
}

#[test]
fn waits_order_all_that_conflicts() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let layout = layout(&mut rng);
        let programs: Vec<_> = (0..4).map(|_| random_program(&mut rng, layout, 20)).collect();
        let before = before_by_waits(&programs);
        let nodes = all(&programs);
        for b in 0..nodes.len() {
            for a in 0..b {
                let waits = must_wait(&programs, nodes[a], nodes[b]);
                assert!(
                    !waits || before[b].contains(&a),
                    "seed {seed}: {:?} before {:?}",
                    nodes[a],
                    nodes[b]
                );
            }
        }
    }
}

/// Runs programs by events: whenever something ends, every node that is first on all its lanes and waits for nothing
/// begins.
fn by_events(programs: &[(Nanos, Program)], cost: &dyn Fn(&Op, &Shape) -> Nanos) -> Vec<(Nanos, Nanos)> {
    let bare: Vec<_> = programs.iter().map(|(_, program)| program.clone()).collect();
    let nodes = all(&bare);
    let node = |i: usize| &bare[nodes[i].0].nodes()[nodes[i].1];
    let mut queues: BTreeMap<(RankId, Lane), Vec<usize>> = BTreeMap::new();
    (0..nodes.len())
        .rev()
        .for_each(|i| node(i).places().for_each(|at| queues.entry(at).or_default().push(i)));
    let mut spans: Vec<Option<(Nanos, Nanos)>> = vec![None; nodes.len()];
    let mut times: BTreeSet<Nanos> = programs.iter().map(|(at, _)| *at).collect();
    while let Some(now) = times.pop_first() {
        // Nodes without cost do not occur, so one sweep in order finds all that begin now.
        for i in 0..nodes.len() {
            let done = |j: usize| spans[j].is_some_and(|(_, end)| end <= now);
            let free =
                |j: usize| node(i).places().all(|at| !node(j).places().any(|other| other == at)) || done(j);
            let begins = spans[i].is_none()
                && programs[nodes[i].0].0 <= now
                && (0..i).all(|j| free(j) && (!must_wait(&bare, nodes[j], nodes[i]) || done(j)));
            if begins {
                let end = now + cost(&node(i).op, &shape(bare[nodes[i].0].layout));
                spans[i] = Some((now, end));
                times.insert(end);
            }
        }
    }
    spans.into_iter().map(|span| span.expect("every node runs")).collect()
}

#[test]
fn the_timeline_agrees_with_events() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let layout = layout(&mut rng);
        let cost = costs(&mut rng, 16);
        let mut start = Nanos::ZERO;
        let mut submit = |rng: &mut Rng| {
            start += Nanos(rng.below(300));
            (start, random_program(rng, layout, 16))
        };
        let programs: Vec<_> = (0..3).map(|_| submit(&mut rng)).collect();
        let mut timeline = Timeline::new(Nanos::ZERO);
        let mut spans = Vec::new();
        for (now, program) in &programs {
            let peeked = timeline.peek(*now, program, &shape(layout), &cost);
            let timing = timeline.commit(*now, program, &shape(layout), &cost);
            assert_eq!(peeked, timing, "seed {seed}: a peek sees what a commit does");
            spans.extend(timing.nodes);
        }
        assert_eq!(spans, by_events(&programs, &cost), "seed {seed}");
    }
}

#[test]
fn a_peek_leaves_no_trace() {
    let mut rng = Rng::new(5);
    let cost = costs(&mut rng, 20);
    let programs: Vec<_> = (0..3).map(|_| random_program(&mut rng, Layout::SINGLE, 20)).collect();
    let shape = shape(Layout::SINGLE);
    let (mut plain, mut peeking) = (Timeline::new(Nanos(3)), Timeline::new(Nanos(3)));
    for program in &programs {
        for other in &programs {
            peeking.peek(Nanos(1), other, &shape, &cost);
        }
        assert_eq!(
            plain.commit(Nanos(0), program, &shape, &cost),
            peeking.commit(Nanos(0), program, &shape, &cost)
        );
    }
}

fn makespan(program: &Program, cost: &dyn policy::cost::Cost) -> Nanos {
    Timeline::new(Nanos::ZERO).commit(Nanos::ZERO, program, &shape(program.layout), cost).end
}

#[test]
fn arranged_is_legal_and_never_worse_than_lock_step_or_as_given() {
    let mut better = 0;
    for seed in 0..500 {
        let mut rng = Rng::new(seed);
        let layout = layout(&mut rng);
        let nodes = rng.within(1, 60) as u16;
        let cost = costs(&mut rng, nodes);
        let program = random_program(&mut rng, layout, nodes);
        let arranged = arrange(program.clone(), &shape(layout), &cost);
        let took = makespan(&arranged, &cost);
        assert!(took <= makespan(&program, &cost), "seed {seed}: worse than as given");
        assert!(took <= lock_step(&program, &shape(layout), &cost), "seed {seed}: worse than lock-step");
        better += u32::from(took < makespan(&program, &cost));
        legal(&program, &arranged, seed);
    }
    assert!(better > 250, "arranging hardly ever helps: {better} of 500");
}

/// The same nodes, and whatever conflicts is still in the order in which it was given.
fn legal(given: &Program, arranged: &Program, seed: u64) {
    assert_eq!(given.nodes().len(), arranged.nodes().len());
    let place =
        |node: &spec::Node| arranged.nodes().iter().position(|other| other == node).expect("no node is lost");
    let places: Vec<_> = given.nodes().iter().map(place).collect();
    for b in 0..places.len() {
        for a in 0..b {
            let (one, other) = (&given.nodes()[a], &given.nodes()[b]);
            let ordered =
                !conflict((given, one), (given, other), Submitted::Together) || places[a] < places[b];
            assert!(ordered, "seed {seed}: {a} and {b} conflict and were swapped");
        }
    }
}

#[test]
fn a_copy_that_waits_does_not_hold_up_one_that_does_not() {
    use spec::{Access, Buffer, Ranks, Tier};
    let weights = |slot| Buffer::Weights { slot, tier: Tier::Device };
    let mut program = Program::new(Layout::SINGLE);
    let mut push = |batch, lane, touches: &[(Buffer, Access)]| {
        program.push(Op::Embed { batch }, lane, Ranks::FIRST, touches.iter().copied());
    };
    push(0, Lane::Device, &[(weights(0), Access::Read)]);
    push(1, Lane::Up, &[(weights(0), Access::Write)]);
    push(2, Lane::Up, &[(weights(1), Access::Write)]);
    push(3, Lane::Device, &[(weights(1), Access::Read)]);
    let cost = |_: &Op, _: &Shape| Nanos(10);
    assert_eq!(makespan(&program, &cost), Nanos(40));
    assert_eq!(makespan(&arrange(program, &shape(Layout::SINGLE), &cost), &cost), Nanos(20));
}
