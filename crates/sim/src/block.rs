//! Zig-zag against diagonal at equal memory, in virtual time: the real scheduler, programs and timeline (FlexGen, appendix
//! A.2, which gives the closed form and has no implementation).

use crate::draw::spans;
use crate::metrics::Metrics;
use crate::workload::Job;
use crate::world::{Accesses, Truth, VirtualWorld};
use policy::cost::{Cost, Dims, ElementBytes, Roofline};
use policy::drive::{Failure, Lowering, drive};
use policy::pipeline::{DiskPath, Plan, Share, Timeline, Weights, arrange, lower};
use policy::sched::{BlockConfig, Delegate, Fcfs, FcfsConfig, Next, Schedule, Scheduler};
use serde::Serialize;
use spec::{
    BLOCK_TOKENS, ByTier, Bytes, Done, HardwareSpec, LaneSpan, Nanos, Part, Request, SeqId, Shape, Split,
    Tokens,
};

/// A machine with all weights on the host, KV on the host and attended there, and requests of one length.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockExperiment {
    /// Tokens of each prompt.
    pub prompt: Tokens,
    /// Tokens that each request generates.
    pub output: Tokens,
    /// Memory for KV on the host, the same for both schedules.
    pub kv_memory: Bytes,
    /// Sequences in a batch; a step has as many batches as it needs.
    pub batch_seqs: usize,
    /// The machine.
    pub hardware: HardwareSpec,
    /// The model.
    pub dims: Dims,
}

/// What one schedule did, in its steady state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ScheduleFigures {
    /// Sequences in a step on average: they share each load of weights.
    pub block: f64,
    /// Bytes of weights loaded for each token generated.
    pub weight_bytes_per_token: f64,
    /// From the beginning of a block (or any time, where there is none) until each of the sequences in it is complete.
    pub mean_completion_s: f64,
    /// Tokens generated per second.
    pub generated_tokens_per_s: f64,
    /// Time of a step on average.
    pub step_s: f64,
    /// Share of the KV memory that is in use on average.
    pub kv_used: f64,
    /// Positions computed a second time because room had to be made.
    pub recomputed_tokens: u64,
}

/// Both, and what lies between them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BlockComparison {
    /// Tokens of each prompt.
    pub prompt_len: u32,
    /// Tokens generated for each.
    pub gen_len: u32,
    /// KV positions that there is room for.
    pub kv_tokens: u64,
    /// FlexGen's block schedule.
    pub zigzag: ScheduleFigures,
    /// The staggered one.
    pub diagonal: ScheduleFigures,
    /// Diagonal's block over zig-zag's.
    pub block_ratio: f64,
    /// What appendix A.2 says that this is: (2s + 2n) / (2s + n).
    pub block_ratio_closed_form: f64,
    /// Zig-zag's weight bytes per token over diagonal's.
    pub weight_bytes_ratio: f64,
    /// Diagonal's mean completion time over zig-zag's.
    pub completion_ratio: f64,
}

/// One step as the scheduler gave it out.
struct Given {
    at: Nanos,
    seqs: Vec<SeqId>,
    kv: u64,
    shape: Shape,
}

/// A scheduler whose steps are remembered.
struct Watched {
    scheduler: Fcfs,
    steps: Vec<Given>,
}

impl Scheduler for Watched {
    fn arrive(&mut self, now: Nanos, request: Request) {
        self.scheduler.arrive(now, request);
    }

    fn cancel(&mut self, now: Nanos, seq: SeqId) {
        self.scheduler.cancel(now, seq);
    }

    fn next(&mut self, now: Nanos) -> Next {
        let next = self.scheduler.next(now);
        if let Next::Run(step) = &next {
            let seqs = step.chunks().map(|chunk| chunk.seq).collect();
            let kv = step.chunks().map(|chunk| u64::from(chunk.span.end().0)).sum();
            self.steps.push(Given { at: now, seqs, kv, shape: Shape::of(step) });
        }
        next
    }

