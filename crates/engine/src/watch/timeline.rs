//! What ran on each lane, and when: the newest of it, in bounded memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use spec::{Lane, Nanos, Op};

use kernels::lock::lock;

/// A node that ran on a lane. Times count from the engine's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// What it was.
    pub op: Op,
    /// What ran it.
    pub lane: Lane,
    /// When it began.
    pub start: Nanos,
    /// When it ended.
    pub end: Nanos,
}

/// What is known of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    /// The newest nodes, in order of their ends.
    pub ran: Vec<Ran>,
    /// Older ones that are not kept.
    pub forgotten: u64,
}

/// Tells what ran, also when the engine has ended.
#[derive(Clone, Debug)]
pub struct LaneWatch(pub(crate) Arc<Timeline>);

impl LaneWatch {
    /// The newest nodes, as many as `EngineConfig::lane_spans`.
    pub fn ranges(&self) -> Ranges {
        self.0.ranges()
    }
}

/// Keeps the newest nodes of all lanes together.
#[derive(Debug)]
pub(crate) struct Timeline {
    begin: Instant,
    kept: usize,
    newest: Mutex<(VecDeque<Ran>, u64)>,
}

impl Timeline {
    /// Bytes of a timeline of so many nodes.
    pub(crate) fn bytes(kept: usize) -> u64 {
        (kept * size_of::<Ran>()) as u64
    }

    /// Keeps so many nodes; with 0 none.
    pub(crate) fn new(kept: usize) -> Timeline {
        Timeline { begin: Instant::now(), kept, newest: Mutex::new((VecDeque::with_capacity(kept), 0)) }
    }

    /// A lane ran a node.
    pub(crate) fn note(&self, op: Op, lane: Lane, began: Instant, took: Duration) {
        if self.kept == 0 {
            return;
        }
        let start = Nanos(began.saturating_duration_since(self.begin).as_nanos() as u64);
        let ran = Ran { op, lane, start, end: start + Nanos(took.as_nanos() as u64) };
        let (newest, forgotten) = &mut *lock(&self.newest);
        if newest.len() == self.kept {
            newest.pop_front();
            *forgotten += 1;
        }
        newest.push_back(ran);
    }

    /// What it knows now.
    pub(crate) fn ranges(&self) -> Ranges {
        let (newest, forgotten) = &*lock(&self.newest);
        Ranges { ran: newest.iter().copied().collect(), forgotten: *forgotten }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_and_the_others_counted() {
        let timeline = Timeline::new(3);
        let begin = timeline.begin;
        for i in 0..5u16 {
            let began = begin + Duration::from_nanos(10 * u64::from(i));
            timeline.note(Op::Embed { batch: i }, Lane::Device, began, Duration::from_nanos(7));
        }
        let Ranges { ran, forgotten } = timeline.ranges();
        assert_eq!((ran.len(), forgotten), (3, 2));
        let last = Ran { op: Op::Embed { batch: 4 }, lane: Lane::Device, start: Nanos(40), end: Nanos(47) };
        assert_eq!(ran[2], last);
        let none = Timeline::new(0);
        none.note(last.op, last.lane, begin, Duration::ZERO);
        assert_eq!(none.ranges(), Ranges::default());
    }
}
