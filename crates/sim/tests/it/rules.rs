//! The rules of the seam that a prototype paid for, a test or more for each.

use crate::common::{by_tokens, config, request, run, world};
use policy::drive::{Event, Failure, Lowering, World, drive};
use policy::pipeline::{Excess, Pauses, Plan, Timeline, arrange, lower};
use policy::sched::{Fcfs, FcfsConfig, Next, Preempt, Scheduler, Why};
use sim::{Accesses, End, Shadow, Text, Truth, VirtualWorld};
use spec::{
    BlockId, ByTier, Chunk, Done, Layout, Move, Nanos, Op, Outcome, Piece, Pipeline, Produced, Program,
    ReplicaId, Request, Sampling, SeqId, Shape, Span, Step, StepId, Tier, Tokens,
};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};

fn step(id: u64, chunks: Vec<Chunk>) -> Step {
    Step {
        id: StepId(id),
        replica: ReplicaId(0),
        layout: Layout::SINGLE,
        pipeline: Pipeline::Plain,
        batches: vec![chunks],
        moves: Vec::new(),
        kept: Vec::new(),
        release: Vec::new(),
    }
}

fn chunk(seq: u64, start: u32, len: u32, blocks: &[u32], sample: Sampling) -> Chunk {
    let span = Span { start: Tokens(start), len: Tokens(len) };
    let new_blocks = blocks.iter().copied().map(BlockId).collect();
    Chunk { seq: SeqId(seq), span, home: Tier::Device, attend: Tier::Device, new_blocks, sample }
}

fn learn(shadow: &mut Shadow, id: u64, prompt: u32) {
    let mut text = Text::new(SeqId(id), id, Tokens(0));
    shadow.learn(&request(id, Nanos(0), prompt, 9, &mut text), text);
}

// 1. Steps in flight.

/// Steps that a request of 8 outputs takes at this depth, and the positions computed.
fn late(depth: usize) -> (u64, u64) {
    let mut world = world();
    let mut text = Text::new(SeqId(0), 0, Tokens(0));
    let request = request(0, Nanos(0), 10, 50, &mut text);
    world.expect_one(request, Tokens(8), text);
    run(&mut world, &mut Fcfs::new(FcfsConfig { depth, ..config(10) }));
    assert_eq!(world.metrics().summary().generated_tokens, 8, "late outcomes count nothing");
    (world.metrics().steps, world.metrics().computed)
}

#[test]
fn a_late_end_costs_one_token_for_each_extra_step_in_flight() {
    let alone = late(1);
    assert_eq!(alone, (8, 17));
    for extra in 1..4 {
        assert_eq!(late(1 + extra as usize), (alone.0 + extra, alone.1 + extra));
    }
}

#[test]
fn outcomes_of_the_unknown_count_nothing() {
    let mut scheduler = Fcfs::new(config(10));
    let outcomes = vec![Outcome { seq: SeqId(9), produced: Produced::Last, full: Vec::new() }];
    scheduler.complete(Nanos(0), &Done::of(StepId(77), outcomes.clone()));
    let mut text = Text::new(SeqId(0), 0, Tokens(0));
    scheduler.arrive(Nanos(0), request(0, Nanos(0), 10, 5, &mut text));
    let Next::Run(step) = scheduler.next(Nanos(0)) else { panic!("it fits") };
    scheduler.cancel(Nanos(0), SeqId(0));
    scheduler.cancel(Nanos(0), SeqId(0));
    let late = Outcome { seq: SeqId(0), produced: Produced::Token, full: Vec::new() };
    scheduler.complete(Nanos(1), &Done::of(step.id, [outcomes, vec![late]].concat()));
    scheduler.check();
    assert_eq!(scheduler.next(Nanos(1)), Next::Wait(None));
}

// 2. Freed blocks rest until the newest step that was in flight is done.

