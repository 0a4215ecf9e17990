//! What is learned of a machine that is not as its tables say.

use super::*;
use crate::cost::{Cost, Curve, Dims, ElementBytes, Measured};
use crate::pipeline::{BothWays, Delegation, DiskPath};
use spec::{LinkSpec, Load, Nanos, Part, Pipeline, Shape};

const PACE: Pace = Pace { trust_s: 20.0, memory_s: 300.0, window_s: 1.0, least_s: 10.0 };

fn tables() -> Tables {
    let linear =
        |seconds: f64| Linear { seconds: Curve::rate(1.0 / seconds), bytes: 1e6, ..Linear::default() };
    Tables {
        qkv: linear(1e-4),
        out: linear(1e-4),
        mlp: linear(3e-4),
        head: linear(1e-4),
        decode: vec![Decode { seqs: 1, seconds: Curve::rate(1e6) }],
        host_mlp: Curve::rate(1.0 / 9e-4),
        prefill: Curve::rate(1e6),
        disk_read: Curve::rate(1e9),
        disk_write_bytes_per_s: 1e9,
        copy_bytes_per_s: 1e10,
        ..Tables::default()
    }
}

fn costs(tables: Tables, link: Option<LinkSpec>) -> Measured {
    let dims = Dims::TINY;
    Measured {
        tables,
        dims,
        bytes: ElementBytes::BF16,
        from_disk: vec![[1_000_000; 2]; 2],
        from_host: vec![[4_000_000; 2]; 2],
        delegation: Delegation::Never,
        disk_path: DiskPath::Direct,
        windows: vec![],
        link,
        sparse: None,
    }
}

fn shape() -> Shape {
    let load = Load { tokens: 2, samples: 2, seqs: 2, ..Load::default() };
    Shape { pipeline: Pipeline::Plain, layout: spec::Layout::SINGLE, loads: vec![load], moves: vec![] }
}

fn ops() -> Vec<Op> {
    let layer = |layer| {
        [
            Op::LoadWeights { part: Part::Mlp(layer), from: Tier::Disk, to: Tier::Device },
            Op::LoadWeights { part: Part::Mlp(layer), from: Tier::Host, to: Tier::Device },
            Op::Qkv { layer, batch: 0 },
            Op::OutProj { layer, batch: 0 },
            Op::Mlp { layer, batch: 0 },
        ]
    };
    (0..2).flat_map(layer).collect()
}

fn seconds(cost: &Measured) -> BySort {
    let mut sums = [0.0; OpSort::COUNT];
    for op in ops() {
        sums[OpSort::of(&op).expect("all are measured") as usize] += cost.of(&op, &shape()).as_secs();
    }
    sums
}

/// What is learned in steps that take so many seconds in all on a machine with this link.
fn learned(link_bytes_per_s: f64, for_s: f64) -> Correction {
    let link = LinkSpec { bytes_per_s: link_bytes_per_s, latency: Nanos::ZERO };
    let (said, took) = (seconds(&costs(tables(), None)), seconds(&costs(tables(), Some(link))));
    let mut correction = Correction::default();
    let (mut heard, all) = (0.0, took.iter().sum::<f64>());
    while heard < for_s {
        for sort in OpSort::ALL {
            correction.hear(sort, said[sort as usize], took[sort as usize], &PACE);
        }
        heard += all;
    }
    correction
}

#[test]
fn a_link_that_is_throttled_after_the_profile_is_learned_slowly() {
    // A third of the rate that was measured.
    let [soon, later, long] = [1.0, 100.0, 6000.0].map(|for_s| learned(1e10 / 3.0, for_s));
    let copies = |of: &Correction| of.factor(OpSort::Copies);
    assert!(copies(&soon) < 1.1 && copies(&later) > 1.5, "{} {}", copies(&soon), copies(&later));
    assert!((copies(&long) - 3.0).abs() < 0.03, "{}", copies(&long));
    for sort in [OpSort::Linears, OpSort::Reads, OpSort::Attention, OpSort::Writes] {
        assert!((long.factor(sort) - 1.0).abs() < 1e-9, "{}", sort.name());
    }
    // What is planned with the corrected tables takes as long as it does.
    let link = LinkSpec { bytes_per_s: 1e10 / 3.0, latency: Nanos::ZERO };
    let (now, truth) = (seconds(&costs(long.of(tables()), None)), seconds(&costs(tables(), Some(link))));
    for (now, truth) in now.iter().zip(truth) {
        assert!((now - truth).abs() <= 0.01 * truth, "{now} for {truth}");
    }
}