    fn complete(&mut self, now: Nanos, done: &Done) {
        self.scheduler.complete(now, done);
    }
}

struct Run {
    steps: Vec<Given>,
    metrics: Metrics,
}

impl BlockExperiment {
    /// Runs both schedules.
    ///
    /// # Errors
    /// When a step does not fit, which the scheduler's limits should prevent.
    pub fn compare(&self) -> Result<BlockComparison, Failure> {
        let (s, n) = (f64::from(self.prompt.0), f64::from(self.output.0));
        let (zigzag, diagonal) = (self.zigzag()?, self.diagonal()?);
        Ok(BlockComparison {
            prompt_len: self.prompt.0,
            gen_len: self.output.0,
            kv_tokens: u64::from(self.blocks()) * u64::from(BLOCK_TOKENS.0),
            zigzag,
            diagonal,
            block_ratio: diagonal.block / zigzag.block,
            block_ratio_closed_form: (2.0 * s + 2.0 * n) / (2.0 * s + n),
            weight_bytes_ratio: zigzag.weight_bytes_per_token / diagonal.weight_bytes_per_token,
            completion_ratio: diagonal.mean_completion_s / zigzag.mean_completion_s,
        })
    }

    /// What the lanes do in one step of the diagonal schedule's steady state.
    ///
    /// # Errors
    /// As [`BlockExperiment::compare`].
    pub fn lanes(&self) -> Result<Vec<LaneSpan>, Failure> {
        let run = self.run(Schedule::Diagonal, self.diagonal_requests())?;
        let (plan, cost) = (self.plan(), self.cost());
        let shape = &run.steps[self.steady().start].shape;
        let program = arrange(lower(shape, &plan), shape, &cost);
        let timing = Timeline::new(Nanos::ZERO).commit(Nanos::ZERO, &program, shape, &cost);
        Ok(spans(&program, &timing))
    }

    /// KV blocks that the memory holds.
    pub fn blocks(&self) -> u32 {
        let position = 2 * self.dims.kv_heads * self.dims.head_dim * self.dims.layers * 2;
        (self.kv_memory.0 / (position * u64::from(BLOCK_TOKENS.0))).try_into().unwrap_or(u32::MAX)
    }

    /// Sequences of a block of zig-zag.
    pub fn zigzag_block(&self) -> usize {
        let each = (self.prompt + self.output - Tokens(1)).blocks();
        self.blocks() as usize / each
    }

    /// Three blocks, one after the other; the second is measured.
    fn zigzag(&self) -> Result<ScheduleFigures, Failure> {
        let run = self.run(Schedule::Zigzag, 3 * self.zigzag_block())?;
        let n = self.output.0 as usize;
        Ok(self.figures(&run, n..2 * n))
    }

    /// Enough requests to fill the hold and to keep it full for two lives of a sequence; the second is measured.
    fn diagonal(&self) -> Result<ScheduleFigures, Failure> {
        let run = self.run(Schedule::Diagonal, self.diagonal_requests())?;
        Ok(self.figures(&run, self.steady()))
    }

    fn diagonal_requests(&self) -> usize {
        // Its block is at most twice zig-zag's, and three blocks begin in three lives.
        7 * self.zigzag_block()
    }

    /// Steps after the hold has filled.
    fn steady(&self) -> std::ops::Range<usize> {
        let n = self.output.0 as usize;
        3 * n / 2..5 * n / 2
    }

    fn run(&self, schedule: Schedule, requests: usize) -> Result<Run, Failure> {
        let truth = Truth { cost: Box::new(self.cost()), pauses: self.hardware.step_gap.into() };
        let mut world = VirtualWorld::new(truth, Accesses::Trusted);
        world.expect(&vec![Job { arrival: Nanos::ZERO, prompt: self.prompt, output: self.output }; requests]);
        let mut scheduler = Watched { scheduler: Fcfs::new(self.config(schedule)), steps: Vec::new() };
        let (plan, cost) = (self.plan(), self.cost());
        drive(&mut world, &mut scheduler, &Lowering { plan: &plan, cost: &cost })?;
        Ok(Run { steps: scheduler.steps, metrics: world.metrics().clone() })
    }