#[test]
fn a_freed_block_rests_while_a_step_in_flight_may_touch_it() {
    let mut scheduler = Fcfs::new(FcfsConfig { depth: 2, ..config(1) });
    for id in 0..2 {
        let mut text = Text::new(SeqId(id), id, Tokens(0));
        scheduler.arrive(Nanos(id), request(id, Nanos(id), 10, 5, &mut text));
    }
    let Next::Run(first) = scheduler.next(Nanos(2)) else { panic!("the first fits") };
    scheduler.cancel(Nanos(3), SeqId(0));
    assert_eq!(scheduler.next(Nanos(3)), Next::Wait(None), "its block may be written still");
    scheduler.complete(Nanos(4), &Done::of(first.id, Vec::new()));
    let Next::Run(second) = scheduler.next(Nanos(4)) else { panic!("the second fits now") };
    assert_eq!((second.release.clone(), second.batches[0][0].seq), (vec![SeqId(0)], SeqId(1)));
}

#[test]
#[should_panic(expected = "still touches")]
fn the_shadow_sees_a_block_written_while_a_step_in_flight_touches_it() {
    let mut shadow = Shadow::default();
    (0..2).for_each(|id| learn(&mut shadow, id, 10));
    shadow.start(&step(0, vec![chunk(0, 0, 10, &[3], Sampling::Sample)]));
    shadow.start(&Step { release: vec![SeqId(0)], ..step(1, vec![chunk(1, 0, 10, &[3], Sampling::Sample)]) });
}

#[test]
#[should_panic(expected = "still touches")]
fn the_shadow_sees_the_source_of_a_move_used_again_in_its_step() {
    let mut shadow = Shadow::default();
    (0..2).for_each(|id| learn(&mut shadow, id, 10));
    shadow.start(&step(0, vec![chunk(0, 0, 10, &[3], Sampling::Sample)]));
    shadow.done(&Done::of(StepId(0), Vec::new()));
    let away = Move {
        seq: SeqId(0),
        from: Tier::Device,
        to: Tier::Host,
        blocks: vec![(BlockId(3), BlockId(0))],
        piece: Piece::Last,
    };
    shadow.start(&Step { moves: vec![away], ..step(1, vec![chunk(1, 0, 10, &[3], Sampling::Sample)]) });
}

#[test]
#[should_panic(expected = "others refer to")]
fn the_shadow_sees_a_block_given_out_twice() {
    let mut shadow = Shadow::default();
    (0..2).for_each(|id| learn(&mut shadow, id, 10));
    shadow.start(&step(0, vec![chunk(0, 0, 10, &[3], Sampling::Sample)]));
    shadow.done(&Done::of(StepId(0), Vec::new()));
    shadow.start(&step(1, vec![chunk(1, 0, 10, &[3], Sampling::Sample)]));
}

#[test]
#[should_panic(expected = "reads position 0")]
fn the_shadow_sees_a_prefix_that_nobody_wrote() {
    let mut shadow = Shadow::default();
    learn(&mut shadow, 0, 40);
    shadow.start(&step(0, vec![chunk(0, 32, 8, &[3, 4], Sampling::Sample)]));
}

#[test]
#[should_panic(expected = "leaves a gap")]
fn the_shadow_sees_a_gap() {
    let mut shadow = Shadow::default();
    learn(&mut shadow, 0, 30);
    shadow.start(&step(0, vec![chunk(0, 0, 10, &[3], Sampling::Skip)]));
    shadow.start(&step(1, vec![chunk(0, 12, 10, &[], Sampling::Skip)]));
}

// 3. and 4. What `drive` promises and demands.

/// A scheduler that answers from a list and notes what it is told.
#[derive(Default)]
struct Scripted {
    answers: VecDeque<Next>,
    told: Vec<String>,
}

