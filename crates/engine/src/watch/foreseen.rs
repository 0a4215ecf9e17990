//! What the planner's costs say of the steps that run, beside what they take: a timeline in virtual time that follows the
//! real one, step by step.

use std::collections::VecDeque;

use policy::cost::{BySort, Correction, Cost, Measured, OpSort, Tables};
use policy::pipeline::{Delegation, Timeline};
use spec::{Nanos, Program, Shape};

use crate::plan::foresight::Foresight;

/// From this share on another factor is worth other costs: each change weighs anew who computes with the host's weights.
const WORTH: f64 = 0.02;
/// Of the time this much at the most goes to copies that are made to hear what they take.
const PROBED: f64 = 0.01;
/// And not more often than once in this share of what is remembered.
const PROBED_EVERY: f64 = 0.1;

/// Costs of the engine where its ops take what these tables say.
pub(crate) type Costs = Box<dyn Fn(Tables) -> Measured + Send>;

/// What was said of a step under way.
struct Said {
    /// That it would take.
    all: Nanos,
    /// Of its ops, by the tables as they were measured, seconds.
    sorts: BySort,
}

/// See the module. With several steps in flight the next one's loads go beside the end of this one, so what counts of a step
/// is the time from the end of the one before it, or from its start if that was later.
pub(crate) struct Foreseen {
    costs: Costs,
    by: Foresight,
    /// What the costs are made with now; what was learned since is little.
    applied: Correction,
    cost: Measured,
    timeline: Timeline,
    /// In virtual time, when the steps under way will be done: the oldest first.
    under_way: VecDeque<Nanos>,
    /// In virtual time, when the newest step that is done was.
    done: Nanos,
    said: VecDeque<Said>,
    /// In real time, when each of them was started.
    started: VecDeque<Nanos>,
    /// In real time, when the last of those before them was done.
    ended: Nanos,
    /// Said of the ops of the steps done since lanes were last listened to.
    unheard: BySort,
    /// What lanes had spent by then, nanoseconds.
    spent_before: [u64; OpSort::COUNT],
    /// Seconds of work that were listened to.
    heard_s: f64,
    /// Seconds of steps since something was last copied between host and device.
    silent_s: f64,
}

impl Foreseen {
    pub(crate) fn new(costs: Costs, by: Foresight) -> Foreseen {
        let applied = by.correction;
        Foreseen {
            cost: costs(by.costs()),
            timeline: Timeline::new(by.tables.pauses()),
            costs,
            by,
            applied,
            under_way: VecDeque::new(),
            done: Nanos::ZERO,
            said: VecDeque::new(),
            started: VecDeque::new(),
            ended: Nanos::ZERO,
            unheard: [0.0; OpSort::COUNT],
            spent_before: [0; OpSort::COUNT],
            heard_s: 0.0,
            silent_s: 0.0,
        }
    }

    /// In which steps the host computes with weights that live there, by what is known now. Nothing is heard of copies that are
    /// not made: so after a while the next step makes them, or a link that has become faster would never be found out.
    pub(crate) fn delegation(&self) -> Delegation {
        match self.cost.delegation {
            Delegation::Cheaper(_) if self.silent_s > self.patience_s() => Delegation::Never,
            known => known,
        }
    }

    /// For how long the host computes with its weights until they are copied again to hear what that takes.
    fn patience_s(&self) -> f64 {
        if self.rehearsed(OpSort::Copies) {
            return f64::INFINITY;
        }
        let bytes: u64 = self.cost.from_host.iter().flatten().sum();
        let copied_s = bytes as f64 / self.cost.tables.copy_bytes_per_s;
        (copied_s / PROBED).max(self.by.pace.memory_s * PROBED_EVERY)
    }

    /// What ops are believed to take, by what is known now.
    pub(crate) fn cost(&self) -> &dyn Cost {
        &self.cost
    }

    /// What is learned so far, that of earlier runs included.
    pub(crate) fn learned(&self) -> &Correction {
        &self.by.correction
    }

    /// Hands over what was learned, unless that is too little to mean anything.
    pub(crate) fn keep(&self) {
        if let Some(keep) = self.by.keep.as_ref().filter(|_| self.heard_s >= self.by.pace.least_s) {
            keep(&self.by.correction);
        }
    }

    /// A step begins that was lowered with `delegation`.
    pub(crate) fn start(&mut self, now: Nanos, program: &Program, shape: &Shape, delegation: Delegation) {
        let before = self.under_way.back().copied().unwrap_or(self.done).max(self.done);
        let tried =
            (delegation != self.cost.delegation).then(|| Measured { delegation, ..self.cost.clone() });
        let cost = tried.as_ref().unwrap_or(&self.cost);
        let timing = self.timeline.commit(self.done, program, shape, cost);
        let end = timing.end;
        let mut sorts = [0.0; OpSort::COUNT];
        for (node, (begin, end)) in program.nodes().iter().zip(timing.nodes) {
            if let Some(sort) = OpSort::of(&node.op).map(|sort| self.priced_as(sort)) {
                if sort == OpSort::Copies {
                    self.silent_s = 0.0;
                }
                let as_measured = self.applied.factor(sort);
                sorts[sort as usize] += Nanos(end.0 - begin.0).as_secs() / as_measured;
            }
        }
        self.said.push_back(Said { all: Nanos(end.0.saturating_sub(before.0)), sorts });
        self.under_way.push_back(end);
        self.started.push_back(now);
    }

