//! Random programs on real lanes: no node runs beside, or before, one that it conflicts with.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine::lanes::{Lanes, Task, Wait, Work};
use policy::pipeline::Waits;
use sim::{Rng, Submitted, conflict, random_program};
use spec::{Lane, Layout, Program};

/// Notes when each node began and ended, on one clock that all lanes share.
struct Clocked {
    clock: AtomicU64,
    times: Mutex<Vec<Vec<(u64, u64)>>>,
    ran: [AtomicU64; Lane::COUNT],
    done: Mutex<Sender<usize>>,
}

impl Work for Clocked {
    type Context = usize;

    fn run(&self, program: &usize, node: usize) -> Result<(), String> {
        let begin = self.clock.fetch_add(1, Ordering::SeqCst);
        // A little work of uneven length, so that lanes drift apart.
        (0..(begin * 7919) % 300).for_each(|_| std::hint::spin_loop());
        let end = self.clock.fetch_add(1, Ordering::SeqCst);
        self.times.lock().unwrap()[*program][node] = (begin, end);
        Ok(())
    }

    fn ran(&self, _: &usize, task: &Task, _: Instant, _: Duration) {
        self.ran[task.lane].fetch_add(1, Ordering::SeqCst);
    }

    fn finished(&self, program: &usize) {
        self.done.lock().unwrap().send(*program).unwrap();
    }

    fn failed(&self, why: &str) {
        panic!("{why}");
    }
}

fn tasks(program: &Program, waits: &mut Waits) -> Vec<Task> {
    let edges = waits.derive(program);
    let task = |(node, _)| {
        let lane = |l: Lane| l.index();
        let waits = edges.of(node).iter().map(|w| Wait { lane: lane(w.lane), ticket: w.ticket.0 }).collect();
        Task { lane: lane(program.nodes()[node].lane), ticket: edges.ticket(node).0, node, waits }
    };
    program.nodes().iter().enumerate().map(task).collect()
}

#[test]
fn random_programs_of_all_lanes_have_no_hazard() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let programs: Vec<Program> = (0..6).map(|_| random_program(&mut rng, Layout::SINGLE, 40)).collect();
        let (done, told) = channel();
        let times = programs.iter().map(|p| vec![(0, 0); p.nodes().len()]).collect();
        let (times, done) = (Mutex::new(times), Mutex::new(done));
        let work = Arc::new(Clocked { clock: AtomicU64::new(1), times, ran: Default::default(), done });
        let mut lanes = Lanes::new(Lane::COUNT, Arc::clone(&work)).unwrap();
        let mut waits = Waits::default();
        for (index, program) in programs.iter().enumerate() {
            lanes.submit(index, tasks(program, &mut waits));
        }
        programs.iter().for_each(|_| {
            told.recv().unwrap();
        });
        check(seed, &programs, &work.times.lock().unwrap());
        drop(lanes);
        let nodes = |lane: Lane| programs.iter().flat_map(Program::nodes).filter(|n| n.lane == lane).count();
        for lane in Lane::ALL {
            let (ran, nodes) = (work.ran[lane.index()].load(Ordering::SeqCst), nodes(lane));
            assert!(ran == nodes as u64 && nodes > 0, "seed {seed}: {lane:?} ran {ran} of {nodes} nodes");
        }
    }
}

/// Every pair that conflicts ran one after the other, in the order of submission.
fn check(seed: u64, programs: &[Program], times: &[Vec<(u64, u64)>]) {
    let all: Vec<(usize, usize)> =
        (0..programs.len()).flat_map(|p| (0..programs[p].nodes().len()).map(move |n| (p, n))).collect();
    for (at, &(p, n)) in all.iter().enumerate() {
        for &(q, m) in &all[at + 1..] {
            let submitted = if p == q { Submitted::Together } else { Submitted::Apart };
            let (a, b) = ((&programs[p], &programs[p].nodes()[n]), (&programs[q], &programs[q].nodes()[m]));
            if conflict(a, b, submitted) {
                assert!(times[p][n].1 < times[q][m].0, "seed {seed}: node {p}.{n} and {q}.{m} overlap");
            }
        }
    }
}
