//! From a case to figures: its steps lowered, priced and timed.

use super::case::{Case, Overlap};
use super::cost::Prices;
use super::machine::Rates;
use super::mechanism::{Block, Mechanism, Order};
use super::program::Loop;
use policy::cost::Cost;
use policy::pipeline::{Timeline, arrange};
use spec::{ByTier, Lane, Layout, Load, Nanos, Op, Pipeline, Program, Shape, Tier};

/// Layers that are run; the rest take as long, since all layers are equal.
const LAYERS: u64 = 6;
/// Decode steps that are run, evenly spread over the lengths that contexts go through.
const DECODES: u32 = 5;
/// Steps that fill lanes and slots before one is measured.
const WARM: usize = 2;

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

/// Runs a case on a machine.
pub fn predict(case: &Case, rates: Rates, mechanism: Mechanism) -> Prediction {
    let runner =
        Runner { case, mechanism, prices: Prices::new(case, rates, mechanism), barrier_s: rates.barrier_s };
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
}

impl Runner<'_> {
    /// Prefill of the block, then its decodes; over several devices in a pipeline as many blocks go through as there are
    /// devices (section 4.4).
    fn zigzag(&self) -> Prediction {
        let (stages, generated) = (f64::from(self.case.devices), self.case.lengths.generated);
        let prefill = self.step(&self.prefill());
        let steps = generated - 1;
        let runs = DECODES.min(steps);
        let decode = (0..runs).fold(Breakdown::default(), |sum, run| {
            // The middle of each of `runs` equal stretches of contexts s + 1 to s + n - 1.
            let at = (f64::from(run) + 0.5) / f64::from(runs) * f64::from(steps) + 0.5;
            let context = f64::from(self.case.lengths.prompt) + at;
            sum.plus(self.step(&self.decode(context)), f64::from(steps) / f64::from(runs))
        });
        let blocks = if self.case.devices > 1 { stages } else { 1.0 };
        let prefill = Breakdown::default().plus(prefill, blocks + stages - 1.0);
        let decode = Breakdown::default().plus(decode, blocks.max(stages));
        let sequences = f64::from(self.case.policy.block()) * blocks;
        let rate = |tokens: u32, seconds: f64| {
            if seconds > 0.0 { sequences * f64::from(tokens) / seconds } else { 0.0 }
        };
        Prediction {
            generated_tokens_per_s: rate(generated, prefill.total + decode.total),
            decode_tokens_per_s: rate(steps, decode.total),
            prefill,
            decode,
        }
    }

    /// The steady state: every step gives each sequence of the block a token, one in `n` of them its first.
    fn diagonal(&self) -> Prediction {
        let step = self.step(&self.mixed());
        let generated = f64::from(self.case.lengths.generated);
        let rate = f64::from(self.case.policy.block()) / step.total;
        // Every stage of a pipeline is busy with a block of its own.
        let rate = rate * f64::from(if self.case.devices > 1 { self.case.devices } else { 1 }) / self.idle();
        Prediction {
            generated_tokens_per_s: rate,
            decode_tokens_per_s: rate,
            prefill: Breakdown::default(),
            decode: Breakdown::default().plus(step, generated * self.idle()),
        }
    }

    /// Stage times that pass between two steps of a block.
    fn idle(&self) -> f64 {
        f64::from(self.case.devices)
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
        let samples = match self.mechanism.compute {
            super::Compute::Eager => seqs * prompt,
            super::Compute::Fused => seqs,
        };
        self.shape(Load {
            tokens: (seqs * prompt) as u32,
            samples: samples as u32,
            prefill_pairs: ByTier { device: pairs, ..ByTier::default() },
            kv_out,
            ..Load::default()
        })
    }

    fn decode(&self, context: f64) -> Shape {
        self.shape(self.decodes(f64::from(self.case.policy.batch_size), context))
    }

    fn decodes(&self, seqs: f64, context: f64) -> Load {
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
        Load { seqs: rows, tokens: rows, samples: rows, context, kv_in, kv_out, ..Load::default() }
    }

    fn mixed(&self) -> Shape {
        let (prompt, generated) =
            (f64::from(self.case.lengths.prompt), f64::from(self.case.lengths.generated));
        let seqs = f64::from(self.case.policy.batch_size);
        let entering = seqs / generated;
        let mut load = self.decodes(seqs - entering, prompt + generated / 2.0);
        let new = self.on_tiers(entering * prompt);
        load.tokens += (entering * prompt).round() as u32;
        load.samples = self.case.policy.batch_size;
        load.prefill_pairs.device += (entering * prompt * (prompt + 1.0) / 2.0) as u64;
        load.kv_out.host += new.host;
        load.kv_out.disk += new.disk;
        self.shape(load)
    }

    /// One step over the layers of one device, and its part of the head.
    fn step(&self, shape: &Shape) -> Breakdown {
        let layers = self.case.layers().min(LAYERS);
        let programs = Loop::new(self.case, self.mechanism, shape, layers as u16);
        let body = match (self.mechanism.order, self.case.policy.overlap) {
            (_, Overlap::Off) => self.one_by_one(&programs.whole(), shape),
            (Order::Barriers, Overlap::On) => self.with_barriers(&programs.rounds(), shape),
            (Order::Buffers, Overlap::On) => self.by_buffers(programs.whole(), shape),
        };
        let head = self.one_by_one(&programs.head(), shape);
        let of_all = self.case.dims.layers as f64 / f64::from(self.case.devices) / layers as f64;
        Breakdown::default().plus(body, of_all).plus(head, 1.0 / f64::from(self.case.devices))
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

    /// One arranged program, over and over: what one of them adds once lanes and slots are full.
    fn by_buffers(&self, program: Program, shape: &Shape) -> Breakdown {
        let program = arrange(program, shape, &self.prices);
        let mut timeline = Timeline::new(Nanos::ZERO);
        let ends: Vec<Nanos> =
            (0..=WARM).map(|_| timeline.commit(Nanos::ZERO, &program, shape, &self.prices).end).collect();
        let sum = self.one_by_one(&program, shape);
        Breakdown { total: (ends[WARM] - ends[WARM - 1]).as_secs(), ..sum }
    }
}
