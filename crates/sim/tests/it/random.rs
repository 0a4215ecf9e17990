//! Thousands of random runs: every block access is legal, every invariant holds, every request ends.

use std::thread;

use crate::common::{self, Checked, random_config, random_world, run};
use policy::sched::{Fcfs, FcfsConfig};
use sim::{End, Metrics, Rng};

fn one(seed: u64) -> (FcfsConfig, Metrics) {
    let mut rng = Rng::new(seed);
    let config = random_config(&mut rng);
    let mut world = random_world(config.groups, &mut rng);
    if rng.one_in(3) {
        world.break_drive(Rng::new(seed));
    }
    let mut scheduler = Checked(Fcfs::new(config.clone()));
    run(&mut world, &mut scheduler);
    (config, world.metrics().clone())
}

#[test]
fn every_request_ends_and_every_access_is_legal() {
    let ends = |seed: u64| {
        let (config, metrics) = one(seed);
        for (seq, tally) in &metrics.requests {
            assert_ne!(tally.end, End::Open, "seed {seed}: {seq} never ends under {config:?}");
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for first in 0..threads {
            scope.spawn(move || (first as u64..2000).step_by(threads).for_each(ends));
        }
    });
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [1, 77, 4096] {
        assert_eq!(one(seed).1, one(seed).1);
    }
}

/// Prompts of three topics come back again and again, and the device has room for few of them.
#[test]
fn prefixes_come_back_from_the_drive_unless_it_fails() {
    let run_with = |host: u32, broken: Option<Rng>| {
        let config = FcfsConfig {
            max_num_batched_tokens: spec::Tokens(256),
            blocks: spec::ByTier { device: 10, host, disk: 40 },
            max_drive_blocks: 2,
            depth: 2,
            ..FcfsConfig::default()
        };
        let mut world = common::returning_world();
        broken.into_iter().for_each(|rng| world.break_drive(rng));
        let mut scheduler = Checked(Fcfs::new(config));
        run(&mut world, &mut scheduler);
        assert!(world.metrics().requests.values().all(|tally| tally.end == End::Finished), "host {host}");
        (scheduler.0.fetched(), scheduler.0.kept(spec::Tier::Disk))
    };
    for host in [0, 4] {
        let (fetched, kept) = run_with(host, None);
        assert!(fetched > 20 && kept > 12, "host {host}: {fetched} blocks came, {kept} are there");
        let (some, _) = run_with(host, Some(Rng::new(5)));
        assert!(
            some < fetched,
            "host {host}: {some} blocks came from a drive that fails, {fetched} from another"
        );
    }
}
