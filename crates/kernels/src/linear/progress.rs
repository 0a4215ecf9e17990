//! How far the workers are with a block of rows of x that one of them, or all, brought into the form that is multiplied.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::team::{Stretches, Worker};

/// One block: whether it is there for others than its owner, and which panels it was multiplied by.
pub(super) struct Progress {
    packed: AtomicBool,
    panels: Stretches,
    done: AtomicUsize,
    all: usize,
}

impl Progress {
    /// `grain`: panels that are taken at once. `stretches`: that they are cut into, one for each worker that begins with its own.
    pub(super) fn new(panels: usize, grain: usize, stretches: usize) -> Progress {
        let (packed, done) = (AtomicBool::new(false), AtomicUsize::new(0));
        Progress { packed, panels: Stretches::new(panels, grain, stretches), done, all: panels }
    }

    /// Its owner has packed it.
    pub(super) fn pack(&self) {
        self.packed.store(true, Ordering::Release);
    }

    /// Waits until its owner has packed it.
    pub(super) fn wait_until_packed(&self, worker: &Worker<'_>) {
        worker.wait_until(|| self.packed.load(Ordering::Acquire));
    }

    /// Panels that worker `me` gets to multiply by, until none is left; what it takes it [finishes](Progress::finish), and waits for
    /// nobody before that.
    pub(super) fn panels(&self, me: usize) -> impl Iterator<Item = Range<usize>> {
        self.panels.of(me)
    }

    /// How many panels nobody has taken yet.
    pub(super) fn left(&self) -> usize {
        self.panels.left()
    }

    /// So many panels that were taken are done with.
    pub(super) fn finish(&self, panels: usize) {
        self.done.fetch_add(panels, Ordering::Release);
    }

    /// Waits until all panels are done with: nobody reads the block any more.
    pub(super) fn wait_until_done(&self, worker: &Worker<'_>) {
        worker.wait_until(|| self.done.load(Ordering::Acquire) == self.all);
    }
}
