//! The device's time in the host's: an event's place behind one whose moment the host has seen.
//!
//! ```text
//! host    |-- asked --- seen --|                     |-- asked --- seen --|
//! device        first                  event              second
//!                 |--- elapsed ---------|
//! ```
//!
//! Both clocks drift apart, and times are told in single precision: the host looks anew every second.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::result::DriverError;
use cudarc::driver::sys;

use crate::CudaError;

use super::failed;
use super::streams::Event;

/// How long the host relies on a moment that it has seen.
const TRUST: Duration = Duration::from_secs(1);

/// An event, and when the host saw that it was reached.
struct Base {
    event: Event,
    seen: Instant,
}

/// The newest moment that the host has seen, and the one before.
pub(super) struct Clock(Mutex<[Base; 2]>);

impl Base {
    fn new(stream: sys::CUstream) -> Result<Base, DriverError> {
        let mut base = Base { event: Event::timed()?, seen: Instant::now() };
        base.see(stream)?;
        Ok(base)
    }

    /// Looks at the clock now.
    fn see(&mut self, stream: sys::CUstream) -> Result<(), DriverError> {
        // SAFETY: both are this device's own, and nothing else is in the stream.
        unsafe { self.event.record(stream) }?;
        self.event.reach()?;
        self.seen = Instant::now();
        Ok(())
    }
}

impl Clock {
    /// The device's context is current. Nothing is to wait for in the stream. (Not one of its own: devices have eight queues of
    /// hardware unless they are told otherwise, and a ninth stream would wait in another's.)
    pub(super) fn new(stream: sys::CUstream) -> Result<Clock, CudaError> {
        let base = || Base::new(stream).map_err(failed("tell the time"));
        Ok(Clock(Mutex::new([base()?, base()?])))
    }

    /// Looks at the device's clock, if that was long ago.
    pub(super) fn keep_up(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        let mut bases = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if bases[1].seen.elapsed() > TRUST {
            bases[0].see(stream)?;
            bases.swap(0, 1);
        }
        Ok(())
    }

    /// When an event was reached, which it is; it was asked for at `asked`. Counted from the newest moment before that, if it is
    /// one of the last two: what was asked for before them lies before the older.
    pub(super) fn of(&self, event: &Event, asked: Instant) -> Result<Instant, DriverError> {
        let bases = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let [older, newer] = &*bases;
        let base = if newer.seen <= asked { newer } else { older };
        Ok(beside(base.seen, base.event.ms_to(event)?))
    }
}

/// So many milliseconds after a moment, or before it.
fn beside(seen: Instant, ms: f32) -> Instant {
    let by = Duration::try_from_secs_f64(f64::from(ms.abs()) / 1e3).unwrap_or_default();
    if ms < 0.0 { seen.checked_sub(by).unwrap_or(seen) } else { seen + by }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_lie_on_either_side_of_a_moment() {
        let seen = Instant::now() + Duration::from_secs(10);
        let half = Duration::from_millis(500);
        assert_eq!([beside(seen, 500.0), beside(seen, -500.0)], [seen + half, seen - half]);
    }
}
