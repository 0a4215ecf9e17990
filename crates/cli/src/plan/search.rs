//! The search: blocks that the linear programme likes, each tried as a real engine's programs on the timeline.

use anyhow::Result;
use engine::{Budget, EngineConfig, Outline, Planned, TooSmall, WeightShare};
use model::Checkpoint;
use policy::pipeline::DiskPath;
use policy::plan::{Attends, BlockSize, Habits, Kernels, Overlap, Placed, Question, place, search_up_to};
use policy::sched::{Delegate, Schedule};
use sim::Offline;
use spec::{ByTier, Bytes, Placement, Split, Tier};

use super::candidate::{Candidate, Homes, Job, Scored};
use super::rehearsals::{GENERATIONS, Rehearsals, kinds};
use super::screen;
use crate::args::EngineArgs;

/// Blocks of the programme that are run on the timeline.
const RESCORED: usize = 10;
/// Positions of a batch that are tried.
pub(super) const STEP_TOKENS: [usize; 5] = [128, 512, 1024, 2048, 4096];

/// Said where that takes seconds.
pub(crate) const SEARCHING: &str = "trying plans in virtual time";

/// Plans that are this near the fastest are as fast: their requests should not take longer.
const AS_FAST: f64 = 0.99;
/// Far more than sums of seconds are off.
const ROUNDING: f64 = 1e-9;
/// Candidates whose runs nothing cuts short; of the next round it is those that cannot be chosen beside these, and so on, each round
/// of twice as many.
const FIRST_ROUND: usize = 16;
/// Of the weights only what must be on the device is there: how much room there is beside them. Where that is too little for
/// one sequence, its KV is elsewhere.
pub(super) const LEAST: [Placement; 3] = [
    Placement { weights: Split::ON_DISK, ..Placement::RESIDENT },
    Placement { weights: Split::ON_DISK, kv: Split::ON_HOST, ..Placement::RESIDENT },
    Placement { weights: Split::ON_DISK, kv: Split::ON_DISK, ..Placement::RESIDENT },
];

/// What is planned.
pub(crate) struct Planner<'a> {
    pub(crate) checkpoint: &'a Checkpoint,
    /// Everything but what is searched.
    pub(crate) base: EngineConfig,
    pub(crate) job: Job,
    pub(crate) rehearsals: &'a Rehearsals<'a>,
    pub(crate) fixed: Fixed,
    /// What the process has resident before the search: all candidates are planned beside the same.
    pub(crate) resident_bytes: u64,
}

/// What flags leave no choice about.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fixed {
    pub(crate) seqs: Option<usize>,
    pub(crate) batch_size: Option<usize>,
    pub(crate) num_batches: Option<usize>,
    pub(crate) step_tokens: Option<usize>,
    pub(crate) schedule: Option<Schedule>,
    pub(crate) delegate: Option<Delegate>,
    pub(crate) max_latency_s: Option<f64>,
}

impl Fixed {
    /// By these flags.
    pub(crate) fn of(args: &EngineArgs) -> Fixed {
        let flags = &args.schedule;
        Fixed {
            seqs: args.max_num_seqs,
            batch_size: flags.batch_size,
            num_batches: flags.num_batches.map(usize::from),
            step_tokens: args.max_num_batched_tokens,
            schedule: flags.schedule.schedule(),
            delegate: flags.attend.delegate(),
            max_latency_s: None,
        }
    }

    /// Sequences at once that flags name, 0 if none do.
    pub(crate) fn at_once(&self) -> usize {
        let block = self.batch_size.map_or(0, |size| size * self.num_batches.unwrap_or(1));
        self.seqs.unwrap_or(0).max(block)
    }
}

/// Every candidate that was run for long, the best first, then the fastest.
pub(crate) struct Found {
    pub(crate) scored: Vec<Scored>,
    /// Those of which less was run, the fastest by that first.
    pub(crate) others: Vec<Candidate>,
    /// Blocks of the programme that were looked at.
    pub(super) keep: usize,
    /// What the programme thought of the best one's block, tokens a second, if it has an opinion.
    pub(crate) programme: Option<f64>,
}