impl Scheduler for Scripted {
    fn arrive(&mut self, now: Nanos, request: Request) {
        self.told.push(format!("{} arrive {}", now.0, request.id));
    }
    fn cancel(&mut self, now: Nanos, seq: SeqId) {
        self.told.push(format!("{} cancel {seq}", now.0));
    }
    fn next(&mut self, now: Nanos) -> Next {
        self.told.push(format!("{} next", now.0));
        self.answers.pop_front().unwrap_or(Next::Wait(None))
    }
    fn complete(&mut self, now: Nanos, done: &Done) {
        self.told.push(format!("{} done {}", now.0, done.step));
    }
}

fn scripted(answers: impl IntoIterator<Item = Next>) -> Scripted {
    Scripted { answers: answers.into_iter().collect(), told: Vec::new() }
}

/// A world whose events are a list, all due at their time; steps are done when the list says so.
#[derive(Default)]
struct Listed {
    now: u64,
    events: VecDeque<(u64, Event)>,
    started: Vec<StepId>,
    refused: Vec<SeqId>,
}

impl World for Listed {
    fn now(&self) -> Nanos {
        Nanos(self.now)
    }
    fn start(&mut self, step: Step, _: &Shape, _: Program) {
        self.started.push(step.id);
    }
    fn refuse(&mut self, seq: SeqId, _: Why) {
        self.refused.push(seq);
    }
    fn wait(&mut self, until: Option<Nanos>) -> Event {
        let next = self.events.front().map_or(u64::MAX, |event| event.0);
        match until.filter(|until| until.0 < next) {
            Some(until) => {
                self.now = until.0;
                Event::Tick
            }
            None => {
                self.now = self.now.max(next);
                self.events.pop_front().map_or(Event::Stop, |event| event.1)
            }
        }
    }
    fn poll(&mut self) -> Option<Event> {
        let due = self.events.front().is_some_and(|event| event.0 <= self.now);
        if due { self.events.pop_front().map(|event| event.1) } else { None }
    }
}

fn drive_on(world: &mut Listed, scheduler: &mut Scripted) -> Result<(), Failure> {
    drive(world, scheduler, &Lowering { plan: &Plan::resident(1, 64), cost: &by_tokens })
}

fn some_step(id: u64) -> Step {
    step(id, vec![chunk(0, 0, 4, &[0], Sampling::Sample)])
}

fn arrival(id: u64) -> Event {
    Event::Arrive(request(id, Nanos(0), 4, 4, &mut Text::new(SeqId(id), id, Tokens(0))))
}

#[test]
#[should_panic(expected = "nothing in flight")]
fn a_reshard_waits_for_the_old_layout() {
    let moved = Step { layout: Layout { tp: 2, pp: 1, dp: 1 }, ..some_step(1) };
    drop(drive_on(&mut Listed::default(), &mut scripted([Next::Run(some_step(0)), Next::Run(moved)])));
}

#[test]
fn a_layout_that_the_weights_are_not_cut_for_is_an_error() {
    let layout = Layout { tp: 2, pp: 1, dp: 1 };
    let failed =
        drive_on(&mut Listed::default(), &mut scripted([Next::Run(Step { layout, ..some_step(0) })]));
    let excess = Excess::Layout { found: layout, plan: Layout::SINGLE };
    assert_eq!(failed, Err(Failure::Excess { step: StepId(0), excess }));
}

#[test]
#[should_panic(expected = "in order")]
fn steps_are_started_in_their_order() {
    drop(drive_on(&mut Listed::default(), &mut scripted([Next::Run(some_step(1)), Next::Run(some_step(1))])));
}

#[test]
#[should_panic(expected = "chunks, moves or another layout")]
fn a_step_with_nothing_in_it_is_not_a_step() {
    let empty = Step { release: vec![SeqId(0)], ..step(1, Vec::new()) };
    drop(drive_on(&mut Listed::default(), &mut scripted([Next::Run(some_step(0)), Next::Run(empty)])));
}