    fn figures(&self, run: &Run, steady: std::ops::Range<usize>) -> ScheduleFigures {
        let steps = &run.steps[steady.clone()];
        let count = steps.len() as f64;
        let seconds = (run.steps[steady.end].at - steps[0].at).as_secs();
        let tokens: u64 =
            steps.iter().flat_map(|step| &step.shape.loads).map(|load| u64::from(load.samples)).sum();
        let ends = steps[0].seqs.iter().filter_map(|seq| run.metrics.requests[seq].newest);
        let completions: Vec<f64> = ends.map(|end| (end - steps[0].at).as_secs()).collect();
        let capacity = f64::from(self.blocks()) * f64::from(BLOCK_TOKENS.0);
        let needed = run.metrics.requests.len() as u64 * u64::from((self.prompt + self.output).0 - 1);
        ScheduleFigures {
            block: steps.iter().map(|step| step.seqs.len() as f64).sum::<f64>() / count,
            weight_bytes_per_token: self.weight_bytes() * count / tokens as f64,
            mean_completion_s: completions.iter().sum::<f64>() / completions.len() as f64,
            generated_tokens_per_s: tokens as f64 / seconds,
            step_s: seconds / count,
            kv_used: steps.iter().map(|step| step.kv as f64).sum::<f64>() / count / capacity,
            recomputed_tokens: run.metrics.computed - needed,
        }
    }

    /// Bytes of the layers' weights and the head, which all live on the host.
    pub fn weight_bytes(&self) -> f64 {
        let layer = self.dims.part(Part::Attention(0)) + self.dims.part(Part::Mlp(0));
        (self.dims.layers as f64 * layer + self.dims.part(Part::Head)) * ElementBytes::BF16.weight
    }

    fn config(&self, schedule: Schedule) -> FcfsConfig {
        let seqs = 2 * self.zigzag_block();
        FcfsConfig {
            max_num_batched_tokens: self.batch_tokens(),
            max_num_seqs: seqs,
            max_queue: usize::MAX,
            blocks: ByTier { device: 0, host: self.blocks(), disk: 0 },
            block: BlockConfig {
                schedule,
                batches: seqs.div_ceil(self.batch_seqs) + 2,
                batch_seqs: self.batch_seqs,
                kv_slot_tokens: self.kv_slot_tokens(),
                delegate: Delegate::Host,
            },
            ..FcfsConfig::default()
        }
    }

    fn batch_tokens(&self) -> Tokens {
        let prompts = self.batch_seqs as u64 * u64::from(self.prompt.0.max(1));
        Tokens(prompts.try_into().expect("whoever asks for a batch keeps its prompts below so many tokens"))
    }

    /// Room for a batch of prompts, and for any one sequence.
    fn kv_slot_tokens(&self) -> u64 {
        let blocks = self.batch_seqs as u64 * self.prompt.blocks() as u64;
        blocks.max((self.prompt + self.output).blocks() as u64) * u64::from(spec::BLOCK_TOKENS.0)
    }

    fn plan(&self) -> Plan {
        Plan {
            weights: Weights::Streamed { host: Share::Some, disk: None },
            max_batches: u16::MAX,
            kv_slot_tokens: self.kv_slot_tokens(),
            disk_path: DiskPath::ThroughHost,
            ..Plan::resident(self.dims.layers as u16, self.batch_tokens().0)
        }
    }

    fn cost(&self) -> impl Cost + use<> {
        let on_host = ByTier { device: 0, host: Split::WHOLE, disk: 0 };
        Roofline {
            hardware: self.hardware.clone(),
            dims: self.dims,
            bytes: ElementBytes::BF16,
            weights: Split::new(on_host).expect("the whole is on the host"),
            disk_path: DiskPath::ThroughHost,
            sparse: None,
        }
    }
}
