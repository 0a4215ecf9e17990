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

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use crate::CudaError;

use super::failed;
use super::streams::timed_event;

/// How long the host relies on a moment that it has seen.
const TRUST: Duration = Duration::from_secs(1);

/// An event, and when the host saw that it was reached.
#[derive(Clone, Copy)]
struct Base {
    event: sys::CUevent,
    seen: Instant,
}

/// The newest moment that the host has seen, and the one before.
pub(super) struct Clock(Mutex<[Base; 2]>);

impl Base {
    fn see(event: sys::CUevent, stream: sys::CUstream) -> Result<Base, DriverError> {
        // SAFETY: both are this device's own, and nothing else is in the stream.
        unsafe {
            result::event::record(event, stream)?;
            result::event::synchronize(event)?;
        }
        Ok(Base { event, seen: Instant::now() })
    }
}

impl Clock {
    /// The device's context is current. Nothing is to wait for in the stream. (Not one of its own: devices have eight queues of
    /// hardware unless they are told otherwise, and a ninth stream would wait in another's.)
    pub(super) fn new(stream: sys::CUstream) -> Result<Clock, CudaError> {
        let base =
            || timed_event().and_then(|event| Base::see(event, stream)).map_err(failed("tell the time"));
        Ok(Clock(Mutex::new([base()?, base()?])))
    }

    /// Looks at the device's clock, if that was long ago.
    pub(super) fn keep_up(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        let mut bases = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let [older, newer] = *bases;
        if newer.seen.elapsed() > TRUST {
            *bases = [newer, Base::see(older.event, stream)?];
        }
        Ok(())
    }

    /// When an event was reached, which it is; it was asked for at `asked`. Counted from the newest moment before that, if it is
    /// one of the last two: what was asked for before them lies before the older.
    pub(super) fn of(&self, event: sys::CUevent, asked: Instant) -> Result<Instant, DriverError> {
        let bases = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let [older, newer] = *bases;
        let base = if newer.seen <= asked { newer } else { older };
        // SAFETY: both events are this device's own, know their times and are reached; nobody records the base meanwhile.
        let ms = unsafe { result::event::elapsed(base.event, event)? };
        Ok(beside(base.seen, ms))
    }
}

/// So many milliseconds after a moment, or before it.
fn beside(seen: Instant, ms: f32) -> Instant {
    let by = Duration::try_from_secs_f64(f64::from(ms.abs()) / 1e3).unwrap_or_default();
    if ms < 0.0 { seen.checked_sub(by).unwrap_or(seen) } else { seen + by }
}

// SAFETY: the driver's handles may be used from any thread; what is changed lies behind the lock.
unsafe impl Send for Clock {}
// SAFETY: as above.
unsafe impl Sync for Clock {}

impl Drop for Clock {
    fn drop(&mut self) {
        for base in self.0.get_mut().unwrap_or_else(PoisonError::into_inner) {
            // SAFETY: whoever has the device has waited for it. What fails here fails because the device is lost already.
            let _ = unsafe { result::event::destroy(base.event) };
        }
    }
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
