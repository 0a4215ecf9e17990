//! Zig-zag and row-by-row: what they emit, that every node finds what it needs whatever things cost, what overlaps, and
//! that an arranged program is never slower than FlexGen's lock-step.

use crate::common::dataflow::play;
use crate::common::words::words;
use policy::cost::Cost;
use policy::pipeline::{
    DiskPath, Excess, Overlap, Plan, Share, Timeline, Values, Weights, arrange, lock_step, lower,
};
use sim::Rng;
use spec::{
    ByTier, Lane, Layout, Load, MoveLoad, Nanos, Op, Part, Pipeline, Program, Shape, Split, Tensor, Tier,
};

const STREAMED: Weights = Weights::Streamed { host: Share::None, disk: Some(DiskPath::Direct) };

fn plan(layers: u16, weights: Weights) -> Plan {
    Plan { weights, max_batches: 64, kv_slot_tokens: 1 << 40, ..Plan::resident(layers, 1 << 20) }
}

fn shape(pipeline: Pipeline, loads: Vec<Load>) -> Shape {
    Shape { pipeline, layout: Layout::SINGLE, loads, moves: Vec::new() }
}

/// Decodes with a context of 100, homed and attended there.
fn decodes(seqs: u32, home: Tier, attend: Tier) -> Load {
    let n = u64::from(seqs);
    let mut load = Load { seqs, tokens: seqs, samples: seqs, ..Load::default() };
    load.context[attend] = 101 * n;
    load.host_tokens = if attend == Tier::Host { seqs } else { 0 };
    if home != attend {
        (load.kv_in[home], load.kv_out[home], load.decode_in[home]) = (100 * n, n, 100 * n);
    }
    if (home, attend) == (Tier::Disk, Tier::Device) {
        (load.disk_up, load.disk_down, load.decode_up) = (100 * n, n, 100 * n);
    }
    load
}

#[test]
fn a_batch_goes_through_a_whole_layer_before_the_next() {
    let loads = vec![decodes(4, Tier::Device, Tier::Device); 2];
    let program = lower(&shape(Pipeline::Zigzag, loads), &plan(2, STREAMED));
    let layer = |l: u16, b: u16| format!("qkv{l}.{b} att{l}.{b}@device out{l}.{b} mlp{l}.{b}");
    let first = format!("A0 M0 embed0 {} embed1 {}", layer(0, 0), layer(0, 1));
    let last = format!("A1 M1 H {} head0 sample0 {} head1 sample1", layer(1, 0), layer(1, 1));
    assert_eq!(words(&program), format!("{first} {last}"));
}

#[test]
fn queries_go_down_and_what_was_attended_comes_up() {
    let loads = vec![decodes(4, Tier::Host, Tier::Host)];
    let program = lower(&shape(Pipeline::Zigzag, loads), &plan(1, Weights::Resident));
    assert_eq!(words(&program), "embed0 qkv0.0 q0 att0.0@host a0 out0.0 mlp0.0 head0 sample0");
    let lanes: Vec<_> = program.nodes()[2..5].iter().map(|node| node.lane).collect();
    assert_eq!(lanes, [Lane::Down, Lane::Host, Lane::Up]);
}

#[test]
fn kv_and_activations_of_the_drive_pass_through_the_host_where_the_device_does_not_reach_it() {
    let loads = vec![decodes(4, Tier::Disk, Tier::Device)];
    let hidden = Split::new(ByTier { device: 0, host: 0, disk: Split::WHOLE }).expect("adds up");
    let plan = |disk_path| Plan { hidden, disk_path, ..plan(2, Weights::Resident) };
    let through = words(&lower(&shape(Pipeline::Zigzag, loads.clone()), &plan(DiskPath::ThroughHost)));
    let first = "embed0 kv0.0:disk>host kv0.0:host>device qkv0.0 att0.0@device kv0.0:device>host kv0.0:host>disk out0.0 mlp0.0";
    assert!(
        through.starts_with(&format!("{first} h0:device>host h0:host>disk h0:disk>host h0:host>device")),
        "{through}"
    );
    let direct = words(&lower(&shape(Pipeline::Zigzag, loads), &plan(DiskPath::Direct)));
    let first = "embed0 kv0.0:disk>device qkv0.0 att0.0@device kv0.0:device>disk out0.0 mlp0.0";
    assert!(direct.starts_with(&format!("{first} h0:device>disk h0:disk>device")), "{direct}");
}