/// Whoever stops has been told the last token, while its step is on the way.
#[test]
fn steps_in_flight_end_before_a_run_that_is_stopped() {
    let done = Event::Done(Done::of(StepId(0), Vec::new()));
    let events = [(3, Event::Stop), (7, done), (8, arrival(1))];
    let mut world = Listed { events: events.into(), ..Listed::default() };
    let mut scheduler = scripted([Next::Run(some_step(0)), Next::Wait(None)]);
    drive_on(&mut world, &mut scheduler).expect("it ends");
    assert_eq!(scheduler.told, ["0 next", "0 next", "7 done 0"]);
    assert_eq!(world.events.len(), 1, "nothing is waited for after that");
}

#[test]
fn all_events_that_are_due_come_before_the_question() {
    let done = Event::Done(Done::of(StepId(0), Vec::new()));
    let events = [(5, arrival(0)), (5, arrival(1)), (5, Event::Cancel(SeqId(0))), (9, done), (9, arrival(2))];
    let mut world = Listed { events: events.into(), ..Listed::default() };
    let mut scheduler = scripted([
        Next::Wait(None),
        Next::Run(some_step(0)),
        Next::Refuse(SeqId(1), Why::QueueFull { limit: 0 }),
    ]);
    drive_on(&mut world, &mut scheduler).expect("nothing fails");
    let told =
        "0 next, 5 arrive 0, 5 arrive 1, 5 cancel 0, 5 next, 5 next, 5 next, 9 done 0, 9 arrive 2, 9 next";
    assert_eq!(scheduler.told.join(", "), told);
    assert_eq!((world.started, world.refused), (vec![StepId(0)], vec![SeqId(1)]));
}

#[test]
fn waiting_until_a_time_ends_then() {
    let mut scheduler = scripted([Next::Wait(Some(Nanos(7))), Next::Wait(Some(Nanos(20)))]);
    let mut world = Listed { events: [(9, arrival(0))].into(), ..Listed::default() };
    drive_on(&mut world, &mut scheduler).expect("nothing fails");
    assert_eq!(scheduler.told.join(", "), "0 next, 7 next, 9 arrive 0, 9 next");
}

#[test]
fn a_failed_step_ends_the_run() {
    let failed = Event::Failed { step: StepId(0), why: "the drive is gone".into() };
    let mut world = Listed { events: [(3, failed)].into(), ..Listed::default() };
    let ended = drive_on(&mut world, &mut scripted([Next::Run(some_step(0))]));
    assert_eq!(ended.expect_err("it failed").to_string(), "step 0 failed: the drive is gone");
}

#[test]
fn what_can_never_fit_is_refused_and_the_rest_is_served() {
    let mut world = world();
    for (id, prompt) in [(0, 33), (1, 32), (2, 20)] {
        let mut text = Text::new(SeqId(id), id, Tokens(0));
        let request = request(id, Nanos(0), prompt, 1, &mut text);
        world.expect_one(request, Tokens(1), text);
    }
    run(&mut world, &mut Fcfs::new(config(1)));
    let ends: Vec<_> = world.metrics().requests.values().map(|tally| tally.end).collect();
    assert_eq!(ends, [End::Refused(Why::NeverFits { needed: 2, capacity: 1 }), End::Finished, End::Finished]);
}

// 5. What lies between steps is a gap, not an op.

fn one_node_a_step() -> (Program, Shape) {
    let shape =
        Shape { pipeline: Pipeline::Plain, layout: Layout::SINGLE, loads: Vec::new(), moves: Vec::new() };
    let mut program = Program::new(Layout::SINGLE);
    let touches = [(spec::Buffer::Sampled, spec::Access::Write)];
    program.push(Op::Embed { batch: 0 }, spec::Lane::Device, spec::Ranks::FIRST, touches);
    (program, shape)
}

/// Time for ten steps of 100 with a gap of 80, with `depth` of them in flight.
fn ten_steps(depth: usize) -> u64 {
    let (program, shape) = one_node_a_step();
    let mut timeline = Timeline::new(Nanos(80));
    let mut ends = vec![Nanos::ZERO; depth];
    for i in 0..10 {
        let now = ends[i];
        ends.push(timeline.commit(now, &program, &shape, &|_: &Op, _: &Shape| Nanos(100)).end);
    }
    ends.last().expect("ten").0
}

