//! The virtual world: time jumps from event to event, and steps take what the timeline says.

use crate::metrics::{End, Metrics};
use crate::rng::Rng;
use crate::shadow::Shadow;
use crate::text::Text;
use crate::workload::Job;
use policy::cost::Cost;
use policy::drive::{Event, World};
use policy::pipeline::{Pauses, Timeline};
use policy::sched::Why;
use spec::{
    BLOCK_TOKENS, Chunk, Done, Full, Kept, KvGroups, Nanos, Outcome, PrefixUse, Produced, Program, Request,
    Sampling, SeqId, Shape, Step, StepId, Tier, Tokens,
};
use std::collections::BTreeMap;

/// Whether a shadow engine looks at every block access. It is slow where contexts are long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accesses {
    /// Each one is checked.
    Checked,
    /// None.
    Trusted,
}

/// How long things really take in this world.
pub struct Truth {
    /// Every op.
    pub cost: Box<dyn Cost>,
    /// And when nothing runs.
    pub pauses: Pauses,
}

/// When a run is not worth its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// All must be done by then, in seconds from the beginning.
    pub seconds: f64,
    /// What a position takes at the least, in seconds: those that are left take as many times that, one after the other.
    pub position_s: f64,
}

/// A sequence as the world knows it: it ends by itself after `output` tokens.
struct Life {
    prompt: Tokens,
    output: Tokens,
    drawn: Tokens,
    text: Text,
}

/// Time, requests and an executor, all virtual.
pub struct VirtualWorld {
    now: Nanos,
    truth: Truth,
    timeline: Timeline,
    /// By time, then in order of insertion.
    events: BTreeMap<(Nanos, u64), Event>,
    inserted: u64,
    lives: BTreeMap<SeqId, Life>,
    running: BTreeMap<StepId, Vec<Chunk>>,
    shadow: Option<Shadow>,
    metrics: Metrics,
    broken_drive: Option<Rng>,
    /// A limit, and the positions that are to be computed in all.
    limit: Option<(Limit, u64)>,
}

impl VirtualWorld {
    /// At time zero, with nothing to come.
    pub fn new(truth: Truth, accesses: Accesses) -> Self {
        Self {
            now: Nanos::ZERO,
            timeline: Timeline::new(truth.pauses),
            truth,
            events: BTreeMap::new(),
            inserted: 0,
            lives: BTreeMap::new(),
            running: BTreeMap::new(),
            shadow: (accesses == Accesses::Checked).then(Shadow::default),
            metrics: Metrics::default(),
            broken_drive: None,
            limit: None,
        }
    }

    /// Layers are in these groups. Before the first step.
    pub fn group(&mut self, groups: KvGroups) {
        if let Some(shadow) = &mut self.shadow {
            shadow.group(groups);
        }
    }

    /// From now on every third copy of kept blocks from or to the drive fails, drawn at random.
    pub fn break_drive(&mut self, rng: Rng) {
        self.broken_drive = Some(rng);
    }

    /// Copies of this step that will fail.
    fn losses(&mut self, step: &Step) -> Vec<Kept> {
        let Some(rng) = &mut self.broken_drive else { return Vec::new() };
        let drive = step.kept.iter().filter(|kept| kept.from.max(kept.to) == Tier::Disk);
        drive.filter(|_| rng.one_in(3)).cloned().collect()
    }

    /// Requests that come when their jobs say, each with its own text, named from 0 on; nobody asks for more than its
    /// output.
    pub fn expect(&mut self, jobs: &[Job]) {
        for (seq, job) in (0..).map(SeqId).zip(jobs) {
            let text = Text::new(seq, seq.0, Tokens::ZERO);
            let request = Request {
                id: seq,
                arrival: job.arrival,
                prompt: job.prompt,
                max_new: job.output,
                hashes: Vec::new(),
                prefix: PrefixUse::Forbidden,
            };
            self.expect_one(request, job.output, text);
        }
    }

    /// A request that comes at its arrival, and ends by itself after `output` tokens.
    pub fn expect_one(&mut self, request: Request, output: Tokens, mut text: Text) {
        if request.prefix == PrefixUse::Allowed {
            text.blocks(request.prompt);
        }
        if let Some(shadow) = &mut self.shadow {
            shadow.learn(&request, text.clone());
        }
        let life = Life { prompt: request.prompt, output, drawn: Tokens::ZERO, text };
        self.lives.insert(request.id, life);
        self.insert(request.arrival, Event::Arrive(request));
    }

    /// From now on the run stops as soon as what is expected so far cannot be done within a limit.
    pub fn limit(&mut self, limit: Limit) {
        // The last token of each is only told.
        let positions =
            self.lives.values().map(|life| u64::from((life.prompt + life.output).0).saturating_sub(1));
        self.limit = Some((limit, positions.sum()));
    }

