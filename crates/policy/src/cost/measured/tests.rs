//! Costs from tables against what the tables say.

use super::*;
use crate::cost::tables::{Beside, Decode, Linear};
use crate::cost::{Curve, OverLink, Roofline, Sparse};
use spec::{ByTier, Layout, Pipeline};

fn linear(seconds: f64) -> Linear {
    Linear { seconds: Curve::rate(1.0 / seconds), ..Linear::default() }
}

/// A second for every row of each linear, and for every byte and position.
fn measured() -> Measured {
    let tables = Tables {
        qkv: linear(1.0),
        out: linear(2.0),
        mlp: linear(3.0),
        head: linear(4.0),
        embed: Curve::rate(1.0),
        sample: Curve::rate(1.0),
        decode: vec![Decode { seqs: 1, seconds: Curve::rate(1.0) }],
        host_decode: vec![],
        host_mlp: Curve::default(),
        prefill: Curve::rate(1.0),
        disk_read: Curve::rate(1.0),
        disk_write_bytes_per_s: 0.5,
        copy_bytes_per_s: 2.0,
        step_gap_s: 0.0,
        wake_s: 0.0,
        node_s: 0.0,
        node_sequence_s: 0.0,
        beside: Beside::default(),
        beside_copies: Beside::default(),
    };
    let dims = Dims::TINY;
    let (from_disk, from_host) = (vec![[10, 20], [30, 0]], vec![[4, 0], [0, 0]]);
    Measured {
        tables,
        dims,
        bytes: ElementBytes::BF16,
        from_disk,
        from_host,
        delegation: Delegation::Never,
        disk_path: DiskPath::Direct,
        sparse: None,
        windows: vec![],
        link: None,
    }
}

fn shape(load: Load) -> Shape {
    Shape { pipeline: Pipeline::Plain, layout: Layout::SINGLE, loads: vec![load], moves: vec![] }
}

fn seconds(cost: &Measured, op: Op, load: Load) -> f64 {
    // Thousandths: sums of floats are not exact.
    (cost.of(&op, &shape(load)).as_secs() * 1e3).round() / 1e3
}

#[test]
fn ops_take_what_their_tables_say() {
    let (cost, load) = (measured(), Load { tokens: 5, samples: 2, seqs: 5, ..Load::default() });
    let ops = [
        (Op::Embed { batch: 0 }, 5.0),
        (Op::Qkv { layer: 0, batch: 0 }, 5.0),
        (Op::OutProj { layer: 1, batch: 0 }, 10.0),
        (Op::Mlp { layer: 0, batch: 0 }, 15.0),
        // After the last layer's attention the rows that sample are all that counts.
        (Op::Mlp { layer: 1, batch: 0 }, 6.0),
        (Op::Head { batch: 0 }, 8.0),
        (Op::Sample { batch: 0 }, 2.0),
    ];
    for (op, wanted) in ops {
        assert_eq!(seconds(&cost, op, load), wanted, "{op:?}");
    }
}

#[test]
fn loads_take_their_own_bytes_from_where_they_are() {
    let load =
        |part, from| seconds(&measured(), Op::LoadWeights { part, from, to: Tier::Device }, Load::default());
    assert_eq!(load(Part::Attention(1), Tier::Disk), 30.0);
    assert_eq!((load(Part::Mlp(1), Tier::Disk), load(Part::Head, Tier::Disk)), (0.0, 0.0));
    assert_eq!(load(Part::Attention(0), Tier::Host), 2.0);
    let link = LinkSpec { bytes_per_s: 0.5, latency: Nanos::from_secs(1.0) };
    let slow = Measured { link: Some(link), ..measured() };
    let op = Op::LoadWeights { part: Part::Attention(0), from: Tier::Host, to: Tier::Device };
    assert_eq!(seconds(&slow, op, Load::default()), 9.0);
}

