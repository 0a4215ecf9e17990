//! The plain pipeline: what it emits, what overlaps, and what streamed weights cost.

use crate::common::words::words;
use policy::pipeline::{DiskPath, Plan, Share, Timeline, Weights, arrange, lower};
use spec::{ByTier, Lane, Layout, Load, MoveLoad, Nanos, Op, Part, Pipeline, RankId, Shape, Tier};

fn load(tokens: u32) -> Load {
    let context = ByTier { device: u64::from(tokens), host: 0, disk: 0 };
    Load { seqs: 1, tokens, samples: 1, context, ..Load::default() }
}

fn shape(batches: usize) -> Shape {
    Shape {
        pipeline: Pipeline::Plain,
        layout: Layout::SINGLE,
        loads: vec![load(8); batches],
        moves: Vec::new(),
    }
}

fn plan(layers: u16, weights: Weights) -> Plan {
    Plan { weights, max_batches: 8, ..Plan::resident(layers, 64) }
}

fn streamed(disk: DiskPath) -> Weights {
    Weights::Streamed { host: Share::None, disk: Some(disk) }
}

#[test]
fn a_resident_model_is_layer_by_layer_and_batch_by_batch() {
    let program = lower(&shape(2), &plan(1, Weights::Resident));
    let layer = "qkv0.0 att0.0@device out0.0 qkv0.1 att0.1@device out0.1 mlp0.0 mlp0.1";
    assert_eq!(words(&program), format!("embed0 embed1 {layer} head0 sample0 head1 sample1"));
    assert!(program.nodes().iter().all(|node| node.lane == Lane::Device));
}

#[test]
fn a_batch_that_samples_nothing_has_no_head() {
    let mut shape = shape(1);
    shape.loads[0].samples = 0;
    assert_eq!(
        words(&lower(&shape, &plan(1, Weights::Resident))),
        "embed0 qkv0.0 att0.0@device out0.0 mlp0.0"
    );
}

#[test]
fn a_step_of_moves_alone_is_a_move_of_each_layer() {
    let moves = vec![MoveLoad { from: Tier::Device, to: Tier::Host, blocks: 3 }];
    let shape = Shape { moves, ..shape(0) };
    let program = lower(&shape, &plan(3, streamed(DiskPath::Direct)));
    assert_eq!(words(&program), "move0 move1 move2");
    assert!(program.nodes().iter().all(|node| node.lane == Lane::Down));
}

#[test]
fn stages_send_what_they_computed_and_the_last_returns_tokens() {
    let layout = Layout { tp: 2, pp: 2, dp: 1 };
    let program = lower(&Shape { layout, ..shape(1) }, &Plan { layout, ..plan(2, Weights::Resident) });
    let layer = |l| format!("qkv{l}.0 att{l}.0@device out{l}.0 sum mlp{l}.0 sum");
    assert_eq!(words(&program), format!("embed0 {} send {} head0 sample0 return", layer(0), layer(1)));
    let send = program.nodes().iter().find(|node| matches!(node.op, Op::SendRecv { .. })).expect("a send");
    let places = [(0, Lane::PeerOut), (1, Lane::PeerOut), (2, Lane::PeerIn), (3, Lane::PeerIn)];
    assert_eq!(send.places().collect::<Vec<_>>(), places.map(|(rank, lane)| (RankId(rank), lane)));
}

/// Loads of 100, compute of `compute` for each of a layer's halves (all in its MLP and QKV), the rest nothing.
fn cost(load: u64, compute: u64) -> impl Fn(&Op, &Shape) -> Nanos {
    move |op, _| match op {
        Op::LoadWeights { .. } => Nanos(load),
        Op::Qkv { .. } | Op::Mlp { .. } => Nanos(compute),
        _ => Nanos(0),
    }
}

/// Time of the second of two steps in flight.
fn steady(layers: u16, weights: Weights, cost: &dyn Fn(&Op, &Shape) -> Nanos) -> u64 {
    let shape = shape(1);
    let program = arrange(lower(&shape, &plan(layers, weights)), &shape, &cost);
    let mut timeline = Timeline::new(Nanos(0));
    let first = timeline.commit(Nanos(0), &program, &shape, &cost).end;
    (timeline.commit(Nanos(0), &program, &shape, &cost).end - first).0
}

#[test]
fn streaming_hides_the_shorter_of_loads_and_compute() {
    let weights = streamed(DiskPath::Direct);
    // 8 layers of two halves, and the head. Loads run on while the step before computes.
    assert_eq!(steady(8, weights, &cost(100, 10)), 17 * 100);
    assert_eq!(steady(8, weights, &cost(10, 100)), 16 * 100);
}

#[test]
fn through_the_host_the_drive_and_the_link_overlap() {
    assert_eq!(steady(8, streamed(DiskPath::ThroughHost), &cost(100, 10)), 17 * 100);
}

#[test]
fn every_batch_uses_a_load_before_its_slot_is_written_again() {
    let program = lower(&shape(2), &plan(4, streamed(DiskPath::Direct)));
    let mut holds = std::collections::BTreeMap::new();
    let mut loads = 0;
    for node in program.nodes() {
        for (slot, _, access) in program.weight_slots(node) {
            match node.op {
                Op::LoadWeights { part, .. } => {
                    assert!(access.writes());
                    holds.insert(slot, part);
                    loads += 1;
                }
                Op::Qkv { layer, .. } | Op::OutProj { layer, .. } => {
                    assert_eq!(holds[&slot], Part::Attention(layer))
                }
                Op::Mlp { layer, .. } => assert_eq!(holds[&slot], Part::Mlp(layer)),
                Op::Head { .. } => assert_eq!(holds[&slot], Part::Head),
                other => panic!("{other:?} reads no weights"),
            }
        }
    }
    assert_eq!(
        (loads, holds.len()),
        (9, 5),
        "a load for each part, and a double buffer of two halves with the head"
    );
}

#[test]
fn both_shares_of_a_part_are_loaded_side_by_side() {
    let weights = Weights::Streamed { host: Share::Some, disk: Some(DiskPath::Direct) };
    let program = lower(&shape(1), &plan(1, weights));
    let lanes: Vec<_> =
        program.nodes().iter().map(|node| node.lane).filter(|lane| *lane != Lane::Device).collect();
    assert_eq!(lanes, [Lane::Up, Lane::DiskRead].repeat(3));
    let mlp = program.nodes().iter().find(|node| matches!(node.op, Op::Mlp { .. })).expect("an MLP");
    assert_eq!(program.weight_slots(mlp).count(), 2);
    assert_eq!(steady(4, weights, &cost(100, 10)), 9 * 100);
}
