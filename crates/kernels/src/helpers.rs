//! Threads that sleep until there is something to wait for: requests to a drive, several at once.
//!
//! Unlike a [`Team`](crate::Team) they take no core while they wait, and several callers may use them at a time.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

/// Their stacks: what they run calls the system and little else.
const STACK_BYTES: usize = 256 << 10;

type Work<'a> = dyn Fn() + Sync + 'a;

/// Threads that help whoever calls [`Helpers::run`].
#[derive(Debug)]
pub struct Helpers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Something to do, or the end.
    wake: Condvar,
    /// A helper came back from a call.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Calls under way that want more helpers.
    calls: VecDeque<Call>,
    /// How many helpers are in a call, by its number; what the first of them that panicked said.
    inside: Vec<(u64, usize, Option<Panic>)>,
    next: u64,
    stop: bool,
}

type Panic = Box<dyn std::any::Any + Send>;

struct Call {
    number: u64,
    wanted: usize,
    work: &'static Work<'static>,
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "call {} wants {} more", self.number, self.wanted)
    }
}

impl Helpers {
    /// Up to `threads` of them; fewer if the system gives no more.
    pub fn new(threads: usize) -> Helpers {
        let shared = Arc::new(Shared::default());
        let start = |index| {
            let shared = Arc::clone(&shared);
            let builder = thread::Builder::new().name(format!("helper-{index}")).stack_size(STACK_BYTES);
            builder.spawn(move || shared.serve()).ok()
        };
        let threads = (0..threads).map_while(start).collect();
        Helpers { shared, threads }
    }

    /// Runs `work` here, and on up to `most` helpers that are idle meanwhile; returns when all of them are done. So `work`
    /// takes what there is to do piece by piece, until nothing is left.
    ///
    /// # Panics
    /// If `work` panics, on whichever thread.
    pub fn run(&self, most: usize, work: impl Fn() + Sync) {
        if most.min(self.threads.len()) == 0 {
            return work();
        }
        let work: &Work<'_> = &work;
        // SAFETY: only the lifetime changes. Helpers use the reference while they are counted in `inside`, and take it from
        // `calls`; this function does not return, nor unwind, before the call has left both.
        let lasting: &'static Work<'static> = unsafe { std::mem::transmute(work) };
        let number = self.shared.open(most, lasting);
        let own = catch_unwind(AssertUnwindSafe(work));
        let theirs = self.shared.close(number);
        if let Err(panic) = own.and(theirs.map_or(Ok(()), Err)) {
            resume_unwind(panic);
        }
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            // A panic was given to the caller of `run`.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn open(&self, wanted: usize, work: &'static Work<'static>) -> u64 {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.inside.push((number, 0, None));
        state.calls.push_back(Call { number, wanted, work });
        drop(state);
        (0..wanted).for_each(|_| self.wake.notify_one());
        number
    }

    /// No helper joins this call any more; waits for those that did.
    fn close(&self, number: u64) -> Option<Panic> {
        let mut state = self.lock();
        state.calls.retain(|call| call.number != number);
        loop {
            let at = state.inside.iter().position(|(inside, ..)| *inside == number).expect("it was opened");
            if state.inside[at].1 == 0 {
                return state.inside.swap_remove(at).2;
            }
            state = self.ended.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    fn serve(&self) {
        while let Some((number, work)) = self.join() {
            let panic = catch_unwind(AssertUnwindSafe(work)).err();
            let mut state = self.lock();
            let mut inside = state.inside.iter_mut();
            let (_, count, first) = inside.find(|(inside, ..)| *inside == number).expect("it waits for us");
            *count -= 1;
            *first = first.take().or(panic);
            drop(state);
            self.ended.notify_all();
        }
    }

    /// A call to help with, or nothing at the end.
    fn join(&self) -> Option<(u64, &'static Work<'static>)> {
        let mut state = self.lock();
        loop {
            if state.stop {
                return None;
            }
            if let Some(call) = state.calls.front_mut() {
                let (number, work) = (call.number, call.work);
                call.wanted -= 1;
                if call.wanted == 0 {
                    state.calls.pop_front();
                }
                let mut inside = state.inside.iter_mut();
                inside.find(|(inside, ..)| *inside == number).expect("it was opened").1 += 1;
                return Some((number, work));
            }
            state = self.wake.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn work_is_shared_among_those_who_are_idle_and_done_once() {
        let helpers = Helpers::new(3);
        let left = AtomicUsize::new(1000);
        let take = |n: usize| n.checked_sub(1);
        helpers.run(3, || while left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {});
        assert_eq!(left.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn the_same_threads_help_every_time_and_several_callers_at_once() {
        let helpers = Helpers::new(2);
        let seen = Mutex::new(HashSet::new());
        let together = Barrier::new(3);
        for _ in 0..50 {
            helpers.run(2, || {
                // All three are here at once, or nobody goes on.
                together.wait();
                seen.lock().unwrap().insert(thread::current().id());
            });
        }
        assert_eq!(seen.lock().unwrap().len(), 3);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50).for_each(|_| helpers.run(2, || ())));
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_helpers_live_on() {
        let helpers = Helpers::new(1);
        let here = thread::current().id();
        let together = Barrier::new(2);
        let call = || {
            helpers.run(1, || {
                together.wait();
                assert!(thread::current().id() == here, "the helper fails");
            });
        };
        assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
        let runs = AtomicUsize::new(0);
        helpers.run(1, || {
            together.wait();
            runs.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(runs.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn without_helpers_the_caller_does_it() {
        let runs = AtomicUsize::new(0);
        Helpers::new(0).run(3, || {
            runs.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    }
}
