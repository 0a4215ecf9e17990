//! From a case to figures: its steps lowered, priced and timed.
//!
//! Whose loop it is depends on what orders copies and compute. With buffers ([`Order::Buffers`]) it is the runtime that
//! serves: the real scheduler makes the steps ([`super::steps`]), the real pipelines lower them, `arrange` orders their nodes.
//! With barriers it is FlexGen's own, which nothing here runs for real: a small model of its algorithm 1 ([`Loop`]) over
//! blocks in lock step, which is how its published figures came about.

use super::case::{Case, Overlap};
use super::cost::Prices;
use super::machine::Rates;
use super::mechanism::{Block, Mechanism, Order};
use super::program::Loop;
use super::steps;
use policy::cost::Cost;
use policy::pipeline::{Timeline, arrange, lower};
use spec::{ByTier, Lane, Layout, Load, Nanos, Op, Pipeline, Program, Shape, Tier};

/// Layers of FlexGen's loop that are run; the rest take as long, since all layers are equal.
const LAYERS: u64 = 6;
/// Layers that real programs are estimated with: all layers are equal, so what the second has more is what each further one
/// takes, and filling lanes at the start of a step and emptying them at its end is counted once.
const DEPTHS: [u64; 2] = [3, 9];
/// Decode steps of FlexGen's loop that are run, evenly spread over the lengths that contexts go through.
const DECODES: u32 = 5;
/// Of the real scheduler's steps so many are timed, each for those that are nearly like it.
const TIMED: usize = 4;

/// Seconds that FlexGen's table 4 splits a phase into.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Breakdown {
    /// All of it.
    pub total: f64,
    /// Linears, attention and head.
    pub compute: f64,
    /// Weights in.
    pub weights: f64,
    /// KV in.
    pub cache_in: f64,
    /// KV out, as far as anything waits for it.
    pub cache_out: f64,
    /// Busy time of each lane, in the order of [`Lane::ALL`].
    pub lanes: [f64; Lane::COUNT],
}

impl Breakdown {
    fn plus(mut self, other: Breakdown, times: f64) -> Breakdown {
        self.total += times * other.total;
        self.compute += times * other.compute;
        self.weights += times * other.weights;
        self.cache_in += times * other.cache_in;
        self.cache_out += times * other.cache_out;
        self.lanes.iter_mut().zip(other.lanes).for_each(|(mine, theirs)| *mine += times * theirs);
        self
    }

    fn add(&mut self, op: &Op, lane: Lane, took: f64) {
        self.lanes[lane.index()] += took;
        match *op {
            Op::LoadWeights { .. } => self.weights += took,
            Op::CopyKv { to: Tier::Disk, .. } => {}
            Op::CopyKv { from: Tier::Device, .. } => self.cache_out += took,
            Op::CopyKv { .. } | Op::CopyChosen { .. } => self.cache_in += took,
            Op::MoveHidden { .. } => {}
            _ => self.compute += took,
        }
    }
}

/// What a case comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Generated tokens over all of the time (section 6).
    pub generated_tokens_per_s: f64,
    /// Those after the first, over the time after prefill; of the diagonal schedule, which has no phases, the same as
    /// above.
    pub decode_tokens_per_s: f64,
    /// The prefill of one block; zero in the diagonal schedule, whose steps do both.
    pub prefill: Breakdown,
    /// All decodes of one block; in the diagonal schedule all steps that as many tokens take.
    pub decode: Breakdown,
}

impl Prediction {
    /// Seconds from a request's start to its last token.
    pub fn latency_s(&self) -> f64 {
        self.prefill.total + self.decode.total
    }
}

/// How deep the model is that programs are made for.
#[derive(Clone, Copy, PartialEq)]
enum Depth {
    /// As deep as it is.
    Whole,
    /// A few layers of it.
    Few,
}

/// Runs a case on a machine.
pub fn predict(case: &Case, rates: Rates, mechanism: Mechanism) -> Prediction {
    run(case, rates, mechanism, Depth::Whole)
}

/// The same by a few layers, within a few percent: to choose what to predict.
pub(super) fn estimate(case: &Case, rates: Rates, mechanism: Mechanism) -> Prediction {
    run(case, rates, mechanism, Depth::Few)
}

fn run(case: &Case, rates: Rates, mechanism: Mechanism, depth: Depth) -> Prediction {
    let prices = Prices::new(case, rates, mechanism);
    let runner = Runner { case, mechanism, prices, barrier_s: rates.barrier_s, depth };
    match mechanism.block {
        Block::ZigZag => runner.zigzag(),
        Block::Diagonal => runner.diagonal(),
    }
}

struct Runner<'a> {
    case: &'a Case,
    mechanism: Mechanism,
    prices: Prices<'a>,
    barrier_s: f64,
    depth: Depth,
}

