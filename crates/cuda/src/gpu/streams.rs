//! A stream for each queue, and the events that name how far it has come.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Instant;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use kernels::lock::lock;
use kernels::queue::Mark;

use crate::CudaError;
use crate::driver::QUEUES;

use super::clock::Clock;
use super::{failed, lost};

/// Marks of a queue that are remembered. A wait for an older one waits for the oldest of these, which is as good: it was
/// asked for already. As many as a few steps of a large model have nodes; events are made when they are needed.
const EVENTS: usize = 1 << 14;

/// A queue whose work is never long: what one device sends to others, of which there are none.
const IDLE: usize = QUEUES - 1;

/// The queue of what is computed, whose kernels fill the device. Those of the others, which copy, are few and late if they have to
/// wait for one to end: their blocks come first.
const COMPUTES: usize = 0;

/// What was asked for up to some moment.
struct Marked {
    number: u64,
    event: Event,
    /// When it was asked for.
    asked: Instant,
}

/// One queue.
struct Line {
    stream: sys::CUstream,
    marks: Mutex<Marks>,
}

/// The newest marks of a queue.
#[derive(Default)]
struct Marks {
    /// Oldest first.
    made: VecDeque<Marked>,
    /// Events that name nothing any more.
    free: Vec<Event>,
    /// Up to this one they are done and forgotten.
    done: u64,
}

/// The queues of a device.
pub(super) struct Streams {
    lines: Vec<Line>,
    clock: Clock,
}

/// How a thread waits for an event.
#[derive(Clone, Copy)]
pub(super) enum Waits {
    /// It keeps its core, and goes on at once: what it waits for is short.
    Awake,
    /// It leaves its core to others.
    Asleep,
}