#[test]
fn what_is_learned_changes_who_computes_with_the_host_s_weights() {
    let delegation = |correction: &Correction| {
        let tables = correction.of(tables());
        let copy = Nanos::from_secs(4e6 / tables.copy_bytes_per_s);
        let times = |rows: u32| {
            [Tier::Device, Tier::Host].map(|tier| Nanos::from_secs(tables.mlp_on(tier, f64::from(rows))))
        };
        Delegation::Cheaper(BothWays::timed(copy, 64, times))
    };
    let tokens = |correction: &Correction| delegation(correction).tokens();
    // A copy takes 0.4 ms, the host 0.9 for a row; at a quarter of the rate the copy takes 1.6.
    assert_eq!((tokens(&Correction::default()), tokens(&learned(1e10, 6000.0))), (0, 0));
    assert_eq!(tokens(&learned(2.5e9, 6000.0)), 1);
}

#[test]
fn the_host_s_linears_are_corrected_with_the_device_s() {
    let mut slower = Correction::default();
    (0..1000).for_each(|_| slower.hear(OpSort::Linears, 1.0, 2.0, &PACE));
    let (plain, now) = (tables(), slower.of(tables()));
    let factor = slower.factor(OpSort::Linears);
    assert!((factor - 1.0).abs() > 0.1, "{factor}");
    assert!(!plain.host_mlp.is_empty(), "the host computes");
    assert!((now.host_mlp.at(8.0) / plain.host_mlp.at(8.0) - factor).abs() < 1e-9);
}

#[test]
fn no_stall_and_no_nonsense_leaves_the_bounds() {
    let mut correction = Correction::default();
    for (said, took) in [(0.0, 1.0), (1.0, 0.0), (f64::NAN, 1.0), (1.0, f64::NAN)] {
        correction.hear(OpSort::Reads, said, took, &PACE);
    }
    assert_eq!(correction, Correction::default());
    correction.hear(OpSort::Reads, 1.0, 3600.0, &PACE);
    assert!(correction.factor(OpSort::Reads) < 1.2, "an hour's sleep: {}", correction.factor(OpSort::Reads));
    for _ in 0..10_000 {
        correction.hear(OpSort::Reads, 1.0, f64::INFINITY, &PACE);
        correction.hear(OpSort::Linears, 1.0, 1e-9, &PACE);
    }
    let near = |sort, wanted: f64| assert!((correction.factor(sort) / wanted - 1.0).abs() < 0.01);
    near(OpSort::Reads, FACTOR_MAX);
    near(OpSort::Linears, 1.0 / FACTOR_MAX);
    // What comes of a file is held to the same bounds.
    let read = |json: &str| serde_json::from_str::<Correction>(json).expect("a correction");
    assert_eq!(read("{\"reads\":{\"said_s\":1.0,\"took_s\":1e300}}").factor(OpSort::Reads), FACTOR_MAX);
    assert_eq!(read("{\"reads\":{\"said_s\":0.0,\"took_s\":-1.0}}").factor(OpSort::Reads), 1.0);
    assert_eq!(read("{}"), Correction::default());
}

#[test]
fn a_machine_that_recovers_is_believed_again() {
    let mut correction = learned(1e10 / 3.0, 6000.0);
    let slow = correction;
    for _ in 0..3000 {
        correction.hear(OpSort::Copies, 1.0, 1.0, &PACE);
    }
    assert!((correction.factor(OpSort::Copies) - 1.0).abs() < 0.01);
    assert!(correction.differs(&slow, 0.5) && !correction.differs(&correction, 0.0));
    assert_eq!((correction.told(), Correction::default().told()), (None, None));
    assert!(slow.told().is_some_and(|told| told.starts_with("copies x ")));
}

#[test]
fn what_was_not_heard_for_long_keeps_its_factor_and_gives_way_sooner() {
    let mut heard = Correction::default();
    heard.hear(OpSort::Copies, 1000.0, 2000.0, &PACE);
    let (mut faded, factor) = (heard, heard.factor(OpSort::Copies));
    (0..1000).for_each(|_| faded.fade(OpSort::Copies, 1.0, &PACE));
    assert!((faded.factor(OpSort::Copies) - factor).abs() < 1e-9);
    for correction in [&mut heard, &mut faded] {
        correction.hear(OpSort::Copies, 4.0, 4.0, &PACE);
    }
    let moved = |correction: &Correction| factor - correction.factor(OpSort::Copies);
    assert!(moved(&heard) < 0.05 && moved(&faded) > 0.2, "{} {}", moved(&heard), moved(&faded));
    // Nothing was heard: nothing fades.
    let mut none = Correction::default();
    none.fade(OpSort::Reads, 1e9, &PACE);
    assert!(none.is_none());
    // However long the silence, one window does not turn it over.
    faded.fade(OpSort::Copies, 1e9, &PACE);
    let before = faded.factor(OpSort::Copies);
    faded.hear(OpSort::Copies, 0.1, 0.4, &PACE);
    assert!(faded.factor(OpSort::Copies) < before + 0.5, "{before}");
}