#[test]
fn decodes_that_choose_have_keys_first_and_then_what_they_chose_of_the_values() {
    let chosen = |disk_path| Plan { disk_path, values: Values::Chosen, ..plan(1, Weights::Resident) };
    let lowered = |load, path| words(&lower(&shape(Pipeline::Zigzag, vec![load]), &chosen(path)));
    assert_eq!(
        lowered(decodes(4, Tier::Disk, Tier::Device), DiskPath::ThroughHost),
        "embed0 kv0.0:disk>host kv0.0:host>device qkv0.0 choose0.0@device v0.0:disk>host v0.0:host>device att0.0@device \
         kv0.0:device>host kv0.0:host>disk out0.0 mlp0.0 head0 sample0"
    );
    assert_eq!(
        lowered(decodes(4, Tier::Disk, Tier::Host), DiskPath::Direct),
        "embed0 kv0.0:disk>host qkv0.0 q0 choose0.0@host v0.0:disk>host att0.0@host a0 kv0.0:host>disk out0.0 mlp0.0 \
         head0 sample0"
    );
    // Prompts have all of theirs with the keys, and what is attended where it lives is not brought.
    let prompt = Load { decode_in: ByTier::default(), ..decodes(4, Tier::Host, Tier::Device) };
    for load in [prompt, decodes(4, Tier::Host, Tier::Host), decodes(4, Tier::Device, Tier::Device)] {
        let all = lower(&shape(Pipeline::Zigzag, vec![load]), &plan(1, Weights::Resident));
        assert_eq!(lowered(load, DiskPath::Direct), words(&all));
    }
}

#[test]
fn keys_of_the_next_batch_come_while_this_one_chooses() {
    let plan = Plan { values: Values::Chosen, ..plan(8, Weights::Resident) };
    let shape = shape(Pipeline::Zigzag, vec![decodes(4, Tier::Disk, Tier::Device); 6]);
    let cost = |op: &Op, _: &Shape| match op {
        Op::CopyKv { to: Tier::Device, .. } => Nanos(100),
        Op::CopyChosen { .. } => Nanos(30),
        Op::Choose { .. } | Op::Attend { .. } => Nanos(20),
        _ => Nanos(1),
    };
    let took = took(&shape, &plan, &cost);
    assert!((6_240..6_700).contains(&took), "48 times 130 on the drive, nearly all of it: {took}");
}

fn loads_of_weights(program: &Program) -> usize {
    program.nodes().iter().filter(|node| matches!(node.op, Op::LoadWeights { .. })).count()
}

#[test]
fn zigzag_loads_weights_once_a_step_and_rows_once_a_batch() {
    for batches in [1, 2, 7] {
        let loads = vec![decodes(4, Tier::Device, Tier::Device); batches];
        let count = |pipeline| loads_of_weights(&lower(&shape(pipeline, loads.clone()), &plan(5, STREAMED)));
        assert_eq!((count(Pipeline::Zigzag), count(Pipeline::Row)), (11, 11 * batches));
    }
}

/// A cost of each op by what kind it is, so that lanes can be made long or short.
fn lane_cost(load: u64, kv: u64, hidden: u64, compute: u64) -> impl Fn(&Op, &Shape) -> Nanos {
    move |op, _| match op {
        Op::LoadWeights { .. } => Nanos(load),
        Op::CopyKv { .. } => Nanos(kv),
        Op::MoveHidden { .. } => Nanos(hidden),
        Op::Mlp { .. } => Nanos(compute),
        _ => Nanos(1),
    }
}

