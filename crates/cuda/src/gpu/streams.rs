//! A stream for each queue, and the events that name how far it has come.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use kernels::queue::Mark;

use crate::CudaError;
use crate::driver::QUEUES;

use super::{failed, lost};

/// Marks of a queue that are remembered. A wait for an older one waits for the oldest of these, which is as good: it was
/// asked for already.
const EVENTS: usize = 128;

/// One queue.
struct Line {
    stream: sys::CUstream,
    /// Its newest marks, oldest first.
    marks: Mutex<VecDeque<(u64, sys::CUevent)>>,
}

/// The queues of a device.
pub(super) struct Streams(Vec<Line>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn event() -> Result<sys::CUevent, CudaError> {
    result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).map_err(failed("make an event"))
}

impl Line {
    fn new() -> Result<Line, CudaError> {
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        let stream = stream.map_err(failed("make a stream"))?;
        // Number 0 names nothing: nobody waits for it.
        let marks = (0..EVENTS).map(|_| Ok((0, event()?))).collect::<Result<_, CudaError>>()?;
        Ok(Line { stream, marks: Mutex::new(marks) })
    }

    /// What `stream` is asked for from now on waits for the first event at or after a mark. Under the lock, so that the
    /// event cannot come to name a later mark in between.
    fn wait(&self, number: u64, stream: sys::CUstream) -> Result<(), DriverError> {
        let marks = lock(&self.marks);
        let found = marks.iter().find(|(newest, _)| *newest >= number);
        let (_, event) = found.unwrap_or_else(|| panic!("a wait for mark {number}, which nobody made"));
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are this device's own.
        unsafe { result::stream::wait_event(stream, *event, flags) }
    }

    fn mark(&self, number: u64) -> Result<(), DriverError> {
        let mut marks = lock(&self.marks);
        let (_, event) = marks.pop_front().expect("a ring of events");
        marks.push_back((number, event));
        // SAFETY: both are this device's own. Streams that wait for what the event named before have taken note of it.
        unsafe { result::event::record(event, self.stream) }
    }
}

impl Streams {
    /// Streams and events, all that there will be. The device's context is current.
    pub(super) fn new() -> Result<Streams, CudaError> {
        Ok(Streams((0..QUEUES).map(|_| Line::new()).collect::<Result<_, _>>()?))
    }

    /// The stream of a queue.
    pub(super) fn of(&self, queue: usize) -> sys::CUstream {
        self.0[queue].stream
    }

    /// What comes in `queue` waits for the marks.
    pub(super) fn enter(&self, queue: usize, after: &[Mark]) -> Result<(), DriverError> {
        after.iter().try_for_each(|mark| self.0[mark.queue].wait(mark.number, self.of(queue)))
    }

    pub(super) fn mark(&self, mark: Mark) {
        self.0[mark.queue].mark(mark.number).unwrap_or_else(|e| lost("record an event", e));
    }

    /// Waits until a queue has done what it was asked for.
    pub(super) fn settle(&self, queue: usize) -> Result<(), DriverError> {
        // SAFETY: the stream is this device's own.
        unsafe { result::stream::synchronize(self.of(queue)) }
    }

    /// Waits until every queue has.
    pub(super) fn wait(&self) -> Result<(), DriverError> {
        (0..QUEUES).try_for_each(|queue| self.settle(queue))
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        for line in &mut self.0 {
            // SAFETY: whoever has the device has waited for it. What fails here fails because the device is lost already.
            unsafe {
                for (_, event) in line.marks.get_mut().unwrap_or_else(PoisonError::into_inner) {
                    let _ = result::event::destroy(*event);
                }
                let _ = result::stream::destroy(line.stream);
            }
        }
    }
}