    /// Whether the limit cannot be kept any more: positions of steps that have begun count as computed, others take the device one
    /// after the other.
    pub fn is_late(&self) -> bool {
        self.limit.is_some_and(|(limit, positions)| {
            let left = positions.saturating_sub(self.metrics.computed);
            self.now.as_secs() + left as f64 * limit.position_s > limit.seconds
        })
    }

    /// A client that goes away.
    pub fn expect_cancel(&mut self, at: Nanos, seq: SeqId) {
        self.insert(at, Event::Cancel(seq));
    }

    /// What happened so far.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn insert(&mut self, at: Nanos, event: Event) {
        self.events.insert((at, self.inserted), event);
        self.inserted += 1;
    }

    /// Takes the next event and what it changes in the world.
    fn take(&mut self) -> Option<Event> {
        let ((_, _), event) = self.events.pop_first()?;
        match &event {
            Event::Arrive(request) => self.metrics.arrive(request.id, request.arrival, request.prompt),
            Event::Cancel(seq) => self.metrics.end(*seq, End::Cancelled),
            Event::Done(done) => return Some(Event::Done(self.finish(done.clone()))),
            Event::Failed { .. } | Event::Tick | Event::Stop => {}
        }
        Some(event)
    }

    /// `done` says which, and what was lost.
    fn finish(&mut self, done: Done) -> Done {
        if let Some(shadow) = &mut self.shadow {
            shadow.done(&done);
        }
        let chunks = self.running.remove(&done.step).expect("a step is done once");
        let outcomes = chunks.iter().map(|chunk| self.outcome(chunk)).collect();
        Done { outcomes, ..done }
    }

    fn outcome(&mut self, chunk: &Chunk) -> Outcome {
        let life = self.lives.get_mut(&chunk.seq).expect("steps name requests that came");
        let first = (chunk.span.start.0 / BLOCK_TOKENS.0).max(life.prompt.full_blocks() as u32);
        let full = (first..chunk.span.end().full_blocks() as u32)
            .map(|index| Full { index, hash: life.text.block(index) });
        let full = full.collect();
        if chunk.sample == Sampling::Skip {
            return Outcome { seq: chunk.seq, produced: Produced::Nothing, full };
        }
        life.drawn += Tokens(1);
        let produced = if life.drawn == life.output { Produced::Last } else { Produced::Token };
        if self.metrics.is_open(chunk.seq) {
            self.metrics.token(chunk.seq, self.now);
        }
        if produced == Produced::Last {
            self.metrics.end(chunk.seq, End::Finished);
            life.text.forget();
        }
        Outcome { seq: chunk.seq, produced, full }
    }
}

impl World for VirtualWorld {
    fn now(&self) -> Nanos {
        self.now
    }

    fn start(&mut self, step: Step, shape: &Shape, program: Program) {
        if let Some(shadow) = &mut self.shadow {
            shadow.start(&step);
        }
        let timing = self.timeline.commit(self.now, &program, shape, &*self.truth.cost);
        for (node, (begin, end)) in program.nodes().iter().zip(&timing.nodes) {
            self.metrics.ops[node.op.kind()] += *end - *begin;
            for (_, lane) in node.places() {
                self.metrics.busy[lane.index()] += *end - *begin;
            }
        }
        step.chunks().for_each(|chunk| self.metrics.begin(chunk.seq, self.now));
        self.metrics.steps += 1;
        self.metrics.computed += step.chunks().map(|chunk| u64::from(chunk.span.len.0)).sum::<u64>();
        let lost = self.losses(&step);
        self.insert(timing.end, Event::Done(Done { step: step.id, outcomes: Vec::new(), lost }));
        self.running.insert(step.id, step.batches.into_iter().flatten().collect());
    }

    fn refuse(&mut self, seq: SeqId, why: Why) {
        self.metrics.end(seq, End::Refused(why));
    }

    fn wait(&mut self, until: Option<Nanos>) -> Event {
        if self.is_late() {
            return Event::Stop;
        }
        let next = self.events.first_key_value().map(|((at, _), _)| *at);
        match (next, until) {
            (None, None) => Event::Stop,
            (Some(at), until) if until.is_none_or(|until| at <= until) => {
                self.now = self.now.max(at);
                self.take().expect("just seen")
            }
            (_, until) => {
                self.now = self.now.max(until.unwrap_or_default());
                Event::Tick
            }
        }
    }

    fn poll(&mut self) -> Option<Event> {
        let due = self.events.first_key_value().is_some_and(|((at, _), _)| *at <= self.now);
        if due { self.take() } else { None }
    }
}
