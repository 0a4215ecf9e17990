//! A scheduler whose queues can be seen from outside.

use std::sync::Arc;

use policy::sched::{Fcfs, Next, Scheduler};
use spec::{Done, Nanos, Request, SeqId};

use crate::stats::Stats;

/// Tells the counters what waits and runs, whenever that was decided.
pub(crate) struct Watched {
    pub(crate) scheduler: Fcfs,
    pub(crate) stats: Arc<Stats>,
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
        let scheduler = &self.scheduler;
        self.stats.scheduled(scheduler.running(), scheduler.waiting(), scheduler.device_blocks().0);
        self.stats.preempted(scheduler.preempted());
        next
    }

    fn complete(&mut self, now: Nanos, done: &Done) {
        self.scheduler.complete(now, done);
    }
}