    /// The oldest step under way is done: what it was said to take, and what it took.
    pub(crate) fn finish(&mut self, now: Nanos) -> Option<(Nanos, Nanos)> {
        let (end, said, started) =
            (self.under_way.pop_front()?, self.said.pop_front()?, self.started.pop_front()?);
        self.unheard.iter_mut().zip(said.sorts).for_each(|(sum, said)| *sum += said);
        self.done = self.done.max(end);
        let took = Nanos(now.0.saturating_sub(started.max(self.ended).0));
        self.ended = now;
        self.silent_s += took.as_secs();
        Some((said.all, took))
    }

    /// Lanes have spent so many nanoseconds on each sort since the start. Whatever was said of steps that are done is held
    /// against it, a good while of work at once.
    pub(crate) fn learn(&mut self, spent: [u64; OpSort::COUNT]) {
        let mut took: BySort = [0.0; OpSort::COUNT];
        for sort in OpSort::ALL {
            let spent = Nanos(spent[sort as usize] - self.spent_before[sort as usize]);
            took[self.priced_as(sort) as usize] += spent.as_secs();
        }
        let all = took.iter().sum::<f64>();
        if all < self.by.pace.window_s {
            return;
        }
        for sort in OpSort::ALL {
            let (said, took) = (self.unheard[sort as usize], took[sort as usize]);
            if self.rehearsed(sort) {
                continue;
            }
            let correction = &mut self.by.correction;
            if took > 0.0 {
                correction.hear(sort, said, took, &self.by.pace);
            } else {
                correction.fade(sort, all, &self.by.pace);
            }
        }
        self.heard_s += all;
        (self.unheard, self.spent_before) = ([0.0; OpSort::COUNT], spent);
        if self.by.correction.differs(&self.applied, WORTH) {
            self.applied = self.by.correction;
            self.cost = (self.costs)(self.by.costs());
        }
    }

    /// One processor attends for device and host alike where the tables know of one.
    fn priced_as(&self, sort: OpSort) -> OpSort {
        match sort {
            OpSort::HostAttention if self.by.tables.host_decode.is_empty() => OpSort::Attention,
            other => other,
        }
    }

