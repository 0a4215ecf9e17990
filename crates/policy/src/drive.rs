//! The one loop: events in, steps out. The world is real in `engine` and virtual in `sim`.

use crate::cost::Cost;
use crate::pipeline::{Arranger, Excess, Plan, lower};
use crate::sched::{Next, Scheduler, Why};
use spec::{Done, Layout, Nanos, Program, Request, SeqId, Shape, Step, StepId};

/// What comes to pass in a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request came.
    Arrive(Request),
    /// A sequence is no longer wanted: its client is gone.
    Cancel(SeqId),
    /// A step is done.
    Done(Done),
    /// A step failed. Nothing after it can be trusted.
    Failed {
        /// Which.
        step: StepId,
        /// Why, for people.
        why: String,
    },
    /// The time that was waited for has come.
    Tick,
    /// Nothing more will come, or nothing more is wanted.
    Stop,
}

/// Where steps run.
pub trait World {
    /// The time.
    fn now(&self) -> Nanos;

    /// The plan by which the next step is lowered; `given` is what the run began with.
    fn plan<'a>(&'a self, given: &'a Plan) -> &'a Plan {
        given
    }

    /// What the ops of the next step are believed to take, by which its program is arranged; `given` is what the run began with.
    fn cost<'a>(&'a self, given: &'a dyn Cost) -> &'a dyn Cost {
        given
    }

    /// Begins a step. It is done when a [`Event::Done`] says so; steps run in the order in which they begin.
    fn start(&mut self, step: Step, shape: &Shape, program: Program);

    /// A request will not be served.
    fn refuse(&mut self, seq: SeqId, why: Why);

    /// The next event, at the latest a `Tick` at `until`. `Stop` when none can come any more.
    fn wait(&mut self, until: Option<Nanos>) -> Event;

    /// An event that is due already.
    fn poll(&mut self) -> Option<Event>;
}

/// Why the loop ended before its time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A step failed where it ran.
    #[error("step {step} failed: {why}")]
    Step {
        /// Which.
        step: StepId,
        /// Why, for people.
        why: String,
    },
    /// The scheduler asked for a step that the plan has no room for.
    #[error("step {step} does not fit the plan: {excess}")]
    Excess {
        /// Which.
        step: StepId,
        /// What is missing.
        excess: Excess,
    },
}

/// What turns steps into programs.
pub struct Lowering<'a> {
    /// What lives where.
    pub plan: &'a Plan,
    /// What ops are believed to cost.
    pub cost: &'a dyn Cost,
}

/// Steps in flight and the layout that they ran under.
#[derive(Default)]
struct Contract {
    in_flight: Vec<StepId>,
    newest: Option<(StepId, Layout)>,
}

impl Contract {
    /// Asserts what every scheduler promises of its steps.
    fn check(&self, step: &Step) {
        if let Some((newest, layout)) = self.newest {
            assert!(step.id > newest, "steps are numbered in order: {} after {newest}", step.id);
            let reshards = step.layout != layout;
            assert!(
                !reshards || self.in_flight.is_empty(),
                "a re-shard starts with nothing in flight: {}",
                step.id
            );
            assert!(reshards || !is_empty(step), "a step has chunks, moves or another layout: {}", step.id);
        } else {
            assert!(!is_empty(step), "the first step has chunks or moves");
        }
    }

    fn start(&mut self, step: &Step) {
        self.check(step);
        self.in_flight.push(step.id);
        self.newest = Some((step.id, step.layout));
    }

    fn end(&mut self, done: &Done) {
        self.in_flight.retain(|&step| step != done.step);
    }
}

fn is_empty(step: &Step) -> bool {
    step.chunks().next().is_none() && step.moves.is_empty() && step.kept.is_empty()
}

/// Whether the loop goes on.
#[derive(PartialEq)]
enum Flow {
    On,
    Stop,
}

/// Runs `scheduler` in `world` until it says `Stop`, and steps in flight to their ends. All events that are due are taken
/// before a step is asked for.
///
/// # Errors
/// When a step fails or does not fit the plan.
///
/// # Panics
/// When the scheduler breaks its contract: an empty step, steps out of order, a re-shard with steps in flight.
pub fn drive(
    world: &mut impl World,
    scheduler: &mut impl Scheduler,
    lowering: &Lowering<'_>,
) -> Result<(), Failure> {
    let (mut contract, mut arranger) = (Contract::default(), Arranger::default());
    loop {
        while let Some(event) = world.poll() {
            if take(event, world.now(), scheduler, &mut contract)? == Flow::Stop {
                return settle(world, scheduler, &mut contract);
            }
        }
        match scheduler.next(world.now()) {
            Next::Run(step) => start(step, world, lowering, &mut contract, &mut arranger)?,
            Next::Refuse(seq, why) => world.refuse(seq, why),
            Next::Wait(until) => {
                let event = world.wait(until);
                if take(event, world.now(), scheduler, &mut contract)? == Flow::Stop {
                    return settle(world, scheduler, &mut contract);
                }
            }
        }
    }
}

/// Steps in flight run to their ends whoever stops: these ends belong to what happened, and to its record. A second `Stop` is
/// from a world that has no more.
fn settle(world: &mut impl World, to: &mut impl Scheduler, contract: &mut Contract) -> Result<(), Failure> {
    while !contract.in_flight.is_empty() {
        let event = world.wait(None);
        if take(event, world.now(), to, contract)? == Flow::Stop {
            break;
        }
    }
    Ok(())
}

fn take(event: Event, now: Nanos, to: &mut impl Scheduler, contract: &mut Contract) -> Result<Flow, Failure> {
    match event {
        Event::Arrive(request) => to.arrive(now, request),
        Event::Cancel(seq) => to.cancel(now, seq),
        Event::Done(done) => {
            contract.end(&done);
            to.complete(now, &done);
        }
        Event::Failed { step, why } => return Err(Failure::Step { step, why }),
        Event::Tick => {}
        Event::Stop => return Ok(Flow::Stop),
    }
    Ok(Flow::On)
}

fn start(
    step: Step,
    world: &mut impl World,
    by: &Lowering<'_>,
    contract: &mut Contract,
    arranger: &mut Arranger,
) -> Result<(), Failure> {
    contract.start(&step);
    let shape = Shape::of(&step);
    let plan = world.plan(by.plan);
    plan.fits(&shape).map_err(|excess| Failure::Excess { step: step.id, excess })?;
    let program = arranger.arrange(lower(&shape, plan), &shape, world.cost(by.cost));
    world.start(step, &shape, program);
    Ok(())
}