fn took(shape: &Shape, plan: &Plan, cost: &dyn Cost) -> u64 {
    let program = arrange(lower(shape, plan), shape, cost);
    Timeline::new(Nanos(0)).commit(Nanos(0), &program, shape, cost).end.0
}

#[test]
fn six_things_overlap_and_the_longest_sets_the_pace() {
    let (layers, batches) = (8, 10);
    let hidden = Split::new(ByTier { device: 0, host: Split::WHOLE, disk: 0 }).expect("adds up");
    let plan = Plan { hidden, ..plan(layers, STREAMED) };
    let shape = shape(Pipeline::Zigzag, vec![decodes(4, Tier::Host, Tier::Device); batches]);
    let squares = u64::from(layers) * batches as u64;
    // Per batch and layer: up 40 + 10, down 40 + 10, compute 52 + 3; per layer two loads from the drive of 200.
    let paced = |cost: &dyn Cost, pace: u64| {
        let took = took(&shape, &plan, cost);
        assert!(took < pace * 108 / 100 + 500, "{took} at a pace of {pace}");
        assert!(took >= pace, "{took} is faster than the busiest lane: {pace}");
    };
    paced(&lane_cost(200, 40, 10, 52), squares * 55);
    paced(&lane_cost(200, 70, 10, 20), squares * 80 - 70);
    paced(&lane_cost(900, 20, 10, 20), 17 * 900);
}

#[test]
fn rows_overlap_no_load_with_compute() {
    let loads = vec![decodes(4, Tier::Device, Tier::Device); 3];
    let took = took(&shape(Pipeline::Row, loads), &plan(4, STREAMED), &lane_cost(100, 0, 0, 50));
    // A batch: nine loads of 100; four MLPs of 50, twelve ops of a layer, embed, head and sample of 1. The next batch's
    // first load begins beside the sampling.
    assert_eq!(took, 3 * (9 * 100 + 4 * 50 + 12 + 3) - 2);
}

#[test]
fn the_host_attends_one_batch_while_the_device_computes_others() {
    let shape = shape(Pipeline::Zigzag, vec![decodes(4, Tier::Host, Tier::Host); 6]);
    let cost = |op: &Op, _: &Shape| match op {
        Op::Attend { .. } | Op::Mlp { .. } => Nanos(100),
        _ => Nanos(1),
    };
    let took = took(&shape, &plan(8, Weights::Resident), &cost);
    assert!((4_800..5_300).contains(&took), "8 x 6 x 100 on each of two lanes: {took}");
}

/// A random load: chunks of any home, attended on the device or where they live.
fn random_load(rng: &mut Rng, pipeline: Pipeline) -> Load {
    let mut load = Load::default();
    for _ in 0..rng.within(1, 3) {
        let homes = if pipeline == Pipeline::Plain { 1 } else { 3 };
        let home = Tier::ALL[rng.below(homes) as usize];
        let attend = if home == Tier::Device || rng.one_in(2) { Tier::Device } else { Tier::Host };
        let mut chunk = decodes(rng.within(1, 5) as u32, home, attend);
        if rng.one_in(4) {
            // Part of a prompt.
            (chunk.decode_in, chunk.decode_up) = (ByTier::default(), 0);
        }
        load.seqs += chunk.seqs;
        load.tokens += chunk.tokens;
        load.samples += chunk.samples;
        load.host_tokens += chunk.host_tokens;
        load.disk_up += chunk.disk_up;
        load.disk_down += chunk.disk_down;
        load.decode_up += chunk.decode_up;
        for tier in Tier::ALL {
            load.context[tier] += chunk.context[tier];
            load.kv_in[tier] += chunk.kv_in[tier];
            load.decode_in[tier] += chunk.decode_in[tier];
            load.kv_out[tier] += chunk.kv_out[tier];
        }
    }
    if rng.one_in(8) {
        load.samples = 0;
    }
    load
}