impl Planner<'_> {
    /// The best of `keep` blocks; nothing where nothing fits, or nothing is fast enough.
    pub(crate) fn search(&self, keep: usize) -> Result<Option<Found>> {
        let least = self.least();
        let question = least.as_ref().map(|(_, planned)| self.question(planned));
        let most = self.most_seqs() as u32;
        let placed = question.as_ref().map(|question| search_up_to(question, most, keep)).unwrap_or_default();
        let away = least.map(|(homes, _)| homes).filter(|homes| !homes.stay());
        let (mut scored, others) = self.contenders(&self.candidates(&placed, away))?;
        scored.retain(|scored| self.is_soon(&scored.run));
        scored.sort_by(|a, b| b.run.tokens_per_s().total_cmp(&a.run.tokens_per_s()));
        let both = |scored: &Scored| (scored.run.tokens_per_s(), scored.run.latency_max_s);
        let Some(at) = preferred(scored.iter().map(both)) else { return Ok(None) };
        scored[..=at].rotate_right(1);
        let best = &scored[0];
        let block = BlockSize {
            batch_size: best.candidate.batch_size as u32,
            num_batches: best.candidate.num_batches as u32,
        };
        let opinion = question.and_then(|question| place(&question, block));
        let tokens = block.sequences() as f64 * self.job.output as f64;
        Ok(Some(Found { programme: opinion.map(|placed| tokens / placed.seconds), scored, others, keep }))
    }

    /// Those of them that fit and are worth a longer run, each with that, and the others.
    fn contenders(&self, candidates: &[Candidate]) -> Result<(Vec<Scored>, Vec<Candidate>)> {
        let outlines = self.by_turns(candidates, |candidate| self.outline(candidate));
        if self.job.requests <= screen::SHORT {
            let runs = self.race(&outlines)?;
            let others = (0..candidates.len()).filter(|&at| outlines[at].is_some() && runs[at].is_none());
            let others = others.map(|at| candidates[at]).collect();
            return Ok((scored(candidates, outlines, runs), others));
        }
        let runs = self.runs(&outlines, screen::FIRST_GENERATIONS)?;
        let chosen = screen::contenders(&runs, self.fixed.max_latency_s);
        let mut others: Vec<_> = (0..candidates.len()).filter(|at| !chosen.contains(at)).collect();
        others.retain(|at| runs[*at].is_some());
        let rate = |at: usize| runs[at].as_ref().map_or(0.0, Offline::tokens_per_s);
        others.sort_by(|a, b| rate(*b).total_cmp(&rate(*a)));
        let at = |each: &[usize]| each.iter().map(|&at| candidates[at]).collect::<Vec<_>>();
        let outlines: Vec<_> = chosen.iter().map(|&at| outlines[at].clone()).collect();
        // Of those that were run whole there is no more.
        let runs = self.runs(&outlines, GENERATIONS)?;
        Ok((scored(&at(&chosen), outlines, runs), at(&others)))
    }

    /// The runs of these engines, those of a kind as one; nothing of who has no room for the job.
    fn runs(&self, outlines: &[Option<Outline>], generations: [usize; 2]) -> Result<Vec<Option<Offline>>> {
        let (kinds, of) = kinds(outlines);
        let job = self.job.sample();
        let runs = self.by_turns(&kinds, |outline| self.rehearsals.parts(outline, job, generations));
        let runs = runs.into_iter().collect::<Result<Vec<Offline>>>()?;
        let run = |kind: usize| Some(&runs[kind]).filter(|run| run.refused == 0).cloned();
        Ok(of.into_iter().map(|kind| kind.and_then(run)).collect())
    }

    /// The runs of these engines, but of those that cannot be chosen any more, which are left before their end. In rounds, whoever
    /// is the fastest of those before: which are left is the same on any number of threads.
    fn race(&self, outlines: &[Option<Outline>]) -> Result<Vec<Option<Offline>>> {
        let (kinds, of) = kinds(outlines);
        let job = self.job.sample();
        let (mut runs, mut round) = (Vec::<Option<Offline>>::new(), FIRST_ROUND);
        while runs.len() < kinds.len() {
            let entering = &kinds[runs.len()..kinds.len().min(runs.len() + round)];
            let enough = self.enough(runs.iter().flatten());
            let run = |outline: &&Outline| self.rehearsals.parts_within(enough, outline, job, GENERATIONS);
            let entered: Result<Vec<_>> = self.by_turns(entering, run).into_iter().collect();
            runs.extend(entered?);
            round *= 2;
        }
        let run = |kind: usize| runs[kind].as_ref().filter(|run| run.refused == 0).cloned();
        Ok(of.into_iter().map(|kind| kind.and_then(run)).collect())
    }

    /// Seconds in which whoever is chosen beside these does the job; none where nobody is to be left out.
    fn enough<'a>(&self, runs: impl Iterator<Item = &'a Offline>) -> Option<f64> {
        // A curve is drawn through slow ones too.
        let all = self.fixed.max_latency_s == Some(f64::MAX);
        let chosen = runs.filter(|run| !all && run.refused == 0 && self.is_soon(run));
        let fastest = chosen.map(Offline::tokens_per_s).fold(0.0, f64::max);
        let job = self.job.sample();
        let tokens = (job.requests * job.output) as f64;
        (fastest > 0.0).then(|| tokens / (AS_FAST * fastest) * (1.0 + ROUNDING))
    }

    /// Something of each, in their order: each is a run of its own in virtual time, on as many threads as compute.
    fn by_turns<C: Sync, T: Send>(&self, each: &[C], of: impl Fn(&C) -> T + Sync) -> Vec<T> {
        let (threads, of) = (self.base.threads.max(1), &of);
        // By turns: those that take long lie together.
        let turn = |first: usize| each.iter().skip(first).step_by(threads).map(of).collect::<Vec<_>>();
        let mut turns: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|first| scope.spawn(move || turn(first))).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined
                .map(|turn| turn.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).into_iter())
                .collect()
        });
        (0..each.len()).filter_map(|i| turns[i % threads].next()).collect()
    }

    /// Runs a candidate in virtual time; nothing if it does not fit.
    pub(super) fn score(&self, candidate: Candidate) -> Result<Option<Scored>> {
        self.score_in(candidate, GENERATIONS)
    }

    /// The same, of a long job so many generations of sequences.
    fn score_in(&self, candidate: Candidate, generations: [usize; 2]) -> Result<Option<Scored>> {
        let outlines = vec![self.outline(&candidate)];
        let runs = self.runs(&outlines, generations)?;
        Ok(scored(&[candidate], outlines, runs).pop())
    }

    /// The engine of a candidate as it is rehearsed; nothing if it does not fit, or has no room for a sequence of the job.
    fn outline(&self, candidate: &Candidate) -> Option<Outline> {
        let planned = self.planned(self.config(candidate)).ok()?;
        (planned.hold().max_model_len >= self.job.input + self.job.output).then(|| planned.outline())
    }

    /// The first of these that `plan` has room for, with its run.
    pub(crate) fn next_best<P>(
        &self,
        others: &[Candidate],
        plan: impl Fn(&Candidate) -> Result<P, TooSmall>,
    ) -> Result<Option<(P, Scored)>> {
        for candidate in others {
            let Ok(planned) = plan(candidate) else { continue };
            if let Some(scored) = self.score(*candidate)? {
                return Ok(Some((planned, scored)));
            }
        }
        Ok(None)
    }

    /// The engine that runs the job as a candidate would.
    pub(crate) fn config(&self, candidate: &Candidate) -> EngineConfig {
        candidate.config(&self.base, self.job, self.checkpoint.spec().max_positions)
    }

    fn planned(&self, config: EngineConfig) -> Result<Planned<'_>, TooSmall> {
        Planned::beside(self.checkpoint, config, self.resident_bytes)
    }

    /// All that a curve is drawn through, however long requests take: of the best of the programme and of every size up to all
    /// requests those that are run for long.
    pub(crate) fn curve(&self) -> Result<Vec<Scored>> {
        let fixed = Fixed { max_latency_s: Some(f64::MAX), ..self.fixed };
        let found = Planner { fixed, base: self.base.clone(), ..*self }.search(RESCORED)?;
        Ok(found.map(|found| found.scored).unwrap_or_default())
    }

    /// Whether no request takes longer than it may.
    pub(super) fn is_soon(&self, run: &Offline) -> bool {
        self.fixed.max_latency_s.is_none_or(|most| run.latency_max_s <= most)
    }

    /// The plan whose slowest request is the soonest.
    pub(crate) fn soonest(&self) -> Result<Option<Scored>> {
        let soonest = |a: &Scored, b: &Scored| a.run.latency_max_s.total_cmp(&b.run.latency_max_s);
        Ok(self.curve()?.into_iter().min_by(soonest))
    }

    /// 1, 2, 4 and so on, fewer than there are requests.
    fn sizes(&self) -> impl Iterator<Item = usize> + use<> {
        let requests = self.job.requests;
        std::iter::successors(Some(1), |size| Some(size * 2)).take_while(move |&size| size < requests)
    }

    fn most_seqs(&self) -> usize {
        self.fixed.seqs.unwrap_or(usize::MAX).min(self.job.requests)
    }

    /// Blocks of the programme, and all requests at once, in every way that flags allow; `away`: where most is, if the device has
    /// no room for a sequence's KV.
    pub(super) fn candidates(&self, placed: &[Placed], away: Option<Homes>) -> Vec<Candidate> {
        let alone = |seqs: usize| BlockSize { batch_size: seqs as u32, num_batches: 1 };
        let most = self.most_seqs();
        let mut own: Vec<BlockSize> =
            [most, most / 2, most / 4].into_iter().filter(|&seqs| seqs > 0).map(alone).collect();
        if self.fixed.max_latency_s.is_some() {
            // The programme looks for throughput; the fewer there are at once, the sooner each is done.
            own.extend(self.sizes().map(alone));
        }
        let mut all: Vec<Candidate> = self.own_rule().into_iter().collect();
        let placed = placed.iter().map(|placed| (placed.block, self.elsewhere(placed)));
        let away = Vec::from_iter(away);
        for (block, elsewhere) in placed.chain(own.into_iter().map(|block| (block, away.clone()))) {
            let num_batches = self.fixed.num_batches.unwrap_or(block.num_batches as usize);
            let batch_size = match (self.fixed.batch_size, self.fixed.seqs) {
                (Some(size), _) => size,
                (None, Some(seqs)) => seqs.div_ceil(num_batches),
                (None, None) => block.batch_size as usize,
            };
            for step_tokens in self.steps(batch_size) {
                for homes in std::iter::once(Homes::of(&self.base)).chain(elsewhere.iter().copied()) {
                    for &schedule in self.schedules((batch_size, num_batches), homes) {
                        let candidate = |&delegate| Candidate {
                            schedule,
                            batch_size,
                            num_batches,
                            at_most: most,
                            step_tokens,
                            delegate,
                            homes,
                        };
                        all.extend(self.delegates(homes).iter().map(candidate));
                    }
                }
            }
        }
        let mut tried = Vec::new();
        all.retain(|candidate| {
            let new = !tried.contains(candidate);
            tried.extend(new.then_some(*candidate));
            new
        });
        all
    }

    /// What the engine makes of the same flags by itself.
    fn own_rule(&self) -> Option<Candidate> {
        let planned = self.planned(self.base.clone()).ok()?;
        let blocks = planned.blocks();
        Some(Candidate {
            schedule: blocks.schedule,
            batch_size: blocks.batch_seqs.min(self.most_seqs()),
            num_batches: blocks.batches,
            at_most: self.most_seqs(),
            step_tokens: planned.config().max_num_batched_tokens,
            delegate: blocks.delegate,
            homes: Homes { weights: self.base.offload.share, ..Homes::of(&self.base) },
        })
        .filter(|own| self.fixed.schedule.is_none_or(|schedule| schedule == own.schedule))
    }

    /// Where decodes may attend: of no matter where all KV is on the device.
    fn delegates(&self, homes: Homes) -> &[Delegate] {
        match &self.fixed.delegate {
            Some(delegate) => std::slice::from_ref(delegate),
            None if homes.kv == Split::RESIDENT => &[Delegate::Host],
            None => &[Delegate::Host, Delegate::Streamed],
        }
    }

    /// What the programme places where it lets KV or activations leave the device and flags do not say: KV of whole sequences, since
    /// no tier has a part of one, with weights in whole percents; and of one more, with as much of the weights as has room beside it.
    fn elsewhere(&self, placed: &Placed) -> Vec<Homes> {
        let Placement { weights, kv, hidden } = placed.placement;
        let leaves = |split: Split| split.part(Tier::Device) < Split::WHOLE / 100 * 99;
        if !self.is_free() || !(leaves(kv) || leaves(hidden)) {
            return vec![];
        }
        let sequences = placed.block.sequences();
        let (kv, hidden) = (kv.uncut(sequences), whole_percents(hidden));
        let exactly = Homes::exactly(Placement { weights: whole_percents(weights), kv, hidden });
        let one_more = Homes { weights: WeightShare::AfterKv, kv: kv.one_up(sequences), hidden };
        vec![exactly, one_more]
    }

    /// Whether flags leave open what lives where.
    pub(super) fn is_free(&self) -> bool {
        self.base.offload.share == WeightShare::Fitting && self.base.blocks.stay()
    }

    fn schedules(&self, (batch_size, num_batches): (usize, usize), homes: Homes) -> &[Schedule] {
        let aside = self.base.host_kv_tokens + self.base.drive_kv_tokens;
        match (&self.fixed.schedule, num_batches) {
            (Some(schedule), _) => std::slice::from_ref(schedule),
            // Nobody else puts aside on the tiers below what makes way on the device.
            (None, n) if aside > 0 && (n > 1 || !homes.stay()) => &[],
            (None, 1) if homes.stay() => &[Schedule::Continuous],
            // All begin together, in either order.
            (None, 1) if batch_size >= self.job.requests => &[Schedule::Zigzag],
            (None, _) => &[Schedule::Zigzag, Schedule::Diagonal],
        }
    }

    /// Positions of a batch that make sense for so many sequences: no more than their prompts have.
    pub(super) fn steps(&self, seqs: usize) -> Vec<usize> {
        if let Some(tokens) = self.fixed.step_tokens {
            return if tokens >= seqs { vec![tokens] } else { vec![] };
        }
        let prompts = seqs * self.job.input;
        let mut steps: Vec<usize> =
            STEP_TOKENS.into_iter().map(|tokens| tokens.min(prompts).max(seqs).max(16)).collect();
        steps.dedup();
        steps
    }

    /// One sequence, with the least on the device that it can do with, by the shortest steps if need be; nothing if it has no room
    /// at all.
    fn least(&self) -> Option<(Homes, Planned<'_>)> {
        let usual = self.fixed.step_tokens.unwrap_or(512).max(1);
        let shorter = self.steps(1).into_iter().filter(|&tokens| tokens < usual);
        std::iter::once(usual).chain(shorter).find_map(|step_tokens| self.least_by(step_tokens))
    }

    fn least_by(&self, step_tokens: usize) -> Option<(Homes, Planned<'_>)> {
        let choices = if self.is_free() { LEAST.len() } else { 1 };
        LEAST[..choices].iter().find_map(|&placement| {
            let homes = Homes::exactly(placement);
            let candidate = |&delegate: &Delegate| Candidate {
                schedule: if homes.stay() { Schedule::Continuous } else { Schedule::Zigzag },
                batch_size: 1,
                num_batches: 1,
                at_most: 1,
                step_tokens,
                delegate,
                homes,
            };
            let mut all = self.delegates(homes).iter().map(candidate);
            all.find_map(|it| Some((homes, self.planned(self.config(&it)).ok()?)))
        })
    }

    /// The machine as the programme sees it: memory is what a step's activations, the process and the tables leave.
    fn question(&self, least: &Planned<'_>) -> Question {
        let (outline, hold) = (least.outline(), least.hold());
        let dims = outline.dims;
        let layers = dims.layers as f64 * dims.layer() * outline.bytes.weight;
        // Embeddings and head are always on the device.
        let tables = (outline.bytes.weight * least.parameters() as f64 - layers).max(0.0) as u64;
        let fixed = hold.work_bytes + tables;
        let (device, host) = match hold.budget {
            Budget::Common(memory) => (memory.saturating_sub(hold.process_bytes + fixed), 0),
            Budget::Carved { device, memory } => (device.saturating_sub(fixed), memory - device),
            Budget::Apart { device, memory } => (device.saturating_sub(fixed), memory),
        };
        let disk = match (&self.base.offload.folder, self.base.offload.disk) {
            (None, _) => 0,
            (Some(_), limit) => limit.unwrap_or(u64::MAX >> 1),
        };
        let memory = ByTier {
            device: Bytes(device),
            host: Bytes(host.saturating_sub(hold.process_bytes)),
            disk: Bytes(disk),
        };
        let mut hardware = self.rehearsals.tables.rates(&dims, outline.bytes.kv, memory);
        if let Some(rate) = outline.link_bytes_per_s {
            hardware.up.bytes_per_s = hardware.up.bytes_per_s.min(rate as f64);
            hardware.down = hardware.up;
        }
        Question {
            dims,
            bytes: outline.bytes,
            prompt: self.job.input as u32,
            generated: (self.job.output as u32).max(2),
            hardware,
            layers: dims.layers,
            stages: 1,
            weights_on_device: None,
            overlap: Overlap::Phases,
            attends: if outline.disk_path == DiskPath::Direct { Attends::Host } else { Attends::Device },
            kernels: Kernels::Chunked,
            disk_path: outline.disk_path,
            sparse: outline.sparse,
            habits: Habits::default(),
        }
    }
}

