//! Prints what deciding costs: scheduling a step of 128 sequences, lowering, timing and arranging it.
//!
//! `cargo run --release -p sim --example overhead`. Each figure is the median of many, in microseconds.

use policy::pipeline::{DiskPath, Plan, Share, Timeline, Waits, Weights, arrange, lower};
use policy::sched::{Fcfs, FcfsConfig, Next, Scheduler};
use spec::{
    ByTier, Chunk, Done, Nanos, Op, Outcome, PrefixUse, Produced, Request, Sampling, SeqId, Shape, Step,
    Tokens,
};
use std::time::Instant;

const LAYERS: u16 = 32;
const SEQUENCES: u64 = 128;

/// Microseconds of `work`: the median of `times` runs.
fn median(times: usize, mut work: impl FnMut()) -> f64 {
    let mut took: Vec<f64> = (0..times)
        .map(|_| {
            let begin = Instant::now();
            work();
            begin.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    took.sort_by(f64::total_cmp);
    took[times / 2]
}

fn cost(op: &Op, shape: &Shape) -> Nanos {
    let tokens = |batch: u16| u64::from(shape.loads[usize::from(batch)].tokens);
    match *op {
        Op::Qkv { batch, .. } => Nanos(5_000 + 30 * tokens(batch)),
        Op::Mlp { batch, .. } => Nanos(9_000 + 80 * tokens(batch)),
        Op::LoadWeights { .. } => Nanos(20_000),
        _ => Nanos(4_000),
    }
}

fn done(step: &Step) -> Done {
    let outcome = |chunk: &Chunk| {
        let produced = if chunk.sample == Sampling::Sample { Produced::Token } else { Produced::Nothing };
        Outcome { seq: chunk.seq, produced, full: Vec::new() }
    };
    Done::of(step.id, step.chunks().map(outcome).collect())
}

/// A scheduler in which 128 sequences decode, and the next step that it answers.
fn busy() -> (Fcfs, Step) {
    let blocks = ByTier { device: 100_000, host: 0, disk: 0 };
    let mut scheduler =
        Fcfs::new(FcfsConfig { blocks, max_num_batched_tokens: Tokens(1 << 16), ..FcfsConfig::default() });
    for id in 0..SEQUENCES {
        let (prompt, max_new) = (Tokens(256), Tokens(60_000));
        let (hashes, prefix) = (Vec::new(), PrefixUse::Allowed);
        scheduler.arrive(
            Nanos(id),
            Request { id: SeqId(id), arrival: Nanos(id), prompt, max_new, hashes, prefix },
        );
    }
    let first = next(&mut scheduler);
    scheduler.complete(Nanos(0), &done(&first));
    let step = next(&mut scheduler);
    (scheduler, step)
}

fn next(scheduler: &mut Fcfs) -> Step {
    match scheduler.next(Nanos(0)) {
        Next::Run(step) => step,
        other => panic!("all of them decode, found {other:?}"),
    }
}

fn scheduling() -> Shape {
    let (mut scheduler, mut step) = busy();
    let took = median(2_000, || {
        scheduler.complete(Nanos(0), &done(&step));
        step = next(&mut scheduler);
    });
    println!("schedule {SEQUENCES} decodes, next + complete   {took:8.2} us");
    println!("shape of that step                      {:8.2} us", median(2_000, || drop(Shape::of(&step))));
    Shape::of(&step)
}

fn pipelines(name: &str, plan: &Plan, shape: &Shape) {
    println!("{name}: {} nodes", lower(shape, plan).nodes().len());
    println!("  lower                                 {:8.2} us", median(2_000, || drop(lower(shape, plan))));
    let program = lower(shape, plan);
    let mut timeline = Timeline::new(Nanos(1_000));
    let took = median(2_000, || drop(timeline.commit(Nanos(0), &program, shape, &cost)));
    println!("  timeline                              {took:8.2} us");
    println!(
        "  peek                                  {:8.2} us",
        median(2_000, || drop(timeline.peek(Nanos(0), &program, shape, &cost)))
    );
    let mut waits = Waits::default();
    println!(
        "  waits                                 {:8.2} us",
        median(2_000, || drop(waits.derive(&program)))
    );
    let copies: Vec<_> = (0..2_000).map(|_| program.clone()).collect();
    let mut copies = copies.into_iter();
    println!(
        "  arrange                               {:8.2} us",
        median(2_000, || drop(copies.next().map(|p| arrange(p, shape, &cost))))
    );
}

fn main() {
    let shape = scheduling();
    let resident = Plan::resident(LAYERS, 1 << 16);
    let streamed =
        Plan { weights: Weights::Streamed { host: Share::None, disk: Some(DiskPath::Direct) }, ..resident };
    pipelines("resident", &resident, &shape);
    pipelines("streamed", &streamed, &shape);
}
