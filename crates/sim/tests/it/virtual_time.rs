//! Runs in virtual time: figures that follow from the workload and the costs alone.

use crate::common::{config, run, world};
use policy::cost::Cost;
use policy::drive::{Event, Lowering, World, drive};
use policy::pipeline::{Plan, Share, Weights, arrange, lower};
use policy::sched::{BlockConfig, Delegate, Fcfs, FcfsConfig, Schedule, Why};
use sim::{Arrivals, Job, Lengths, Quantiles, Summary, VirtualWorld, Workload};
use spec::{ByTier, Nanos, Op, Program, SeqId, Shape, Step, Tokens};

fn served(jobs: &[Job], config: FcfsConfig) -> Summary {
    let mut world = world();
    world.expect(jobs);
    run(&mut world, &mut Fcfs::new(config));
    world.metrics().summary()
}

fn jobs(count: usize, per_s: f64) -> Vec<Job> {
    let lengths = |mean| Lengths::LogNormal { mean, sigma: 0.8, max: Tokens(400) };
    Workload { prompt: lengths(60.0), output: lengths(20.0), arrivals: Arrivals::Poisson { per_s } }
        .draw(count, 11)
}

#[test]
fn one_request_takes_what_its_ops_take() {
    let job = Job { arrival: Nanos(5_000), prompt: Tokens(10), output: Tokens(3) };
    let summary = served(&[job], config(4));
    // A gap of 20 us; embed, head and sample of 10; two layers of (10 + tokens) + 10 + 10 + (10 + tokens).
    let step = |tokens: f64| 20.0 + 30.0 + 2.0 * (40.0 + 2.0 * tokens);
    assert!((summary.ttft_s.p50 * 1e6 - step(10.0)).abs() < 1e-6, "{summary:?}");
    assert!((summary.tpot_s.p50 * 1e6 - step(1.0)).abs() < 1e-6, "{summary:?}");
    assert!((summary.makespan_s * 1e6 - step(10.0) - 2.0 * step(1.0)).abs() < 1e-6, "{summary:?}");
    assert_eq!((summary.steps, summary.computed_tokens, summary.generated_tokens), (3, 12, 3));
}

#[test]
fn batching_serves_a_crowd_faster_than_one_after_the_other() {
    let crowd = jobs(60, 1e9);
    let alone = served(&crowd, FcfsConfig { max_num_seqs: 1, ..config(4000) });
    let together = served(&crowd, config(4000));
    assert_eq!((alone.finished, together.finished), (60, 60));
    assert_eq!(alone.generated_tokens, together.generated_tokens);
    assert!(
        together.makespan_s * 4.0 < alone.makespan_s,
        "{} against {}",
        together.makespan_s,
        alone.makespan_s
    );
}

#[test]
fn a_tight_hold_serves_the_same_tokens_later() {
    let crowd = jobs(80, 2000.0);
    let (tight, roomy) = (served(&crowd, config(30)), served(&crowd, config(4000)));
    assert_eq!((tight.finished, tight.generated_tokens), (80, roomy.generated_tokens));
    assert!(tight.makespan_s > roomy.makespan_s);
    assert!(tight.computed_tokens >= roomy.computed_tokens);
}

#[test]
fn nobody_starves_under_overload() {
    let summary = served(&jobs(1500, 1e6), FcfsConfig { depth: 2, max_queue: 100_000, ..config(200) });
    assert_eq!((summary.finished, summary.open, summary.refused), (1500, 0, 0));
}

#[test]
fn who_came_first_begins_first() {
    let mut world = Knowing::new(|_, _| Nanos(1000));
    world.world.expect(&jobs(300, 1e6));
    let plan = Plan { max_batches: u16::MAX, kv_slot_tokens: u64::MAX, ..Plan::resident(2, u32::MAX) };
    let by = Lowering { plan: &plan, cost: &|_: &Op, _: &Shape| Nanos(1000) };
    let config = FcfsConfig { depth: 2, max_queue: 1000, ..config(60) };
    drive(&mut world, &mut Fcfs::new(config), &by).expect("each fits");
    assert_eq!((world.began.len(), world.began.is_sorted()), (300, true), "by arrival: {:?}", world.began);
}

#[test]
fn a_full_queue_refuses_instead_of_growing() {
    // All come before the first step is done.
    let summary = served(&jobs(500, 1e9), FcfsConfig { max_queue: 40, max_num_seqs: 60, ..config(200) });
    assert_eq!((summary.finished, summary.refused), (100, 400), "seats, and those who wait: {summary:?}");
}