fn random_plan(rng: &mut Rng) -> Plan {
    let disk_path = if rng.one_in(2) { DiskPath::Direct } else { DiskPath::ThroughHost };
    let share = |rng: &mut Rng| if rng.one_in(2) { Share::Some } else { Share::None };
    let weights = match rng.below(4) {
        0 => Weights::Resident,
        _ => Weights::Streamed { host: share(rng), disk: rng.one_in(2).then_some(disk_path) },
    };
    let device = rng.below(3) as u32 * Split::WHOLE / 2;
    let host = rng.below(u64::from(Split::WHOLE - device) + 1) as u32;
    let hidden = Split::new(ByTier { device, host, disk: Split::WHOLE - device - host }).expect("adds up");
    let values = if rng.one_in(2) { Values::Chosen } else { Values::All };
    Plan { hidden, disk_path, values, ..plan(rng.within(1, 4) as u16, weights) }
}

fn random_shape(rng: &mut Rng, pipeline: Pipeline, batches: usize) -> Shape {
    let loads = (0..batches).map(|_| random_load(rng, pipeline)).collect();
    let tiers = [(Tier::Device, Tier::Host), (Tier::Host, Tier::Device)];
    let moves =
        tiers.into_iter().filter(|_| rng.one_in(4)).map(|(from, to)| MoveLoad { from, to, blocks: 3 });
    let moves = moves.collect();
    Shape { moves, ..shape(pipeline, loads) }
}

/// Every kind of op has a cost of its own, which its layer and batch change a little.
fn random_cost(rng: &mut Rng) -> impl Fn(&Op, &Shape) -> Nanos + use<> {
    let table: Vec<u64> = (0..32).map(|_| rng.within(1, 200)).collect();
    move |op, _| {
        let kind = match op {
            Op::LoadWeights { from, to, .. } => 10 + 3 * (*from as usize) + *to as usize,
            Op::Choose { .. } => 7,
            Op::CopyKv { from, to, .. } | Op::CopyChosen { from, to, .. } => {
                19 + 3 * (*from as usize) + *to as usize
            }
            Op::MoveHidden { to, .. } => *to as usize,
            Op::Attend { on, .. } => 3 + *on as usize,
            Op::Mlp { batch, .. } => 6 + usize::from(*batch) % 2,
            Op::Qkv { .. } => 8,
            _ => 9,
        };
        Nanos(table[kind])
    }
}

const PIPELINES: [Pipeline; 3] = [Pipeline::Plain, Pipeline::Zigzag, Pipeline::Row];

#[test]
fn every_node_finds_what_it_needs_whatever_things_cost() {
    for seed in 0..600 {
        let mut rng = Rng::new(seed);
        let (pipeline, plan) = (PIPELINES[seed as usize % 3], random_plan(&mut rng));
        let batches = rng.within(1, 6) as usize;
        // The same loads in each step, so that a home is read only where it was written.
        let shape = random_shape(&mut rng, pipeline, batches);
        let shapes = vec![Shape { moves: Vec::new(), ..shape.clone() }, shape.clone(), shape];
        let (believed, true_cost) = (random_cost(&mut rng), random_cost(&mut rng));
        plan.fits(&shapes[1])
            .unwrap_or_else(|excess| assert!(!shapes[1].moves.is_empty(), "seed {seed}: {excess}"));
        let program = |shape: Shape| {
            let program = arrange(lower(&shape, &plan), &shape, &believed);
            (shape, program)
        };
        let steps: Vec<_> = shapes.into_iter().map(program).collect();
        play(&plan, &steps, &true_cost);
    }
}

