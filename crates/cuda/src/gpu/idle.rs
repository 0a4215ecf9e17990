//! What threads take and give back: things that nobody has just now.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The one longest without use first.
pub(super) struct Idle<T> {
    free: Mutex<VecDeque<T>>,
    given: Condvar,
}

impl<T> Idle<T> {
    pub(super) fn new(free: VecDeque<T>) -> Idle<T> {
        Idle { free: Mutex::new(free), given: Condvar::new() }
    }

    fn free(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One, once somebody gives it back.
    pub(super) fn borrow(&self) -> Borrowed<'_, T> {
        let mut free = self.free();
        loop {
            match free.pop_front() {
                Some(one) => return self.lent(one),
                None => free = self.given.wait(free).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    pub(super) fn borrow_if_any(&self) -> Option<Borrowed<'_, T>> {
        self.take_if_any().map(|one| self.lent(one))
    }

    fn lent(&self, one: T) -> Borrowed<'_, T> {
        Borrowed { idle: self, one: Some(one) }
    }

    fn take_if_any(&self) -> Option<T> {
        self.free().pop_front()
    }

    /// One that there is, or another. Whoever keeps what it takes until others have gone on takes it so: nobody waits for it.
    ///
    /// # Errors
    /// Those of making it.
    pub(super) fn take_or<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.take_if_any().map_or_else(make, Ok)
    }

    pub(super) fn give(&self, one: T) {
        self.free().push_back(one);
        self.given.notify_one();
    }
}

/// One that goes back when whoever has it is done, fails or unwinds: others may wait for it.
pub(super) struct Borrowed<'a, T> {
    idle: &'a Idle<T>,
    one: Option<T>,
}

impl<T> Borrowed<'_, T> {
    /// Nobody has it any more: it may be in use by what has failed to say when that ends.
    pub(super) fn abandon(mut self) {
        self.one.take().into_iter().for_each(std::mem::forget);
    }
}

impl<T> Deref for Borrowed<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.one.as_ref().expect("there until it is dropped")
    }
}

impl<T> DerefMut for Borrowed<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.one.as_mut().expect("there until it is dropped")
    }
}

impl<T> Drop for Borrowed<'_, T> {
    fn drop(&mut self) {
        self.one.take().into_iter().for_each(|one| self.idle.give(one));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_keeps_what_there_is_gets_others_which_are_used_again() {
        let idle = Idle::new([0].into());
        let mut made = 0;
        let mut take = || {
            idle.take_or(|| {
                made += 1;
                Ok::<_, ()>(made)
            })
        };
        let kept: Vec<u32> = (0..200).map(|_| take().unwrap()).collect();
        assert_eq!((kept.len(), kept[0], kept[199]), (200, 0, 199));
        kept.into_iter().for_each(|one| idle.give(one));
        assert_eq!(idle.take_or(|| Err("a new one")), Ok(0));
        assert_eq!((idle.take_if_any(), idle.take_if_any()), (Some(1), Some(2)));
    }

    #[test]
    fn what_was_abandoned_does_not_come_back() {
        let idle = Idle::new([1, 2].into());
        idle.borrow().abandon();
        assert_eq!((idle.take_if_any(), idle.take_if_any()), (Some(2), None));
    }

    #[test]
    fn what_somebody_borrowed_who_failed_is_there_for_the_next() {
        let idle = Idle::new([7].into());
        let failing = || -> Result<(), ()> {
            let _one = idle.borrow_if_any().expect("nobody has it");
            Err(())
        };
        assert!(failing().is_err());
        let unwinding = std::panic::AssertUnwindSafe(|| {
            let _one = idle.borrow_if_any().expect("it went back");
            assert!(idle.borrow_if_any().is_none());
            std::panic::resume_unwind(Box::new(()))
        });
        let ended: Result<(), _> = std::panic::catch_unwind(unwinding);
        assert!(ended.is_err());
        assert_eq!(idle.borrow_if_any().as_deref(), Some(&7));
    }
}