#[test]
fn lengths_have_the_mean_that_was_asked_for() {
    let mean = |lengths: Vec<f64>| lengths.iter().sum::<f64>() / lengths.len() as f64;
    let prompt = Lengths::LogNormal { mean: 160.0, sigma: 0.6, max: Tokens(100_000) };
    let output = Lengths::Uniform(Tokens(90), Tokens(110));
    let drawn = Workload { prompt, output, arrivals: Arrivals::Poisson { per_s: 50.0 } }.draw(20_000, 3);
    let prompts = mean(drawn.iter().map(|job| f64::from(job.prompt.0)).collect());
    let outputs = mean(drawn.iter().map(|job| f64::from(job.output.0)).collect());
    assert!(
        (prompts / 160.0 - 1.0).abs() < 0.03 && (outputs / 100.0 - 1.0).abs() < 0.01,
        "{prompts} {outputs}"
    );
    let seconds = drawn.last().expect("many").arrival.as_secs();
    assert!((20_000.0 / seconds / 50.0 - 1.0).abs() < 0.03, "{seconds}");
    assert!(drawn.is_sorted_by_key(|job| job.arrival));
}

/// A world that knows better than the run's beginning what ops take.
struct Knowing {
    world: VirtualWorld,
    cost: fn(&Op, &Shape) -> Nanos,
    /// Programs as they came.
    started: Vec<(Shape, Program)>,
    /// Sequences, in the order in which they first took part in a step.
    began: Vec<SeqId>,
}

impl Knowing {
    fn new(cost: fn(&Op, &Shape) -> Nanos) -> Self {
        Knowing { world: world(), cost, started: Vec::new(), began: Vec::new() }
    }
}

impl World for Knowing {
    fn now(&self) -> Nanos {
        self.world.now()
    }
    fn cost<'a>(&'a self, _: &'a dyn Cost) -> &'a dyn Cost {
        &self.cost
    }
    fn start(&mut self, step: Step, shape: &Shape, program: Program) {
        self.started.push((shape.clone(), program.clone()));
        let new: Vec<SeqId> = step.chunks().map(|c| c.seq).filter(|seq| !self.began.contains(seq)).collect();
        self.began.extend(new);
        self.world.start(step, shape, program);
    }
    fn refuse(&mut self, seq: SeqId, why: Why) {
        self.world.refuse(seq, why);
    }
    fn wait(&mut self, until: Option<Nanos>) -> Event {
        self.world.wait(until)
    }
    fn poll(&mut self) -> Option<Event> {
        self.world.poll()
    }
}

#[test]
fn programs_are_arranged_by_what_the_world_knows_of_their_ops() {
    let any: fn(&Op, &Shape) -> Nanos = |_, _| Nanos(1);
    let known: fn(&Op, &Shape) -> Nanos = |op, _| match op {
        Op::CopyKv { .. } => Nanos(40),
        Op::LoadWeights { .. } => Nanos(90),
        Op::Mlp { .. } => Nanos(50),
        _ => Nanos(1),
    };
    let weights = Weights::Streamed { host: Share::Some, disk: None };
    let plan = Plan { weights, max_batches: 3, kv_slot_tokens: 1 << 20, ..Plan::resident(4, 64) };
    let blocks = ByTier { device: 64, host: 64, disk: 0 };
    let block = BlockConfig {
        schedule: Schedule::Zigzag,
        batches: 3,
        batch_seqs: 2,
        kv_slot_tokens: 1 << 20,
        delegate: Delegate::Streamed,
    };
    let config = FcfsConfig { max_num_seqs: 6, blocks, block, ..FcfsConfig::default() };
    let mut world = Knowing::new(known);
    world.world.expect(&[Job { arrival: Nanos(5_000), prompt: Tokens(8), output: Tokens(4) }; 6]);
    let by = Lowering { plan: &plan, cost: &any };
    drive(&mut world, &mut Fcfs::new(config), &by).expect("it fits");
    let by = |cost: &dyn Cost, shape: &Shape| arrange(lower(shape, &plan), shape, cost);
    assert!(world.started.iter().all(|(shape, program)| *program == by(&known, shape)));
    assert!(world.started.iter().any(|(shape, program)| *program != by(&any, shape)), "of no matter here");
}

#[test]
fn quantiles_are_by_nearest_rank() {
    let q = Quantiles::of((1..=100).rev().map(f64::from).collect());
    assert_eq!((q.mean, q.p50, q.p90, q.p99), (50.5, 50.0, 90.0, 99.0));
    assert_eq!(Quantiles::of(Vec::new()), Quantiles::default());
}