/// FlexGen's loop: for each layer and batch one round, as long as the longest of compute, loads, copies in for the next
/// batch and out of the last (section 4.2, figure 4; reference model with one barrier a round).
fn flexgen_loop(shape: &Shape, plan: &Plan, cost: &dyn Cost) -> Nanos {
    let program = lower(shape, plan);
    let batches = shape.loads.len();
    let (mut before, mut total) = (Nanos::ZERO, Nanos::ZERO);
    let squares = usize::from(plan.layers) * batches;
    // What each square takes of each lane, its copies in and out apart.
    let mut compute = vec![Nanos::ZERO; squares];
    let mut inward = vec![[Nanos::ZERO; Lane::COUNT]; squares + 2];
    let mut outward = vec![[Nanos::ZERO; Lane::COUNT]; squares + 2];
    let mut chosen = vec![[Nanos::ZERO; Lane::COUNT]; squares];
    let mut weights = vec![[Nanos::ZERO; Lane::COUNT]; usize::from(plan.layers) + 1];
    // What goes from tier to tier to tier does so one after the other: KV and activations in, KV and activations out.
    let mut chains = vec![[Nanos::ZERO; 4]; squares + 2];
    // Of each batch.
    let mut layers_done = vec![0; batches];
    for node in program.nodes() {
        let (took, lane) = (cost.of(&node.op, shape), node.lane.index());
        let square = |layer: u16, batch: u16| usize::from(layer) * batches + usize::from(batch);
        match node.op {
            Op::Qkv { layer, batch } | Op::OutProj { layer, batch } | Op::Mlp { layer, batch } => {
                compute[square(layer, batch)] += took;
                layers_done[usize::from(batch)] += u16::from(matches!(node.op, Op::Mlp { .. }));
            }
            Op::Attend { layer, batch, .. } | Op::Choose { layer, batch, .. } => {
                compute[square(layer, batch)] += took
            }
            // Which values are wanted is known once keys have been multiplied: they come in the middle of it.
            Op::CopyChosen { layer, batch, .. } => {
                compute[square(layer, batch)] += took;
                chosen[square(layer, batch)][lane] += took;
            }
            Op::LoadWeights { part: Part::Attention(layer) | Part::Mlp(layer), .. } => {
                weights[usize::from(layer)][lane] += took
            }
            Op::CopyKv { layer, batch, from, to } => {
                let inwards = to == Tier::Device || from == Tier::Disk;
                let side = if inwards { &mut inward } else { &mut outward };
                side[square(layer, batch)][lane] += took;
                chains[square(layer, batch)][if inwards { 0 } else { 2 }] += took;
            }
            Op::MoveHidden { what: Tensor::Hidden, batch, from, to } => {
                let done = layers_done[usize::from(batch)];
                let (side, layer, chain) = match to == Tier::Device || from == Tier::Disk {
                    true if done < plan.layers => (&mut inward, done, 1),
                    false if done > 0 => (&mut outward, done - 1, 3),
                    _ => {
                        before += took;
                        continue;
                    }
                };
                side[square(layer, batch)][lane] += took;
                chains[square(layer, batch)][chain] += took;
            }
            // Embedding, head and the first loads, which the loop does not overlap; queries and results of attention on the host,
            // which are part of its compute.
            _ => before += took,
        }
    }
    before += weights[0].iter().copied().sum();
    before += inward[0].iter().copied().sum();
    for at in 0..squares {
        let (layer, batch) = (at / batches, at % batches);
        let load = |lane: usize| if batch == 0 { weights[layer + 1][lane] } else { Nanos::ZERO };
        let last = |lane: usize| if at > 0 { outward[at - 1][lane] } else { Nanos::ZERO };
        let sum = |lane: usize| load(lane) + inward[at + 1][lane] + chosen[at][lane] + last(lane);
        let lanes = (0..Lane::COUNT).map(sum);
        let ([kv, hidden, ..], [.., kv_out, hidden_out]) =
            (chains[at + 1], if at > 0 { chains[at - 1] } else { [Nanos::ZERO; 4] });
        total += lanes.chain([kv, hidden, kv_out, hidden_out, compute[at]]).max().unwrap_or_default();
    }
    before + total + outward[squares - 1].iter().copied().sum()
}

