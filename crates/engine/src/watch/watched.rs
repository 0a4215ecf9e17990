//! A scheduler whose queues can be seen from outside.

use std::sync::Arc;

use policy::sched::{Fcfs, Next, Scheduler};
use spec::{Done, Nanos, Request, SeqId, Tier};

use crate::watch::stats::Stats;

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
        let blocks = Tier::ALL.map(|tier| scheduler.blocks_used(tier));
        self.stats.scheduled(scheduler.running(), scheduler.waiting(), blocks);
        self.stats.preempted(scheduler.preempted());
        self.stats.prefixes(scheduler);
        next
    }

    fn complete(&mut self, now: Nanos, done: &Done) {
        self.scheduler.complete(now, done);
    }
}