/// An event of the driver's, which goes with this.
pub(super) struct Event(sys::CUevent);

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// One that names where a stream is and does not know its time. The device's context is current, as it is for all of these.
    pub(super) fn new(waits: Waits) -> Result<Event, DriverError> {
        use sys::CUevent_flags::{CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING};
        let flags = match waits {
            Waits::Awake => CU_EVENT_DISABLE_TIMING as u32,
            Waits::Asleep => CU_EVENT_DISABLE_TIMING as u32 | CU_EVENT_BLOCKING_SYNC as u32,
        };
        let mut event = std::ptr::null_mut();
        // SAFETY: the driver writes one handle.
        unsafe { sys::cuEventCreate(&mut event, flags) }.result()?;
        Ok(Event(event))
    }

    /// One that knows its time. Who waits for it sleeps: a step is long.
    pub(super) fn timed() -> Result<Event, DriverError> {
        result::event::create(sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC).map(Event)
    }

    /// The driver's handle, for as long as this lives.
    pub(super) fn raw(&self) -> sys::CUevent {
        self.0
    }

    /// Names what the stream was asked for so far.
    ///
    /// # Safety
    /// The stream is the same device's.
    pub(super) unsafe fn record(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        // SAFETY: passed on from the caller; the event is there as long as this is.
        unsafe { result::event::record(self.0, stream) }
    }

    /// Waits for what it names.
    pub(super) fn reach(&self) -> Result<(), DriverError> {
        // SAFETY: the event is there as long as this is.
        unsafe { result::event::synchronize(self.0) }
    }

    /// Milliseconds from this one to a later one; fewer than none to one before. Both know their times and are reached.
    pub(super) fn ms_to(&self, other: &Event) -> Result<f32, DriverError> {
        // SAFETY: both are there as long as the references are; the driver refuses events that do not know their times.
        unsafe { result::event::elapsed(self.0, other.0) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: nobody has the handle any more, and who waits for it in a stream has taken note of it. What fails here fails because the
        // device is lost already.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}

impl Line {
    fn new(priority: i32) -> Result<Line, CudaError> {
        let stream = result::stream::create_with_priority(result::stream::StreamKind::NonBlocking, priority);
        Ok(Line { stream: stream.map_err(failed("make a stream"))?, marks: Mutex::default() })
    }

    /// What `stream` is asked for from now on waits for the first event at or after a mark. Under the lock, so that the
    /// event cannot come to name a later mark in between.
    fn wait(&self, number: u64, stream: sys::CUstream) -> Result<(), DriverError> {
        let marks = lock(&self.marks);
        if number <= marks.done {
            return Ok(());
        }
        let event = marks.at_or_after(number).raw();
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are this device's own.
        unsafe { result::stream::wait_event(stream, event, flags) }
    }

    fn mark(&self, number: u64) -> Result<(), DriverError> {
        let mut marks = lock(&self.marks);
        let (event, asked) = (marks.unused()?, Instant::now());
        // SAFETY: both are this device's own. Streams that wait for what the event named before have taken note of it.
        let recorded = unsafe { event.record(self.stream) };
        marks.made.push_back(Marked { number, event, asked });
        recorded
    }

    /// Waits for a mark, without the lock: others go on making theirs. Should the event come to name a later one meanwhile,
    /// that is waited for, which is as good.
    fn reach(&self, number: u64) -> Result<(), DriverError> {
        let event = {
            let marks = lock(&self.marks);
            if number <= marks.done {
                return Ok(());
            }
            marks.at_or_after(number).raw()
        };
        // SAFETY: the event is this device's own, and lives as long as it.
        unsafe { result::event::synchronize(event) }
    }

    /// When a mark was reached, which it is, if its event still names it. Those before it are forgotten.
    fn when(&self, number: u64, clock: &Clock) -> Result<Option<Instant>, DriverError> {
        let mut marks = lock(&self.marks);
        let mut found = None;
        while marks.made.front().is_some_and(|oldest| oldest.number <= number) {
            let oldest = marks.made.pop_front().expect("it was just seen");
            marks.done = oldest.number;
            let at = (oldest.number == number).then(|| clock.of(&oldest.event, oldest.asked));
            // Whatever the clock says: others may wait for it.
            marks.free.push(oldest.event);
            found = at.transpose()?.or(found);
        }
        Ok(found)
    }
}

impl Marks {
    fn at_or_after(&self, number: u64) -> &Event {
        let found = self.made.get(self.made.partition_point(|marked| marked.number < number));
        &found.unwrap_or_else(|| panic!("a wait for mark {number}, which nobody made")).event
    }

    fn unused(&mut self) -> Result<Event, DriverError> {
        match self.free.pop() {
            Some(event) => Ok(event),
            None if self.made.len() < EVENTS => Event::timed(),
            None => Ok(self.made.pop_front().expect("many marks").event),
        }
    }
}

impl Streams {
    /// All streams. The device's context is current.
    pub(super) fn new() -> Result<Streams, CudaError> {
        let range = result::stream::get_priority_range();
        let (least, greatest) = range.map_err(failed("tell its streams' priorities"))?;
        let priority = |queue| if queue == COMPUTES { least } else { greatest };
        let lines: Vec<Line> =
            (0..QUEUES).map(|queue| Line::new(priority(queue))).collect::<Result<_, _>>()?;
        let clock = Clock::new(lines[IDLE].stream)?;
        Ok(Streams { lines, clock })
    }

    /// The stream of a queue.
    pub(super) fn of(&self, queue: usize) -> sys::CUstream {
        self.lines[queue].stream
    }

    /// What comes in `queue` waits for the marks.
    pub(super) fn enter(&self, queue: usize, after: &[Mark]) -> Result<(), DriverError> {
        after.iter().try_for_each(|mark| self.lines[mark.queue].wait(mark.number, self.of(queue)))
    }

    pub(super) fn mark(&self, mark: Mark) {
        // So that the moment that its time is counted from is not long before it.
        let made = self.clock.keep_up(self.of(IDLE)).and_then(|()| self.lines[mark.queue].mark(mark.number));
        made.unwrap_or_else(|e| lost("record an event", e));
    }

    /// Waits until what a mark names is done.
    pub(super) fn reach(&self, mark: Mark) -> Result<(), DriverError> {
        self.lines[mark.queue].reach(mark.number)
    }

    /// When it was, if that is known.
    pub(super) fn when(&self, mark: Mark) -> Result<Option<Instant>, DriverError> {
        self.lines[mark.queue].when(mark.number, &self.clock)
    }

    /// Waits until a queue has done what it was asked for. The thread sleeps meanwhile, as it does not in the driver's own wait for
    /// a stream.
    pub(super) fn settle(&self, queue: usize) -> Result<(), DriverError> {
        let end = Event::new(Waits::Asleep)?;
        // SAFETY: both are this device's own.
        unsafe { end.record(self.of(queue)) }?;
        end.reach()
    }

    /// Waits until every queue has.
    pub(super) fn wait(&self) -> Result<(), DriverError> {
        (0..QUEUES).try_for_each(|queue| self.settle(queue))
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // SAFETY: whoever has the device has waited for it. What fails here fails because the device is lost already.
        let _ = unsafe { result::stream::destroy(self.stream) };
    }
}