    /// A link that is only played (`--link-gbps`) says nothing of this machine's.
    fn rehearsed(&self, sort: OpSort) -> bool {
        sort == OpSort::Copies && self.cost.link.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::lock::lock;
    use policy::cost::{Curve, Dims, ElementBytes, Linear, Pace};
    use policy::pipeline::{BothWays, DiskPath, Plan, Share, Weights};
    use spec::{Layout, Load, Pipeline};
    use std::sync::{Arc, Mutex};

    /// A second for each row of each op that has a table.
    fn foreseen(pace: Pace) -> Foreseen {
        foreseen_with(pace, (Delegation::Never, vec![]), 1.0)
    }

    fn foreseen_with(
        pace: Pace,
        (delegation, from_host): (Delegation, Vec<[u64; 2]>),
        copy_bytes_per_s: f64,
    ) -> Foreseen {
        let linear = Linear { seconds: Curve::rate(1.0), ..Linear::default() };
        let tables = Tables { mlp: linear, copy_bytes_per_s, ..Tables::default() };
        let dims = Dims {
            layers: 1,
            hidden: 8,
            heads: 1,
            kv_heads: 1,
            head_dim: 8,
            ffn: 8,
            mlp_matrices: 3,
            vocab: 16,
            tied_head: false,
        };
        let costs = move |tables| Measured {
            sparse: None,
            tables,
            dims,
            bytes: ElementBytes::BF16,
            from_disk: vec![],
            from_host: from_host.clone(),
            delegation,
            disk_path: DiskPath::Direct,
            windows: vec![],
            link: None,
        };
        Foreseen::new(Box::new(costs), Foresight { pace, ..tables.into() })
    }

    fn shape() -> Shape {
        let load = Load { tokens: 2, samples: 2, seqs: 2, ..Load::default() };
        Shape { pipeline: Pipeline::Plain, layout: Layout::SINGLE, loads: vec![load], moves: vec![] }
    }

    fn second(n: u64) -> Nanos {
        Nanos(n * 1_000_000_000)
    }

    /// A machine whose linears take three times as long as its tables say.
    #[test]
    fn steps_are_foreseen_by_what_was_learned() {
        let pace = Pace { trust_s: 1.0, memory_s: 1000.0, window_s: 10.0, least_s: 30.0 };
        let kept = Arc::new(Mutex::new(None));
        let there = Arc::clone(&kept);
        let mut foreseen = foreseen(pace);
        foreseen.by.keep = Some(Arc::new(move |learned: &Correction| *lock(&there) = Some(*learned)));
        let shape = shape();
        let program = policy::pipeline::lower(&shape, &Plan::resident(1, 64));
        let mut spent = [0; OpSort::COUNT];
        for step in 0..40 {
            foreseen.start(second(6 * step), &program, &shape, Delegation::Never);
            let (said, _) = foreseen.finish(second(6 * step + 6)).expect("a step");
            spent[OpSort::Linears as usize] += second(6).0;
            foreseen.learn(spent);
            match step {
                0..=1 => assert_eq!(said, second(2), "nothing was heard yet"),
                // Twelve seconds for four, beside one that is trusted.
                2 => assert_eq!(said.as_secs(), 2.0 * 13.0 / 5.0),
                _ => {}
            }
            foreseen.keep();
            assert_eq!(lock(&kept).is_some(), step >= 5, "not before half a minute");
        }
        let learned = lock(&kept).expect("it was kept");
        assert!((learned.factor(OpSort::Linears) - 3.0).abs() < 0.05, "{learned:?}");
        assert_eq!(foreseen.learned(), &learned);
        // What was learned is not learned twice.
        let again = Foresight { correction: learned, ..foreseen.by.clone() };
        let mut next = Foreseen::new(foreseen.costs, again);
        next.start(second(0), &program, &shape, Delegation::Never);
        let (said, _) = next.finish(second(6)).expect("a step");
        assert!((said.as_secs() - 6.0).abs() < 0.1, "{said:?}");
        let mut more = [0; OpSort::COUNT];
        more[OpSort::Linears as usize] = second(10).0;
        next.learn(more);
        assert!(next.learned().factor(OpSort::Linears) < 3.2, "{:?}", next.learned());
    }

    /// The host computes with its weights, for good as it seems.
    #[test]
    fn copies_that_are_not_made_are_tried_now_and_then() {
        let pace = Pace { trust_s: 1.0, memory_s: 100.0, window_s: 0.5, least_s: 30.0 };
        let cheaper = Delegation::Cheaper(BothWays::timed(Nanos(9), 64, |_| [Nanos(1), Nanos(2)]));
        // A fifth of a second to copy: a hundredth of the time.
        let mut foreseen = foreseen_with(pace, (cheaper, vec![[1, 1]]), 10.0);
        foreseen.by.correction.hear(OpSort::Copies, 100.0, 100.0, &pace);
        let weights = Weights::Streamed { host: Share::Some, disk: None };
        let (shape, mut spent, mut copied) = (shape(), [0; OpSort::COUNT], Vec::new());
        for step in 0..65 {
            let plan = Plan { weights, delegation: foreseen.delegation(), ..Plan::resident(1, 64) };
            let program = policy::pipeline::lower(&shape, &plan);
            foreseen.start(second(step), &program, &shape, plan.delegation);
            foreseen.finish(second(step + 1)).expect("a step");
            spent[OpSort::Linears as usize] += second(1).0;
            if !plan.delegates(&shape) {
                copied.push(step);
                // Twice what the table says.
                spent[OpSort::Copies as usize] += second(1).0 * 2 / 5;
            }
            foreseen.learn(spent);
        }
        assert_eq!(copied, [21, 42, 63]);
        let factor = foreseen.learned().factor(OpSort::Copies);
        assert!(factor > 1.0, "{factor}: what they take is heard");
        let none = foreseen_with(pace, (Delegation::Always { tokens: 8 }, vec![[1, 1]]), 10.0);
        let silent = Foreseen { silent_s: 1e9, ..none };
        assert_eq!(silent.delegation().tokens(), 8, "what is asked for is done");
    }

    #[test]
    fn steps_in_flight_count_from_the_end_of_those_before() {
        let (mut foreseen, shape) = (foreseen(Pace::default()), shape());
        let program = policy::pipeline::lower(&shape, &Plan::resident(1, 64));
        foreseen.start(second(10), &program, &shape, Delegation::Never);
        foreseen.start(second(11), &program, &shape, Delegation::Never);
        // Said to take two seconds each, one after the other.
        assert_eq!(foreseen.finish(second(13)), Some((second(2), second(3))));
        assert_eq!(foreseen.finish(second(14)), Some((second(2), second(1))));
        // Nothing was under way for a while.
        foreseen.start(second(50), &program, &shape, Delegation::Never);
        assert_eq!(foreseen.finish(second(52)), Some((second(2), second(2))));
        assert_eq!(foreseen.finish(second(53)), None);
    }
}
