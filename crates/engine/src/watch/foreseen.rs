//! What the planner's costs say of the steps that run, beside what they take: a timeline in virtual time that follows the
//! real one, step by step.

use std::collections::VecDeque;

use policy::cost::{Measured, Tables};
use policy::pipeline::Timeline;
use spec::{Nanos, Program, Shape};

use crate::plan::outline::Outline;

/// See the module. With several steps in flight the next one's loads go beside the end of this one, so what counts of a step
/// is the time from the end of the one before it, or from its start if that was later.
pub(crate) struct Foreseen {
    cost: Measured,
    timeline: Timeline,
    /// In virtual time, when the steps under way will be done: the oldest first.
    under_way: VecDeque<Nanos>,
    /// In virtual time, when the newest step that is done was.
    done: Nanos,
    /// What each step under way was said to take.
    said: VecDeque<Nanos>,
    /// In real time, when each of them was started.
    started: VecDeque<Nanos>,
    /// In real time, when the last of those before them was done.
    ended: Nanos,
}

impl Foreseen {
    pub(crate) fn new(outline: &Outline, tables: Tables) -> Foreseen {
        let timeline = Timeline::new(tables.pauses());
        Foreseen {
            cost: outline.cost(tables),
            timeline,
            under_way: VecDeque::new(),
            done: Nanos::ZERO,
            said: VecDeque::new(),
            started: VecDeque::new(),
            ended: Nanos::ZERO,
        }
    }

    /// A step begins.
    pub(crate) fn start(&mut self, now: Nanos, program: &Program, shape: &Shape) {
        let before = self.under_way.back().copied().unwrap_or(self.done).max(self.done);
        let end = self.timeline.commit(self.done, program, shape, &self.cost).end;
        self.said.push_back(Nanos(end.0.saturating_sub(before.0)));
        self.under_way.push_back(end);
        self.started.push_back(now);
    }

    /// The oldest step under way is done: what it was said to take, and what it took.
    pub(crate) fn finish(&mut self, now: Nanos) -> Option<(Nanos, Nanos)> {
        let (end, said, started) =
            (self.under_way.pop_front()?, self.said.pop_front()?, self.started.pop_front()?);
        self.done = self.done.max(end);
        let took = Nanos(now.0.saturating_sub(started.max(self.ended).0));
        self.ended = now;
        Some((said, took))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use policy::cost::{Curve, Dims, ElementBytes, Linear};
    use policy::pipeline::{Delegation, DiskPath, Plan};
    use spec::{Layout, Load, Pipeline};

    /// A second for each row of each op that has a table.
    fn foreseen() -> Foreseen {
        let linear = Linear { seconds: Curve::rate(1.0), ..Linear::default() };
        let tables = Tables { mlp: linear, ..Tables::default() };
        let dims = Dims {
            layers: 1,
            hidden: 8,
            heads: 1,
            kv_heads: 1,
            head_dim: 8,
            ffn: 8,
            mlp_matrices: 3,
            vocab: 16,
        };
        Foreseen {
            cost: Measured {
                sparse: None,
                tables,
                dims,
                bytes: ElementBytes::BF16,
                from_disk: vec![],
                from_host: vec![],
                delegation: Delegation::Never,
                disk_path: DiskPath::Direct,
                windows: vec![],
                link: None,
            },
            timeline: Timeline::new(Nanos::ZERO),
            under_way: VecDeque::new(),
            done: Nanos::ZERO,
            said: VecDeque::new(),
            started: VecDeque::new(),
            ended: Nanos::ZERO,
        }
    }

    #[test]
    fn steps_in_flight_count_from_the_end_of_those_before() {
        let mut foreseen = foreseen();
        let load = Load { tokens: 2, samples: 2, seqs: 2, ..Load::default() };
        let shape =
            Shape { pipeline: Pipeline::Plain, layout: Layout::SINGLE, loads: vec![load], moves: vec![] };
        let program = policy::pipeline::lower(&shape, &Plan::resident(1, 64));
        let second = |n: u64| Nanos(n * 1_000_000_000);
        foreseen.start(second(10), &program, &shape);
        foreseen.start(second(11), &program, &shape);
        // Said to take two seconds each, one after the other.
        assert_eq!(foreseen.finish(second(13)), Some((second(2), second(3))));
        assert_eq!(foreseen.finish(second(14)), Some((second(2), second(1))));
        // Nothing was under way for a while.
        foreseen.start(second(50), &program, &shape);
        assert_eq!(foreseen.finish(second(52)), Some((second(2), second(2))));
        assert_eq!(foreseen.finish(second(53)), None);
    }
}
