//! Queues of a device's work: each is done in order, beside the others.
//!
//! A lane of a program asks for its nodes in a queue of its own. A call may be done later than it returns, so that "the lane
//! is done with this node" says only that all of it is asked for: whoever waits for the node names its [`Mark`], and the
//! device waits, not the thread.

use std::cell::Cell;

/// What was asked for in `queue` before [`Device::mark`](crate::device::Device::mark) was called with this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark {
    /// Which queue.
    pub queue: usize,
    /// Grows from mark to mark of a queue; from 1.
    pub number: u64,
}

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// Calls of this thread, on any device, go to this queue from now on. Threads begin with queue 0.
pub fn enter(queue: usize) {
    CURRENT.set(queue);
}

/// The queue of this thread's calls.
pub fn current() -> usize {
    CURRENT.get()
}