#[test]
fn decodes_and_prompts_of_one_batch_are_told_apart() {
    let cost = measured();
    let on = Op::Attend { layer: 0, batch: 0, on: Tier::Device };
    let context = |device| ByTier { device, host: 0, disk: 0 };
    // Three sequences that see a hundred positions together.
    let decodes = Load { seqs: 3, tokens: 3, context: context(100), ..Load::default() };
    assert_eq!(seconds(&cost, on, decodes), 100.0);
    // A prompt of 101 tokens: its rows see 51 on average.
    let pairs = 101 * 102 / 2;
    let prompt = Load {
        seqs: 1,
        tokens: 101,
        context: context(101),
        prefill_pairs: context(pairs),
        ..Load::default()
    };
    let alone = seconds(&cost, on, prompt);
    assert!((alone / pairs as f64 - 1.0).abs() < 0.02, "{alone} of {pairs}");
    let both = Load {
        seqs: 4,
        tokens: 104,
        context: context(201),
        prefill_pairs: context(pairs),
        ..Load::default()
    };
    assert!((seconds(&cost, on, both) - alone - 100.0).abs() < 60.0);
}

#[test]
fn copies_take_time_from_what_computes_beside_them() {
    let mut cost = Measured { from_disk: vec![], from_host: vec![[4, 4], [4, 4]], ..measured() };
    cost.tables.beside_copies = Beside { moved: 3.0, few_rows: 2.0, many_rows: 2.0 };
    let mlp = Op::Mlp { layer: 0, batch: 0 };
    let up = Op::LoadWeights { part: Part::Mlp(0), from: Tier::Host, to: Tier::Device };
    // 8 seconds of copies beside 12 of linears: two thirds of these are pressed, and all copies.
    let load = Load { tokens: 1, ..Load::default() };
    assert_eq!((seconds(&cost, mlp, load), seconds(&cost, up, load)), (5.0, 6.0));
}

#[test]
fn a_layer_with_a_window_sees_no_more_than_that() {
    let cost = Measured { windows: vec![None, Some(10)], ..measured() };
    let context = ByTier { device: 100, host: 0, disk: 0 };
    let kv_in = ByTier { device: 0, host: 100, disk: 0 };
    let load = Load { seqs: 2, tokens: 2, context, kv_in, ..Load::default() };
    let attend = |layer| seconds(&cost, Op::Attend { layer, batch: 0, on: Tier::Device }, load);
    assert_eq!((attend(0), attend(1)), (100.0, 20.0));
    let copy = |layer| {
        let op = Op::CopyKv { layer, batch: 0, from: Tier::Host, to: Tier::Device };
        seconds(&cost, op, load)
    };
    assert!(copy(0) > 0.0 && (copy(1) * 5.0 - copy(0)).abs() < 1e-6);
    // What is new goes home whole: no window leaves it out.
    let out = Load { kv_out: ByTier { device: 0, host: 2, disk: 0 }, ..load };
    let home = |layer| {
        let op = Op::CopyKv { layer, batch: 0, from: Tier::Device, to: Tier::Host };
        seconds(&cost, op, out)
    };
    assert!(home(0) > 0.0 && home(0) == home(1), "{} {}", home(0), home(1));
    let shape = shape(load);
    let mut together = cost.over(&shape);
    for layer in [0, 1, 0] {
        let op = Op::Attend { layer, batch: 0, on: Tier::Device };
        assert_eq!(together(&op), cost.of(&op, &shape));
    }
}

#[test]
fn rows_of_a_prompt_see_no_more_than_a_window() {
    let cost = Measured { windows: vec![None, Some(10)], ..measured() };
    let on = |device| ByTier { device, host: 0, disk: 0 };
    let (context, prefill_pairs) = (on(101), on(101 * 102 / 2));
    let prompt = Load { seqs: 1, tokens: 101, context, prefill_pairs, ..Load::default() };
    let attend = |layer| seconds(&cost, Op::Attend { layer, batch: 0, on: Tier::Device }, prompt);
    // Of 101 rows nine see from one to nine positions, all others ten.
    let wanted = (45 + 92 * 10) as f64;
    assert!((attend(1) / wanted - 1.0).abs() < 0.02 && attend(0) > 5000.0, "{} {}", attend(0), attend(1));
}

