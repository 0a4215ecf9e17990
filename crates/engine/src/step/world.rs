//! The real world: requests come through a channel, steps run on the lanes, time is the clock's.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use policy::cost::Cost;
use policy::drive::{Event as Told, World};
use policy::pipeline::{Plan, Waits};
use policy::sched::Why;
use spec::{Done, Lane, Nanos, PrefixUse, Program, RankId, SeqId, Shape, Step, StepId, Tokens};

use crate::front::request::{Event, Failure, Request, Sink};
use crate::step::bound::StepRun;
use crate::step::lanes::{LaneId, Lanes, Task, Wait};
use crate::step::run::Machine;
use crate::step::sequence::{Sequence, Shared, Turns};
use crate::step::tables::Tables;
use crate::tiers::stowed::OnHost;
use crate::watch::foreseen::Foreseen;
use crate::watch::stats::Stats;
use kernels::lock::lock;

/// What reaches the engine's thread.
pub(crate) enum Message {
    /// A request, already checked against the model.
    Submit { id: SeqId, request: Box<Request>, max_new: usize, events: Sink },
    /// Its client is gone.
    Cancel(SeqId),
    /// A step is done, and how long it took.
    Done(Done, Duration),
    /// A lane panicked.
    Failed(String),
    /// The engine's handle was dropped.
    Stop,
}

/// The world of one engine.
pub(crate) struct Real {
    start: Instant,
    inbox: Receiver<Message>,
    lanes: Lanes<Machine>,
    waits: Waits,
    tables: Tables,
    sequences: BTreeMap<SeqId, Running>,
    newest: StepId,
    /// The last step that ended.
    done: Option<StepId>,
    eos: Vec<u32>,
    turns: Turns,
    prefix: PrefixUse,
    plan: Plan,
    stats: Arc<Stats>,
    foreseen: Option<Foreseen>,
}

/// A sequence and the newest step that has it.
struct Running {
    shared: Shared,
    newest: Option<StepId>,
}

impl Real {
    pub(crate) fn new(
        inbox: Receiver<Message>,
        machine: Arc<Machine>,
        turns: Turns,
        (prefix, plan): (PrefixUse, Plan),
        (stats, foreseen): (Arc<Stats>, Option<Foreseen>),
    ) -> std::io::Result<Real> {
        let eos = machine.decoder.spec().eos.clone();
        Ok(Real {
            start: Instant::now(),
            inbox,
            tables: Tables::new(machine.kv.groups),
            lanes: Lanes::new(Lane::COUNT, machine)?,
            waits: Waits::default(),
            sequences: BTreeMap::new(),
            newest: StepId(0),
            done: None,
            eos,
            turns,
            prefix,
            plan,
            stats,
            foreseen,
        })
    }

    /// Tells everybody who still waits that the engine is dead.
    pub(crate) fn fail_all(&mut self, why: &str) {
        for running in self.sequences.values() {
            lock(&running.shared).fail(Failure::Engine(why.to_string()));
        }
        while let Ok(message) = self.inbox.try_recv() {
            if let Message::Submit { mut events, .. } = message {
                events(Event::Failed(Failure::Engine(why.to_string())));
            }
        }
    }

    fn told(&mut self, message: Message) -> Told {
        match message {
            Message::Submit { id, request, max_new, events } => {
                Told::Arrive(self.admit(id, *request, max_new, events))
            }
            Message::Cancel(seq) => {
                self.cancel(seq);
                Told::Cancel(seq)
            }
            Message::Done(done, took) => {
                self.stats.step_done(&done, took);
                let now = self.now();
                self.learn(now);
                self.done = Some(done.step);
                self.forget_ended();
                Told::Done(done)
            }
            Message::Failed(why) => Told::Failed { step: self.newest, why },
            Message::Stop => Told::Stop,
        }
    }

    /// A step is done: what it took is held against what was said of it.
    fn learn(&mut self, now: Nanos) {
        let Some(foreseen) = &mut self.foreseen else { return };
        if let Some((said, took)) = foreseen.finish(now) {
            self.stats.foreseen(said, took);
        }
        foreseen.learn(self.stats.sorts());
        self.stats.corrected(foreseen.learned());
        // Steps under way were lowered, and run, as was said before.
        self.plan.delegation = foreseen.delegation();
    }

    /// Keeps what was learned.
    pub(crate) fn keep_learned(&self) {
        if let Some(foreseen) = &self.foreseen {
            foreseen.keep();
        }
    }