/// Candidates that fit and were run, each with that.
fn scored(
    candidates: &[Candidate],
    outlines: Vec<Option<Outline>>,
    runs: Vec<Option<Offline>>,
) -> Vec<Scored> {
    let all = candidates.iter().zip(outlines).zip(runs);
    all.filter_map(|((&candidate, outline), run)| Some(Scored { candidate, outline: outline?, run: run? }))
        .collect()
}

/// Which to prefer of plans in the order of their rates: of those that are as fast as the first, the one whose slowest request is
/// done first. Pairs of tokens per second and seconds.
fn preferred(plans: impl IntoIterator<Item = (f64, f64)>) -> Option<usize> {
    let mut plans = plans.into_iter().peekable();
    let enough = AS_FAST * plans.peek()?.0;
    let as_fast = plans.take_while(|(rate, _)| *rate >= enough).enumerate();
    as_fast.min_by(|(_, (_, a)), (_, (_, b))| a.total_cmp(b)).map(|(at, _)| at)
}

/// Rounded down on the device and on the host, where room is short.
fn whole_percents(split: Split) -> Split {
    let percent = Split::WHOLE / 100;
    let down = |tier| split.part(tier) / percent * percent;
    let (device, host) = (down(Tier::Device), down(Tier::Host));
    // What is nearly all of it is all of it.
    let host = if device + host + percent >= Split::WHOLE && split.part(Tier::Disk) < percent {
        Split::WHOLE - device
    } else {
        host
    };
    Split::new(ByTier { device, host, disk: Split::WHOLE - device - host }).unwrap_or(split)
}

/// How many blocks a plan looks at.
pub(super) fn rescored() -> usize {
    RESCORED
}

#[cfg(test)]
mod tests;