#[test]
fn what_runs_beside_the_other_all_the_time_is_slowed_most() {
    let mut cost = measured();
    cost.tables.beside = Beside { moved: 1.5, few_rows: 2.0, many_rows: 2.0 };
    let (mlp, read) = (
        Op::Mlp { layer: 0, batch: 0 },
        Op::LoadWeights { part: Part::Mlp(0), from: Tier::Disk, to: Tier::Device },
    );
    // 60 seconds of reading; 12 seconds of linears for each row.
    let few = Load { tokens: 1, ..Load::default() };
    assert_eq!(seconds(&cost, mlp, few), 6.0);
    assert_eq!(seconds(&cost, read, few), 22.0);
    let many = Load { tokens: 50, ..Load::default() };
    assert_eq!(seconds(&cost, mlp, many), 165.0);
    assert_eq!(seconds(&cost, read, many), 30.0);
}

#[test]
fn ops_of_one_shape_cost_the_same_together_as_one_by_one() {
    let mut cost = measured();
    cost.tables.beside = Beside { moved: 1.5, few_rows: 2.0, many_rows: 3.0 };
    let shape = Shape {
        loads: vec![
            Load { seqs: 2, tokens: 9, samples: 1, ..Load::default() },
            Load { seqs: 3, tokens: 3, context: ByTier { device: 50, host: 0, disk: 0 }, ..Load::default() },
        ],
        ..shape(Load::default())
    };
    let part = Part::Attention(1);
    let ops = (0..2).flat_map(|batch| {
        [
            Op::Embed { batch },
            Op::Qkv { layer: 0, batch },
            Op::Qkv { layer: 1, batch },
            Op::Attend { layer: 1, batch, on: Tier::Device },
            Op::Attend { layer: 1, batch, on: Tier::Host },
            Op::OutProj { layer: 1, batch },
            Op::Mlp { layer: 1, batch },
            Op::Head { batch },
            Op::Sample { batch },
            Op::LoadWeights { part, from: Tier::Disk, to: Tier::Device },
        ]
    });
    let mut together = cost.over(&shape);
    ops.for_each(|op| assert_eq!(together(&op), cost.of(&op, &shape), "{op:?}"));
}

/// A roofline that was measured is a roofline: tables of its own times give them back between the points.
#[test]
fn tables_of_a_roofline_give_its_times() {
    let hardware = machine();
    let dims = Dims::named("llama-2-7b").expect("known");
    let truth = Roofline {
        hardware,
        dims,
        bytes: ElementBytes::BF16,
        weights: spec::Split::RESIDENT,
        disk_path: DiskPath::Direct,
        sparse: None,
    };
    let time = |op: Op, tokens: u32| {
        truth.of(&op, &shape(Load { tokens, samples: tokens, seqs: tokens, ..Load::default() })).as_secs()
    };
    let mlp = Op::Mlp { layer: 0, batch: 0 };
    let points = [1, 16, 64, 128, 256, 2048].map(|rows| (f64::from(rows), time(mlp, rows)));
    let mut cost = Measured { dims, from_disk: vec![], from_host: vec![], ..measured() };
    cost.tables.mlp.seconds = Curve::new(points.to_vec());
    for rows in [3, 40, 100, 300, 1500, 4000] {
        let load = Load { tokens: rows, ..Load::default() };
        let (got, wanted) = (cost.of(&mlp, &shape(load)).as_secs(), time(mlp, rows));
        assert!((got / wanted - 1.0).abs() < 0.1, "{rows} rows: {got}, {wanted}");
    }
}