    fn admit(&mut self, id: SeqId, request: Request, max_new: usize, events: Sink) -> spec::Request {
        let scores = request.params.prompt_logprobs.is_some();
        let mut sequence = Sequence::new(request, max_new, &self.turns, &self.eos, events);
        let prefix = if scores { PrefixUse::Forbidden } else { self.prefix };
        let hashes = if prefix == PrefixUse::Allowed { sequence.prompt_hashes() } else { Vec::new() };
        let prompt = Tokens(sequence.prompt_len() as u32);
        self.sequences.insert(id, Running { shared: Arc::new(Mutex::new(sequence)), newest: None });
        spec::Request { id, arrival: self.now(), prompt, max_new: Tokens(max_new as u32), hashes, prefix }
    }

    /// A sequence is not wanted any more. Only this one is looked at: a thousand may hang up at once. One that no step under way has
    /// is dropped, the others after theirs.
    fn cancel(&mut self, seq: SeqId) {
        let Some(running) = self.sequences.get(&seq) else { return };
        lock(&running.shared).cancel();
        if running.newest <= self.done {
            self.sequences.remove(&seq);
        }
    }

    /// Drops sequences that ended and that no step under way has. Those that were in no step yet wait.
    fn forget_ended(&mut self) {
        let free = |running: &Running| running.newest.is_some() && running.newest <= self.done;
        self.sequences.retain(|_, running| !(free(running) && lock(&running.shared).has_ended()));
    }
}

impl World for Real {
    fn now(&self) -> Nanos {
        Nanos(self.start.elapsed().as_nanos() as u64)
    }

    fn plan<'a>(&'a self, _: &'a Plan) -> &'a Plan {
        &self.plan
    }

    fn cost<'a>(&'a self, given: &'a dyn Cost) -> &'a dyn Cost {
        self.foreseen.as_ref().map_or(given, Foreseen::cost)
    }

    fn start(&mut self, step: Step, shape: &Shape, program: Program) {
        self.newest = step.id;
        self.stats.step_started(shape);
        let now = self.now();
        if let Some(foreseen) = &mut self.foreseen {
            foreseen.start(now, &program, shape, self.plan.delegation);
        }
        let tables = self.tables.apply(&step);
        for chunk in step.chunks() {
            if let Some(running) = self.sequences.get_mut(&chunk.seq) {
                if running.newest.is_none() {
                    let mut sequence = lock(&running.shared);
                    sequence.begin(chunk.span.start.0 as usize);
                    let asked = self.prefix == PrefixUse::Allowed && !sequence.wants_prompt_logprobs();
                    let prompt = sequence.prompt_len() as u64;
                    self.stats.sequence_began(
                        prompt,
                        if asked { prompt } else { 0 },
                        u64::from(chunk.span.start.0),
                    );
                }
                running.newest = Some(step.id);
            }
        }
        let edges = self.waits.derive(&program);
        let tasks = program.nodes().iter().enumerate().flat_map(|(index, node)| {
            let waits: Vec<Wait> = edges
                .of(index)
                .iter()
                .map(|w| Wait { lane: lane_id(w.rank, w.lane), ticket: w.ticket.0 })
                .collect();
            let ticket = edges.ticket(index).0;
            node.places().map(move |(rank, lane)| Task {
                lane: lane_id(rank, lane),
                ticket,
                node: index,
                waits: waits.clone(),
            })
        });
        let tasks = tasks.collect();
        let sequence = |seq: SeqId| Arc::clone(&self.sequences[&seq].shared);
        let on_host = if self.plan.delegates(shape) { OnHost::ComputedWith } else { OnHost::Copied };
        self.lanes.submit(StepRun::new(&step, program, tables, on_host, sequence), tasks);
    }

    fn refuse(&mut self, seq: SeqId, why: Why) {
        if let Some(running) = self.sequences.remove(&seq) {
            lock(&running.shared).fail(why.into());
        }
    }

    fn wait(&mut self, until: Option<Nanos>) -> Told {
        let message = match until {
            None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(until) => {
                self.inbox.recv_timeout(Duration::from_nanos(until.0.saturating_sub(self.now().0)))
            }
        };
        match message {
            Ok(message) => self.told(message),
            Err(RecvTimeoutError::Timeout) => Told::Tick,
            Err(RecvTimeoutError::Disconnected) => Told::Stop,
        }
    }

    fn poll(&mut self) -> Option<Told> {
        match self.inbox.try_recv() {
            Ok(message) => Some(self.told(message)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Told::Stop),
        }
    }
}

/// One rank for now: lanes are numbered as [`Lane`] numbers them.
fn lane_id(rank: RankId, lane: Lane) -> LaneId {
    rank.index() * Lane::COUNT + lane.index()
}