/// Without overlap the picture still shows which lane does what, and each node waits for the one before it, over steps too.
#[test]
fn one_thing_at_a_time_goes_on_where_it_belongs() {
    let mut rng = Rng::new(1);
    let weights = Weights::Streamed { host: Share::Some, disk: Some(DiskPath::ThroughHost) };
    let loads = vec![decodes(4, Tier::Host, Tier::Host), decodes(4, Tier::Disk, Tier::Device)];
    let shape = shape(Pipeline::Zigzag, loads);
    let cost = random_cost(&mut rng);
    let beside = lower(&shape, &plan(3, weights));
    let alone = Plan { overlap: Overlap::Nothing, ..plan(3, weights) };
    let alone = arrange(lower(&shape, &alone), &shape, &cost);
    let places = |program: &Program| -> Vec<_> { program.nodes().iter().map(|n| (n.op, n.lane)).collect() };
    assert_eq!(places(&alone), places(&beside));
    let sum: Nanos = alone.nodes().iter().map(|node| cost(&node.op, &shape)).sum();
    let mut timeline = Timeline::new(Nanos(0));
    let mut commit = || timeline.commit(Nanos(0), &alone, &shape, &cost);
    let (first, second) = (commit(), commit());
    assert_eq!((first.end, second.begin, second.end), (sum, sum, sum + sum));
}

#[test]
fn arranged_is_never_slower_than_lock_step() {
    let mut gains = Vec::new();
    for seed in 0..2000 {
        let mut rng = Rng::new(seed);
        let plan = Plan { layers: rng.within(2, 6) as u16, ..random_plan(&mut rng) };
        // Of fewer batches the loop would bring, in one round, activations that this round computes or stores.
        let fewest = if plan.hidden == Split::RESIDENT { 1 } else { 3 };
        let batches = rng.within(fewest, 9) as usize;
        let (shape, cost) = (random_shape(&mut rng, Pipeline::Zigzag, batches), random_cost(&mut rng));
        let shape = Shape { moves: vec![], ..shape };
        let lowered = lower(&shape, &plan);
        let rounds = lock_step(&lowered, &shape, &cost);
        let arranged = took(&shape, &plan, &cost);
        let flexgen = flexgen_loop(&shape, &plan, &cost).0;
        assert!(arranged <= rounds.0, "seed {seed}: {arranged} against {rounds:?} in rounds");
        assert!(arranged <= flexgen, "seed {seed}: {arranged} against {flexgen} in FlexGen's loop");
        gains.push(flexgen as f64 / arranged as f64);
    }
    let mean = gains.iter().sum::<f64>() / gains.len() as f64;
    assert!(mean > 1.05, "dependencies gain nothing over barriers: {mean}");
}

#[test]
fn each_pipeline_says_what_it_cannot_have() {
    let fits = |pipeline, load, plan: &Plan| plan.fits(&shape(pipeline, vec![load]));
    let roomy = plan(2, STREAMED);
    let streamed = decodes(4, Tier::Host, Tier::Device);
    assert_eq!(fits(Pipeline::Zigzag, streamed, &roomy), Ok(()));
    let tight = Plan { kv_slot_tokens: 403, ..roomy };
    assert_eq!(fits(Pipeline::Zigzag, streamed, &tight), Err(Excess::KvSlot { found: 404, room: 403 }));
    for load in [streamed, decodes(4, Tier::Host, Tier::Host), decodes(4, Tier::Disk, Tier::Device)] {
        assert!(matches!(fits(Pipeline::Plain, load, &roomy), Err(Excess::Attention { .. })), "{load:?}");
        assert_eq!(fits(Pipeline::Row, load, &roomy), Ok(()));
    }
    let on_disk = Load { context: ByTier { device: 0, host: 0, disk: 5 }, ..Load::default() };
    let wrong = Excess::Attention { pipeline: Pipeline::Zigzag, tier: Tier::Disk };
    assert_eq!(fits(Pipeline::Zigzag, on_disk, &roomy), Err(wrong));
    let spilled = Split::new(ByTier { device: 0, host: Split::WHOLE, disk: 0 }).expect("adds up");
    let layout = Layout { tp: 1, pp: 2, dp: 1 };
    let staged = Plan { hidden: spilled, layout, ..roomy };
    let two_stages = Shape { layout, ..shape(Pipeline::Zigzag, vec![streamed]) };
    assert_eq!(staged.fits(&two_stages), Err(Excess::Stages { stages: 2 }));
}