fn machine() -> spec::HardwareSpec {
    let link = LinkSpec { bytes_per_s: 1e10, latency: Nanos::ZERO };
    let memory = spec::Bytes(1 << 34);
    spec::HardwareSpec {
        name: "a desk".into(),
        devices: 1,
        device: spec::DeviceSpec {
            memory,
            read_bytes_per_s: 3e10,
            matmul_flops: 2e12,
            attention_flops: 1e12,
            launch: Nanos::ZERO,
        },
        host: spec::HostSpec { memory, attention_bytes_per_s: 2e10, matmul_flops: 1e12, launch: Nanos::ZERO },
        disk: spec::DiskSpec {
            capacity: memory,
            read_bytes_per_s: 2e9,
            write_bytes_per_s: 1e9,
            latency: Nanos::ZERO,
        },
        up: link,
        down: link,
        peer: link,
        step_gap: Nanos::ZERO,
    }
}

#[test]
fn a_host_with_a_processor_of_its_own_takes_its_time_for_its_weights() {
    let mut cost = Measured { delegation: Delegation::Always { tokens: 4 }, ..measured() };
    cost.from_disk = vec![];
    cost.from_host = vec![[6, 40], [6, 5]];
    (cost.tables.qkv.bytes, cost.tables.out.bytes, cost.tables.mlp.bytes) = (8.0, 4.0, 20.0);
    let mlp = |layer| Op::Mlp { layer, batch: 0 };
    let up = Op::LoadWeights { part: Part::Mlp(0), from: Tier::Host, to: Tier::Device };
    let load = |tokens| Load { tokens, samples: tokens, ..Load::default() };
    // One processor for both: its linears have the time of all panels, and nothing is copied.
    assert_eq!((seconds(&cost, mlp(0), load(2)), seconds(&cost, up, load(2))), (6.0, 0.0));
    assert!(seconds(&cost, up, load(5)) > 0.0);
    // Ten seconds a row for an MLP of 20 bytes, half as many for attention's weights.
    cost.tables.host_mlp = Curve::rate(0.1);
    let both = shape(load(2));
    let mut together = cost.over(&both);
    for (op, wanted) in [
        (mlp(0), 40.0),
        (mlp(1), 6.0),
        (Op::Qkv { layer: 0, batch: 0 }, 4.0),
        (Op::OutProj { layer: 0, batch: 0 }, 4.0),
    ] {
        assert_eq!(seconds(&cost, op, load(2)), wanted, "{op:?}");
        assert_eq!(together(&op), cost.of(&op, &both));
    }
}

#[test]
fn a_share_of_the_keys_is_brought_few_values() {
    let sparse = Sparse { share: 0.01, queries: 1, link: OverLink::Tokens };
    let (exact, cost) = (measured(), Measured { sparse: Some(sparse), ..measured() });
    let context = ByTier { device: 3200, host: 0, disk: 0 };
    let (kv_in, decode_in) =
        (ByTier { disk: 3000, ..ByTier::default() }, ByTier { disk: 2000, ..ByTier::default() });
    let (disk_up, decode_up) = (3000, 2000);
    let load = Load { seqs: 1, tokens: 1, context, kv_in, decode_in, disk_up, decode_up, ..Load::default() };
    let (layer, batch, from, to) = (0, 0, Tier::Disk, Tier::Device);
    let [keys, values] = [Op::CopyKv { layer, batch, from, to }, Op::CopyChosen { layer, batch, from, to }];
    // Reads take as long as they have bytes, which are those of positions.
    let all = seconds(&exact, keys, load);
    let alone = |op| seconds(&Measured { from_disk: vec![], from_host: vec![], ..cost.clone() }, op, load);
    assert!(
        alone(keys) < all && alone(keys) + alone(values) < all,
        "{} and {} of {all}",
        alone(keys),
        alone(values)
    );
    assert!(alone(values) / alone(keys) < 0.5 * sparse.values(3200.0, (from, to)) + 0.01);
    let choose = seconds(&cost, Op::Choose { layer, batch, on: Tier::Device }, load);
    // All of an attention but its values.
    assert_eq!(choose, seconds(&cost, Op::Attend { layer, batch, on: Tier::Device }, load));
}