impl Runner<'_> {
    /// Prefill of the block, then its decodes; over several devices in a pipeline as many blocks go through as there are
    /// devices (section 4.4).
    fn zigzag(&self) -> Prediction {
        let (stages, generated) = (f64::from(self.case.devices), self.case.lengths.generated);
        let (prefill, decode) = match self.mechanism.order {
            Order::Barriers => (self.step(&self.prefill()), self.decodes_in_lock_step()),
            Order::Buffers => {
                let all = steps::of_a_block(self.case, self.mechanism);
                let prompts = |shape: &Shape| shape.loads.iter().any(|load| load.tokens > load.seqs);
                // A prompt of one token looks like a decode, but comes first.
                let first = all.iter().take_while(|shape| prompts(shape)).count().max(1);
                (self.all_of(&all[..first]), self.all_of(&all[first..]))
            }
        };
        let blocks = if self.case.devices > 1 { stages } else { 1.0 };
        // All have passed once the last block has come through the last stage; each stage works for as many turns as there are blocks.
        let total = (blocks + stages - 1.0) * prefill.total;
        let prefill = Breakdown { total, ..Breakdown::default().plus(prefill, blocks) };
        let decode = Breakdown::default().plus(decode, blocks.max(stages));
        let sequences = f64::from(self.case.policy.block()) * blocks;
        let rate = |tokens: u32, seconds: f64| {
            if seconds > 0.0 { sequences * f64::from(tokens) / seconds } else { 0.0 }
        };
        Prediction {
            generated_tokens_per_s: rate(generated, prefill.total + decode.total),
            decode_tokens_per_s: rate(generated - 1, decode.total),
            prefill,
            decode,
        }
    }

    /// FlexGen's decodes of one block.
    fn decodes_in_lock_step(&self) -> Breakdown {
        let steps = self.case.lengths.generated - 1;
        let runs = DECODES.min(steps);
        (0..runs).fold(Breakdown::default(), |sum, run| {
            // The middle of each of `runs` equal stretches of contexts s + 1 to s + n - 1.
            let at = (f64::from(run) + 0.5) / f64::from(runs) * f64::from(steps) + 0.5;
            let context = f64::from(self.case.lengths.prompt) + at;
            sum.plus(self.step(&self.decode(context)), f64::from(steps) / f64::from(runs))
        })
    }

    /// The steady state, in which every step gives each sequence a token, the first to those that begin in it. In a pipeline
    /// every device is busy with a block of its own.
    fn diagonal(&self) -> Prediction {
        let all = steps::steady(self.case, self.mechanism);
        let samples: u64 =
            all.iter().flat_map(|shape| &shape.loads).map(|load| u64::from(load.samples)).sum();
        let took = self.all_of(&all);
        let rate = samples as f64 / took.total;
        let life = f64::from(self.case.lengths.generated) / all.len() as f64;
        Prediction {
            generated_tokens_per_s: rate,
            decode_tokens_per_s: rate,
            prefill: Breakdown::default(),
            decode: Breakdown::default().plus(took, life * f64::from(self.case.devices)),
        }
    }

    /// All of these steps together.
    fn all_of(&self, shapes: &[Shape]) -> Breakdown {
        let work = |shape: &&Shape| {
            let sum = |of: fn(&Load) -> u64| shape.loads.iter().map(of).sum::<u64>();
            (
                sum(|load| load.tokens.into()),
                sum(|load| Tier::ALL.map(|tier| load.context[tier]).iter().sum()),
            )
        };
        let mut sorted: Vec<&Shape> = shapes.iter().collect();
        sorted.sort_by_key(work);
        let kinds: Vec<_> = sorted.chunk_by(|a, b| work(a).0 == work(b).0).collect();
        let stretches: Vec<_> = match kinds.len() {
            // As many prompts begin in each, so they differ by the length of contexts alone.
            2..=TIMED => kinds,
            _ => sorted.chunks(sorted.len().div_ceil(TIMED).max(1)).collect(),
        };
        let timed = |alike: &[&Shape]| self.step(alike[alike.len() / 2]);
        stretches.iter().fold(Breakdown::default(), |sum, alike| sum.plus(timed(alike), alike.len() as f64))
    }

    fn shape(&self, load: Load) -> Shape {
        let loads = vec![load; self.case.policy.num_batches as usize];
        Shape { pipeline: Pipeline::Plain, layout: Layout::SINGLE, loads, moves: Vec::new() }
    }

    fn on_tiers(&self, positions: f64) -> ByTier<u64> {
        let split = self.case.policy.placement.kv;
        let share = |tier| f64::from(split.part(tier)) / f64::from(spec::Split::WHOLE);
        let of = |tier| (positions * share(tier)).round() as u64;
        ByTier { device: of(Tier::Device), host: of(Tier::Host), disk: of(Tier::Disk) }
    }

    fn prefill(&self) -> Shape {
        let (prompt, seqs) = (u64::from(self.case.lengths.prompt), u64::from(self.case.policy.batch_size));
        let pairs = seqs * prompt * (prompt + 1) / 2;
        let kv_out = ByTier { device: 0, ..self.on_tiers((seqs * prompt) as f64) };
        self.shape(Load {
            tokens: (seqs * prompt) as u32,
            samples: seqs as u32,
            prefill_pairs: ByTier { device: pairs, ..ByTier::default() },
            kv_out,
            ..Load::default()
        })
    }

    fn decode(&self, context: f64) -> Shape {
        let seqs = f64::from(self.case.policy.batch_size);
        let homes = self.on_tiers(seqs * context);
        let away = homes.host + homes.disk;
        let (context, kv_in) = match self.mechanism.attends_on_host(&self.case.policy) {
            true => (
                ByTier { device: homes.device, host: away, disk: 0 },
                ByTier { disk: homes.disk, ..ByTier::default() },
            ),
            false => {
                (ByTier { device: homes.device + away, ..ByTier::default() }, ByTier { device: 0, ..homes })
            }
        };
        let rows = seqs.round() as u32;
        let kv_out = ByTier { device: 0, ..self.on_tiers(seqs) };
        let host_tokens = if context.host > 0 { rows } else { 0 };
        self.shape(Load {
            seqs: rows,
            tokens: rows,
            samples: rows,
            host_tokens,
            context,
            kv_in,
            kv_out,
            ..Load::default()
        })
    }

    /// One step over the layers of one device, and its part of the head.
    fn step(&self, shape: &Shape) -> Breakdown {
        match self.mechanism.order {
            Order::Barriers => self.in_flexgens_loop(shape),
            Order::Buffers => self.in_ours(shape),
        }
    }

    fn in_flexgens_loop(&self, shape: &Shape) -> Breakdown {
        let layers = self.case.layers().min(LAYERS);
        let programs = Loop::new(self.case, shape, layers as u16);
        let body = match self.case.policy.overlap {
            Overlap::Off => self.one_by_one(&programs.whole(), shape),
            Overlap::On => self.with_barriers(&programs.rounds(), shape),
        };
        let head = self.one_by_one(&programs.head(), shape);
        let of_all = self.case.layers() as f64 / layers as f64;
        Breakdown::default().plus(body, of_all).plus(head, 1.0)
    }

    fn in_ours(&self, shape: &Shape) -> Breakdown {
        let layers = self.case.layers();
        let [few, more] = DEPTHS;
        if self.depth == Depth::Whole || layers <= more {
            return self.of_layers(layers, shape);
        }
        let (deep, rest) = (self.of_layers(more, shape), (layers - more) as f64 / (more - few) as f64);
        let sum = deep.plus(deep, rest).plus(self.of_layers(few, shape), -rest);
        // No order of nodes makes a lane do its work in less.
        Breakdown { total: sum.lanes.into_iter().fold(sum.total, f64::max), ..sum }
    }

    /// A step of a model of so many layers, begun when the one before it is done.
    fn of_layers(&self, layers: u64, shape: &Shape) -> Breakdown {
        let plan = steps::plan(self.case, self.mechanism, layers as u16);
        plan.fits(shape).unwrap_or_else(|excess| unreachable!("the scheduler keeps these limits: {excess}"));
        let program = arrange(lower(shape, &plan), shape, &self.prices);
        let sum = self.one_by_one(&program, shape);
        if self.case.policy.overlap == Overlap::Off {
            // Nothing goes on behind: what is written to the drive passes no cache.
            return Breakdown { total: sum.lanes.iter().sum(), ..sum };
        }
        let timing = Timeline::new(Nanos::ZERO).commit(Nanos::ZERO, &program, shape, &self.prices);
        Breakdown { total: timing.end.as_secs(), ..sum }
    }

    /// Nothing beside anything else; but writes of files go on behind, in the page cache.
    fn one_by_one(&self, program: &Program, shape: &Shape) -> Breakdown {
        let mut sum = Breakdown::default();
        for node in program.nodes() {
            let took = self.prices.of(&node.op, shape).as_secs();
            sum.add(&node.op, node.lane, took);
            sum.total += if node.lane == Lane::DiskWrite { 0.0 } else { took };
        }
        sum
    }

    /// A program a round; the next begins when all copies and compute of this one are done. Files are written behind, and
    /// must be through at the end.
    fn with_barriers(&self, rounds: &[Program], shape: &Shape) -> Breakdown {
        let (mut timeline, mut now, mut written) = (Timeline::new(Nanos::ZERO), Nanos::ZERO, Nanos::ZERO);
        let mut sum = Breakdown::default();
        for round in rounds {
            let timing = timeline.commit(now, round, shape, &self.prices);
            let mut copies = Nanos::ZERO;
            for (node, (begin, end)) in round.nodes().iter().zip(timing.nodes) {
                sum.add(&node.op, node.lane, (end - begin).as_secs());
                match node.lane {
                    Lane::DiskWrite => written = written.max(end),
                    Lane::Device | Lane::Host => now = now.max(end),
                    _ => {
                        now = now.max(end);
                        copies += end - begin;
                    }
                }
            }
            if copies > Nanos::ZERO {
                now += Nanos::from_secs(self.barrier_s);
            }
        }
        Breakdown { total: now.max(written).as_secs(), ..sum }
    }
}