#[test]
fn a_second_step_in_flight_hides_the_gap() {
    assert_eq!(ten_steps(1), 10 * 180);
    assert_eq!(ten_steps(2), 80 + 10 * 100);
}

/// A load that takes `load`, and a kernel of 100 that waits for it.
fn kernel_after_load(load: u64, wake: u64) -> u64 {
    let part = spec::Part::Mlp(0);
    let slot = spec::Buffer::Weights { slot: 0, tier: Tier::Device };
    let of = |access| [(slot, access)];
    let (mut program, shape) = one_node_a_step();
    let op = Op::LoadWeights { part, from: Tier::Disk, to: Tier::Device };
    program.push(op, spec::Lane::DiskRead, spec::Ranks::FIRST, of(spec::Access::Write));
    program.push(
        Op::Mlp { layer: 0, batch: 0 },
        spec::Lane::Device,
        spec::Ranks::FIRST,
        of(spec::Access::Read),
    );
    let cost = |op: &Op, _: &Shape| Nanos(if matches!(op, Op::LoadWeights { .. }) { load } else { 100 });
    let mut timeline = Timeline::new(Pauses { gap: Nanos::ZERO, wake: Nanos(wake) });
    timeline.commit(Nanos::ZERO, &program, &shape, &cost).end.0
}

#[test]
fn a_lane_that_waits_for_long_falls_asleep() {
    // The first kernel takes 100; whoever waits for no longer than a lane looks for work does not sleep.
    assert_eq!([kernel_after_load(90, 30), kernel_after_load(130, 30)], [200, 230]);
    assert_eq!(kernel_after_load(131, 30), 131 + 30 + 100);
    assert_eq!(kernel_after_load(500, 0), 600);
}

#[test]
fn every_stage_pays_the_gap() {
    let layout = Layout { tp: 1, pp: 3, dp: 1 };
    let plan = Plan { layout, ..Plan::resident(3, 64) };
    let shape = Shape { layout, ..Shape::of(&some_step(0)) };
    let program = lower(&shape, &plan);
    let ends = |gap| {
        Timeline::new(Nanos(gap)).commit(Nanos(0), &program, &shape, &|_: &Op, _: &Shape| Nanos(1)).end.0
    };
    assert_eq!(ends(1_000_000) / 1_000_000, 3);
    assert!(ends(0) < 100);
}

// 6. Long moves go in pieces.

/// Every block of a layer takes as long as an op.
fn by_blocks(op: &Op, shape: &Shape) -> Nanos {
    let Op::MoveKv { from, to, .. } = *op else { return by_tokens(op, shape) };
    let blocks = shape.moves.iter().filter(|load| (load.from, load.to) == (from, to)).map(|load| load.blocks);
    Nanos(10_000 * u64::from(blocks.sum::<u32>()))
}

/// What swaps of four sequences do to steps, of which each moves so many blocks at the most: pieces, blocks, the longest step of
/// those that move and decode.
fn swaps(most: usize) -> (usize, usize, u64) {
    let host = ByTier { device: 40, host: 64, disk: 0 };
    let limits = FcfsConfig { blocks: host, preempt: Preempt::Swap, max_move_blocks: most, ..config(0) };
    let truth = Truth { cost: Box::new(by_blocks), pauses: Nanos(20_000).into() };
    let mut world = VirtualWorld::new(truth, Accesses::Checked);
    for id in 0..4 {
        let mut text = Text::new(SeqId(id), id, Tokens(0));
        let request = request(id, Nanos(id), 300, 300, &mut text);
        world.expect_one(request, Tokens(300), text);
    }
    let (mut pieces, mut moved, mut longest) = (0, 0, 0);
    let mut began = BTreeMap::new();
    let entries = |entry: &policy::log::Entry| match entry {
        policy::log::Entry::Next { at, answer: Next::Run(step) } => {
            let blocks: usize = step.moves.iter().map(|m| m.blocks.len()).sum();
            assert!(blocks <= most, "{step:?}");
            pieces += step.moves.len();
            moved += blocks;
            let decodes = step.chunks().all(|chunk| chunk.span.len == Tokens(1));
            began.extend(Some((step.id, *at)).filter(|_| blocks > 0 && decodes));
        }
        policy::log::Entry::Done { at, done } => {
            longest = longest.max(began.get(&done.step).map_or(0, |began| at.0 - began.0));
        }
        _ => {}
    };
    let mut scheduler = policy::log::Recorded::new(Fcfs::new(limits.clone()), &limits, entries);
    run(&mut world, &mut scheduler);
    assert_eq!(world.metrics().summary().finished, 4);
    (pieces, moved, longest)
}

