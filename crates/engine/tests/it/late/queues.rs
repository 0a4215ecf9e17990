//! Virtual streams: calls are put off, and done one by one in an order of a seed's choosing, as late as anybody lets them.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use kernels::queue::Mark;
use sim::Rng;

pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// What a queue does next.
enum Entry {
    Await(Vec<Mark>),
    Do(Work),
    Reach(u64),
}

#[derive(Default)]
struct State {
    queues: BTreeMap<usize, VecDeque<Entry>>,
    /// The newest mark of each queue that was reached.
    reached: BTreeMap<usize, u64>,
    /// Work that is begun and not over.
    busy: usize,
    /// Threads that wait for something.
    waiting: usize,
    closing: bool,
    broken: Option<String>,
}

/// The queues of a device, and the thread that works them off.
pub(crate) struct Queues {
    shared: Arc<(Mutex<State>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

/// Chooses who goes on: some queues are held back for a while, until nobody else can go on and somebody waits.
struct Choice {
    rng: Rng,
    held: u64,
}

impl Choice {
    fn among(&mut self, ready: &[usize], urgent: bool) -> Option<usize> {
        if self.rng.one_in(24) {
            self.held = self.rng.next_u64();
        }
        let free: Vec<usize> = ready.iter().copied().filter(|queue| self.held >> queue & 1 == 0).collect();
        let from = if free.is_empty() && urgent { ready } else { &free };
        (!from.is_empty()).then(|| from[self.rng.below(from.len() as u64) as usize])
    }
}

impl State {
    fn ready(&self) -> Vec<usize> {
        let open = |mark: &Mark| self.reached.get(&mark.queue).is_some_and(|number| *number >= mark.number);
        let ready = self.queues.iter().filter(|(_, entries)| match entries.front() {
            Some(Entry::Await(marks)) => marks.iter().all(open),
            Some(_) => true,
            None => false,
        });
        ready.map(|(queue, _)| *queue).collect()
    }

    fn is_idle(&self) -> bool {
        self.busy == 0 && self.queues.values().all(VecDeque::is_empty)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve((state, moved): &(Mutex<State>, Condvar), seed: u64) {
    let mut choice = Choice { rng: Rng::new(seed), held: 0 };
    let mut guard = lock(state);
    while guard.broken.is_none() {
        let urgent = guard.waiting > 0 || guard.closing;
        let Some(queue) = choice.among(&guard.ready(), urgent) else {
            if guard.closing {
                return;
            }
            guard = moved.wait(guard).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        match guard.queues.get_mut(&queue).and_then(VecDeque::pop_front) {
            Some(Entry::Reach(number)) => drop(guard.reached.insert(queue, number)),
            Some(Entry::Do(work)) => {
                guard.busy += 1;
                drop(guard);
                let result = catch_unwind(AssertUnwindSafe(work));
                guard = lock(state);
                guard.busy -= 1;
                if result.is_err() {
                    guard.broken = Some("a call that was put off panicked".into());
                }
            }
            Some(Entry::Await(_)) | None => {}
        }
        moved.notify_all();
    }
}

impl Queues {
    pub(crate) fn new(seed: u64) -> Queues {
        let shared = Arc::new((Mutex::new(State::default()), Condvar::new()));
        let theirs = Arc::clone(&shared);
        let thread = thread::spawn(move || serve(&theirs, seed));
        Queues { shared, thread: Some(thread) }
    }

    fn push(&self, queue: usize, entry: Entry) {
        let mut state = lock(&self.shared.0);
        assert!(state.broken.is_none(), "{:?}", state.broken);
        state.queues.entry(queue).or_default().push_back(entry);
        self.shared.1.notify_all();
    }

    pub(crate) fn enter(&self, queue: usize, after: &[Mark]) {
        self.push(queue, Entry::Await(after.to_vec()));
    }

    pub(crate) fn mark(&self, mark: Mark) {
        self.push(mark.queue, Entry::Reach(mark.number));
    }

    pub(crate) fn later(&self, queue: usize, work: Work) {
        self.push(queue, Entry::Do(work));
    }

    /// Waits until a queue, or all of them, have done what they were asked for.
    pub(crate) fn wait(&self, queue: Option<usize>) {
        let done = Arc::new(Mutex::new(false));
        if let Some(queue) = queue {
            let told = Arc::clone(&done);
            self.later(queue, Box::new(move || *told.lock().unwrap() = true));
        }
        self.until(|state| if queue.is_some() { *done.lock().unwrap() } else { state.is_idle() });
    }

    /// Waits until what a mark names is done.
    pub(crate) fn reach(&self, mark: Mark) {
        self.until(|state| state.reached.get(&mark.queue).is_some_and(|number| *number >= mark.number));
    }

    /// Waits until something is over, which what was put off tells of.
    pub(crate) fn wait_for(&self, over: impl Fn() -> bool) {
        self.until(|_| over());
    }

    fn until(&self, over: impl Fn(&State) -> bool) {
        let mut state = lock(&self.shared.0);
        state.waiting += 1;
        self.shared.1.notify_all();
        while state.broken.is_none() && !over(&state) {
            state = self.shared.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting -= 1;
        let broken = state.broken.clone();
        drop(state);
        assert!(broken.is_none(), "{broken:?}");
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        lock(&self.shared.0).closing = true;
        self.shared.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // What it panicked with was told where it happened.
            let _ = thread.join();
        }
    }
}
