//! Thousands of random runs: every block access is legal, every invariant holds, every request ends.

mod common;

use common::{Checked, random_config, random_world, run};
use policy::sched::{Fcfs, FcfsConfig};
use sim::{End, Metrics, Rng};

fn one(seed: u64) -> (FcfsConfig, Metrics) {
    let mut rng = Rng::new(seed);
    let config = random_config(&mut rng);
    let mut world = random_world(&mut rng);
    let mut scheduler = Checked(Fcfs::new(config.clone()));
    run(&mut world, &mut scheduler);
    (config, world.metrics().clone())
}

#[test]
fn every_request_ends_and_every_access_is_legal() {
    for seed in 0..2000 {
        let (config, metrics) = one(seed);
        for (seq, tally) in &metrics.requests {
            assert_ne!(tally.end, End::Open, "seed {seed}: {seq} never ends under {config:?}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [1, 77, 4096] {
        assert_eq!(one(seed).1, one(seed).1);
    }
}