#[test]
fn a_long_move_is_cut_and_no_step_is_stretched_by_more_than_a_piece() {
    let (pieces, moved, longest) = swaps(3);
    assert!(pieces > 8 && moved > 20, "sequences were swapped: {pieces} pieces, {moved} blocks");
    let (one, _, whole) = swaps(usize::MAX);
    assert!(one < pieces, "{one} moves uncut, {pieces} pieces");
    // Two layers, of which each waits for its moves: in pieces, three blocks each; uncut, all nineteen of a sequence.
    let unmoved = swaps(1).2 - 2 * 10_000;
    assert!(longest <= unmoved + 2 * 3 * 10_000, "{longest} ns beside {unmoved} without");
    assert!(whole > unmoved + 2 * 10 * 10_000, "{whole} ns uncut: a whole move stretches a step");
}

// 7. Costs are over shapes.

#[test]
fn an_op_is_costed_once_however_many_chunks_there_are() {
    let plan = Plan::resident(4, 4096);
    let calls = |sequences: u64| {
        let chunks = (0..sequences).map(|seq| chunk(seq, 50, 1, &[], Sampling::Sample)).collect();
        let shape = Shape::of(&step(0, chunks));
        let calls = Cell::new(0);
        let cost = |_: &Op, _: &Shape| {
            calls.set(calls.get() + 1);
            Nanos(1)
        };
        let program = arrange(lower(&shape, &plan), &shape, &cost);
        Timeline::new(Nanos::ZERO).commit(Nanos::ZERO, &program, &shape, &cost);
        assert!(calls.get() <= 2 * program.nodes().len());
        calls.get()
    };
    assert_eq!(calls(1), calls(512));
}

#[test]
fn a_shape_counts_what_its_chunks_say() {
    let mut away = chunk(2, 100, 1, &[], Sampling::Sample);
    (away.home, away.attend) = (Tier::Host, Tier::Device);
    let chunks = vec![chunk(0, 0, 10, &[], Sampling::Sample), chunk(1, 7, 3, &[], Sampling::Skip), away];
    let load = Shape::of(&step(0, chunks)).loads[0];
    assert_eq!((load.seqs, load.tokens, load.samples), (3, 14, 2));
    assert_eq!(load.prefill_pairs.device, (1..=10).sum::<u64>() + 8 + 9 + 10);
    assert_eq!(load.context, ByTier { device: 10 + 10 + 101, host: 0, disk: 0 });
    assert_eq!((load.kv_in.host, load.kv_out.host), (100, 1));
}

// 8. What cannot be expressed is refused, by name.

#[test]
fn attention_on_the_host_is_refused_by_the_plain_pipeline() {
    let mut on_host = chunk(0, 5, 1, &[], Sampling::Sample);
    (on_host.home, on_host.attend) = (Tier::Host, Tier::Host);
    let shape = Shape::of(&step(0, vec![on_host]));
    assert_eq!(
        Plan::resident(1, 64).fits(&shape),
        Err(Excess::Attention { pipeline: Pipeline::Plain, tier: Tier::Host })
    );
}
